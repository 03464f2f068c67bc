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
"""The length of each clip of the measured batch, in seconds."""
FRAMES_PER_S = 100
"""Feature frames per second of audio."""
NOISE_LEVEL = 0.1
"""The standard deviation of the samples of a measured clip."""
NUM_LABELS = 100
"""The number of units in the transcript of a measured clip."""
NUM_UNITS = 50
"""The size of the measured unit table."""
SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)
NUM_SPECIAL = 3
"""The special units at the start of the table, which no transcript contains."""
NUM_MEASURED = 5
"""Steps that are measured without a pretrained encoder. Their median counts."""
BYTES_PER_OUTPUT = 2
"""Outputs of a frozen encoder are kept as float16."""
GIGABYTE = 10**9
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """The expected time of one part of a training."""

    steps: int
    """The planned number; `max_minutes` may end the part before."""
    seconds: float
    """At most the limit by `max_minutes`."""


@dataclass(frozen=True, kw_only=True)
class OutputsTime:
    """The expected time and disk space of the outputs of a frozen encoder."""

    seconds: float
    gigabytes: float
    """On disk, 10^9 bytes each."""
    folder: str
    """Where the config keeps them."""


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """The expected time of a training, and how it was measured."""

    parts: tuple[PartTime, ...]
    """The first part of the training, if there is one, and the second."""
    outputs: OutputsTime | None
    """What is computed once before the training; None: nothing."""
    checkpoint_gigabytes: float
    """Disk space of the kept checkpoints of the second part, at most; 10^9 bytes each."""
    has_time_limit: bool
    """Whether `max_minutes` may end a part before its last step."""
    num_clips: int
    """Clips in the batch that was measured."""
    machine: str
    """The name of the processor or GPU, and the number of CPU threads."""


def measure_expected_time(
    config: ExperimentConfig,
    path: Path,
    *,
    hours: float,
    first_steps: int,
    num_threads: int,
) -> ExpectedTime:
    """The expected time of a training and its use of disk space.

    Some steps with a batch of noise are measured, with random weights, on the device that a
    training would use. The output layers are measured as softmax: the others need the units, which
    may not exist yet.

    Args:
        config: of the training.
        path: the file of the config, for errors.
        hours: of training speech.
        first_steps: steps of a first part of the training by CTC only; 0: there is none.
        num_threads: CPU threads of a training.
    Raises: ConfigError if the config has no `scheduler_conf.total_steps`, or a dtype that this
        device does not have, or the folder of its encoder cannot be read.
    """
    steps = config.scheduler_conf.total_steps
    if steps is None:
        raise ConfigError(path, "no scheduler_conf.total_steps", "give it")
    limit_s = math.inf  # no limit
    if config.max_minutes is not None:
        limit_s = 60 * config.max_minutes
    with limited_threads(num_threads):
        trial = _make_trial(config, path)
        outputs = _measure_outputs(trial, hours, limit_s)
        parts = []
        if first_steps > 0:
            # With the weight 1 the model trains by CTC only.
            parts.append(_measure_part(trial, first_steps, ctc_weight=1.0, limit_s=limit_s))
        ctc_weight = config.model_conf.last_ctc_weight
        parts.append(_measure_part(trial, steps, ctc_weight=ctc_weight, limit_s=limit_s))
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
    """The sentence about an expected time and the disk space, without a capital and a full stop.

    It has the time of the encoder's outputs, if they are computed once before, and the time of each
    part of the training; then how it was measured, and the space of the checkpoints.
    """
    clauses = []
    if expected.outputs is not None:
        duration = format_duration(expected.outputs.seconds)
        space = f"{expected.outputs.gigabytes:.2g} GB in {expected.outputs.folder}"
        clauses.append(f"{duration} for the outputs of the encoder, once ({space})")
    durations = " + ".join(format_duration(part.seconds) for part in expected.parts)
    steps = " + ".join(str(part.steps) for part in expected.parts)
    at_most = "at most " if expected.has_time_limit else ""
    clauses.append(f"{durations} for {at_most}{steps} steps")
    batch = f"{expected.num_clips} clips of {CLIP_S} s"
    measurement = f"measured with {batch} on {expected.machine}"
    conditions = f"{measurement}; without validation and waiting for data"
    disk = f"its checkpoints take at most {expected.checkpoint_gigabytes:.2g} GB of disk"
    return f"expected time of a training: {', '.join(clauses)} ({conditions}); {disk}"


