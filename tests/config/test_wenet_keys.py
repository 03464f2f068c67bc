# SPDX-License-Identifier: Apache-2.0
"""WeNet's YAML files load unchanged; what would change a number and is not done here is refused, never ignored."""

import logging
from pathlib import Path
from typing import Any

import pytest

from wenet_hs.config.faults import _keys_of
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.wenet_keys import CHOICES, IDLE, ONLY
from wenet_hs.config.yaml_source import describe
from wenet_hs.errors import ConfigError

# The settings of WeNet's recipes, section by section.
ENCODER = """
encoder: conformer
encoder_conf:
    output_size: 512    # dimension of attention
    attention_heads: 8
    linear_units: 2048
    num_blocks: 12
    dropout_rate: 0.1
    positional_dropout_rate: 0.1
    attention_dropout_rate: 0.0
    input_layer: conv2d6
    normalize_before: true
    cnn_module_kernel: 31
    use_cnn_module: True
    activation_type: 'swish'
    macaron_style: True
    pos_enc_layer_type: 'rel_pos'
    selfattention_layer_type: 'rel_selfattn'
    cnn_module_norm: 'layer_norm'
    use_dynamic_left_chunk: false
"""
DECODER = """
decoder: bitransformer
decoder_conf:
    attention_heads: 8
    linear_units: 2048
    num_blocks: 3
    r_num_blocks: 3
    dropout_rate: 0.1
    positional_dropout_rate: 0.1
    self_attention_dropout_rate: 0.0
    src_attention_dropout_rate: 0.0
"""
TEXT = """
tokenizer: char
tokenizer_conf:
  symbol_table_path: 'data/dict/phn_units.txt'
  split_with_space: true
  bpe_path: null
  non_lang_syms_path: null
  is_multilingual: false
  num_languages: 1
  special_tokens:
    <blank>: 0
    <unk>: 1
    <sos>: 2
    <eos>: 2
ctc: ctc
ctc_conf:
  ctc_blank_id: 0
cmvn: global_cmvn
cmvn_conf:
  cmvn_file: 'data/train/global_cmvn'
  is_json_cmvn: true
model: asr_model
"""
LOSS = """
model_conf:
    ctc_weight: 0.3
    lsm_weight: 0.1
    length_normalized_loss: false
    reverse_weight: 0.3
"""
DATA = """
dataset: asr
dataset_conf:
    split_with_space: true
    filter_conf:
        max_length: 2000
        min_length: 50
        token_max_length: 400
        token_min_length: 1
        min_output_input_ratio: 0.05
        max_output_input_ratio: 10.0
    resample_conf:
        resample_rate: 16000
    speed_perturb: true
    fbank_conf:
        num_mel_bins: 80
        frame_shift: 10
        frame_length: 25
        dither: 1.0
    spec_aug: true
    spec_aug_conf:
        num_t_mask: 2
        num_f_mask: 2
        max_t: 50
        max_f: 10
    spec_sub: false
    spec_sub_conf:
        num_t_sub: 3
        max_t: 30
    shuffle: true
    shuffle_conf:
        shuffle_size: 1500
    sort: true
    sort_conf:
        sort_size: 500
    batch_conf:
        batch_type: 'dynamic'
        batch_size: 8
        max_frames_in_batch: 15000
"""
TRAINING = """
grad_clip: 5
accum_grad: 4
max_epoch: 240
log_interval: 100
optim: adam
optim_conf:
    lr: 0.002
scheduler: warmuplr     # pytorch v1.1.0+ required
scheduler_conf:
    warmup_steps: 25000
"""
RECIPE = ENCODER + DECODER + TEXT + LOSS + DATA + TRAINING


def load(tmp_path: Path, text: str, *overrides: str) -> ExperimentConfig:
    (tmp_path / "train.yaml").write_text(text, "utf-8")
    return load_config(tmp_path / "train.yaml", overrides)


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path}/train.yaml:")


