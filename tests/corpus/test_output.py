# SPDX-License-Identifier: Apache-2.0
"""Output of `prepare`: lists, rejected.tsv, stats.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wenet_hs.corpus.output import (
    Rejected,
    find_implausible,
    read_rejected,
    write_corpus,
    write_rejected,
)
from wenet_hs.manifest.data_list import Utterance, read_data_list, read_text
from wenet_hs.tree.errors import DataError


def utterance(key: str) -> Utterance:
    return Utterance(
        key=key,
        wav=f"/clips/{key}.mp3",
        txt=f"text of {key}",
        lang="ca",
        duration=1800.0,
        speaker="s",
    )


SPLITS = {
    "train": [utterance("a"), utterance("b")],
    "dev": [utterance("c")],
    "test": [utterance("d")],
}
REJECTED = [
    Rejected("x", "/clips/x.mp3", "not sampled: enough", "ca", is_fault=False),
    Rejected("y", "/clips/y.mp3", "cut off: 1.0 s, the corpus says 2.0 s", "ca"),
    Rejected("z", "/clips/z.mp3", "cut off: 1.5 s, the corpus says 2.0 s", "ca"),
    Rejected("ca:validated.tsv:7", "", "empty transcript", "ca"),
    Rejected("k\ney", "/a\tb", "odd: 'x\u2028y\r\x1b[31m' été", "ca", is_fault=False),
]


def write(
    out: Path, splits: dict[str, list[Utterance]], rejected: list[Rejected], **limits: float
) -> dict[str, Any]:
    return write_corpus(
        out, splits, rejected, {"corpus": "cv"}, {"ca": {"lambda": 0.5}, "es": {}}, **limits
    )


def test_everything_is_written_and_can_be_read_again(tmp_path: Path) -> None:
    stats = write(tmp_path, SPLITS, REJECTED)
    for name, utterances in SPLITS.items():
        assert read_data_list(tmp_path / name / "data.list") == utterances
        assert read_text(tmp_path / name / "text") == {u.key: u.txt for u in utterances}
    assert stats == json.loads((tmp_path / "stats.json").read_text("utf-8"))
    assert (stats["format"], stats["corpus"], stats["num_in"]) == ("wenet_hs.prepare/1", "cv", 9)
    langs = stats["langs"]
    assert (langs["ca"], langs["es"]["num_in"]) == (
        {"lambda": 0.5, "num_in": 9, **stats["total"]},
        0,
    )
    lines = (tmp_path / "rejected.tsv").read_text("utf-8").split("\n")
    assert lines[:2] == [
        "key\tpath\treason",
        "y\t/clips/y.mp3\tcut off: 1.0 s, the corpus says 2.0 s",
    ]  # faults first
    odd = "k\\ney\t/a\\tb\todd: 'x\\u2028y\\r\\x1b[31m' été"  # a reason never breaks its line
    assert lines[4:] == ["x\t/clips/x.mp3\tnot sampled: enough", odd, ""]
    total = stats["total"]
    assert total["hours"] == {"train": 1.0, "dev": 0.5, "test": 0.5}
    assert (
        total["utterances"]
        == {"train": 2, "dev": 1, "test": 1}
        != total["speakers"]
        == dict.fromkeys(SPLITS, 1)
    )
    assert total["in_both"]["train-test"] == {"speakers": 1, "sentences": 0}
    assert total["rejected"] == {"cut off": 2, "empty transcript": 1}
    assert total["left_out"] == {"not sampled": 1, "odd": 1}


def test_rejected_parts_of_recordings_have_their_times(tmp_path: Path) -> None:
    part = Rejected.of(Utterance(key="p", wav="/r.wav", txt="a", start=0.5, end=2.25), "too short")
    write_rejected(tmp_path, [part, Rejected("whole", "/w.wav", "missing", "")])
    rows = ["key\tpath\treason\tstart\tend\ttext"]
    rows += ["p\t/r.wav\ttoo short\t0.500\t2.250\ta", "whole\t/w.wav\tmissing\t\t\t"]
    path = tmp_path / "rejected.tsv"
    assert path.read_text("utf-8").splitlines() == rows
    assert read_rejected(path) == [part, Rejected("whole", "/w.wav", "missing", "")]
    path.write_text("key\tpath\treason\nk\tp\tr\n", "utf-8")  # without times
    assert (
        read_rejected(path) == [Rejected("k", "p", "r", "")]
        and read_rejected(tmp_path / "none.tsv") == []
    )
    for line in ("k", "k\tp\t", "k\tp\tr\tx\t1", "k\tp\tr\t0\t1\tb\tmore"):
        path.write_text(f"key\tpath\treason\n{line}\n", "utf-8")
        with pytest.raises(
            DataError,
            match=r"rejected.tsv:2: not a line of `prepare`; prepare the recordings again",
        ):
            read_rejected(path)


def test_an_earlier_run_leaves_nothing_that_is_not_true_now(tmp_path: Path) -> None:
    write(tmp_path, SPLITS, [])
    write(tmp_path, {"train": SPLITS["train"], "test": SPLITS["test"]}, [])
    assert (
        not (tmp_path / "dev" / "data.list").exists() and (tmp_path / "test" / "data.list").exists()
    )
    with pytest.raises(
        DataError, match=f"{tmp_path}: no utterance is left for the test set; see why in .*rejected"
    ):
        write(tmp_path, SPLITS | {"test": []}, REJECTED)
    assert not (tmp_path / "stats.json").exists()
    assert "cut off" in (tmp_path / "rejected.tsv").read_text("utf-8")


def test_clips_of_implausible_duration_are_named_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 40 clips with 0.2 to 0.3 s per phone one has 1.6 s and one 0.02 s per phone."""
    caplog.set_level("INFO")
    clips = [
        replace(utterance(f"u{n:02}"), txt="a b c d", duration=0.8 + 0.01 * n) for n in range(40)
    ]
    clips[7], clips[30] = (
        replace(clips[7], duration=6.4),
        replace(clips[30], txt="tʃ " * 50, duration=1.0),
    )
    assert [(u.key, num) for u, num, _ in find_implausible(clips, "phone")] == [
        ("u30", 50),
        ("u07", 4),
    ]
    of_words = [replace(u, key=f"zh{u.key}", lang="zh", txt="他们") for u in clips[8:30]]
    assert [u.key for u, *_ in find_implausible(clips + of_words, "char")] == ["u30", "u07"]
    assert (
        find_implausible(
            [replace(u, txt="") for u in clips] + [replace(clips[0], duration=None)], "char"
        )
        == []
    )
    splits = {"train": clips[8:], "test": clips[:8]}
    stats = write_corpus(tmp_path, splits, [], {}, {}, unit="phone")
    assert (stats["num_implausible"], stats["total"]["utterances"]) == (2, {"train": 32, "test": 8})
    expected = "key\tduration\tunits\tseconds per unit\nu30\t1.0\t50\t0.020\nu07\t6.4\t4\t1.600\n"
    assert (tmp_path / "implausible.tsv").read_text("utf-8") == expected
    assert (
        "implausible.tsv: 2 of 40 clips have an implausible duration for their transcript; they are kept"
        in caplog.text
    )
    assert write_corpus(tmp_path, {"test": clips[:7]}, [], {}, {})["num_implausible"] == 0
    assert (tmp_path / "implausible.tsv").read_text("utf-8").count("\n") == 1


def test_two_clips_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"utterance 'a': two clips have this name, /clips/a\.mp3 and .*; rename one",
    ):
        write(tmp_path, {"train": [utterance("a")], "test": [utterance("a")]}, [])
    assert not list(tmp_path.iterdir())


def test_too_many_faults_stop_with_their_kinds(tmp_path: Path) -> None:
    write(tmp_path / "accepted", SPLITS, REJECTED, max_rejected=0.5)
    with pytest.raises(
        DataError, match=r"3 of 7 .* \(cut off 2, empty transcript 1\); .*--max_rejected \(now 0\.4"
    ):
        write(tmp_path, SPLITS, REJECTED[1:4], max_rejected=0.4)
    assert (tmp_path / "rejected.tsv").exists() and not (tmp_path / "stats.json").exists()
