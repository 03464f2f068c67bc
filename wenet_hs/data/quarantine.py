# SPDX-License-Identifier: Apache-2.0
"""Record of the clips that training cannot read, and the limit on their share.

Only a `ClipError` is recorded: a fault of the utterance's own audio. Any other error ends the run. The bad clips of a
batch depend only on (seed, epoch, index) and on the files. A bad clip is drawn and counted in every epoch, but recorded
once.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from wenet_hs.data.batching import Batch
from wenet_hs.errors import DataError
from wenet_hs.files import one_field
from wenet_hs.manifest import BadClip

logger = logging.getLogger(__name__)

MIN_DRAWN = 500
"""Clips to be drawn before their share of bad ones is checked; an epoch of fewer is checked at its end."""
_HEADER = b"key\tpath\treason\n"
_NUM_NAMED = 5


class Quarantine:
    """The file with the bad clips of a run, `key path reason`, each clip once."""

    def __init__(self, path: Path, *, fresh: bool, is_only_rank: bool = True) -> None:
        """A `fresh` run begins a new file. If not `is_only_rank`, errors name the files of all ranks."""
        self.path = path
        self._all_paths = path if is_only_rank else path.with_name("quarantine*.tsv")
        if fresh:
            path.unlink(missing_ok=True)
        self._known = _recorded_keys(path)

    def record(self, clips: Iterable[BadClip]) -> None:
        """Record new clips. Warnings name the first ones; the later ones are only in the file."""
        new = {clip.key: clip for clip in clips if one_field(clip.key) not in self._known}
        if not new:
            return
        rows = ["\t".join(map(one_field, (clip.key, clip.wav, clip.reason))) + "\n" for clip in new.values()]
        with self.path.open("ab") as file:
            file.write((b"" if file.tell() else _HEADER) + "".join(rows).encode("utf-8"))
        for number, clip in enumerate(new.values(), start=len(self._known) + 1):
            if number > _NUM_NAMED:
                break
            logger.warning("utterance %s: %s: %s; it is skipped", *map(one_field, (clip.key, clip.wav, clip.reason)))
            if number == _NUM_NAMED:
                logger.warning("%s lists these %d clips and all further ones that cannot be read", self.path, number)
        self._known.update(map(one_field, new))

    def check_share(self, num_bad: int, num_drawn: int, limit: float, *, at_end: bool) -> None:
        """Raise DataError if of the clips drawn by all ranks more than the share `limit` are bad.

        at_end: of an epoch or a validation; otherwise fewer than MIN_DRAWN are not checked.
        """
        if num_bad > limit * num_drawn and (at_end or num_drawn >= MIN_DRAWN):
            raise DataError(
                f"{self._all_paths}: {num_bad} of {num_drawn} clips cannot be read, more than the share {limit:g}; "
                "restore them, or raise dataset_conf.max_bad_clips"
            )


class RecordedBatches:
    """Batches of a validation, whose bad clips are recorded and counted when a batch is taken."""

    def __init__(self, quarantine: Quarantine, batches: Iterable[Batch]) -> None:
        self._quarantine, self._batches = quarantine, batches
        self.num_bad = self.num_drawn = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._quarantine.record(batch.quarantined)
            self.num_bad += len(batch.quarantined)
            self.num_drawn += batch.num_drawn
            yield batch


def quarantine_path(model_dir: Path, rank: int) -> Path:
    """The file of a rank; each rank has its own, because ranks of different machines cannot share one."""
    return model_dir / ("quarantine.tsv" if rank == 0 else f"quarantine-rank{rank}.tsv")


def _recorded_keys(path: Path) -> set[str]:
    """The keys in the file. An incomplete last line, from a killed run, is removed."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        with path.open("r+b") as file:
            file.truncate(len(complete))
    rows = complete.removeprefix(_HEADER).decode("utf-8", errors="replace").split("\n")
    return {row.partition("\t")[0] for row in rows if row}
