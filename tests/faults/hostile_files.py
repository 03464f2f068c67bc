# SPDX-License-Identifier: Apache-2.0
"""Open hostile files with the real commands: no code in them ever runs, and each ends in a line and exit code 2.

Pickles that call a function when they are loaded, by every opcode that can, plain and in the zip of `torch.save`, stand
as final.pt, and as each .pt file of a checkpoint whose manifest is right. YAML files with Python's tags, anchors that
explode, keys twice and worse stand as the config of a training and of a model. NumPy files with objects, which are
pickles, stand wherever a NumPy file is read: embeddings, the original tree's paths. Each file
would leave a mark on the disk; that the pickles do is shown by loading them, in a process of its own, as nobody should.

Then the source is looked through: no pickle, no allow_pickle, no weights_only=False, no yaml loader, no eval or exec,
no shell. The one place where a pickle is read, on --trust_pickle, is in a library (interop/gensim.py).

Example: python tests/faults/hostile_files.py
"""

import io
import os
import pickle
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import (
    Ended,
    Tally,
    call_in_child,
    child,
    forget_fsync,
    fresh_copy,
    one_thread,
    script_parser,
)
from hostile_content import chosen_pickles, chosen_yamls, object_arrays
from source_scan import scan_sources
from tiny_corpus import TinyCorpus, cut_back, write_tiny_corpus

from wenet_hs.bin import average as average_command
from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import train as train_command
from wenet_hs.bin import tree as tree_command
from wenet_hs.checkpoint import list_checkpoints, read_checkpoint, save_checkpoint, step_of
from wenet_hs.interop.hsoftmax_original import PATHS, write_original_tree
from wenet_hs.tree import Tree


