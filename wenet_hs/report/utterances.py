# SPDX-License-Identifier: Apache-2.0
"""Utterances to browse: of each the reference above what every system recognised, unit by unit, and its sound."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from wenet_hs.files import read_lines
from wenet_hs.report.audio import Sounds, can_encode
from wenet_hs.report.markup import missing, options, section
from wenet_hs.report.material import Material
from wenet_hs.score import ErrorCounts, Operation, Report, Rules, ScoredUtterance, align
from wenet_hs.score.error_rate import percent
from wenet_hs.score.units import UNIT_NAMES, word_lengths

MOST = 400
AUDIO_MB = 3.0
EMPTY = "·"  # stands opposite a deleted or an inserted unit
_MEGABYTE = 10**6


def utterances_section(material: Material, *, most: int = MOST, audio_mb: float = AUDIO_MB) -> str:
    """The worst utterances of the shown mode, worst first by the mean error rate of the systems.

    Args:
        most: how many; a page of all utterances of a large test would be slow to open.
        audio_mb: room for embedded audio, in megabytes of the page; 0 for none.
    """
    shown = material.shown
    if not shown:
        return section("utterances", "Utterances", missing("No utterances: no experiment has a score.json."))
    ordered = worst_first([report for _, _, report in shown])
    keys = ordered[: max(0, most)]
    sounds = Sounds(material.clips, int(audio_mb * _MEGABYTE) if can_encode() else 0)
    sounds.embed(keys)
    sure = [_confidences(experiment.folder / experiment.test, material.mode) for _, experiment, _ in shown]
    items = "\n".join(_utterance(key, material, sounds, sure) for key in keys)
    legend = ", ".join(
        f'<span class="legend {kind}">{what}</span>'
        for kind, what in (("S", "substituted"), ("D", "deleted"), ("I", "inserted"))
    )
    part = f"the {len(keys):,} worst of {len(ordered):,}" if len(keys) < len(ordered) else f"all {len(ordered):,}"
    return section(
        "utterances",
        "Utterances",
        f"<p>{part.capitalize()}{material.said}, {escape(material.mode or '')}, by falling mean error rate of the "
        f"systems. Above the reference, below what was recognised: {legend}.</p>",
        missing(_audio_note(material, sounds, audio_mb)),
        *(missing(f"{e.name} has no {e.test}/{material.mode}/hyps.jsonl: no confidence.")
          for (_, e, _), known in zip(shown, sure, strict=True) if known is None),
        _controls(material, keys),
        f'<div id="list">\n{items}\n</div>',
        '<p class="js"><button type="button" id="more" hidden>Show more</button></p>',
    )  # fmt: skip


def worst_first(reports: Sequence[Report]) -> list[str]:
    """Keys by falling mean error rate over the systems, then by falling number of errors, then by name."""

    def order(key: str) -> tuple[float, int, str]:
        found = [report.utterances[key].counts for report in reports]
        rates = [counts.errors if counts.rate is None else counts.rate for counts in found]
        return -sum(rates) / len(rates), -sum(counts.errors for counts in found), key

    return sorted(reports[0].utterances, key=order)


def _confidences(folder: Path, mode: str | None) -> dict[str, float] | None:
    """The confidence of each utterance's best hypothesis, from hyps.jsonl; None where there is none to read."""
    path = folder / (mode or "") / "hyps.jsonl"
    if not path.is_file():
        return None
    found = {}
    for line in read_lines(path):
        try:
            record = json.loads(line)
            found[str(record["key"])] = float(record["confidence"])
        except (ValueError, KeyError, TypeError):  # cut off by a kill, or no alignment: no confidence to show
            continue
    return found


def _audio_note(material: Material, sounds: Sounds, audio_mb: float) -> str:
    if audio_mb <= 0:
        return "No audio: --audio_mb is 0."
    if not material.clips:
        return "No audio: the test list is not known; give --data_list."
    if not can_encode():
        return "No audio: this libsndfile writes no MP3; version 1.1 does."
    told = f"Audio of {len(sounds.urls):,} utterances: mono, 16 kHz, MP3, made smaller for this page."
    if sounds.left_out:
        told += f" {sounds.left_out:,} more are left out, for the page holds {audio_mb:g} MB of it (--audio_mb)."
    if sounds.unreadable:
        told += f" Of {sounds.unreadable:,} the audio file cannot be read."
    return told


def _controls(material: Material, keys: Sequence[str]) -> str:
    shown = material.shown
    utterances = shown[0][2].utterances
    langs = sorted({utterances[key].lang for key in keys})
    orders = [("worst", "worst first")]
    orders += [(f"-e{place}", f"highest error of {experiment.name}") for place, experiment, _ in shown]
    if len(shown) == 2:
        (a, one, _), (b, other, _) = shown
        orders += [(f"d{a}-{b}", f"{other.name} most better"), (f"d{b}-{a}", f"{one.name} most better")]
    orders += [("-length", "longest first"), ("length", "shortest first"), ("lang", "language"), ("key", "name")]
    choices = [("", "all languages"), *((lang, lang) for lang in langs)]
    return (
        '<div class="controls js" role="search">'
        '<label>Find <input type="search" id="find" placeholder="key or text"></label>'
        f'<label>Language <select id="lang">{options(choices)}</select></label>'
        f'<label>Order <select id="order">{options(orders)}</select></label>'
        '<label><input type="checkbox" id="wrong"> with errors alone</label>'
        '<span id="count" role="status"></span></div>'
    )


