# SPDX-License-Identifier: Apache-2.0
"""The random numbers that a step draws on this rank (dropout, above all), and their way into a checkpoint."""

from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of torch's generators, tensors by name."""
    rng: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(device)
    return rng


def set_random_state(rng: dict[str, Any], device: torch.device) -> None:
    """Go on where `random_state` was called."""
    torch.set_rng_state(rng["torch"])
    if device.type == "cuda" and "cuda" in rng:
        torch.cuda.set_rng_state(rng["cuda"], device)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Begin anew on a rank that has no state to go on from: a pure function of the three."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1))
