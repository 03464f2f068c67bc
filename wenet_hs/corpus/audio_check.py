# SPDX-License-Identifier: Apache-2.0
"""Whether clips can be used and how long they are: in parallel, and remembered, so that a killed run goes on.

How audio is read is not known here: `bin/prepare.py` gives the two functions of `wenet_hs.data.audio`.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from wenet_hs.corpus.parallel import ITEM_LIMIT_S, parallel_map
from wenet_hs.errors import DataError
from wenet_hs.files import write_atomic

CheckMode = Literal["full", "exists"]
_FLUSH_EVERY = 200
_MISSING = "missing: no such file"


class HasDuration(Protocol):
    """What a look at an audio file's header gives."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        ...


@dataclass(frozen=True)
class AudioFunctions:
    """How to look at audio. Both must be module-level functions: they are sent to other processes."""

    check: Callable[[Path, float | None], str | None]
    """(path, expected duration in seconds) → why the clip is of no use, or None. Decodes the whole clip."""
    probe: Callable[[Path], HasDuration]
    """path → duration from the header; raises DataError when it cannot be read."""


@dataclass(frozen=True)
class Clip:
    """An audio file of a corpus."""

    path: str
    duration_s: float | None
    """What the corpus says; None when it says nothing."""


@dataclass(frozen=True)
class Finding:
    """What was found out about a clip: its duration, or the reason why it cannot be used."""

    duration_s: float | None
    reason: str | None


class ClipChecker:
    """Looks at clips once. What was found is kept in a file, by path, size and time of change of each clip."""

    def __init__(self, audio: AudioFunctions, memory: Path, *, mode: CheckMode = "full", num_workers: int = 0) -> None:
        """Args: memory: a file of this module's own, made when it is not there. mode: `full` decodes every clip,
        `exists` only looks whether the file is there (a duration that the corpus does not tell is read all the same).
        """
        self._examine = {what: _Examine(audio, what) for what in ("full", "exists", "duration")}
        self._mode: CheckMode = mode
        self._num_workers = num_workers
        self._memory = memory
        self._known = _read_memory(memory)

    def check(self, clips: Sequence[Clip], description: str) -> list[Finding]:
        """A finding for each clip, in order."""
        return self._look(clips, self._mode, description)

    def durations(self, clips: Sequence[Clip], description: str) -> list[Finding]:
        """The durations of clips, the corpus's word where there is one; a file that cannot be read has a reason."""
        return self._look(clips, "duration", description)

    def _look(self, clips: Sequence[Clip], what: str, description: str) -> list[Finding]:
        findings: dict[int, Finding] = {}
        missing: list[tuple[int, Clip, str]] = []
        for position, clip in enumerate(clips):
            if what == "duration" and clip.duration_s is not None:
                findings[position] = Finding(clip.duration_s, None)
                continue
            identity = _identity(clip, what)
            if identity in self._known:
                findings[position] = self._known[identity]
            else:
                missing.append((position, clip, identity))
        findings.update(self._look_anew(missing, what, description))
        return [findings[position] for position in range(len(clips))]

    def _look_anew(self, missing: Sequence[tuple[int, Clip, str]], what: str, description: str) -> dict[int, Finding]:
        if not missing:
            return {}
        found: dict[int, Finding] = {}
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        results = parallel_map(
            self._examine[what],
            [clip for _, clip, _ in missing],
            num_workers=self._num_workers,
            description=description,
            on_crash=_crashed,
        )
        with self._memory.open("a", encoding="utf-8") as memory:
            for count, ((position, _, identity), finding) in enumerate(zip(missing, results, strict=True), start=1):
                found[position] = finding
                if finding.reason == _MISSING:  # so cheap to find out that it is not worth a memory
                    continue
                self._known[identity] = finding
                memory.write(json.dumps([identity, finding.duration_s, finding.reason], ensure_ascii=True) + "\n")
                if count % _FLUSH_EVERY == 0:
                    memory.flush()
        return found


@dataclass(frozen=True)
class _Examine:
    """The work on one clip, as an object that can be sent to a process."""

    audio: AudioFunctions
    what: str

    def __call__(self, clip: Clip) -> Finding:
        path = Path(clip.path)
        try:
            if not path.is_file():
                return Finding(None, _MISSING)
        except OSError as error:  # a name that no disk can hold
            return Finding(None, f"unreadable: {error.strerror}")
        if self.what == "full" and (reason := self.audio.check(path, clip.duration_s)) is not None:
            return Finding(None, reason)
        if clip.duration_s is not None:
            return Finding(clip.duration_s, None)
        try:
            duration_s = self.audio.probe(path).duration_s
        except DataError as error:
            return Finding(None, f"unreadable: {error}")
        if not (math.isfinite(duration_s) and duration_s > 0.0):
            return Finding(None, f"empty: {duration_s:g} s")
        return Finding(round(duration_s, 3), None)


def _crashed(clip: Clip) -> Finding:
    return Finding(None, f"crash: the decoder ended its process or took more than {ITEM_LIMIT_S} s")


def _identity(clip: Clip, what: str) -> str:
    """Changes when the file does, or the question."""
    try:
        status = Path(clip.path).stat()
        state = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        state = "missing"
    return f"{what} {clip.duration_s} {state} {clip.path}"


def _read_memory(path: Path) -> dict[str, Finding]:
    """What earlier runs found. A last line that a killed run left half-written is passed over."""
    known: dict[str, Finding] = {}
    if not path.exists():
        return known
    content = path.read_bytes()
    complete, newline, _ = content.rpartition(b"\n")
    if complete + newline != content:
        write_atomic(path, complete + newline)
    for line in complete.split(b"\n") if complete else []:
        try:
            identity, duration_s, reason = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{path}: damaged ({error}); delete this file, it is only a memory of earlier runs"
            ) from error
        known[identity] = Finding(duration_s, reason)
    return known
