# SPDX-License-Identifier: Apache-2.0
"""Made-up experiment folders, complete and hand-checkable."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wenet_hs.score import Rules, score
from wenet_hs.tree.tree import Tree

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам дүйнө", "ky2": "кыргыз"}
LANGS = {key: key[:2] for key in REF}
GOOD = REF | {"ca1": "bon die"}
BAD = {"ca1": "on di", "ca2": "adeu", "ky1": "салам дуйно"}

TRAIN_YAML = """# Every setting of this experiment, as it was run.
encoder: conformer
encoder_conf: {{num_blocks: 4}}
head: {head}
head_conf: {conf}
provenance:
  command: wenet-hs train --model_dir exp/{head}
  git: 1a2b3c4
  torch: 2.11.0
"""


def write_scores(folder: Path, modes: dict[str, dict[str, str]]) -> None:
    for mode, hypothesis in modes.items():
        report = score(REF, hypothesis, rules=Rules(metric="cer"), langs=LANGS, num_resamples=50)
        (folder / mode).mkdir(parents=True)
        (folder / mode / "score.json").write_text(report.to_json(), "utf-8")


def write_metrics(path: Path, steps: int = 5) -> None:
    records = [
        {"kind": kind, "step": 10 * step, "epoch": step, "loss": 40 / step, "loss_att": 30 / step, "loss_ctc": 9 / step,
         "accuracy": step / 10, "bits_per_unit": 4 / step, "lr": 1e-3 * step, "seconds": 60.0 * step}
        for step in range(1, steps + 1)
        for kind in ("train", "valid")
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def make_experiment(tmp_path: Path) -> Callable[..., Path]:
    """Write an experiment folder with everything in it; a softmax head has no tree."""

    def make(name: str, *, head: str = "hsoftmax", attention: dict[str, str] = GOOD) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        conf = "{tree: tree.json}" if head == "hsoftmax" else "{bias: true}"
        (folder / "train.yaml").write_text(TRAIN_YAML.format(head=head, conf=conf))
        write_metrics(folder / "metrics.jsonl")
        if head == "hsoftmax":
            Tree.huffman([0, 0, 3, 5, 7], ["<blank>", "<unk>", "a", "<", "&"]).save(folder / "tree.json")
        write_scores(folder / "test", {"attention": attention, "ctc_greedy_search": BAD})
        speeds = {"attention": {"wall_seconds": 25.0, "rtf": 0.25}}
        rtf = {
            "audio_seconds": 100.0,
            "seconds": {"encoder": 9.0},
            "modes": speeds,
            "device": "cpu",
            "num_threads": 2,
            "beam_size": 10,
        }
        (folder / "test/rtf.json").write_text(json.dumps(rtf))
        return folder

    return make
