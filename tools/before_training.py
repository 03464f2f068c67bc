#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `run.sh` needs to know before a training: how long it will take, and the config of a pretrained encoder.

Examples: python tools/before_training.py config --encoder whisper-base --outputs data/outputs --config conf/own.yaml
          python tools/before_training.py time --hours 0.8 wenet-hs train --config conf/finetune_whisper.yaml …

`config` prints the YAML and its settings, one per line. `time` measures one batch of noise on this
machine, with random weights.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from wenet_hs.build import build_model
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.augment import SPEED_FACTORS
from wenet_hs.data.batching import Batch, Example, collate
from wenet_hs.devices import find_device, processor_name
from wenet_hs.encoders.description import read_description
from wenet_hs.encoders.outputs import EncoderOutputs
from wenet_hs.encoders.pretrained import PretrainedEncoder
from wenet_hs.encoders.weights import weight_files
from wenet_hs.errors import ConfigError, WenetHsError
from wenet_hs.frontends.build import build_frontend
from wenet_hs.model import AsrModel
from wenet_hs.text.units import SpecialIds
from wenet_hs.train.model_folder import TrainOptions, resolve_auto
from wenet_hs.train.optim import Precision, build_optimizer
from wenet_hs.train.speech import freeze

CONF = Path(__file__).resolve().parents[1] / "conf"
FROZEN = "finetune_whisper.yaml"
BY_KIND = {"whisper": FROZEN, "wav2vec2-bert": "finetune_w2vbert.yaml", "mms": "finetune_mms.yaml"}
CLIP_S = 10
"""Seconds of a clip of the measured batch."""
NUM_LABELS, NUM_UNITS, NUM_MEASURED = 100, 50, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("action", choices=["config", "time"])
    add("--encoder", type=Path, metavar="DIR", help="folder in Hugging Face's layout")
    add("--chosen", type=Path, metavar="FILE", help="with the name of the config that was chosen for a training before")
    add("--outputs", metavar="DIR", help="folder for the outputs of a frozen encoder")
    add(
        "--config",
        type=Path,
        required=True,
        metavar="YAML",
        help="of the training; conf/own.yaml: the one for this kind of encoder",
    )
    add("--hours", type=float, help="time: hours of training speech")
    add("--first_steps", type=int, default=0, help="time: steps of a first part, by CTC only")
    add("--override_config", nargs="*", action="extend", default=[], metavar="KEY=VALUE")
    args, _ = parser.parse_known_args()  # `time` gets the whole command of the training
    try:
        if args.action == "config":
            print(*choose_config(args.encoder, args.outputs, args.config, args.chosen), sep="\n")
        else:
            is_ours = "encoder: pretrained" not in args.config.read_text("utf-8")
            flat = ["head=softmax", "head_conf={}", "ctc_conf={}"] if is_ours else []  # a tree needs the units
            config = load_config(args.config, [*args.override_config, *flat])
            is_pretrained = isinstance(config.encoder_conf, PretrainedConf)
            value, expected = (args.hours, expected_time) if is_pretrained else (args.first_steps, time_of_steps)
            print(expected(config, args.config, value))
    except WenetHsError as error:
        sys.exit(f"{error}")


def choose_config(encoder: Path, outputs: str, given: Path, chosen: Path | None = None) -> list[str]:
    """The YAML for an encoder on this machine if `given` is conf/own.yaml, and settings with its folder.

    `chosen`: a file with the name of the one that another machine chose before, if there is one.
    """
    description = read_description(encoder)
    weight_files(encoder)  # now, not after the lists
    has_adapters = description.has_language_adapters
    kind = "mms" if has_adapters else description.kind
    is_fine_tuned = torch.cuda.is_available() or has_adapters  # MMS always: new adapters in a frozen encoder are noise
    by_kind = BY_KIND.get(kind, "finetune_wav2vec2.yaml") if is_fine_tuned else FROZEN
    if chosen is not None and chosen.is_file():
        by_kind = chosen.read_text("utf-8").strip()
    path = CONF / by_kind if given.resolve() == CONF / "own.yaml" else given
    config, settings = load_config(path), [f"encoder_conf.path={encoder}"]
    if not isinstance(config.encoder_conf, PretrainedConf):
        raise ConfigError(path, f"encoder: {config.encoder}", "give a YAML with encoder: pretrained, or no --encoder")
    if config.encoder_conf.cache is not None:
        settings.append(f"encoder_conf.cache={outputs}")
    if has_adapters and config.encoder_conf.adapter is None:
        settings.append("encoder_conf.adapter=new")
    return [str(path), *settings]


def expected_time(config: ExperimentConfig, path: Path, hours: float) -> str:
    """The expected time of a training, by the times of a clip and of a batch on this machine."""
    conf, steps, device = config.encoder_conf, config.scheduler_conf.total_steps, find_device("auto")
    if not isinstance(conf, PretrainedConf) or steps is None:
        raise ConfigError(path, "no pretrained encoder, or no scheduler_conf.total_steps", "give both")
    of_clip, of_batch, num_values, num_clips = measure(config, path, device)
    has_cache = conf.cache is not None
    training = steps * config.accum_grad * (of_batch + (0 if has_cache else num_clips * of_clip))
    limit_s = math.inf if config.max_minutes is None else 60 * config.max_minutes
    at_most = "at most " if config.max_minutes else ""
    parts = [f"{format_duration(min(training, limit_s))} for {at_most}{steps} steps"]
    if has_cache:
        speeds = SPEED_FACTORS if config.dataset_conf.speed_perturb else (1.0,)
        clips = 3600 * hours / CLIP_S * sum(1 / speed for speed in speeds)
        size = f"{clips * num_values * 2 / 1e9:.2g} GB in {conf.cache}"
        parts.insert(
            0, f"{format_duration(min(clips * of_clip, limit_s))} for the outputs of the encoder, once ({size})"
        )
    return describe_time(", ".join(parts), num_clips, device)


