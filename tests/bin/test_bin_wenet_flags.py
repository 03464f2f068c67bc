# SPDX-License-Identifier: Apache-2.0
"""WeNet's command lines of today and of older versions: read as ours, or refused with what to do
instead.
"""

import argparse
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Capsys, error_line, run_line

from wenet_hs.bin import average, cmvn, recognize, train
from wenet_hs.bin.wenet_flags import FLAGS, translate_flags
from wenet_hs.tree.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "from-wenet.md"
TRAIN = (
    "--train_engine torch_ddp --config c.yaml --data_type raw --train_data a.list --cv_data b.list "
    "--model_dir 'my exp' --tensorboard_dir tb --ddp.dist_backend=nccl --num_workers 8 --prefetch 500 --pin_memory "
    "--deepspeed_config d.json --deepspeed.save_states model_only --symbol_table 'my units.txt' "
    "--cmvn data/global_cmvn --use_amp"
)


def test_wenets_command_line_of_training_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ours = translate_flags("train", shlex.split(TRAIN))
    assert ours == [
        *(
            "--config",
            "c.yaml",
            "--data_type",
            "raw",
            "--train_data",
            "a.list",
            "--cv_data",
            "b.list",
        ),
        *("--model_dir", "my exp", "--override_config", "num_workers=8"),
        *("--units", "my units.txt", "--cmvn", "data/global_cmvn"),
        *("--override_config", "dtype=fp16"),
    ]
    assert "--num_workers 8: read as --override_config num_workers=8" in caplog.messages
    assert (
        "--prefetch 500: a flag of WeNet without effect here: batches are always loaded ahead"
        in caplog.messages
    )
    assert len(caplog.messages) == 9, "every flag is named, except an engine that is ours"


@pytest.mark.parametrize("command", [average, cmvn, recognize, train])
def test_no_flag_of_ours_is_taken_for_one_of_wenets(command: Any) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert (
        not FLAGS[command.__name__.rpartition(".")[2]].keys() & parser._option_string_actions.keys()
    )


def test_help_is_never_the_value_of_a_flag() -> None:
    assert translate_flags("train", ["--cmvn", "--help", "--use_amp"]) == [
        "--cmvn",
        "--help",
        "--use_amp",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--src_path=exp", "--model_dir exp --by last"),
        ("--src_path=exp --by=loss", "--model_dir exp --by=loss"),
        ("--val_best --src_path exp", "--by cv_loss --model_dir exp"),
    ],
)
def test_without_val_best_the_last_checkpoints_are_averaged(line: str, expected: str) -> None:
    assert translate_flags("average", line.split()) == expected.split()


def test_overrides_with_a_space_are_wenets() -> None:
    line = [
        "--override_config",
        "optim_conf.lr 0.001",
        "seed=1",
        "--override_config",
        "a.b 3",
        "--model_dir",
        "my exp",
    ]
    assert translate_flags("train", line) == [
        *(
            "--override_config",
            "optim_conf.lr=0.001",
            "seed=1",
            "--override_config",
            "a.b=3",
            "--model_dir",
            "my exp",
        )
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--config exp/train.yaml --checkpoint exp/a.pt", "--model_dir exp --checkpoint exp/a.pt"),
        ("--gpu -1 --mode attention --penalty 0.0", "--device cpu --modes attention"),
        (
            "--gpu 1 --modes attention ctc_greedy_search",
            "--device cuda:1 --modes attention ctc_greedy_search",
        ),
        ("--dict u.txt --bpe_model b --connect_symbol ▁ --beam_size 3", "--beam_size 3"),
    ],
)
def test_wenets_command_line_of_recognition_is_read(line: str, expected: str) -> None:
    assert translate_flags("recognize", line.split()) == expected.split()


def test_wenets_command_line_of_feature_statistics_is_read() -> None:
    line = "--num_workers 2 --train_config c.yaml --data_list a.list --out_cmvn global_cmvn --log_interval 1000"
    expected = "--num_workers 2 --config c.yaml --data_list a.list --out global_cmvn"
    assert translate_flags("cmvn", line.split()) == expected.split()


def test_averaging_writes_the_named_file_of_the_last_or_best_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    calls = []
    monkeypatch.setattr(
        average, "choose_checkpoints", lambda folder, num, by: calls.append((folder, num, by)) or []
    )
    monkeypatch.setattr(average, "average_weights", lambda paths: {})
    target = tmp_path / "exp" / "avg_3.pt"
    target.parent.mkdir()
    assert (
        run_line(
            average,
            f"--dst_model {target} --src_path {target.parent} --num 3 --val_best --mode step",
        )
        == 0
    )
    assert target.is_file() and capsys.readouterr().out.startswith(f"{target}: average of ")
    assert (
        run_line(
            average,
            f"--dst_model {target} --src_path {target.parent} --min_epoch 0 --max_epoch 65536",
        )
        == 0
    )
    assert calls == [(target.parent, 3, "cv_loss"), (target.parent, 5, "last")]


@pytest.mark.parametrize(
    ("command", "line", "message"),
    [
        (
            train,
            "--train_engine deepspeed",
            "--train_engine deepspeed: a flag of WeNet: DeepSpeed and FSDP are not",
        ),
        (
            train,
            "--enc_init a.pt",
            "--enc_init a.pt: a flag of WeNet: give --checkpoint: it copies all weights that fit",
        ),
        (train, "--jit", "--jit: a flag of WeNet: not implemented; leave it out"),
        (
            recognize,
            "--result_file text",
            "--result_file text: a flag of WeNet: give --result_dir DIR: the text is in",
        ),
        (recognize, "--penalty 0.5", "--penalty 0.5: a flag of WeNet: give --length_penalty"),
        (
            average,
            "--max_epoch 20",
            "--max_epoch 20: a flag of WeNet: give --num N: the N best or last",
        ),
    ],
)
def test_a_flag_that_changes_the_result_is_refused_with_what_to_do(
    command: object, line: str, message: str, capsys: Capsys
) -> None:
    shown = error_line(run_line(command, line), capsys)  # type: ignore[arg-type]
    assert shown.startswith(message) and shown.endswith("(docs/from-wenet.md)")


def test_no_flag_of_wenets_has_the_name_of_ours_and_all_are_documented() -> None:
    documented = DOCS.read_text("utf-8")
    for command, flags in FLAGS.items():
        for name in flags:
            assert re.search(rf"`{re.escape(name)}\b", documented), f"{command} {name}"
    with pytest.raises(ConfigError):
        translate_flags("train", ["--lfmmi_dir", "x"])
    assert translate_flags("score", ["--config", "x"]) == ["--config", "x"], (
        "other commands are left alone"
    )


@pytest.mark.slow
def test_a_command_file_that_is_run_by_its_path_reads_wenets_flags(tmp_path: Path) -> None:
    """`torchrun wenet_hs/bin/train.py …`, as a run.sh of WeNet has it."""
    line = [sys.executable, str(train.__file__), "--train_engine", "deepspeed"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("--train_engine deepspeed: a flag of WeNet: ")


def test_flags_are_explained_by_the_first_rank_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.INFO):
        assert translate_flags("train", ["--num_workers", "2"]) == [
            "--override_config",
            "num_workers=2",
        ]
    assert not caplog.messages
