# SPDX-License-Identifier: Apache-2.0
"""Batched decoder searches against plain ones: random models of every head and options; CTC prefix
sums by hand.
"""

import math
from collections.abc import Sequence
from functools import cache
from unittest.mock import Mock

import pytest
import torch
from plain_search import (
    Ids,
    Memory,
    assert_same_nbest,
    ctc_sums,
    ctc_texts,
    finished_list,
    random_log_probs,
    wenet_search,
)
from small_models import NUM_UNITS, SPECIAL, small_model
from torch import Tensor

from wenet_hs.decode import DecodeOptions, attention_search
from wenet_hs.decode.attention_search import AttentionSearch, BeamSearch
from wenet_hs.decode.joint import CtcPrefixScorer, FinishedListSearch
from wenet_hs.lm.language_model import LanguageModel
from wenet_hs.model.asr_model import AsrModel

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
    return small_model(**ONE_BLOCK, **HEADS[head]).requires_grad_(False)


def random_model(head: str, seed: int) -> AsrModel:
    """New weights. Large head weights, so that hypotheses differ."""
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

    def start(self, count: int, device: torch.device | None = None) -> Tensor:
        return torch.full((count,), SPECIAL.sos)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        return self.table_VV[states[:, None], ids]

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        return ids

    def plain(self, history: Ids, unit: int) -> float:
        return float(self.table_VV[history[-1] if history else SPECIAL.sos, unit])


def random_case(seed: int) -> tuple[Memory, DecodeOptions, PairModel | None, float | None]:
    """Memory and lengths of a batch, options, language model, and CTC weight (None: WeNet's
    search).
    """
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


def make_search(
    model: AsrModel,
    memory: Memory,
    options: DecodeOptions,
    lm: LanguageModel | None,
    ctc_weight: float | None,
) -> BeamSearch:
    if ctc_weight is None:
        return AttentionSearch(model, *memory, options, lm)
    return FinishedListSearch(model, *memory, options, ctc_weight=ctc_weight, lm=lm)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)])
@pytest.mark.parametrize("head", HEADS)
def test_random_models_and_settings(
    head: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_search, "_COMPACT_ABOVE", 6)
    for seed in seeds[list(HEADS).index(head) :: len(HEADS)]:
        model, ((memory, lengths), options, lm, ctc_weight) = (
            random_model(head, seed),
            random_case(seed),
        )
        found = make_search(model, (memory, lengths), options, lm, ctc_weight).search()
        for row, length in enumerate(lengths.tolist()):
            single, plain_lm = (
                (memory[row : row + 1, :length], lengths[row : row + 1]),
                lm.plain if lm else None,
            )
            if ctc_weight is None:
                expected = wenet_search(model, single, options, plain_lm)
            else:
                expected = finished_list(model, single, options, ctc_weight, plain_lm)
            assert_same_nbest(found[row], expected)


def test_reading_the_device_every_eighth_step_changes_nothing() -> None:
    """As on a GPU: all hypotheses are computed, and the end is read at every eighth step."""
    for seed in range(3):
        model, case = random_model("hsoftmax", seed), random_case(seed)
        expected, on_gpu = make_search(model, *case).search(), make_search(model, *case)
        on_gpu.sync_is_free = False
        for nbest, others in zip(expected, on_gpu.search(), strict=True):
            assert_same_nbest(others, [(h.ids, h.score) for h in nbest])


def test_hypotheses_that_have_ended_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("softmax", 2)
    topk = Mock(side_effect=model.head.topk)
    monkeypatch.setattr(model.head, "topk", topk)
    memory = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(2))
    AttentionSearch(model, memory, torch.tensor([6, 1, 3]), DecodeOptions(beam_size=2)).search()
    num_rows = [len(call.args[0]) for call in topk.call_args_list]
    assert num_rows[0] == 3  # at the start one hypothesis per utterance
    assert num_rows[1] <= 4 and max(num_rows[3:]) <= 2 and len(num_rows) <= 6


# ---- CTC prefix sums


def test_prefix_sums_are_sums_over_all_alignments() -> None:
    """Two utterances of 4 and 3 frames, two hypotheses each, one of them repeating its unit."""
    log_probs, lengths = random_log_probs(4, 2, 4, 3).double().log_softmax(-1), torch.tensor([4, 3])
    scorer = CtcPrefixScorer(log_probs, lengths, 0, 2)
    texts: list[list[Ids]] = [[(), ()], [(), ()]]
    for parents, units in (
        ([[0, 0], [1, 0]], [[1, 2], [2, 1]]),
        ([[0, 1], [1, 1]], [[1, 1], [1, 2]]),
    ):
        scores, ends = (
            scorer.prefix_scores(torch.arange(3).expand(2, 2, 3)).exp(),
            scorer.text_scores().exp(),
        )
        assert not scores[..., 0].any()  # blank
        for b, length in enumerate(lengths.tolist()):
            sums = {
                text: math.exp(score) for text, score in ctc_texts(log_probs[b, :length]).items()
            }
            probs = log_probs[b, :length].exp().tolist()
            for n, text in enumerate(texts[b]):
                assert float(ends[b, n]) == pytest.approx(sums.get(text, 0.0), rel=1e-9)
                for unit in (1, 2):
                    longer = (*text, unit)
                    expected = sum(
                        total for found, total in sums.items() if found[: len(longer)] == longer
                    )
                    assert float(scores[b, n, unit]) == pytest.approx(
                        expected, rel=1e-9, abs=1e-300
                    )
                    assert ctc_sums(probs, longer, 0)[0] == pytest.approx(
                        expected, rel=1e-9, abs=1e-300
                    )
        scorer.advance(torch.tensor(parents), torch.tensor(units))
        pairs = [list(zip(*row, strict=True)) for row in zip(parents, units, strict=True)]
        texts = [[(*texts[b][parent], unit) for parent, unit in row] for b, row in enumerate(pairs)]


def test_prefix_sums_of_two_thousand_frames_and_impossible_units() -> None:
    """The sum of a prefix is that of the text itself and of all prefixes that are one unit longer."""
    log_probs = (
        8 * torch.randn(1, 2000, 4, generator=torch.Generator().manual_seed(1))
    ).log_softmax(-1)
    log_probs[0, 100:200, 3] = -math.inf
    scorer, expected = CtcPrefixScorer(log_probs, torch.tensor([2000]), 0, 1), 0.0
    for unit in (1, 3, 3, 2):
        longer = scorer.prefix_scores(torch.arange(4)[None, None])[0, 0]
        total = torch.cat([scorer.text_scores()[0], longer]).logsumexp(0)
        assert float(total) == pytest.approx(expected, abs=1e-6)
        expected = float(longer[unit])
        scorer.advance(torch.tensor([[0]]), torch.tensor([[unit]]))
