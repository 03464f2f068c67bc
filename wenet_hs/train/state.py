# SPDX-License-Identifier: Apache-2.0
"""All that training changes, and its way into a checkpoint and back, bit for bit."""

import io
import json
import logging
import warnings
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from wenet_hs.checkpoint import read_checkpoint
from wenet_hs.distributed import World
from wenet_hs.errors import CheckpointError
from wenet_hs.interop.weights import current_names
from wenet_hs.model import AsrModel
from wenet_hs.train.optim import Optimizer
from wenet_hs.train.precision import Precision
from wenet_hs.train.random_state import random_state, seed_rank, set_random_state
from wenet_hs.train.replica import Replica

logger = logging.getLogger(__name__)

CONFIG = "config"
"""In a fingerprint: the settings that a resumed run may not change."""

_EARLIER = "use an earlier checkpoint"

_CPU = torch.device("cpu")


@dataclass
class Progress:
    """Where training stands: plain numbers, stored as JSON."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The epoch in progress, from 0."""
    batch: int = 0
    """Batches of that epoch already used, by all ranks together."""
    seconds: float = 0.0
    """Time spent in training so far, over all resumes."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl at this point; a resume cuts what came after."""
    skipped_steps: int = 0
    """Steps left out because of a loss or a gradient that was not finite."""
    skipped_in_a_row: int = 0
    """How many of them were the last ones; it counts on through epochs and resumes."""
    clips_drawn: int = 0
    """Clips drawn from the training list so far, those that could not be read among them."""
    bad_clips: int = 0
    """Those that could not be read; one that is drawn in each epoch counts each time."""
    validations: list[dict[str, float]] = field(default_factory=list)
    """What each validation so far measured, where it was finite, with the `step` that it came after."""
    interim: bool = False
    """Whether a signal had this checkpoint written where none was due."""
    validation_due: bool = False
    """Whether a signal cut short the validation at this point; it comes before the next step."""

    def measured(self) -> dict[str, float]:
        """What the validation at this point measured; empty if there was none here."""
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
    """SHA-256 of what a resumed run must share, by its name: unit table, tree, statistics, data lists."""
    precision: Precision = field(default_factory=lambda: Precision("fp32", torch.device("cpu")))
    """What the forward pass computes in; fp32 is the same on every device."""
    world: World = field(default_factory=World)
    """The ranks that train this model together."""
    seed: int = 0
    """Of the experiment: ranks without a random state of their own begin from it."""

    @cached_property
    def replica(self) -> Replica:
        """The model as the loop runs it. To be asked for once weights and buffers are those of the first step."""
        return Replica(self.model, self.world)

    def to_files(self) -> dict[str, bytes]:
        """The content of a checkpoint: file name → bytes. Every rank has to call it; it is empty but on rank 0."""
        ranks = self.world.all_gather(random_state(self.device))
        if not self.world.is_first:
            return {}
        rng: dict[str, Any] = ranks[0] if len(ranks) == 1 else {**ranks[0], "ranks": ranks[1:]}
        record = {
            "progress": asdict(self.progress),
            "fingerprint": self.fingerprint,
            "environment": self._environment(),
            "loss_scale": self.precision.state_dict(),
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
            # Releases before this one kept no hash of the config; the train.yaml is compared before in any case.
            if record["fingerprint"].get(name, sha256 if name == CONFIG else None) != sha256:
                raise CheckpointError(f"{path}: was trained with another {name}; use another --model_dir to start anew")
        try:
            self.model.load_state_dict(current_names(saved(files["model.pt"], path / "model.pt", self.device)))
        except RuntimeError as error:
            detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise CheckpointError(f"{path}: does not fit this model ({detail}); check --config") from error
        moments = saved(files["optimizer.pt"], path / "optimizer.pt", self.device)
        try:
            self.optimizer.load_state_dict(moments)
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path / 'optimizer.pt'}: is of another optimizer; {_EARLIER}") from error
        try:
            self.precision.load_state_dict(record.get("loss_scale", {}))
        except (KeyError, ValueError) as error:
            raise CheckpointError(_unreadable(path)) from error
        self.progress = _progress(record, path)
        try:
            self._restore_random(saved(files["rng.pt"], path / "rng.pt"), path)
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path / 'rng.pt'}: holds no random state; {_EARLIER}") from error
        self._warn_of_other_environment(record.get("environment", {}), path)

    def begin_random(self) -> None:
        """Before the first step of a fresh run: the ranks have drawn the same weights, and now go their own ways."""
        if not self.world.is_first:
            seed_rank(self.seed, self.progress.step, self.world.rank)

    def _restore_random(self, rng: dict[str, Any], path: Path) -> None:
        """The random state that this rank had; one that is new begins from the seed, the step and its number."""
        ranks, rank = [rng, *rng.get("ranks", [])], self.world.rank
        if rank < len(ranks):
            set_random_state(ranks[rank], self.device)
        else:
            seed_rank(self.seed, self.progress.step, rank)
        if len(ranks) != self.world.size and self.world.is_first:
            logger.warning(
                "%s: number of ranks was %d, is now %d: the order of batches is the same, batches a step and random "
                "numbers (of new ranks: from seed, step and rank) are not",
                *(path, len(ranks), self.world.size),
            )

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
        if changes and self.world.is_first:
            logger.warning("%s: %s; the result may differ in its last bits", path, "; ".join(changes))


def _to_bytes(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return loaded


def saved(content: bytes, where: Path, device: torch.device = _CPU) -> dict[str, Any]:
    """The dict that a file of a checkpoint holds. No code in it is ever run.

    Raises CheckpointError, one line, whatever is wrong with it: a manifest that fits says who wrote it, not what.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about the pickle protocol of odd files
            loaded = _from_bytes(content, device)
    except Exception as error:  # what a hostile file raises has no end: zip, pickle, struct, key, type …
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise CheckpointError(f"{where}: cannot be read ({reason}); {_EARLIER}") from error
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise CheckpointError(f"{where}: is no dict of names; {_EARLIER}")
    return loaded


def progress_of(path: Path) -> Progress:
    """The progress stored in a checkpoint folder, without reading the weights. Raises CheckpointError."""
    try:
        return _progress(json.loads((path / "state.json").read_text("utf-8")), path)
    except (OSError, ValueError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _progress(record: Any, path: Path) -> Progress:
    try:
        known = dict(record["progress"])
        cv_loss = known.pop("cv_loss", None)  # all that earlier releases kept of a validation
        progress = Progress(**known)
        if cv_loss is not None:
            progress.validations.append({"step": progress.step, "loss": cv_loss})
        return progress
    except (KeyError, TypeError) as error:
        raise CheckpointError(_unreadable(path)) from error


def _unreadable(path: Path) -> str:
    return f"{path}: state.json cannot be read; {_EARLIER}"
