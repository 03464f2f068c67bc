# SPDX-License-Identifier: Apache-2.0
"""Every YAML file of the project loads; a broken one is a ConfigError with its line, whatever is
broken in it.
"""

import copy
import logging
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import config_changes, load_config
from wenet_hs.data.augment import SPEED_FACTORS
from wenet_hs.train.optim import learning_rate
from wenet_hs.tree.errors import ConfigError

ROOT = Path(__file__).parents[2]
TABLES = {ROOT / "conf" / "own_sizes.yaml"}
"""No configs."""
CONFIGS = {*(ROOT / "conf").glob("*.yaml"), *(ROOT / "examples").glob("**/conf/*.yaml")}
SHIPPED = sorted(CONFIGS - TABLES)
TREE_HEAD = "head: hsoftmax\nhead_conf:\n  tree: data/tree.json\n"
BASE = (ROOT / "conf" / "paper_cv.yaml").read_text("utf-8").replace("head: softmax\n", TREE_HEAD)
JUNK = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, float("nan"), "", "no", "x" * 99, [], [1, "a"], {}, {"a": 1}]
)
QUIET = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_config_loads_and_opens_with_its_command(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        if "\nrnn:" in path.read_text("utf-8"):
            load_config(path, (), LmConfig)
        else:
            load_config(path)
    assert caplog.records == []
    comment = path.read_text("utf-8").partition("\n\n")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert "wenet-hs train" in comment or ".sh" in comment


@pytest.mark.parametrize(
    ("name", "epochs", "tokenizer"), [("paper_cv", 100, "char"), ("paper_ucla", 80, "phone")]
)
def test_the_papers_configs_have_its_settings_and_the_steps_of_their_comments(
    name: str, epochs: int, tokenizer: str
) -> None:
    path = ROOT / "conf" / f"{name}.yaml"
    config = load_config(path)
    assert (config.encoder_conf.num_blocks, config.decoder_conf.num_blocks) == (12, 6)
    assert (config.encoder, config.decoder, config.encoder_conf.input_layer) == (
        "conformer",
        "transformer",
        "conv2d",
    )
    aug = config.dataset_conf.spec_aug_conf
    assert (aug.num_f_mask, aug.max_f, aug.num_t_mask, aug.max_t) == (2, 10, 2, 50)
    assert (config.optim_conf.lr, config.scheduler_conf.warmup_steps, config.max_epoch) == (
        5e-5,
        25000,
        epochs,
    )
    assert config.tokenizer == tokenizer
    stated = re.findall(
        r"#  +([0-9.]+) h.*?: +([0-9,]+) steps, final learning rate ([0-9.e-]+)",
        path.read_text("utf-8"),
    )
    assert len(stated) == 2
    mean_length = fmean(1 / speed for speed in SPEED_FACTORS)  # of an utterance at a random speed
    frames_per_step = config.dataset_conf.batch_conf.max_frames_in_batch * config.accum_grad
    for hours, steps, rate in stated:
        num_steps = math.ceil(float(hours) * 360_000 * mean_length * epochs / frames_per_step)
        assert (f"{num_steps:,}", f"{learning_rate(num_steps, config):.2e}") == (steps, rate)
        assert num_steps > config.scheduler_conf.warmup_steps or hours == "0.47"
    if name == "paper_ucla":  # the peak, and the epochs that make up for the smaller corpus
        assert 25000 / (int(stated[0][1].replace(",", "")) / epochs) == pytest.approx(37, abs=0.5)
        assert math.ceil(80 * 1.86 / 0.47) == 317


def test_the_papers_two_configs_differ_only_in_batches_epochs_and_units() -> None:
    changes = config_changes(
        *(load_config(ROOT / "conf" / f"paper_{name}.yaml") for name in ("cv", "ucla"))
    )
    expected = {
        "dataset_conf.batch_conf.max_frames_in_batch",
        "accum_grad",
        "max_epoch",
        "tokenizer",
    }
    expected |= {"num_workers"}  # which changes no result
    assert {key for key, _, _ in changes} == expected


def load_or_fault(path: Path, content: str) -> None:
    """Nothing but a config or a ConfigError whose every line has the file and the line comes out of
    `load_config`.
    """
    path.write_text(content, "utf-8", newline="")
    try:
        load_config(path)
    except ConfigError as error:
        for line in str(error).split("\n"):
            assert re.match(rf"{re.escape(str(path))}:[1-9][0-9]*: \S", line), line


@QUIET
@given(st.data())
def test_any_change_of_a_setting_loads_or_names_its_line(
    tmp_path: Path, data: st.DataObject
) -> None:
    tree = copy.deepcopy(yaml.safe_load(BASE))
    for _ in range(data.draw(st.integers(1, 3))):
        section: dict[str, Any] = tree
        key = data.draw(st.sampled_from(sorted(section)))
        while isinstance(section[key], dict) and section[key] and data.draw(st.integers(0, 3)):
            section = section[key]
            key = data.draw(st.sampled_from(sorted(section)))
        value = section.pop(key)
        match data.draw(st.sampled_from(["delete", "misspell", "retype"])):
            case "misspell":
                at = data.draw(st.integers(0, len(key)))
                section[key[:at] + key[at + 1 :] + data.draw(st.sampled_from(["", "s", "_"]))] = (
                    value
                )
            case "retype":
                section[key] = copy.deepcopy(data.draw(JUNK))
        if not tree:
            break
    load_or_fault(tmp_path / "a.yaml", yaml.safe_dump(tree, sort_keys=False))


@QUIET
@example(at=0, cut=len(BASE), put="a: 1\n\x85: 2")
@example(at=0, cut=len(BASE), put="!<tag:x> a")
@example(at=0, cut=len(BASE), put="%TAG ! x\n---\n!y a")
@example(at=0, cut=len(BASE), put="&a : *a")
@given(
    at=st.integers(0, len(BASE)),
    cut=st.integers(0, 5),
    put=st.text(st.sampled_from(":-[]{}&*!%#'\"|>?,@` \t\n~a0é"), max_size=4),
)
def test_any_change_of_the_text_loads_or_names_its_line(
    tmp_path: Path, at: int, cut: int, put: str
) -> None:
    load_or_fault(tmp_path / "a.yaml", BASE[:at] + put + BASE[at + cut :])
