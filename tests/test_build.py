# SPDX-License-Identifier: Apache-2.0
"""From configs to models, and experiment folders: ours, WeNet's, moved, incomplete and contradictory."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import NUM_BINS, NUM_UNITS, SPECIAL, small_batch, small_config, small_model

from wenet_hs.build import Experiment, build_model, load_experiment
from wenet_hs.config.load import dump_config
from wenet_hs.data.cmvn import write_cmvn
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.interop.weights import to_wenet_state_dict
from wenet_hs.model import AsrModel
from wenet_hs.nn.conformer import Encoder
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder
from wenet_hs.text.units import SpecialIds, UnitTable

TABLE = UnitTable.from_units("abcdefgh")
FILES = {"tokenizer_conf": {"symbol_table_path": "far/away/units.txt"}}
CMVN = {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "far/away/global_cmvn"}}


def write_folder(folder: Path, model: AsrModel) -> Path:
    """An experiment folder as training leaves it; paths in its config point where it was made."""
    folder.mkdir()
    dump_config(small_config(**FILES, **CMVN), folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    write_cmvn(folder / "global_cmvn", torch.cat([torch.zeros(NUM_BINS), torch.ones(NUM_BINS + 1)]))
    torch.save(model.state_dict(), folder / "final.pt")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "exp", small_model())


def same_losses(one: AsrModel, other: AsrModel) -> None:
    batch = small_batch([40, 33], [5, 2])
    with torch.inference_mode():
        torch.testing.assert_close(one(batch).total, other(batch).total, rtol=0, atol=0)


def test_config_becomes_model() -> None:
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


def test_the_seed_makes_the_weights() -> None:
    states = [small_model(seed).state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["head.output.weight"], states[2]["head.output.weight"])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"output_dim": 12}, r"output_dim: 12, expected 11 \(the unit table has that many units\); remove the line"),
        ({"ctc_conf": {"ctc_blank_id": 3}}, r"ctc_conf.ctc_blank_id: 3, expected 0 \(<blank> of the unit table\)"),
    ],
)
def test_sizes_of_wenets_yaml_must_be_true(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(small_config(**sections), NUM_UNITS, SPECIAL)


def test_cmvn_of_another_size() -> None:
    with pytest.raises(
        DataError, match="far/away/global_cmvn: statistics of 3 features, but the model has 20; compute"
    ):
        build_model(small_config(**CMVN), NUM_UNITS, SPECIAL, cmvn=(torch.zeros(3), torch.ones(3)))


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


def test_other_weights_than_final(folder: Path) -> None:
    other = small_model(seed=5)
    (folder / "checkpoints" / "step-00000007").mkdir(parents=True)
    torch.save(other.state_dict(), folder / "checkpoints" / "step-00000007" / "model.pt")
    (folder / "final.pt").unlink()
    same_losses(load_experiment(folder, checkpoint=folder / "checkpoints" / "step-00000007").model, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.yaml", r"exp/train.yaml: no such file; `wenet-hs train --model_dir .*exp` writes it, or copy it"),
        ("units.txt", r"exp/units.txt: no such file; `wenet-hs train --model_dir .*exp` writes it"),
        ("final.pt", r"exp/final.pt: no such file; `wenet-hs average --model_dir .*exp` writes it"),
    ],
)
def test_an_incomplete_folder(folder: Path, name: str, message: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such folder; give the --model_dir of a training"):
        load_experiment(tmp_path / "nowhere")


def test_units_and_checkpoint_of_different_sizes(folder: Path) -> None:
    UnitTable.from_units("abcdefghij").write(folder / "units.txt")
    message = r"exp/final.pt: trained with 11 units, but .*exp/units.txt has 13; use the same units.txt"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(folder)


def test_weights_without_the_cmvn_of_the_config(folder: Path) -> None:
    state = {name: value for name, value in torch.load(folder / "final.pt").items() if "cmvn" not in name}
    torch.save(state, folder / "final.pt")
    with pytest.raises(CheckpointError, match="missing encoder.global_cmvn.mean, encoder.global_cmvn.istd; use the"):
        load_experiment(folder)


def write_wenet_folder(folder: Path, model: AsrModel, table: UnitTable, special: str) -> Path:
    """As WeNet writes it: its names, paths of another machine, the settings that it adds."""
    folder.mkdir()
    text = f"""
encoder: conformer
encoder_conf: {{output_size: 16, attention_heads: 2, linear_units: 24, num_blocks: 2, use_dynamic_chunk: false}}
decoder: transformer
decoder_conf: {{attention_heads: 2, linear_units: 24, num_blocks: 2}}
tokenizer: char
tokenizer_conf: {{symbol_table_path: /export/lang_char.txt, split_with_space: false{special}}}
cmvn: global_cmvn
cmvn_conf: {{cmvn_file: /export/global_cmvn, is_json_cmvn: true}}
model_conf: {{ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false}}
dataset_conf: {{fbank_conf: {{num_mel_bins: 20, frame_shift: 10, frame_length: 25, dither: 0.1}}}}
input_dim: 20
output_dim: {len(table)}
vocab_size: {len(table)}
ctc: ctc
ctc_conf: {{ctc_blank_id: 0}}
model: asr_model
"""
    (folder / "train.yaml").write_text(text, "utf-8")
    table.write(folder / "units.txt")
    torch.save(to_wenet_state_dict(model), folder / "final.pt")
    return folder


def test_a_wenet_folder(tmp_path: Path) -> None:
    special = ", special_tokens: {<blank>: 0, <unk>: 1, <sos>: 2, <eos>: 2}"
    path = write_wenet_folder(tmp_path / "wenet", small_model(), TABLE, special)
    experiment = load_experiment(path)
    same_losses(experiment.model, small_model())


def test_a_wenet_folder_of_the_old_convention(tmp_path: Path) -> None:
    old = UnitTable((*TABLE.units[:2], *TABLE.units[3:], "<sos/eos>"), SpecialIds(blank=0, unk=1, sos=10, eos=10))
    path = write_wenet_folder(tmp_path / "wenet", small_model(), old, "")
    assert load_experiment(path).model.special.eos == 10
    TABLE.write(path / "units.txt")
    message = r"units.txt: <sos/eos> is 2, but WeNet trained this model with 10 \(its train.yaml has no tokenizer_conf"
    with pytest.raises(CheckpointError, match=message):
        load_experiment(path)


def test_special_tokens_that_contradict_the_table(tmp_path: Path) -> None:
    special = ", special_tokens: {<blank>: 0, <unk>: 1, <sos>: 10, <eos>: 10}"
    path = write_wenet_folder(tmp_path / "wenet", small_model(), TABLE, special)
    with pytest.raises(ConfigError, match=r"wenet/train.yaml: tokenizer_conf.special_tokens: <sos> is 10, but is 2"):
        load_experiment(path)
