# SPDX-License-Identifier: Apache-2.0
"""A small model learns eight utterances by heart, with either head."""

import json
from pathlib import Path

import pytest
import torch
from tiny_corpus import write_tiny_corpus

from wenet_hs.build import load_experiment
from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.dataset import SpeechDataset, collate
from wenet_hs.manifest import read_data_list

PLAIN = (
    "encoder_conf={output_size: 32, linear_units: 64, attention_heads: 2, num_blocks: 1, cnn_module_kernel: 3}",
    "decoder_conf={linear_units: 64, attention_heads: 2, num_blocks: 1}",
    *(
        f"{side}_conf.{kind}=0.0"
        for side in ("encoder", "decoder")
        for kind in ("dropout_rate", "positional_dropout_rate")
    ),
    "encoder_conf.cnn_module_norm=layer_norm",
    "dataset_conf={spec_aug: false, cache_features: true, fbank_conf: {num_mel_bins: 20}, batch_conf: {batch_size: 8}}",
    "model_conf={ctc_weight: 0.3}",
    "optim_conf.lr=0.005",
    "scheduler_conf.warmup_steps=20",
    "max_epoch=250",
    "save_interval=250",
)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
def test_eight_utterances_are_learned_by_heart(tmp_path: Path, head: str) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", num_train=8)
    folder = corpus.train(tmp_path / "m", *PLAIN, head=head, cv_data=corpus.train_data)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, last = records[0], records[-1]
    assert first["loss_att"] > 1.5
    assert last["kind"] == "valid"
    assert last["accuracy"] == 1.0
    assert last["loss_att"] < 0.05
    assert last["loss_ctc"] < 0.05
    experiment = load_experiment(folder)
    utterances = read_data_list(corpus.train_data)
    conf = DatasetConf(fbank_conf={"num_mel_bins": 20})
    dataset = SpeechDataset(utterances, experiment.tokenizer, conf, training=False, seed=0)
    batch = collate([dataset.item(index, 0) for index in range(8)])
    with torch.inference_mode():
        memory, lengths = experiment.model.encode(batch.features, batch.feature_lengths)
        best = experiment.model.ctc.log_probs(memory).argmax(-1)
    for row, length, utterance in zip(best.tolist(), lengths.tolist(), utterances, strict=True):
        path = [unit for unit, before in zip(row[:length], [0, *row], strict=False) if unit != before]
        assert experiment.tokenizer.decode([unit for unit in path if unit]) == utterance.txt
