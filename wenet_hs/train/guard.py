# SPDX-License-Identifier: Apache-2.0
"""What one step may meet: too little memory, and numbers that are not finite."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from wenet_hs.data.batching import Batch
from wenet_hs.devices import lacks_memory
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.model import AsrModel
from wenet_hs.nn.convolution import MaskedBatchNorm
from wenet_hs.train.state import Progress

MAX_SKIPPED_IN_A_ROW = 10

_NUM_NAMED = 5
_COMPILER = ("torch._inductor", "torch._dynamo")


@contextmanager
def naming_batch(batch: Batch, where: str) -> Iterator[None]:
    """Turn too little memory into one line that names the batch, and a compiler's fault into one. `where`: "step 812".

    Raises ConfigError. What the system itself kills for its memory cannot say anything.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if type(error).__module__.startswith(_COMPILER):  # its import takes seconds: known by its name
            detail = next(iter(str(error).splitlines()), "")
            raise ConfigError(
                f"{where}: compile: true: torch's compiler failed ({detail}); a kill may have left half a kernel: "
                "remove torch's cache (TORCHINDUCTOR_CACHE_DIR, or torchinductor_* of the temporary folder), or set "
                "compile: false"
            ) from error
        if not lacks_memory(error):
            raise
        longest = int(batch.feature_lengths.argmax())
        raise ConfigError(
            f"{where}: out of memory with {len(batch.keys)} utterances of up to {int(batch.feature_lengths.max())} "
            f"frames and {int(batch.target_lengths.max())} units, the longest {batch.keys[longest]}; lower batch_size "
            "or max_frames_in_batch of dataset_conf.batch_conf, filter_conf.max_length, or set "
            "encoder_conf.gradient_checkpointing"
        ) from error


class FiniteGuard:
    """Of one step: whether it may be taken, and the way back where it may not."""

    def __init__(self, model: AsrModel) -> None:
        """Before the forward pass, which changes the running statistics of batch normalisation.

        One value that is not finite would stay in them for the rest of the training.
        """
        self._statistics = [
            value for module in model.modules() if isinstance(module, MaskedBatchNorm) for value in module.buffers()
        ]
        self._before = [value.clone() for value in self._statistics]

    def took(self, progress: Progress) -> None:
        """The step was finite, and the optimizer took it."""
        progress.skipped_in_a_row = 0

    def left_out(self, progress: Progress, *, counts: bool) -> None:
        """The step was not finite: the running statistics become what they were, and it is counted.

        `counts`: whether it is one of those in a row that end training; a search for a loss scale makes some too.
        """
        for value, earlier in zip(self._statistics, self._before, strict=True):
            value.copy_(earlier)
        progress.skipped_steps += 1
        progress.skipped_in_a_row += int(counts)


def suspects(window: Sequence[Batch], totals: Sequence[float]) -> tuple[str, ...]:
    """Keys of the utterances for which a step may have been left out, at most five of a batch.

    Args:
        totals: the loss of each batch. Where some are not finite, these batches alone are meant, and in each the
            utterances whose features are not finite, if there are any.
    """
    spoilt = [batch for batch, total in zip(window, totals, strict=True) if not math.isfinite(total)]
    return tuple(key for batch in spoilt or window for key in (_not_finite(batch) or batch.keys)[:_NUM_NAMED])


def _not_finite(batch: Batch) -> list[str]:
    is_finite_B = torch.isfinite(batch.features).flatten(1).all(dim=1).tolist()
    return [key for key, is_finite in zip(batch.keys, is_finite_B, strict=True) if not is_finite]


def refuse_many(progress: Progress, keys: Sequence[str]) -> None:
    """Raise DataError when so many steps in a row were left out that training is of no use any more."""
    if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise DataError(
            f"step {progress.step}: loss or gradient not finite {progress.skipped_in_a_row} times in a row, last with "
            f"{', '.join(keys)}; look at these utterances, or train with a lower optim_conf.lr in another --model_dir"
        )
