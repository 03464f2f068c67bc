# SPDX-License-Identifier: Apache-2.0
"""Hostile files: pickles, YAML and NumPy files that would create a marker file if any code in them
ran.
"""

import io
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType

from harness import Tally, call_in_child, run_child
from tiny_corpus import cut_back, read_checkpoint, write_tiny_corpus

from wenet_hs.bin import average as average_command
from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import train as train_command
from wenet_hs.bin import tree as tree_command
from wenet_hs.model.checkpoint import list_checkpoints, save_checkpoint, step_of

ROOT = Path(__file__).resolve().parents[2]


def hostile_files(
    folder: Path, tally: Tally, pickles: int, yamls: int = 50, arrays: int = 20
) -> str:
    """Loading a model, a config or an array never runs code.

    Pickles are tried as final.pt and as each file of a checkpoint, YAML files as config and
    train.yaml, NumPy files as embeddings. `pickle.loads` in another process shows how many pickles
    work. The source has no way to read a pickle.
    """
    bed = TestBed(folder, tally)
    num_working = sum(
        bed.try_pickle(*chosen) for chosen in choose_pickles(bed.marker, pickles, tally)
    )
    for tag, content in islice(cycle(make_yamls(bed.marker)), yamls):
        bed.try_yaml(tag, content)
    for name, content in islice(cycle(make_arrays(bed.marker)), arrays):
        bed.try_array(name, content)
    num_run = sum("CODE HAS RUN" in violation for violation in tally.violations)
    num_sources, found = scan_sources()
    tally.check(not found, f"ways to read a pickle: {found}")
    return (
        f"{pickles} pickles ({num_working} of them run code where a pickle is loaded), {yamls} YAML files, {arrays} "
        f"NumPy files | code run by the commands {num_run}/{pickles + yamls + arrays} | {num_sources} source files "
        "without a way to read a pickle"
    )


