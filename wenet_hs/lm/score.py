# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text by a recurrent language model, and sentences drawn from the model.

Dimension key: B parts of the text, T steps, D width, S values of a state, N targets, V units.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from wenet_hs.lm.recurrent import RnnLm
from wenet_hs.lm.text import NO_TARGET, RunningText, TextBatch
from wenet_hs.text.units import SpecialIds

_LARGEST_EXPONENT = 709.0
"""exp of a little more is too large for a float."""


def head_inputs(model: RnnLm, batch: TextBatch, state_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrent layers over a batch, and collect what the head needs to compute the loss.

    Args:
        batch: (B, T), on any device. After the end of the text its targets are `NO_TARGET`.
        state_BS: the state before the batch, on the device of the model.
    Returns:
        (N, D) the head's input for each target; (N,) the targets, without positions after the end
        of the text; (B, S) the state after the batch.
    """
    device = state_BS.device
    hidden_BTD, after_BS = model(batch.inputs.to(device), state_BS)
    targets_BT = batch.targets.to(device)
    is_target_BT = targets_BT != NO_TARGET
    # Only the batch at the end of the text has positions without a target. In all others nothing
    # has to be selected.
    if bool(is_target_BT.all()):
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
    """The sum of -log p, in nats, over all units of a text; None if it was stopped.

    It is computed in evaluation mode. Afterwards the model is in the mode that it was in.

    Args:
        parts: B, how many parts of the text are read side by side. Each starts with an empty state.
            A short text has no more parts than units.
        num_steps: T, how many units of each part are computed at once.
        is_stopped: asked after each batch, and once more at the end. If it returns True, the
            computation ends and the result is None. The default is never to stop.
    """
    was_training = model.training
    model.eval()
    num_parts = min(parts, len(text))
    state_BS = model.start(num_parts)
    total = 0.0
    for batch in text.batches(num_parts, num_steps):
        hidden_ND, targets_N, state_BS = head_inputs(model, batch, state_BS)
        nll_N = model.head.nll(hidden_ND, targets_N)
        total += float(nll_N.double().sum())
        if is_stopped():
            break
    model.train(was_training)
    return None if is_stopped() else total


def perplexity(loss: float) -> float:
    """exp of a loss in nats per unit; infinite where a float cannot hold it."""
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def text_scores(total: float, text: RunningText) -> dict[str, float]:
    """The scores of a text by their names in the JSON of `lm score`.

    Args:
        total: the sum of -log p over the text, in nats.
        text: its units include the ends of sentences.
    """
    nats_per_unit = total / len(text)
    bits = total / math.log(2)
    return {
        "perplexity": perplexity(nats_per_unit),
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
    """Draw sentences from the model, each in the context of those before it.

    The same seed gives the same sentences. <blank> is never drawn.

    Args:
        special: the special ids of the model's units.
        count: how many sentences.
        temperature: > 0; the log-probabilities are divided by it.
        max_units: a longer sentence is ended there.
    Yields: the unit ids of each sentence, without its end.
    """
    generator = torch.Generator().manual_seed(seed)
    state_1S = model.start(1)
    last_unit = special.eos
    for _ in range(count):
        sentence: list[int] = []
        while len(sentence) < max_units:
            input_11 = torch.tensor([[last_unit]], device=state_1S.device)
            _, state_1S = model(input_11, state_1S)
            log_probs_V = model.head.log_probs(model.head_input(state_1S))[0].cpu()
            log_probs_V[special.blank] = -torch.inf
            probs_V = (log_probs_V / temperature).softmax(-1)
            last_unit = int(torch.multinomial(probs_V, 1, generator=generator))
            if last_unit == special.eos:
                break
            sentence.append(last_unit)
        last_unit = special.eos  # also after a sentence that was ended at `max_units`
        yield sentence
