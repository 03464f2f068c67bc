# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as committed folders: a checkpoint is complete and verified by SHA-256, or it does
not exist.

A checkpoint is written into `.step-N.tmp/`. Each file is fsynced, the manifest of SHA-256 sums
last. Then the folder is renamed to `step-N` and its parent is fsynced. A process killed at any
instant leaves the earlier checkpoints unchanged.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from wenet_hs.base.files import NO_SPACE, file_sha256
from wenet_hs.model.packed import WEIGHTS
from wenet_hs.tree.atomic import fsync_path, open_atomic, write_atomic
from wenet_hs.tree.errors import CheckpointError, list_names, one_line

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FROZEN = "frozen.pt"
"""The weights that the checkpoints of a folder leave out because no step changes them; beside the
checkpoints.
"""
_FORMAT = "wenet_hs.checkpoint/1"
_REPLACED = ".replaced"


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The committed checkpoints in `folder`, oldest first, without unfinished and damaged (`.bad`)
    ones.
    """
    found = [path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(found, key=step_of)


Content = bytes | Mapping[str, Any]
"""The content of a file: bytes, or a dict of tensors and plain values, which becomes a `.pt` file."""


def write_hashed(file: IO[bytes], content: Content) -> dict[str, Any]:
    """Write a content to an open file, a dict tensor by tensor.

    Returns its `sha256` and its number of `bytes`.

    Raises OSError, also where torch reports another error because of it.
    """
    digest, size, errors = hashlib.sha256(), 0, list[OSError]()

    def write(data: bytes | memoryview) -> int:
        nonlocal size
        try:
            file.write(data)
        except OSError as error:
            errors.append(error)
            raise
        digest.update(data)
        size += len(data)
        return len(data)

    if isinstance(content, bytes):
        write(content)
    else:
        try:
            torch.save(content, SimpleNamespace(write=write, flush=file.flush))
        except Exception as error:
            raise errors[0] if errors else error from None
    return {"sha256": digest.hexdigest(), "bytes": size}


def count_bytes(content: object) -> int:
    """The size of a content in bytes; of tensors, that of their memory, once where several share
    it.
    """
    return sum(_sizes(content).values())


def _sizes(content: object) -> dict[int, int]:
    """The size of each piece of memory, by its address or identity."""
    if isinstance(content, Tensor):
        return {content.untyped_storage().data_ptr(): content.untyped_storage().nbytes()}
    if isinstance(content, Mapping | list | tuple):
        parts = content.values() if isinstance(content, Mapping) else content
        return {key: size for part in parts for key, size in _sizes(part).items()}
    return {id(content): len(content)} if isinstance(content, bytes) else {}


def save_checkpoint(folder: Path, step: int, files: Mapping[str, Content]) -> Path:
    """Commit `files` (name → content) as the checkpoint of `step`.

    They are written as a stream: no file is in memory.

    Raises CheckpointError if it cannot be written, for example to a full disk. Earlier checkpoints
        stay unchanged.
    """
    target = checkpoint_path(folder, step)
    temporary, replaced = folder / f".{target.name}.tmp", folder / f".{target.name}{_REPLACED}"
    needed = count_bytes(files)
    with report_full_disk(target, folder, needed):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _delete(temporary)
            if shutil.disk_usage(folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.mkdir()
            sums = {name: _write(temporary / name, content) for name, content in files.items()}
            _write(
                temporary / MANIFEST,
                json.dumps({"format": _FORMAT, "files": sums}, indent=1).encode(),
            )
            fsync_path(temporary)
            if target.exists():
                _delete(replaced)
                target.rename(replaced)
            temporary.rename(target)
            fsync_path(folder)
            _delete(replaced)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _restore_replaced(replaced, target)
            if error.errno in NO_SPACE:
                raise
            raise CheckpointError(
                target, f"cannot be written ({error.strerror})", "check the folder"
            ) from error
    return target


def _write(path: Path, content: Content) -> dict[str, Any]:
    with path.open("wb") as file:
        facts = write_hashed(file, content)
    fsync_path(path)
    return facts


@contextmanager
def report_full_disk(target: Path, checkpoints: Path, needed: int | None = None) -> Iterator[None]:
    """Turn the OSError of a full disk, a quota or a file size limit into a CheckpointError of one
    line.

    Args:
        target: the file or folder that is written.
        checkpoints: the folder whose last intact checkpoint the message names.
        needed: number of bytes to write, where that is known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free = shutil.disk_usage(
            next(path for path in (target, *target.parents) if path.exists())
        ).free
        size = (
            f"{'' if needed is None else f'need {needed / 1e6:.1f} MB, '}free {free / 1e6:.1f} MB"
        )
        intact, _ = _find_newest_intact(checkpoints)
        last_good = (
            f"last good checkpoint: {intact.name}" if intact else "no checkpoint was written before"
        )
        found = f"disk full while writing ({os.strerror(error.errno or 0)}; {size}); {last_good}"
        raise CheckpointError(
            target, found, "free some space and run the same command again"
        ) from error


