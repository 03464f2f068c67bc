# SPDX-License-Identifier: Apache-2.0
"""Packed models of others: the folder that a path, a ZIP or `hf://user/name` names.

A ZIP is checked and unpacked, a model of the hub is downloaded. Reading one runs no code: only
`MODEL_FILES` are taken from it, and the weights are no pickle.
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
    "train.yaml",
    WEIGHTS,
    "units.txt",
    "tree.json",
    "ctc_tree.json",
    "bpe.model",
    "global_cmvn",
    "encoder.json",
    "run.json",
    "README.md",
    "LICENSE",
)
"""All files that a packed model may have."""
MAX_BYTES = 20 * 10**9
"""Limit of the unpacked size of a ZIP."""
MAX_RATIO = 100
"""Limit of the unpacked size of a ZIP, divided by its own size."""
MAX_ENTRIES = 1000
"""Limit of the number of entries of a ZIP."""
MAX_SMALL_BYTES = 100 * 10**6
"""Limit of each file of a packed model except the weights. It is read as a whole."""
_UNPACKING = ".unpack-"
"""Begin of the name of a folder that is being written in the cache."""
_LEFTOVER_S = 86400
"""Age in seconds after which such a folder is taken for that of a process that was killed."""
_HUB = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@(.+))?")
"""A name of the hub; `Path` makes one slash of two."""
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
    if path.suffix.lower() == ".zip" and path.is_file():
        return _unpack(path)
    return path


# ---- the hub


def split_hub_name(reference: str) -> tuple[str, str | None]:
    """`hf://user/name@revision` → user/name and the revision, or None without a revision.

    Raises ConfigError for another form.
    """
    match = _HUB.fullmatch(reference)
    if match is None:
        to_do = "write hf://user/name or hf://user/name@revision"
        raise ConfigError(reference, "names no model of the hub", to_do)
    return match[1], match[2]


@contextmanager
def open_hub(reference: str, work: str) -> Iterator[ModuleType]:
    """The module huggingface_hub, for a block that uses it.

    Args:
        reference: the model, for error messages.
        work: what the block does to the model, for error messages: "downloaded".

    Every error in the block becomes a CheckpointError. Raises ConfigError if the module is not
    installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        to_do = "run pip install '.[pretrained]' in the folder of wenet_hs"
        raise ConfigError(reference, "huggingface_hub is not installed", to_do) from error
    try:
        yield huggingface_hub
    except Exception as error:
        # Errors of several libraries: no network, no such model or revision, no right to it.
        to_do = "check the name, the network, and for a private model `hf auth login`"
        raise CheckpointError(reference, f"cannot be {work} ({one_line(error)})", to_do) from error


def _download(reference: str) -> Path:
    """The folder of a model of the hub, downloaded into the cache of huggingface_hub.

    Raises CheckpointError if it cannot be downloaded or is no packed model, ConfigError for a wrong
    name or without huggingface_hub.
    """
    name, revision = split_hub_name(reference)
    if not reference.startswith("hf://"):  # `Path` made one slash of two
        reference = reference.replace("hf:/", "hf://", 1)
    with open_hub(reference, "downloaded") as hub:
        folder = Path(
            hub.snapshot_download(name, revision=revision, allow_patterns=list(MODEL_FILES))
        )
    for file_name in ("train.yaml", WEIGHTS):
        if not (folder / file_name).is_file():
            raise CheckpointError(reference, f"contains no {file_name}", _PACK_AGAIN)
    for path in folder.iterdir():
        if path.name != WEIGHTS and path.stat().st_size > MAX_SMALL_BYTES:
            found = f"{path.name} has more than {MAX_SMALL_BYTES / 1e6:g} MB"
            raise CheckpointError(reference, found, _PACK_AGAIN)
    return folder


# ---- ZIPs


def unpacked_models() -> Path:
    """The cache: the folder of the unpacked ZIPs.

    It begins with `~` if XDG_CACHE_HOME is not set and there is no home folder.
    """
    # Path.expanduser would raise an error where there is no home folder.
    default = os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "wenet_hs"


def is_packed(path: Path) -> bool:
    """Whether a folder or a ZIP is a packed model, by the names of its files.

    False for a ZIP that is damaged, or is not safe to unpack, and for any other file.
    """
    if path.is_dir():
        return all((path / name).is_file() for name in ("train.yaml", WEIGHTS))
    try:
        with path.open("rb") as file, ZipFile(file) as zipped:
            return bool(_check_entries(path, zipped.infolist(), os.fstat(file.fileno()).st_size))
    except (OSError, BadZipFile, CheckpointError):
        return False


