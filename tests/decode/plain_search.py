# SPDX-License-Identifier: Apache-2.0
"""Reference searches without batch, cache, early stop or logarithms, for one utterance; all
alignments of CTC.

The searches of the package are tested against them. A language model is a function of history and
unit.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.model.asr_model import AsrModel

Ids = tuple[int, ...]
Memory = tuple[Tensor, Tensor]
"""Of the encoder, and its lengths."""
Scored = list[tuple[Ids, float]]
Lm = Callable[[Ids, int], float]
"""(history, unit or end) → natural logarithm."""


@torch.no_grad()
def next_log_probs(model: AsrModel, memory: Memory, prefixes: list[Ids]) -> Tensor:
    """(N, V): the distribution after each prefix; all have the same length."""
    units_in = torch.tensor([(model.special.sos, *ids) for ids in prefixes])
    size = torch.full((len(prefixes),), units_in.size(1))
    rows = [part.expand(len(prefixes), *part.shape[1:]) for part in memory]
    return model.head.log_probs(model.left[0](*rows, units_in, size)[:, -1]).double()


def bounds(frames: int, options: DecodeOptions) -> tuple[int, int]:
    max_units = max(1, math.floor(frames * options.max_len_ratio + 1e-9))
    return min(max_units, math.floor(frames * options.min_len_ratio + 1e-9)), max_units


def wenet_search(
    model: AsrModel, memory: Memory, options: DecodeOptions, lm: Lm | None = None
) -> Scored:
    """WeNet's rules: finished hypotheses stay in the beam."""
    min_units, max_units = bounds(int(memory[1]), options)
    size, fuses = options.beam_size, lm is not None or options.length_bonus != 0
    wide = size * (2 if fuses else 1) + (options.min_len_ratio > 0)
    beam: list[tuple[float, Ids, bool]] = [(0.0, (), False)]
    for length in range(max_units):
        live = [ids for _, ids, ended in beam if not ended]
        rows = dict(zip(live, next_log_probs(model, memory, live), strict=True)) if live else {}
        candidates = []
        for score, ids, ended in beam:
            if ended:
                candidates.append((score, ids, True))
                continue
            values, units = rows[ids].topk(min(wide, len(rows[ids])))
            for value, unit in zip(values.tolist(), units.tolist(), strict=True):
                ends = unit == model.special.eos
                added = fusion_score(model, options, lm, (ids, unit))
                if not ends or length >= min_units:
                    candidates.append((score + value + added, ids if ends else (*ids, unit), ends))
        beam = sorted(candidates, key=lambda candidate: candidate[0], reverse=True)[:size]
    power = options.length_penalty
    scored = [(ids, score / len(ids) ** power if ids else score) for score, ids, _ in beam]
    ranked = sorted(scored, key=lambda found: (bool(found[0]) or not power, found[1]), reverse=True)
    return ranked[: options.nbest]


def finished_list(
    model: AsrModel, memory: Memory, options: DecodeOptions, ctc_weight: float, lm: Lm | None = None
) -> Scored:
    """Finished hypotheses go to a list. The search always continues to the length limit."""
    (min_units, max_units), eos = bounds(int(memory[1]), options), model.special.eos
    probs_TV = None
    if ctc_weight:
        with torch.no_grad():
            probs_TV = model.ctc.log_probs(memory[0])[0, : int(memory[1])].double().exp().tolist()
    beam: list[tuple[float, Ids]] = [(0.0, ())]  # scores without CTC's
    ended: list[tuple[float, Ids]] = []
    for length in range(max_units + 1):
        log_probs = next_log_probs(model, memory, [ids for _, ids in beam])
        candidates = []
        for (score, ids), row in zip(beam, log_probs, strict=True):
            if length >= min_units:
                whole = (
                    score
                    + (1 - ctc_weight) * float(row[eos])
                    + fusion_score(model, options, lm, (ids, eos))
                )
                whole += (
                    ctc_weight * log(ctc_sums(probs_TV, ids, model.ctc.blank)[1])
                    if probs_TV
                    else 0.0
                )
                ended.append((whole / max(1, length) ** options.length_penalty, ids))
            values, units = row.topk(min(2 * options.beam_size + 1, len(row)))
            for value, unit in zip(values.tolist(), units.tolist(), strict=True):
                if unit == eos or (probs_TV and unit == model.ctc.blank):
                    continue
                longer = (*ids, unit)
                part = (
                    score + (1 - ctc_weight) * value + fusion_score(model, options, lm, (ids, unit))
                )
                by_ctc = (
                    ctc_weight * log(ctc_sums(probs_TV, longer, model.ctc.blank)[0])
                    if probs_TV
                    else 0.0
                )
                candidates.append((part + by_ctc, part, longer))
        best = sorted(candidates, key=lambda candidate: candidate[0], reverse=True)[
            : options.beam_size
        ]
        beam = [(part, ids) for total, part, ids in best if total > -math.inf]
        if not beam:
            break
    ranked = sorted(
        ((ids, score) for score, ids in ended if score > -math.inf),
        key=lambda x: x[1],
        reverse=True,
    )
    return ranked[: options.nbest or options.beam_size] or [((), 0.0)]