class TestBed:
    """A trained model and its corpus."""

    __test__ = False

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally = folder, tally
        self.marker, self.copy = folder / "marker", folder / "hostile"
        self.corpus = write_tiny_corpus(folder / "corpus")
        self.whole = self.corpus.train(folder / "whole", "max_epoch=1", head="hsoftmax")

    def check_refused(
        self, module: ModuleType, line: Sequence[object], what: str, named: str
    ) -> None:
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

    def check_recognize(self, name: str, content: bytes, what: str) -> None:
        """Decoding with a copy of the model in which one file is another is refused."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.whole, self.copy)
        (self.copy / name).write_bytes(content)
        line = [
            "--model_dir",
            self.copy,
            "--test_data",
            self.corpus.cv_data,
            "--result_dir",
            self.folder / "result",
        ]
        self.check_refused(
            recognize_command,
            [*line, "--modes", "ctc_greedy_search", "--device", "cpu"],
            what,
            name,
        )

    def check_train(self, model_dir: Path, what: str, named: str, *more: object) -> None:
        """Training, or its continuation, with the head of the model is refused."""
        overrides = (
            "max_epoch=1",
            "head=hsoftmax",
            f"head_conf.tree={self.corpus.folder}/tree.json",
        )
        self.check_refused(
            train_command, [*self.corpus.arguments(model_dir, *overrides), *more], what, named
        )

    def try_pickle(self, name: str, plain: bytes, content: bytes, place: str) -> bool:
        """Open a pickle as a file of the model.

        Returns whether it runs code when loaded with pickle.load.
        """

        def load_unsafely() -> None:
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            pickle.loads(plain)

        run_child(load_unsafely)
        is_working, what = self.take_marker(), f"pickle {name} as {place}"
        if place == "final.pt":
            self.check_recognize(place, content, what)
            self.check_train(self.folder / "tuned", what, place, "--checkpoint", self.copy / place)
            return is_working
        newest = list_checkpoints(self.whole / "checkpoints")[-1]
        shutil.rmtree(self.copy, ignore_errors=True)
        cut_back(self.whole, self.copy, step_of(newest))
        save_checkpoint(
            self.copy / "checkpoints", step_of(newest), {**read_checkpoint(newest), place: content}
        )
        self.check_train(self.copy, what, newest.name)
        if place == "model.pt":
            self.check_refused(
                average_command,
                ["--model_dir", self.copy, "--num", 1, "--by", "last"],
                what,
                "step-",
            )
        return is_working

    def try_yaml(self, tag: str, content: bytes) -> None:
        """A YAML file as the config of a training, and as the train.yaml of a model."""
        config = self.folder / "hostile.yaml"
        config.write_bytes(content)
        self.check_train(
            self.folder / "never", f"YAML {tag} as config", config.name, "--config", config
        )
        self.check_recognize("train.yaml", content, f"YAML {tag} as train.yaml")

    def try_array(self, name: str, content: bytes) -> None:
        """A NumPy file as the embeddings of a tree."""
        path = self.folder / "vectors.npy"
        path.write_bytes(content)
        line = [
            "build",
            "--kind",
            "embedding",
            "--data_list",
            self.corpus.train_data,
            "--embeddings",
            path,
        ]
        line += ["--units", self.corpus.folder / "units.txt", "--out", self.folder / "tree.json"]
        self.check_refused(tree_command, line, f"NumPy {name}", path.name)


def make_calls(marker: Path) -> list[tuple[str, str, tuple[object, ...]]]:
    """(module, function, arguments) that create the marker."""
    path = str(marker)
    code, shell = f"open({path!r}, 'w').close()", f"touch {path}"
    return [
        *(
            ("posix", "system", (shell,)),
            ("os", "mkdir", (path,)),
            ("subprocess", "call", (["touch", path],)),
        ),
        *(
            ("builtins", "exec", (code,)),
            ("io", "open", (path, "w")),
            ("pathlib", "Path.touch", (marker,)),
        ),
        *(("timeit", "timeit", (code,)), ("logging", "FileHandler", (path,))),
        *(
            ("numpy", "save", (path, 0)),
            ("torch", "save", (0, path)),
            ("torch.utils.collect_env", "run", (shell,)),
        ),
    ]


def make_pickles(
    module: str, function: str, arguments: tuple[object, ...]
) -> Iterator[tuple[str, bytes]]:
    """Pickles that make a call with each opcode that can."""
    name = f"{module}.{function}"
    pushed = b"(" + b"".join(pickle.dumps(value, protocol=2)[2:-1] for value in arguments)
    called = f"{module}\n{function}\n".encode()
    stacked = (
        b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, function))
        + b"\x93"
    )
    if "." not in function:  # opcodes of the first protocols find no attribute of a class
        yield f"{name} by GLOBAL and REDUCE", b"c" + called + pushed + b"tR."
        yield f"{name} by INST", pushed + b"i" + called + b"."
        yield f"{name} by OBJ", b"(c" + called + pushed[1:] + b"o."
        yield f"{name} with its result as a state", b"\x80\x02}c" + called + pushed + b"tRb."
    yield f"{name} by STACK_GLOBAL", b"\x80\x04" + stacked + pushed + b"tR."
    if name == "logging.FileHandler":
        yield f"{name} by NEWOBJ_EX", b"\x80\x04" + stacked + pushed + b"t}\x92."


def choose_pickles(
    marker: Path, number: int, tally: Tally
) -> Iterator[tuple[str, bytes, bytes, str]]:
    """(name, pickle, content, place): plain and zipped as by `torch.save`, and all places,
    alternate.
    """
    made = [pickled for arguments in make_calls(marker) for pickled in make_pickles(*arguments)]
    tally.generator.shuffle(made)
    places = ("final.pt", "model.pt", "optimizer.pt", "rng.pt")
    for index, (name, plain) in enumerate(islice(cycle(made), number)):
        buffer, is_zipped = io.BytesIO(), index // len(places) % 2 == 1
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, data in (
                ("data.pkl", plain),
                ("byteorder", b"little"),
                ("version", b"3\n"),
            ):
                archive.writestr(f"archive/{member}", data)
        content = buffer.getvalue() if is_zipped else plain
        yield f"{name}{' (zip)' if is_zipped else ''}", plain, content, places[index % len(places)]


def make_yamls(marker: Path) -> Iterator[tuple[str, bytes]]:
    """(tag, content): each tag as a value, as the whole file and as a key."""
    command, code = f"touch {marker}", f"\"open('{marker}','w')\""
    tags = (
        *(f"!!python/object/{kind}:os.system ['{command}']" for kind in ("apply", "new")),
        *(f"!!python/object/apply:builtins.{name} [{code}]" for name in ("exec", "eval")),
        f"!!python/object/new:type {{args: [x, !!python/tuple [], {{}}], state: '{command}'}}",
        *(
            "!!python/name:os.system",
            "!!python/module:os",
            "!!python/object:pathlib.Path {}",
            "!!python/tuple [1, 2]",
        ),
        f"!<tag:yaml.org,2002:python/object/apply:os.system> ['{command}']",
    )
    for tag in tags:
        for content in (f"encoder: {tag}\n", f"{tag}\n", f"? {tag}\n: 1\n"):
            yield tag[:40], content.encode()


def make_arrays(marker: Path) -> Iterator[tuple[str, bytes]]:
    """NumPy files with objects, whose pickle creates a folder, and with false headers."""
    code = f"__import__('os').mkdir({str(marker)!r})"
    pickled = dict(make_pickles("os", "mkdir", (str(marker),)))["os.mkdir by GLOBAL and REDUCE"]
    for dtype, shape, content in (
        *(("'|O'", shape, pickled) for shape in ("(8, 4)", "(8,)", "()")),
        *(
            ("'<f8'", shape, bytes(256))
            for shape in ("(1000000000000, 1000000)", "(-1, 4)", code, "(" * 5000)
        ),
        ("[('a', 'O'), ('b', '<f8')]", "(8,)", bytes(256)),
    ):
        header = (
            f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".encode()
            + b" " * 20
            + b"\n"
        )
        what = f"of {dtype} and shape {shape[:30]}"
        yield what, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


# ---- source

_UNSAFE = re.compile(
    r"^\s*(import|from) (c?_?pickle|dill|cloudpickle|joblib|shelve|marshal)\b"
    r"|allow_pickle\s*=\s*(?!False)|weights_only\s*=\s*(?!True)|\bnp\.load\((?!.*allow_pickle=False)"
)


def scan_sources(root: Path = ROOT) -> tuple[int, list[str]]:
    """(number of source files, lines that may read a pickle).

    Ruff's rules S… refuse other ways to run code.
    """
    paths = [
        path
        for name in ("wenet_hs", "examples", "tools")
        for path in sorted((root / name).rglob("*.py"))
    ]
    lines = [
        (f"{path}:{n}", text)
        for path in paths
        for n, text in enumerate(path.read_text("utf-8").splitlines(), 1)
    ]
    return len(paths), [
        f"{place}: {text}" for place, text in lines if _UNSAFE.search(text.partition("#")[0])
    ]
