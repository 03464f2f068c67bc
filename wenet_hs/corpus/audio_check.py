# SPDX-License-Identifier: Apache-2.0
"""Check of a corpus's audio files in parallel processes (`ClipChecker`).

Results are cached, so that a killed run continues. `parallel_map` also serves other work on clips.
"""

import ctypes
import json
import math
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

import numpy as np
import torch
from numpy.typing import NDArray
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
_MIN_DURATION_S = 0.1
_MAX_DURATION_S = 600.0
_PR_SET_PDEATHSIG = 1
"""Of the C function `prctl`: a signal for this process when its parent ends."""
_REFRESH_S = 0.2
"""Between two updates of a progress bar."""

CheckMode = Literal["full", "exists", "none"]
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class CheckedClip(NamedTuple):
    """The result of a check."""

    duration_s: float | None
    """Seconds; None: not known, because the clip cannot be used, or its length was not read."""
    reason: str | None = None
    """Why the clip cannot be used, or None."""
    is_incomplete: bool = False
    """Whether it is used although its file ends a little before the length that its header states."""
    is_cacheable: bool = True
    """Whether the result depends only on the content of the file. Then it is not checked again.

    A missing file may be restored, and a crash may be one of this computer.
    """

    @property
    def is_undecodable(self) -> bool:
        """Whether no decoder could read the file. `NOT_AUDIO` is a part of the reason then."""
        return self.reason is not None and NOT_AUDIO in self.reason


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
        """Make --corpus absolute: so are paths in the lists. Raises ValueError for another share."""
        super().__post_init__()
        object.__setattr__(self, "corpus", self.corpus.absolute())
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
        """Read the cache. Raises DataError if it is damaged.

        Args:
            cache: file of this class; created when the first result is written. Its last line is
                removed if it is incomplete. Results of undecodable files are not used.
            mode: `full` decodes every clip, `exists` only checks that the file exists; `none`
                accepts a clip of known duration without looking for its file. `exists` and `none`
                read unknown durations from the header.
            num_workers: processes; 0: only this one.
        """
        self._cache = cache
        self._mode = mode
        self._num_workers = num_workers
        self._incomplete: set[str] = set()
        """Keys of the utterances whose file ends before the length that its header states."""
        self._known: dict[str, CheckedClip] = {}
        """Key of the cache, as `_make_cache_key` makes it → result of the check."""
        try:
            for line in remove_incomplete_line(cache).splitlines():
                cache_key, clip = _parse_cache_line(line)
                if not clip.is_undecodable:  # a later version may have a decoder for it
                    self._known[cache_key] = clip
        except (ValueError, TypeError) as error:
            found = f"damaged ({error})"
            to_do = "delete this file, it only caches earlier runs"
            raise DataError(cache, found, to_do) from error

    def check(
        self, utterances: Sequence[Utterance], description: str, mode: CheckMode | None = None
    ) -> tuple[list[Utterance], list[Rejected]]:
        """The utterances whose clip is usable, with durations, and the others with the reason.

        New results are added to the cache. With the mode `none`, an utterance of known duration is
        usable without a check.

        Args:
            description: text before the progress bar.
            mode: instead of the mode of the checker.
        """
        mode = mode or self._mode
        cache_key_of = dict[str, str]()
        results = dict[str, CheckedClip]()
        unknown = list[Utterance]()
        for utterance in utterances:
            if mode == "none" and utterance.duration is not None:
                results[utterance.key] = CheckedClip(utterance.duration)
                continue
            cache_key = _make_cache_key(utterance, mode)
            cache_key_of[utterance.key] = cache_key
            if cache_key in self._known:
                results[utterance.key] = self._known[cache_key]
            else:
                unknown.append(utterance)
        if unknown:
            results |= self._check_unknown(unknown, cache_key_of, description, mode)
        usable = list[Utterance]()
        rejected = list[Rejected]()
        for utterance in utterances:
            result = results[utterance.key]
            if result.is_incomplete:
                self._incomplete.add(utterance.key)
            if result.reason is not None:
                rejected.append(Rejected.of(utterance, result.reason))
            elif utterance.duration == result.duration_s:
                usable.append(utterance)
            else:
                usable.append(replace(utterance, duration=result.duration_s))
        return usable, rejected

    def _check_unknown(
        self,
        utterances: Sequence[Utterance],
        cache_key_of: Mapping[str, str],
        description: str,
        mode: CheckMode,
    ) -> dict[str, CheckedClip]:
        """Key of each utterance → the result for its clip, which is not in the cache.

        A result that depends only on the file is written to the cache as soon as it is known.
        """
        checked_clips = parallel_map(
            partial(_check_one, mode),
            utterances,
            num_workers=self._num_workers,
            description=description,
            on_crash=lambda _: CheckedClip(None, CRASHED, is_cacheable=False),
        )
        results = dict[str, CheckedClip]()
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        with self._cache.open("a", encoding="utf-8") as cache:
            for utterance, clip in zip(utterances, checked_clips, strict=True):
                results[utterance.key] = clip
                if clip.is_cacheable:
                    cache_key = cache_key_of[utterance.key]
                    self._known[cache_key] = clip
                    cache.write(_format_cache_line(cache_key, clip) + "\n")
        return results

    def count_incomplete(self, splits: Mapping[str, Sequence[Utterance]]) -> int:
        """The number of utterances whose file ends a little before the length in its header.

        Only the mode `full` finds such clips; with other modes the number is 0.
        """
        num_incomplete = 0
        for utterances in splits.values():
            num_incomplete += sum(utterance.key in self._incomplete for utterance in utterances)
        return num_incomplete


