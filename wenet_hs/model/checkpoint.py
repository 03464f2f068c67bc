# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as folders that are complete or do not exist; reading and writing of weights.

A checkpoint is written into `.step-N.tmp/`. Each file is fsynced, the manifest of SHA-256 sums
last. Then the folder is renamed to `step-N` and its parent is fsynced. A process killed at any
instant leaves the earlier checkpoints unchanged. A checkpoint is verified by its sums.
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
from typing import IO, Any, TypeGuard, cast

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
"""The format in the manifest of each checkpoint."""
_REPLACED = ".replaced"
"""End of the name of a checkpoint while another one of the same step takes its place."""
_USE_EARLIER = "use an earlier checkpoint"


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step, such as `step-00001200`."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first.

    Unfinished, damaged (`.bad`) and old (`.old`) ones are not listed. They are not verified.
    """
    checkpoints = []
    for path in folder.glob("step-*"):
        has_step = path.name.removeprefix("step-").isdecimal()
        if has_step and path.is_dir():
            checkpoints.append(path)
    return sorted(checkpoints, key=step_of)


# ---- writing


Content = bytes | Mapping[str, Any]
"""The content of a file: bytes, or a dict of tensors and plain values, which becomes a `.pt` file."""


def write_hashed(file: IO[bytes], content: Content) -> dict[str, Any]:
    """Writes a content to an open file, a dict tensor by tensor.

    Returns its `sha256` and its number of `bytes`.

    Raises OSError, also if torch reports another error because of it.
    """
    writer = _HashingWriter(file)
    if isinstance(content, bytes):
        writer.write(content)
    else:
        try:
            torch.save(content, cast(IO[bytes], writer))  # it calls only `write` and `flush`
        except Exception as error:
            raise writer.first_error or error from None
    return {"sha256": writer.digest.hexdigest(), "bytes": writer.num_bytes}


class _HashingWriter:
    """An open file, as torch.save writes to it, with the SHA-256 and the size of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        self.first_error: OSError | None = None
        """torch.save replaces an error of `write` by one of its own."""

    def write(self, data: bytes | memoryview) -> int:
        """Writes the data, adds them to the digest, and returns their number of bytes.

        The first OSError is kept in `first_error`, and raised as all others are.
        """
        try:
            self._file.write(data)
        except OSError as error:
            self.first_error = self.first_error or error
            raise
        self.digest.update(data)
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def count_bytes(content: object) -> int:
    """The size of a content in bytes. Memory that several tensors share counts once."""
    return sum(_sizes(content).values())


def _sizes(content: object) -> dict[int, int]:
    """Each piece of memory of a content, by its address or identity → its size in bytes.

    Tensors, bytes, and collections of them have a size; numbers and texts count as nothing.
    """
    if isinstance(content, Tensor):
        storage = content.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    if isinstance(content, bytes):
        return {id(content): len(content)}
    if isinstance(content, Mapping):
        content = list(content.values())
    sizes: dict[int, int] = {}
    if isinstance(content, list | tuple):
        for part in content:
            sizes |= _sizes(part)
    return sizes


def save_checkpoint(folder: Path, step: int, files: Mapping[str, Content]) -> Path:
    """Writes `files` (name → content) as the checkpoint of `step`, and returns its folder.

    The contents are written as a stream, without a copy in memory. A checkpoint of the same step is
    replaced.

    Raises CheckpointError if it cannot be written, for example to a full disk. Earlier checkpoints
        stay unchanged.
    """
    target = checkpoint_path(folder, step)
    temporary = folder / f".{target.name}.tmp"
    replaced = folder / f".{target.name}{_REPLACED}"
    num_bytes = count_bytes(files)
    with report_full_disk(target, folder, num_bytes):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _delete(temporary)
            if shutil.disk_usage(folder).free < num_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _write_files(temporary, files)
            if target.exists():
                _delete(replaced)
                target.rename(replaced)
            temporary.rename(target)
            fsync_path(folder)
            _delete(replaced)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _restore_replaced(replaced, target)
            if error.errno in NO_SPACE:  # report_full_disk describes it
                raise
            found = f"cannot be written ({error.strerror})"
            raise CheckpointError(target, found, "check the folder") from error
    return target


def _write_files(folder: Path, files: Mapping[str, Content]) -> None:
    """Creates a folder with these files and, last, the manifest of their sums; all are fsynced."""
    folder.mkdir()
    sums = {name: _write(folder / name, content) for name, content in files.items()}
    manifest = json.dumps({"format": _FORMAT, "files": sums}, indent=1)
    _write(folder / MANIFEST, manifest.encode())
    fsync_path(folder)


