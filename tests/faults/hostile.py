# SPDX-License-Identifier: Apache-2.0
"""Hostile files: pickles, YAML and NumPy files that would create a marker file if any code in them ran."""

import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType

from harness import Tally, call_in_child, run_child, without_fsync
from tiny_corpus import cut_back, write_tiny_corpus

from wenet_hs.bin import average as average_command
from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import train as train_command
from wenet_hs.bin import tree as tree_command
from wenet_hs.checkpoint import list_checkpoints, read_checkpoint, save_checkpoint, step_of
from wenet_hs.interop.hsoftmax_original import PATHS, write_original_tree
from wenet_hs.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("embeddings", "an archive", "paths of the original tree")


def hostile_files(folder: Path, tally: Tally, pickles: int, yamls: int = 50, arrays: int = 20) -> str:
    """Open hostile files with the real commands: no code runs, and each ends in one line and exit code 2.

    Pickles are tried as final.pt and as each file of a checkpoint, YAML files as config and train.yaml, NumPy files
    as embeddings and as paths of the original tree. `pickle.loads` in a separate process shows how many pickles work.
    Then the source is searched for ways to run code.
    """
    bed = TestBed(folder, tally)
    with without_fsync():
        num_working = sum(bed.try_pickle(*chosen) for chosen in choose_pickles(bed.marker, pickles, tally))
        for name, content in choose_yamls(bed.marker, yamls):
            bed.try_yaml(name, content)
        files = list(make_arrays(bed.marker))
        for number in range(arrays):
            bed.try_array(*files[number // len(PLACES) % len(files)], PLACES[number % len(PLACES)])
    num_run = sum("CODE HAS RUN" in violation for violation in tally.violations)
    num_sources, found = scan_sources()
    tally.check(not found, f"ways to run code: {found}")
    return (
        f"{pickles} pickles ({num_working} of them run code where a pickle is loaded), {yamls} YAML files, {arrays} "
        f"NumPy files | code run by the commands {num_run}/{pickles + yamls + arrays} | {num_sources} source files "
        "without a way to run code"
    )


class TestBed:
    """A trained model and its corpus."""

    __test__ = False

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally = folder, tally
        self.marker, self.copy = folder / "marker", folder / "hostile"
        self.corpus = write_tiny_corpus(folder / "corpus")
        self.tree, self.units = self.corpus.folder / "tree.json", self.corpus.folder / "units.txt"
        self.whole = self.corpus.train(folder / "whole", "max_epoch=1", head="hsoftmax")

    def check_refused(self, module: ModuleType, line: Sequence[object], what: str, named: str) -> None:
        """The command refuses the file, every line on stderr names it, and no code runs."""
        ended = call_in_child(module, *line)
        self.tally.check(not self.take_marker(), f"{what}: CODE HAS RUN")
        is_named = all(named in line for line in ended.err.splitlines())
        self.tally.check(ended.is_user_error() and is_named, f"{what}: {ended.summary()}")

    def take_marker(self) -> bool:
        """Whether the marker exists; it is removed."""
        exists = self.marker.exists()
        self.marker.rmdir() if self.marker.is_dir() else self.marker.unlink(missing_ok=True)
        return exists

    def copy_model(self, name: str, content: bytes) -> None:
        """Copy the model with one other file."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.whole, self.copy)
        (self.copy / name).write_bytes(content)

    def check_recognize(self, what: str, named: str) -> None:
        """Decoding with the copy of the model is refused."""
        line = ["--model_dir", self.copy, "--test_data", self.corpus.cv_data, "--result_dir", self.folder / "result"]
        self.check_refused(recognize_command, [*line, "--modes", "ctc_greedy_search", "--device", "cpu"], what, named)

    def check_train(self, model_dir: Path, what: str, named: str, *more: object) -> None:
        """Training, or its continuation, with the head of the model is refused."""
        overrides = ("max_epoch=1", "head=hsoftmax", f"head_conf.tree={self.tree}")
        self.check_refused(train_command, [*self.corpus.arguments(model_dir, *overrides), *more], what, named)

    def try_pickle(self, name: str, content: bytes, place: str) -> bool:
        """Open a pickle as a file of the model. Returns whether it runs code when loaded with pickle.load."""
        plain = content
        if content[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                plain = archive.read("archive/data.pkl")

        def load_unsafely() -> None:
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            pickle.loads(plain)
            os._exit(0)

        run_child(load_unsafely)
        is_working, what = self.take_marker(), f"pickle {name} as {place}"
        if place == "final.pt":
            self.copy_model(place, content)
            self.check_recognize(what, place)
            self.check_train(self.folder / "tuned", what, place, "--checkpoint", self.copy / place)
            return is_working
        newest = list_checkpoints(self.whole / "checkpoints")[-1]
        shutil.rmtree(self.copy, ignore_errors=True)
        cut_back(self.whole, self.copy, step_of(newest))
        save_checkpoint(self.copy / "checkpoints", step_of(newest), {**read_checkpoint(newest), place: content})
        self.check_train(self.copy, what, newest.name)
        if place == "model.pt":
            self.check_refused(average_command, ["--model_dir", self.copy, "--num", 1, "--by", "last"], what, "step-")
        return is_working

    def try_yaml(self, name: str, content: bytes) -> None:
        """A YAML file as the config of a training, and as the train.yaml of a model."""
        config = self.folder / "hostile.yaml"
        config.write_bytes(content)
        self.check_train(self.folder / "never", f"YAML {name} as config", config.name, "--config", config)
        self.copy_model("train.yaml", content)
        self.check_recognize(f"YAML {name} as train.yaml", "train.yaml")

    def try_array(self, name: str, content: bytes, place: str) -> None:
        """A NumPy file as embeddings, in an archive of embeddings, or as paths of the original tree."""
        out, original = ("--units", self.units, "--out", self.folder / "tree.json"), self.folder / "original"
        vectors = self.folder / ("vectors.npy" if place == "embeddings" else "vectors.npz")
        line = ["build", "--kind", "embedding", "--data_list", self.corpus.train_data, "--embeddings", vectors, *out]
        named = vectors.name
        if place == "embeddings":
            vectors.write_bytes(content)
        elif place == "an archive":
            with zipfile.ZipFile(vectors, "w") as archive:
                for member in ("units.npy", "vectors.npy"):
                    archive.writestr(member, content)
        else:
            write_original_tree(Tree.load(self.tree), original)
            line, named = ["import", "--original", original, *out], next(iter(PATHS))
            (original / named).write_bytes(content)
        self.check_refused(tree_command, line, f"NumPy {name} as {place}", named)


# ---- pickles


def make_calls(marker: Path) -> list[tuple[str, str, tuple[object, ...]]]:
    """(module, function, arguments) that create the marker."""
    path = str(marker)
    code, shell = f"open({path!r}, 'w').close()", f"touch {path}"
    return [
        *((module, "system", (shell,)) for module in ("os", "posix")),
        *(("os", "mkdir", (path,)), ("os", "popen", (shell,)), ("subprocess", "call", (["touch", path],))),
        *(("builtins", name, (code,)) for name in ("exec", "eval")),
        *((module, "open", (path, "w")) for module in ("builtins", "io", "codecs")),
        *(("pathlib", "Path.touch", (marker,)), ("timeit", "timeit", (code,)), ("cProfile", "run", (code,))),
        *(("shutil", "copyfile", ("/dev/null", path)), ("logging", "FileHandler", (path,))),
        *(("numpy", "save", (path, 0)), ("torch", "save", (0, path)), ("torch.utils.collect_env", "run", (shell,))),
    ]


def make_pickles(module: str, function: str, arguments: tuple[object, ...]) -> Iterator[tuple[str, bytes]]:
    """Pickles that make a call with each opcode that can."""
    name = f"{module}.{function}"
    pushed = b"(" + b"".join(pickle.dumps(value, protocol=2)[2:-1] for value in arguments)
    called = f"{module}\n{function}\n".encode()
    stacked = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, function)) + b"\x93"
    if "." not in function:  # opcodes of the first protocols find no attribute of a class
        yield f"{name} by GLOBAL and REDUCE", b"c" + called + pushed + b"tR."
        yield f"{name} by INST", pushed + b"i" + called + b"."
        yield f"{name} by OBJ", b"(c" + called + pushed[1:] + b"o."
        yield f"{name} as a value in a dict", b"\x80\x02}X\x01\x00\x00\x00wc" + called + pushed + b"tRs."
        yield f"{name} with its result as a state", b"\x80\x02}c" + called + pushed + b"tRb."
    yield f"{name} by STACK_GLOBAL", b"\x80\x04" + stacked + pushed + b"tR."
    if name == "logging.FileHandler":
        yield f"{name} by NEWOBJ_EX", b"\x80\x04" + stacked + pushed + b"t}\x92."


ODD_PICKLES = {
    "persistent id": b"P../../etc/passwd\n.",
    "extension code": b"\x80\x02\x82\x01.",
    "lists in lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a text of 8 EB": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0fx.",
    "a memo index of 4 billion": b"\x80\x02Nr\xff\xff\xff\xff.",
    "an integer of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "no end": b"\x80\x02}",
}
"""Pickles that break a reader in other ways."""


def choose_pickles(marker: Path, number: int, tally: Tally) -> Iterator[tuple[str, bytes, str]]:
    """(name, content, place): one of ten is odd; plain and zipped as by `torch.save`, and all places, alternate."""
    calling = [made for arguments in make_calls(marker) for made in make_pickles(*arguments)]
    tally.generator.shuffle(calling)
    odd = list(ODD_PICKLES.items())[: number // 10]
    places = ("final.pt", "model.pt", "optimizer.pt", "rng.pt")
    for index, (name, content) in enumerate([*odd, *calling][:number]):
        if index // len(places) % 2 == 0:
            yield name, content, places[index % len(places)]
            continue
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, data in (("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n")):
                archive.writestr(f"archive/{member}", data)
        yield f"{name} (zip)", buffer.getvalue(), places[index % len(places)]


# ---- YAML and NumPy

ODD_YAMLS = {
    "a billion laughs": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "merged maps": "a0: &a0 {k: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 30)),
    "a section in itself": "encoder_conf: &a {num_blocks: *a}\n",
    "an unknown alias": "a: *nowhere\n",
    "a key twice": "max_epoch: 1\nmax_epoch: 2\n",
    "ten thousand brackets": "a: " + "[" * 10_000,
    "deep indentation": "".join(" " * n + f"k{n}:\n" for n in range(300)),
    "an integer of 100,000 digits": "max_epoch: " + "9" * 100_000 + "\n",
    "two documents": "max_epoch: 1\n---\nmax_epoch: 2\n",
    "a list as a key": "? [a, b]\n: 1\n",
    "nothing": "",
    "NUL bytes": "a: \x00\n",
}
"""Files that explode, contradict themselves, or are no config."""


def choose_yamls(marker: Path, number: int) -> Iterator[tuple[str, bytes]]:
    """(name, content)."""
    command, code = f"touch {marker}", f"\"open('{marker}','w')\""
    tags = [
        *(f"!!python/object/{kind}:os.system ['{command}']" for kind in ("apply", "new")),
        f"!!python/object/apply:os.mkdir ['{marker}']",
        *(f"!!python/object/apply:builtins.{name} [{code}]" for name in ("exec", "eval")),
        f"!!python/object/new:type {{args: [x, !!python/tuple [], {{}}], state: '{command}'}}",
        *("!!python/name:os.system", "!!python/module:os", "!!python/object:pathlib.Path {}", "!!python/tuple [1, 2]"),
        *("!!python/bytes aGFsbG8=", "!!binary aGFsbG8=", "!!set {a, b}", "!!omap [a: 1]", "!ruby/object:Gem {}"),
        f"!<tag:yaml.org,2002:python/object/apply:os.system> ['{command}']",
    ]
    odd = {name: text.encode() for name, text in ODD_YAMLS.items()}
    odd |= {"not UTF-8": b"a: \xff\xfe\n", "UTF-16": "max_epoch: 1\n".encode("utf-16")}
    tagged = [(f"tag {tag[:40]}", f"{place}{tag}\n".encode()) for tag in tags for place in ("encoder: ", "")]
    keys = [(f"tag as a key {tag[:40]}", f"? {tag}\n: 1\n".encode()) for tag in tags[:3]]
    return islice(cycle([*odd.items(), *tagged, *keys]), number)


def make_arrays(marker: Path) -> Iterator[tuple[str, bytes]]:
    """NumPy files with objects, whose pickle creates a folder, and with false headers."""
    code = f"__import__('os').mkdir({str(marker)!r})"
    (pickled,) = [content for name, content in make_pickles("os", "mkdir", (str(marker),)) if "REDUCE" in name]
    for dtype, shape, content in (
        *(("'|O'", shape, pickled) for shape in ("(8, 4)", "(8,)", "()")),
        *(("'<f8'", shape, bytes(256)) for shape in ("(1000000000000, 1000000)", "(-1, 4)", code, "(" * 5000)),
        ("[('a', 'O'), ('b', '<f8')]", "(8,)", bytes(256)),
    ):
        header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".encode() + b" " * 20 + b"\n"
        what = f"of {dtype} and shape {shape[:30]}"
        yield what, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


# ---- source

SCANNED = ("wenet_hs", "examples", "tools")
RULES = "S102,S301,S302,S307,S506,S602,S604,S605"
"""ruff's rules (flake8-bandit) for exec, pickles, marshal, eval, YAML loaders and shells."""
_UNSAFE = re.compile(
    r"^\s*(import|from) (c?_?pickle|dill|cloudpickle|joblib|shelve|marshal)\b"
    r"|allow_pickle\s*=\s*(?!False)|weights_only\s*=\s*(?!True)|\bnp\.load\((?!.*allow_pickle=False)"
)
_UNSAFE_SHELL = re.compile(r"(^|[;&|(]\s*)\s*(eval|source /dev/stdin)\s|\|\s*(ba)?sh\b")


def scan_sources(root: Path = ROOT) -> tuple[int, list[str]]:
    """(number of source files, places that could run code that came with data)."""
    folders = [root / name for name in SCANNED if (root / name).is_dir()]
    line = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", RULES]
    line += ["--output-format", "concise", *map(str, folders)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(str(root))]
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".sh")]
    for path in paths:
        pattern = _UNSAFE if path.suffix == ".py" else _UNSAFE_SHELL
        lines = enumerate(path.read_text("utf-8").splitlines(), start=1)
        found += [f"{path}:{n}: {text.strip()}" for n, text in lines if pattern.search(text.partition("#")[0])]
    return len(paths), found
