# SPDX-License-Identifier: Apache-2.0
"""Everything that training changes, and how it is saved to and restored from a checkpoint, bit for bit."""

import json
import logging
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wenet_hs.checkpoint import dump_dict, load_dict, read_checkpoint
from wenet_hs.distributed import World
from wenet_hs.errors import CheckpointError
from wenet_hs.model import AsrModel
from wenet_hs.train.optim import Optimizer, Precision
from wenet_hs.train.replica import Replica

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """The position of a training: plain numbers, stored as JSON."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The current epoch, from 0."""
    batch: int = 0
    """Batches of that epoch already used, by all ranks together."""
    seconds: float = 0.0
    """Training time so far, over all resumes."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl at this point; a resume truncates the file to it."""
    skipped_steps: int = 0
    """Steps skipped because a loss or a gradient was not finite."""
    skipped_in_a_row: int = 0
    """How many of the latest steps were skipped, over epochs and resumes."""
    clips_drawn: int = 0
    """Clips drawn from the training list so far, with those that could not be read."""
    bad_clips: int = 0
    """Clips that could not be read; one that is drawn in each epoch counts each time."""
    incomplete_clips: int = 0
    """Clips that lack a little of the length in their header and were used, counted likewise."""
    validations: list[dict[str, float]] = field(default_factory=list)
    """The finite metrics of each validation so far, with its `step`."""
    interim: bool = False
    """Whether this checkpoint was written for a signal, at a step where none was due."""
    validation_due: bool = False
    """Whether a signal interrupted the validation at this step; it is done before the next step."""

    def measured(self) -> dict[str, float]:
        """The metrics of the validation at this step; empty if there was none."""
        last = self.validations[-1] if self.validations else {}
        return last if last.get("step") == self.step else {}


@dataclass
class TrainState:
    """Model, optimizer and progress."""

    model: AsrModel
    optimizer: Optimizer
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    fingerprint: dict[str, str] = field(default_factory=dict)
    """SHA-256 of what a resumed run must share, by name: config, unit table, tree, statistics, data lists."""
    precision: Precision = field(default_factory=lambda: Precision("fp32", torch.device("cpu")))
    world: World = field(default_factory=World)
    """The ranks that train this model together."""
    seed: int = 0
    """The seed of the experiment: a rank without a saved random state starts from it."""

    @cached_property
    def replica(self) -> Replica:
        """The model as the loop runs it. Use it only after the weights of the first step are in the model."""
        return Replica(self.model, self.world)

    def to_files(self) -> dict[str, bytes]:
        """The files of a checkpoint (name → content) on rank 0, nothing on other ranks. Every rank must call it."""
        first, *others = self.world.all_gather(self._random_state())
        if not self.world.is_first:
            return {}
        record = {
            "progress": asdict(self.progress),
            "fingerprint": self.fingerprint,
            "environment": self._environment(),
            "loss_scale": self.precision.state_dict(),
        }
        return {
            "model.pt": dump_dict(self.model.state_dict()),
            "optimizer.pt": dump_dict(self.optimizer.state_dict()),
            "rng.pt": dump_dict({**first, "ranks": others} if others else first),
            "state.json": json.dumps(record, indent=1).encode(),
        }

    def restore(self, path: Path) -> None:
        """Load the state from the checkpoint folder `path`.

        Raises CheckpointError if it is damaged, does not fit the model, or is of a training with other units or data.
        """
        files = read_checkpoint(path)
        record = json.loads(files["state.json"])
        for name, sha256 in self.fingerprint.items():
            if record["fingerprint"].get(name) != sha256:
                raise CheckpointError(f"{path}: was trained with another {name}; use another --model_dir to start anew")
        try:
            self.model.load_state_dict(load_dict(files["model.pt"], path / "model.pt", self.device))
        except RuntimeError as error:
            detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise CheckpointError(f"{path}: does not fit this model ({detail}); check --config") from error
        optimizer = load_dict(files["optimizer.pt"], path / "optimizer.pt", self.device)
        try:
            self.optimizer.load_state_dict(optimizer)
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{path / 'optimizer.pt'}: is of another optimizer; use an earlier checkpoint"
            ) from error
        try:
            self.precision.load_state_dict(record.get("loss_scale", {}))
        except (KeyError, ValueError) as error:
            raise CheckpointError(_unreadable(path)) from error
        self.progress = _parse_progress(record, path)
        try:
            self._restore_random(load_dict(files["rng.pt"], path / "rng.pt"), path)
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path / 'rng.pt'}: holds no random state; use an earlier checkpoint") from error
        self._warn_of_environment_change(record.get("environment", {}), path)

    def seed_new_rank(self) -> None:
        """Seed torch on a rank without a saved random state, from the seed of the experiment, the step and the rank."""
        sequence = np.random.SeedSequence([self.seed, self.progress.step, self.world.rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))

    def _random_state(self) -> dict[str, Any]:
        """The state of torch's generators on this rank; a step draws dropout and sampling from them."""
        state: dict[str, Any] = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _restore_random(self, saved: dict[str, Any], path: Path) -> None:
        ranks, rank = [saved, *saved.get("ranks", [])], self.world.rank
        if rank < len(ranks):
            torch.set_rng_state(ranks[rank]["torch"])
            if self.device.type == "cuda" and "cuda" in ranks[rank]:
                torch.cuda.set_rng_state(ranks[rank]["cuda"], self.device)
        else:
            self.seed_new_rank()
        if len(ranks) != self.world.size and self.world.is_first:
            logger.warning(
                "%s: number of ranks was %d, is now %d: the order of batches is the same, batches per step and random "
                "numbers (of new ranks: from seed, step and rank) are not",
                *(path, len(ranks), self.world.size),
            )

    def _environment(self) -> dict[str, str]:
        """What the last bits of a result depend on, besides code and data."""
        return {"torch": torch.__version__, "threads": str(torch.get_num_threads()), "device": self.device.type}

    def _warn_of_environment_change(self, saved: dict[str, str], path: Path) -> None:
        now = self._environment()
        changes = [
            f"{name} {saved[name]} then, {now[name]} now" for name in now if saved.get(name, now[name]) != now[name]
        ]
        if changes and self.world.is_first:
            logger.warning("%s: %s; the result may differ in its last bits", path, "; ".join(changes))


def read_progress(path: Path) -> Progress:
    """The progress stored in a checkpoint folder, without reading the weights. Raises CheckpointError."""
    try:
        return _parse_progress(json.loads((path / "state.json").read_text("utf-8")), path)
    except (OSError, ValueError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _parse_progress(record: Any, path: Path) -> Progress:
    try:
        return Progress(**record["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _unreadable(path: Path) -> str:
    return f"{path}: state.json cannot be read; use an earlier checkpoint"
