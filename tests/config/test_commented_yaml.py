# SPDX-License-Identifier: Apache-2.0
"""Configs as YAML with comments: they load as equal configs, and say what was decided by whom."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wenet_hs.config.commented_yaml import WIDTH, SettingSource, comment_lines, write_commented
from wenet_hs.config.load import is_language_model, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import Place, dump_value, parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]
CONFIGS = [path for path in sorted((ROOT / "conf").glob("*.yaml")) if path.name != "own_sizes.yaml"]
OF_RECOGNISERS = [path for path in CONFIGS if not is_language_model(read_yaml(path).values)]
QUIET = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def written(config: ExperimentConfig, folder: Path, *sources: SettingSource) -> str:
    """The text, after a check that it loads as an equal config."""
    text = write_commented(config, written_in="c.yaml", sources=sources)
    path = folder / "commented.yaml"
    path.write_text(text, "utf-8")
    assert load_config(path).model_dump() == config.model_dump()
    return text


def line_of(text: str, name: str) -> str:
    """The one line of a setting, without its indent."""
    [line] = [line for line in text.splitlines() if line.strip().startswith(f"{name}:")]
    return line.strip()


@pytest.mark.parametrize("path", OF_RECOGNISERS, ids=lambda path: path.name)
def test_a_config_is_written_as_it_is(path: Path, tmp_path: Path) -> None:
    text = written(load_config(path), tmp_path)
    assert max(map(len, text.splitlines())) <= WIDTH


OF_KINDS = [
    ["decoder=none", "model_conf={}", "decoder_conf=null", "ctc_conf.head=class"],
    ["head=hsoftmax", "head_conf.tree=t.json", "optim_conf.lr_of={encoder: 1.0e-5}"],
    ["optim=adamw", "optim_conf={}", "early_stopping={}", "freeze=[encoder.embed, decoder]"],
    ["dataset_conf.noise_conf.list=n", "dataset_conf.cache_features=false"],
    ["dataset_conf.sampling={}", "tokenizer=bpe", "tokenizer_conf.bpe_path=b"],
    ["dataset_conf.batch_conf={batch_type: bucket, bucket_boundaries: [5], bucket_batch_sizes: [2, 1]}"],
]  # fmt: skip


@pytest.mark.parametrize("overrides", OF_KINDS, ids=lambda overrides: overrides[0])
def test_sections_of_every_kind_are_written(overrides: list[str], tmp_path: Path) -> None:
    tree_of_ctc = ["ctc_conf.head_conf.tree=c.json"] if "ctc_conf.head=class" in overrides else []
    config = load_config(ROOT / "conf" / "own.yaml", [*overrides, *tree_of_ctc])
    written(config, tmp_path)


@QUIET
@given(path=st.text(min_size=1).filter(lambda text: "\x00" not in text), freeze=st.lists(st.text()))
def test_any_text_is_read_back(path: str, freeze: list[str], tmp_path: Path) -> None:
    config = load_config(ROOT / "conf" / "own.yaml")
    changed = config.cmvn_conf.model_copy(update={"cmvn_file": path})
    config = config.model_copy(update={"cmvn_conf": changed, "freeze": tuple(freeze)})
    written(config, tmp_path)


@QUIET
@given(Json)
def test_a_value_is_one_line_and_read_back(value: Any) -> None:
    line = dump_value(value)
    assert "\n" not in line
    assert parse_yaml(line, Place("test")).values == value


def test_a_value_that_is_no_default_says_who_chose_it_and_the_default(tmp_path: Path) -> None:
    overrides = ["encoder_conf.output_size=96", "encoder_conf.num_blocks=6", "save_interval=9"]
    own_choice = ["optim=adamw", "optim_conf={}", "early_stopping.patience=10", "max_epoch=5"]
    config = load_config(ROOT / "conf" / "own.yaml", [*overrides, *own_choice])
    text = written(
        config,
        tmp_path,
        SettingSource(name="size tiny", overrides=overrides),
        SettingSource(name="--override_config", overrides=own_choice),
    )
    assert line_of(text, "output_size") == "output_size: 96  # by size tiny; default: 256"
    assert "  num_blocks: 6  # by size tiny; also the default\n" in text
    assert line_of(text, "save_interval") == "save_interval: 9  # by size tiny; default: null"
    assert line_of(text, "grad_clip") == "grad_clip: 5.0  # by c.yaml; default: 50.0"
    assert line_of(text, "patience") == "patience: 10  # by --override_config; also the default"
    of_section = "early_stopping:  # by --override_config; default: null"
    assert line_of(text, "early_stopping") == of_section
    of_kind = "weight_decay: 0.01  # by --override_config; also the default"
    assert line_of(text, "weight_decay") == of_kind, "that of adamw"
    assert line_of(text, "max_epoch") == "max_epoch: 5  # by --override_config; default: 100"
    assert line_of(text, "max_minutes") == "max_minutes: null"
    assert line_of(text, "optim_conf") == "optim_conf:", "its settings have comments"


def test_the_last_source_of_a_setting_counts(tmp_path: Path) -> None:
    overrides = ["accum_grad=2"]
    config = load_config(ROOT / "conf" / "own.yaml", overrides)
    first = SettingSource(name="first", overrides=["accum_grad=7"])
    last = SettingSource(name="last", overrides=overrides)
    text = written(config, tmp_path, first, last)
    assert line_of(text, "accum_grad") == "accum_grad: 2  # by last; default: 1"


def test_a_long_value_has_its_remark_above_it(tmp_path: Path) -> None:
    config = load_config(ROOT / "conf" / "own.yaml", [f"cmvn_conf.cmvn_file={'x' * 80}"])
    text = written(config, tmp_path)
    assert f"  # (by c.yaml; default: null)\n  cmvn_file: {'x' * 80}\n" in text


def test_each_setting_has_its_meaning_and_its_named_values(tmp_path: Path) -> None:
    text = written(load_config(ROOT / "conf" / "own.yaml"), tmp_path)
    assert "\n# Kind of optimizer. Values: adam, adamw.\noptim: adam\n" in text
    assert "\n# The attention decoder. Its width is the encoder's.\ndecoder_conf:\n" in text
    assert "  # Width of encoder and decoder.\n  output_size: 144" in text
    assert "Values: fp32" not in text, "the meaning of dtype names them"


def test_comments_are_wrapped() -> None:
    lines = comment_lines("word " * 50, "  ")
    assert len(lines) == math.ceil(250 / 96)
    assert all(line.startswith("  # word") and len(line) <= WIDTH for line in lines)


def test_the_text_is_yaml_of_other_readers_too(tmp_path: Path) -> None:
    config = load_config(ROOT / "conf" / "own.yaml")
    text = written(config, tmp_path)
    assert yaml.safe_load(text)["encoder_conf"]["output_size"] == 144
