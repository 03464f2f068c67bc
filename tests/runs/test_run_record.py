# SPDX-License-Identifier: Apache-2.0
"""The record of a training: reading, writing, damaged files, states, and its facts as texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from lock_holder import holder

from wenet_hs.runs.record import (
    DataFile,
    DataLists,
    End,
    FirstWeights,
    RunRecord,
    RunState,
    Start,
    read_run,
    write_run,
)
from wenet_hs.runs.sentences import describe_facts
from wenet_hs.tree.errors import DataError

A, B, C = (digit * 64 for digit in "abc")
RECORD = RunRecord(
    starts=(
        Start(processors=("P1",), ranks=1),
        Start(
            command=("wenet-hs", "train", "--train_data", "a.list", "b c.list"),
            processors=("P2",),
            ranks=2,
            machine="x86_64, 2 cores",
            python="3.11.7",
            packages={"wenet_hs": "0.1.0", "torch": "2.11.0"},
            commit="1a2b3c4",
        ),
    ),
    lists=DataLists(
        train=(DataFile(path="a.list", sha256=B), DataFile(path="b c.list", sha256=C)),
        valid=(DataFile(path="dev.list"),),
    ),
    first_weights=FirstWeights(kind="checkpoint", name="exp/base", sha256=C),
    encoder_sha256=A,
    files={"units.txt": A, "tree.json": B},
    head="hsoftmax",
    seed=3,
)


def test_the_facts_of_a_record_are_texts() -> None:
    assert describe_facts(RECORD) == {
        "command": "wenet-hs train --train_data a.list 'b c.list'",
        "git": "1a2b3c4",
        "python": "3.11.7",
        "machine": "x86_64, 2 cores",
        "processor": "P1; P2",
        "ranks": "1; 2",
        "wenet_hs": "0.1.0",
        "torch": "2.11.0",
        "sha256 of units.txt": A,
        "sha256 of tree.json": B,
        "sha256 of training list": f"{B} {C}",
        "sha256 of checkpoint": C,
        "checkpoint": "exp/base",
        "sha256 of encoder weights": A,
    }
    from_random = RunRecord(first_weights=FirstWeights(kind="random"))
    assert describe_facts(from_random) == {"sha256 of checkpoint": "none"}
    assert describe_facts(RunRecord()) == {}


def test_a_start_without_a_processor_is_of_an_unknown_one_beside_others() -> None:
    assert RunRecord(starts=(Start(), Start())).processors == []
    assert RunRecord(starts=(Start(), Start(processors=("P",)))).processors == ["unknown", "P"]


def test_a_record_is_read_as_it_was_written_with_names_that_are_no_utf8(tmp_path: Path) -> None:
    write_run(tmp_path, RECORD)
    assert read_run(tmp_path) == RECORD
    strange = RECORD.model_copy(update={"starts": (Start(command=("train", "\udcff.yaml")),)})
    write_run(tmp_path, strange)
    assert read_run(tmp_path) == strange
    assert describe_facts(strange)["command"] == "train '\\udcff.yaml'"


def test_a_folder_without_the_file_has_no_record(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    (tmp_path / "train.yaml").write_text("seed: 3\n")
    assert read_run(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            r"damaged \(.*\); copy it again, or remove it: what the training was started with is then unknown",
        ),
        ("[]", r"no record of a training \(it has no format\); copy it again"),
        ("{}", r"no record of a training \(it has no format\); copy it again"),
        (
            '{"format": "wenet_hs.run/1", "starts": [{"time": "yesterday"}]}',
            r"no record of a training \(starts.0.time: .*yesterday.*\); copy it again",
        ),
        (
            '{"format": "wenet_hs.run/1", "starts": [{"time": "2026-11-28T09:00:00"}]}',
            r"no record of a training \(starts.0.time: .*no time zone.*\); copy it again",
        ),
        (
            '{"format": "wenet_hs.run/1", "seed": "x"}',
            r"no record of a training \(seed: .*integer.*\); copy it",
        ),
        (
            '{"format": "wenet_hs.run/1", "sed": 1}',
            r"no record of a training \(sed: Extra inputs .*\); copy it",
        ),
        (
            '{"format": "wenet_hs.run/2", "new": 1}',
            "has the format wenet_hs.run/2; this version of wenet_hs reads wenet_hs.run/1; "
            "install a newer version of wenet_hs",
        ),
    ],
)
def test_a_damaged_or_newer_record_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError, match=f"^{tmp_path}/run.json: {message}") as caught:
        read_run(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("length", [1, 20, 200, -3])
def test_a_record_that_is_cut_off_is_one_line(tmp_path: Path, length: int) -> None:
    write_run(tmp_path, RECORD)
    content = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(content[:length])
    with pytest.raises(DataError, match="run.json: damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("start", "end", "state"),
    [
        ("2026-11-28T09:00:00Z", None, "killed"),
        ("2026-11-28T09:00:00Z", "trained", "trained"),
        ("2026-11-28T09:00:00Z", "stopped", "stopped"),
        ("2026-11-28T09:00:00Z", "failed", "failed"),
        (None, None, "unknown"),
    ],
)
def test_the_state_is_the_end_or_that_of_the_lock(
    tmp_path: Path, start: str | None, end: Any, state: RunState
) -> None:
    end_of_record = None if end is None else End(state=end, time="2026-11-28T10:00:00Z")
    record = RunRecord(starts=(Start(time=start),), end=end_of_record)
    assert record.state(tmp_path) == state
    with holder(tmp_path):
        assert record.state(tmp_path) == "running"


def test_a_training_that_is_resumed_without_its_record_and_killed_is_killed(tmp_path: Path) -> None:
    record = RunRecord(starts=(Start(ranks=1), Start(time="2026-11-28T09:00:00Z", step=100)))
    assert record.state(tmp_path) == "killed"


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    write_run(tmp_path, RECORD)
    values = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert values["format"] == "wenet_hs.run/1"
    assert values["lists"]["train"][0] == {"path": "a.list", "sha256": B}
