# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs cmvn`: the same file for any number of workers and ranks; clips that cannot be read."""

import json
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from command_line import Capsys, error_line, run_line
from thread_ranks import run_on_ranks

from wenet_hs.bin import cmvn
from wenet_hs.compute.distributed import World
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import CMVN_GROUP, read_cmvn
from wenet_hs.frontends import Fbank, build_frontend
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of two groups of short clips and a config."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(CMVN_GROUP + 2):
        soundfile.write(f"{i}.wav", 0.1 * rng.normal(size=1600 + i), 16000)
    utterances = [Utterance(key=f"u{i}", wav=f"{i}.wav", txt="x") for i in range(CMVN_GROUP + 2)]
    write_data_list("data.list", utterances)
    Path("c.yaml").write_text("dataset_conf:\n  fbank_conf: {num_mel_bins: 23, dither: 1.0}\n")


def call(out: str, num_workers: int) -> int:
    return run_line(
        cmvn, f"--data_list data.list --config c.yaml --out {out} --num_workers {num_workers}"
    )


def test_the_file_is_the_same_for_every_number_of_workers(capsys: Capsys) -> None:
    assert call("one", 0) == call("two", 2) == 0
    assert Path("one").read_bytes() == Path("two").read_bytes()
    frames = sum(Fbank().length(1600 + i) for i in range(CMVN_GROUP + 2))
    assert json.loads(Path("one").read_text())["frame_num"] == frames
    assert (
        f"two: {frames} frames, 0.00 hours of {CMVN_GROUP + 2} utterances"
        in capsys.readouterr().out
    )
    assert error_line(call("out", -1), capsys) == "--num_workers -1: must be at least 0"


def test_three_ranks_give_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is a thread, and the ranks exchange one group at a time."""
    utterances = read_data_list("data.list")
    utterances = [
        replace(u, key=f"{u.key}-{turn}") for turn in range(3) for u in utterances
    ]  # 4 groups
    frontend = build_frontend(load_config("c.yaml").dataset_conf)
    monkeypatch.setattr(cmvn, "_EXCHANGE", 1)

    def total(world: World) -> torch.Tensor:
        return reduce(add, cmvn._all_sums(utterances, frontend, 0, world)).sums

    alone = total(World())
    assert all(torch.equal(sums, alone) for sums in run_on_ranks(total, 3))


def test_all_bad_clips_are_listed_at_once_and_left_out_up_to_the_limit(capsys: Capsys) -> None:
    Path("5.wav").write_bytes(b"")
    Path("33.wav").unlink()
    Path("7.wav").write_bytes(Path("7.wav").read_bytes()[:-128])  # 4 ms
    assert call("out", 0) == 2
    *_, first, second, last = capsys.readouterr().err.splitlines()
    assert first == "utterance u5: 5.wav: empty: 0 bytes" and second.startswith(
        "utterance u33: 33.wav: missing"
    )
    assert last.startswith(
        "data.list: 2 of 34 clips cannot be read, more than the share 0.01; see the lines"
    )
    assert not Path("out").exists()
    with Path("c.yaml").open("a") as config:
        config.write("  max_bad_clips: 0.1\n")
    assert call("out", 1) == 0
    printed = capsys.readouterr()
    assert f"{first}\n{second}\n" in printed.err
    assert (
        "0.00 hours of 32 utterances\n2 clips cannot be read and are left out\n1 clips lack less than"
        in printed.out
    )
    used = [u for u in read_data_list("data.list") if u.key not in ("u5", "u33")]
    write_data_list("data.list", used)
    assert call("rest", 0) == 0
    assert read_cmvn("rest")[0].allclose(read_cmvn("out")[0], rtol=1e-6)


def test_a_pretrained_encoder_needs_no_statistics(capsys: Capsys) -> None:
    encoder = "encoder: pretrained\nencoder_conf: {path: none}\n"
    Path("c.yaml").write_text(f"{encoder}dataset_conf: {{spec_aug: false}}\n")
    assert call("out", 0) == 0
    found = "c.yaml: encoder: pretrained normalizes its input itself"
    assert capsys.readouterr().out == f"{found}; no statistics are written\n"
    assert not Path("out").exists()


def test_settings_of_a_head_that_the_config_lacks_are_left_to_the_training(capsys: Capsys) -> None:
    """A recipe gives all settings of --override to each command."""
    line = "--data_list data.list --config c.yaml --out out --num_workers 0 --override_config head_conf.bias=true"
    assert run_line(cmvn, line) == 0
    assert Path("out").is_file()


def test_the_config_is_read_once(yaml_reads: list[Path]) -> None:
    assert call("out", 0) == 0
    assert yaml_reads == [Path("c.yaml")]