def fusion_score(
    model: AsrModel, options: DecodeOptions, lm: Lm | None, candidate: tuple[Ids, int]
) -> float:
    """Language model score and length bonus of a unit after its history."""
    bonus = 0.0 if candidate[1] == model.special.eos else options.length_bonus
    return bonus + (options.lm_weight * lm(*candidate) if lm is not None else 0.0)


def assert_same_nbest(found: Sequence[Hypothesis], expected: Scored) -> None:
    """Scores are equal; units are equal unless two scores are almost equal.

    Raises AssertionError.
    """
    assert len(found) == len(expected)
    for rank, (hypothesis, (ids, score)) in enumerate(zip(found, expected, strict=True)):
        assert abs(hypothesis.score - score) <= 2e-4 * max(1.0, abs(score) / 10), (
            f"rank {rank}: {hypothesis}, {score}"
        )
        others = [other for place, (_, other) in enumerate(expected) if place != rank]
        if all(abs(other - score) > 1e-3 for other in others) and rank < len(expected) - 1:
            assert hypothesis.ids == ids, f"rank {rank}: {hypothesis.ids}, {ids}"
    assert len({hypothesis.ids for hypothesis in found}) == len(found)


def ctc_sums(probs_TV: list[list[float]], ids: Ids, blank: int) -> tuple[float, float]:
    """The sum over alignments of all texts that begin with `ids`, and of `ids` itself: Watanabe et
    al., algorithm 2.
    """
    in_unit, in_blank, prefix = [0.0] * len(probs_TV), [0.0] * len(probs_TV), 1.0
    total = 1.0
    for t, probs in enumerate(probs_TV):
        total *= probs[blank]
        in_blank[t] = total
    for index, unit in enumerate(ids):
        new_unit, new_blank, prefix = [], [], 0.0
        for t, probs in enumerate(probs_TV):
            if t == 0:
                before = 1.0 if index == 0 else 0.0
            else:
                before = in_blank[t - 1] + (
                    in_unit[t - 1] if index == 0 or ids[index - 1] != unit else 0.0
                )
            prefix += before * probs[unit]
            new_unit.append(((new_unit[-1] if t else 0.0) + before) * probs[unit])
            new_blank.append((new_blank[-1] + new_unit[-2]) * probs[blank] if t else 0.0)
        in_unit, in_blank = new_unit, new_blank
    return prefix, in_unit[-1] + in_blank[-1]


def log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def random_log_probs(seed: int, *shape: int) -> Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def ctc_paths(log_probs_TV: Tensor) -> Iterator[tuple[Ids, float]]:
    """The text and the log-probability of every alignment; blank is unit 0."""
    log_probs = log_probs_TV.tolist()
    for path in itertools.product(range(log_probs_TV.size(1)), repeat=len(log_probs)):
        text = tuple(unit for unit, _ in itertools.groupby(path) if unit)
        yield text, sum(row[unit] for row, unit in zip(log_probs, path, strict=True))


def ctc_texts(log_probs_TV: Tensor) -> dict[Ids, float]:
    """Every text with the log of the sum over its alignments."""
    sums: dict[Ids, float] = {}
    for text, score in ctc_paths(log_probs_TV):
        sums[text] = sums.get(text, 0.0) + math.exp(score)
    return {text: math.log(total) for text, total in sums.items()}
