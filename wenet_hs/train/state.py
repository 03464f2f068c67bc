# SPDX-License-Identifier: Apache-2.0
"""All that training changes, and its way into a checkpoint and back, bit for bit."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wenet_hs.errors import CheckpointError
from wenet_hs.model import AsrModel
from wenet_hs.train.checkpoint import read_checkpoint


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
    cv_loss: float | None = None
    """Validation loss at this point, if it was measured here."""
    finished: bool = False
    """Whether training came to its end (max_epoch or max_minutes)."""


@dataclass
class TrainState:
    """Model, optimizer and progress."""

    model: AsrModel
    optimizer: torch.optim.Optimizer
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    fingerprint: dict[str, str] = field(default_factory=dict)
    """SHA-256 of what a resumed run must share: units, training list."""

    def to_files(self) -> dict[str, bytes]:
        """The content of a checkpoint: file name → bytes."""
        rng: dict[str, Any] = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        record = {"progress": self.progress.__dict__, "fingerprint": self.fingerprint}
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
            self.model.load_state_dict(_from_bytes(files["model.pt"], self.device))
        except RuntimeError as error:
            detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise CheckpointError(f"{path}: does not fit this model ({detail}); check --config") from error
        self.optimizer.load_state_dict(_from_bytes(files["optimizer.pt"], self.device))
        rng = _from_bytes(files["rng.pt"], torch.device("cpu"))
        torch.set_rng_state(rng["torch"])
        if self.device.type == "cuda" and "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"], self.device)
        self.progress = Progress(**record["progress"])


def _to_bytes(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return loaded


def progress_of(path: Path) -> Progress:
    """The progress stored in a checkpoint folder, without reading the weights."""
    try:
        return Progress(**json.loads((path / "state.json").read_text("utf-8"))["progress"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: state.json cannot be read; use an earlier checkpoint") from error
