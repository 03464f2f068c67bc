# SPDX-License-Identifier: Apache-2.0
"""The batched, cached beam search against searches that do neither."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_UNITS, SPECIAL, small_model
from torch import Tensor

from wenet_hs.decode.attention import attention_beam_search
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.heads.base import OutputHead
from wenet_hs.model import AsrModel

HEADS = {
    "softmax": {"head": "softmax"},
    "hsoftmax": {"head": "hsoftmax", "head_conf": {"tree": "tree.json"}},
}


@pytest.fixture(scope="module", params=HEADS)
def model(request: pytest.FixtureRequest) -> AsrModel:
    found = small_model(seed=3, **HEADS[request.param])
    with torch.no_grad():  # flat distributions would make every search look alike
        for parameter in found.head.parameters():
            parameter.mul_(6.0)
    return found


def memory_of(seed: int, *lengths: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), 16, generator=generator), torch.tensor(lengths)


def search(
    model: AsrModel, memory: tuple[Tensor, Tensor], beam_size: int, penalty: float = 0.0
) -> list[list[Hypothesis]]:
    with torch.no_grad():
        return attention_beam_search(model, *memory, DecodeOptions(beam_size=beam_size, length_penalty=penalty))


def next_log_probs(model: AsrModel, memory: tuple[Tensor, Tensor], prefixes: list[tuple[int, ...]]) -> Tensor:
    """(N, L + 1, V): the distribution behind each position, the whole sequences at once, without a cache."""
    units_in = torch.tensor([(SPECIAL.sos, *ids) for ids in prefixes])
    count = len(prefixes)
    with torch.no_grad():
        hidden = model.decoder(
            memory[0].expand(count, -1, -1), memory[1].expand(count), units_in, torch.full((count,), units_in.size(1))
        )
        return model.head.log_probs(hidden)


def every_hypothesis(model: AsrModel, memory: tuple[Tensor, Tensor]) -> dict[tuple[int, ...], float]:
    """All sequences up to the limit: ended where there is room for the end, else cut off."""
    limit = int(memory[1])
    scores = {}
    ordinary = [unit for unit in range(NUM_UNITS) if unit != SPECIAL.eos]
    for length in range(limit + 1):
        sequences = list(itertools.product(ordinary, repeat=length))
        log_probs = next_log_probs(model, memory, sequences)
        for row, ids in enumerate(sequences):
            targets = ids if length == limit else (*ids, SPECIAL.eos)
            scores[ids] = sum(float(log_probs[row, position, unit]) for position, unit in enumerate(targets))
    return scores


@pytest.mark.parametrize("limit", [1, 2])
def test_a_beam_that_holds_everything_is_exhaustive(model: AsrModel, limit: int) -> None:
    memory = memory_of(limit, limit)
    expected = every_hypothesis(model, memory)
    (found,) = search(model, memory, NUM_UNITS**limit + 5)  # larger than the vocabulary, too
    assert len(found) == len(expected)
    assert {h.ids: pytest.approx(h.score, abs=1e-4) for h in found} == expected
    assert found[0].ids == max(expected, key=lambda ids: expected[ids])


@pytest.mark.parametrize("seed", range(4))
def test_beam_one_is_greedy_step_by_step(model: AsrModel, seed: int) -> None:
    memory = memory_of(seed, 9)
    ids: tuple[int, ...] = ()
    score = 0.0
    for _ in range(9):
        best = next_log_probs(model, memory, [ids])[0, -1].max(-1)
        score += float(best.values)
        if int(best.indices) == SPECIAL.eos:
            break
        ids = (*ids, int(best.indices))
    ((found,),) = search(model, memory, 1)
    assert found.ids == ids
    assert found.score == pytest.approx(score, abs=1e-4)


def plain_beam_search(
    model: AsrModel, memory: tuple[Tensor, Tensor], beam_size: int
) -> list[tuple[tuple[int, ...], float]]:
    """WeNet's algorithm for one utterance, without cache or batch."""
    beam: list[tuple[float, tuple[int, ...], bool]] = [(0.0, (), False)]
    for _ in range(int(memory[1])):
        if all(ended for _, _, ended in beam):
            break
        candidates = []
        for score, ids, ended in beam:
            if ended:
                candidates.append((score, ids, True))
                continue
            values, units = next_log_probs(model, memory, [ids])[0, -1].topk(min(beam_size, NUM_UNITS))
            for value, unit in zip(values.tolist(), units.tolist(), strict=True):
                end = unit == SPECIAL.eos
                candidates.append((score + value, ids if end else (*ids, unit), end))
        beam = sorted(candidates, reverse=True)[:beam_size]
    return [(ids, score) for score, ids, _ in beam]


@settings(max_examples=15, deadline=None, derandomize=True)  # a near tie may fall either way
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    beam_size=st.sampled_from([1, 2, 4, 13]),
)
def test_batched_with_cache_is_each_alone_without(
    model: AsrModel, seed: int, lengths: list[int], beam_size: int
) -> None:
    memory, limits = memory_of(seed, *lengths)
    found = search(model, (memory, limits), beam_size)
    for row, limit in enumerate(lengths):
        expected = plain_beam_search(model, (memory[row : row + 1, :limit], torch.tensor([limit])), beam_size)
        assert [h.ids for h in found[row]] == [ids for ids, _ in expected]
        assert [h.score for h in found[row]] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_length_penalty_divides_by_units_and_puts_the_empty_hypothesis_last(model: AsrModel) -> None:
    memory = memory_of(5, 2)
    plain = {h.ids: h.score for h in search(model, memory, 200)[0]}
    found = search(model, memory, 200, penalty=1.5)[0]
    assert found[-1].ids == ()
    assert found[-1].score == pytest.approx(plain[()])
    for hypothesis in found[:-1]:
        assert hypothesis.score == pytest.approx(plain[hypothesis.ids] / len(hypothesis.ids) ** 1.5)
    assert [h.score for h in found[:-1]] == sorted((h.score for h in found[:-1]), reverse=True)


class SameProbabilities(OutputHead):
    """Another head's log-probabilities, everything else by the base class."""

    def __init__(self, other: OutputHead) -> None:
        super().__init__(other.dim, other.num_units)
        self.other = other

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self.other.log_probs(hidden_ND)

    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        raise NotImplementedError


def test_the_search_depends_on_probabilities_alone(model: AsrModel) -> None:
    memory = memory_of(11, 8, 3)
    expected = search(model, memory, 5)
    original, model.head = model.head, SameProbabilities(model.head)
    try:
        found = search(model, memory, 5)
    finally:
        model.head = original
    assert [[h.ids for h in nbest] for nbest in found] == [[h.ids for h in nbest] for nbest in expected]


class SpyingHead(SameProbabilities):
    """Counts the rows asked for."""

    rows: list[int]

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.rows.append(len(hidden))
        return super().topk(hidden, k)


def test_what_has_ended_is_not_computed(model: AsrModel) -> None:
    spy = SpyingHead(model.head)
    spy.rows = []
    original, model.head = model.head, spy
    try:
        search(model, memory_of(2, 6, 1, 3), 2)
    finally:
        model.head = original
    assert spy.rows[0] == 3  # one hypothesis each: no place is computed before there is one
    assert spy.rows[1] <= 4
    assert len(spy.rows) <= 6
    assert spy.rows[3:] and max(spy.rows[3:]) <= 2
