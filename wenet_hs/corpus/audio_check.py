# SPDX-License-Identifier: Apache-2.0
"""Check of a corpus's audio files, in parallel. Results are cached in a file, so that a killed run continues."""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.parallel import ITEM_LIMIT_S, parallel_map
from wenet_hs.data.audio import ClipCheck, check_clip, read_duration
from wenet_hs.errors import DataError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance

CheckMode = Literal["full", "exists", "none"]
CheckedClip = tuple[float | None, str | None, bool]
"""(duration in seconds, None, whether it lacks a little of the length in its header) of a usable clip; (None, reason,
False) of another one."""
_FLUSH_EVERY = 200
_MISSING = "missing: no such file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of every corpus that is read from audio files."""
    folder = "folder of the corpus; nothing is written to it"
    parser.add_argument("--corpus", type=lambda path: Path(path).absolute(), required=True, help=folder)
    parser.add_argument(
        "--check_audio",
        choices=("full", "exists", "none"),
        default="full",
        help="full: decode every clip that is used (default); exists: only check that the file exists; none: open no "
        "clip whose duration the corpus states, so that lists can be made without the audio",
    )
    parser.add_argument(
        "--max_rejected", type=float, default=0.5, help="accepted share of faulty clips (default: %(default)s)"
    )


def make_checker(args: argparse.Namespace) -> "ClipChecker":
    """The checker of a command line, with its cache in OUT."""
    return ClipChecker(args.out / ".checked.jsonl", mode=args.check_audio, num_workers=args.num_workers)


class ClipChecker:
    """Checks each clip once. Results are cached in a file by path, size and modification time of the clip."""

    def __init__(
        self,
        cache: Path,
        *,
        mode: CheckMode = "full",
        num_workers: int = 0,
        check: Callable[[Path, float | None], ClipCheck] = check_clip,
        probe: Callable[[Path], float] = read_duration,
    ) -> None:
        """Args:
        cache: file of this class; created if it does not exist.
        mode: `full` decodes every clip, `exists` only checks that the file exists; `none` accepts a clip of known
            duration without looking for its file. `exists` and `none` read unknown durations from the header.
        check: (path, expected duration in seconds) → whether the clip is usable. Must be picklable.
        probe: path → duration in seconds from the header. Must be picklable.
        """
        self._check, self._probe = check, probe
        self._mode = mode
        self._num_workers = num_workers
        self._cache = cache
        self._known = _read_cache(cache)
        self._incomplete: set[str] = set()

    def check(self, utterances: Sequence[Utterance], description: str) -> tuple[list[Utterance], list[Rejected]]:
        """The utterances whose clip is usable, with durations, and the others."""
        return self._run(utterances, self._mode, description)

    def read_durations(
        self, utterances: Sequence[Utterance], description: str
    ) -> tuple[list[Utterance], list[Rejected]]:
        """The utterances with durations, from the file's header where unknown, and those with an unreadable file."""
        return self._run(utterances, "none", description)

    def count_incomplete(self, splits: Mapping[str, Sequence[Utterance]]) -> int:
        """The utterances whose clip lacks a little of the length in its header; `full` finds them."""
        return sum(utterance.key in self._incomplete for utterances in splits.values() for utterance in utterances)

    def _run(
        self, utterances: Sequence[Utterance], mode: CheckMode, description: str
    ) -> tuple[list[Utterance], list[Rejected]]:
        cache_keys = {u.key: _make_cache_key(u, mode) for u in utterances if mode != "none" or u.duration is None}
        results = {key: self._known[cache_key] for key, cache_key in cache_keys.items() if cache_key in self._known}
        unknown = [u for u in utterances if u.key in cache_keys and u.key not in results]
        check = partial(_check_one, self._check if mode == "full" else None, self._probe)
        if unknown:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            found = parallel_map(
                check, unknown, num_workers=self._num_workers, description=description, on_crash=_report_crash
            )
            with self._cache.open("a", encoding="utf-8") as cache:
                for number, (utterance, result) in enumerate(zip(unknown, found, strict=True), start=1):
                    results[utterance.key] = result
                    if result[1] == _MISSING:  # cheap to check again, and the file may be added later
                        continue
                    cache_key = cache_keys[utterance.key]
                    self._known[cache_key] = result
                    cache.write(json.dumps([cache_key, *result], ensure_ascii=True) + "\n")
                    if number % _FLUSH_EVERY == 0:
                        cache.flush()
        usable, rejected = [], []
        for utterance in utterances:
            duration_s, reason, is_incomplete = results.get(utterance.key, (utterance.duration, None, False))
            if is_incomplete:
                self._incomplete.add(utterance.key)
            if reason is None:
                usable.append(replace(utterance, duration=duration_s))
            else:
                rejected.append(Rejected(utterance.key, utterance.wav, reason, utterance.lang or ""))
        return usable, rejected


def _check_one(
    check: Callable[[Path, float | None], ClipCheck] | None, probe: Callable[[Path], float], utterance: Utterance
) -> CheckedClip:
    path = Path(utterance.wav)
    try:
        if not path.is_file():
            return None, _MISSING, False
    except OSError as error:  # a name that no disk can hold
        return None, f"unreadable: {error.strerror}", False
    checked = ClipCheck(reason=None) if check is None else check(path, utterance.duration)
    if checked.reason is not None:
        return None, checked.reason, False
    if utterance.duration is not None:
        return utterance.duration, None, checked.is_incomplete
    try:
        duration_s = probe(path)
    except DataError as error:
        return None, f"unreadable: {error}", False
    if not (math.isfinite(duration_s) and duration_s > 0.0):
        return None, f"empty: {duration_s:g} s", False
    return round(duration_s, 3), None, checked.is_incomplete


def _report_crash(utterance: Utterance) -> CheckedClip:
    return None, f"crash: the decoder ended its process or took more than {ITEM_LIMIT_S} s", False


def _make_cache_key(utterance: Utterance, mode: CheckMode) -> str:
    """Changes when the file or the kind of check changes."""
    try:
        status = Path(utterance.wav).stat()
        state = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        state = "missing"
    return f"{mode} {utterance.duration} {state} {utterance.wav}"


def _read_cache(path: Path) -> dict[str, CheckedClip]:
    """Results of earlier runs. An incomplete last line of a killed run is removed."""
    known: dict[str, CheckedClip] = {}
    if not path.exists():
        return known
    content = path.read_bytes()
    complete, newline, _ = content.rpartition(b"\n")
    if complete + newline != content:
        write_atomic(path, complete + newline)
    for line in complete.split(b"\n") if complete else []:
        try:
            cache_key, duration_s, reason, is_incomplete = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}: damaged ({error}); delete this file, it only caches earlier runs") from error
        known[cache_key] = duration_s, reason, is_incomplete
    return known
