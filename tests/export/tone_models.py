# SPDX-License-Identifier: Apache-2.0
"""Models that really recognise something, after seconds of training: each unit is a tone of its own
pitch.

Dimension key: N samples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from model_folders import TABLE
from numpy.typing import NDArray
from small_models import SPECIAL, batch_of, small_config

from wenet_hs.config.load import dump_config
from wenet_hs.frontends import build_frontend
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.model.asr_model import AsrModel, LossWeights
from wenet_hs.model.build import build_model
from wenet_hs.tree import Tree

RATE = 16000
EDGE_S = 0.2
"""Silence at both ends of the tones of a text."""
_UNIT_S, _GAP_S = 0.16, 0.08
_FIRST_TONE = 3  # id of the first unit that is text
_TREE: dict[str, Any] = {"head": "hsoftmax", "head_conf": {"tree": "ctc_tree.json"}}
WHOLE: dict[str, Any] = {
    "head": "hsoftmax",
    "head_conf": {"tree": "tree.json"},
    "ctc_conf": _TREE,
    "decoder": "bitransformer",
    "decoder_conf": {"num_blocks": 1, "r_num_blocks": 1},
}
"""Sections of a model of whole utterances with two decoders and trees."""
STREAM: dict[str, Any] = {
    "encoder_conf": {"causal": True, "use_dynamic_chunk": True, "use_dynamic_left_chunk": True},
    "decoder_conf": {"num_blocks": 1},
    "dataset_conf": {"fbank_conf": {"num_mel_bins": 80, "profile": "sherpa"}},
}
"""Sections of a model for streams."""
PAUSES: dict[str, Any] = {
    **STREAM,
    "encoder_conf": {**STREAM["encoder_conf"], "cnn_module_kernel": 7},
}
"""Sections of a model for streams that is trained with pauses."""
MAX_PAUSE_S = 1.5
"""Longest pause at the ends of its training clips."""


def random_text(length: int, generator: np.random.Generator) -> str:
    """Letters a to g in words, without a space at the ends."""
    letters = generator.choice(list("abcdefg"), length)
    for place in range(3, length - 1, 4):
        letters[place] = " "
    return "".join(letters)


def tones(text: str, generator: np.random.Generator) -> NDArray[np.float32]:
    """(N,) the tones of a text with noise, 0.24 s per letter and space."""
    edge_N = np.zeros(round(EDGE_S * RATE))
    parts = [edge_N]
    for unit in text.replace(" ", "▁"):
        number = TABLE.units.index(unit) - _FIRST_TONE
        times_N = np.arange(round(_UNIT_S * RATE)) / RATE
        envelope_N = np.hanning(len(times_N))
        parts += [
            0.3 * envelope_N * np.sin(2 * np.pi * 300 * 1.38**number * times_N),
            np.zeros(round(_GAP_S * RATE)),
        ]
    wave_N = np.concatenate([*parts, edge_N])
    return (wave_N + 0.003 * generator.standard_normal(len(wave_N))).astype(np.float32)


def pause(seconds: float, generator: np.random.Generator) -> NDArray[np.float32]:
    """(N,) the noise of a silence."""
    return (0.003 * generator.standard_normal(round(seconds * RATE))).astype(np.float32)


def write_clips(folder: Path, lengths: Sequence[int], seed: int = 1) -> None:
    """Clips of so many units each as 16-bit files, and their data.list, with paths as if FOLDER.new
    were FOLDER.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator, clips = np.random.default_rng(seed), []
    for number, length in enumerate(lengths):
        text, path = random_text(length, generator), folder / f"tones{number}.wav"
        wave_N = tones(text, generator)
        soundfile.write(path, wave_N, RATE, subtype="PCM_16")
        place = folder.with_name(folder.name.removesuffix(".new")) / path.name
        clips.append(
            Utterance(key=path.stem, wav=str(place), txt=text, duration=len(wave_N) / RATE)
        )
    write_data_list(folder / "data.list", clips)


def write_tone_model(
    folder: Path,
    sections: dict[str, Any],
    steps: int = 240,
    *,
    max_pause_s: float = 0.0,
) -> Path:
    """Trains such a model and writes its folder.

    max_pause_s: each clip begins and ends with a pause of random length up to this one.
    """
    torch.manual_seed(0)
    special = {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
    base: dict[str, Any] = {
        "encoder_conf": {
            "output_size": 32,
            "attention_heads": 4,
            "linear_units": 64,
            "num_blocks": 2,
            "dropout_rate": 0.0,
        },
        "decoder_conf": {"attention_heads": 4, "linear_units": 64, "dropout_rate": 0.0},
        "dataset_conf": {"fbank_conf": {"num_mel_bins": 80}},
        "tokenizer_conf": {"symbol_table_path": "units.txt", "special_tokens": special},
    }
    merged = {
        name: {**base.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in {**base, **sections}.items()
    }
    config = small_config(**merged)
    frontend, generator, tree = (
        build_frontend(config.dataset_conf),
        np.random.default_rng(0),
        _tree(),
    )
    texts = [random_text(int(generator.integers(3, 14)), generator) for _ in range(120)]
    waves = [_with_pauses(tones(text, generator), max_pause_s, generator) for text in texts]
    features = [frontend.compute(torch.from_numpy(wave_N)) for wave_N in waves]
    targets = [
        torch.tensor([TABLE.units.index(unit) for unit in text.replace(" ", "▁")]) for text in texts
    ]
    joined = torch.cat(features)
    cmvn = joined.mean(0), 1 / joined.std(0)
    model = build_model(config, len(TABLE), SPECIAL, tree=tree, ctc_tree=tree, cmvn=cmvn)
    _train(model, features, targets, steps)
    folder.mkdir(parents=True)
    dump_config(config, folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    for name in ("tree.json", "ctc_tree.json"):
        tree.save(folder / name)
    torch.save(model.state_dict(), folder / "final.pt")
    return folder


def _with_pauses(
    wave_N: NDArray[np.float32], max_pause_s: float, generator: np.random.Generator
) -> NDArray[np.float32]:
    if not max_pause_s:
        return wave_N
    before_s, after_s = generator.uniform(0, max_pause_s, 2)
    return np.concatenate([pause(before_s, generator), wave_N, pause(after_s, generator)])


def _tree() -> Tree:
    return Tree.huffman(range(len(TABLE)), units=TABLE.units)


def _train(
    model: AsrModel, features: list[torch.Tensor], targets: list[torch.Tensor], steps: int
) -> None:
    model.train()
    model.loss_weights = LossWeights(ctc=0.7, reverse=0.3 if model.right_head is not None else 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    order = np.random.default_rng(2)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20, (steps - step) / (steps / 3))
        rows = order.choice(len(features), 12, replace=False)
        batch = batch_of([features[row] for row in rows], [targets[row] for row in rows])
        loss = model(batch)
        optimizer.zero_grad()
        (loss.total / loss.num_targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    model.eval()
