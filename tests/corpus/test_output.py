# SPDX-License-Identifier: Apache-2.0
"""Output of `prepare`."""

import json
import re
from pathlib import Path

import pytest

from wenet_hs.corpus.output import (
    Rejected,
    check_share_rejected,
    describe_splits,
    hours_of,
    write_corpus,
    write_rejected,
)
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance, read_data_list, read_text


def utterance(key: str, duration: float = 1800.0) -> Utterance:
    return Utterance(key=key, wav=f"/clips/{key}.mp3", txt=f"text of {key}", lang="ca", duration=duration, speaker="s")


SPLITS = {"train": [utterance("a"), utterance("b")], "dev": [utterance("c")], "test": [utterance("d")]}
REJECTED = [
    Rejected("x", "/clips/x.mp3", "not sampled: enough", "ca", is_fault=False),
    Rejected("y", "/clips/y.mp3", "cut off: 1.0 s, the corpus says 2.0 s", "ca"),
    Rejected("z", "/clips/z.mp3", "cut off: 1.5 s, the corpus says 2.0 s", "ca"),
    Rejected("ca:validated.tsv:7", "", "empty transcript", "ca"),
]


def test_everything_is_written_and_can_be_read_again(tmp_path: Path) -> None:
    returned = write_corpus(tmp_path, SPLITS, REJECTED, {"num_in": 8, "corpus": "commonvoice"})
    for name, utterances in SPLITS.items():
        assert read_data_list(tmp_path / name / "data.list") == utterances
        assert read_text(tmp_path / name / "text") == {u.key: u.txt for u in utterances}
    stats = json.loads((tmp_path / "stats.json").read_text("utf-8"))
    assert stats == returned
    assert stats == {
        "format": "wenet_hs.prepare/1",
        "num_in": 8,
        "corpus": "commonvoice",
        "total": describe_splits(SPLITS, REJECTED),
    }
    lines = (tmp_path / "rejected.tsv").read_text("utf-8").split("\n")
    assert lines[0] == "key\tpath\treason"
    assert lines[1].startswith("y\t/clips/y.mp3\tcut off: 1.0 s")
    assert lines[4] == "x\t/clips/x.mp3\tnot sampled: enough"
    assert lines[5:] == [""]


def test_a_wrong_count_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="4 kept, 4 rejected: 9"):
        write_corpus(tmp_path, SPLITS, REJECTED, {"num_in": 9})
    assert not list(tmp_path.iterdir())


def test_stats_json_exists_only_in_a_complete_folder(tmp_path: Path) -> None:
    write_corpus(tmp_path, SPLITS, [], {"num_in": 4})
    message = f"{tmp_path}: no utterance is left for the test set; see why in {tmp_path / 'rejected.tsv'}"
    with pytest.raises(DataError, match=re.escape(message)):
        write_corpus(tmp_path, SPLITS | {"test": []}, REJECTED, {"num_in": 7})
    assert not (tmp_path / "stats.json").exists()
    assert "cut off" in (tmp_path / "rejected.tsv").read_text("utf-8")


def test_an_unwanted_set_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    write_corpus(tmp_path, SPLITS, [], {"num_in": 4})
    write_corpus(tmp_path, {"train": SPLITS["train"], "test": SPLITS["test"]}, [], {"num_in": 3})
    assert not (tmp_path / "dev" / "data.list").exists()
    assert (tmp_path / "test" / "data.list").exists()


def test_two_clips_of_one_name_are_refused(tmp_path: Path) -> None:
    message = "utterance 'a': two clips have this name, /clips/a.mp3 and /clips/a.mp3; rename one"
    with pytest.raises(DataError, match=re.escape(message)):
        write_corpus(tmp_path, {"train": [utterance("a")], "test": [utterance("a")]}, [], {"num_in": 2})


def test_a_reason_never_breaks_its_line(tmp_path: Path) -> None:
    write_rejected(tmp_path, [Rejected("k\ney", "/a\tb", "odd: 'x\u2028y\r\x1b[31m' été", "ca")])
    lines = (tmp_path / "rejected.tsv").read_text("utf-8").split("\n")
    assert lines[1:] == ["k\\ney\t/a\\tb\todd: 'x\\u2028y\\r\\x1b[31m' été", ""]


def test_too_many_faults_stop_with_their_kinds(tmp_path: Path) -> None:
    check_share_rejected(tmp_path, REJECTED, 6, 0.5)
    assert not (tmp_path / "rejected.tsv").exists()
    message = "3 of 5 clips cannot be used (cut off 2, empty transcript 1); repair the corpus, or allow it with "
    with pytest.raises(DataError, match=re.escape(message) + r"--max_rejected \(now 0\.5\)"):
        check_share_rejected(tmp_path, REJECTED, 5, 0.5)
    assert (tmp_path / "rejected.tsv").exists()


def test_the_description_counts_hours_speakers_and_reasons() -> None:
    stats = describe_splits(SPLITS, REJECTED)
    assert stats["hours"] == {"train": 1.0, "dev": 0.5, "test": 0.5}
    assert stats["utterances"] == {"train": 2, "dev": 1, "test": 1}
    assert stats["speakers"] == {"train": 1, "dev": 1, "test": 1}
    assert stats["in_both"]["train-test"] == {"speakers": 1, "sentences": 0}
    assert stats["rejected"] == {"cut off": 2, "empty transcript": 1}
    assert stats["left_out"] == {"not sampled": 1}
    assert hours_of(SPLITS["train"]) == 1.0
