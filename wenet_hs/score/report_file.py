# SPDX-License-Identifier: Apache-2.0
"""Scorings as JSON, in which rates are fractions: what `score --json` writes, and reading it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.score.alignments import ConfusionReport
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval
from wenet_hs.score.edit_distance import ErrorCounts
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Report, ScoredUtterance
from wenet_hs.score.rules import Rules
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.score/1"


def report_to_json(report: Report, confusions: ConfusionReport | None = None) -> str:
    """The report as JSON text: the rules first, then one line per language and per utterance."""
    head = {
        "format": FORMAT,
        "name": report.name,
        "signature": report.signature,
        "rules": asdict(report.rules),
        "bootstrap": {
            "num_resamples": report.num_resamples,
            "seed": SEED,
            "confidence": CONFIDENCE,
        },
        "macro": _group_record(report.macro),
        "micro": _group_record(report.micro),
        "missing": report.missing,
        "extra": report.extra,
    }
    if confusions is not None:
        head["confusions"] = asdict(confusions)
    by = {
        name: {
            "macro": _group_record(grouping.macro),
            "micro": _group_record(grouping.micro),
            "groups": {group: _group_record(score) for group, score in grouping.groups.items()},
        }
        for name, grouping in report.by.items()
    }
    tables: dict[str, dict[str, dict[str, Any]]] = {"by": by} if by else {}
    tables["languages"] = {lang: _group_record(score) for lang, score in report.languages.items()}
    tables["utterances"] = {
        key: _utterance_record(value) for key, value in report.utterances.items()
    }
    lines = [f"{_dump(name)}: {_dump(value)}" for name, value in head.items()]
    for name, records in tables.items():
        rows = ",\n".join(f"  {_dump(key)}: {_dump(record)}" for key, record in records.items())
        lines.append(f"{_dump(name)}: {{\n{rows}\n}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_report(path: Path | str) -> Report:
    """Read a `score --json` file, without what `--by`, `--features` and `--confusions` added to it.

    Raises DataError with the file's name if it is not such a file.
    """
    try:
        record = json.loads("\n".join(read_lines(path)))
        if record.get("format") != FORMAT:
            raise ValueError(f"format is {record.get('format')!r}, expected {FORMAT!r}")
        macro = record["macro"]
        return Report(
            name=record["name"],
            rules=Rules(**record["rules"]),
            signature=record["signature"],
            languages={lang: _read_group(value) for lang, value in record["languages"].items()},
            macro=MacroScore(macro["rate"], macro["languages"], _read_interval(macro)),
            micro=_read_group(record["micro"]),
            missing=tuple(record["missing"]),
            extra=tuple(record["extra"]),
            utterances={key: _read_utterance(value) for key, value in record["utterances"].items()},
            num_resamples=record["bootstrap"]["num_resamples"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            path, f"not written by `score --json` ({fault})", "run `wenet-hs score` again"
        ) from error


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _counts_record(counts: ErrorCounts) -> dict[str, int]:
    return {
        "N": counts.num_units,
        "S": counts.substitutions,
        "D": counts.deletions,
        "I": counts.insertions,
    }


def _group_record(score: LanguageScore | MacroScore) -> dict[str, Any]:
    record: dict[str, Any]
    if isinstance(score, MacroScore):
        record = {"languages": score.num_languages}
    else:
        record = {"utterances": score.utterances, **_counts_record(score.counts)}
    record |= {"rate": score.rate, "interval": score.interval}
    if score.features is not None:
        record["pfer"] = {"rate": score.features.rate, "interval": score.features.interval}
    return record


def _utterance_record(utterance: ScoredUtterance) -> dict[str, Any]:
    record: dict[str, Any] = {"lang": utterance.lang, **_counts_record(utterance.counts)}
    if utterance.feature_distance is not None:
        record["feature_distance"] = utterance.feature_distance
    return record | {"ref": utterance.ref, "hyp": utterance.hyp}


def _read_utterance(record: dict[str, Any]) -> ScoredUtterance:
    return ScoredUtterance(record["lang"], record["ref"], record["hyp"], _read_counts(record))


def _read_counts(record: dict[str, Any]) -> ErrorCounts:
    return ErrorCounts(record["N"], record["S"], record["D"], record["I"])


def _read_group(record: dict[str, Any]) -> LanguageScore:
    return LanguageScore(record["utterances"], _read_counts(record), _read_interval(record))


def _read_interval(record: dict[str, Any]) -> Interval | None:
    bounds = record["interval"]
    return None if bounds is None else Interval(*bounds)