def format_duration(seconds: float) -> str:
    """A duration for people: `9.9 min` below ten minutes, `119 min` below two hours, `2.0 h`."""
    minutes = seconds / 60
    if minutes < 10:
        return f"{minutes:.1f} min"
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Limit PyTorch to this number of CPU threads as long as the block runs."""
    number_before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(number_before)


# ---- measuring


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A model with random weights, and a batch of noise as large as those of the training."""

    config: ExperimentConfig
    model: AsrModel
    frontend: Frontend
    """Computes the input of the model from audio."""
    clip_N: Tensor
    """The audio of one clip: (N,) samples of noise."""
    batch: Batch
    """`num_clips` times the same clip, on the device."""
    num_clips: int
    device: torch.device
    optimizer: Optimizer
    precision: Precision


def _make_trial(config: ExperimentConfig, path: Path) -> _Trial:
    """The model, the optimizer and the batch of a measurement, on the device of a training.

    `path`: the file of the config, for errors.
    Raises ConfigError for a dtype that the device does not have, or a folder of an encoder that
    cannot be read.
    """
    device = find_device("auto")
    config = _with_softmax_heads(config)
    config = resolve_auto(config, device, where=path)
    model = _build_model(config, path)
    model.to(device).train()
    optimizer = build_optimizer(model, config, where=str(path))
    frontend = _build_frontend(model, config)
    clip_N = NOISE_LEVEL * torch.randn(CLIP_S * frontend.rate)
    num_clips = _clips_per_batch(config)
    batch = _noise_batch(frontend.compute(clip_N), num_clips)
    return _Trial(
        config=config,
        model=model,
        frontend=frontend,
        clip_N=clip_N,
        batch=batch.to(device),
        num_clips=num_clips,
        device=device,
        optimizer=optimizer,
        precision=Precision(config.dtype, device),
    )


def _with_softmax_heads(config: ExperimentConfig) -> ExperimentConfig:
    """The config with a softmax as the output layer of the decoder and of CTC."""
    changes = {"head": "softmax", "head_conf": SoftmaxHeadConf(), "ctc_conf": CtcConf()}
    return config.model_copy(update=changes)


def _build_model(config: ExperimentConfig, path: Path) -> AsrModel:
    """A model with random weights; the parts that the training freezes are frozen.

    If the config keeps the outputs of a pretrained encoder, they are the input of the model.

    `path`: the file of the config, for errors.
    """
    conf = config.encoder_conf
    if not isinstance(conf, PretrainedConf):
        model = build_model(config, NUM_UNITS, SPECIAL)
        freeze(model, config.freeze, where=str(path))
        return model
    description = read_description(Path(conf.path))
    model = build_model(config, NUM_UNITS, SPECIAL, pretrained=description)
    assert isinstance(model.encoder, PretrainedEncoder)
    frozen_parts = (*config.freeze, *model.encoder.frozen_parts())
    freeze(model, frozen_parts, where=str(path))
    model.encoder.takes_outputs = conf.cache is not None
    return model


def _build_frontend(model: AsrModel, config: ExperimentConfig) -> Frontend:
    """The frontend that computes the input of the model from audio.

    It is that of the config; with a pretrained encoder that of the encoder, or the frozen encoder
    itself if the model takes its outputs.
    """
    encoder = model.encoder
    if not isinstance(encoder, PretrainedEncoder):
        return build_frontend(config.dataset_conf)
    frontend = EncoderOutputs(encoder) if encoder.takes_outputs else encoder.own_frontend
    assert frontend is not None  # only encoders that are not pretrained may have none
    return frontend


