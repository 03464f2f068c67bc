# SPDX-License-Identifier: Apache-2.0
"""A scoring as JSON, for other programs and for the report page. Rates are fractions; keys N, S, D, I as everywhere."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval
from wenet_hs.score.confusions import Confusion, ConfusionReport, Confusions
from wenet_hs.score.edit_distance import ErrorCounts
from wenet_hs.score.error_rate import Report
from wenet_hs.score.summary import FeatureRate, Grouping, LanguageScore, MacroScore, ScoredUtterance
from wenet_hs.score.units import Rules

FORMAT = "wenet_hs.score/1"


def to_json(report: Report) -> str:
    """The report as JSON text: conditions first, then a line for each language and for each utterance."""
    head = {
        "format": FORMAT,
        "name": report.name,
        "signature": report.signature,
        "rules": asdict(report.rules),
        "bootstrap": {"num_resamples": report.num_resamples, "seed": SEED, "confidence": CONFIDENCE},
        "macro": _of_macro(report.macro),
        "micro": _of_language(report.micro),
        "missing": report.missing,
        "extra": report.extra,
    }
    if report.confusions is not None:
        head["confusions"] = asdict(report.confusions)
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    if report.by:
        lines.append(_table("by", {name: _of_grouping(grouping) for name, grouping in report.by.items()}))
    lines.append(_table("languages", {lang: _of_language(score) for lang, score in report.languages.items()}))
    lines.append(_table("utterances", {key: _of_utterance(value) for key, value in report.utterances.items()}))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_report(path: Path | str) -> Report:
    """Read a `score --json` file. Raises DataError naming the file when it is not one."""
    try:
        record = json.loads("\n".join(read_lines(path)))
        if record.get("format") != FORMAT:
            raise ValueError(f"format is {record.get('format')!r}, expected {FORMAT!r}")
        return _from_record(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: not a file of `score --json` ({fault}); run `wenet-hs score` again") from error


def _from_record(record: dict[str, Any]) -> Report:
    confusions = record.get("confusions")
    return Report(
        name=record["name"],
        rules=Rules(**record["rules"]),
        signature=record["signature"],
        languages={lang: _language(value) for lang, value in record["languages"].items()},
        macro=_macro(record["macro"]),
        micro=_language(record["micro"]),
        missing=tuple(record["missing"]),
        extra=tuple(record["extra"]),
        utterances={key: _utterance(value) for key, value in record["utterances"].items()},
        num_resamples=record["bootstrap"]["num_resamples"],
        by={name: _grouping(value) for name, value in record.get("by", {}).items()},
        confusions=None if confusions is None else _confusion_report(confusions),
    )


def _table(name: str, records: dict[str, dict[str, Any]]) -> str:
    rows = [
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(r, ensure_ascii=False)}" for key, r in records.items()
    ]
    return f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}"


def _of_counts(counts: ErrorCounts) -> dict[str, int]:
    return {
        "N": counts.num_units,
        "S": counts.substitutions,
        "D": counts.deletions,
        "I": counts.insertions,
    }


def _of_language(score: LanguageScore) -> dict[str, Any]:
    facts = {"utterances": score.utterances, **_of_counts(score.counts)}
    return {**facts, "rate": score.rate, "interval": score.interval, **_of_features(score.features)}


def _of_macro(macro: MacroScore) -> dict[str, Any]:
    facts = {"languages": macro.num_languages, "rate": macro.rate, "interval": macro.interval}
    return {**facts, **_of_features(macro.features)}


def _of_features(features: FeatureRate | None) -> dict[str, Any]:
    """Nothing where features were not asked for."""
    return {} if features is None else {"pfer": {"rate": features.rate, "interval": features.interval}}


def _of_grouping(grouping: Grouping) -> dict[str, Any]:
    groups = {name: _of_language(score) for name, score in grouping.groups.items()}
    return {"macro": _of_macro(grouping.macro), "micro": _of_language(grouping.micro), "groups": groups}


def _of_utterance(utterance: ScoredUtterance) -> dict[str, Any]:
    facts: dict[str, Any] = {"lang": utterance.lang, **_of_counts(utterance.counts)}
    if utterance.feature_distance is not None:
        facts["feature_distance"] = utterance.feature_distance
    return {**facts, "ref": utterance.ref, "hyp": utterance.hyp}


def _utterance(record: dict[str, Any]) -> ScoredUtterance:
    distance = record.get("feature_distance")
    return ScoredUtterance(record["lang"], record["ref"], record["hyp"], _counts(record), distance)


def _counts(record: dict[str, Any]) -> ErrorCounts:
    return ErrorCounts(record["N"], record["S"], record["D"], record["I"])


def _language(record: dict[str, Any]) -> LanguageScore:
    return LanguageScore(record["utterances"], _counts(record), _interval(record["interval"]), _features(record))


def _macro(record: dict[str, Any]) -> MacroScore:
    return MacroScore(record["rate"], record["languages"], _interval(record["interval"]), _features(record))


def _features(record: dict[str, Any]) -> FeatureRate | None:
    found = record.get("pfer")
    return None if found is None else FeatureRate(found["rate"], _interval(found["interval"]))


def _grouping(record: dict[str, Any]) -> Grouping:
    groups = {name: _language(value) for name, value in record["groups"].items()}
    return Grouping(groups, _macro(record["macro"]), _language(record["micro"]))


def _confusion_report(record: dict[str, Any]) -> ConfusionReport:
    languages = {lang: _confusions(value) for lang, value in record["languages"].items()}
    return ConfusionReport(record["most"], _confusions(record["overall"]), languages)


def _confusions(record: dict[str, Any]) -> Confusions:
    kinds = (tuple(Confusion(**pair) for pair in record[kind]) for kind in ("substitutions", "deletions", "insertions"))
    return Confusions(record["num_errors"], *kinds)


def _interval(bounds: list[float] | None) -> Interval | None:
    return None if bounds is None else Interval(*bounds)
