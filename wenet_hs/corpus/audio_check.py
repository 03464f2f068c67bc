# SPDX-License-Identifier: Apache-2.0
"""Check of a corpus's audio files in parallel processes.

Results are cached, so that a killed run continues.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress

from wenet_hs.base.files import remove_incomplete_line
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.output import OutputOptions, Rejected
from wenet_hs.data.audio import AudioError, is_silent, length_fault, read_segment, segment_duration
from wenet_hs.data.decoders import NOT_AUDIO
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

ITEM_LIMIT_S: float = 120
"""A worker that needs longer for one item is killed (a decoder in an endless loop)."""
_MISSING = "missing: no such file"
CRASHED = f"crash: the decoder ended its process or took more than {ITEM_LIMIT_S} s"
_MIN_DURATION_S, _MAX_DURATION_S = 0.1, 600.0

CheckMode = Literal["full", "exists", "none"]
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class CheckedClip(NamedTuple):
    """The result of a check."""

    duration_s: float | None
    reason: str | None = None
    """Why the clip cannot be used, or None."""
    is_incomplete: bool = False
    """Whether it lacks a little of the length in its header, and is used nevertheless."""
    is_of_file: bool = True
    """Whether the file alone decides this, so that it is not checked again."""


@dataclass(frozen=True, kw_only=True)
class AudioOptions(OutputOptions):
    """Options of every corpus that is read from audio files."""

    corpus: Path = option(REQUIRED, "folder of the corpus; nothing is written to it")
    check_audio: CheckMode = option(
        "full",
        "full: decode every clip that is used (default); exists: look for the file and read its length; "
        "none: open no clip whose duration the corpus states, so that lists can be made without the audio",
        is_recorded=False,
    )
    max_rejected: float = option(0.5, "accepted share of faulty clips, from 0 to 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "corpus", self.corpus.absolute()
        )  # paths in the lists are absolute
        if not 0.0 <= self.max_rejected <= 1.0:
            raise ValueError(f"max_rejected {self.max_rejected:g}: must be from 0 to 1")

    def make_checker(self) -> "ClipChecker":
        """A checker with its cache in the output folder."""
        return ClipChecker(
            self.out / ".checked_clips.jsonl", mode=self.check_audio, num_workers=self.num_workers
        )


class ClipChecker:
    """Checks each clip once.

    Results are cached in a file by path, size and modification time of the clip.
    """

    def __init__(self, cache: Path, *, mode: CheckMode = "full", num_workers: int = 0) -> None:
        """Args:
        cache: file of this class; created if it does not exist. Clips that no decoder could read
            are checked again, because a later version may read them.
        mode: `full` decodes every clip, `exists` only checks that the file exists; `none` accepts a
        clip of known
            duration without looking for its file. `exists` and `none` read unknown durations from
            the header.
        """
        self._cache, self._mode, self._num_workers = cache, mode, num_workers
        self._incomplete: set[str] = set()
        self._known: dict[str, CheckedClip] = {}
        try:
            for line in remove_incomplete_line(cache).splitlines():
                cache_key, *result = json.loads(line)
                clip = CheckedClip(*result)
                if clip.reason is None or NOT_AUDIO not in clip.reason:
                    self._known[cache_key] = clip
        except (ValueError, TypeError) as error:
            raise DataError(
                cache, f"damaged ({error})", "delete this file, it only caches earlier runs"
            ) from error

    def check(
        self, utterances: Sequence[Utterance], description: str, mode: CheckMode | None = None
    ) -> tuple[list[Utterance], list[Rejected]]:
        """The utterances whose clip is usable, with durations, and the others.

        `mode` overrides the checker's.
        """
        mode = mode or self._mode
        cache_keys = {
            u.key: _make_cache_key(u, mode)
            for u in utterances
            if mode != "none" or u.duration is None
        }
        unknown = [
            u for u in utterances if u.key in cache_keys and cache_keys[u.key] not in self._known
        ]
        results = {
            key: self._known[cache_key]
            for key, cache_key in cache_keys.items()
            if cache_key in self._known
        }
        if unknown:
            found = parallel_map(
                partial(_check_one, mode),
                unknown,
                num_workers=self._num_workers,
                description=description,
                on_crash=lambda _: CheckedClip(None, CRASHED, is_of_file=False),
            )
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            with self._cache.open("a", encoding="utf-8") as cache:
                for utterance, result in zip(unknown, found, strict=True):
                    results[utterance.key] = result
                    if result.is_of_file:
                        cache_key = cache_keys[utterance.key]
                        self._known[cache_key] = result
                        cache.write(json.dumps([cache_key, *result[:-1]], ensure_ascii=True) + "\n")
        usable, rejected = [], []
        for utterance in utterances:
            result = results.get(utterance.key, CheckedClip(utterance.duration))
            if result.is_incomplete:
                self._incomplete.add(utterance.key)
            if result.reason is None:
                is_same = utterance.duration == result.duration_s
                usable.append(
                    utterance if is_same else replace(utterance, duration=result.duration_s)
                )
            else:
                rejected.append(Rejected.of(utterance, result.reason))
        return usable, rejected

    def count_incomplete(self, splits: Mapping[str, Sequence[Utterance]]) -> int:
        """The utterances whose clip lacks a little of the length in its header; `full` finds them."""
        return sum(
            utterance.key in self._incomplete
            for utterances in splits.values()
            for utterance in utterances
        )


def _check_one(mode: CheckMode, utterance: Utterance) -> CheckedClip:
    if not os.path.isfile(utterance.wav):  # noqa: PTH113  # False, not an error, for a name that no disk can hold
        return CheckedClip(None, _MISSING, is_of_file=False)
    if mode == "full":
        return check_clip(utterance)
    try:
        return CheckedClip(utterance.duration or round(segment_duration(utterance), 3))
    except AudioError as error:
        return CheckedClip(None, f"unreadable: {error}", is_of_file=error.is_of_file)


def check_clip(utterance: Utterance) -> CheckedClip:
    """Whether a clip can be used for training; decodes it.

    A duration of the corpus is compared, and returned.
    """
    try:
        waveform, rate, missing_s = read_segment(utterance)
    except AudioError as error:
        return CheckedClip(None, error.found, is_of_file=error.is_of_file)
    expected_s = utterance.duration
    duration_s = len(waveform) / rate
    reason = None if expected_s is None else length_fault(duration_s, expected_s, "the corpus")
    if reason is None and duration_s < _MIN_DURATION_S:
        reason = f"shorter than {_MIN_DURATION_S:g} s: {duration_s:.3f} s"
    elif reason is None and duration_s > _MAX_DURATION_S:
        reason = f"longer than {_MAX_DURATION_S:g} s: {duration_s:.1f} s"
    elif reason is None and is_silent(torch.from_numpy(waveform)):
        reason = "silent"
    if reason is not None:
        return CheckedClip(None, reason)
    return CheckedClip(expected_s or round(duration_s, 3), is_incomplete=missing_s > 0.0)


def _make_cache_key(utterance: Utterance, mode: CheckMode) -> str:
    """Changes when the file or the kind of check changes."""
    try:
        status = Path(utterance.wav).stat()
        state = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        state = "missing"
    segment = (
        ""
        if utterance.start is None and utterance.end is None
        else f"{utterance.start} {utterance.end} "
    )
    channel = "" if utterance.channel is None else f"channel {utterance.channel} "
    return f"{mode} {utterance.duration} {segment}{channel}{state} {utterance.wav}"


# ---- parallel processes


def parallel_map(
    function: Callable[[Item], Outcome],
    items: Sequence[Item],
    *,
    num_workers: int,
    description: str,
    on_crash: Callable[[Item], Outcome],
) -> Iterator[Outcome]:
    """Yield `function(item)` for each item, in order, with a progress bar.

    Args:
        function: must be picklable.
        num_workers: processes. 0 runs in this process, where crashes and endless loops are not
            caught.
        description: text before the progress bar.
        on_crash: returns the result of an item that ends its process (a segmentation fault, or more
            than 120 s).
    """
    results = (
        _map_in_pool(function, items, num_workers, on_crash)
        if num_workers
        else map(function, items)
    )
    # Without a thread that refreshes it, because the pool may fork meanwhile.
    console = Console(stderr=True)
    with Progress(console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=len(items))
        shown_s = 0.0
        for result in results:
            progress.advance(task)
            if time.monotonic() - shown_s > 0.2:
                progress.refresh()
                shown_s = time.monotonic()
            yield result
        progress.refresh()


def _map_in_pool(
    function: Callable[[Item], Outcome],
    items: Sequence[Item],
    num_workers: int,
    on_crash: Callable[[Item], Outcome],
) -> Iterator[Outcome]:
    size = min(64, len(items) // (4 * num_workers) + 1)
    num_done = 0
    while num_done < len(items):
        # Forking takes milliseconds, but is only safe on Linux.
        context = get_context("fork" if sys.platform == "linux" else "spawn")
        num_processes = min(num_workers, -(-(len(items) - num_done) // size))
        pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_worker)
        try:
            for result in pool.map(
                partial(_run_limited, function), items[num_done:], chunksize=size
            ):
                yield result
                num_done += 1
        except BrokenProcessPool:
            if len(items) == 1:
                yield on_crash(items[0])
                return
            # Any of the running chunks may have killed its process: run the items of the first one
            # separately.
            chunk = items[num_done : num_done + size]
            for item in chunk:
                yield from _map_in_pool(function, [item], 1, on_crash)
            num_done += len(chunk)
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside C code
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(
            1, signal.SIGTERM
        )  # PR_SET_PDEATHSIG: no worker outlives a parent that was killed


def _run_limited(function: Callable[[Item], Outcome], item: Item) -> Outcome:
    signal.setitimer(signal.ITIMER_REAL, ITEM_LIMIT_S)
    result = function(item)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return result
