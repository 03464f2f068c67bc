# SPDX-License-Identifier: Apache-2.0
"""Made-up experiment folders, complete and hand-checkable."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_experiment import BAD, GOOD, REF, TRAIN_YAML, write_metrics, write_scores

from wenet_hs.tree import Tree


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
        speeds = {"attention": {"wall_seconds": 25.0, "rtf": 0.25, "sum_rtf_by_lang": {"ca": 0.3, "ky": 0.2}}}
        rtf = {
            "audio_seconds": 100.0,
            "seconds": {"encoder": 9.0},
            "modes": speeds,
            "device": "cpu",
            "num_threads": 2,
            "beam_size": 10,
            "finished_list": True,
            "nbest": None,
            "lm": {"units.arpa": "0ab1"},
        }
        (folder / "test/rtf.json").write_text(json.dumps(rtf))
        hyps = [{"key": key, "confidence": 0.5} for key in REF]
        (folder / "test/attention/hyps.jsonl").write_text("".join(json.dumps(hyp) + "\n" for hyp in hyps))
        return folder

    return make
