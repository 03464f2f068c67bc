# SPDX-License-Identifier: Apache-2.0
"""Values of the report's sections. Each function returns the variables of the template with the same name."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup

from wenet_hs.base.files import file_sha256
from wenet_hs.config.load import flatten
from wenet_hs.report.curve_charts import curve_charts
from wenet_hs.report.page_table import NONE, compare_columns, format_counts, format_number, format_setting, score_of
from wenet_hs.report.plots import Dot, Line, interval_chart, scatter_chart
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.folder import DecodingRecord
from wenet_hs.results.pairing import SAME_COMPUTATION, check_pair
from wenet_hs.results.report_data import ReportData
from wenet_hs.runs.sentences import describe_facts
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, Difference, compare
from wenet_hs.score.error_rate import LENGTH, UNDEFINED, by_length, percent
from wenet_hs.score.rules import UNIT_NAMES
from wenet_hs.score.seeds import FIXED_LANGUAGES, MIN_SEEDS, count_tests
from wenet_hs.score.tables import Record, seed_difference_cells
from wenet_hs.tree.errors import DataError, list_names
from wenet_hs.tree_kinds.plot import tree_svg

# ---- error rates


def errors_section(data: ReportData) -> dict[str, Any]:
    """Rates, paired differences and the interval chart of the shown mode; seeds; the rates of all modes."""
    assert data.mode is not None
    experiments, shown, mode = data.experiments, data.shown, data.mode
    (_, first, first_report), *others = shown
    known = {key: clip.speaker for key, clip in data.clips.items() if clip.speaker}
    speakers = known if first_report.utterances.keys() <= known.keys() else None
    faults = [
        f"{found.name} has no scored {mode}." for found in experiments if found.scores and mode not in found.scores
    ]
    is_over_seeds = any(of.mode == mode for of in data.systems)
    rivals: dict[int, dict[str, Difference]] = {}
    for index, experiment, report in others:
        if is_over_seeds and experiment.settings.get("seed") != first.settings.get("seed"):
            continue
        try:
            check_pair(first.training, experiment.training, SAME_COMPUTATION)
            rivals[index] = compare(first_report, report, speakers=speakers).differences
        except DataError as error:
            faults.append(f"{first.name} (A) and {experiment.name} (B) are not compared in {mode}: {error}")
    langs = sorted(first_report.languages)  # the same in all: their references are equal
    dots = [
        Dot(row=group, score=score_of(report, group), colour=index, label=f"{experiment.name}, {group}")
        for group in (*langs, *([MACRO] if len(langs) > 1 else []))
        for index, experiment, report in shown
    ]
    seeds, seed_differences = seed_tables(data)
    modes = data.scored_modes
    columns = [
        (name, index, found.scores[name])
        for name in modes
        for index, found in enumerate(experiments)
        if name in found.scores
    ]
    return {
        "faults": [*faults, *data.seed_faults],
        "metrics": metric_names(experiments),
        "langs": langs,
        "averages": (MACRO, MICRO) if len(langs) > 1 else (),
        "rivals": rivals,
        "is_over_seeds": is_over_seeds,
        "has_speakers": any(of[lang].has_speaker_interval for of in rivals.values() for lang in langs if lang in of),
        "min_speakers": MIN_SPEAKERS,
        "chart": interval_chart(dots, label="Error rates by language"),
        "seeds": seeds,
        "seed_differences": seed_differences,
        "num_tests": count_tests(data.systems),
        "fixed_languages": FIXED_LANGUAGES,
        "min_seeds": MIN_SEEDS,
        "modes": Counter(name for name, _, _ in columns),
        "columns": columns,
    }


def metric_names(experiments: Sequence[ExperimentResults]) -> str:
    """The metrics of all scorings: "CER", or "CER and WER"."""
    reports = [report for experiment in experiments for report in experiment.scores.values()]
    return " and ".join(sorted({report.rules.metric.upper() for report in reports}))


def seed_tables(data: ReportData) -> tuple[list[Record], list[Record]]:
    """The rates in % of the systems with several seeds, and their differences from the first one in points."""
    rates, differences = list[Record](), list[Record]()
    for of in data.systems:
        values = [*of.rates.values()]
        each = ", ".join(f"{seed}: {percent(rate)}" for seed, rate in of.rates.items())
        record = {"mode": of.mode, "system": of.name, "seeds": str(len(values)), "mean": percent(fmean(values))}
        rates.append(record | {"standard deviation": percent(stdev(values)), "seed: rate": each})
        if of.difference is not None:
            names = ("pairs", "difference", "95 % interval", "p", "p, Holm", "detectable")
            cells = dict(zip(names, seed_difference_cells(of.difference, of.adjusted_p), strict=True))
            cells |= {} if len(of.difference.differences) >= MIN_SEEDS else {"p": "points only"}
            differences.append({"mode": of.mode, "system": f"{of.name} − {of.baseline}", **cells})
    return rates, differences


# ---- corpora

_SAMPLING = (("hours_before", "hours released", 2), ("lambda", "λ", 4), ("hours_wanted", "λ × hours", 2))


def corpora_section(data: ReportData) -> dict[str, Any]:
    """Hours, utterances and speakers per language and split of each corpus; for a sampled corpus the paper's λ."""
    corpora = []
    for path, stats in data.stats.items():
        name = str(stats.get("corpus", path)).removesuffix(data.note)  # the title has the note
        corpus = {"path": path, "name": name, "licence": stats.get("licence")}
        langs, total = stats.get("langs"), stats.get("total")
        records = [_corpus_record(*item) for item in sorted(langs.items())] if isinstance(langs, dict) else []
        totals = [_corpus_record("all", total)] if total and len(records) > 1 else []
        corpora.append(corpus | {"table": records, "total": totals})
    return {"corpora": corpora}


