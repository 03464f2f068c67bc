# SPDX-License-Identifier: Apache-2.0
"""From configs to models, and experiment folders: ours, WeNet's, moved, incomplete and contradictory."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from model_folders import write_model_folder
from small_models import NUM_BINS, NUM_UNITS, SPECIAL, small_batch, small_config, small_model

from wenet_hs.build import Experiment, build_model, load_experiment
from wenet_hs.config.load import dump_config
from wenet_hs.data.cmvn import write_cmvn
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.model import AsrModel
from wenet_hs.nn.conformer import Encoder
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder
from wenet_hs.text.units import SpecialIds, UnitTable

TABLE = UnitTable.from_units("abcdefgh")
FILES = {"tokenizer_conf": {"symbol_table_path": "far/away/units.txt"}}
CMVN = {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "far/away/global_cmvn"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment folder as training leaves it; paths in its config point where it was made."""
    folder = tmp_path / "exp"
    dump_config(small_config(**FILES, **CMVN), folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    write_cmvn(folder / "global_cmvn", torch.cat([torch.zeros(NUM_BINS), torch.ones(NUM_BINS + 1)]))
    torch.save(small_model().state_dict(), folder / "final.pt")
    return folder


def same_losses(one: AsrModel, other: AsrModel) -> None:
    batch = small_batch([40, 33], [5, 2])
    with torch.inference_mode():
        torch.testing.assert_close(one(batch).total, other(batch).total, rtol=0, atol=0)


def test_a_config_and_its_seed_become_a_model() -> None:
    states = [small_model(seed).state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["head.output.weight"], states[2]["head.output.weight"])
    model = small_model(model_conf={"ctc_weight": 0.25, "lsm_weight": 0.05}, encoder_conf={"num_blocks": 3})
    assert isinstance(model.encoder, Encoder)
    assert isinstance(model.decoder, TransformerDecoder)
    assert (model.ctc_weight, model.reverse_weight, model.lsm_weight) == (0.25, 0.0, 0.05)
    assert (len(model.encoder.encoders), len(model.decoder.decoders)) == (3, 2)
    assert (model.num_units, model.ctc.blank, model.special) == (NUM_UNITS, 0, SPECIAL)
    both = small_model(decoder="bitransformer", decoder_conf={"r_num_blocks": 1}, model_conf={"reverse_weight": 0.3})
    assert isinstance(both.decoder, BiTransformerDecoder)
    assert (len(both.decoder.left_decoder.decoders), len(both.decoder.right_decoder.decoders)) == (2, 1)
    assert both.reverse_weight == 0.3


def test_settings_reach_the_layers() -> None:
    model = small_model(
        encoder_conf={"norm_eps": 1e-12, "attention_dropout_rate": 0.2, "cnn_module_kernel": 7, "dropout_rate": 0.3},
        decoder_conf={"norm_eps": 1e-6, "src_attention_dropout_rate": 0.4, "activation_type": "gelu"},
    )
    layer, decoder_layer = model.encoder.encoders[0], model.decoder.decoders[0]
    assert layer.norm_mha.eps == model.encoder.after_norm.eps == 1e-12
    assert layer.conv_module.norm.eps == 1e-5  # WeNet's conv_norm_eps, a setting of its own
    assert decoder_layer.norm3.eps == model.decoder.after_norm.eps == 1e-6
    assert layer.self_attn.dropout_rate == 0.2
    assert layer.feed_forward.dropout.p == layer.residual.dropout.p == 0.3
    assert (decoder_layer.src_attn.dropout_rate, decoder_layer.self_attn.dropout_rate) == (0.4, 0.0)
    assert layer.conv_module.depthwise_conv.kernel_size == (7,)
    assert isinstance(decoder_layer.feed_forward.activation, torch.nn.GELU)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"output_dim": 12}, r"output_dim: 12, expected 11 \(the unit table has that many units\); remove the line"),
        ({"ctc_conf": {"ctc_blank_id": 3}}, r"ctc_conf.ctc_blank_id: 3, expected 0 \(<blank> of the unit table\)"),
        (CMVN, "far/away/global_cmvn: statistics of 3 features, but the model has 20; compute"),
    ],
)
def test_sizes_that_do_not_fit(sections: dict[str, Any], message: str) -> None:
    cmvn = (torch.zeros(3), torch.ones(3)) if sections is CMVN else None
    with pytest.raises((ConfigError, DataError), match=message):
        build_model(small_config(**sections), NUM_UNITS, SPECIAL, cmvn=cmvn)