def test_a_recipe_loads_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load(tmp_path, RECIPE)
    assert (config.tokenizer, config.decoder, config.cmvn) == ("phone", "bitransformer", "global_cmvn")
    assert (config.encoder_conf.output_size, config.encoder_conf.input_layer) == (512, "conv2d6")
    assert config.tokenizer_conf.special_tokens == {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
    assert config.dataset_conf.batch_conf.max_frames_in_batch == 15000
    assert (config.grad_clip, config.accum_grad, config.optim_conf.lr) == (5.0, 4, 0.002)
    (record,) = caplog.records
    for key in ("dataset_conf.shuffle", "dataset_conf.sort_conf", "tokenizer_conf.num_languages"):
        assert key in record.getMessage()
    assert "non_lang_syms_path" not in record.getMessage()  # null is what is done here


@pytest.mark.parametrize("value", ["true", "false"])
def test_losses_are_divided_by_the_targets_whatever_wenet_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    with caplog.at_level(logging.WARNING):
        load(tmp_path, RECIPE.replace("length_normalized_loss: false", f"length_normalized_loss: {value}"))
    reason = "training divides the losses by the targets of an optimizer step, whatever it says"
    assert f"model_conf.length_normalized_loss ({reason})" in caplog.text


def test_a_yaml_of_2022_without_model_tokenizer_and_cmvn_sections(tmp_path: Path) -> None:
    config = load(tmp_path, ENCODER + "decoder: transformer\n" + DATA.replace("dataset: asr", "") + TRAINING)
    assert (config.model, config.dataset, config.tokenizer, config.cmvn) == ("asr_model", "asr", "char", None)


def test_a_transformer_encoder_without_positions(tmp_path: Path) -> None:
    text = "encoder: transformer\nencoder_conf: {input_layer: conv2d, normalize_before: true, num_blocks: 12}\n"
    assert load(tmp_path, text + DECODER).encoder_conf.selfattention_layer_type == "selfattn"
    text = ENCODER.replace("'rel_pos'", "'no_pos'")
    assert load(tmp_path, text).encoder_conf.pos_enc_layer_type == "no_pos"


def test_fine_tuning_after_self_supervision_that_is_off(tmp_path: Path) -> None:
    text = "raw_wav: true\npretrain: False\nwav2vec_conf:\n    pretrain: False\n    latent_dim: 512\n"
    assert load(tmp_path, text).encoder == "conformer"


def test_what_wenet_writes_beside_a_checkpoint(tmp_path: Path) -> None:
    state = (
        "dtype: fp16\ninput_dim: 80\noutput_dim: 5002\nvocab_size: 5002\ntrain_engine: torch_ddp\nuse_amp: true\n"
        "model_dir: exp/conformer\nsave_states: model_only\ninit_infos: {}\nepoch: 12\nstep: 8000\nlrs: [0.001]\n"
        "tag: epoch_12\nsave_time: 20/12/2023 11:22:33\nloss_dict: {loss: 7.0, acc: 0.9}\nlfmmi_dir: ''\n"
    )
    config = load(tmp_path, RECIPE + state)
    assert (config.dtype, config.input_dim, config.output_dim) == ("fp16", 80, 5002)


def test_cmvn_outside_of_its_section_as_before_2023(tmp_path: Path) -> None:
    config = load(tmp_path, "cmvn_file: exp/global_cmvn\nis_json_cmvn: true\n")
    assert (config.cmvn, config.cmvn_conf.cmvn_file) == ("global_cmvn", "exp/global_cmvn")
    assert load(tmp_path, "cmvn_file: null\nis_json_cmvn: true\n").cmvn is None
    assert fault(tmp_path, "cmvn_file: a\ncmvn_conf: {cmvn_file: b}\n") == (
        "1: cmvn_file: stands in cmvn_conf too; keep that one"
    )
    assert fault(tmp_path, "cmvn_file: a\nis_json_cmvn: false\n") == (
        "2: cmvn_conf.is_json_cmvn: false is not supported, only true is"
    )


def test_the_reference_models_load(shared_dir: Path) -> None:
    paths = sorted((shared_dir / "golden" / "wenet").glob("*.yaml"))
    assert len(paths) == 2
    for path in paths:
        config = load_config(path)
        assert (config.encoder_conf.output_size, config.output_dim, config.ctc_conf.ctc_blank_id) == (32, 40, 0)


def nested(dotted: str, value: object) -> str:
    """One setting as YAML."""
    keys = dotted.split(".")
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(keys)]
    shown = describe(value) if not isinstance(value, list | dict) else str(value)
    return "\n".join([*lines[:-1], f"{lines[-1]} {shown}", ""])


OTHERS: list[tuple[str, Any]] = [
    ("encoder_conf.causal", True),
    ("encoder_conf.use_dynamic_chunk", True),
    ("encoder_conf.static_chunk_size", 16),
    ("encoder_conf.n_kv_head", 2),
    ("encoder_conf.mlp_type", "moe"),
    ("encoder_conf.layer_norm_type", "rms_norm"),
    ("encoder_conf.final_norm", False),
    ("encoder_conf.conv_norm_eps", 1e-3),
    ("encoder_conf.query_bias", 1),
    ("decoder_conf.tie_word_embedding", True),
    ("decoder_conf.input_layer", "no_pos"),
    ("decoder_conf.src_key_bias", False),
    ("tokenizer_conf.non_lang_syms_path", "data/non_lang.txt"),
    ("model_conf.apply_non_blank_embedding", True),
    ("dataset_conf.spec_sub", True),
    ("dataset_conf.feats_type", "mfcc"),
    ("dataset_conf.speaker_conf", {}),
    ("optim_conf.modules", ["ctc"]),
    ("lora_conf", {}),
    ("collate_conf", {}),
    ("raw_wav", False),
    ("pretrain", True),
]


@pytest.mark.parametrize(("dotted", "value"), OTHERS, ids=[dotted for dotted, _ in OTHERS])
def test_what_would_change_numbers_is_refused(tmp_path: Path, dotted: str, value: object) -> None:
    line = dotted.count(".") + 1
    message = fault(tmp_path, nested(dotted, value))
    assert message.startswith(f"{line}: {dotted}: {describe(value)} is not supported ({ONLY[dotted][1]}); remove it")


@pytest.mark.parametrize("dotted", ONLY)
def test_what_is_off_loads_without_a_word(tmp_path: Path, dotted: str, caplog: pytest.LogCaptureFixture) -> None:
    for off in ONLY[dotted][0]:
        assert load(tmp_path, nested(dotted, off)) == ExperimentConfig()
    assert caplog.records == []


@pytest.mark.parametrize(("dotted", "value"), [(dotted, value) for dotted in CHOICES for value in CHOICES[dotted]])
def test_a_choice_of_wenet_that_is_not_ours(tmp_path: Path, dotted: str, value: str) -> None:
    assert f" {dotted}: WeNet's '{value}' is not supported; use " in fault(tmp_path, nested(dotted, value))


def test_the_tables_and_the_schema_do_not_overlap() -> None:
    keys = {".".join(key) for key in _keys_of(ExperimentConfig)}
    assert not keys & {*IDLE, *ONLY}
    assert not set(IDLE) & set(ONLY)
    assert set(CHOICES) <= keys
    for dotted in (*IDLE, *ONLY):
        section = dotted.rpartition(".")[0]
        assert not section or section in keys


def test_idle_keys_may_have_any_value(tmp_path: Path) -> None:
    for dotted in IDLE:
        assert load(tmp_path, nested(dotted, {"a": [1, "no"]})) == ExperimentConfig()
