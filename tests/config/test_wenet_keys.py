# SPDX-License-Identifier: Apache-2.0
"""WeNet's YAML files load unchanged; what would change a number and is not done here is refused,
never ignored.
"""

import logging
import re
from pathlib import Path

import pytest
import yaml

from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.section import schema_keys
from wenet_hs.config.wenet_keys import IGNORED_KEYS, KINDS_OF_MODELS, ONLY_VALUES, RENAMED_KEYS
from wenet_hs.config.yaml_file import describe
from wenet_hs.tree.errors import ConfigError

# The settings of WeNet's recipes.
RECIPE = """
encoder: conformer
encoder_conf:
    output_size: 512    # dimension of attention
    input_layer: conv2d6
    use_cnn_module: True
    activation_type: 'swish'
    use_dynamic_left_chunk: false
decoder: bitransformer
decoder_conf: {attention_heads: 8, num_blocks: 3, r_num_blocks: 3, self_attention_dropout_rate: 0.0}
tokenizer: char
tokenizer_conf:
  symbol_table_path: 'data/dict/phn_units.txt'
  split_with_space: true
  connect_symbol: ' '
  non_lang_syms_path: null
  num_languages: 1
  special_tokens: {<blank>: 0, <unk>: 1, <sos>: 2, <eos>: 2}
ctc_conf: {ctc_blank_id: 0}
cmvn: global_cmvn
cmvn_conf: {cmvn_file: 'data/train/global_cmvn', is_json_cmvn: true}
model: asr_model
model_conf: {ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false, reverse_weight: 0.3}
dataset_conf:
    split_with_space: true
    filter_conf: {max_length: 2000, token_max_length: 400, max_output_input_ratio: 10.0}
    spec_sub: false
    shuffle: true
    shuffle_conf: {shuffle_size: 1500}
    sort_conf: {sort_size: 500}
    batch_conf: {batch_type: 'dynamic', max_frames_in_batch: 15000}
grad_clip: 5
accum_grad: 4
optim_conf: {lr: 0.002}
scheduler: warmuplr     # pytorch v1.1.0+ required
"""


def load(tmp_path: Path, text: str) -> ExperimentConfig:
    (tmp_path / "train.yaml").write_text(text, "utf-8")
    return load_config(tmp_path / "train.yaml")


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path}/train.yaml:")


def test_a_recipe_loads_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load(tmp_path, RECIPE)
    assert (config.tokenizer, config.decoder, config.cmvn) == (
        "phone",
        "bitransformer",
        "global_cmvn",
    )
    assert (config.encoder_conf.output_size, config.encoder_conf.input_layer) == (512, "conv2d6")
    assert config.tokenizer_conf.special_tokens == {
        "<blank>": 0,
        "<unk>": 1,
        "<sos>": 2,
        "<eos>": 2,
    }
    assert config.dataset_conf.batch_conf.max_frames_in_batch == 15000
    assert (config.grad_clip, config.accum_grad, config.optim_conf.lr) == (5.0, 4, 0.002)
    (message,) = caplog.messages
    for key in ("dataset_conf.shuffle", "dataset_conf.sort_conf", "tokenizer_conf.num_languages ("):
        assert key in message
    assert "non_lang_syms_path" not in message  # null is what is done here


def test_older_and_other_recipes(tmp_path: Path) -> None:
    config = load(
        tmp_path, "encoder: conformer\ndecoder: transformer\n"
    )  # 2022: no model, tokenizer, cmvn sections
    assert (config.tokenizer, config.cmvn) == ("char", None)
    text = (
        "raw_wav: true\npretrain: False\nwav2vec_conf:\n    pretrain: False\n    latent_dim: 512\n"
    )
    assert load(tmp_path, text).encoder == "conformer"
    state = (
        "dtype: fp16\ninput_dim: 80\noutput_dim: 5002\nvocab_size: 5002\ntrain_engine: torch_ddp\nuse_amp: true\n"
        "model_dir: exp/conformer\nsave_states: model_only\ninit_infos: {}\nepoch: 12\nstep: 8000\nlrs: [0.001]\n"
        "tag: epoch_12\nsave_time: 20/12/2023 11:22:33\nloss_dict: {loss: 7.0, acc: 0.9}\nlfmmi_dir: ''\n"
    )
    config = load(tmp_path, RECIPE + state)  # what WeNet writes beside a checkpoint
    assert (config.dtype, config.output_dim) == ("fp16", 5002)


def test_cmvn_outside_of_its_section_as_before_2023(tmp_path: Path) -> None:
    config = load(tmp_path, "cmvn_file: exp/global_cmvn\nis_json_cmvn: true\n")
    assert (config.cmvn, config.cmvn_conf.cmvn_file) == ("global_cmvn", "exp/global_cmvn")
    assert load(tmp_path, "cmvn_file: null\nis_json_cmvn: true\n").cmvn is None
    found = fault(tmp_path, "seed: 1\ncmvn_file: a\ncmvn_conf: {cmvn_file: b}\n")
    assert found == "2: cmvn_file: 'a' is not supported (it is also given in cmvn_conf); remove it"
    found = fault(tmp_path, "cmvn_file: a\nis_json_cmvn: false\n")
    assert found.startswith(
        "2: is_json_cmvn: false is not supported (global_cmvn is WeNet's JSON); remove it or"
    )


