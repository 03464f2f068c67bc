# SPDX-License-Identifier: Apache-2.0
"""Batched searches against plain ones: random models of every head, settings, lengths; CTC's prefix sums by hand."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from plain_search import Ids, agree, ctc_sums, finished_list, wenet_search
from small_models import NUM_UNITS, SPECIAL, small_model
from torch import Tensor

from wenet_hs.decode import beam as beam_module
from wenet_hs.decode.attention import attention_beam_search
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.joint import CtcPrefixScorer, finished_list_search
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.model import AsrModel

TREE = {"tree": "tree.json"}
HEADS = {
    "softmax": {},
    "hsoftmax": {"head": "hsoftmax", "head_conf": TREE},
    "class": {"head": "class", "head_conf": TREE},
    "adaptive": {"head": "adaptive", "head_conf": {**TREE, "cutoffs": [3, 6]}},
}
ONE_BLOCK = {"encoder_conf": {"num_blocks": 1}, "decoder_conf": {"num_blocks": 1}}


@cache
def model_of(head: str) -> AsrModel:
    return small_model(**ONE_BLOCK, **HEADS[head])


@torch.no_grad()
def random_model(head: str, seed: int) -> AsrModel:
    """New weights; sharp heads, or all hypotheses would look alike."""
    model, generator = model_of(head), torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.startswith(("decoder.", "head.", "ctc.")) and "norm" not in name:
            scale = 1.2 if "head." in name else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model


class PairModel(LanguageModel):
    """A table of random bigrams. A state is the last unit."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table_VV = (2 * torch.randn(NUM_UNITS, NUM_UNITS, generator=generator)).log_softmax(-1)

    def start(self, count: int) -> Tensor:
        return torch.full((count,), SPECIAL.sos)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        return self.table_VV[states[:, None], ids]

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        return ids

    def plain(self, history: Ids, unit: int) -> float:
        return float(self.table_VV[history[-1] if history else SPECIAL.sos, unit])


def random_case(seed: int) -> tuple[tuple[Tensor, Tensor], DecodeOptions, PairModel | None, float | None]:
    """Memory and lengths of a batch, settings, a language model or none, CTC's weight or None for WeNet's search."""
    generator = torch.Generator().manual_seed(seed)

    def pick(values: Sequence[float]) -> float:
        return values[int(torch.randint(len(values), (), generator=generator))]

    lengths = torch.randint(1, 8, (int(pick((1, 2, 3))),), generator=generator)
    memory = 2 * torch.randn(len(lengths), int(lengths.max()), 16, generator=generator)
    size, most = int(pick((1, 2, 3, 5, 13))), pick((1.0, 1.0, 0.5, 1.3))
    lm = PairModel(seed) if seed % 3 == 1 else None
    options = DecodeOptions(
        beam_size=size,
        nbest=pick((None, 1, min(2, size))),  # type: ignore[arg-type]
        length_penalty=pick((0.0, 0.0, 0.7, 1.0)),
        max_len_ratio=most,
        min_len_ratio=pick((0.0, 0.0, 0.3)) * most,
        lm_weight=pick((0.3, 1.0)) if lm else 0.0,
        length_bonus=pick((0.0, 0.8, -0.4)) if lm else 0.0,
    )
    return (memory, lengths), options, lm, pick((None, 0.0, 0.3, 1.0))  # type: ignore[arg-type]


def check(head: str, seed: int) -> None:
    model = random_model(head, seed)
    (memory, lengths), options, lm, ctc_weight = random_case(seed)
    plain_lm = lm.plain if lm else None
    with torch.no_grad():
        if ctc_weight is None:
            found = attention_beam_search(model, memory, lengths, options, lm)
        else:
            found = finished_list_search(model, memory, lengths, options, ctc_weight=ctc_weight, lm=lm)
    for row, length in enumerate(lengths.tolist()):
        alone = (memory[row : row + 1, :length], lengths[row : row + 1])
        if ctc_weight is None:
            expected = wenet_search(model, alone, options, plain_lm)
        else:
            expected = finished_list(model, alone, options, ctc_weight, plain_lm)
        agree(found[row], expected)


@pytest.mark.parametrize("head", HEADS)
def test_fifty_random_models_and_settings(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_module, "_COMPACT_ABOVE", 6)
    for seed in range(list(HEADS).index(head), 50, len(HEADS)):
        check(head, seed)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_a_thousand_more(head: str) -> None:
    for seed in range(50, 300):
        check(head, seed)


