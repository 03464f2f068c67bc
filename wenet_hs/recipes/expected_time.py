# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training, from a few steps that are measured on this machine."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from wenet_hs.compute.devices import find_device, processor_name
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.heads import SoftmaxHeadConf
from wenet_hs.config.schema import CtcConf, ExperimentConfig
from wenet_hs.data.augment import SPEED_FACTORS
from wenet_hs.data.batching import Batch, Example, collate
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model
from wenet_hs.model.encoders.description import read_description
from wenet_hs.model.encoders.outputs import EncoderOutputs
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.text.units import SpecialIds
from wenet_hs.train.average import kept_checkpoint_bytes
from wenet_hs.train.model_folder import resolve_auto
from wenet_hs.train.optim import Optimizer, Precision, build_optimizer, freeze
from wenet_hs.train.state import TrainState
from wenet_hs.tree.errors import ConfigError

CLIP_S = 10
"""Seconds of a clip of the measured batch."""
FRAMES_PER_S = 100
NUM_LABELS = 100
"""Units of the transcript of such a clip."""
NUM_UNITS = 50
NUM_SPECIAL = 3
"""Units at the start of the table that no transcript has."""
SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)
NUM_MEASURED = 5
"""Steps of an encoder of ours that are measured; the median counts."""
BYTES_PER_OUTPUT = 2
"""Outputs of a frozen encoder are kept as float16."""
GIGABYTE = 10**9


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """The expected time of one part of a training."""

    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OutputsTime:
    """The expected time and disk space of the outputs of a frozen encoder."""

    seconds: float
    gigabytes: float
    """On disk, 10^9 bytes each."""
    folder: str


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """The expected time of a training, and how it was measured."""

    parts: tuple[PartTime, ...]
    """The first part of the training, if there is one, and the second."""
    outputs: OutputsTime | None
    """What is computed once before; None: nothing."""
    checkpoint_gigabytes: float
    """Disk of the checkpoints of the second part that are kept, at most, 10^9 bytes each."""
    has_time_limit: bool
    """Whether `max_minutes` may end a part before its last step."""
    num_clips: int
    """Clips in the batch that was measured."""
    machine: str
    """The processor, with the number of threads."""


def measure_expected_time(
    config: ExperimentConfig,
    path: Path,
    *,
    hours: float,
    first_steps: int,
    num_threads: int,
) -> ExpectedTime:
    """Measure a batch of noise, with random weights, on the device that a training would use.

    The output layers are measured as softmax: the others need the units, which may not exist yet.

    Args:
        config: of the training.
        path: its file, for errors.
        hours: of training speech.
        first_steps: steps of a first part by CTC only; 0: there is none.
        num_threads: CPU threads of a training.
    Raises: ConfigError if the config has no `scheduler_conf.total_steps`, or a dtype that this
        device does not have, or the folder of its encoder cannot be read.
    """
    steps = config.scheduler_conf.total_steps
    if steps is None:
        raise ConfigError(path, "no scheduler_conf.total_steps", "give it")
    limit_s = math.inf if config.max_minutes is None else 60 * config.max_minutes
    with limited_threads(num_threads):
        trial = _make_trial(config, path)
        outputs = _measure_outputs(trial, hours, limit_s)
        parts = []
        if first_steps:
            parts.append(_measure_part(trial, first_steps, 1.0, limit_s))
        ctc_weight = config.model_conf.last_ctc_weight
        parts.append(_measure_part(trial, steps, ctc_weight, limit_s))
        machine = f"{processor_name(trial.device)}, threads: {torch.get_num_threads()}"
    return ExpectedTime(
        parts=tuple(parts),
        outputs=outputs,
        checkpoint_gigabytes=_checkpoint_gigabytes(trial, steps),
        has_time_limit=config.max_minutes is not None,
        num_clips=trial.num_clips,
        machine=machine,
    )


def describe_expected_time(expected: ExpectedTime) -> str:
    """The sentence about an expected time and the disk."""
    facts = []
    if expected.outputs is not None:
        duration = format_duration(expected.outputs.seconds)
        place = f"{expected.outputs.gigabytes:.2g} GB in {expected.outputs.folder}"
        facts.append(f"{duration} for the outputs of the encoder, once ({place})")
    durations = " + ".join(format_duration(part.seconds) for part in expected.parts)
    steps = " + ".join(str(part.steps) for part in expected.parts)
    at_most = "at most " if expected.has_time_limit else ""
    facts.append(f"{durations} for {at_most}{steps} steps")
    batch = f"{expected.num_clips} clips of {CLIP_S} s"
    measured = f"measured with {batch} on {expected.machine}"
    conditions = f"{measured}; without validation and waiting for data"
    disk = f"its checkpoints take at most {expected.checkpoint_gigabytes:.2g} GB of disk"
    return f"expected time of a training: {', '.join(facts)} ({conditions}); {disk}"


def format_duration(seconds: float) -> str:
    """Minutes with a decimal, minutes, or hours."""
    minutes = seconds / 60
    if minutes < 10:
        return f"{minutes:.1f} min"
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """This number of CPU threads of torch inside; the number before it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- measuring


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A model with random weights, and a batch of noise as large as those of the training."""

    config: ExperimentConfig
    model: AsrModel
    frontend: Frontend
    clip_N: Tensor
    batch: Batch
    num_clips: int
    device: torch.device
    optimizer: Optimizer
    precision: Precision


