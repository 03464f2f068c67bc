# SPDX-License-Identifier: Apache-2.0
"""WeNet's names and ours, and what WeNet's checkpoints of several years contain besides."""

from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import wenet_state_dict
from small_models import small_batch, small_model, wenet_reference

from wenet_hs.interop.wenet import load_wenet_model
from wenet_hs.model.foreign_weights import convert_state_dict, is_wenet, translate_weights
from wenet_hs.tree.errors import CheckpointError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["conformer_transformer", "conformer_layernorm_old_eos"])
def test_weights_of_wenet_converted_to_our_names_and_back_are_equal(
    shared_dir: Path, name: str, tmp_path: Path
) -> None:
    yaml, state, _ = wenet_reference(shared_dir / "golden" / "wenet", name)
    torch.save(state, tmp_path / "final.pt")
    model = load_wenet_model(yaml, tmp_path / "final.pt")
    assert not model.training
    back = wenet_state_dict(model)
    assert set(back) == set(state)
    assert all(
        torch.equal(back[key], state[key]) and back[key].dtype == state[key].dtype for key in state
    )


def test_our_weights_converted_to_the_names_of_wenet_and_back_are_equal() -> None:
    sections: dict[str, Any] = {"decoder": "bitransformer", "decoder_conf": {"r_num_blocks": 1}}
    model, other = small_model(**sections), small_model(seed=1, **sections)
    wenet = wenet_state_dict(model)
    assert is_wenet(wenet) and not is_wenet(model.state_dict())
    left, right = (
        wenet["decoder.left_decoder.output_layer.weight"],
        wenet["decoder.right_decoder.output_layer.weight"],
    )
    assert torch.equal(left, model.head.output.weight)
    assert torch.equal(right, model.right_head.output.weight)
    assert not any("head" in name for name in wenet)
    other.load_state_dict(convert_state_dict(wenet))
    batch = small_batch([40], [4])
    torch.testing.assert_close(other(batch).total, model(batch).total)


def test_weights_without_a_decoder_are_known_by_the_name_of_their_ctc_layer() -> None:
    ours = {"encoder.after_norm.weight": torch.ones(2), "ctc.head.output.bias": torch.zeros(3)}
    theirs = {"encoder.after_norm.weight": torch.ones(2), "ctc.ctc_lo.bias": torch.zeros(3)}
    assert not translate_weights(ours, "final.pt").is_foreign
    translated = translate_weights(theirs, "final.pt")
    assert translated.is_foreign
    assert translated.original_tree is None
    assert translated.state.keys() == ours.keys()


def test_old_entries_without_effect_are_dropped() -> None:
    """Position tables, layers that were never used, and a counter that averaging made a float."""
    yaml, state, _ = wenet_reference(GOLDEN, "wenet_conformer")
    counter = "encoder.encoders.0.conv_module.norm.num_batches_tracked"
    unused = (
        "encoder.embed.pos_enc.pe",
        "decoder.embed.1.pe",
        "encoder.encoders.0.concat_linear.weight",
    )
    legacy = {name: torch.zeros(8) for name in (*unused, "decoder.decoders.1.concat_linear2.bias")}
    legacy[counter] = torch.tensor(7.5)
    model = load_wenet_model(
        yaml, {**state, **legacy}, ["encoder_conf.norm_eps=1e-12", "decoder_conf.norm_eps=1e-12"]
    )
    assert model.state_dict()[counter].dtype == torch.int64
    assert int(model.state_dict()[counter]) == 7
    assert model.encoder.after_norm.eps == model.decoder.after_norm.eps == 1e-12


def test_weights_or_a_config_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    yaml, state, _ = wenet_reference(GOLDEN, "wenet_conformer")
    for wrong, message in (
        (
            {**state, "encoder.new.weight": torch.zeros(1)},
            "state_dict: .* unexpected encoder.new.weight; use",
        ),
        (
            {"a": torch.zeros(1)},
            "contains no decoder embedding, and no output layer of CTC.*; give the weights",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_wenet_model(yaml, wrong)
    text = yaml.read_text("utf-8")
    (tmp_path / "train.yaml").write_text(text.replace("output_dim: 40", "output_dim: 41"), "utf-8")
    with pytest.raises(ConfigError, match="output_dim: 41, expected 40"):
        load_wenet_model(tmp_path / "train.yaml", state)
    (tmp_path / "train.yaml").write_text(text.replace("<eos>: 2", "<eos>: 40"), "utf-8")
    with pytest.raises(
        CheckpointError, match="state_dict: 40 units, but .*train.yaml has special ids .*eos=40"
    ):
        load_wenet_model(tmp_path / "train.yaml", state)
