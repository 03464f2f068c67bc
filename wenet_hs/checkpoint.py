# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as committed folders: either complete and verified by SHA-256, or not there.

A checkpoint is written into `.step-N.tmp/`, each file fsynced, the manifest of SHA-256 sums last; then the folder is
renamed to `step-N` and its parent fsynced. A process killed at any instant leaves the earlier checkpoints as they were.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wenet_hs.errors import CheckpointError
from wenet_hs.files import fsync_path

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_FORMAT = "wenet_hs.checkpoint/1"
_REPLACED = ".replaced"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of an optimizer step stands."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The optimizer step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The committed checkpoints in `folder`, oldest first; unfinished and damaged (`.bad`) ones are not among them."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.startswith("step-") and path.name[5:].isdecimal()]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def save_checkpoint(folder: Path, step: int, files: Mapping[str, bytes]) -> Path:
    """Commit `files` (name → content) as the checkpoint of `step`.

    Raises CheckpointError when it cannot be written (the disk is full, say); what was there before stays as it was.
    """
    target = checkpoint_path(folder, step)
    temporary = folder / f".{target.name}.tmp"
    replaced = folder / f".{target.name}{_REPLACED}"
    needed = sum(map(len, files.values()))
    with naming_full_disk(target, folder, needed):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _delete(temporary)
            if shutil.disk_usage(folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.mkdir()
            for name, content in files.items():
                _write_synced(temporary / name, content)
            _write_synced(temporary / MANIFEST, _manifest(files))
            fsync_path(temporary)
            if target.exists():
                _delete(replaced)
                target.rename(replaced)
            temporary.rename(target)
            fsync_path(folder)
            _delete(replaced)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _put_back(replaced, target)
            if error.errno in _NO_SPACE:
                raise
            raise CheckpointError(f"{target}: cannot be written ({error.strerror}); check the folder") from error
    return target


@contextmanager
def naming_full_disk(target: Path, checkpoints: Path, needed: int | None = None) -> Iterator[None]:
    """Turn the OSError of a full disk, a quota or a limit of file size into a CheckpointError of one line.

    Args:
        target: what is being written.
        checkpoints: the folder whose last good checkpoint the line names.
        needed: bytes to be written, where that is known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        free = shutil.disk_usage(next(path for path in (target, *target.parents) if path.exists())).free
        size = (
            f"free {free / 1e6:.1f} MB" if needed is None else f"need {needed / 1e6:.1f} MB, free {free / 1e6:.1f} MB"
        )
        good, _ = _newest_intact(checkpoints)
        last_good = f"last good checkpoint: {good.name}" if good else "no checkpoint was written before"
        raise CheckpointError(
            f"{target}: disk full while writing ({os.strerror(error.errno or 0)}; {size}); {last_good}; "
            "make room and run the same command again"
        ) from error


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _manifest(files: Mapping[str, bytes]) -> bytes:
    sums = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)} for name, content in files.items()
    }
    return json.dumps({"format": _FORMAT, "files": sums}, indent=1).encode()


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None if every file is there with the SHA-256 of the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        if manifest["format"] != _FORMAT:
            return f"{MANIFEST} is of format {manifest['format']!r}, expected {_FORMAT!r}"
        expected = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    except OSError as error:
        return f"{MANIFEST} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    for name, sha256 in expected.items():
        try:
            with (path / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found != sha256:
            return f"sha256 of {name} differs from the manifest"
    return None


def read_checkpoint(path: Path) -> dict[str, bytes]:
    """The files of a verified checkpoint. Raises CheckpointError if it is missing or damaged."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint folder; name one of {path.parent}/step-*")
    fault = damage(path)
    if fault is not None:
        raise CheckpointError(f"{path}: {fault}; use an earlier checkpoint")
    names = json.loads((path / MANIFEST).read_text("utf-8"))["files"]
    return {name: (path / name).read_bytes() for name in names}


def _newest_intact(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with its fault."""
    bad: list[tuple[Path, str]] = []
    for path in reversed(list_checkpoints(folder)):
        fault = damage(path)
        if fault is None:
            return path, bad
        bad.append((path, fault))
    return None, bad


def newest_good(folder: Path) -> Path | None:
    """The newest checkpoint that verifies, or None. Damaged newer ones are kept as `NAME.bad`, with a warning each."""
    good, bad = _newest_intact(folder)
    for path, fault in bad:
        older = f"using {good.name} ({step_of(path) - step_of(good)} steps older)" if good else "no older one is intact"
        logger.warning("checkpoint %s: %s; %s; kept as %s.bad", path, fault, older, path.name)
        _set_aside(path, ".bad")
    return good


def set_newer_aside(path: Path) -> None:
    """Rename the checkpoints newer than `path` to `NAME.old`: training goes on from here, and they are not its own."""
    for newer in list_checkpoints(path.parent):
        if step_of(newer) > step_of(path):
            logger.warning("checkpoint %s: newer than the one to go on from; kept as %s.old", newer, newer.name)
            _set_aside(newer, ".old")


def _set_aside(path: Path, suffix: str) -> None:
    aside = path.with_name(path.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def rotate(folder: Path, keep: set[Path]) -> None:
    """Delete the checkpoints outside `keep`, if the newest one verifies: it is the one to go on from, and the last
    proof that this disk still keeps what it is given."""
    paths = list_checkpoints(folder)
    fault = damage(paths[-1]) if paths else None
    if fault is not None:
        logger.warning("checkpoint %s: %s; no earlier one is deleted; check the disk", paths[-1], fault)
        return
    for path in paths:
        if path not in keep:
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a folder, if it is there; first out of sight as a whole, so that a kill never leaves half a checkpoint."""
    if path.exists():
        doomed = path.with_name(f".{path.name.lstrip('.')}.doomed")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed)


def remove_litter(folder: Path) -> None:
    """Delete what a killed process was still writing or deleting. Call it only while no other process writes here."""
    for path in folder.glob(f".step-*{_REPLACED}"):
        _put_back(path, folder / path.name.removeprefix(".").removesuffix(_REPLACED))
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _put_back(replaced: Path, target: Path) -> None:
    """Undo the first of the two renames by which a checkpoint takes the place of another, if the second never came."""
    if replaced.exists() and not target.exists():
        replaced.rename(target)
