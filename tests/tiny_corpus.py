# SPDX-License-Identifier: Apache-2.0
"""A corpus of synthetic tones, one per letter, and a model so small that it trains in a fraction of
a second.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml

from wenet_hs.compute.distributed import World
from wenet_hs.config.heads import has_tree
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import global_sums, write_cmvn
from wenet_hs.frontends import build_frontend
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.model.checkpoint import MANIFEST, check_intact, list_checkpoints, step_of
from wenet_hs.text.units import UnitTable
from wenet_hs.train.model_folder import PreparedFolder
from wenet_hs.train.speech import SpeechTask, load_task, train
from wenet_hs.train.start import ListPaths, TrainOptions
from wenet_hs.tree import Tree

LETTERS = "abcde"
RATE = 16000


@dataclass(frozen=True)
class TinyCorpus:
    """The files that a training needs."""

    folder: Path
    train_data: Path
    cv_data: Path
    config: Path

    def options(
        self, model_dir: Path, *overrides: str, head: str = "softmax", **flags: Any
    ) -> TrainOptions:
        """The flags of a training with this corpus; `overrides` as for --override_config."""
        chosen = [f"head={head}"] if head != "softmax" else []
        if has_tree(head):
            chosen.append(f"head_conf.tree={self.folder / 'tree.json'}")
        values: dict[str, Any] = {
            "config": self.config,
            "train_data": (self.train_data,),
            "cv_data": self.cv_data,
        }
        values |= {
            "model_dir": model_dir,
            "override_config": (*chosen, *overrides),
            "device": "cpu",
        }
        return TrainOptions(**{**values, **flags})

    def train(self, model_dir: Path, *overrides: str, head: str = "softmax", **flags: Any) -> Path:
        """Train in this process; the model folder."""
        train(self.options(model_dir, *overrides, head=head, **flags))
        return model_dir

    def task(self, model_dir: Path) -> SpeechTask:
        """The batches and steps of a training in a folder that has been trained, with a new model."""
        folder = PreparedFolder(
            path=model_dir,
            config_file=self.config,
            config=load_config(model_dir / "train.yaml"),
            hashes={},
            encoder_folder=None,
            record=None,
        )
        return load_task(folder, ListPaths(train=(self.train_data,), valid=self.cv_data), World())

    def arguments(self, model_dir: Path, *overrides: str) -> list[str]:
        """The same as a command line."""
        line = ["--config", self.config, "--train_data", self.train_data, "--cv_data", self.cv_data]
        line += ["--model_dir", model_dir, "--device", "cpu"]
        return [*map(str, line), *(("--override_config", *overrides) if overrides else ())]


def write_tiny_corpus(folder: Path, num_train: int = 10, num_cv: int = 3) -> TinyCorpus:
    """Clips of 0.3 to 0.6 s with their lists, units, tree, statistics and config."""
    rng = np.random.default_rng(7)
    lists = {}
    for name, count in (("train", num_train), ("cv", num_cv)):
        lists[name] = [_write_clip(folder / "clips" / f"{name}{i}.wav", rng) for i in range(count)]
        write_data_list(folder / f"{name}.list", lists[name])
    table = UnitTable.from_units(LETTERS)
    table.write(folder / "units.txt")
    counts = [
        1.0,
        0.0,
        num_train,
        *(1 + sum(u.txt.count(letter) for u in lists["train"]) for letter in LETTERS),
    ]
    Tree.huffman(counts, units=table.units).save(folder / "tree.json")
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(_config(folder)))
    total = reduce(
        add, global_sums(lists["train"], build_frontend(load_config(config).dataset_conf))
    )
    write_cmvn(folder / "global_cmvn", total.sums)
    return TinyCorpus(folder, folder / "train.list", folder / "cv.list", config)


def _write_clip(path: Path, rng: np.random.Generator) -> Utterance:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(rng.choice(list(LETTERS), size=rng.integers(2, 4)))
    time = np.arange(round(rng.uniform(0.15, 0.2) * RATE)) / RATE
    tones = [
        np.sin(2 * np.pi * (300 + 400 * LETTERS.index(letter)) * time) * np.hanning(len(time))
        for letter in text
    ]
    samples = 0.3 * np.concatenate(tones) + 0.001 * rng.normal(size=len(time) * len(text))
    soundfile.write(path, samples, RATE)
    return Utterance(key=path.stem, wav=str(path), txt=text, duration=len(samples) / RATE)


def _config(folder: Path) -> dict[str, Any]:
    """With all random operations: dropout, dither, speeds, masks."""
    size = {"attention_heads": 2, "linear_units": 24, "num_blocks": 1}
    return {
        "encoder_conf": {"output_size": 16, "cnn_module_kernel": 3, **size},
        "decoder": "transformer",
        "decoder_conf": size,
        "tokenizer_conf": {"symbol_table_path": str(folder / "units.txt")},
        "cmvn": "global_cmvn",
        "cmvn_conf": {"cmvn_file": str(folder / "global_cmvn")},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
        "dataset_conf": {
            "fbank_conf": {"num_mel_bins": 20, "dither": 1.0},
            "speed_perturb": True,
            "spec_aug_conf": {"max_t": 4, "max_f": 4},
            "batch_conf": {"batch_size": 3},
        },
        "optim_conf": {"lr": 0.005},
        "scheduler_conf": {"warmup_steps": 4},
        "grad_clip": 5.0,
        "max_epoch": 2,
        "log_interval": 1,
        "save_interval": 1,
        "keep_checkpoints": 1000,
        "seed": 1,
    }


def cut_back(model_dir: Path, copy: Path, step: int) -> Path:
    """A copy of a finished folder in the state of a run that was killed after its checkpoint
    `step`.
    """
    shutil.copytree(model_dir, copy)
    for path in list_checkpoints(copy / "checkpoints"):
        if step_of(path) > step:
            shutil.rmtree(path)
    (copy / "checkpoints" / "finished.json").unlink()
    (copy / "final.pt").unlink()
    return copy


def newest(model_dir: Path) -> Path:
    return list_checkpoints(model_dir / "checkpoints")[-1]


def read_checkpoint(path: Path) -> dict[str, bytes]:
    """The files of an intact checkpoint."""
    check_intact(path)
    names = json.loads((path / MANIFEST).read_text("utf-8"))["files"]
    return {name: (path / name).read_bytes() for name in names}


def outcome(model_dir: Path) -> dict[str, Any]:
    """What is the same for two equal trainings: the last checkpoint, final.pt and the metrics."""
    return {**bits(model_dir), "metrics": metrics(model_dir)}


def bits(model_dir: Path) -> dict[str, Any]:
    """The step of the last checkpoint, and SHA-256 of its files and of final.pt."""
    last = newest(model_dir)
    files = {name: last / name for name in ("model.pt", "optimizer.pt", "rng.pt")} | {
        "final": model_dir / "final.pt"
    }
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return {"step": step_of(last), **sums}


def metrics(model_dir: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl without the fields that depend on time or on earlier work of the
    process.
    """
    records = [
        json.loads(line) for line in (model_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    times = {
        "seconds",
        "wait_seconds",
        "compute_seconds",
        "audio_seconds_per_second",
        "wait_share",
        "outside_share",
    }
    left_out = times | {"peak_memory_mb"}
    return [
        {name: value for name, value in record.items() if name not in left_out}
        for record in records
    ]


def weights_of(model_dir: Path) -> dict[str, torch.Tensor]:
    """The state_dict in final.pt."""
    state: dict[str, torch.Tensor] = torch.load(model_dir / "final.pt", weights_only=True)
    return state
