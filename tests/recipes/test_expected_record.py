# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training as JSON, with the sentence that is printed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_projects import write_stats

from wenet_hs.bin import plan
from wenet_hs.bin.main import run_command
from wenet_hs.recipes import plan_files
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.recipes.expected_record import (
    ExpectedRecord,
    OutputsRecord,
    PartRecord,
    read_expected,
    write_expected,
)
from wenet_hs.recipes.expected_time import ExpectedTime, OutputsTime, PartTime
from wenet_hs.tree.errors import DataError

EXPECTED = ExpectedTime(
    parts=(PartTime(steps=3000, seconds=600.0), PartTime(steps=3000, seconds=1200.0)),
    outputs=OutputsTime(seconds=60.0, gigabytes=1.5, folder="data/encoder_outputs"),
    checkpoint_gigabytes=0.5,
    has_time_limit=True,
    num_clips=4,
    machine="a CPU, threads: 1",
)
RECORD = ExpectedRecord(
    format="wenet_hs.expected_time/1",
    hours=0.25,
    size="tiny",
    parts=(PartRecord(steps=3000, seconds=600.0), PartRecord(steps=3000, seconds=1200.0)),
    outputs=OutputsRecord(seconds=60.0, bytes=1_500_000_000, folder="data/encoder_outputs"),
    checkpoint_bytes=500_000_000,
    has_time_limit=True,
    machine="a CPU, threads: 1",
    sentence=(
        "expected time of a training: 1.0 min for the outputs of the encoder, once (1.5 GB in "
        "data/encoder_outputs), 10 min + 20 min for at most 3000 + 3000 steps (measured with "
        "4 clips of 10 s on a CPU, threads: 1; without validation and waiting for data); "
        "its checkpoints take at most 0.5 GB of disk"
    ),
)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that measures EXPECTED."""
    monkeypatch.setattr(plan_files, "measure_expected_time", lambda *_, **__: EXPECTED)
    data = write_stats(tmp_path / "data", 0.25)
    options = ["--data", str(data), "--out", str(tmp_path / "exp"), "--size", "auto"]
    return ["--config", str(conf_file("own.yaml")), *options]


def test_the_record_has_the_sentence_and_its_numbers(
    line: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "times/expected.json"
    assert run_command(plan, [*line, "--only_time", "--json", str(file)]) == 0
    assert read_expected(file) == RECORD
    assert capsys.readouterr().out.splitlines()[1] == RECORD.sentence
    assert not (tmp_path / "exp").exists()


def test_a_training_without_outputs(
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(EXPECTED, outputs=None, has_time_limit=False)
    monkeypatch.setattr(plan_files, "measure_expected_time", lambda *_, **__: short)
    file = tmp_path / "expected.json"
    assert run_command(plan, [*line, "--only_time", "--json", str(file)]) == 0
    record = read_expected(file)
    assert record.outputs is None and not record.has_time_limit
    assert "10 min + 20 min for 3000 + 3000 steps" in record.sentence


def test_a_plan_that_is_written_has_no_json(
    line: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(plan, [*line, "--json", "x.json"]) == 2
    found = "--json x.json: has no effect without --only_time; add --only_time, or leave it out\n"
    assert capsys.readouterr().err == found
    assert not (tmp_path / "exp").exists()


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "expected.json"
    for change, fault in (
        ({"format": "wenet_hs.expected_time/2"}, "has the format 'wenet_hs.expected_time/2', not"),
        ({"hours": "many"}, "damaged (hours: "),
        ({"sentence": None}, "damaged (sentence: "),
    ):
        write_expected(file, RECORD)
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | change))
        with pytest.raises(DataError) as caught:
            read_expected(file)
        assert str(caught.value).startswith(f"{file}: {fault}")
        assert str(caught.value).endswith("; measure the time again")
