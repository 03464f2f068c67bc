# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs check-options`: the config by --base and --encoder, sizes, and `--modes auto`."""

from pathlib import Path

import pytest
from command_line import Capsys, error_line, run_line
from model_folders import write_model_folder
from recipe_projects import write_description

from wenet_hs.bin import check_options
from wenet_hs.config.load import load_config
from wenet_hs.recipes.conf_files import conf_file

OWN = conf_file("own.yaml")


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a base without a decoder and an encoder, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    write_model_folder(tmp_path / "base", decoder="none", decoder_conf=None, model_conf=None)
    write_description(tmp_path / "encoder", "hubert")


def call(options: str) -> int:
    return run_line(check_options, f"--config {OWN} {options}")


@pytest.mark.parametrize(
    "options",
    [
        "--base base",
        "--encoder encoder",
        "--size tiny",
        "--base base --size large",
        "--base '' --encoder '' --size ''",
        "--encoder encoder --modes joint --override_config encoder_conf.silence_s=1.0",
        "--base base --modes auto ctc_greedy_search",
        "--modes auto",
    ],
)
def test_right_options_print_nothing(options: str, capsys: Capsys) -> None:
    assert call(options) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--base none", "none: contains no final.pt; give the folder of a trained model"),
        ("--encoder none", "none: cannot be read (No such file or directory); "),
        ("--size huge", "--size huge: must be tiny, small, medium, large or auto"),
        (
            "--encoder encoder --size tiny",
            "--encoder encoder: has a config of its own; leave out --base and --size",
        ),
        (
            "--encoder encoder --base base",
            "--encoder encoder: has a config of its own; leave out --base and --size",
        ),
        (
            "--base base --config c.yaml",
            "--config c.yaml: --base has the settings; change them with --override",
        ),
        (
            "--base base --modes auto joint",
            "decoder: none, --modes joint: must be one of ctc_greedy_search, ",
        ),
        (
            "--encoder encoder --override_config encoder_conf.output_size=3",
            "--override_config encoder_conf.output_size=3: encoder_conf.output_size: not a key",
        ),
        (
            "--override_config model_conf.ctc_weight=1.0 --modes ctc_greedy_search attention",
            "model_conf.ctc_weight 1, --modes attention: must be one of ctc_greedy_search, ctc_prefix_beam_search",
        ),
        (
            "--override_config model_conf.ctc_weight=0 --modes auto joint",
            "model_conf.ctc_weight 0, --modes joint: must be one of attention",
        ),
        ("--modes all", "--modes all: must be one of ctc_greedy_search, "),
    ],
)
def test_wrong_options_are_one_line(options: str, expected: str, capsys: Capsys) -> None:
    assert error_line(call(options), capsys).startswith(expected)


def test_the_config_of_the_base_is_checked(capsys: Capsys) -> None:
    assert load_config("base/train.yaml").decoder == "none"
    assert call("--base base --modes attention") == 2
    assert call("--modes attention") == 0, "conf/own.yaml has a decoder"


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ("--head softmax hsoftmax adaptive", OWN),
        ("--head softmax softmax --base base", Path("base/train.yaml")),
        ("--head softmax hsoftmax --encoder encoder", conf_file("finetune_whisper.yaml")),
    ],
)
def test_the_config_of_all_heads_is_read_once(
    options: str, config: Path, yaml_reads: list[Path]
) -> None:
    assert call(options) == 0
    assert yaml_reads == [config]