def _corpus_record(lang: str, found: Mapping[str, Any]) -> Record:
    record = {"language": lang}
    record |= {name: format_number(found[key], digits) for key, name, digits in _SAMPLING if key in found}
    for what, digits in {"hours": 4, "utterances": 0, "speakers": 0}.items():
        for split in ("train", "dev", "test"):
            record[f"{split} {what}"] = format_number(found.get(what, {}).get(split), digits)
    return record


# ---- decoding speed

_CONDITION_NAMES = {
    "num_threads": "threads",
    "num_ranks": "processes",
    "max_segment_s": "maximum seconds of a segment",
    "nbest": "n-best",
}


MAX_WORK_RATIO = 1.1


def speed_fault(experiments: Sequence[ExperimentResults]) -> str:
    """Why the speeds cannot be compared; empty if they can.

    Features and encoder are the same work for each output layer, and CTC too if its settings and units are equal.
    """
    timed = [found for found in experiments if found.speeds]
    if len(timed) < 2:
        return ""
    seconds = {found.name: found.decoding.seconds for found in timed if found.decoding.audio_seconds}
    if without := [found.name for found in timed if not seconds.get(found.name, {}).get("encoder")]:
        return f"Speeds are not shown: rtf.json of {list_names(without)} has no encoder time. Decode again."
    for pair in combinations(timed, 2):
        ctc = [(found.settings.get("ctc_conf"), found.run.files.get("units.txt")) for found in pair]
        shared = ("features", "encoder", *(["ctc"] if ctc[0] == ctc[1] else []))
        work = [stage for stage in shared if all(stage in seconds[found.name] for found in pair)]
        (fast, first), (slow, last) = sorted(
            (sum(seconds[found.name][stage] for stage in work) / (found.decoding.audio_seconds or 0.0), found.name)
            for found in pair
        )
        if slow > MAX_WORK_RATIO * fast:
            return (
                "Speeds are not shown because they cannot be compared. Per second of speech the same work "
                f"({', '.join(work)}) takes {slow:.4f} s in {last}, {fast:.4f} s in {first}. These times differ only "
                "by the load of the machine. Decode one after the other on an idle machine."
            )
    return ""


def speed_section(data: ReportData) -> dict[str, Any]:
    """Real-time factors per mode, language and part. Conditions that differ are columns."""
    fault = speed_fault(data.experiments)
    measured = [(found, _conditions(found.decoding)) for found in data.experiments if found.speeds and not fault]
    names = dict.fromkeys(name for _, of in measured for name in of)
    differing = [name for name in names if len({of.get(name) for _, of in measured}) > 1]
    speeds, by_lang, parts = list[Record](), list[Record](), list[Record]()
    for found, of in measured:
        for mode, speed in found.speeds.items():
            record = {"experiment": found.name, "mode": mode}
            rates = speed.sum_rtf_by_lang
            if len(rates) > 1:
                by_lang.append(record | {lang: format_number(rates[lang], 4) for lang in sorted(rates)})
            record["speech, s"] = format_number(found.decoding.audio_seconds, 1)
            record["decoding, s"] = format_number(speed.wall_seconds, 1)
            record["RTF"] = format_number(speed.rtf, 4)
            speeds.append(record | {name: of.get(name, NONE) for name in differing})
        if seconds := found.decoding.seconds:
            of_parts = {part.replace("_", " "): format_number(value, 2) for part, value in seconds.items()}
            parts.append({"experiment": found.name, **of_parts})
    return {
        "fault": fault,
        "table": speeds,
        "common": {name: measured[0][1][name] for name in names if name not in differing},
        "languages": by_lang,
        "parts": parts,
    }


def _conditions(decoding: DecodingRecord) -> Record:
    """Device, threads, options of the decoding and other conditions."""
    shown = {name: format_setting(value) for name, value in decoding.options.items()}
    return {_CONDITION_NAMES.get(name, name.replace("_", " ")): text for name, text in shown.items()}


# ---- training