def verification_error(path: Path) -> str | None:
    """The fault of a checkpoint folder, or None if all its files have the SHA-256 that the manifest
    records.
    """
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
            if file_sha256(path / name) != sha256:
                return f"sha256 of {name} differs from the manifest"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def check_intact(path: Path) -> None:
    """Raise CheckpointError if the checkpoint folder `path` is missing or damaged."""
    fault = verification_error(path)
    if fault is not None:
        raise CheckpointError(path, fault, "use an earlier checkpoint")


def read_frozen(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The weights that the checkpoint folder `path` leaves out, which is none if its `state.json`
    names no file.

    Raises CheckpointError if that file is missing or is another one, or if `state.json` is damaged.
    The checkpoint itself may be intact without the file.
    """
    record = path / "state.json"
    if not record.exists():  # a model.pt that was copied
        return {}
    try:
        frozen = json.loads(record.read_text("utf-8")).get("frozen")
        expected = None if frozen is None else frozen["sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(record, "cannot be read", "use an earlier checkpoint") from error
    if expected is None:
        return {}
    source = path.parent / FROZEN
    to_do = f"restore it: it holds the frozen weights of {path.name}"
    try:
        if file_sha256(source) != expected:
            raise CheckpointError(
                source, f"differs from its SHA-256 in {path.name}/state.json", to_do
            )
    except OSError as error:
        raise CheckpointError(source, f"cannot be read ({error.strerror})", to_do) from error
    return load_dict(source, device)


def load_dict(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The dict in a `.pt` file, read tensor by tensor. No code in it is run.

    Raises CheckpointError for any fault: a manifest that fits does not prove that this program
        wrote the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the pickle protocol of foreign files
            loaded = torch.load(path, map_location=device, weights_only=True)
    except (
        Exception
    ) as error:  # a hostile file can raise anything: zip, pickle, struct, key, type …
        raise CheckpointError(
            path, f"cannot be read ({one_line(error)})", "use an earlier checkpoint"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise CheckpointError(path, "is no dict of names", "use an earlier checkpoint")
    return loaded


def _find_newest_intact(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with its fault."""
    bad: list[tuple[Path, str]] = []
    for path in reversed(list_checkpoints(folder)):
        fault = verification_error(path)
        if fault is None:
            return path, bad
        bad.append((path, fault))
    return None, bad


def newest_intact(folder: Path) -> Path | None:
    """The newest checkpoint that verifies, or None.

    Damaged newer ones are renamed to `NAME.bad` with a warning.
    """
    good, bad = _find_newest_intact(folder)
    for path, fault in bad:
        older = (
            f"using {good.name} ({step_of(path) - step_of(good)} steps older)"
            if good
            else "no older one is intact"
        )
        logger.warning("checkpoint %s: %s; %s; kept as %s.bad", path, fault, older, path.name)
        _set_aside(path, ".bad")
    return good


def set_aside_newer(path: Path) -> None:
    """Rename the checkpoints newer than `path` to `NAME.old`: training continues from `path`."""
    for newer in list_checkpoints(path.parent):
        if step_of(newer) > step_of(path):
            logger.warning(
                "checkpoint %s: newer than the one to resume from; kept as %s.old",
                newer,
                newer.name,
            )
            _set_aside(newer, ".old")


def _set_aside(path: Path, suffix: str) -> None:
    aside = path.with_name(path.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def rotate(folder: Path, keep: set[Path]) -> None:
    """Delete the checkpoints outside `keep`, but only if the newest one verifies: otherwise the
    disk may be broken.
    """
    paths = list_checkpoints(folder)
    fault = verification_error(paths[-1]) if paths else None
    if fault is not None:
        logger.warning(
            "checkpoint %s: %s; no earlier one is deleted; check the disk", paths[-1], fault
        )
        return
    for path in paths:
        if path not in keep:
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a folder if it exists.

    It is renamed first: a kill leaves no incomplete checkpoint under its name.
    """
    if path.exists():
        deleted = path.with_name(f".{path.name.lstrip('.')}.deleted")
        shutil.rmtree(deleted, ignore_errors=True)
        path.rename(deleted)
        shutil.rmtree(deleted)


def remove_incomplete(folder: Path) -> None:
    """Delete what a killed process was writing or deleting.

    Call it only while no other process writes here.
    """
    for path in folder.glob(f".step-*{_REPLACED}"):
        _restore_replaced(path, folder / path.name.removeprefix(".").removesuffix(_REPLACED))
    for path in folder.glob(f".{FROZEN}.*.tmp"):
        path.unlink()
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _restore_replaced(replaced: Path, target: Path) -> None:
    """Undo the first of the two renames by which a checkpoint replaces another, if the second one
    did not happen.
    """
    if replaced.exists() and not target.exists():
        replaced.rename(target)


# ---- weights


def weights_path(path: Path) -> Path:
    """The weights that `--checkpoint` names: a file, those of a packed model, a checkpoint's
    model.pt, or final.pt.

    Of a packed model no other file is read: it may come from anyone, and a `.pt` file is a pickle.
    """
    if not path.is_dir():
        return path
    return next(
        (path / name for name in (WEIGHTS, "model.pt") if (path / name).exists()), path / "final.pt"
    )


def hash_weights(checkpoint: Path) -> str:
    """The SHA-256 of the file of `weights_path`. Raises CheckpointError if it cannot be read."""
    path = weights_path(checkpoint)
    try:
        return file_sha256(path)
    except OSError as error:
        to_do = "check the path; a resumed run needs no --checkpoint"
        raise CheckpointError(
            f"--checkpoint {path}", f"cannot be read ({error.strerror})", to_do
        ) from error


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Reads the state_dict of a `.pt` or `.safetensors` file, or of the weights of a folder.

    Code in the file is never run. Weights that a checkpoint leaves out are read too.

    The SHA-256 of the file is checked if it is recorded in the folder (`final.json`, the manifest
    of a checkpoint): torch does not detect a flipped bit.

    Raises CheckpointError, always one line.
    """
    path = weights_path(Path(path))
    if not path.exists():
        raise CheckpointError(
            path, "no such file", "`wenet-hs train` writes checkpoints, `wenet-hs average` final.pt"
        )
    try:
        _check_sha256(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol of old files
            is_safe = path.suffix == ".safetensors"
            state = (
                load_file(path)
                if is_safe
                else torch.load(path, map_location="cpu", weights_only=True)
            )
        if path.name == "model.pt" and isinstance(state, dict):
            state |= read_frozen(path.parent)
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # a damaged or hostile file may raise anything: zip, pickle, struct, key, type …
        found = f"not a readable checkpoint ({one_line(error)})"
        raise CheckpointError(
            path, found, "copy or create it again, or use an earlier one"
        ) from error
    if not isinstance(state, dict) or not state or not all(map(_is_parameter, state.items())):
        found = "contains no state_dict (parameter names with tensors)"
        raise CheckpointError(path, found, "give the weights of a model")
    return state


def _check_sha256(path: Path) -> None:
    for record in (path.with_suffix(".json"), path.with_name("manifest.json")):
        try:
            content = json.loads(record.read_text("utf-8"))
            expected = (
                content if content.get("file") == path.name else content["files"][path.name]
            )["sha256"]
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # no record, or it does not have the file
            continue
        if file_sha256(path) != expected:
            to_do = f"copy or create it again, or remove {record.name} if these are other weights on purpose"
            raise CheckpointError(path, f"differs from its SHA-256 in {record.name}", to_do)


def _is_parameter(item: tuple[object, object]) -> bool:
    name, value = item
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return plain and not value.is_complex()


def load_weights(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Copies a state_dict into a model. Raises CheckpointError as `check_weights` does."""
    check_weights(model.state_dict(), state, where)
    model.load_state_dict(dict(state), strict=True)


def check_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Raises CheckpointError with the first names and shapes of `state` that are not those of
    `own`.

    `where`: the file of `state`.
    """
    given = {name: value for name, value in own.items() if name in state}
    wrong_shapes = [
        f"{name} {tuple(state[name].shape)}, expected {tuple(value.shape)}"
        for name, value in given.items()
        if state[name].shape != value.shape
    ]
    no_floats = [
        name
        for name, v in given.items()
        if v.is_floating_point() and not state[name].is_floating_point()
    ]
    missing, unexpected = (
        [name for name in own if name not in state],
        [name for name in state if name not in own],
    )
    found = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": wrong_shapes,
        "integers": no_floats,
    }
    faults = "; ".join(f"{what} {list_names(names)}" for what, names in found.items() if names)
    if faults:
        to_do = "use the train.yaml that these weights were trained with"
        if [*filter(None, found.values())] == [missing]:
            to_do += ", or, for a copy of a model.pt, give its checkpoint folder, because frozen weights are beside it"
        raise CheckpointError(where, f"weights of another model: {faults}", to_do)


def write_final(
    target: Path,
    weights: dict[str, torch.Tensor],
    sources: Mapping[Path, Mapping[str, float]],
    *,
    by: str,
) -> None:
    """Write `final.pt` atomically, and `final.json` with its SHA-256 and the checkpoints it comes
    from.

    `sources`: each checkpoint with the metrics of its validation; `by`: the rule by which they were
    chosen.

    The old `final.json` is deleted after the new weights are on the disk and before they get their
    name. So after a kill at any instant `final.pt` is complete, and `final.json` describes it or
    does not exist. Raises CheckpointError if the disk is full.
    """
    facts_path = target.with_suffix(".json")
    facts = {
        "file": target.name,
        "sha256": "",  # of what is written
        "by": by,
        "checkpoints": [
            {"name": path.name, "step": step_of(path), "validation": dict(sources[path])}
            for path in sorted(sources, key=step_of)
        ],
    }
    with report_full_disk(target, target.parent / "checkpoints", count_bytes(weights)):
        with open_atomic(target) as file:
            facts["sha256"] = write_hashed(file, weights)["sha256"]
            file.flush()
            os.fsync(file.fileno())
            facts_path.unlink(missing_ok=True)
            fsync_path(target.parent)
        write_atomic(facts_path, json.dumps(facts, indent=1) + "\n")
