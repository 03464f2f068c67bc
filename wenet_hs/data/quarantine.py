# SPDX-License-Identifier: Apache-2.0
"""Clips that training cannot read: left out of their batch, written down, counted; too many of them end the run.

Only a `ClipError`, a fault of the utterance's own audio, is quarantined. Anything else that goes wrong on the way to a
batch (a noise recording that cannot be read, too many open files, a bug) ends the run as before.

Which clips are in a batch is a function of (seed, epoch, index) and of the files, so neither a resume nor the number of
workers changes it. A bad clip is drawn, and counted, in every epoch; it is written down once.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from wenet_hs.errors import DataError
from wenet_hs.files import one_field

logger = logging.getLogger(__name__)

MIN_DRAWN = 500
"""Clips to be drawn before their share of bad ones is judged; an epoch of fewer is judged at its end."""
MAX_REPLACEMENTS = 1000
"""Clips tried in place of a batch that lost all of its own: as many bad ones in a row are a disk that is gone."""
_HEADER = b"key\tpath\treason\n"
_NAMED = 5

Value = TypeVar("Value")


class HasBadClips(Protocol):
    """What of a batch matters here."""

    @property
    def quarantined(self) -> "tuple[BadClip, ...]":
        """The clips that could not be read."""
        ...

    @property
    def num_drawn(self) -> int:
        """The clips drawn, those among them."""
        ...


AnyBatch = TypeVar("AnyBatch", bound=HasBadClips)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadClip:
    """An utterance whose audio cannot be used."""

    key: str
    wav: str
    reason: str


class ClipError(DataError):
    """The audio of one utterance cannot be used; `clip` says which and why (None behind a worker process)."""

    def __init__(self, message: str, clip: BadClip | None = None) -> None:
        super().__init__(message)
        self.clip = clip


def clip_error(key: str, wav: str, reason: str, remedy: str) -> ClipError:
    """The error for one utterance, its line made of where, what and what to do."""
    return ClipError(f"utterance {key}: {wav}: {reason}; {remedy}", BadClip(key=key, wav=wav, reason=reason))


def take_readable(
    read: Callable[[int], Value], indices: Sequence[int], *, num_items: int
) -> tuple[list[Value], tuple[BadClip, ...]]:
    """What can be read of `indices`, in order, and the clips that cannot; there is always something to take.

    Where nothing of `indices` can be read, the first readable of the items behind the last of them stands in.

    Args:
        read: index → value; raises ClipError for a bad clip.
        num_items: how many different items there are.

    Raises: DataError if as many as `num_items`, or MAX_REPLACEMENTS, are bad in a row.
    """
    values: list[Value] = []
    bad: list[BadClip] = []
    _try_all(read, indices, values, bad)
    last, attempts = indices[-1], min(num_items, MAX_REPLACEMENTS)
    for index in range(last + 1, last + 1 + attempts):
        if values:
            break
        _try_all(read, (index,), values, bad)
    if not values:
        raise DataError(
            f"{len(bad)} clips one after the other cannot be read, the first is utterance {bad[0].key}: {bad[0].wav}: "
            f"{bad[0].reason}; is the disk with the audio there?"
        )
    return values, tuple(bad)


def _try_all(read: Callable[[int], Value], indices: Iterable[int], values: list[Value], bad: list[BadClip]) -> None:
    for index in indices:
        try:
            values.append(read(index))
        except ClipError as error:
            assert error.clip is not None, "it was raised in this process"
            bad.append(error.clip)


class Quarantine:
    """The file with the bad clips of a run, `key path reason`, each clip once, whatever is drawn again."""

    def __init__(self, path: Path, *, fresh: bool, is_alone: bool = True) -> None:
        """The file of this process.

        Args:
            fresh: begin a new file, for a new run; else go on in the one that is there.
            is_alone: whether no other rank has one; else the clips that end a run may be in any of them.
        """
        self.path = path
        self._all_paths = path if is_alone else path.with_name("quarantine*.tsv")
        if fresh:
            path.unlink(missing_ok=True)
        self._known = _known_keys(path)
        self._count_at = 2 * _NAMED

    def record(self, clips: Iterable[BadClip]) -> None:
        """Write down what is not yet known; the first few are named in a warning, later ones counted in fewer."""
        new = {clip.key: clip for clip in clips if one_field(clip.key) not in self._known}
        if not new:
            return
        rows = ["\t".join(map(one_field, (clip.key, clip.wav, clip.reason))) + "\n" for clip in new.values()]
        with self.path.open("ab") as file:
            file.write(("" if file.tell() else _HEADER.decode()).encode() + "".join(rows).encode("utf-8"))
        for clip in islice(new.values(), max(0, _NAMED - len(self._known))):
            logger.warning("utterance %s: %s: %s; it is left out", *map(one_field, (clip.key, clip.wav, clip.reason)))
        self._known.update(map(one_field, new))
        if len(self._known) >= self._count_at:
            logger.warning("%d clips cannot be read and are left out; see %s", len(self._known), self.path)
            self._count_at = 2 * len(self._known)

    def watch(self, batches: Iterable[AnyBatch]) -> "Watched[AnyBatch]":
        """The batches of a validation, their bad clips recorded and counted as they come."""
        return Watched(self, batches)

    def judge(self, num_bad: int, num_drawn: int, limit: float, *, at_end: bool) -> None:
        """End the run where the share of bad clips is too high.

        Args:
            num_bad, num_drawn: of all clips drawn so far, by all ranks.
            limit: `dataset_conf.max_bad_clips`.
            at_end: whether an epoch or a validation is over; otherwise fewer than MIN_DRAWN are not judged.

        Raises: DataError naming the file, or those of all ranks.
        """
        if num_bad > limit * num_drawn and (at_end or num_drawn >= MIN_DRAWN):
            raise DataError(
                f"{self._all_paths}: {num_bad} of {num_drawn} clips cannot be read, more than the share {limit:g}; "
                "restore them, or raise dataset_conf.max_bad_clips"
            )


class Watched(Generic[AnyBatch]):
    """Batches that pass through; see `Quarantine.watch`."""

    def __init__(self, quarantine: Quarantine, batches: Iterable[AnyBatch]) -> None:
        self._quarantine, self._batches = quarantine, batches
        self.num_bad = self.num_drawn = 0

    def __iter__(self) -> Iterator[AnyBatch]:
        for batch in self._batches:
            self._quarantine.record(batch.quarantined)
            self.num_bad += len(batch.quarantined)
            self.num_drawn += batch.num_drawn
            yield batch


def quarantine_path(model_dir: Path, rank: int) -> Path:
    """Where a rank writes its bad clips: every rank a file of its own, for none can see what another one writes."""
    return model_dir / ("quarantine.tsv" if rank == 0 else f"quarantine-rank{rank}.tsv")


def _known_keys(path: Path) -> set[str]:
    """The keys in the file, a last line that a killed run left half-written cut off."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        with path.open("r+b") as file:
            file.truncate(len(complete))
    rows = complete.removeprefix(_HEADER).decode("utf-8", errors="replace").split("\n")
    return {row.partition("\t")[0] for row in rows if row}
