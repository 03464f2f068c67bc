# SPDX-License-Identifier: Apache-2.0
"""Hostile files: pickles, YAML and NumPy files that would leave a mark on the disk if any code in them ran."""

import io
import os
import pickle
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# ---- pickles


def calls(marker: Path) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """(module, function, arguments) that leave a mark."""
    path = str(marker)
    code = f"open({path!r}, 'w').close()"
    yield "os", "system", (f"touch {path}",)
    yield "posix", "system", (f"touch {path}",)
    yield "os", "mkdir", (path,)
    yield "os", "popen", (f"touch {path}",)
    yield "subprocess", "call", (["touch", path],)
    yield "subprocess", "check_output", (["touch", path],)
    yield "builtins", "exec", (code,)
    yield "builtins", "eval", (code,)
    yield "builtins", "open", (path, "w")
    yield "io", "open", (path, "w")
    yield "codecs", "open", (path, "w")
    yield "pathlib", "Path.touch", (marker,)
    yield "timeit", "timeit", (code,)
    yield "code", "InteractiveInterpreter.runcode", (None, code)
    yield "cProfile", "run", (code,)
    yield "tempfile", "NamedTemporaryFile", ("w", -1, None, None, None, marker.name, str(marker.parent), False)
    yield "shutil", "copyfile", ("/dev/null", path)
    yield "logging", "FileHandler", (path,)
    yield "numpy", "save", (path, 0)
    yield "torch", "save", (0, path)
    yield "torch.utils.collect_env", "run", (f"touch {path}",)
    yield "zipfile", "ZipFile", (path, "w")


def _plain(value: object) -> bytes:
    """The opcodes that push a value."""
    return pickle.dumps(value, protocol=2)[2:-1]


def by_opcode(module: str, function: str, arguments: tuple[object, ...]) -> Iterator[tuple[str, bytes]]:
    """Pickles that make the call in each way that pickle knows."""
    name = f"{module}.{function}"
    pushed, called = b"(" + b"".join(map(_plain, arguments)), f"{module}\n{function}\n".encode()
    stacked = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, function)) + b"\x93"
    new_ex = b"\x80\x04" + stacked + pushed + b"t}\x92."
    if "." not in function:  # opcodes of the first protocols find no attribute of a class
        yield f"{name} by GLOBAL and REDUCE", b"c" + called + pushed + b"tR."
        yield f"{name} by INST", pushed + b"i" + called + b"."
        yield f"{name} by OBJ", b"(c" + called + pushed[1:] + b"o."
        yield f"{name} as a value in a dict", b"\x80\x02}X\x01\x00\x00\x00wc" + called + pushed + b"tRs."
        yield f"{name} with its result as a state", b"\x80\x02}c" + called + pushed + b"tRb."
    yield f"{name} by STACK_GLOBAL", b"\x80\x04" + stacked + pushed + b"tR."
    yield (
        f"{name} in a frame",
        b"\x80\x04\x95" + (len(stacked + pushed) + 3).to_bytes(8, "little") + stacked + pushed + b"tR.",
    )
    if name in ("logging.FileHandler", "zipfile.ZipFile"):
        yield f"{name} by NEWOBJ_EX", new_ex