def _clips_per_batch(config: ExperimentConfig) -> int:
    """How many clips fill a batch of the training by its limit of frames; at least one."""
    frames = config.dataset_conf.batch_conf.max_frames_in_batch
    return max(1, frames // (FRAMES_PER_S * CLIP_S))


def _noise_batch(features: Tensor, num_clips: int) -> Batch:
    """A batch with the same clip several times. `features`: (T, F), those of the clip.

    The transcript repeats the ordinary units of the table in their order.
    """
    num_ordinary = NUM_UNITS - NUM_SPECIAL
    target = torch.arange(NUM_LABELS) % num_ordinary + NUM_SPECIAL
    example = Example(key="noise", features=features, target=target, audio_seconds=CLIP_S)
    return collate([example] * num_clips)


def _checkpoint_gigabytes(trial: _Trial, steps: int) -> float:
    """The disk space of the checkpoints that a training of so many steps keeps, at most.

    They are those of the measured model. A tree as the output layer has about the same size.
    """
    state = TrainState(trial.model, trial.optimizer, trial.device)
    interval = trial.config.save_interval or steps  # without an interval it saves at the end
    num_saves = math.ceil(steps / interval)
    return kept_checkpoint_bytes(trial.config, state.checkpoint_bytes(), num_saves) / GIGABYTE


def _measure_outputs(trial: _Trial, hours: float, limit_s: float) -> OutputsTime | None:
    """The time and disk space of all outputs of a frozen encoder; None if none are kept.

    One clip is measured. With speed perturbation the outputs of each utterance are kept at all
    speeds; at speed 0.9 it is 1 / 0.9 times as long.

    Args:
        trial: the model and a clip.
        hours: of training speech.
        limit_s: limit of the time in seconds; inf: there is none.
    """
    conf = trial.config.encoder_conf
    if not isinstance(conf, PretrainedConf) or conf.cache is None:
        return None
    seconds_per_clip = measure_seconds(lambda: trial.frontend.compute(trial.clip_N))
    has_speeds = trial.config.dataset_conf.speed_perturb
    speeds = SPEED_FACTORS if has_speeds else (1.0,)
    length_of_copies = sum(1 / speed for speed in speeds)  # 1: the length of the utterance
    num_clips = SECONDS_PER_HOUR * hours / CLIP_S * length_of_copies
    values_per_clip = trial.batch.features[0].numel()
    return OutputsTime(
        seconds=min(num_clips * seconds_per_clip, limit_s),
        gigabytes=num_clips * values_per_clip * BYTES_PER_OUTPUT / GIGABYTE,
        folder=conf.cache,
    )


def _measure_part(trial: _Trial, steps: int, *, ctc_weight: float, limit_s: float) -> PartTime:
    """The expected time of a part of the training. Sets the weight of the CTC loss in the model.

    Args:
        trial: the model and a batch.
        steps: optimizer steps of the part.
        ctc_weight: weight of the CTC loss; 1: the decoder is not trained.
        limit_s: limit of the time in seconds; inf: there is none.
    """
    trial.model.loss_weights = replace(trial.model.loss_weights, ctc=ctc_weight)
    if isinstance(trial.model.encoder, PretrainedEncoder):
        seconds_per_batch = _measure_with_pretrained(trial)
    else:
        times = [measure_seconds(lambda: run_step(trial)) for _ in range(NUM_MEASURED)]
        seconds_per_batch = median(times)
    seconds = steps * trial.config.accum_grad * seconds_per_batch
    return PartTime(steps=steps, seconds=min(seconds, limit_s))


def _measure_with_pretrained(trial: _Trial) -> float:
    """Seconds per batch with a pretrained encoder: forward and backward pass, and the frontend.

    One measurement is enough for such a large model. If the outputs of the encoder are kept, the
    frontend has run before the training and does not count. Otherwise it runs once per clip.
    """
    seconds = measure_seconds(lambda: add_gradients(trial))
    assert isinstance(trial.model.encoder, PretrainedEncoder)
    if trial.model.encoder.takes_outputs:
        return seconds
    seconds_per_clip = measure_seconds(lambda: trial.frontend.compute(trial.clip_N))
    return seconds + trial.num_clips * seconds_per_clip


def run_step(trial: _Trial) -> None:
    """An optimizer step with the batch."""
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
    """The seconds of a second call. The first one may allocate memory or compile."""
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
