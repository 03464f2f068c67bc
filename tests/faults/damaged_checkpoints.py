# SPDX-License-Identifier: Apache-2.0
"""Damage the newest checkpoint of a real training: it is never loaded, what is wrong is named, the one before is used.

Single flipped bits, files cut at a random place, files deleted: in every file of the checkpoint, the manifest too. A
flip in the manifest's white space or in a byte count changes no sum: such a checkpoint is intact and loads its own
bytes; these flips are counted apart. Some of the damages are followed by a real `wenet-hs train`, which must go on from
the checkpoint before and end with the bits of the training that nothing disturbed.

Example: python tests/faults/damaged_checkpoints.py --flips 1000 --cuts 300
"""

import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import Tally, call, forget_fsync, one_thread, script_parser
from tiny_corpus import TinyCorpus, bits, cut_back, write_tiny_corpus

from wenet_hs.bin import train as train_command
from wenet_hs.checkpoint import list_checkpoints, logger, newest_good, read_checkpoint

OVERRIDES = ("max_epoch=1",)


@dataclass(frozen=True)
class Damage:
    """What is done to one file of a checkpoint."""

    name: str
    what: str
    content: bytes | None
    """None: the file is deleted."""


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def main(argv: Sequence[str] | None = None) -> int:
    """Damage, look, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--flips", type=int, default=1000, help="single bits (default: %(default)s)")
    parser.add_argument("--cuts", type=int, default=300, help="files cut off (default: %(default)s)")
    parser.add_argument("--trainings", type=int, default=12, help="damages that a training follows (default: 12)")
    args = parser.parse_args(argv)
    one_thread()
    back = forget_fsync()
    tally = Tally(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.scratch or Path(temporary)
        corpus = write_tiny_corpus(scratch / "corpus")
        whole = corpus.train(scratch / "whole", *OVERRIDES)
        newest = list_checkpoints(whole / "checkpoints")[-1]
        sizes = {path.name: path.stat().st_size for path in newest.iterdir()}
        damages = [*make_damages(newest, args.flips, args.cuts, random.Random(args.seed))]
        harmless = sum(is_recovered_from(newest, damage, tally) for damage in damages)
        for damage in damages[:: -(-len(damages) // args.trainings)] if args.trainings else []:
            trains_on(corpus, whole, scratch / "again", damage, tally)
    back()
    num = len(damages)
    return tally.conclude(
        f"{args.flips} flipped bits, {args.cuts} cuts, {num - args.flips - args.cuts} deletions in {len(sizes)} files "
        f"of {sum(sizes.values())} bytes",
        f"named, and the checkpoint before used, {num - harmless}/{num - harmless}; {harmless} flips in the manifest "
        "changed no sum and loaded the same bytes"
        if not tally.violations
        else f"of {num} damages {harmless} changed no sum",
        f"{args.trainings} trainings went on from the one before",
    )


def make_damages(checkpoint: Path, num_flips: int, num_cuts: int, generator: random.Random) -> Iterator[Damage]:
    """Deletions, cuts and flips, each file equally often."""
    originals = {path.name: path.read_bytes() for path in sorted(checkpoint.iterdir())}
    for name in originals:
        yield Damage(name, "deleted", None)
    names = list(originals)
    for number in range(num_cuts):
        name = names[number % len(names)]
        length = generator.randrange(len(originals[name]))
        yield Damage(name, f"cut at byte {length}", originals[name][:length])
    for number in range(num_flips):
        name = names[number % len(names)]
        content = bytearray(originals[name])
        position, bit = generator.randrange(len(content)), generator.randrange(8)
        content[position] ^= 1 << bit
        yield Damage(name, f"bit {bit} of byte {position} flipped", bytes(content))


def apply(checkpoint: Path, damage: Damage) -> None:
    """Do it."""
    if damage.content is None:
        (checkpoint / damage.name).unlink()
    else:
        (checkpoint / damage.name).write_bytes(damage.content)


def is_recovered_from(newest: Path, damage: Damage, tally: Tally) -> bool:
    """Damage, look for the newest good checkpoint, and mend. Whether the damage was none, as no sum had changed."""
    where = f"{damage.name} {damage.what}"
    before, original = list_checkpoints(newest.parent)[-2], (newest / damage.name).read_bytes()
    content = read_checkpoint(newest)
    heard = Heard()
    logger.addHandler(heard)
    logger.propagate = False
    apply(newest, damage)
    try:
        found = newest_good(newest.parent)
        if found == newest:
            same = damage.name == "manifest.json" and read_checkpoint(newest) == content
            tally.check(same, f"{where}: not noticed")
            return same
        tally.check(found == before, f"{where}: {found} was used")
        lines = " ".join(heard.lines)
        tally.check(newest.name in lines and before.name in lines, f"{where}: not named in {lines!r}")
        tally.check(damage.name in lines or damage.name == "manifest.json", f"{where}: not named in {lines!r}")
        return False
    finally:
        logger.removeHandler(heard)
        logger.propagate = True
        aside = newest.with_name(newest.name + ".bad")
        if aside.exists():
            aside.rename(newest)
        (newest / damage.name).write_bytes(original)


def trains_on(corpus: TinyCorpus, whole: Path, copy: Path, damage: Damage, tally: Tally) -> None:
    """A real training after the damage ends as the one that nothing disturbed."""
    shutil.rmtree(copy, ignore_errors=True)
    steps = len(list_checkpoints(whole / "checkpoints"))
    cut_back(whole, copy, steps)
    apply(copy / "checkpoints" / f"step-{steps:08d}", damage)
    ended = call(train_command, *corpus.arguments(copy, *OVERRIDES))
    where = f"training after {damage.name} {damage.what}"
    if tally.check(ended.code == 0, f"{where}: {ended.shown()}"):
        tally.check(bits(copy) == bits(whole), f"{where}: other bits")
        tally.check("using step-" in ended.log or damage.name == "manifest.json", f"{where}: {ended.log!r}")


if __name__ == "__main__":
    sys.exit(main())