def _make_trial(config: ExperimentConfig, path: Path) -> _Trial:
    device = find_device("auto")
    config = _with_softmax_heads(config)
    config = resolve_auto(config, device, where=path)
    model = _build_model(config, path)
    model.to(device).train()
    optimizer = build_optimizer(model, config, where=str(path))
    frontend = _frontend_of(model, config)
    clip_N = 0.1 * torch.randn(CLIP_S * frontend.rate)
    num_clips = _clips_per_batch(config)
    return _Trial(
        config=config,
        model=model,
        frontend=frontend,
        clip_N=clip_N,
        batch=_noise_batch(frontend.compute(clip_N), num_clips).to(device),
        num_clips=num_clips,
        device=device,
        optimizer=optimizer,
        precision=Precision(config.dtype, device),
    )


def _with_softmax_heads(config: ExperimentConfig) -> ExperimentConfig:
    changes = {"head": "softmax", "head_conf": SoftmaxHeadConf(), "ctc_conf": CtcConf()}
    return config.model_copy(update=changes)


def _build_model(config: ExperimentConfig, path: Path) -> AsrModel:
    """A model with random weights, of which as much is frozen as in the training."""
    conf = config.encoder_conf
    if not isinstance(conf, PretrainedConf):
        model = build_model(config, NUM_UNITS, SPECIAL)
        freeze(model, config.freeze, where=str(path))
        return model
    description = read_description(Path(conf.path))
    model = build_model(config, NUM_UNITS, SPECIAL, pretrained=description)
    assert isinstance(model.encoder, PretrainedEncoder)
    freeze(model, (*config.freeze, *model.encoder.frozen_parts()), where=str(path))
    model.encoder.takes_outputs = conf.cache is not None
    return model


def _frontend_of(model: AsrModel, config: ExperimentConfig) -> Frontend:
    """What computes the input of the model from audio: features, or the outputs of an encoder."""
    encoder = model.encoder
    if not isinstance(encoder, PretrainedEncoder):
        return build_frontend(config.dataset_conf)
    frontend = EncoderOutputs(encoder) if encoder.takes_outputs else encoder.own_frontend
    assert frontend is not None
    return frontend


def _clips_per_batch(config: ExperimentConfig) -> int:
    frames = config.dataset_conf.batch_conf.max_frames_in_batch
    return max(1, frames // (FRAMES_PER_S * CLIP_S))


def _noise_batch(features: Tensor, num_clips: int) -> Batch:
    target = torch.arange(NUM_LABELS) % (NUM_UNITS - NUM_SPECIAL) + NUM_SPECIAL
    example = Example(key="noise", features=features, target=target, audio_seconds=CLIP_S)
    return collate([example] * num_clips)


def _checkpoint_gigabytes(trial: _Trial, steps: int) -> float:
    """The disk of the checkpoints that are kept, at most.

    The output layer of a tree is of about the same size.
    """
    state = TrainState(trial.model, trial.optimizer, trial.device)
    interval = trial.config.save_interval or steps
    num_saves = -(-steps // interval)
    return kept_checkpoint_bytes(trial.config, state.checkpoint_bytes(), num_saves) / GIGABYTE


def _measure_outputs(trial: _Trial, hours: float, limit_s: float) -> OutputsTime | None:
    """The time and disk space of all outputs of a frozen encoder; None if none are kept."""
    conf = trial.config.encoder_conf
    if not isinstance(conf, PretrainedConf) or conf.cache is None:
        return None
    seconds_per_clip = measure_seconds(lambda: trial.frontend.compute(trial.clip_N))
    has_speeds = trial.config.dataset_conf.speed_perturb
    speeds = SPEED_FACTORS if has_speeds else (1.0,)
    num_clips = 3600 * hours / CLIP_S * sum(1 / speed for speed in speeds)
    values_per_clip = trial.batch.features[0].numel()
    return OutputsTime(
        seconds=min(num_clips * seconds_per_clip, limit_s),
        gigabytes=num_clips * values_per_clip * BYTES_PER_OUTPUT / GIGABYTE,
        folder=conf.cache,
    )


def _measure_part(trial: _Trial, steps: int, ctc_weight: float, limit_s: float) -> PartTime:
    """The time of these steps with this weight of CTC, at most `limit_s`."""
    trial.model.loss_weights = replace(trial.model.loss_weights, ctc=ctc_weight)
    if isinstance(trial.model.encoder, PretrainedEncoder):
        seconds_per_batch = _measure_with_pretrained(trial)
    else:
        times = [measure_seconds(lambda: run_step(trial)) for _ in range(NUM_MEASURED)]
        seconds_per_batch = median(times)
    seconds = steps * trial.config.accum_grad * seconds_per_batch
    return PartTime(steps=steps, seconds=min(seconds, limit_s))


def _measure_with_pretrained(trial: _Trial) -> float:
    """Seconds for a batch with a pretrained encoder, of which one is enough to measure.

    Without kept outputs its frontend runs once per clip of each batch.
    """
    seconds = measure_seconds(lambda: add_gradients(trial))
    assert isinstance(trial.model.encoder, PretrainedEncoder)
    if trial.model.encoder.takes_outputs:
        return seconds
    seconds_per_clip = measure_seconds(lambda: trial.frontend.compute(trial.clip_N))
    return seconds + trial.num_clips * seconds_per_clip


def run_step(trial: _Trial) -> None:
    """An optimizer step."""
    trial.optimizer.zero_grad()
    add_gradients(trial)
    trial.optimizer.step()


def add_gradients(trial: _Trial) -> None:
    """Forward and backward pass of the batch; returns when the device has computed them."""
    with trial.precision.autocast():
        losses = trial.model(trial.batch)
    trial.precision.backward(losses.total / losses.num_targets)
    losses.total.item()  # waits for the device


def measure_seconds(call: Callable[[], object]) -> float:
    """The time of a second call."""
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
