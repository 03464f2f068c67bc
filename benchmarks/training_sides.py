# SPDX-License-Identifier: Apache-2.0
"""What training_speed.py compares: models of two sizes with each option, batches for them, and a
corpus of noise.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from paired import Side
from torch import nn

from wenet_hs.compute.devices import has_native_bf16
from wenet_hs.config.dataset import DatasetConf
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.dataset import Batch, Example, SpeechDataset, collate
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model
from wenet_hs.nn.dropout import Dropout
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train.optim import Precision, build_optimizer
from wenet_hs.train.speech import compile_layers
from wenet_hs.train.speech_steps import run_epoch
from wenet_hs.train.state import TrainState
from wenet_hs.tree import Tree

MINI = Path(__file__).parents[1] / "conf" / "mini.yaml"
NUM_UNITS = 300
SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RATE = 16000
LABELS_A_SECOND = 10
TREE = {"tree": "tree.json"}
BOTH_HEADS = ("plain", "fp32", "bf16")


@dataclass(frozen=True)
class Size:
    """A model and the batch that it is measured with."""

    name: str
    config: ExperimentConfig
    num_utterances: int
    seconds: float

    @property
    def audio_seconds(self) -> float:
        """Of the batch."""
        return self.num_utterances * self.seconds


def sizes(*, quick: bool) -> list[Size]:
    """The paper's size, 12 conformer blocks × 256 and 6 decoder blocks, and the mini recipe's;
    small ones if quick.
    """
    paper = paper_config(quick=quick, model_conf={"ctc_weight": 0.3, "lsm_weight": 0.1})
    mini = load_config(MINI)
    both_branches = mini.model_conf.model_copy(update={"ctc_only_steps": 0, "attention_guide": 0.0})
    mini = mini.model_copy(update={"model_conf": both_branches, "accum_grad": 1})
    return [
        Size("paper", paper, 2 if quick else 8, 5.0),
        Size("mini", mini, 2 if quick else 7, 2.1),
    ]


def paper_config(*, quick: bool, **sections: object) -> ExperimentConfig:
    """12 conformer blocks × 256 and 6 decoder blocks; one small block of each if quick."""
    return ExperimentConfig(
        encoder_conf={"num_blocks": 1 if quick else 12, "output_size": 64 if quick else 256},
        decoder="transformer",
        decoder_conf={"num_blocks": 1 if quick else 6},
        **sections,
    )


def build_with_head(config: ExperimentConfig, head: str, num_units: int) -> AsrModel:
    """A model with random weights; trees are the Huffman tree of Zipf's frequencies.

    "hsoftmax, sparse" is possible.
    """
    kind, _, option = head.partition(", ")
    if kind == "hsoftmax":
        of_head = {"head": kind, "head_conf": {**TREE, "sparse_grad": option == "sparse"}}
        config = changed(config, **of_head)
    tree = Tree.huffman(1.0 / np.arange(1, num_units + 1))
    return build_model(config, num_units, SPECIAL, tree=tree, ctc_tree=tree)


def changed(config: ExperimentConfig, **sections: object) -> ExperimentConfig:
    """The same with other values of some settings, and sections with all of their settings anew."""
    return ExperimentConfig.model_validate(config.model_dump(exclude=set(sections)) | sections)


def options(size: Size, head: str, device: torch.device, *, compiled: bool) -> list[str]:
    """The sides that this machine can run."""
    native = has_native_bf16(device)
    chosen = ["plain", "fp32", *(["bf16"] if native else []), "checkpointing", "32 channels"]
    if compiled and (device.type == "cuda" or shutil.which("g++")):
        chosen += ["compile"]
    return [side for side in chosen if head == "softmax" or side in BOTH_HEADS]


def make_state(
    size: Size, head: str, side: str, device: torch.device
) -> tuple[TrainState, ExperimentConfig]:
    """A model with one option, ready to train.

    `plain` is what WeNet computes, float32 with torch's dropout; `fp32` is that with our dropout,
    and the others change one thing of `fp32`.
    """
    torch.manual_seed(0)
    again = {"gradient_checkpointing": side == "checkpointing"}
    channels = {"subsampling_conv_channels": 32 if side == "32 channels" else None}
    config = size.config.model_copy(
        update={
            "dtype": "bf16" if side == "bf16" else "fp32",
            "encoder_conf": size.config.encoder_conf.model_copy(update=again | channels),
            "decoder_conf": size.config.decoder_conf.model_copy(update=again),
        }
    )
    model = build_with_head(config, head, NUM_UNITS).to(device)
    if side == "plain":
        with_torchs_dropout(model)
    if side == "compile":
        compile_layers(model)
    precision = Precision(config.dtype, device)
    return TrainState(model, build_optimizer(model, config), device, precision=precision), config


def with_torchs_dropout(model: nn.Module) -> None:
    """Take ours out of a model."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.__class__ = nn.Dropout


def training_step(state: TrainState, config: ExperimentConfig, batches: Sequence[Batch]) -> Side:
    """The steps of the training loop over these batches."""
    return lambda: list(run_epoch(state, batches, config))


def make_batch(frames: Sequence[int]) -> Batch:
    """Utterances of these lengths in frames of 10 ms, of noise and random labels."""
    generator = torch.Generator().manual_seed(len(frames))
    return collate(
        [
            Example(
                key=str(number),
                features=torch.randn(length, 80, generator=generator),
                target=torch.randint(
                    3, NUM_UNITS, (max(1, length * LABELS_A_SECOND // 100),), generator=generator
                ),
                audio_seconds=length / 100,
            )
            for number, length in enumerate(frames)
        ]
    )


def batch_of(size: Size) -> Batch:
    """Equal utterances: nothing is padded."""
    return make_batch([round(100 * size.seconds)] * size.num_utterances)


def speech_lengths(num: int, *, seed: int = 0) -> np.ndarray:
    """Seconds of (num,) clips: the log-normal form of read speech, median 5 s, 1 to 20 s."""
    return np.clip(np.random.default_rng(seed).lognormal(1.6, 0.5, num), 1.0, 20.0).round(2)


def write_corpus(folder: Path, seconds: Sequence[float]) -> list[Utterance]:
    """FLAC files of noise with random letters for transcripts."""
    rng = np.random.default_rng(2)
    utterances = []
    for number, duration in enumerate(seconds):
        path = folder / f"{number}.flac"
        soundfile.write(path, 0.1 * rng.standard_normal(round(duration * RATE)), RATE)
        txt = "".join(rng.choice(list(LETTERS), size=max(1, int(LABELS_A_SECOND * duration))))
        utterances.append(
            Utterance(key=str(number), wav=str(path), txt=txt, duration=float(duration))
        )
    return utterances


def make_dataset(
    utterances: Sequence[Utterance], conf: DatasetConf, changes: Mapping[str, object]
) -> SpeechDataset:
    """The dataset of training, with `changes` to its section of the config."""
    tokenizer = make_tokenizer("char", UnitTable.from_units(LETTERS))
    conf = conf.model_copy(update=dict(changes))
    return SpeechDataset(
        utterances, tokenizer, conf, training=True, seed=0, output_length=_conv2d_length
    )


def _conv2d_length(num_frames: int) -> int:
    return max(0, ((num_frames - 1) // 2 - 1) // 2)
