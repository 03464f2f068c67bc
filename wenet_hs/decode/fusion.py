# SPDX-License-Identifier: Apache-2.0
"""Shallow fusion (Gulcehre et al. 2015): what a language model and a bonus for each unit add to a search's scores.

Dimension key: B utterances still searched, N beam, K candidates for each hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.lm import LanguageModel


class Fusion:
    """The states of the language model behind the hypotheses of a beam."""

    WIDER = 2
    """How many times as many candidates a search takes from its head before this is added."""

    def __init__(
        self, lm: LanguageModel | None, options: DecodeOptions, shape: Sequence[int], device: torch.device
    ) -> None:
        self._lm, self._weight, self._bonus = lm, options.lm_weight, options.length_bonus
        self._states = None if lm is None else _beams(lm.start(shape[0] * shape[1]).to(device), shape)

    @staticmethod
    def of(
        lm: LanguageModel | None, options: DecodeOptions, shape: Sequence[int], device: torch.device
    ) -> Fusion | None:
        """None where nothing is to be added."""
        lm = lm if options.lm_weight else None
        return None if lm is None and not options.length_bonus else Fusion(lm, options, shape, device)

    def gains(self, ids: Tensor, eos: int) -> Tensor:
        """What each candidate (B, N, K) of the hypotheses adds, (B, N, K) float32."""
        gains_BNK = torch.where(ids == eos, 0.0, self._bonus)
        if self._lm is None or self._states is None:
            return gains_BNK
        log_probs = self._lm.score(self._states.flatten(0, 1), ids.flatten(0, 1))
        return gains_BNK + self._weight * log_probs.view_as(ids)

    def advance(self, parents: Tensor, units: Tensor) -> None:
        """Hypotheses of places `parents` (B, N) and `units` (B, N) behind them take the places."""
        if self._lm is None or self._states is None:
            return
        rows_B1 = torch.arange(len(parents), device=parents.device)[:, None]
        states = self._states[rows_B1, parents]
        self._states = _beams(self._lm.advance(states.flatten(0, 1), units.flatten()), units.shape)

    def keep(self, rows: Tensor) -> None:
        """Go on with the utterances `rows` (B',) alone."""
        if self._states is not None:
            self._states = self._states[rows]


def _beams(states_M: Tensor, shape: Sequence[int]) -> Tensor:
    """(B · N, …) → (B, N, …)."""
    return states_M.view(*shape[:2], *states_M.shape[1:])


def sequence_gains(
    lm: LanguageModel | None, options: DecodeOptions, sequences: Sequence[Sequence[int]], eos: int
) -> list[float]:
    """What a whole sequence of units and its end add, of each sequence."""
    gains = [options.length_bonus * len(ids) for ids in sequences]
    if lm is None or not options.lm_weight:
        return gains
    states, log_probs = lm.start(len(sequences)), [0.0] * len(sequences)
    for position in range(1 + max(map(len, sequences), default=0)):
        units = torch.tensor([ids[position] if position < len(ids) else eos for ids in sequences])
        scores = lm.score(states, units[:, None])[:, 0].tolist()
        for row, ids in enumerate(sequences):
            log_probs[row] += scores[row] if position <= len(ids) else 0.0
        states = lm.advance(states, units)
    return [gain + options.lm_weight * log_prob for gain, log_prob in zip(gains, log_probs, strict=True)]
