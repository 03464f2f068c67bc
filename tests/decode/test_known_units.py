# SPDX-License-Identifier: Apache-2.0
"""Decoding with known units: every mode against the same search over renormalised distributions;
unseen units.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import HSOFTMAX, TABLE, write_model_folder
from plain_search import assert_same_nbest, finished_list, wenet_search
from small_models import CTC_ONLY, NUM_UNITS, SPECIAL, small_batch, small_model
from torch import Tensor

from wenet_hs.decode import DecodeOptions, decode
from wenet_hs.decode.known_units import limit_to_inventories
from wenet_hs.heads import OutputHead
from wenet_hs.heads.base import weighted_cost
from wenet_hs.heads.restricted import restrict_head
from wenet_hs.model.experiment import load_experiment
from wenet_hs.tree.errors import DataError

TREE = {"tree": "tree.json"}
CTC_TREE = {"ctc_conf": {"head": "hsoftmax", "head_conf": TREE}}
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": CTC_TREE,
    "hsoftmax": {**HSOFTMAX, **CTC_TREE},
    "class": {"head": "class", "head_conf": TREE},
    "adaptive": {"head": "adaptive", "head_conf": TREE},
    "none": {**CTC_TREE, **CTC_ONLY},
    "bitransformer": {**HSOFTMAX, "decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}},
}
KEPT = [3, 5, 8, 9]


class Plain(OutputHead):
    """The distribution of a restricted head, which test_restricted.py checks, searched by sorting
    all units.
    """

    def __init__(self, head: OutputHead, special: int) -> None:
        super().__init__(head.dim, head.num_units)
        self.head = restrict_head(head, {unit: unit for unit in (*KEPT, special)})

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self.head.log_probs(hidden_ND)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_mode_searches_the_renormalised_distributions(variant: str) -> None:
    model, expected_model = (small_model(seed=1, **VARIANTS[variant]) for _ in range(2))
    if model.head is not None:
        expected_model.head = Plain(model.head, SPECIAL.eos)
    expected_model.ctc.head = Plain(model.ctc.head, SPECIAL.blank)
    if model.right_head is not None:
        expected_model.right_head = Plain(model.right_head, SPECIAL.eos)
    model = model.restrict({unit: unit for unit in KEPT})
    options = DecodeOptions(beam_size=3, reverse_weight=0.0 if model.right_head is None else 0.3)
    batch = small_batch([23, 14, 6], [1, 1, 1])
    inputs = batch.features, batch.feature_lengths, model.supported_modes(), options
    found, expected = (
        decode(model, *inputs, align=True),
        decode(expected_model, *inputs, align=True),
    )
    for mode in model.supported_modes():
        for nbest, expected_nbest in zip(found[mode], expected[mode], strict=True):
            assert {unit for one in nbest for unit in one.ids} <= set(KEPT)
            assert_same_nbest(nbest, [(one.ids, one.score) for one in expected_nbest])
            assert (nbest[0].alignment is None) == (expected_nbest[0].alignment is None)
            if nbest[0].alignment is not None and nbest[0].ids == expected_nbest[0].ids:
                assert nbest[0].alignment.score == pytest.approx(
                    expected_nbest[0].alignment.score, abs=1e-3
                )
    if model.decoder is None:
        return
    with torch.no_grad():
        memory = model.encode(batch.features[:1], batch.feature_lengths[:1])
    assert_same_nbest(found["attention"][0], wenet_search(expected_model, memory, options))
    assert_same_nbest(
        found["joint"][0], finished_list(expected_model, memory, options, options.ctc_weight)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_units_change_nothing_and_few_units_fill_no_beam(variant: str) -> None:
    model, batch = small_model(seed=1, **VARIANTS[variant]), small_batch([23, 14], [1, 1])
    inputs = batch.features, batch.feature_lengths, model.supported_modes()
    options = DecodeOptions(beam_size=4, ctc_weight=1.0)  # joint: the decoder has the weight 0
    expected = decode(model, *inputs, options)
    for mode, nbests in decode(
        model.restrict({unit: unit for unit in range(NUM_UNITS)}), *inputs, options
    ).items():
        for nbest, expected_nbest in zip(nbests, expected[mode], strict=True):
            assert [one.ids for one in nbest] == [one.ids for one in expected_nbest]
            assert [one.score for one in nbest] == pytest.approx(
                [one.score for one in expected_nbest], rel=1e-6
            )
    found = decode(model.restrict({7: 7}), *inputs, replace(options, beam_size=12))
    for nbests in found.values():
        for nbest in nbests:
            assert all(set(one.ids) <= {7} and math.isfinite(one.score) for one in nbest)


# ---- units that the model lacks


def test_a_placed_unit_replaces_its_absent_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model_folder(tmp_path / "exp", **HSOFTMAX, **CTC_TREE)
    shutil.copy(folder / "tree.json", folder / "ctc_tree.json")
    experiment = load_experiment(folder)
    batch = small_batch([30, 19], [1, 1])
    inputs = batch.features, batch.feature_lengths, ("attention", "attention_rescoring", "joint")
    caplog.set_level("INFO")
    inventories = {"old": ["a", "e", "▁"], "new": ["a", "ẽ", "▁", "☃"]}
    _, models = limit_to_inventories(experiment, inventories)
    assert caplog.messages == [
        "--inventory: the model does not have 2 of its units and cannot recognise them: ẽ ☃"
    ]
    caplog.clear()
    expected = decode(models["old"], *inputs)
    placed, models = limit_to_inventories(experiment, inventories, place_unseen="articulatory")
    assert caplog.messages == [
        "--place_unseen: 1 units that the model does not have: ẽ beside e",
        "--inventory: the model does not have 1 of its units and cannot recognise them: ☃",
    ]
    names = placed.tokenizer.table.units
    assert names == (*TABLE.units, "ẽ") and experiment.tokenizer.table.units == TABLE.units
    renamed, written = {"e": "ẽ"}, set[str]()
    for mode, nbests in decode(models["new"], *inputs).items():  # the same but for the symbol
        for nbest, expected_nbest in zip(nbests, expected[mode], strict=True):
            found = [[names[unit] for unit in one.ids] for one in nbest]
            written.update(*found)
            assert found == [
                [renamed.get(names[unit], names[unit]) for unit in one.ids]
                for one in expected_nbest
            ]
            assert [one.score for one in nbest] == pytest.approx(
                [one.score for one in expected_nbest], abs=1e-5
            )
    assert written == {"a", "ẽ", "▁"}


def test_both_decoders_get_the_embedding_of_the_source_and_both_units_are_equally_probable(
    tmp_path: Path,
) -> None:
    sections = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}}
    experiment = load_experiment(write_model_folder(tmp_path / "exp", **sections))
    placed, models = limit_to_inventories(
        experiment, {"x": ["a", "e", "ẽ"]}, place_unseen="articulatory"
    )
    table, decoder = placed.tokenizer.table, placed.model.decoder
    seen, new = table.id_of("e"), table.id_of("ẽ")
    for side in (decoder.left_decoder, decoder.right_decoder):
        weight = side.embed[0].weight
        assert len(weight) == len(table) == new + 1 and torch.equal(weight[new], weight[seen])
    for head in (models["x"].head, models["x"].right_head, models["x"].ctc.head):
        with torch.no_grad():
            log_probs = head.log_probs(torch.randn(3, 16))
        assert torch.equal(log_probs[:, seen], log_probs[:, new]) and bool(
            log_probs[:, seen].isfinite().all()
        )


def test_a_unit_is_placed_in_a_model_without_a_decoder(tmp_path: Path) -> None:
    experiment = load_experiment(write_model_folder(tmp_path / "exp", **CTC_ONLY))
    placed, models = limit_to_inventories(experiment, {"x": ["ẽ"]}, place_unseen="articulatory")
    batch, new = small_batch([60], [1]), placed.tokenizer.table.id_of("ẽ")
    (hypotheses,) = decode(
        models["x"], batch.features, batch.feature_lengths, models["x"].supported_modes()[1:]
    )["ctc_prefix_beam_search"]
    assert {unit for one in hypotheses for unit in one.ids} == {new}


def test_an_inventory_without_units_of_the_model(tmp_path: Path) -> None:
    experiment = load_experiment(write_model_folder(tmp_path / "exp"))
    for units in (["ẽ", "☃"], ["<unk>"]):
        message = rf"--inventory: the model has no unit of language 'x' \({' '.join(units)}\); use the inventory of"
        with pytest.raises(DataError, match=message):
            limit_to_inventories(experiment, {"x": units})
