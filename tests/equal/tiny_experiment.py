# SPDX-License-Identifier: Apache-2.0
"""A corpus of tones in two made-up languages, and everything that a training of a second needs.

The data lists have relative paths, so that hashes of them do not depend on the folder of the case.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from case_recorder import CaseRecorder
from made_audio import write_tones

LANGS = ("aaa", "bbb")
NUM_TRAIN = 16
NUM_DEV = 5
NUM_TEST = 6
TREE_KIND = "huffman"


@dataclass(frozen=True)
class Clip:
    """An utterance of a data list."""

    key: str
    wav: str
    txt: str
    lang: str
    speaker: str
    duration: float


def write_corpus(folder: Path) -> None:
    """train.list, dev.list, test.list and test.txt, with their clips."""
    generator = np.random.default_rng(7)
    for name, count in (("train", NUM_TRAIN), ("dev", NUM_DEV), ("test", NUM_TEST)):
        clips = []
        for number in range(count):
            text = _draw_text(generator)
            wav = f"clips/{name}{number:02d}.wav"
            duration = write_tones(folder / wav, text, seed=number)
            clip = Clip(
                key=f"{name}{number:02d}",
                wav=wav,
                txt=text,
                lang=LANGS[number % 2],
                speaker=f"s{number % 4}",
                duration=duration,
            )
            clips.append(clip)
        write_data_list(folder / f"{name}.list", clips)
        lines = [f"{clip.key} {clip.txt}\n" for clip in clips]
        (folder / f"{name}.txt").write_text("".join(lines), "utf-8")


def _draw_text(generator: np.random.Generator) -> str:
    """Two words of one to three letters; the letters have different frequencies."""
    shares = [0.4, 0.25, 0.15, 0.12, 0.08]
    words = []
    for _ in range(2):
        letters = generator.choice(list("abcde"), size=generator.integers(1, 4), p=shares)
        words.append("".join(letters))
    return " ".join(words)


def write_data_list(path: Path, clips: list[Clip]) -> None:
    """One JSON object per line."""
    lines = [json.dumps(vars(clip)) + "\n" for clip in clips]
    path.write_text("".join(lines), "utf-8")


def write_config(folder: Path) -> None:
    """tiny.yaml, with all random operations: dropout, dither, speeds, masks."""
    size = {"attention_heads": 2, "linear_units": 24, "num_blocks": 1}
    config = {
        "encoder_conf": {"output_size": 16, "cnn_module_kernel": 3, **size},
        "decoder": "transformer",
        "decoder_conf": size,
        "tokenizer_conf": {"symbol_table_path": "units.txt"},
        "cmvn": "global_cmvn",
        "cmvn_conf": {"cmvn_file": "global_cmvn"},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
        "dataset_conf": {
            "fbank_conf": {"num_mel_bins": 20, "dither": 1.0},
            "speed_perturb": True,
            "spec_aug_conf": {"max_t": 4, "max_f": 4},
            "batch_conf": {"batch_size": 4},
        },
        "optim_conf": {"lr": 0.005},
        "scheduler_conf": {"warmup_steps": 4},
        "grad_clip": 5.0,
        "max_epoch": 2,
        "log_interval": 1,
        "save_interval": 4,
        "keep_checkpoints": 100,
        "seed": 1,
        "dtype": "fp32",
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config), "utf-8")


def make_experiment(case: CaseRecorder) -> None:
    """Corpus, config, units.txt, tree.json, tree-ctc.json and global_cmvn."""
    write_corpus(case.folder)
    write_config(case.folder)
    case.make("units --data_list train.list --kind char --out units.txt")
    tree = f"tree build --kind {TREE_KIND} --units units.txt --data_list train.list"
    case.make(f"{tree} --out tree.json")
    case.make(f"{tree} --blank_share 0.5 --out tree-ctc.json")
    case.make("cmvn --data_list train.list --config tiny.yaml --num_workers 1 --out global_cmvn")


def training_line(model_dir: str, *settings: str, flags: str = "") -> str:
    """The command line of a training with this corpus; `settings` as for --override_config."""
    line = "train --config tiny.yaml --train_data train.list --cv_data dev.list --device cpu"
    line += " --units units.txt --cmvn global_cmvn"
    line += f" --model_dir {model_dir} {flags}"
    if settings:
        line += f" --override_config {' '.join(settings)}"
    return line


LEARNING = (
    "max_epoch=14",
    "optim_conf.lr=0.02",
    "model_conf.ctc_weight=0.5",
    "dataset_conf.spec_aug=false",
    "save_interval=1000",
)
"""Settings with which the model learns most of the tones in some seconds."""


def make_recogniser(case: CaseRecorder, model_dir: str, *settings: str, flags: str = "") -> None:
    """A model that recognises most letters, so that hypotheses differ in some of them."""
    case.make(training_line(model_dir, *LEARNING, *settings, flags=flags))
