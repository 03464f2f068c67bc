# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report, its utterances with confidences and audio, and its error rates as plain text."""

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import soundfile
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wenet_hs.data.audio import read_audio
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.manifest import Utterance
from wenet_hs.report import sections
from wenet_hs.report.collect import ReportData, sort_modes
from wenet_hs.score.bootstrap import SEED
from wenet_hs.score.edit_distance import Operation, align
from wenet_hs.score.error_rate import ScoredUtterance, format_interval, percent, sortable_rate, worst_first
from wenet_hs.score.seeds import FIXED_LANGUAGES, count_tests
from wenet_hs.score.tables import format_columns, format_p, format_points, format_signed
from wenet_hs.score.units import UNIT_NAMES, Rules, word_lengths

MAX_UTTERANCES = 400
AUDIO_MB = 3.0
EMPTY = "·"  # shown opposite a deleted or an inserted unit
_SAMPLE_RATE = 16_000


def build_page(
    data: ReportData, *, title: str, command: str, max_utterances: int = MAX_UTTERANCES, audio_mb: float = AUDIO_MB
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    Args:
        command: the command that creates the page.
        max_utterances: the number of utterances on the page; the worst ones are shown.
        audio_mb: limit of their audio, in megabytes of the page; 0 for none.
    """
    values = {
        "data": data,
        "title": title,
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "command": command,
        "note": Markup(f' <span class="simulated">{data.note.strip()}</span>') if data.note else "",
        "version": version("wenet_hs"),
        "bootstrap_seed": SEED,
        "corpora": sections.corpora_section(data),
        "speed": sections.speed_section(data),
        "training": sections.training_section(data),
        "trees": sections.trees_section(data),
        "confusions": sections.confusions_section(data),
        "conditions": sections.conditions_section(data),
    }
    has_scores = bool(data.shown)
    values["errors"] = sections.errors_section(data) if has_scores else None
    values["lengths"] = sections.lengths_section(data) if has_scores else None
    values["utterances"] = utterances_section(data, max_utterances, audio_mb) if has_scores else None
    return _environment().get_template("page.html").render(values)


# ---- utterances


def utterances_section(data: ReportData, max_utterances: int, audio_mb: float) -> dict[str, Any]:
    """The worst utterances of the shown mode, by falling mean error rate of the systems.

    Args:
        max_utterances: their number; a page with all utterances of a large test would be slow.
        audio_mb: limit of embedded audio, in megabytes of the page; 0 for none.
    """
    reports = [report for _, _, report in data.shown]
    ordered = worst_first(reports)
    keys = ordered[:max_utterances]
    urls, num_omitted, num_unreadable = _embed_audio(data.clips, keys, int(audio_mb * 10**6))
    confidences = {
        index: _read_confidences(experiment.folder / experiment.test / str(data.mode) / "hyps.jsonl")
        for index, experiment, _ in data.shown
    }
    return {
        "shown": keys,
        "num_scored": len(ordered),
        "langs": sorted({reports[0].utterances[key].lang for key in keys}),
        "unit": UNIT_NAMES[reports[0].rules.metric],
        "confidences": confidences,
        "audio_mb": audio_mb,
        "urls": urls,
        "num_omitted": num_omitted,
        "num_unreadable": num_unreadable,
    }


def align_columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[tuple[str, str, str, bool]]:
    """The alignment as columns: runs of one kind inside a word of letters; each word or phone is a column.

    A column is its kind (C, S, D or I), reference, hypothesis, and whether a word ends here.
    """
    operations = align(*utterance.split(rules))
    lengths = word_lengths(utterance.ref, rules, utterance.lang) if rules.spaces == "ignore" else []
    word_ends = set(accumulate(lengths))
    num_units, run = 0, list[Operation]()
    for index, operation in enumerate(operations):
        run.append(operation)
        num_units += operation.ref is not None
        following = operations[index + 1] if index + 1 < len(operations) else None
        # A unit inserted after the last letter of a word belongs to that word.
        at_end = num_units in word_ends and not (following and following.ref is None)
        if rules.metric != "cer" or at_end or following is None or following.kind != operation.kind:
            ref, hyp = "".join(found.ref or "" for found in run), "".join(found.hyp or "" for found in run)
            ref, hyp = (text.replace(" ", "␣") or EMPTY for text in (ref, hyp))
            yield operation.kind, ref, hyp, rules.metric != "cer" or at_end
            run = []


def _read_confidences(path: Path) -> dict[str, float] | None:
    """The confidence of each utterance's best hypothesis in hyps.jsonl; None without the file."""
    if not path.is_file():
        return None
    found = {}
    for line in read_lines(path):
        try:
            record = json.loads(line)
            found[str(record["key"])] = float(record["confidence"])
        except (ValueError, KeyError, TypeError):  # an incomplete line, or no alignment
            continue
    return found


def _embed_audio(
    clips: Mapping[str, Utterance], keys: Iterable[str], max_bytes: int
) -> tuple[dict[str, str], int, int]:
    """Data URLs of the first clips that fit into `max_bytes`, the number of omitted and of unreadable clips."""
    urls, num_omitted, num_unreadable = dict[str, str](), 0, 0
    for key in filter(clips.__contains__, keys):
        if max_bytes <= 0:
            num_omitted += 1
            continue
        try:
            url = "data:audio/mpeg;base64," + base64.b64encode(_encode_clip(clips[key])).decode("ascii")
        except (DataError, soundfile.LibsndfileError):
            num_unreadable += 1
            continue
        max_bytes -= len(url)
        if max_bytes < 0:
            num_omitted += 1
        else:
            urls[key] = url
    return urls, num_omitted, num_unreadable


def _encode_clip(clip: Utterance) -> bytes:
    """The audio of one utterance as MP3, which every browser plays: mono, 16 kHz, about 4 kB per second."""
    waveform = read_audio(clip.wav, start=clip.start, end=clip.end, sample_rate=_SAMPLE_RATE)
    buffer = io.BytesIO()
    how: dict[str, Any] = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT"}
    soundfile.write(buffer, waveform.numpy(), _SAMPLE_RATE, compression_level=0.85, **how)  # about 35 kbit/s
    return buffer.getvalue()


# ---- templates and plain text


@cache
def _environment() -> Environment:
    """The templates, compiled once, with the filters for numbers."""
    environment = Environment(loader=PackageLoader("wenet_hs.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "count": "{:,}".format,
        "columns": align_columns,
        "counts": sections.format_counts,
        "first_sentence": lambda html: Markup(html).striptags().split(". ")[0],
        "interval": format_interval,
        "p_value": format_p,
        "percent": percent,
        "points": format_points,
        "score": sections.score_of,
        "signed": format_signed,
        "sort_rate": sortable_rate,
    }
    return environment


def format_summary(data: ReportData) -> str:
    """Error rates in %, the macro average with its 95 % interval, and the real-time factor; empty without scores."""
    reports = [report for experiment in data.experiments for report in experiment.scores.values()]
    if not reports:
        return ""
    langs = sorted({lang for report in reports for lang in report.languages})
    rows = [["mode", "experiment", *langs, "macro", "95% interval", "RTF"]]
    for mode in sort_modes({mode for experiment in data.experiments for mode in experiment.scores}):
        for experiment in data.experiments:
            if mode in experiment.scores:
                report = experiment.scores[mode]
                rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
                interval = "" if report.macro.interval is None else format_interval(report.macro.interval)
                rtf = experiment.speeds.get(mode, {}).get("rtf")
                row = [mode, experiment.name, *map(percent, rates), percent(report.macro.rate), interval]
                rows.append([*row, "" if rtf is None else f"{rtf:.3f}"])
    metrics = sections.metric_names(data.experiments)
    return "\n".join([f"{metrics} in %{data.note}", *format_columns(rows, num_left=2), *_summarize_seeds(data)])


def _summarize_seeds(data: ReportData) -> Iterator[str]:
    """The systems with several seeds: their rates, and their differences from the first system."""
    for table in sections.seed_tables(data):
        if table.rows:
            yield from ("", *format_columns([table.names, *table.rows], num_left=2))
    yield from data.seed_faults
    if data.systems:
        yield f"differences in points. p, Holm: corrected for {count_tests(data.systems)}. {FIXED_LANGUAGES}"