def _write(path: Path, content: Content) -> dict[str, Any]:
    """Writes a file and fsyncs it; returns its `sha256` and its number of `bytes`."""
    with path.open("wb") as file:
        sums = write_hashed(file, content)
    fsync_path(path)
    return sums


@contextmanager
def report_full_disk(target: Path, checkpoints: Path, needed: int | None = None) -> Iterator[None]:
    """Turns the OSError of a full disk into a CheckpointError of one line.

    A quota or a limit of file sizes that is reached counts as a full disk. Other errors are raised
    unchanged.

    Args:
        target: the file or folder that is written.
        checkpoints: the folder whose last intact checkpoint the message names.
        needed: number of bytes to write, if that is known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        cause = os.strerror(error.errno or 0)
        found = f"{_describe_full_disk(target, cause, needed)}; {_describe_last_good(checkpoints)}"
        to_do = "free some space and run the same command again"
        raise CheckpointError(target, found, to_do) from error


def _describe_full_disk(target: Path, cause: str, needed: int | None) -> str:
    """The cause, and how much the disk of `target` has free, for a message."""
    nearest = next(path for path in (target, *target.parents) if path.exists())
    size = f"free {shutil.disk_usage(nearest).free / 1e6:.1f} MB"
    if needed is not None:
        size = f"need {needed / 1e6:.1f} MB, {size}"
    return f"disk full while writing ({cause}; {size})"


def _describe_last_good(checkpoints: Path) -> str:
    """The last intact checkpoint of a folder, for a message."""
    intact, _ = _find_newest_intact(checkpoints)
    return f"last good checkpoint: {intact.name}" if intact else "no checkpoint was written before"


# ---- verification and reading


def verification_error(path: Path) -> str | None:
    """The first fault of a checkpoint folder; None if it is intact.

    It is intact if all files of its manifest are there and have the SHA-256 that is recorded.
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
    """Raises CheckpointError if the checkpoint folder `path` is missing or damaged."""
    fault = verification_error(path)
    if fault is not None:
        raise CheckpointError(path, fault, _USE_EARLIER)