def _parse_cache_line(line: bytes) -> tuple[str, CheckedClip]:
    """The key and the result of a line of the cache.

    Raises ValueError or TypeError for another line.
    """
    cache_key, *values = json.loads(line)
    return cache_key, CheckedClip(*values)


def _format_cache_line(cache_key: str, clip: CheckedClip) -> str:
    """The line of the cache for a result that depends only on the file: a JSON list with its key."""
    values = [cache_key, clip.duration_s, clip.reason, clip.is_incomplete]
    return json.dumps(values, ensure_ascii=True)


def _make_cache_key(utterance: Utterance, mode: CheckMode) -> str:
    """The key of a check in the cache: it changes when the file or the kind of check changes."""
    try:
        status = Path(utterance.wav).stat()
        state = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        state = "missing"
    segment = ""
    if utterance.start is not None or utterance.end is not None:
        segment = f"{utterance.start} {utterance.end} "
    channel = "" if utterance.channel is None else f"channel {utterance.channel} "
    return f"{mode} {utterance.duration} {segment}{channel}{state} {utterance.wav}"


# ---- one clip


def _check_one(mode: CheckMode, utterance: Utterance) -> CheckedClip:
    """The result for a clip in this mode.

    `full` decodes the clip. Other modes only look for the file, and read its length from the header
    if the corpus states no duration.
    """
    # `os.path.isfile` is False, not an error, for a name that no disk can hold.
    if not os.path.isfile(utterance.wav):  # noqa: PTH113
        return CheckedClip(None, _MISSING, is_cacheable=False)
    if mode == "full":
        return check_clip(utterance)
    try:
        return CheckedClip(utterance.duration or round(segment_duration(utterance), 3))
    except AudioError as error:
        return CheckedClip(None, f"unreadable: {error}", is_cacheable=error.is_of_file)


def check_clip(utterance: Utterance) -> CheckedClip:
    """Decode a clip, and check by its samples whether it can be used for training.

    If the corpus states a duration, the length of the samples is compared with it. The result then
    has the duration of the corpus, otherwise that of the samples, rounded to milliseconds.

    A file may end `missing_s` seconds before the length that its header states. Where this is so
    little that it can be read, the clip is used, and is incomplete.
    """
    try:
        waveform, rate, missing_s = read_segment(utterance)
    except AudioError as error:
        return CheckedClip(None, error.found, is_cacheable=error.is_of_file)
    duration_s = len(waveform) / rate
    reason = _find_fault(waveform, duration_s, utterance.duration)
    if reason is not None:
        return CheckedClip(None, reason)
    return CheckedClip(utterance.duration or round(duration_s, 3), is_incomplete=missing_s > 0.0)


