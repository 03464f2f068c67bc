# SPDX-License-Identifier: Apache-2.0
"""All modes: WeNet's hypotheses token for token, batches, rescoring as prefix trees, alignments,
wrong calls.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_models import SPECIAL, row_of, small_batch, small_model

from wenet_hs.decode import MODES, DecodeOptions, Hypothesis, decode, rescoring
from wenet_hs.decode.modes import (
    EncodedBatch,
    StageTimes,
    check_options,
    pad_features,
    stages_of,
    warn_about_options,
)
from wenet_hs.interop.wenet import load_wenet_model
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.modes import Branch, Mode, beam_search_instead, modes_reading
from wenet_hs.tree.errors import CheckpointError, ConfigError

VARIANTS = {
    "softmax": {},
    "hsoftmax": {"head": "hsoftmax", "head_conf": {"tree": "tree.json"}},
    "bitransformer": {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}},
}


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest) -> AsrModel:
    return small_model(seed=1, **VARIANTS[request.param])


WENETS_MODES = ["ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring"]


@pytest.mark.parametrize("name", ["conformer_transformer", "conformer_layernorm_old_eos"])
def test_wenets_hypotheses_token_for_token(shared_dir: Path, name: str) -> None:
    folder = shared_dir / "golden" / "wenet"
    arrays = dict(np.load(folder / f"{name}.npz", allow_pickle=False))
    weights = {
        key[6:]: torch.from_numpy(array)
        for key, array in arrays.items()
        if key.startswith("param.")
    }
    model, modes = load_wenet_model(folder / f"{name}.yaml", weights), WENETS_MODES
    features = pad_features(
        model, [torch.from_numpy(arrays[f"{index}.feats"]) for index in range(3)]
    )
    found = decode(model, *features, modes, DecodeOptions(beam_size=4, ctc_weight=0.5))
    for row in range(3):
        for mode in modes:
            assert list(found[mode][row][0].ids) == arrays[f"{row}.{mode}.tokens"].tolist(), mode
        score = float(arrays[f"{row}.attention_rescoring.score"])
        assert found["attention_rescoring"][row][0].score == pytest.approx(score, abs=1e-3)
        for rank, hypothesis in enumerate(found["ctc_prefix_beam_search"][row]):
            expected = f"{row}.ctc_prefix_beam_search.nbest{rank}"
            assert list(hypothesis.ids) == arrays[expected].tolist()
            assert hypothesis.score == pytest.approx(float(arrays[f"{expected}.score"]), abs=1e-3)


# ---- batches


@pytest.mark.parametrize(("frames", "beam_size"), [([25, 9, 6, 0], 3), ([31, 12], 12)])
def test_the_batch_never_changes_a_result(
    model: AsrModel, frames: list[int], beam_size: int
) -> None:
    reverse_weight = 0.3 if model.right_head is not None else 0.0
    options = DecodeOptions(beam_size=beam_size, length_penalty=0.5, reverse_weight=reverse_weight)
    batch = small_batch(frames, [1] * len(frames))
    together = decode(model, batch.features, batch.feature_lengths, MODES, options)
    for row, length in enumerate(frames):
        single = row_of(batch, row)
        for mode, (nbest,) in decode(
            model, single.features, single.feature_lengths, MODES, options
        ).items():
            assert [h.ids for h in together[mode][row]] == [h.ids for h in nbest]
            assert [h.score for h in together[mode][row]] == pytest.approx(
                [h.score for h in nbest], abs=1e-4
            )
            if length < 7:  # too short for one encoder frame
                assert together[mode][row] == [Hypothesis((), 0.0)]


# ---- rescoring


@pytest.mark.parametrize(("max_nodes", "max_total_nodes"), [(512, 8192), (4, 8)])
def test_rescoring_is_its_formula_for_any_size_of_trees(
    model: AsrModel, max_nodes: int, max_total_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescoring, "MAX_NODES", max_nodes)
    monkeypatch.setattr(rescoring, "MAX_TOTAL_NODES", max_total_nodes)
    batch, weight = small_batch([25, 20], [1, 1]), 0.4 if model.right_head is not None else 0.0
    modes = ("ctc_prefix_beam_search", "attention_rescoring")
    options = DecodeOptions(beam_size=4, ctc_weight=0.7, reverse_weight=weight)
    found = decode(model, batch.features, batch.feature_lengths, modes, options)
    for row in range(2):
        features = row_of(batch, row).features
        prefixes = {h.ids: h.score for h in found["ctc_prefix_beam_search"][row]}
        rescored = found["attention_rescoring"][row]
        assert {h.ids for h in rescored} == set(prefixes)
        assert [h.score for h in rescored] == sorted((h.score for h in rescored), reverse=True)
        for ids, score in ((h.ids, h.score) for h in rescored):
            decoder_score = (1 - weight) * sequence_score(model, features, ids)
            if weight:
                decoder_score += weight * sequence_score(model, features, ids[::-1], right=True)
            assert score == pytest.approx(decoder_score + 0.7 * prefixes[ids], abs=1e-3)


@torch.no_grad()
def sequence_score(
    model: AsrModel, features: torch.Tensor, ids: tuple[int, ...], right: bool = False
) -> float:
    """Unit by unit with whole distributions."""
    memory, lengths = model.encode(features, torch.tensor([features.size(1)]))
    decoder = model.decoder.right_decoder if right else model.left[0]
    head = model.right_head if right else model.head
    hidden = decoder(
        memory, lengths, torch.tensor([(SPECIAL.sos, *ids)]), torch.tensor([len(ids) + 1])
    )
    log_probs = head.log_probs(hidden)[0]
    return sum(
        float(log_probs[position, unit]) for position, unit in enumerate((*ids, SPECIAL.eos))
    )


# ---- alignments


def test_the_best_hypothesis_of_each_mode_gets_its_alignment(model: AsrModel) -> None:
    batch, options = small_batch([40, 6, 31], [1, 1, 1]), DecodeOptions(beam_size=3)
    plain = decode(model, batch.features, batch.feature_lengths, MODES, options)
    times = StageTimes()
    found = decode(
        model, batch.features, batch.feature_lengths, MODES, options, align=True, times=times
    )
    assert times.seconds["alignment"] > 0
    without = {
        mode: [[replace(h, alignment=None) for h in nbest] for nbest in found[mode]]
        for mode in MODES
    }
    assert without == plain
    if model.right_head is not None:  # a model that was trained without CTC aligns nothing
        untrained = small_model(model_conf={"ctc_weight": 0.0})
        nbests = decode(
            untrained, batch.features, batch.feature_lengths, ["attention"], align=True
        )["attention"]
        assert all(nbest[0].alignment is None for nbest in nbests)
    for mode in MODES:
        assert found[mode][1] == [Hypothesis((), 0.0)]  # too short for the encoder
        for row, frames in ((0, 9), (2, 7)):
            best, *others = found[mode][row]
            assert all(other.alignment is None for other in others)
            if best.alignment is not None:
                assert len(best.alignment.spans) == len(best.alignment.log_probs) == len(best.ids)
                assert all(0 <= start < end <= frames for start, end in best.alignment.spans)
            if mode == "ctc_greedy_search":  # the alignment that it is made of
                assert best.alignment.score == pytest.approx(best.score, abs=1e-4)


# ---- calls


def test_the_encoder_runs_once_and_each_stage_is_timed_without_its_inner_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch, times = small_model(), small_batch([12], [1]), StageTimes()
    encode = Mock(side_effect=model.encode)
    monkeypatch.setattr(model, "encode", encode)
    assert list(decode(model, batch.features, batch.feature_lengths, MODES, times=times)) == list(
        MODES
    )
    assert encode.call_count == 1
    assert set(times.seconds) == {"encoder"}.union(*map(stages_of, MODES))
    times, clock = StageTimes(), iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(times, "_now", lambda: next(clock))
    with times.measure("outer"), times.measure("inner"):
        pass
    assert times.seconds == {"inner": 3.0, "outer": 7.0}


def test_decoding_leaves_the_model_able_to_learn() -> None:
    model = small_model()
    batch = small_batch([2000], [3])  # longer than any table of positions made so far
    decode(model, batch.features, batch.feature_lengths, ["ctc_greedy_search"])
    model.train()(batch).total.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


UNSUPPORTED: list[tuple[dict[str, Any], list[str], str]] = [
    (
        {"lm_weight": 0.3},
        ["ctc_greedy_search"],
        r"ctc_greedy_search: uses no language model; add ctc_prefix",
    ),
    ({"ctc_weight": 1.5}, ["joint"], r"ctc_weight 1.5: must be from 0 to 1 for joint"),
    (
        {"nbest": 2},
        [*MODES],
        r"nbest 2: ctc_greedy_search has only one hypothesis; leave out this mode",
    ),
]


def test_wrong_calls_and_wrong_models() -> None:
    model, batch = small_model(), small_batch([30], [1])
    features, lengths = batch.features, batch.feature_lengths
    with pytest.raises(ValueError, match=r"mode 'greedy': must be one of ctc_greedy_search, "):
        decode(model, features, lengths, ["greedy"])
    with pytest.raises(
        ConfigError, match=r"reverse_weight 0.3: this model has no right-to-left decoder .*at 0"
    ):
        decode(model, features, lengths, MODES, DecodeOptions(reverse_weight=0.3))
    for setting, modes, message in UNSUPPORTED:
        with pytest.raises(ConfigError, match=message):
            check_options(
                model, DecodeOptions(**setting), modes, Mock() if "lm_weight" in setting else None
            )
    with pytest.raises(
        ValueError, match=r"decode needs the model in eval mode; call model.eval\(\)"
    ):
        decode(model.train(), features, lengths, MODES)
    damaged = small_model()
    with torch.no_grad():
        damaged.decoder.after_norm.weight[0] = float("nan")
    for mode in ("attention", "joint", "attention_rescoring"):
        with pytest.raises(
            CheckpointError, match=r"(scores of the search|decoder output): NaN; the weights are"
        ):
            decode(damaged, features, lengths, [mode])
    with torch.no_grad():
        next(model.eval().ctc.head.parameters())[0] = float("nan")
    with pytest.raises(CheckpointError, match=r"CTC output: NaN; .* use another checkpoint"):
        decode(model, features, lengths, ["ctc_greedy_search"])
    with torch.no_grad():
        model.encoder.after_norm.weight[0] = float("nan")
    with pytest.raises(
        CheckpointError, match=r"encoder output: NaN or infinity; .* use another checkpoint"
    ):
        decode(model, features, lengths, MODES)


def test_warnings_about_short_texts_and_unused_options(caplog: pytest.LogCaptureFixture) -> None:
    model, finished_list = small_model(), DecodeOptions(finished_list=True)
    warn_about_options(model, DecodeOptions(finished_list=True, length_penalty=1.0), ["attention"])
    warn_about_options(model, finished_list, ["joint"])
    assert not caplog.messages
    warn_about_options(model, finished_list, ["attention", "joint"])
    warn_about_options(model, DecodeOptions(length_penalty=1.0), ["ctc_greedy_search"])
    first, second = caplog.messages
    assert first.startswith("attention with finished_list and length_penalty 0 favours short texts")
    readers = ", ".join(modes_reading("length_penalty"))
    assert second == f"length_penalty: read only by {readers}, no effect on ctc_greedy_search"
    assert {"attention", "joint"} <= set(modes_reading("length_penalty"))


def test_a_warning_about_each_option_that_no_mode_reads(caplog: pytest.LogCaptureFixture) -> None:
    options = DecodeOptions(min_len_ratio=0.1, finished_list=True, length_penalty=1.0)
    warn_about_options(small_model(), options, ["attention_rescoring", "ctc_greedy_search"])
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "finished_list",
        "length_penalty",
        "min_len_ratio",
    ]
    assert all(
        message.endswith("no effect on attention_rescoring, ctc_greedy_search")
        for message in caplog.messages
    )


@pytest.mark.parametrize(
    ("ctc_weight", "modes", "warning"),
    [
        (
            1.0,
            ["ctc_greedy_search", "attention", "joint"],
            "attention, joint: the decoder of this model was not trained",
        ),
        (
            0.0,
            ["attention", "ctc_greedy_search"],
            "ctc_greedy_search: the CTC layer of this model was not trained",
        ),
    ],
)
def test_a_warning_about_modes_whose_branches_were_not_trained(
    ctc_weight: float, modes: list[str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model(model_conf={"ctc_weight": ctc_weight})
    warn_about_options(model, DecodeOptions(), modes)
    assert caplog.messages == [f"{warning} (ctc_weight {ctc_weight:g}), so its scores are random"]


@pytest.mark.parametrize(
    ("greedy", "instead"), [("ctc", "ctc_prefix_beam_search"), ("decoder", "attention")]
)
def test_the_beam_search_in_place_of_a_greedy_mode(greedy: Branch, instead: str) -> None:
    mode = Mode(help="", branches=frozenset({greedy}), is_greedy=True)
    assert beam_search_instead(mode) == instead


def test_a_search_reads_only_the_stages_that_its_mode_lists() -> None:
    """Otherwise its time would lack them, and its beam would depend on the other modes."""
    batch = EncodedBatch(
        small_model(),
        torch.zeros(1, 3, 16),
        torch.tensor([3]),
        DecodeOptions(),
        None,
        [*MODES],
        StageTimes(),
    )
    batch.current_mode = "ctc_greedy_search"
    assert batch.ctc_best[0].shape == (1, 3, 10)
    with pytest.raises(
        RuntimeError,
        match=r"^mode ctc_greedy_search: its search reads 'ctc_prefix_beam_search', which",
    ):
        _ = batch.prefixes
    batch.current_mode = "attention"
    with pytest.raises(
        RuntimeError,
        match=r"^mode attention: its search reads 'ctc', which its `stages` do not list",
    ):
        _ = batch.ctc_best


def test_settings_out_of_range() -> None:
    for name, value, expected in (
        ("beam_size", 0, "at least 1"),
        ("ctc_weight", -0.5, "a finite number of at least 0"),
        ("length_penalty", math.nan, "a finite number of at least 0"),
        ("reverse_weight", 1.5, "from 0 to 1"),
        ("nbest", 0, "from 1 to beam_size, which is 10"),
        ("nbest", 11, "from 1 to beam_size, which is 10"),
        ("max_len_ratio", 0, "above 0"),
        ("min_len_ratio", 1.5, "from 0 to max_len_ratio, which is 1"),
        ("lm_weight", -1, "a finite number of at least 0"),
        ("length_bonus", math.inf, "a number"),
    ):
        with pytest.raises(ValueError, match=f"{name} {value}: must be {expected}"):
            DecodeOptions(**{name: value})  # type: ignore[arg-type]