def in_zip(content: bytes) -> bytes:
    """The pickle as the data.pkl of what `torch.save` writes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def odd_pickles() -> Iterator[tuple[str, bytes]]:
    """Pickles that break a reader in other ways."""
    yield "persistent id", b"P../../etc/passwd\n."
    yield "extension code", b"\x80\x02\x82\x01."
    yield "nested a million times", b"(" * 1_000_000 + b"."
    yield "lists in lists", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    yield "a text of 8 EB", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0fx."
    yield "a memo index of 4 billion", b"\x80\x02Nr\xff\xff\xff\xff."
    yield "protocol 200", b"\x80\xc8N."
    yield "an integer of 2 GB", b"\x80\x02\x8b\xff\xff\xff\x7f\x01."
    yield "no end", b"\x80\x02}"
    yield "only an end", b"."


def chosen_pickles(marker: Path, number: int, seed: int) -> Iterator[tuple[str, bytes, str]]:
    """(name, content, place): at most a tenth is odd; plain and zipped, and all places, take turns."""
    calling = [made for call in calls(marker) for made in by_opcode(*call)]
    random.Random(seed).shuffle(calling)
    odd = list(odd_pickles())[: number // 10]
    places = ("final.pt", "model.pt", "optimizer.pt", "rng.pt")
    for index, (name, content) in enumerate([*odd, *calling][:number]):
        zipped = index // len(places) % 2 == 1
        yield f"{name}{' (zip)' if zipped else ''}", in_zip(content) if zipped else content, places[index % len(places)]


# ---- YAML


def chosen_yamls(marker: Path, number: int) -> Iterator[tuple[str, bytes]]:
    """(name, content)."""
    command = f"touch {marker}"
    tags = [
        f"!!python/object/apply:os.system ['{command}']",
        f"!!python/object/apply:subprocess.call [[touch, '{marker}']]",
        f"!!python/object/apply:os.mkdir ['{marker}']",
        f"!!python/object/new:os.system ['{command}']",
        f"!!python/object/apply:builtins.exec [\"open('{marker}','w')\"]",
        f"!!python/object/apply:builtins.eval [\"open('{marker}','w')\"]",
        f"!!python/object/apply:builtins.open ['{marker}', w]",
        f"!!python/object/new:type {{args: [x, !!python/tuple [], {{}}], state: '{command}'}}",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object:pathlib.Path {}",
        "!!python/tuple [1, 2]",
        "!!python/bytes aGFsbG8=",
        "!!python/complex 1j",
        f"!<tag:yaml.org,2002:python/object/apply:os.system> ['{command}']",
        "!!binary aGFsbG8=",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!ruby/object:Gem::Installer {}",
        "!!javax.script.ScriptEngineManager []",
    ]
    found = [(f"tag {tag[:40]}", f"{place}{tag}\n".encode()) for tag in tags for place in ("encoder: ", "")]
    found += [(f"tag as a key {tag[:40]}", f"? {tag}\n: 1\n".encode()) for tag in tags[:3]]
    chosen = [*odd_yamls(), *found]
    return iter((chosen * (1 + number // len(chosen)))[:number])


def odd_yamls() -> list[tuple[str, bytes]]:
    """Files that explode, contradict themselves, or are no text."""
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    merged = "a0: &a0 {k: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 30)
    )
    texts = {
        "a billion laughs": laughs,
        "merged maps": merged,
        "an alias of itself": "a: &a [*a]\n",
        "a section in itself": "encoder_conf: &a {num_blocks: *a}\n",
        "an unknown alias": "a: *nowhere\n",
        "a key twice": "max_epoch: 1\nmax_epoch: 2\n",
        "a key twice in a section": "optim_conf:\n  lr: 1\n  lr: 2\n",
        "a key twice in two spellings": "max_epoch: 1\n'max_epoch': 2\n",
        "ten thousand brackets": "a: " + "[" * 10_000,
        "ten thousand braces": "{a: " * 10_000,
        "deep indentation": "".join(" " * n + f"k{n}:\n" for n in range(300)),
        "an integer of 100,000 digits": "max_epoch: " + "9" * 100_000 + "\n",
        "two documents": "max_epoch: 1\n---\nmax_epoch: 2\n",
        "a directive": "%YAML 9.9\n---\nmax_epoch: 1\n",
        "a list as a key": "? [a, b]\n: 1\n",
        "a map as a key": "? {a: b}\n: 1\n",
        "a million keys": "".join(f"k{n}: 1\n" for n in range(20_000)),
        "a tab": "encoder_conf:\n\tnum_blocks: 1\n",
        "nothing": "",
        "a list": "- 1\n",
    }
    raw = {"NUL bytes": b"a: \x00\n", "not UTF-8": b"a: \xff\xfe\n", "UTF-16": "max_epoch: 1\n".encode("utf-16")}
    return [*((name, text.encode()) for name, text in texts.items()), *raw.items()]


# ---- NumPy


class Touch:
    """An object whose pickle makes a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """What an unpickler calls."""
        return os.mkdir, (str(self._marker),)


def object_arrays(marker: Path) -> Iterator[tuple[str, bytes]]:
    """NumPy files with objects, and with headers that lie."""
    for shape in ((8, 4), (8,), ()):
        array = np.full(shape, Touch(marker), dtype=object)
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=True)
        yield f"objects of shape {shape}", buffer.getvalue()
    for header in (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4)}",
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': __import__('os').mkdir({str(marker)!r})}}",
        "{'descr': [('a', 'O'), ('b', '<f8')], 'fortran_order': False, 'shape': (8,)}",
        "(" * 5000,
    ):
        padded = header.encode() + b" " * 20 + b"\n"
        yield f"header {header[:60]}", b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(256)