def _find_fault(
    waveform: NDArray[np.float32], duration_s: float, expected_s: float | None
) -> str | None:
    """Why samples (N,) cannot be used; None: they can be.

    Args:
        duration_s: seconds of the samples.
        expected_s: the duration that the corpus states, if it states one.
    """
    if expected_s is not None:
        reason = length_fault(duration_s, expected_s, "the corpus")
        if reason is not None:
            return reason
    if duration_s < _MIN_DURATION_S:
        return f"shorter than {_MIN_DURATION_S:g} s: {duration_s:.3f} s"
    if duration_s > _MAX_DURATION_S:
        return f"longer than {_MAX_DURATION_S:g} s: {duration_s:.1f} s"
    if is_silent(torch.from_numpy(waveform)):
        return "silent"
    return None


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
    if num_workers:
        results = _map_in_pool(function, items, num_workers, on_crash)
    else:
        results = map(function, items)
    # Without a thread that refreshes the bar, because the pool may fork meanwhile.
    console = Console(stderr=True)
    with Progress(console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=len(items))
        refreshed_s = 0.0
        for result in results:
            progress.advance(task)
            if time.monotonic() - refreshed_s > _REFRESH_S:
                progress.refresh()
                refreshed_s = time.monotonic()
            yield result
        progress.refresh()


def _map_in_pool(
    function: Callable[[Item], Outcome],
    items: Sequence[Item],
    num_workers: int,
    on_crash: Callable[[Item], Outcome],
) -> Iterator[Outcome]:
    """Yield `function(item)` for each item, in order, computed by a pool of processes.

    Processes get chunks of items. A process that ends breaks the whole pool, which does not tell
    the item that it ran. So the items after the last result, as many as a chunk has, are run one by
    one, each in a process of its own, and then a new pool continues. An item that ends a process in
    which no other item runs gets `on_crash(item)`.
    """
    # At least about four chunks per process, so that all processes end at about the same time.
    chunk_size = min(64, len(items) // (4 * num_workers) + 1)
    num_done = 0
    while num_done < len(items):
        num_chunks = math.ceil((len(items) - num_done) / chunk_size)
        num_processes = min(num_workers, num_chunks)
        pool = _make_pool(num_processes)
        run_item = partial(_run_limited, function)
        try:
            for result in pool.map(run_item, items[num_done:], chunksize=chunk_size):
                yield result
                num_done += 1
        except BrokenProcessPool:
            if num_done == len(items) - 1:  # the last item ran alone, so it has ended its process
                yield on_crash(items[num_done])
                return
            # Any of the running chunks may have ended its process, so the next one is only a guess.
            next_chunk = items[num_done : num_done + chunk_size]
            for item in next_chunk:
                yield _run_alone(function, item, on_crash)
            num_done += len(next_chunk)
        finally:
            pool.shutdown(cancel_futures=True)


def _run_alone(
    function: Callable[[Item], Outcome], item: Item, on_crash: Callable[[Item], Outcome]
) -> Outcome:
    """`function(item)`, computed by a new process, or `on_crash(item)` if it ends this process."""
    with _make_pool(num_processes=1) as pool:
        try:
            return pool.submit(_run_limited, function, item).result()
        except BrokenProcessPool:
            return on_crash(item)


def _make_pool(num_processes: int) -> ProcessPoolExecutor:
    """A pool of new processes."""
    # Forking takes milliseconds, but is only safe on Linux.
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_worker)


def _start_worker() -> None:
    """Set the signals of a new process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside C code
    if sys.platform == "linux":
        # No worker outlives a parent that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run_limited(function: Callable[[Item], Outcome], item: Item) -> Outcome:
    """`function(item)`; after `ITEM_LIMIT_S` seconds a signal ends this process."""
    signal.setitimer(signal.ITIMER_REAL, ITEM_LIMIT_S)
    result = function(item)
    signal.setitimer(signal.ITIMER_REAL, 0)  # 0: no signal any more
    return result
