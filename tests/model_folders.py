# SPDX-License-Identifier: Apache-2.0
"""Experiment folders with random weights and clips of noise, for the tests of whole commands."""

from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from small_models import small_config, small_model
from torch import Tensor

from wenet_hs.config.load import dump_config
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.text.units import UnitTable
from wenet_hs.tree import Tree

TABLE = UnitTable.from_units("▁abcdefg")
HSOFTMAX: dict[str, Any] = {"head": "hsoftmax", "head_conf": {"tree": "tree.json"}}


def wenet_state_dict(model: AsrModel) -> dict[str, Tensor]:
    """The state_dict of a model with softmax heads under WeNet's names."""
    left = (
        "decoder.output_layer."
        if model.right_head is None
        else "decoder.left_decoder.output_layer."
    )
    right = "decoder.right_decoder.output_layer."
    renames = {"head.output.": left, "right_head.output.": right, "ctc.head.output.": "ctc.ctc_lo."}
    state = {}
    for name, value in model.state_dict().items():
        prefix = next((ours for ours in renames if name.startswith(ours)), "")
        state[renames.get(prefix, "") + name.removeprefix(prefix)] = value
    return state


def write_model_folder(folder: Path, *, wenet: bool = False, **sections: Any) -> Path:
    """A folder that `load_experiment` reads; `wenet` gives the weights WeNet's names."""
    folder.mkdir(parents=True)
    model = small_model(seed=5, **sections)
    special = {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
    tokenizer_conf = {"symbol_table_path": "units.txt", "special_tokens": special}
    dump_config(
        small_config(**{"tokenizer_conf": tokenizer_conf, **sections}), folder / "train.yaml"
    )
    TABLE.write(folder / "units.txt")
    if "head" in sections:
        Tree.huffman(range(len(TABLE)), units=TABLE.units).save(folder / "tree.json")
    state = model.state_dict()
    torch.save(wenet_state_dict(model) if wenet else state, folder / "final.pt")
    return folder


def noise(
    seconds: float, rate: int = 16000, seed: int = 0
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(samples,) in [-0.5, 0.5], with a varying level."""
    samples = (
        np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * rate)).astype(np.float32)
    )
    return samples * np.sin(np.linspace(0, 9, len(samples), dtype=np.float32))


def write_clip(path: Path, seconds: float, seed: int = 0, lang: str | None = None) -> Utterance:
    """A wav file and its line in a data list, named by the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, noise(seconds, seed=seed), 16000)
    return Utterance(key=path.stem, wav=str(path), txt="a b", lang=lang, duration=seconds)