def main(argv: Sequence[str] | None = None) -> int:
    """Make, open, look. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--pickles", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--yamls", type=int, default=50, help="(default: %(default)s)")
    parser.add_argument("--arrays", type=int, default=20, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    one_thread()
    back = forget_fsync()
    tally = Tally(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        bed = Bed(args.scratch or Path(temporary), tally)
        ran = sum(bed.pickle(*chosen) for chosen in chosen_pickles(bed.marker, args.pickles, args.seed))
        for name, text in chosen_yamls(bed.marker, args.yamls):
            bed.yaml(name, text)
        lay_arrays(bed, args.arrays)
    num_files = scan_sources(tally)
    back()
    return tally.conclude(
        f"{args.pickles} pickles ({ran} of them run code where a pickle is loaded), {args.yamls} YAML files, "
        f"{args.arrays} NumPy files",
        f"code run by the commands 0/{args.pickles + args.yamls + args.arrays}"
        if not tally.violations
        else "see above",
        f"{num_files} source files without a way to run code",
    )


class Bed:
    """A trained model and its corpus, where hostile files are laid."""

    def __init__(self, scratch: Path, tally: Tally) -> None:
        self.scratch, self.tally = scratch, tally
        self.marker = scratch / "marker"
        self.corpus: TinyCorpus = write_tiny_corpus(scratch / "corpus")
        self.whole = self.corpus.train(scratch / "whole", "max_epoch=1", head="hsoftmax")

    def refused(self, ended: Ended, what: str, *named: str) -> None:
        """Check that a command refused a file as it should, and that nothing ran."""
        self.unmarked(what)
        lines = ended.err.splitlines()
        self.tally.check(ended.clean_fault(), f"{what}: {ended.shown()}")
        self.tally.check(all(any(name in line for name in named) for line in lines), f"{what}: not named: {lines}")

    def unmarked(self, what: str) -> None:
        """Check that no mark is there."""
        self.tally.check(not self._take_mark(), f"{what}: CODE HAS RUN")

    def _take_mark(self) -> bool:
        """Whether the mark was there; it is taken away."""
        found = self.marker.exists()
        if self.marker.is_dir():
            shutil.rmtree(self.marker)
        self.marker.unlink(missing_ok=True)
        return found

    def recognize(self, model_dir: Path) -> Ended:
        """Decode the validation list with a model."""
        line = ("--model_dir", model_dir, "--test_data", self.corpus.cv_data, "--result_dir", self.scratch / "result")
        return call_in_child(recognize_command, *line, "--modes", "ctc_greedy_search", "--device", "cpu")

    def train(self, model_dir: Path, *more: object) -> Ended:
        """Train, or go on, with the head of the trained model."""
        head = ("head=hsoftmax", f"head_conf.tree={self.corpus.folder / 'tree.json'}")
        return call_in_child(train_command, *self.corpus.arguments(model_dir, "max_epoch=1", *head), *more)

    def pickle(self, name: str, content: bytes, place: str) -> bool:
        """Lay a pickle at a place and open it; whether it runs code where a pickle is loaded."""
        runs = self._runs_code(content)
        copy = fresh_copy(self.whole, self.scratch / "hostile")
        what = f"pickle {name} as {place}"
        if place == "final.pt":
            (copy / place).write_bytes(content)
            self.refused(self.recognize(copy), what, "final.pt")
            self.refused(self.train(self.scratch / "tuned", "--checkpoint", copy / place), what, "final.pt")
            return runs
        newest = list_checkpoints(copy / "checkpoints")[-1]
        step, files = step_of(newest), read_checkpoint(newest)
        shutil.rmtree(copy)
        cut_back(self.whole, copy, step)
        save_checkpoint(copy / "checkpoints", step, {**files, place: content})
        self.refused(self.train(copy), what, newest.name)
        if place == "model.pt":
            self.refused(call_in_child(average_command, "--model_dir", copy, "--num", 1, "--by", "last"), what, "step-")
        return runs

    def _runs_code(self, content: bytes) -> bool:
        """Load a pickle as nobody should."""
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read("archive/data.pkl")

        def careless() -> None:
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            pickle.loads(content)

        child(careless)
        return self._take_mark()

    def yaml(self, name: str, content: bytes) -> None:
        """A YAML file as the config of a training, and as the train.yaml of a model."""
        config = self.scratch / "hostile.yaml"
        config.write_bytes(content)
        line = ("--train_data", self.corpus.train_data, "--cv_data", self.corpus.cv_data, "--device", "cpu")
        ended = call_in_child(train_command, "--config", config, *line, "--model_dir", self.scratch / "never")
        self.refused(ended, f"YAML {name} as config", "hostile.yaml")
        copy = fresh_copy(self.whole, self.scratch / "hostile")
        (copy / "train.yaml").write_bytes(content)
        self.refused(self.recognize(copy), f"YAML {name} as train.yaml", "train.yaml")


# ---- NumPy


def lay_arrays(bed: Bed, number: int) -> None:
    """Lay hostile NumPy files at each place that reads one, in turn, and open them."""
    files = list(object_arrays(bed.marker))
    places = (_as_embeddings, _as_archive, _as_original_paths)
    for index in range(number):
        name, content = files[index // len(places) % len(files)]
        places[index % len(places)](bed, name, content)


def _build_tree(bed: Bed, vectors: Path) -> Ended:
    units = ("--units", bed.corpus.folder / "units.txt", "--data_list", bed.corpus.train_data)
    out = ("--out", bed.scratch / "tree.json")
    return call_in_child(tree_command, "build", "--kind", "embedding", *units, "--embeddings", vectors, *out)


def _as_embeddings(bed: Bed, name: str, content: bytes) -> None:
    path = bed.scratch / "vectors.npy"
    path.write_bytes(content)
    bed.refused(_build_tree(bed, path), f"NumPy {name} as embeddings", "vectors.npy")


def _as_archive(bed: Bed, name: str, content: bytes) -> None:
    path = bed.scratch / "vectors.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for member in ("units.npy", "vectors.npy"):
            archive.writestr(member, content)
    bed.refused(_build_tree(bed, path), f"NumPy {name} in an archive of embeddings", "vectors.npz")


def _as_original_paths(bed: Bed, name: str, content: bytes) -> None:
    folder = bed.scratch / "original"
    write_original_tree(Tree.load(bed.corpus.folder / "tree.json"), folder)
    path = folder / next(iter(PATHS))
    path.write_bytes(content)
    line = ("import", "--original", folder, "--units", bed.corpus.folder / "units.txt")
    ended = call_in_child(tree_command, *line, "--out", bed.scratch / "tree.json")
    bed.refused(ended, f"NumPy {name} as paths of the original tree", path.name)


if __name__ == "__main__":
    sys.exit(main())
