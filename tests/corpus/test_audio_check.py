# SPDX-License-Identifier: Apache-2.0
"""Clips are looked at once: what was found is remembered by path, size and time, and a killed run goes on."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from wenet_hs.corpus.audio_check import AudioFunctions, Clip, ClipChecker, Finding
from wenet_hs.errors import DataError


@dataclass(frozen=True)
class Info:
    duration_s: float


def log_call(path: Path, what: str) -> None:
    with (path.parent / "calls").open("a") as calls:
        calls.write(f"{what} {path.name}\n")


def check(path: Path, expected_duration_s: float | None) -> str | None:
    """Clips are text files: the text is what is wrong with them, or their duration."""
    log_call(path, "check")
    content = path.read_text()
    if content == "crash":
        os._exit(1)
    return None if content.replace(".", "").isdigit() else content


def probe(path: Path) -> Info:
    log_call(path, "probe")
    content = path.read_text()
    if not content.replace(".", "").isdigit():
        raise DataError(f"{path}: not audio; restore the file")
    return Info(float(content))


AUDIO = AudioFunctions(check=check, probe=probe)


def make(folder: Path, **contents: str) -> list[Clip]:
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [Clip(str(folder / name), None) for name in contents]


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(lines)


def test_full_check_gives_duration_or_reason(tmp_path: Path) -> None:
    clips = [*make(tmp_path, a="1.5", b="silent", c="0"), Clip(str(tmp_path / "none"), 2.0)]
    clips.append(Clip(str(tmp_path / ("x" * 300)), 2.0))
    findings = ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips")
    assert findings == [
        Finding(1.5, None),
        Finding(None, "silent"),
        Finding(None, "empty: 0 s"),
        Finding(None, "missing: no such file"),
        Finding(None, "unreadable: File name too long"),
    ]


def test_exists_reads_no_clip_whose_duration_is_told(tmp_path: Path) -> None:
    make(tmp_path, a="silent", b="2.5")
    clips = [Clip(str(tmp_path / "a"), 3.0), Clip(str(tmp_path / "b"), None), Clip(str(tmp_path / "c"), 1.0)]
    findings = ClipChecker(AUDIO, tmp_path / "memory", mode="exists").check(clips, "clips")
    assert findings == [Finding(3.0, None), Finding(2.5, None), Finding(None, "missing: no such file")]
    assert calls(tmp_path) == ["probe b"]


def test_durations_take_the_corpus_at_its_word(tmp_path: Path) -> None:
    make(tmp_path, b="2.5", c="text")
    clips = [Clip("nowhere", 3.0), Clip(str(tmp_path / "b"), None), Clip(str(tmp_path / "c"), None)]
    findings = ClipChecker(AUDIO, tmp_path / "memory").durations(clips, "durations")
    assert findings[:2] == [Finding(3.0, None), Finding(2.5, None)]
    assert findings[2].reason == f"unreadable: {tmp_path / 'c'}: not audio; restore the file"


def test_a_clip_is_looked_at_again_only_when_it_changed(tmp_path: Path) -> None:
    clips = make(tmp_path, a="1.5", b="silent")
    first = ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips")
    assert calls(tmp_path) == ["check a", "check b", "probe a"]
    assert ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips") == first
    assert calls(tmp_path) == []
    (tmp_path / "b").write_text("22.5")
    assert ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips")[1] == Finding(22.5, None)
    assert calls(tmp_path) == ["check b", "probe b"]


def test_a_run_killed_while_writing_goes_on_where_it_was(tmp_path: Path) -> None:
    clips = make(tmp_path, a="1.5", b="2.5", c="3.5")
    whole = ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips")
    content = (tmp_path / "memory").read_bytes()
    for length in range(0, len(content), 7):
        calls(tmp_path)
        (tmp_path / "memory").write_bytes(content[:length])
        assert ClipChecker(AUDIO, tmp_path / "memory").check(clips, "clips") == whole
        num_known = content[:length].count(b"\n")
        assert len(calls(tmp_path)) == 2 * (3 - num_known)
        assert (tmp_path / "memory").read_bytes() == content


def test_a_damaged_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("nonsense\n")
    with pytest.raises(
        DataError, match=r"memory: damaged \(.*\); delete this file, it is only a memory of earlier runs"
    ):
        ClipChecker(AUDIO, tmp_path / "memory")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_clip_that_crashes_the_decoder_is_one_reason_among_others(tmp_path: Path, num_workers: int) -> None:
    clips = make(tmp_path, **{f"c{n:02}": "crash" if n == 7 else "1.0" for n in range(20)})
    findings = ClipChecker(AUDIO, tmp_path / "memory", num_workers=num_workers).check(clips, "clips")
    assert [finding.reason for finding in findings].count(None) == 19
    assert findings[7].reason == "crash: the decoder ended its process or took more than 120 s"
