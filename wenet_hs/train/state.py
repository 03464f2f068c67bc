# SPDX-License-Identifier: Apache-2.0
"""All that training changes, and its way into a checkpoint and back, bit for bit."""

import io
import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from wenet_hs.errors import CheckpointError
from wenet_hs.interop.state import current_names
from wenet_hs.model import AsrModel
from wenet_hs.train.checkpoint import read_checkpoint
from wenet_hs.train.optim import Optimizer

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where training stands: plain numbers, stored as JSON."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The epoch in progress, from 0."""
    batch: int = 0
    """Batches of that epoch already used."""
    seconds: float = 0.0
    """Time spent in training so far, over all resumes."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl at this point; a resume cuts what came after."""
    skipped_steps: int = 0
    """Steps left out because of a gradient that was not finite."""
    skipped_in_a_row: int = 0
    """How many of them were the last ones; it counts on through epochs and resumes."""
    cv_loss: float | None = None
    """Validation loss in nats a target at this point; None if it was not measured here, or is not finite."""


@dataclass
class TrainState:
    """Model, optimizer and progress."""

    model: AsrModel
    optimizer: Optimizer
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    fingerprint: dict[str, str] = field(default_factory=dict)
    """SHA-256 of what a resumed run must share, by its name: unit table, tree, statistics, data lists."""

    def to_files(self) -> dict[str, bytes]:
        """The content of a checkpoint: file name → bytes."""
        rng: dict[str, Any] = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        record = {
            "progress": asdict(self.progress),
            "fingerprint": self.fingerprint,
            "environment": self._environment(),
        }
        return {
            "model.pt": _to_bytes(self.model.state_dict()),
            "optimizer.pt": _to_bytes(self.optimizer.state_dict()),
            "rng.pt": _to_bytes(rng),
            "state.json": json.dumps(record, indent=1).encode(),
        }

    def restore(self, path: Path) -> None:
        """Become the state that was saved in the checkpoint folder `path`.

        Raises CheckpointError if it is damaged, does not fit the model, or was trained on other units or data.
        """
        files = read_checkpoint(path)
        record = json.loads(files["state.json"])
        for name, sha256 in self.fingerprint.items():
            if record["fingerprint"].get(name) != sha256:
                raise CheckpointError(f"{path}: was trained with another {name}; use another --model_dir to start anew")
        try:
            self.model.load_state_dict(current_names(_from_bytes(files["model.pt"], self.device)))
        except RuntimeError as error:
            detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise CheckpointError(f"{path}: does not fit this model ({detail}); check --config") from error
        self.optimizer.load_state_dict(_from_bytes(files["optimizer.pt"], self.device))
        rng = _from_bytes(files["rng.pt"], torch.device("cpu"))
        torch.set_rng_state(rng["torch"])
        if self.device.type == "cuda" and "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"], self.device)
        self.progress = _progress(record, path)
        self._warn_of_other_environment(record.get("environment", {}), path)

    def _environment(self) -> dict[str, str]:
        """What the last bits of a result depend on, beside the code and the data."""
        return {
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "device": self.device.type,
        }

    def _warn_of_other_environment(self, then: dict[str, str], path: Path) -> None:
        now = self._environment()
        changes = [
            f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]
        ]
        if changes:
            logger.warning("%s: %s; the result may differ in its last bits", path, "; ".join(changes))


def _to_bytes(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return loaded


def progress_of(path: Path) -> Progress:
    """The progress stored in a checkpoint folder, without reading the weights. Raises CheckpointError."""
    try:
        return _progress(json.loads((path / "state.json").read_text("utf-8")), path)
    except (OSError, ValueError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _progress(record: Any, path: Path) -> Progress:
    try:
        return Progress(**record["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _unreadable(path: Path) -> str:
    return f"{path}: state.json cannot be read; use an earlier checkpoint"