def _unpack(archive: Path) -> Path:
    """The folder in the cache with the files of a ZIP; its name is the SHA-256 of the ZIP.

    The ZIP is unpacked only if the folder lacks a file. Several processes may do this at once.

    Raises CheckpointError if the ZIP is damaged or no packed model, OSError with a file name if it
    cannot be read or the cache cannot be written, ConfigError without a folder for the cache.
    """
    cache = unpacked_models()
    if cache.parts[0] == "~":
        raise ConfigError("XDG_CACHE_HOME", "is not set, and there is no home folder", "set it")
    try:
        # Opened once: another file may get this name at any time.
        with archive.open("rb") as source, ZipFile(source) as zipped:
            entries = _check_entries(archive, zipped.infolist(), os.fstat(source.fileno()).st_size)
            source.seek(0)
            target = cache / hashlib.file_digest(source, "sha256").hexdigest()
            # Asked before the files are: another process may create the folder in between, and a
            # folder that was not there before must not be deleted.
            was_there = target.is_dir()
            if all((target / name).is_file() for name in entries):
                return target
            if was_there:  # it lacks a file
                shutil.rmtree(target, ignore_errors=True)
            cache.mkdir(parents=True, exist_ok=True)
            _delete_leftovers(cache)
            _extract(zipped, entries, target)
    except OSError as error:
        error.filename = error.filename or str(cache)
        raise
    except CheckpointError:
        raise
    except Exception as error:
        # A damaged or hostile file can raise anything: errors of zip, zlib, struct, encoding …
        found = f"not a readable ZIP ({one_line(error)})"
        raise CheckpointError(archive, found, "copy it again") from error
    return target


def _extract(zipped: ZipFile, entries: Mapping[str, ZipInfo], target: Path) -> None:
    """Writes the entries by name into the folder `target`, which appears when it is complete.

    If another process has created it in the meantime, that folder is kept.
    """
    with TemporaryDirectory(dir=target.parent, prefix=_UNPACKING) as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        for name, entry in entries.items():
            # zipfile reads no more than the size of the entry, which was checked.
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
    """Deletes the folders of processes that were killed while they unpacked, after a day.

    A folder that cannot be deleted is kept.
    """
    for folder in cache.glob(f"{_UNPACKING}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(folder)


def _check_entries(archive: Path, infos: Sequence[ZipInfo], size: int) -> dict[str, ZipInfo]:
    """The files of the model in a ZIP: name → its entry, for the names in MODEL_FILES.

    `size`: of the ZIP, in bytes.

    Raises CheckpointError if the ZIP is no packed model or is not safe to unpack.
    """
    # Some programs of Windows write `\` between the names.
    paths = [PurePosixPath(info.filename.replace("\\", "/")) for info in infos]
    entries = dict(zip(paths, infos, strict=True))
    fault = _find_danger(paths, infos, size) or _find_wrong_content(paths, entries)
    if fault is not None:
        raise CheckpointError(archive, fault, _PACK_AGAIN)
    beside_config = _entries_beside_config(entries)
    return {name: beside_config[name] for name in MODEL_FILES if name in beside_config}


def _find_danger(paths: Sequence[PurePosixPath], infos: Sequence[ZipInfo], size: int) -> str | None:
    """The first reason for which a ZIP is not safe to unpack; None if it is safe.

    `paths`: the names of the entries; `size`: of the ZIP, in bytes.
    """
    outside = [str(path) for path in paths if _is_outside(path)]
    if outside:
        return f"has entries outside of its folder ({', '.join(map(repr, outside[:3]))})"
    # The upper 16 bits have the kind of a file in Unix; 0: the program that wrote the ZIP did not
    # record it.
    kinds = {stat.S_IFMT(info.external_attr >> 16) for info in infos}
    if not kinds <= {0, stat.S_IFREG, stat.S_IFDIR}:
        return "has links or devices"
    if len(infos) > MAX_ENTRIES:
        return f"has {len(infos):,} entries, at most {MAX_ENTRIES:,} are read"
    num_bytes = sum(info.file_size for info in infos)
    if num_bytes > min(MAX_BYTES, MAX_RATIO * size):
        limits = f"{MAX_BYTES / 1e9:g} GB and {MAX_RATIO} times its size"
        return f"unpacks to {num_bytes / 1e6:,.1f} MB, at most {limits} are read"
    return None


def _is_outside(path: PurePosixPath) -> bool:
    """Whether an entry of a ZIP would be written outside of its folder, on any system."""
    has_drive = re.match(r"\w:", str(path)) is not None
    return path.is_absolute() or ".." in path.parts or has_drive


def _find_wrong_content(
    paths: Sequence[PurePosixPath], entries: Mapping[PurePosixPath, ZipInfo]
) -> str | None:
    """The first reason for which a ZIP is no packed model; None if it is one.

    A packed model has one train.yaml, at the top or in one folder, and the weights beside it. Its
    other files are small.
    """
    beside_config = _entries_beside_config(entries)
    large = []
    for name, info in beside_config.items():
        if name != WEIGHTS and info.file_size > MAX_SMALL_BYTES:
            large.append(name)
    if large:
        return f"has more than {MAX_SMALL_BYTES / 1e6:g} MB of {list_names(large)}"
    has_repeated_path = len(entries) < len(paths)
    if has_repeated_path:
        return "has two entries of one name"
    configs = [path for path in paths if path.name == "train.yaml"]
    if len(configs) != 1 or len(configs[0].parts) > 2:
        return f"has {len(configs)} train.yaml, not one in at most one folder"
    if WEIGHTS not in beside_config:
        return f"contains no {WEIGHTS} beside train.yaml"
    return None


def _entries_beside_config(entries: Mapping[PurePosixPath, ZipInfo]) -> dict[str, ZipInfo]:
    """Name → entry, for the entries in the folder of the first train.yaml; without one, at the top."""
    configs = [path for path in entries if path.name == "train.yaml"]
    folder = configs[0].parent if configs else PurePosixPath()
    return {path.name: info for path, info in entries.items() if path.parent == folder}
