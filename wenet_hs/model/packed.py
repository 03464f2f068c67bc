# SPDX-License-Identifier: Apache-2.0
"""Packed models of others: finds, unpacks or downloads the folder that a path, a ZIP or
`hf://user/name` names.

Reading one runs no code: from a ZIP or the hub only `MODEL_FILES` are taken, and the weights are no
pickle.
"""

import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import ModuleType
from zipfile import BadZipFile, ZipFile, ZipInfo

from wenet_hs.tree.atomic import fsync_path
from wenet_hs.tree.errors import CheckpointError, ConfigError, list_names, one_line

WEIGHTS = "model.safetensors"
MODEL_FILES = (
    *(
        "train.yaml",
        WEIGHTS,
        "units.txt",
        "tree.json",
        "ctc_tree.json",
        "bpe.model",
        "global_cmvn",
        "encoder.json",
    ),
    *("run.json", "README.md", "LICENSE"),
)
"""All files that a packed model may have."""
MAX_BYTES, MAX_RATIO, MAX_ENTRIES = 20 * 10**9, 100, 1000
"""Limits of a ZIP: its unpacked size, that divided by the size of the ZIP, the number of its
entries.
"""
MAX_SMALL_BYTES = 100 * 10**6
"""Limit of each file of a packed model except the weights. It is read as a whole."""
_UNPACKING, _LEFTOVER_S = ".unpack-", 86400
_HUB = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@(.+))?")  # `Path` makes one slash of two
_PACK_AGAIN = "ask for a model that `wenet-hs pack` wrote"


def resolve_model(reference: Path | str) -> Path:
    """The file or folder that a --model_dir or --checkpoint names.

    A ZIP is unpacked into the cache ($XDG_CACHE_HOME/wenet_hs, else ~/.cache/wenet_hs), once for
    all processes. `hf://user/name[@revision]` is downloaded into the cache of huggingface_hub. Any
    other path is returned as it is.

    Raises CheckpointError for a ZIP or download that is no packed model or fails, ConfigError
        without huggingface_hub.
    """
    if str(reference).startswith("hf:"):
        return _download(str(reference))
    path = Path(reference)
    return _unpack(path) if path.suffix.lower() == ".zip" and path.is_file() else path


def split_hub_name(reference: str) -> tuple[str, str | None]:
    """`hf://user/name@revision` → user/name and the revision.

    Raises ConfigError for another form.
    """
    found = _HUB.fullmatch(reference)
    if found is None:
        raise ConfigError(
            reference,
            "names no model of the hub",
            "write hf://user/name or hf://user/name@revision",
        )
    return found[1], found[2]


