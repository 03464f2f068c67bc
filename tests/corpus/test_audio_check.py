# SPDX-License-Identifier: Apache-2.0
"""Check of audio files: results, the cache of a killed run, crashes, parallel processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import is_running, within

from wenet_hs.corpus import audio_check
from wenet_hs.corpus.audio_check import CheckMode, ClipChecker, parallel_map
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

pytestmark = pytest.mark.usefixtures("text_clips")


def make_clips(folder: Path, **contents: str) -> list[Utterance]:
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [clip(folder / name) for name in contents]


def clip(path: Path, duration_s: float | None = None) -> Utterance:
    return Utterance(key=path.name, wav=str(path), txt="", duration=duration_s)


def run_check(
    folder: Path, clips: list[Utterance], mode: CheckMode = "full", num_workers: int = 0
) -> dict[str, Any]:
    """The duration of each usable clip, the reason of each other one."""
    usable, rejected = ClipChecker(folder / "cache", mode=mode, num_workers=num_workers).check(
        clips, "clips"
    )
    return {u.key: u.duration for u in usable} | {clip.key: clip.reason for clip in rejected}


def test_durations_and_reasons_of_each_mode(tmp_path: Path, text_clips: list[str]) -> None:
    make_clips(tmp_path, a="silent", b="2.5", c="text")
    clips = [
        clip(tmp_path / "a", 3.0),
        clip(tmp_path / "b"),
        clip(tmp_path / "c"),
        clip(tmp_path / ("x" * 300), 1.0),
    ]
    missing, unreadable = (
        "missing: no such file",
        f"unreadable: {tmp_path / 'c'}: not audio; restore the file",
    )
    assert run_check(tmp_path, clips) == {"a": "silent", "b": 2.5, "c": "text", "x" * 300: missing}
    text_clips.clear()
    assert run_check(tmp_path, clips, "exists") == {
        "a": 3.0,
        "b": 2.5,
        "c": unreadable,
        "x" * 300: missing,
    }
    assert text_clips == ["b", "c"], "known durations are not read"
    assert run_check(tmp_path, clips, "none") == {
        "a": 3.0,
        "b": 2.5,
        "c": unreadable,
        "x" * 300: 1.0,
    }


def test_only_clips_that_are_new_or_changed_are_checked_again(
    tmp_path: Path, text_clips: list[str]
) -> None:
    clips = make_clips(tmp_path, a="1.5", b="2.5", c="3.5")
    expected = run_check(tmp_path, clips)
    content = (tmp_path / "cache").read_bytes()
    for length in range(0, len(content) + 40, 40):  # what a killed run may leave
        text_clips.clear()
        (tmp_path / "cache").write_bytes(content[:length])
        assert run_check(tmp_path, clips) == expected
        assert len(text_clips) == 3 - content[:length].count(b"\n")
        assert (tmp_path / "cache").read_bytes() == content
    text_clips.clear()
    (tmp_path / "b").write_text("22.5")
    assert run_check(tmp_path, clips)["b"] == 22.5
    assert text_clips == ["b"]
    (tmp_path / "cache").write_text("nonsense\n")
    with pytest.raises(
        DataError, match=r"cache: damaged \(.*\); delete this file, it only caches earlier runs"
    ):
        ClipChecker(tmp_path / "cache")


def test_a_clip_that_crashes_the_decoder_is_rejected(tmp_path: Path) -> None:
    clips = make_clips(tmp_path, **{f"c{n:02}": "crash" if n == 7 else "1.0" for n in range(20)})
    results = run_check(tmp_path, clips, num_workers=2)
    assert results.pop("c07") == "crash: the decoder ended its process or took more than 120 s"
    assert list(results.values()) == [1.0] * 19
    assert len((tmp_path / "cache").read_text().splitlines()) == 19, (
        "the reason may be a lack of memory"
    )


def test_incomplete_clips_of_the_lists_are_counted(tmp_path: Path) -> None:
    clips = make_clips(tmp_path, a="1.996", b="2.5", c="1.996")
    for _ in range(2):  # the second time from the cache
        checker = ClipChecker(tmp_path / "cache")
        usable, _ = checker.check(clips, "clips")
        assert checker.count_incomplete({"train": usable[:2], "dev": usable[2:]}) == 2
        assert checker.count_incomplete({"train": usable[1:2]}) == 0


def fragile(number: int) -> int:
    """A sudden end at 13 and 60, an endless loop at 77, an exception at 1000."""
    if number in (13, 60):
        os.kill(os.getpid(), signal.SIGKILL)
    while number == 77:
        time.sleep(0.01)
    if number == 1000:
        raise ValueError("no 1000")
    return number * number


def negate(number: int) -> int:
    return -number


def test_results_come_in_order_and_exceptions_are_passed_on() -> None:
    for num_workers in (0, 1, 3):
        results = parallel_map(
            fragile, range(900, 1001), num_workers=num_workers, description="", on_crash=negate
        )
        assert [next(results) for _ in range(75)] == [number * number for number in range(900, 975)]
        with pytest.raises(ValueError, match="no 1000"):
            list(results)
        assert multiprocessing.active_children() == []
        assert (
            list(
                parallel_map(fragile, [], num_workers=num_workers, description="", on_crash=negate)
            )
            == []
        )


def record_start_and_crash(folder: Path) -> None:
    tempfile.mkstemp(dir=folder)
    os._exit(1)


def test_an_item_that_crashes_alone_is_not_run_again(tmp_path: Path) -> None:
    results = parallel_map(
        record_start_and_crash, [tmp_path], num_workers=2, description="", on_crash=lambda _: "bad"
    )

    assert list(results) == ["bad"]
    assert len(list(tmp_path.iterdir())) == 1


WORK = """
import os, sys, time
from pathlib import Path
from wenet_hs.corpus.audio_check import parallel_map
def work(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(100)
list(parallel_map(work, range(100), num_workers=2, description="", on_crash=print))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers wait until they are ended")
def test_no_process_outlives_a_killed_run(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path)]) as parent:
        assert within(50, lambda: len(list(tmp_path.iterdir())) == 2)
        workers = [path.name for path in tmp_path.iterdir()]
        assert all(map(is_running, workers))
        parent.kill()
    assert within(50, lambda: not any(map(is_running, workers)))


@pytest.mark.slow
def test_an_item_that_kills_its_process_loses_only_its_own_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audio_check, "ITEM_LIMIT_S", 0.2)
    results = list(
        parallel_map(fragile, range(100), num_workers=2, description="fragile", on_crash=negate)
    )
    assert results == [
        -number if number in (13, 60, 77) else number * number for number in range(100)
    ]
