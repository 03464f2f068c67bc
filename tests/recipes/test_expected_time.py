# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training: what is measured, what is computed from it, and the sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_projects import write_description

from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.recipes import expected_time
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.recipes.expected_time import (
    ExpectedTime,
    OutputsTime,
    PartTime,
    describe_expected_time,
    format_duration,
    limited_threads,
    measure_expected_time,
)
from wenet_hs.tree.errors import ConfigError

OWN = conf_file("own.yaml")
SMALL = ["encoder_conf.output_size=16", "encoder_conf.num_blocks=4", "encoder_conf.linear_units=16"]


def two_seconds(call: Callable[[], object]) -> float:
    """A clock by which each call takes 2 s."""
    call()
    return 2.0


def sentence(config: ExperimentConfig, **options: Any) -> str:
    options = {"hours": 1.0, "first_steps": 0, "num_threads": 1, **options}
    return describe_expected_time(measure_expected_time(config, OWN, **options))


@pytest.mark.parametrize(
    ("config", "encoder", "expected"),
    [  # a clip of 10 s and a batch of 4 take 2 s each; 1 h at three speeds, 4 x 16 values per 20 ms
        (
            "whisper",
            "hubert",
            "36 min for the outputs of the encoder, once (0.07 GB in o), 100 min for 3000 steps",
        ),
        ("mms", "mms", "4.4 h for 400 steps"),
        ("w2vbert", "w2v-bert", "33.3 h for 3000 steps"),
    ],
)
def test_the_expected_time_with_a_pretrained_encoder(
    config: str,
    encoder: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expected_time, "measure_seconds", two_seconds)
    path = conf_file(f"finetune_{config}.yaml")
    folder = write_description(tmp_path / "e", encoder)
    settings = [f"encoder_conf.path={folder}", "dtype=fp32"]
    if config != "mms":
        settings.append("encoder_conf.upper={output_size: 16, linear_units: 16, num_blocks: 1}")
    if config == "whisper":
        settings.append("encoder_conf.cache=o")
    line = sentence(load_config(path, settings))
    start = f"expected time of a training: {expected} (measured with 4 clips of 10 s on "
    assert line.startswith(start)
    conditions, _, disk = line.rpartition("; its checkpoints take at most ")
    assert conditions.endswith(", threads: 1; without validation and waiting for data)")
    assert disk.endswith(" GB of disk") and float(disk.split()[0]) > 0
    limited = load_config(path, [*settings, "max_minutes=20"])
    outputs = "20 min for the outputs of the encoder, once (0.07 GB in o), "
    steps = limited.scheduler_conf.total_steps
    of_outputs = outputs if config == "whisper" else ""
    assert f": {of_outputs}20 min for at most {steps} steps (" in sentence(limited)


@pytest.mark.parametrize(
    ("first_steps", "settings", "expected"),
    [  # a step takes 2 s
        (300, [], "10 min + 20 min for 300 + 600 steps"),
        (0, ["accum_grad=2"], "40 min for 600 steps"),
        (300, ["max_minutes=15"], "10 min + 15 min for at most 300 + 600 steps"),
    ],
)
def test_the_expected_time_of_a_training_from_random_weights(
    first_steps: int,
    settings: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = list[float]()

    def add_gradients(trial: Any) -> None:
        weights.append(trial.model.loss_weights.ctc)

    monkeypatch.setattr(expected_time, "measure_seconds", two_seconds)
    monkeypatch.setattr(expected_time, "add_gradients", add_gradients)
    config = load_config(OWN, ["scheduler_conf.total_steps=600", *SMALL, *settings])
    line = sentence(config, first_steps=first_steps)
    start = f"expected time of a training: {expected} (measured with 2 clips of 10 s on "
    assert line.startswith(start)
    of_first = [1.0] * 5 if first_steps else []
    assert weights == [*of_first, *[0.3] * 5], "the first part is trained by CTC only"


def test_a_head_over_a_tree_is_measured_as_a_softmax() -> None:
    tree = ["head=hsoftmax", "head_conf.tree=none.json", "ctc_conf.head=class"]
    config = load_config(OWN, [*tree, "ctc_conf.head_conf.tree=none.json", *SMALL])
    expected = measure_expected_time(config, OWN, hours=1.0, first_steps=0, num_threads=1)
    [part] = expected.parts
    assert part.steps == 2400
    assert part.seconds > 0


def test_it_is_measured_with_the_threads_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def record(call: Callable[[], object]) -> float:
        threads.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(expected_time, "measure_seconds", record)
    before = torch.get_num_threads()
    line = sentence(load_config(OWN, SMALL), num_threads=before + 1)
    assert {*threads} == {before + 1}
    assert f", threads: {before + 1};" in line
    assert torch.get_num_threads() == before


def test_the_number_of_threads_is_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), limited_threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_config_without_an_end_is_refused() -> None:
    config = load_config(OWN, ["scheduler=warmuplr", "scheduler_conf.total_steps=null"])
    with pytest.raises(ConfigError, match="own.yaml: no scheduler_conf.total_steps; give it"):
        sentence(config)


def test_the_sentence_has_every_part() -> None:
    expected = ExpectedTime(
        parts=(PartTime(steps=10, seconds=60), PartTime(steps=20, seconds=7200)),
        outputs=OutputsTime(seconds=660, gigabytes=1.25, folder="my outputs"),
        checkpoint_gigabytes=0.123,
        has_time_limit=True,
        num_clips=3,
        machine="M, threads: 2",
    )
    assert describe_expected_time(expected) == (
        "expected time of a training: 11 min for the outputs of the encoder, once (1.2 GB in my "
        "outputs), 1.0 min + 2.0 h for at most 10 + 20 steps (measured with 3 clips of 10 s on M, "
        "threads: 2; without validation and waiting for data); its checkpoints take at most "
        "0.12 GB of disk"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 min"), (594, "9.9 min"), (600, "10 min"), (7140, "119 min"), (7200, "2.0 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