def time_of_steps(config: ExperimentConfig, path: Path, first_steps: int) -> str:
    """The expected time of a training with an encoder of our own, after a first part of `first_steps` by CTC only."""
    steps, device = config.scheduler_conf.total_steps, find_device("auto")
    if steps is None:
        raise ConfigError(path, "no scheduler_conf.total_steps", "give it")
    config = resolve_auto(config, train_options(path), device, is_resumed=False)
    model = build_model(config, NUM_UNITS, SpecialIds(0, 1, 2, 2))
    freeze(model, config.freeze, where=str(path))
    model.to(device).train()
    optimizer, precision = build_optimizer(model, config, where=str(path)), Precision(config.dtype, device)
    frontend = build_frontend(config.dataset_conf)
    batch, num_clips = noise_batch(frontend.compute(0.1 * torch.randn(CLIP_S * frontend.rate)), config)
    batch = batch.to(device)

    def step() -> None:
        optimizer.zero_grad()
        add_gradients(model, batch, precision)
        optimizer.step()

    times = list[float]()
    for number, ctc in [(first_steps, 1.0)] * (first_steps > 0) + [(steps, config.model_conf.last_ctc_weight)]:
        model.loss_weights = replace(model.loss_weights, ctc=ctc)
        seconds = number * config.accum_grad * median(measure_seconds(step) for _ in range(NUM_MEASURED))
        times.append(seconds if config.max_minutes is None else min(seconds, 60 * config.max_minutes))
    each = " + ".join(map(format_duration, times))
    numbers = ("at most " if config.max_minutes else "") + (f"{first_steps} + {steps}" if first_steps else f"{steps}")
    return describe_time(f"{each} for {numbers} steps", num_clips, device)


def describe_time(expected: str, num_clips: int, device: torch.device) -> str:
    """The line of an expected time, with how it was measured."""
    machine = f"{processor_name(device)}, threads: {torch.get_num_threads()}"
    measured = f"measured with {num_clips} clips of {CLIP_S} s on {machine}; without validation and waiting for data"
    return f"expected time of a training: {expected} ({measured})"


def noise_batch(features: Tensor, config: ExperimentConfig) -> tuple[Batch, int]:
    """A batch as large as those of the training, of clips with these features, and the number of its clips."""
    num_clips = max(1, config.dataset_conf.batch_conf.max_frames_in_batch // (100 * CLIP_S))
    target = torch.arange(NUM_LABELS) % (NUM_UNITS - 3) + 3
    example = Example(key="noise", features=features, target=target, audio_seconds=CLIP_S)
    return collate([example] * num_clips), num_clips


def train_options(path: Path) -> TrainOptions:
    """The options of a training of which only the config matters."""
    return TrainOptions(config=path, train_data=[], cv_data=path, model_dir=path)


def measure(config: ExperimentConfig, path: Path, device: torch.device) -> tuple[float, float, int, int]:
    """Seconds for the input of the model from a clip of noise and for the gradients of a batch of clips, how many
    values that input has, and the number of clips."""
    config = resolve_auto(config, train_options(path), device, is_resumed=False)
    conf = config.encoder_conf
    assert isinstance(conf, PretrainedConf)
    model = build_model(config, NUM_UNITS, SpecialIds(0, 1, 2, 2), pretrained=read_description(Path(conf.path)))
    encoder = model.encoder
    assert isinstance(encoder, PretrainedEncoder)
    freeze(model, (*config.freeze, *encoder.frozen_parts()), where=str(path))
    model.to(device).train()
    encoder.takes_outputs = conf.cache is not None
    frontend = EncoderOutputs(encoder) if encoder.takes_outputs else encoder.own_frontend
    assert frontend is not None
    clip_N = 0.1 * torch.randn(CLIP_S * frontend.rate)
    batch, num_clips = noise_batch(frontend.compute(clip_N), config)
    batch, precision = batch.to(device), Precision(config.dtype, device)
    of_clip, num_values = measure_seconds(lambda: frontend.compute(clip_N)), batch.features[0].numel()
    return of_clip, measure_seconds(lambda: add_gradients(model, batch, precision)), num_values, num_clips


def add_gradients(model: AsrModel, batch: Batch, precision: Precision) -> None:
    with precision.autocast():
        losses = model(batch)
    precision.backward(losses.total / losses.num_targets)
    losses.total.item()  # waits for the device


def measure_seconds(call: Callable[[], object]) -> float:
    """The time of a second call."""
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def format_duration(duration: float) -> str:
    minutes = duration / 60
    return f"{minutes:.1f} min" if minutes < 10 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


if __name__ == "__main__":
    main()