def _utterance(key: str, material: Material, sounds: Sounds, sure: Sequence[Mapping[str, float] | None]) -> str:
    """One utterance: facts, sound, and an alignment for each system."""
    shown = material.shown
    first = shown[0][2].utterances[key]
    length = first.counts.num_units
    unit = UNIT_NAMES[shown[0][2].rules.metric]
    clip = material.clips.get(key)
    facts = [escape(first.lang), f"{length:,} {unit}{'' if length == 1 else 's'}"]
    facts += [] if clip is None or clip.duration is None else [f"{clip.duration:.2f} s"]
    url = sounds.urls.get(key)
    player = f'<audio controls preload="none" src="{url}" aria-label="{escape(key)}"></audio>' if url else ""
    rates = "".join(f' data-e{place}="{_order(report.utterances[key].counts):.4f}"' for place, _, report in shown)
    texts = " ".join([first.ref, *(report.utterances[key].hyp or "" for _, _, report in shown)])
    systems = "".join(
        _system(experiment.name, place, report.utterances[key], report.rules, (known or {}).get(key))
        for (place, experiment, report), known in zip(shown, sure, strict=True)
    )
    return (
        f'<article class="utterance" data-key="{escape(key)}" data-lang="{escape(first.lang)}" '
        f'data-length="{length}"{rates} data-text="{escape(texts)}">\n<div class="facts">'
        f"<span>{_unbroken([f'<code>{escape(key)}</code>', *facts])}</span>{player}</div>\n{systems}</article>"
    )


def _order(counts: ErrorCounts) -> float:
    return float(counts.errors) if counts.rate is None else counts.rate


def _system(name: str, place: int, utterance: ScoredUtterance, rules: Rules, confidence: float | None) -> str:
    facts = [f"{rules.metric.upper()} {percent(utterance.counts.rate)} %", letters(utterance.counts)]
    facts += [] if confidence is None else [f"confidence {confidence:.2f}"]
    facts += ["no hypothesis"] if utterance.hyp is None else []
    return (
        f'<div class="system"><div class="quiet"><span class="key c{place % 6}"><span>{escape(name)}</span></span>'
        f"{_unbroken(facts)}</div>"
        f'<div class="aligned" dir="ltr">{aligned(utterance, rules)}</div></div>\n'
    )


def _unbroken(facts: Iterable[str]) -> str:
    """HTML of facts in a row: a narrow page breaks the line between two, never a word from its number."""
    return "&nbsp;· ".join(fact.replace(" ", "&nbsp;") for fact in facts)


def letters(counts: ErrorCounts) -> str:
    """The counts under their usual letters."""
    return f"N {counts.num_units:,} S {counts.substitutions:,} D {counts.deletions:,} I {counts.insertions:,}"


def aligned(utterance: ScoredUtterance, rules: Rules) -> str:
    """A column a run of equal operations; letters leave a gap where the reference has a space."""
    columns = []
    for group, gap in _groups(utterance, rules):
        kind = group[0].kind
        ref = "".join(operation.ref or "" for operation in group) or EMPTY
        hyp = "".join(operation.hyp or "" for operation in group) or EMPTY
        classes = "u" + ("" if kind == "C" else f" {kind}") + (" gap" if gap else "")
        columns.append(f'<span class="{classes}"><span>{_show(ref)}</span><span>{_show(hyp)}</span></span>')
    return "<wbr>".join(columns)


def _groups(utterance: ScoredUtterance, rules: Rules) -> Iterator[tuple[list[Operation], bool]]:
    """Runs of one kind inside a word, and whether a word ends there. Words and phones are runs of their own."""
    operations = align(*utterance.split(rules))
    ends = _word_ends(utterance, rules)
    num_units, group = 0, list[Operation]()
    for index, operation in enumerate(operations):
        group.append(operation)
        num_units += operation.ref is not None
        following = operations[index + 1] if index + 1 < len(operations) else None
        # A unit inserted behind the last letter of a word belongs to that word.
        at_end = num_units in ends and not (following and following.ref is None)
        if rules.metric != "cer" or at_end or following is None or following.kind != operation.kind:
            yield group, rules.metric != "cer" or at_end
            group = []


def _word_ends(utterance: ScoredUtterance, rules: Rules) -> set[int]:
    """How many units stand before each space of the reference, where spaces themselves are not units."""
    if rules.spaces == "count":
        return set()
    return set(accumulate(word_lengths(utterance.ref, rules, utterance.lang)))


def _show(text: str) -> str:
    return escape(text.replace(" ", "␣"))