def test_a_device_that_is_asked_every_eighth_step_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: all places are computed, and ends are seen late."""
    for seed in range(8):
        model = random_model("hsoftmax", seed)
        (memory, lengths), options, lm, ctc_weight = random_case(seed)
        results = []
        for check_every in (None, 8):
            with monkeypatch.context() as patch, torch.no_grad():
                if check_every:
                    patch.setattr(beam_module.Beam, "sync_is_free", staticmethod(lambda device: False))
                if ctc_weight is None:
                    results.append(attention_beam_search(model, memory, lengths, options, lm))
                else:
                    weight = ctc_weight
                    results.append(finished_list_search(model, memory, lengths, options, ctc_weight=weight, lm=lm))
        for nbest, others in zip(*results, strict=True):
            agree(others, [(h.ids, h.score) for h in nbest])


# ---- CTC's prefix sums


def alignments(probs_TV: Tensor) -> Iterator[tuple[Ids, float]]:
    """The text of every alignment, blank being unit 0, and its probability."""
    frames, units = probs_TV.shape
    for alignment in itertools.product(range(units), repeat=frames):
        text = tuple(unit for unit, _ in itertools.groupby(alignment) if unit)
        yield text, math.prod(float(probs_TV[t, unit]) for t, unit in enumerate(alignment))


def test_prefix_sums_are_sums_over_all_alignments() -> None:
    """Two utterances of 4 and 3 frames, two hypotheses each, one of them repeating its unit."""
    generator = torch.Generator().manual_seed(4)
    log_probs = torch.randn(2, 4, 3, generator=generator).double().log_softmax(-1)
    lengths = torch.tensor([4, 3])
    scorer = CtcPrefixScorer(log_probs, lengths, 0, 2)
    texts: list[list[Ids]] = [[(), ()], [(), ()]]
    for parents, units in (([[0, 0], [1, 0]], [[1, 2], [2, 1]]), ([[0, 1], [1, 1]], [[1, 1], [1, 2]])):
        every = torch.arange(3).expand(2, 2, 3)
        scores, ends = scorer.prefix_scores(every).exp(), scorer.text_scores().exp()
        for b, length in enumerate(lengths.tolist()):
            ways = list(alignments(log_probs[b, :length].double().exp()))
            probs = log_probs[b, :length].double().exp().tolist()
            for n, text in enumerate(texts[b]):
                whole = sum(p for found, p in ways if found == text)
                assert float(ends[b, n]) == pytest.approx(whole, rel=1e-9)
                for unit in (1, 2):
                    longer = (*text, unit)
                    expected = sum(p for found, p in ways if found[: len(longer)] == longer)
                    assert float(scores[b, n, unit]) == pytest.approx(expected, rel=1e-9, abs=1e-300)
                    assert ctc_sums(probs, longer, 0)[0] == pytest.approx(expected, rel=1e-9, abs=1e-300)
                assert float(scores[b, n, 0]) == 0.0
        scorer.advance(torch.tensor(parents), torch.tensor(units))
        pairs = [list(zip(*row, strict=True)) for row in zip(parents, units, strict=True)]
        texts = [[(*texts[b][parent], unit) for parent, unit in row] for b, row in enumerate(pairs)]


def test_prefix_sums_survive_two_thousand_frames_and_impossible_units() -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs = (8 * torch.randn(1, 2000, 4, generator=generator)).log_softmax(-1)
    log_probs[0, 100:200, 3] = -math.inf
    scorer = CtcPrefixScorer(log_probs, torch.tensor([2000]), 0, 1)
    ids: list[int] = []
    for unit in (1, 3, 3, 2):
        score = float(scorer.prefix_scores(torch.tensor([[[unit]]])))
        ids.append(unit)
        scorer.advance(torch.tensor([[0]]), torch.tensor([[unit]]))
        assert score == pytest.approx(logarithmic_sum(log_probs[0].double().tolist(), ids), abs=1e-6)


def logarithmic_sum(log_probs_TV: list[list[float]], ids: list[int]) -> float:
    """The first of `plain_search.ctc_sums`, in logarithms."""
    in_unit = [-math.inf] * len(log_probs_TV)
    in_blank = list(itertools.accumulate(row[0] for row in log_probs_TV))
    prefix = 0.0
    for index, unit in enumerate(ids):
        new_unit, new_blank, prefix = [-math.inf], [-math.inf], -math.inf
        for t, row in enumerate(log_probs_TV):
            before = 0.0 if index == 0 and t == 0 else -math.inf
            if t:
                repeats = index > 0 and ids[index - 1] == unit
                before = in_blank[t - 1] if repeats else log_add(in_blank[t - 1], in_unit[t - 1])
            prefix = log_add(prefix, before + row[unit])
            new_blank.append(log_add(new_blank[-1], new_unit[-1]) + row[0])
            new_unit.append(log_add(new_unit[-1], before) + row[unit])
        in_unit, in_blank = new_unit[1:], new_blank[1:]
    return prefix


def log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
