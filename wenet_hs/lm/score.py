# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text by a language model, and sentences drawn from the model.

Dimension key: B parts of the text, T steps, D width, S values of a state, N targets, V units.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from wenet_hs.lm.recurrent import RnnLm
from wenet_hs.lm.text import RunningText, TextBatch
from wenet_hs.text.units import SpecialIds


def head_inputs(model: RnnLm, batch: TextBatch, state_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The head's inputs (N, D) and targets (N,) of a batch, and the state after it (B, S)."""
    device = state_BS.device
    hidden_BTD, after_BS = model(batch.inputs.to(device), state_BS)
    targets_BT = batch.targets.to(device)
    is_target_BT = targets_BT >= 0
    if bool(is_target_BT.all()):  # except at the end of the text
        return hidden_BTD.flatten(0, 1), targets_BT.flatten(), after_BS
    return hidden_BTD[is_target_BT], targets_BT[is_target_BT], after_BS


@torch.no_grad()
def text_nll(
    model: RnnLm,
    text: RunningText,
    *,
    parts: int = 1,
    num_steps: int = 200,
    is_stopped: Callable[[], bool] = lambda: False,
) -> float | None:
    """The sum of the nats of all units of a text, in evaluation mode; None if `is_stopped` before
    the end.

    Args:
        parts: parts of the text that are read side by side; each starts with an empty state.
    """
    was_training = model.training
    model.eval()
    state_BS, total = model.start(min(parts, len(text))), 0.0
    for batch in text.batches(len(state_BS), num_steps):
        hidden_ND, targets_N, state_BS = head_inputs(model, batch, state_BS)
        total += float(model.head.nll(hidden_ND, targets_N).double().sum())
        if is_stopped():
            break
    model.train(was_training)
    return None if is_stopped() else total


def perplexity(loss: float) -> float:
    """exp of nats per unit; infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 709.0 else math.inf


def text_scores(total: float, text: RunningText) -> dict[str, float]:
    """The scores of a text from the sum of its nats, `text_nll`; a unit is a target, also an end of
    sentence.
    """
    bits = total / math.log(2)
    return {
        "perplexity": perplexity(total / len(text)),
        "bits_per_unit": bits / len(text),
        "bits_per_character": bits / text.num_characters,
        "nats": total,
        "num_units": len(text),
        "num_characters": text.num_characters,
        "num_sentences": text.num_sentences,
        "num_unknown": text.num_unknown,
    }


@torch.no_grad()
def sample_sentences(
    model: RnnLm, special: SpecialIds, count: int, *, temperature: float, max_units: int, seed: int
) -> Iterator[list[int]]:
    """Draw sentences one after the other from the running text of the model, as unit ids without
    the end.

    Args:
        temperature: > 0; the log-probabilities are divided by it.
        max_units: a longer sentence is ended there.
    """
    generator = torch.Generator().manual_seed(seed)
    state, unit = model.start(1), special.eos
    for _ in range(count):
        sentence: list[int] = []
        while len(sentence) < max_units:
            _, state = model(torch.tensor([[unit]], device=state.device), state)
            log_probs_V = model.head.log_probs(model.head_input(state))[0].cpu()
            log_probs_V[special.blank] = -torch.inf
            weights_V = (log_probs_V / temperature).softmax(-1)
            unit = int(torch.multinomial(weights_V, 1, generator=generator))
            if unit == special.eos:
                break
            sentence.append(unit)
        unit = special.eos
        yield sentence
