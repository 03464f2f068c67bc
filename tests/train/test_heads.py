# SPDX-License-Identifier: Apache-2.0
"""Slow trainings with each head, of the decoder and of CTC: the loss falls, the folder loads."""

import math
from pathlib import Path

import pytest
import torch
from tiny_corpus import TinyCorpus, metrics, write_tiny_corpus

from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.config.load import load_config
from wenet_hs.model.experiment import load_experiment

pytestmark = pytest.mark.slow

BY_HEART = (
    "encoder_conf={output_size: 32, linear_units: 64, attention_heads: 2, num_blocks: 1, cnn_module_kernel: 3}",
    "decoder_conf={linear_units: 64, attention_heads: 2, num_blocks: 1}",
    *(
        f"{side}_conf.{kind}dropout_rate=0.0"
        for side in ("encoder", "decoder")
        for kind in ("", "positional_")
    ),
    "encoder_conf.cnn_module_norm=layer_norm",
    "dataset_conf={spec_aug: false, cache_features: true, fbank_conf: {num_mel_bins: 20}, batch_conf: {batch_size: 8}}",
    "model_conf={ctc_weight: 0.3}",
    *(
        "optim_conf.lr=0.005",
        "scheduler_conf.warmup_steps=20",
        "max_epoch=400",
        "save_interval=400",
    ),
)


@pytest.mark.parametrize("kind", HEADS)
def test_each_head_learns_eight_utterances_by_heart(tmp_path: Path, kind: str) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", num_train=8)
    tree = corpus.folder / "tree.json"
    ctc = [f"ctc_conf.head={kind}"]
    if has_tree(kind):
        ctc.append(f"ctc_conf.head_conf.tree={tree}")
    folder = corpus.train(tmp_path / "m", *BY_HEART, *ctc, head=kind, cv_data=corpus.train_data)
    first, *_, last = metrics(folder)
    assert first["loss_att"] > 1.5 and first["bits_per_unit"] < 1.5 * math.log2(8)
    assert (last["kind"], last["accuracy"]) == ("valid", 1.0)
    assert max(last["loss_att"], last["loss_ctc"]) < 0.05
    experiment = load_experiment(folder)
    assert type(experiment.model.head) is type(experiment.model.ctc.head)
    assert (folder / "tree.json").exists() == (folder / "ctc_tree.json").exists() == has_tree(kind)
    assert getattr(load_config(folder / "train.yaml").head_conf, "tree", "tree.json") == "tree.json"


def test_all_heads_of_one_seed_have_the_same_ctc_losses_until_ctc_only_steps_end(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    """They start with the same encoder, decoder and CTC weights, and see the same batches, masks
    and dropout.
    """
    losses, weights = {}, {}
    for kind in HEADS:
        folder = tiny_corpus.train(tmp_path / kind, "model_conf.ctc_only_steps=5", head=kind)
        losses[kind] = [
            record["loss_ctc"] for record in metrics(folder) if record["kind"] == "train"
        ]
        state = torch.load(folder / "checkpoints" / "step-00000001" / "model.pt", weights_only=True)
        weights[kind] = {
            name: value for name, value in state.items() if not name.startswith("head.")
        }
    for kind in HEADS:
        assert losses[kind][:5] == losses["softmax"][:5], kind
        torch.testing.assert_close(weights[kind], weights["softmax"], rtol=0, atol=0)
    assert len({tuple(of_head) for of_head in losses.values()}) == len(HEADS), (
        "later steps train the head too"
    )