def training_section(data: ReportData) -> dict[str, Any]:
    """Final values, curves over steps and over wall time, and the settings that differ."""
    records = []
    for found in data.experiments:
        train, valid = found.curves.get("train", []), found.curves.get("valid", [])
        if not (train or valid):
            continue
        last, end = max(valid + train, key=lambda record: record["step"]), valid[-1] if valid else {}
        lowest = min((record["loss"] for record in valid if "loss" in record), default=None)
        record = {"experiment": found.name, "head": found.head, "steps": f"{last['step']:,.0f}"}
        record["epoch"] = format_number(last.get("epoch"), 0)
        record["minutes"] = format_number(end["seconds"] / 60 if "seconds" in end else None, 1)
        record["lowest validation loss, nats per target"] = format_number(lowest, 3)
        record["last validation, bits per unit"] = format_number(end.get("bits_per_unit"), 3)
        record["last validation accuracy, %"] = percent(end.get("accuracy"))
        records.append(record)
    settings = {
        found.name: {key: format_setting(value) for key, value in flatten(found.settings).items()}
        for found in data.experiments
    }
    compared = sorted(compare_columns("setting", settings, NONE), key=lambda record: next(iter(record.values())))
    curves = [found.curves for found in data.experiments]
    return {
        "table": records,
        "step_charts": curve_charts(curves, "steps"),
        "time_charts": curve_charts(curves, "minutes"),
        "settings": [of for of in compared if len({of[name] for name in settings}) > 1],
    }


# ---- trees

MAX_LEAVES = 60


def trees_section(data: ReportData) -> dict[str, Any]:
    """The trees of the output layers with their most probable units; equal trees once."""
    trees: list[tuple[Any, str, Markup]] = []
    for owner in data.experiments:
        if owner.tree is not None and owner.tree not in [tree for tree, _, _ in trees]:
            names = [experiment.name for experiment in data.experiments if experiment.tree == owner.tree]
            drawing = tree_svg(owner.tree, max_leaves=MAX_LEAVES)
            trees.append((owner.tree, ", ".join(names), Markup(drawing[drawing.index("<svg") :])))
    return {"trees": trees, "max_leaves": MAX_LEAVES}


# ---- length against error

MAX_RATE = 2.0  # larger rates are drawn at this rate, so that one utterance with many insertions does not flatten all


def lengths_section(data: ReportData) -> dict[str, Any]:
    """Two charts: the error rate per range of reference lengths, and the error rate of each utterance by its length."""
    metric = data.shown[0][2].rules.metric
    unit = f"{UNIT_NAMES[metric]}s"
    dots, clouds, num_clipped = list[Dot](), list[Line](), 0
    for index, experiment, report in data.shown:
        for name, score in by_length(report).by[LENGTH].groups.items():
            label = f"{experiment.name}, {name} {unit}, {score.utterances:,} utterances"
            dots.append(Dot(row=f"{name} (n={score.utterances:,})", score=score, colour=index, label=label))
        counts = [utterance.counts for utterance in report.utterances.values()]
        points = [(float(count.num_units), count.rate) for count in counts if count.rate is not None]
        num_clipped += sum(rate > MAX_RATE for _, rate in points)
        clouds.append(Line(points=[(length, min(MAX_RATE, rate)) for length, rate in points], colour=index))
    label = f"Error rate of each utterance by its length in {unit}"
    return {
        "metric": metric.upper(),
        "bins": interval_chart(dots, label=f"Error rates by length of the reference in {unit}"),
        "scatter": scatter_chart(clouds, label=label, unit=unit),
        "num_clipped": num_clipped,
        "max_percent": format(100 * MAX_RATE, "g"),
    }


# ---- conditions

_INPUT_FILES = ("train.yaml", "metrics.jsonl", "units.txt", "tree.json", "final.pt", "final.json")


_SHOWN_SETTINGS = ("seed", "encoder", "encoder_conf.layers", "encoder_conf.freeze")


def conditions_section(data: ReportData) -> dict[str, Any]:
    """Signatures and counts of the error rates, the facts about the trainings, and the hashes of all input files."""
    scores, files, provenance = list[Record](), list[Record](), dict[str, Record]()
    for found in data.experiments:
        for mode, report in found.scores.items():
            record = {"experiment": found.name, "mode": mode, "signature": report.signature}
            record |= {"counts": format_counts(report.micro), "resamples": f"{report.num_resamples:,}"}
            scores.append(record | {"missing": f"{len(report.missing):,}"})
        facts = describe_facts(found.run) | {
            key: value for key, value in flatten(found.settings).items() if key in _SHOWN_SETTINGS
        }
        provenance[found.name] = {str(key): str(value) for key, value in facts.items()}
    for path in filter(Path.is_file, dict.fromkeys(_input_paths(data))):
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S")
        record = {"file": str(path), "changed, UTC": changed, "bytes": f"{path.stat().st_size:,}"}
        files.append(record | {"SHA-256": file_sha256(path)})
    return {"scores": scores, "provenance": compare_columns("training", provenance, UNDEFINED), "files": files}


def _input_paths(data: ReportData) -> Iterable[Path]:
    for experiment in data.experiments:
        yield from (experiment.folder / name for name in _INPUT_FILES)
        yield experiment.test.record_path
        yield from map(experiment.test.score_path, experiment.scores)
        if data.mode is not None:
            yield experiment.test.hypotheses_path(data.mode)
    yield from data.stats
    if data.data_list is not None:
        yield data.data_list
