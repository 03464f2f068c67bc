# SPDX-License-Identifier: Apache-2.0
"""Check of audio files: results, the cache of a killed run, crashes."""

import os
from pathlib import Path
from typing import Literal

import pytest

from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.data.audio import ClipCheck
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance

Results = list[tuple[str, float | None, str | None]]
"""(name, duration, reason) per clip."""


def log_call(path: Path, what: str) -> None:
    with (path.parent / "calls").open("a") as calls:
        calls.write(f"{what} {path.name}\n")


def check(path: Path, expected_duration_s: float | None) -> ClipCheck:
    """Clips are text files: the text is the fault, or the duration."""
    log_call(path, "check")
    content = path.read_text()
    if content == "crash":
        os._exit(1)
    return ClipCheck(reason=None if content.replace(".", "").isdigit() else content, is_incomplete=content == "1.996")


def probe(path: Path) -> float:
    log_call(path, "probe")
    content = path.read_text()
    if not content.replace(".", "").isdigit():
        raise DataError(f"{path}: not audio; restore the file")
    return float(content)


def make_clips(folder: Path, **contents: str) -> list[Utterance]:
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [clip(folder / name) for name in contents]


def clip(path: Path, duration_s: float | None = None) -> Utterance:
    return Utterance(key=path.name, wav=str(path), txt="", duration=duration_s)


def run_check(
    folder: Path,
    clips: list[Utterance],
    mode: Literal["full", "exists", "none"] = "full",
    num_workers: int = 0,
) -> Results:
    checker = ClipChecker(folder / "cache", mode=mode, num_workers=num_workers, check=check, probe=probe)
    usable, rejected = checker.check(clips, "clips")
    found: dict[str, tuple[float | None, str | None]] = {u.key: (u.duration, None) for u in usable}
    found |= {clip.key: (None, clip.reason) for clip in rejected}
    return [(u.key, *found[u.key]) for u in clips]


def pop_calls(folder: Path) -> list[str]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(lines)


def test_full_check_gives_duration_or_reason(tmp_path: Path) -> None:
    clips = [*make_clips(tmp_path, a="1.5", b="silent", c="0"), clip(tmp_path / "none", 2.0)]
    clips.append(clip(tmp_path / ("x" * 300), 2.0))
    assert run_check(tmp_path, clips) == [
        ("a", 1.5, None),
        ("b", None, "silent"),
        ("c", None, "empty: 0 s"),
        ("none", None, "missing: no such file"),
        ("x" * 300, None, "unreadable: File name too long"),
    ]


def test_exists_reads_no_clip_of_known_duration(tmp_path: Path) -> None:
    make_clips(tmp_path, a="silent", b="2.5")
    clips = [clip(tmp_path / "a", 3.0), clip(tmp_path / "b"), clip(tmp_path / "c", 1.0)]
    expected = [("a", 3.0, None), ("b", 2.5, None), ("c", None, "missing: no such file")]
    assert run_check(tmp_path, clips, "exists") == expected
    assert pop_calls(tmp_path) == ["probe b"]


def test_known_durations_are_not_read(tmp_path: Path) -> None:
    make_clips(tmp_path, b="2.5", c="text")
    clips = [clip(Path("nowhere"), 3.0), clip(tmp_path / "b"), clip(tmp_path / "c")]
    reason = f"unreadable: {tmp_path / 'c'}: not audio; restore the file"
    assert run_check(tmp_path, clips, "none") == [("nowhere", 3.0, None), ("b", 2.5, None), ("c", None, reason)]


def test_a_clip_is_checked_again_only_if_it_changed(tmp_path: Path) -> None:
    clips = make_clips(tmp_path, a="1.5", b="silent")
    first = run_check(tmp_path, clips)
    assert pop_calls(tmp_path) == ["check a", "check b", "probe a"]
    assert run_check(tmp_path, clips) == first
    assert pop_calls(tmp_path) == []
    (tmp_path / "b").write_text("22.5")
    assert run_check(tmp_path, clips)[1] == ("b", 22.5, None)
    assert pop_calls(tmp_path) == ["check b", "probe b"]


def test_a_run_killed_while_writing_continues(tmp_path: Path) -> None:
    clips = make_clips(tmp_path, a="1.5", b="2.5", c="3.5")
    expected = run_check(tmp_path, clips)
    content = (tmp_path / "cache").read_bytes()
    for length in range(0, len(content), 7):
        pop_calls(tmp_path)
        (tmp_path / "cache").write_bytes(content[:length])
        assert run_check(tmp_path, clips) == expected
        num_known = content[:length].count(b"\n")
        assert len(pop_calls(tmp_path)) == 2 * (3 - num_known)
        assert (tmp_path / "cache").read_bytes() == content


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("nonsense\n")
    with pytest.raises(DataError, match=r"cache: damaged \(.*\); delete this file, it only caches earlier runs"):
        ClipChecker(tmp_path / "cache")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_clip_that_crashes_the_decoder_is_rejected(tmp_path: Path, num_workers: int) -> None:
    clips = make_clips(tmp_path, **{f"c{n:02}": "crash" if n == 7 else "1.0" for n in range(20)})
    results = run_check(tmp_path, clips, num_workers=num_workers)
    assert results[7] == ("c07", None, "crash: the decoder ended its process or took more than 120 s")
    assert [duration_s for _, duration_s, _ in results].count(1.0) == 19


def test_incomplete_clips_of_the_lists_are_counted(tmp_path: Path) -> None:
    clips = make_clips(tmp_path, a="1.996", b="2.5", c="1.996")
    for _ in range(2):  # the second time from the cache
        checker = ClipChecker(tmp_path / "cache", check=check, probe=probe)
        usable, _ = checker.check(clips, "clips")
        assert checker.count_incomplete({"train": usable[:2], "dev": usable[2:]}) == 2
        assert checker.count_incomplete({"train": usable[1:2]}) == 0