@contextmanager
def open_hub(reference: str, work: str) -> Iterator[ModuleType]:
    """The module huggingface_hub.

    Its errors become a CheckpointError; raises ConfigError if it is not installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        to_do = "run pip install '.[pretrained]' in the folder of wenet_hs"
        raise ConfigError(reference, "huggingface_hub is not installed", to_do) from error
    try:
        yield huggingface_hub
    except (
        Exception
    ) as error:  # no network, no such model or revision, no right to it: of several libraries
        to_do = "check the name, the network, and for a private model `hf auth login`"
        raise CheckpointError(reference, f"cannot be {work} ({one_line(error)})", to_do) from error


def _download(reference: str) -> Path:
    name, revision = split_hub_name(reference)
    reference = (
        reference.replace("hf:/", "hf://", 1) if not reference.startswith("hf://") else reference
    )
    with open_hub(reference, "downloaded") as hub:
        folder = Path(
            hub.snapshot_download(name, revision=revision, allow_patterns=list(MODEL_FILES))
        )
    if absent := [file for file in ("train.yaml", WEIGHTS) if not (folder / file).is_file()]:
        raise CheckpointError(reference, f"contains no {absent[0]}", _PACK_AGAIN)
    for path in folder.iterdir():
        if path.name != WEIGHTS and path.stat().st_size > MAX_SMALL_BYTES:
            raise CheckpointError(
                reference, f"{path.name} has more than {MAX_SMALL_BYTES / 1e6:g} MB", _PACK_AGAIN
            )
    return folder


def unpacked_models() -> Path:
    """The cache: the folder of the unpacked ZIPs."""
    home = os.path.expanduser("~/.cache")  # noqa: PTH111  # Path raises an error where there is no home folder
    return Path(os.environ.get("XDG_CACHE_HOME") or home) / "wenet_hs"


def is_packed(path: Path) -> bool:
    """Whether a folder or a ZIP is a packed model, by the names of its files."""
    if path.is_dir():
        return all((path / name).is_file() for name in ("train.yaml", WEIGHTS))
    try:
        with path.open("rb") as file, ZipFile(file) as zipped:
            return bool(_check_entries(path, zipped.infolist(), os.fstat(file.fileno()).st_size))
    except (OSError, BadZipFile, CheckpointError):
        return False


def _unpack(archive: Path) -> Path:
    """The folder in the cache with the files of a ZIP; it has the name of its SHA-256."""
    cache = unpacked_models()
    if cache.parts[0] == "~":
        raise ConfigError("XDG_CACHE_HOME", "is not set, and there is no home folder", "set it")
    try:
        # Opened once: another file may get this name at any time.
        with archive.open("rb") as source, ZipFile(source) as zipped:
            entries = _check_entries(archive, zipped.infolist(), os.fstat(source.fileno()).st_size)
            source.seek(0)
            target = cache / hashlib.file_digest(source, "sha256").hexdigest()
            was_there = target.is_dir()
            if all((target / name).is_file() for name in entries):
                return target
            if was_there:  # otherwise another process may write it now
                shutil.rmtree(target, ignore_errors=True)
            cache.mkdir(parents=True, exist_ok=True)
            _delete_leftovers(cache)
            _extract(zipped, entries, target)
    except OSError as error:
        error.filename = error.filename or str(cache)
        raise
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # a damaged or hostile file may raise anything: zip, zlib, struct, encoding …
        raise CheckpointError(
            archive, f"not a readable ZIP ({one_line(error)})", "copy it again"
        ) from error
    return target


def _extract(zipped: ZipFile, entries: Mapping[str, ZipInfo], target: Path) -> None:
    """Write the entries by name into the folder `target`, which appears when it is complete."""
    with TemporaryDirectory(dir=target.parent, prefix=_UNPACKING) as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        for name, entry in entries.items():  # never longer than the size that was checked
            with zipped.open(entry) as content, (folder / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
        for path in (*folder.iterdir(), folder):
            fsync_path(path)
        try:
            folder.rename(target)
            fsync_path(target.parent)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise


def _delete_leftovers(cache: Path) -> None:
    """Delete what a process that was killed while it unpacked has left."""
    for folder in cache.glob(f"{_UNPACKING}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(folder)


def _is_outside(path: PurePosixPath) -> bool:
    """Whether an entry of a ZIP would be written outside of its folder, on any system."""
    has_drive = re.match(r"\w:", str(path)) is not None
    return path.is_absolute() or ".." in path.parts or has_drive


def _check_entries(archive: Path, infos: Sequence[ZipInfo], size: int) -> dict[str, ZipInfo]:
    """File of the model → its entry.

    Raises CheckpointError if the ZIP is no packed model or is not safe to unpack.

    `size`: of the ZIP, in bytes.
    """
    # Some programs of Windows write `\` between the names.
    paths = [PurePosixPath(info.filename.replace("\\", "/")) for info in infos]
    outside = [path for path in paths if _is_outside(path)]
    kinds = {stat.S_IFMT(info.external_attr >> 16) for info in infos}
    total = sum(info.file_size for info in infos)
    configs = [path for path in paths if path.name == "train.yaml"]
    root, limits = (
        [*configs, PurePosixPath()][0].parent,
        f"{MAX_BYTES / 1e9:g} GB and {MAX_RATIO} times its size",
    )
    named = {
        path.name: info for path, info in zip(paths, infos, strict=True) if path.parent == root
    }
    large = [
        name for name, info in named.items() if name != WEIGHTS and info.file_size > MAX_SMALL_BYTES
    ]
    faults = {
        f"has entries outside of its folder ({', '.join(map(repr, map(str, outside[:3])))})": bool(
            outside
        ),
        "has links or devices": not kinds <= {0, stat.S_IFREG, stat.S_IFDIR},
        f"has {len(infos):,} entries, at most {MAX_ENTRIES:,} are read": len(infos) > MAX_ENTRIES,
        f"unpacks to {total / 1e6:,.1f} MB, at most {limits} are read": total
        > min(MAX_BYTES, MAX_RATIO * size),
        f"has more than {MAX_SMALL_BYTES / 1e6:g} MB of {list_names(large)}": bool(large),
        "has two entries of one name": len({*paths}) < len(paths),
        f"has {len(configs)} train.yaml, not one in at most one folder": [
            len(one.parts) < 3 for one in configs
        ]
        != [1],
        f"contains no {WEIGHTS} beside train.yaml": WEIGHTS not in named,
    }
    for fault in (text for text, is_found in faults.items() if is_found):
        raise CheckpointError(archive, fault, _PACK_AGAIN)
    return {name: named[name] for name in MODEL_FILES if name in named}
