# SPDX-License-Identifier: Apache-2.0
"""Small models and batches for tests."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wenet_hs.build import build_model
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch
from wenet_hs.model import AsrModel
from wenet_hs.text.units import SpecialIds
from wenet_hs.tree import Tree

NUM_UNITS = 11
NUM_BINS = 20
SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)


def small_config(**sections: Any) -> ExperimentConfig:
    """A conformer of two layers and width 16, changed section by section: `encoder_conf={"num_blocks": 1}`."""
    base: dict[str, Any] = {
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2},
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2},
        "dataset_conf": {"fbank_conf": {"num_mel_bins": NUM_BINS}},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    }
    for name, value in sections.items():
        base[name] = {**base[name], **value} if isinstance(value, dict) and name in base else value
    return ExperimentConfig(**base)


def small_model(seed: int = 0, **sections: Any) -> AsrModel:
    """Such a model in evaluation mode. Norms and running statistics are random too, so that each one has an effect."""
    torch.manual_seed(seed)
    config = small_config(**sections)
    tree = Tree.huffman(range(NUM_UNITS))  # a softmax needs none
    cmvn = (torch.randn(NUM_BINS), torch.rand(NUM_BINS) + 0.5)
    model = build_model(config, NUM_UNITS, SPECIAL, tree=tree, ctc_tree=tree, cmvn=cmvn)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "norm" in name and value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5)
    return model.eval()


def small_batch(frames: Sequence[int], labels: Sequence[int], seed: int = 0) -> Batch:
    """Random utterances of these numbers of frames and labels, padded."""
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(length, NUM_BINS, generator=generator) for length in frames]
    targets = [torch.randint(3, NUM_UNITS, (length,), generator=generator) for length in labels]
    return Batch(
        keys=[f"utt{index}" for index in range(len(features))],
        features=padded(features, 0.0),
        feature_lengths=torch.tensor(frames),
        num_frames=sum(frames),
        targets=padded(targets, -1),
        target_lengths=torch.tensor(labels),
        audio_seconds=sum(frames) / 100,
        num_targets=sum(labels) + len(labels),
    )


def padded(rows: Sequence[Tensor], value: float) -> Tensor:
    """The rows as one tensor."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def row_of(batch: Batch, *indices: int) -> Batch:
    """One utterance, or several, as a batch of their own, without more padding than they need."""
    rows = list(indices)
    frames, labels = batch.feature_lengths[rows], batch.target_lengths[rows]
    return Batch(
        keys=[batch.keys[index] for index in rows],
        features=batch.features[rows, : int(frames.max())],
        feature_lengths=frames,
        num_frames=int(frames.sum()),
        targets=batch.targets[rows, : int(labels.max())],
        target_lengths=labels,
        audio_seconds=int(frames.sum()) / 100,
        num_targets=int(labels.sum()) + len(rows),
    )