def test_a_folder_loads_wherever_it_was_moved(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "été x"
    shutil.move(folder, moved)
    experiment = load_experiment(str(moved))
    assert isinstance(experiment, Experiment)
    assert experiment.model_dir == moved
    assert not experiment.model.training
    assert experiment.tokenizer.table.units == TABLE.units
    assert experiment.model.special == TABLE.special
    same_losses(experiment.model, small_model())
    other = small_model(seed=5)
    (moved / "checkpoints/step-00000007").mkdir(parents=True)
    torch.save(other.state_dict(), moved / "checkpoints/step-00000007/model.pt")
    (moved / "final.pt").unlink()
    same_losses(load_experiment(moved, checkpoint=moved / "checkpoints/step-00000007").model, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.yaml", r"exp/train.yaml: no such file; `wenet-hs train --model_dir .*exp` writes it, or copy it"),
        ("units.txt", r"exp/units.txt: no such file; `wenet-hs train --model_dir .*exp` writes it"),
        ("final.pt", r"exp/final.pt: no such file; `wenet-hs average --model_dir .*exp` writes it"),
        ("", "exp: no such folder; give the --model_dir of a training"),
    ],
)
def test_an_incomplete_folder(folder: Path, name: str, message: str) -> None:
    shutil.move(folder / name, folder.parent / "elsewhere")
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)


def test_weights_that_do_not_fit(folder: Path) -> None:
    UnitTable.from_units("abcdefghij").write(folder / "units.txt")
    message = r"exp/final.pt: trained with 11 units, but .*exp/units.txt has 13; use the same units.txt"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)
    TABLE.write(folder / "units.txt")
    state = {name: value for name, value in torch.load(folder / "final.pt").items() if "cmvn" not in name}
    torch.save(state, folder / "final.pt")
    with pytest.raises(CheckpointError, match="missing encoder.global_cmvn.mean, encoder.global_cmvn.istd; use the"):
        load_experiment(folder)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_wenet_folder(tmp_path: Path, special_tokens: bool) -> None:
    """Without `special_tokens`, WeNet trains with <sos/eos> = V - 1, even if the table has another unit there."""
    folder = write_model_folder(tmp_path / "wenet", wenet=True)
    text = (folder / "train.yaml").read_text("utf-8").replace("units.txt", "/export/lang_char.txt")
    theirs = {"input_dim": 20, "output_dim": 11, "vocab_size": 11, "model": "asr_model", "ctc": "ctc"}
    config = yaml.safe_load(text) | theirs
    if not special_tokens:
        del config["tokenizer_conf"]["special_tokens"]
        units = UnitTable.read(folder / "units.txt").units
        last = SpecialIds(blank=0, unk=1, sos=10, eos=10)
        UnitTable((*units[:2], *units[3:], "<sos/eos>"), last).write(tmp_path / "old.txt")
    (folder / "train.yaml").write_text(yaml.safe_dump(config), "utf-8")
    if special_tokens:
        same_losses(load_experiment(folder).model, small_model(seed=5))
        text = (folder / "train.yaml").read_text("utf-8").replace("<eos>: 2", "<eos>: 10")
        (folder / "train.yaml").write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=r"train.yaml: tokenizer_conf.special_tokens: <eos> is 10, but is 2"):
            load_experiment(folder)
        return
    message = r"units.txt: <sos/eos> is 2, but WeNet trained this model with 10 \(its train.yaml has no tokenizer_conf"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)
    (tmp_path / "old.txt").replace(folder / "units.txt")
    assert load_experiment(folder).model.special.eos == 10
