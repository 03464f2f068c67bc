# SPDX-License-Identifier: Apache-2.0
"""The JSON of a scoring reads back as the same report; other files are refused with their name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wenet_hs.errors import DataError
from wenet_hs.score import Report, Rules, read_report, report_to_json, score
from wenet_hs.score.alignments import count_confusions
from wenet_hs.score.error_rate import by_length, by_speaker


@pytest.fixture
def report() -> Report:
    reference = {"k1": "été", "k2": "日本", "k3": "", "k4": 'a"b'}
    hypothesis = {"k1": "ete", "k2": "日", "k3": "x", "zz": "?"}
    langs = {"k1": "fr", "k2": "ja", "k3": "xx", "k4": "fr"}
    return score(reference, hypothesis, rules=Rules(metric="cer"), langs=langs, name="ж", allow_extra=True)


def test_fields_for_other_programs(report: Report) -> None:
    text = report_to_json(report)
    record = json.loads(text)
    assert record["format"] == "wenet_hs.score/1"
    assert record["micro"] | {"interval": None} == {
        "utterances": 4, "N": 8, "S": 2, "D": 4, "I": 1, "rate": 0.875, "interval": None,
    }  # fmt: skip
    assert record["languages"]["xx"]["rate"] is None
    assert record["macro"]["languages"] == 2
    assert (record["missing"], record["extra"]) == (["k4"], ["zz"])
    assert record["utterances"]["k4"] == {"lang": "fr", "N": 3, "S": 0, "D": 3, "I": 0, "ref": 'a"b', "hyp": None}
    assert record["bootstrap"]["num_resamples"] == 1000
    assert record["signature"].startswith("CER|unit:grapheme|")
    assert sum(line.startswith('  "k') for line in text.splitlines()) == 4, "one line per utterance"


def test_read_back(report: Report, tmp_path: Path) -> None:
    confusions = count_confusions(report.utterances.values(), report.rules, 2)
    full = by_length(by_speaker(report, {key: key[0] for key in report.utterances}))
    text = report_to_json(full, confusions)
    path = tmp_path / "score.json"
    path.write_text(text, "utf-8")
    assert read_report(path) == replace(full, by={}) == report
    record = json.loads(text)
    assert list(record["by"]) == ["speaker", "length"]
    assert record["by"]["length"]["groups"]["1-5"]["utterances"] == 3
    assert record["confusions"]["languages"]["fr"]["substitutions"][0]["ref"] == "é"
    assert record["confusions"]["overall"]["num_errors"] == full.micro.counts.errors


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "Expecting property name"),
        ("[]", "'list' object has no attribute 'get'"),
        ("{}", "format is None, expected 'wenet_hs.score/1'"),
        ('{"format": "wenet_hs.score/1"}', "no 'macro'"),
    ],
)
def test_another_file_is_refused(content: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DataError, match=f"other.json: not a file of `score --json` .*{fault}.*; run `wenet-hs score`"):
        read_report(path)
