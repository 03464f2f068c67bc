# SPDX-License-Identifier: Apache-2.0
"""What is decided for a training; a plan is the config that a command line would give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from model_folders import write_model_folder
from pretrained_folders import write_folder
from recipe_projects import write_description, write_stats

from wenet_hs.config.load import dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.recipes.plan import (
    Draft,
    PlanOptions,
    check_unit,
    describe_size,
    draft_plan,
    read_hours,
)
from wenet_hs.recipes.plan_text import first_part_text, plan_text
from wenet_hs.recipes.sizes import read_size_table
from wenet_hs.tree.errors import ConfigError, DataError

OWN = conf_file("own.yaml")
TINY = [
    "encoder_conf.output_size=96",
    "encoder_conf.linear_units=384",
    "decoder_conf.linear_units=384",
    "encoder_conf.num_blocks=6",
    "encoder_conf.dropout_rate=0.2",
    "decoder_conf.dropout_rate=0.2",
    "model_conf.interctc_layer=3",
    "scheduler_conf.total_steps=3000",
    "save_interval=250",
]
ADAPTED = [
    "optim_conf.lr=1e-3",
    "freeze=[]",
    "scheduler=warmup_cosine",
    "scheduler_conf.warmup_steps=400",
    "model_conf.ctc_only_steps=0",
    "max_epoch=100000",
    "max_minutes=null",
    "early_stopping=null",
]
SMALL_STEPS = ["scheduler_conf.total_steps=4800", "save_interval=400"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_stats(tmp_path / "data", 0.25)


def draft(data: Path, chosen_before: str | None = None, **options: Any) -> Draft:
    options = {"config": OWN, "size": "auto", "out": data.parent / "exp", **options}
    return draft_plan(PlanOptions(data=data, **options), chosen_before)


def refusal(data: Path, **options: Any) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        draft(data, **options)
    return str(caught.value)


def config_of_plan(data: Path, **options: Any) -> ExperimentConfig:
    """The config that plan.yaml has."""
    options = {"config": OWN, "size": "auto", "out": data.parent / "exp", **options}
    plan_options = PlanOptions(data=data, **options)
    path = data.parent / "written.yaml"
    text = plan_text(draft_plan(plan_options, None), plan_options, path, "expected time: x")
    path.write_text(text, "utf-8")
    return load_config(path)


def assert_equal(config: ExperimentConfig, path: Path, overrides: Sequence[str]) -> None:
    """The config is that of a YAML with these settings."""
    expected = load_config(path, overrides)
    assert config.model_dump() == expected.model_dump()


# ---- the config is the one that `train` would get from options


def test_the_plan_of_little_speech(data: Path) -> None:
    assert_equal(config_of_plan(data), OWN, TINY)


@pytest.mark.parametrize("name", ["tiny", "small", "medium", "large"])
def test_the_plan_of_each_size(name: str, data: Path) -> None:
    size = read_size_table().choose(name, 0.0)
    steps = [f"scheduler_conf.total_steps={size.steps}", f"save_interval={size.steps // 12}"]
    assert_equal(config_of_plan(data, size=name), OWN, [*size.settings, *steps])


def test_settings_of_the_user_come_last(data: Path) -> None:
    overrides = ["encoder_conf.output_size=64", "scheduler_conf.total_steps=900", "seed=3"]
    config = config_of_plan(data, overrides=overrides)
    assert_equal(config, OWN, [*TINY, *overrides])
    assert config.encoder_conf.output_size == 64


def test_the_plan_of_another_config(data: Path) -> None:
    mini = conf_file("mini.yaml")
    overrides = ["model_conf.interctc_weight=0.3", "scheduler=warmup_cosine"]
    overrides.append("scheduler_conf.warmup_steps=20")
    config = config_of_plan(data, config=mini, overrides=overrides)
    assert_equal(config, mini, [*TINY, *overrides])


def test_the_plan_of_a_trained_model(data: Path) -> None:
    write_stats(data, 1.0)
    base = write_model_folder(data.parent / "base")
    expected = [*ADAPTED, *SMALL_STEPS]
    assert_equal(config_of_plan(data, base=base), base / "train.yaml", expected)
    expected = [*ADAPTED, "scheduler_conf.total_steps=3000", "save_interval=250"]
    assert_equal(config_of_plan(data, base=base, size="tiny"), base / "train.yaml", expected)


def test_the_plan_of_a_trained_model_with_a_pretrained_encoder(data: Path) -> None:
    """encoder.json is beside the train.yaml of the base, but not beside the plan."""
    base = data.parent / "base"
    base.mkdir()
    (base / "final.pt").write_bytes(b"")
    (base / "encoder.json").write_text("{}")
    given = ["encoder_conf.path=encoder.json", "tokenizer_conf.symbol_table_path=units.txt"]
    dump_config(load_config(conf_file("finetune_whisper.yaml"), given), base / "train.yaml")
    write_stats(data, 1.0)
    path_of_encoder = f"encoder_conf.path={base / 'encoder.json'}"
    expected = [*ADAPTED, *SMALL_STEPS, path_of_encoder]
    assert_equal(config_of_plan(data, base=base), base / "train.yaml", expected)


def test_the_plan_of_a_pretrained_encoder(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    encoder = write_folder(data.parent / "my whisper: 1", "whisper")
    overrides = ["max_minutes=3"]
    expected = [
        "scheduler_conf.total_steps=2000",
        "save_interval=166",
        f"encoder_conf.path={encoder}",
        f"encoder_conf.cache={data / 'encoder_outputs'}",
        *overrides,
    ]
    config = config_of_plan(data, encoder=encoder, overrides=overrides)
    assert_equal(config, conf_file("finetune_whisper.yaml"), expected)


@pytest.mark.parametrize("unit", ["char", "phone"])
def test_the_plan_has_the_tokenizer_of_the_unit(unit: str, data: Path) -> None:
    assert_equal(config_of_plan(data, unit=unit), OWN, [*TINY, f"tokenizer={unit}"])


def test_the_plan_has_the_model_of_word_pieces(data: Path) -> None:
    pieces = ["tokenizer=bpe", f"tokenizer_conf.bpe_path={data}/bpe.model"]
    assert_equal(config_of_plan(data, unit="bpe:60"), OWN, [*TINY, *pieces])


def test_settings_of_other_heads_are_left_to_the_trainings(data: Path) -> None:
    assert_equal(config_of_plan(data, overrides=["head_conf.bias=true"]), OWN, TINY)
    own_head = ["head=hsoftmax", "head_conf.tree=t.json", "head_conf.bias=true"]
    assert_equal(config_of_plan(data, overrides=own_head), OWN, [*TINY, *own_head])
    assert "head_conf.bais: " in refusal(data, overrides=["head_conf.bais=true"])


# ---- decisions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "0.25 hours of training speech: size tiny, 3000 + 3000 steps"),
        ({"size": "large"}, "0.25 hours of training speech: size large, 20000 + 16000 steps"),
        ({"base_steps": 0}, "0.25 hours of training speech: size tiny, 0 + 3000 steps"),
        ({"base_steps": 500}, "0.25 hours of training speech: size tiny, 500 + 3000 steps"),
    ],
)
def test_the_sentence_about_the_size(options: dict[str, Any], expected: str, data: Path) -> None:
    assert describe_size(draft(data, **options), None) == expected


def test_a_trained_model_has_had_its_first_part(data: Path) -> None:
    base = write_model_folder(data.parent / "base")
    plan = draft(data, base=base, base_steps=500)
    steps = f"0 + 3000 steps from {base}, whose layers stay"
    assert describe_size(plan, base) == f"0.25 hours of training speech: size tiny, {steps}"


def test_the_steps_of_an_encoder_follow_the_hours_and_its_config(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    plan = draft(data, encoder=write_description(data.parent / "mms", "mms"))
    expected = "0.25 hours of training speech: size finetune_mms.yaml, 0 + 400 steps"
    assert describe_size(plan, None) == expected
    write_stats(data, 20)
    encoder = write_description(data.parent / "hubert", "hubert")
    plan = draft(data, encoder=encoder, base_steps=600)
    expected = "20 hours of training speech: size finetune_whisper.yaml, 600 + 16000 steps"
    assert describe_size(plan, None) == expected


def test_a_config_of_an_encoder_without_steps(data: Path, tmp_path: Path) -> None:
    encoder = write_description(data.parent / "e", "hubert")
    mine = tmp_path / "mine.yaml"
    mine.write_text(conf_file("finetune_wav2vec2.yaml").read_text("utf-8"), "utf-8")
    expected = "conf/own_sizes.yaml has no steps for mine.yaml; add a line"
    assert refusal(data, config=mine, encoder=encoder) == f"--config {mine}: {expected}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": "huge"}, "--size huge: must be tiny, small, medium, large or auto"),
        ({"unit": "bpe"}, "--unit bpe: must be char, phone or bpe:N"),
        (
            {"base_steps": 20},
            "--base_steps 20: all in the warm-up of 400 steps (scheduler_conf.warmup_steps); "
            "give more steps, or lower the warm-up",
        ),
        ({"base_steps": 400}, "--base_steps 400: all in the warm-up of 400 steps"),
        (
            {"size": "small", "overrides": ["scheduler_conf.warmup_steps=4700"], "base_steps": 9},
            "--base_steps 9: all in the warm-up of 4700 steps",
        ),
        (
            {"size": "large", "overrides": ["scheduler_conf.warmup_steps=20000"]},
            "--override_config scheduler_conf.total_steps=16000: scheduler_conf.total_steps: must "
            "be above warmup_steps, 20000",
        ),
        (
            {"overrides": ["scheduler_conf={warmup_steps: 3500, total_steps: 4000}"]},
            "first part of 3000 steps: all in the warm-up of 3500 steps",
        ),
        (
            {"overrides": ["decoder=none", "model_conf={}", "decoder_conf=null"]},
            "--override_config model_conf.ctc_only_steps=3000: model_conf.ctc_only_steps: has no "
            "effect with decoder: none; remove it",
        ),
    ],
)
def test_options_that_cannot_be_planned(
    options: dict[str, Any],
    expected: str,
    data: Path,
) -> None:
    assert refusal(data, **options).startswith(expected)


def test_the_first_step_after_the_warmup_is_enough(data: Path) -> None:
    assert draft(data, base_steps=401).decisions.first_steps == 401


def test_units() -> None:
    for unit in ("char", "phone", "bpe:1"):
        check_unit(unit)
    with pytest.raises(ConfigError):
        check_unit("bpe:0")


# ---- the hours


def test_a_folder_without_lists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_hours(tmp_path)
    assert str(caught.value) == f"no lists in {tmp_path}; run stage 0"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "damaged ("),
        ("[]", "has no total.hours.train; make the lists again"),
        ('{"total": {"hours": {"train": "1"}}}', "total.hours.train is '1', not a number"),
    ],
)
def test_damaged_statistics_of_lists(content: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(content)
    with pytest.raises(DataError) as caught:
        read_hours(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/stats.json: {fault}")


# ---- the text


def header_of(data: Path, **options: Any) -> str:
    """The comments before the first setting, as one line."""
    options = {"config": OWN, "size": "auto", "out": data.parent / "exp", **options}
    plan_options = PlanOptions(data=data, **options)
    plan = data.parent / "exp" / "plan.yaml"
    text = plan_text(draft_plan(plan_options, None), plan_options, plan, "expected time: x")
    header = text.partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in header)
    return " ".join(" ".join(header).replace("#", "").split())


def test_the_header_says_what_was_decided_and_why(data: Path) -> None:
    exp = data.parent / "exp"
    header = header_of(data)
    assert f"wenet-hs train --config {exp}/plan.yaml \\ --train_data {data}/train/" in header
    assert f"--cmvn {data}/global_cmvn \\ --checkpoint {exp}/base \\ --head softmax" in header
    assert "speech: size tiny, which is for less than 0.5 hours. " in header
    assert "- 3000 + 3000 steps: a first part by CTC only, with first_part.yaml, from" in header
    assert f"Config: {OWN}, the config of models that are trained from random weights." in header
    assert "Expected time: x." in header
    header = header_of(data, size="large", base_steps=0)
    assert "size large, as --size asks for. - 16000 steps in one part." in header
    assert "--checkpoint" not in header
    header = header_of(data, base_steps=500)
    assert "- 500 + 3000 steps: a first part by CTC only, as --base_steps asks for, with" in header


def test_the_header_of_a_base_and_of_an_encoder(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    base = write_model_folder(data.parent / "base")
    header = header_of(data, base=base)
    assert f"--checkpoint {base} \\" in header
    assert f"The trainings start from the model {base}, whose layers stay." in header
    encoder = write_description(data.parent / "e", "hubert")
    header = header_of(data, encoder=encoder)
    assert "--cmvn" not in header and "--checkpoint" not in header
    assert "the steps of finetune_whisper.yaml follow from them." in header
    assert "the config of encoders that are not trained, as there is no GPU here." in header
    write_stats(data, 2000)
    assert "size large, which is for the largest amounts." in header_of(data)


def test_the_first_part_says_from_what_it_is_derived(data: Path) -> None:
    config = load_config(OWN)
    text = first_part_text(config, data / "plan.yaml", 2400)
    lines = text.splitlines()
    assert lines[0].startswith("# The first part of training, by CTC only. Derived from plan.yaml")
    assert "  total_steps: 2400  # by first part; default: null" in lines
