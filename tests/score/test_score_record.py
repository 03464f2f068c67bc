# SPDX-License-Identifier: Apache-2.0
"""The JSON of a scoring reads back as the same report; anything else is refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wenet_hs.errors import DataError
from wenet_hs.score import Report, Rules, read_report, score
from wenet_hs.score.confusions import count_confusions
from wenet_hs.score.groups import by_length, by_speaker


@pytest.fixture
def report() -> Report:
    reference = {"k1": "été", "k2": "日本", "k3": "", "k4": 'a"b'}
    hypothesis = {"k1": "ete", "k2": "日", "k3": "x", "zz": "?"}
    langs = {"k1": "fr", "k2": "ja", "k3": "xx", "k4": "fr"}
    return score(reference, hypothesis, rules=Rules(metric="cer"), langs=langs, name="ж", allow_extra=True)


def test_reads_back_as_it_was(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text(report.to_json(), "utf-8")
    assert read_report(path) == report


def test_other_programs_find_fractions_and_letters(report: Report) -> None:
    record = json.loads(report.to_json())
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


def test_groups_and_confusions_are_kept_too(report: Report, tmp_path: Path) -> None:
    confusions = count_confusions(report.utterances.values(), report.rules, 2)
    full = replace(by_length(by_speaker(report, {key: key[0] for key in report.utterances})), confusions=confusions)
    path = tmp_path / "score.json"
    path.write_text(full.to_json(), "utf-8")
    assert read_report(path) == full
    record = json.loads(full.to_json())
    assert list(record["by"]) == ["speaker", "length"]
    assert record["by"]["length"]["groups"]["1-5"]["utterances"] == 3
    assert record["confusions"]["languages"]["fr"]["substitutions"][0]["ref"] == "é"
    assert record["confusions"]["overall"]["num_errors"] == full.micro.counts.errors


def test_a_file_of_an_older_version_is_read(report: Report, tmp_path: Path) -> None:
    record = json.loads(report.to_json())
    del record["rules"]["punctuation"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(record), "utf-8")
    assert read_report(path) == report


def test_one_line_an_utterance(report: Report) -> None:
    assert sum(line.startswith('  "k') for line in report.to_json().splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "Expecting property name"),
        ("[]", "'list' object has no attribute 'get'"),
        ("{}", "format is None, expected 'wenet_hs.score/1'"),
        ('{"format": "wenet_hs.score/1"}', "no 'name'"),
    ],
)
def test_another_file_is_refused(content: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DataError, match=f"other.json: not a file of `score --json` .*{fault}.*; run `wenet-hs score`"):
        read_report(path)
