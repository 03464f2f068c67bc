# SPDX-License-Identifier: Apache-2.0
"""Training with each head, of the decoder and of CTC: the loss falls, bits a unit are told, the folder decodes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import TinyCorpus, cut_back, outcome

from wenet_hs.build import load_experiment
from wenet_hs.config.load import load_config
from wenet_hs.errors import ConfigError
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.tree import Tree

HEADS: dict[str, type[OutputHead]] = {
    "softmax": SoftmaxHead,
    "hsoftmax": HSoftmaxHead,
    "class": ClassHead,
    "adaptive": AdaptiveHead,
}
SLOW_HEADS = [pytest.param(kind, marks=pytest.mark.slow) for kind in HEADS if kind != "softmax"]
SLOW_ROUTES = [
    pytest.param(kind, route, marks=pytest.mark.slow) for kind in ("hsoftmax", "class") for route in ("auto", "path")
]
LONGER = ("max_epoch=5", "save_interval=10", "dataset_conf.spec_aug=false", "scheduler_conf.warmup_steps=2")
SPARSE = ("head_conf.sparse_grad=true", "model_conf.lsm_kind=node")


def ctc_of(corpus: TinyCorpus, kind: str) -> tuple[str, ...]:
    return (f"ctc_conf.head={kind}", f"ctc_conf.head_conf.tree={corpus.folder / 'tree.json'}")


def validations(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [record for record in records if record["kind"] == "valid"]


def check_learned(folder: Path) -> None:
    first, *_, last = validations(folder)
    assert math.isfinite(last["loss"])
    assert last["loss"] < first["loss"]
    assert last["bits_per_unit"] < first["bits_per_unit"] < 1.5 * math.log2(8)


@pytest.mark.parametrize("kind", ["softmax", *SLOW_HEADS])
def test_each_head_learns(tiny_corpus: TinyCorpus, tmp_path: Path, kind: str) -> None:
    ctc = ctc_of(tiny_corpus, kind) if kind != "softmax" else ()
    folder = tiny_corpus.train(tmp_path / "m", *LONGER, *ctc, head=kind)
    check_learned(folder)
    experiment = load_experiment(folder)
    assert type(experiment.model.head) is type(experiment.model.ctc.head) is HEADS[kind]
    assert (folder / "tree.json").exists() == (folder / "ctc_tree.json").exists() == (kind != "softmax")
    head_conf = load_config(folder / "train.yaml").head_conf
    assert getattr(head_conf, "tree", "tree.json") == "tree.json"


def test_bits_are_those_of_the_unsmoothed_loss(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    folder = tiny_corpus.train(tmp_path / "m", "model_conf.lsm_weight=0.0", "max_epoch=1")
    for record in validations(folder):
        assert record["bits_per_unit"] == pytest.approx(record["loss_att"] / math.log(2), rel=1e-5)


def test_without_a_decoder_there_are_no_bits(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    folder = tiny_corpus.train(tmp_path / "m", "model_conf.ctc_weight=1.0", "max_epoch=1")
    assert {record["bits_per_unit"] for record in validations(folder)} == {None}


@pytest.mark.parametrize(("kind", "route"), [("hsoftmax", "torch-path"), *SLOW_ROUTES])
def test_sparse_gradients_learn_and_go_on_in_the_same_bits(
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


def test_a_resume_refuses_another_tree_of_ctc(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    tree = Tree.load(tiny_corpus.folder / "tree.json")
    tree.save(tmp_path / "ctc.json")
    flags = ("ctc_conf.head=class", f"ctc_conf.head_conf.tree={tmp_path / 'ctc.json'}")
    folder = tiny_corpus.train(tmp_path / "m", "max_epoch=1", *flags)
    Tree.huffman(tree.frequencies[::-1], units=tree.units).save(tmp_path / "ctc.json")
    message = (
        f"{folder / 'ctc_tree.json'}: differs from {tmp_path / 'ctc.json'} .line 4 is the first.; a resumed run must"
    )
    with pytest.raises(ConfigError, match=message):
        tiny_corpus.train(folder, "max_epoch=2", *flags)
