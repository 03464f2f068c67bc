# SPDX-License-Identifier: Apache-2.0
"""Training with each head, of the decoder and of CTC: the loss falls, bits per unit are reported, the folder loads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import TinyCorpus, cut_back, outcome

from wenet_hs.build import load_experiment
from wenet_hs.config.load import load_config
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead

HEADS: dict[str, type[OutputHead]] = {
    "softmax": SoftmaxHead,
    "hsoftmax": HSoftmaxHead,
    "class": ClassHead,
    "adaptive": AdaptiveHead,
}
ROUTES = [("hsoftmax", "torch-path"), *((kind, route) for kind in ("hsoftmax", "class") for route in ("auto", "path"))]
LONGER = ("max_epoch=5", "save_interval=10", "dataset_conf.spec_aug=false", "scheduler_conf.warmup_steps=2")
SPARSE = ("head_conf.sparse_grad=true", "model_conf.lsm_kind=node")


def validations(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [record for record in records if record["kind"] == "valid"]


def check_learned(folder: Path) -> None:
    first, *_, last = validations(folder)
    assert math.isfinite(last["loss"])
    assert last["loss"] < first["loss"]
    assert last["bits_per_unit"] < first["bits_per_unit"] < 1.5 * math.log2(8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_each_head_learns(tiny_corpus: TinyCorpus, tmp_path: Path, kind: str) -> None:
    tree = tiny_corpus.folder / "tree.json"
    ctc = () if kind == "softmax" else (f"ctc_conf.head={kind}", f"ctc_conf.head_conf.tree={tree}")
    folder = tiny_corpus.train(tmp_path / "m", *LONGER, *ctc, head=kind)
    check_learned(folder)
    experiment = load_experiment(folder)
    assert type(experiment.model.head) is type(experiment.model.ctc.head) is HEADS[kind]
    assert (folder / "tree.json").exists() == (folder / "ctc_tree.json").exists() == (kind != "softmax")
    head_conf = load_config(folder / "train.yaml").head_conf
    assert getattr(head_conf, "tree", "tree.json") == "tree.json"


@pytest.mark.parametrize(("setting", "has_bits"), [("lsm_weight=0.0", True), ("ctc_weight=1.0", False)])
def test_bits_per_unit_are_those_of_the_decoders_loss_without_smoothing(
    tiny_corpus: TinyCorpus, tmp_path: Path, setting: str, has_bits: bool
) -> None:
    folder = tiny_corpus.train(tmp_path / "m", f"model_conf.{setting}", "max_minutes=1e-9")
    (record,) = validations(folder)
    expected = pytest.approx(record["loss_att"] / math.log(2), rel=1e-5) if has_bits else None
    assert record["bits_per_unit"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "route"), ROUTES)
def test_sparse_gradients_learn_and_resume_with_the_same_bits(
    tiny_corpus: TinyCorpus, tmp_path: Path, kind: str, route: str
) -> None:
    flags = (*LONGER, *SPARSE, f"head_conf.route={route}", "accum_grad=2", "max_epoch=8", "save_interval=4")
    folder = tiny_corpus.train(tmp_path / "m", *flags, head=kind)
    check_learned(folder)
    copy = cut_back(folder, tmp_path / "copy", 8)
    tiny_corpus.train(copy, *flags, head=kind)
    assert outcome(copy) == outcome(folder)
    state = torch.load(folder / "checkpoints" / "step-00000004" / "optimizer.pt", weights_only=True)
    assert set(state) == {"dense", "sparse"}
    assert len(state["sparse"]["state"]) == 1