def test_phones_are_wenets_characters_split_at_spaces(tmp_path: Path) -> None:
    assert (
        load(tmp_path, "tokenizer_conf: {split_with_space: true, connect_symbol: ' '}").tokenizer
        == "phone"
    )
    assert (
        load(tmp_path, "tokenizer: phone\ntokenizer_conf: {split_with_space: true}").tokenizer
        == "phone"
    )
    assert (
        load(tmp_path, "tokenizer_conf: {split_with_space: false, connect_symbol: ''}").tokenizer
        == "char"
    )


def test_wenets_rates_of_modules_are_read(tmp_path: Path) -> None:
    conf = load(
        tmp_path, "optim_conf: {lr: [1.0e-5, 0.1, 0.002], modules: [encoder, ctc]}"
    ).optim_conf
    assert (conf.lr, conf.lr_of) == (0.002, {"encoder": 1e-5, "ctc": 0.1})
    found = fault(tmp_path, "optim_conf:\n  modules: [encoder]\n  lr: [1.0e-5, -1]\n")
    assert found == "3: optim_conf.lr: must be greater than 0, got -1"
    found = fault(tmp_path, "optim_conf:\n  modules: [encoder]\n  lr: [-2, 1]\n")
    assert found.endswith("optim_conf.lr_of.encoder: must be greater than 0, got -2")


def nested(dotted: str, value: object) -> str:
    """One setting as YAML, each key on its own line."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return yaml.safe_dump(value)


REFUSED = """
encoder_conf.n_kv_head=2 encoder_conf.mlp_type=moe
encoder_conf.layer_norm_type=rms_norm encoder_conf.final_norm=false encoder_conf.query_bias=1
encoder_conf.conv_norm_eps=0.001 decoder_conf.tie_word_embedding=true decoder_conf.input_layer=no_pos model=transducer
decoder_conf.src_key_bias=false tokenizer_conf.non_lang_syms_path=a.txt tokenizer_conf.connect_symbol="▁"
model_conf.ignore_id=0 model_conf.apply_non_blank_embedding=true cmvn_conf.is_json_cmvn=false dataset_conf.spec_sub=true
dataset_conf.feats_type=mfcc dataset_conf.speaker_conf={} optim_conf.modules=["ctc"] lora_conf={} collate_conf={}
raw_wav=false pretrain=true
"""


@pytest.mark.parametrize("setting", REFUSED.split())
def test_settings_that_would_change_numbers_are_refused(tmp_path: Path, setting: str) -> None:
    dotted, _, value = setting.partition("=")
    found = describe(yaml.safe_load(value))
    to_do = "a model of this kind cannot be read" if dotted in KINDS_OF_MODELS else "remove"
    expected = f"{dotted.count('.') + 1}: {dotted}: {found} is not supported ({ONLY_VALUES[dotted].reason}); {to_do}"
    assert fault(tmp_path, nested(dotted, yaml.safe_load(value))).startswith(expected)


def test_keys_that_describe_what_is_done_here_load_and_ignored_keys_may_have_any_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for dotted, only_values in ONLY_VALUES.items():
        for value in only_values.accepted:
            assert load(tmp_path, nested(dotted, value)) == ExperimentConfig()
    assert caplog.records == []
    for dotted, reason in IGNORED_KEYS.items():
        assert load(tmp_path, nested(dotted, {"a": [1, "no"]})) == ExperimentConfig()
        assert caplog.messages[-1].endswith(
            f": settings of WeNet without effect here: {dotted} ({reason})"
        )


def test_the_tables_and_the_schema_do_not_overlap() -> None:
    keys = {".".join(key) for key in schema_keys(ExperimentConfig)}
    assert not keys & {*IGNORED_KEYS, *ONLY_VALUES} and not set(IGNORED_KEYS) & set(ONLY_VALUES)
    for dotted in (*IGNORED_KEYS, *ONLY_VALUES):
        section = dotted.rpartition(".")[0]
        assert not section or section in keys


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("symbol_table", "tokenizer_conf.symbol_table_path"),
        ("dict", "tokenizer_conf.symbol_table_path"),
        ("dataset_conf.symbol_table", "tokenizer_conf.symbol_table_path"),
        ("bpe_model", "tokenizer_conf.bpe_path"),
        ("tokenizer_conf.bpe_model", "tokenizer_conf.bpe_path"),
        ("dataset_conf.fbank_conf.mel_bins", "num_mel_bins"),
        (
            "batch_size",
            "dataset_conf.batch_conf.batch_size",
        ),  # the same key elsewhere rather than a similar one here
        ("lr", "optim_conf.lr"),
        ("spec_aug", "dataset_conf.spec_aug"),
        ("encoder_conf.num_block", "num_blocks"),
    ],
)
def test_a_key_at_another_place_or_with_another_name_is_named(
    tmp_path: Path, setting: str, key: str
) -> None:
    (tmp_path / "a.yaml").write_text("seed: 1\n")
    with pytest.raises(
        ConfigError, match=re.escape(f"{setting}: unknown key; did you mean `{key}`?")
    ):
        load_config(tmp_path / "a.yaml", [f"{setting}=1"])


def test_the_other_names_lead_to_keys_that_exist() -> None:
    known = {".".join(key) for key in schema_keys(ExperimentConfig)}
    assert not RENAMED_KEYS.keys() & known
    assert {*RENAMED_KEYS.values()} <= known
