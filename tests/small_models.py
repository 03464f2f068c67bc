# SPDX-License-Identifier: Apache-2.0
"""Small models and batches for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch, Example, collate
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model
from wenet_hs.text.units import SpecialIds
from wenet_hs.tree import Tree

NUM_UNITS = 11
NUM_BINS = 20
SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)
CTC_ONLY: dict[str, Any] = {"decoder": "none", "decoder_conf": None, "model_conf": None}
"""The sections of a model without a decoder."""


def small_config(**sections: Any) -> ExperimentConfig:
    """A conformer of two layers and width 16, changed section by section:
    `encoder_conf={"num_blocks": 1}`.
    """
    base: dict[str, Any] = {
        "encoder_conf": {
            "output_size": 16,
            "attention_heads": 2,
            "linear_units": 24,
            "num_blocks": 2,
        },
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2},
        "dataset_conf": {"fbank_conf": {"num_mel_bins": NUM_BINS}},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    }
    for name, value in sections.items():
        base[name] = {**base[name], **value} if isinstance(value, dict) and name in base else value
    return ExperimentConfig(**base)


def small_model(seed: int = 0, **sections: Any) -> AsrModel:
    """Such a model in evaluation mode.

    Norms and running statistics are random too, so that each one has an effect.
    """
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
    return batch_of(features, targets)


def batch_of(features: Sequence[Tensor], targets: Sequence[Tensor], first: int = 0) -> Batch:
    """A batch of these utterances, numbered from `first` on."""
    pairs = enumerate(zip(features, targets, strict=True), start=first)
    return collate(
        [
            Example(key=f"utt{i}", features=x, target=y, audio_seconds=len(x) / 100)
            for i, (x, y) in pairs
        ]
    )


def row_of(batch: Batch, *indices: int) -> Batch:
    """One utterance, or several, as a batch of their own, without more padding than they need."""
    features = [batch.features[index, : batch.feature_lengths[index]] for index in indices]
    targets = [batch.targets[index, : batch.target_lengths[index]] for index in indices]
    return batch_of(features, targets, first=indices[0])


def wenet_reference(folder: Path, name: str) -> tuple[Path, dict[str, Tensor], dict[str, Tensor]]:
    """The config and the random weights of a model that WeNet itself ran, and its inputs and
    outputs.
    """
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    weights = {
        key.removeprefix("param."): value
        for key, value in arrays.items()
        if key.startswith("param.")
    }
    return folder / f"{name}.yaml", weights, arrays