def read_frozen(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The weights that the checkpoint folder `path` leaves out because training does not change them.

    They are in a file beside the checkpoints. The dict is empty if the checkpoint leaves out none.

    Raises CheckpointError if that file is missing or is another one, or if `state.json` of the
    checkpoint, which has its SHA-256, is damaged. The checkpoint itself may be intact without it.
    """
    expected = _frozen_sha256(path / "state.json")
    if expected is None:
        return {}
    source = path.parent / FROZEN
    to_do = f"restore it: it holds the frozen weights of {path.name}"
    try:
        is_same_file = file_sha256(source) == expected
    except OSError as error:
        raise CheckpointError(source, f"cannot be read ({error.strerror})", to_do) from error
    if not is_same_file:
        found = f"differs from its SHA-256 in {path.name}/state.json"
        raise CheckpointError(source, found, to_do)
    return load_dict(source, device)


def _frozen_sha256(record: Path) -> str | None:
    """The SHA-256 of the file of frozen weights, from the `state.json` of a checkpoint.

    None if no weights are left out, or if there is no such file, as beside a model.pt that was
    copied. Raises CheckpointError if it is damaged.
    """
    if not record.exists():
        return None
    try:
        frozen = json.loads(record.read_text("utf-8")).get("frozen")
        sha256: str | None = None if frozen is None else frozen["sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(record, "cannot be read", _USE_EARLIER) from error
    return sha256


def load_dict(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The dict in a `.pt` file, with its tensors on `device`.

    No code in the file is run. Anyone may have written it, even if its SHA-256 is that in the
    manifest.

    Raises CheckpointError if it cannot be read or has no dict with names as keys.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the pickle protocol of foreign files
            loaded = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        # A hostile file can raise anything: errors of zip, pickle, struct, keys, types …
        found = f"cannot be read ({one_line(error)})"
        raise CheckpointError(path, found, _USE_EARLIER) from error
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise CheckpointError(path, "is no dict of names", _USE_EARLIER)
    return loaded


def newest_intact(folder: Path) -> Path | None:
    """The newest checkpoint that verifies, or None.

    Damaged newer ones are renamed to `NAME.bad` with a warning.
    """
    intact, damaged = _find_newest_intact(folder)
    for path, fault in damaged.items():
        instead = "no older one is intact"
        if intact is not None:
            num_steps = step_of(path) - step_of(intact)
            instead = f"using {intact.name} ({num_steps} steps older)"
        logger.warning("checkpoint %s: %s; %s; kept as %s.bad", path, fault, instead, path.name)
        _set_aside(path, ".bad")
    return intact


def _find_newest_intact(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with its fault.

    None if no checkpoint verifies. Checkpoints older than the one that does are not read.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        fault = verification_error(path)
        if fault is None:
            return path, damaged
        damaged[path] = fault
    return None, damaged


# ---- renaming and deletion


def set_aside_newer(path: Path) -> None:
    """Renames the checkpoints newer than `path` to `NAME.old`; a warning names each.

    The training continues from `path` and will write checkpoints of the same steps.
    """
    for newer in list_checkpoints(path.parent):
        if step_of(newer) > step_of(path):
            logger.warning(
                "checkpoint %s: newer than the one to resume from; kept as %s.old",
                newer,
                newer.name,
            )
            _set_aside(newer, ".old")


def _set_aside(path: Path, suffix: str) -> None:
    """Adds a suffix to the name of a folder; deletes an earlier folder of that name."""
    aside = path.with_name(path.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def rotate(folder: Path, keep: set[Path]) -> None:
    """Deletes the checkpoints outside `keep`.

    None is deleted if the newest one does not verify, because the disk may be broken then; a
    warning names the fault.
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
    """Deletes a folder if it exists.

    It is renamed first, so that a process killed now leaves no incomplete checkpoint under its
    name.
    """
    if not path.exists():
        return
    deleted = path.with_name(f".{path.name.lstrip('.')}.deleted")
    shutil.rmtree(deleted, ignore_errors=True)
    path.rename(deleted)
    shutil.rmtree(deleted)


def remove_incomplete(folder: Path) -> None:
    """Deletes what a killed process was writing or deleting.

    A checkpoint that was renamed to be replaced, but was not replaced, gets its name back. Call
    this only while no other process writes here.
    """
    for path in folder.glob(f".step-*{_REPLACED}"):
        target = folder / path.name.removeprefix(".").removesuffix(_REPLACED)
        _restore_replaced(path, target)
    for path in folder.glob(f".{FROZEN}.*.tmp"):  # of `open_atomic`
        path.unlink()
    for path in folder.glob(".step-*"):  # checkpoints that are not complete, or to be deleted
        shutil.rmtree(path, ignore_errors=True)


def _restore_replaced(replaced: Path, target: Path) -> None:
    """Gives the checkpoint `replaced` its name `target` back if no other checkpoint has it.

    A checkpoint is replaced by two renames: of the old one, then of the new one. This undoes the
    first if the second one did not happen.
    """
    if replaced.exists() and not target.exists():
        replaced.rename(target)


# ---- weights


def weights_path(path: Path) -> Path:
    """The file of weights that `--checkpoint` names.

    A file is returned as it is. In a folder it is `model.safetensors` of a packed model, or else
    `model.pt` of a checkpoint, or else `final.pt`, which is returned even if it is missing.

    `model.safetensors` comes first because a packed model may come from anyone, and a `.pt` file is
    a pickle.
    """
    if not path.is_dir():
        return path
    for name in (WEIGHTS, "model.pt"):
        if (path / name).exists():
            return path / name
    return path / "final.pt"


def hash_weights(checkpoint: Path) -> str:
    """The SHA-256 of the file of `weights_path`. Raises CheckpointError if it cannot be read."""
    path = weights_path(checkpoint)
    try:
        return file_sha256(path)
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        to_do = "check the path; a resumed run needs no --checkpoint"
        raise CheckpointError(f"--checkpoint {path}", found, to_do) from error


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Reads the state_dict of a `.pt` or `.safetensors` file, or of the weights of a folder.

    Code in the file is never run. The frozen weights that a checkpoint leaves out are read too.

    The SHA-256 of the file is checked if it is recorded in the folder (`final.json`, the manifest
    of a checkpoint): torch does not detect a flipped bit.

    Raises CheckpointError, always one line.
    """
    path = weights_path(Path(path))
    if not path.exists():
        to_do = "`wenet-hs train` writes checkpoints, `wenet-hs average` final.pt"
        raise CheckpointError(path, "no such file", to_do)
    try:
        _check_sha256(path)
        state = _load_state(path)
    except CheckpointError:
        raise
    except Exception as error:
        # A damaged or hostile file can raise anything: errors of zip, pickle, struct, keys, types …
        found = f"not a readable checkpoint ({one_line(error)})"
        to_do = "copy or create it again, or use an earlier one"
        raise CheckpointError(path, found, to_do) from error
    if not _is_state_dict(state):
        found = "contains no state_dict (parameter names with tensors)"
        raise CheckpointError(path, found, "give the weights of a model")
    return state


def _load_state(path: Path) -> Any:
    """The content of a file of weights, with the frozen weights if it is a checkpoint's model.pt.

    Raises any error for a damaged file, CheckpointError for damaged frozen weights.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the pickle protocol of old files
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    if path.name == "model.pt" and isinstance(state, dict):
        state |= read_frozen(path.parent)
    return state


def _check_sha256(path: Path) -> None:
    """Raises CheckpointError if a record in the folder has another SHA-256 of the file.

    `final.json` beside final.pt has that of one file, `manifest.json` those of a checkpoint.
    """
    for record in (path.with_suffix(".json"), path.with_name(MANIFEST)):
        expected = _recorded_sha256(record, path.name)
        if expected is not None and file_sha256(path) != expected:
            to_do = f"copy or create it again, or remove {record.name} if these are other weights on purpose"
            raise CheckpointError(path, f"differs from its SHA-256 in {record.name}", to_do)


def _recorded_sha256(record: Path, name: str) -> str | None:
    """The SHA-256 of the file `name` in a record.

    None if there is no record, if it is damaged, or if it is not about this file.
    """
    try:
        content = json.loads(record.read_text("utf-8"))
        if content.get("file") == name:  # final.json is about one file
            return str(content["sha256"])
        # The manifest of a checkpoint has an entry per file.
        return str(content["files"][name]["sha256"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_state_dict(content: object) -> TypeGuard[dict[str, Tensor]]:
    """Whether this is a dict of names and tensors, with at least one."""
    if not isinstance(content, dict) or not content:
        return False
    return all(_is_parameter(name, value) for name, value in content.items())


def _is_parameter(name: object, value: object) -> bool:
    """Whether this is a name and a plain tensor: dense, on the CPU, real, and not quantized."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    is_dense_on_cpu = value.layout == torch.strided and value.device.type == "cpu"
    return is_dense_on_cpu and not value.is_quantized and not value.is_complex()


def load_weights(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Copies a state_dict into a model. Raises CheckpointError as `check_weights` does."""
    check_weights(model.state_dict(), state, where)
    model.load_state_dict(dict(state), strict=True)


def check_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Raises CheckpointError if a state_dict does not fit a model.

    The message has the first names that are missing, that the model does not have, whose shapes are
    others, or that are integers in place of floats.

    Args:
        own: the state_dict of the model.
        state: the state_dict that is to be loaded.
        where: the file of `state`.
    """
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    wrong_shapes = []
    integers = []
    for name, value in own.items():
        if name not in state:
            continue
        loaded = state[name]
        if loaded.shape != value.shape:
            wrong_shapes.append(f"{name} {tuple(loaded.shape)}, expected {tuple(value.shape)}")
        if value.is_floating_point() and not loaded.is_floating_point():
            integers.append(name)
    names_by_fault = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": wrong_shapes,
        "integers": integers,
    }
    faults = [f"{fault} {list_names(names)}" for fault, names in names_by_fault.items() if names]
    if not faults:
        return
    to_do = "use the train.yaml that these weights were trained with"
    are_only_missing = bool(missing) and len(faults) == 1
    if are_only_missing:
        to_do += ", or, for a copy of a model.pt, give its checkpoint folder, because frozen weights are beside it"
    raise CheckpointError(where, f"weights of another model: {'; '.join(faults)}", to_do)


def write_final(
    target: Path,
    weights: dict[str, torch.Tensor],
    sources: Mapping[Path, Mapping[str, float]],
    *,
    by: str,
) -> None:
    """Writes `final.pt` atomically, and `final.json` with its SHA-256 and the checkpoints it comes
    from.

    The old `final.json` is deleted after the new weights are on the disk and before they get their
    name. So after a kill at any instant `final.pt` is complete, and `final.json` describes it or
    does not exist.

    Args:
        sources: each checkpoint with the metrics of its validation.
        by: the rule by which the checkpoints were chosen.

    Raises CheckpointError if the disk is full.
    """
    facts_path = target.with_suffix(".json")
    checkpoints = [
        {"name": path.name, "step": step_of(path), "validation": dict(sources[path])}
        for path in sorted(sources, key=step_of)
    ]
    with report_full_disk(target, target.parent / "checkpoints", count_bytes(weights)):
        with open_atomic(target) as file:
            sha256 = write_hashed(file, weights)["sha256"]
            file.flush()
            os.fsync(file.fileno())
            facts_path.unlink(missing_ok=True)
            fsync_path(target.parent)
        facts = {"file": target.name, "sha256": sha256, "by": by, "checkpoints": checkpoints}
        write_atomic(facts_path, json.dumps(facts, indent=1) + "\n")
