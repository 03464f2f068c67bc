# SPDX-License-Identifier: Apache-2.0
"""The clips on which exported files are compared with PyTorch: of a data list, or noise.

Dimension key: N samples, T input frames, F features.
"""

import logging
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.data.audio import read_utterance
from wenet_hs.export.graphs import chunk_window
from wenet_hs.export.options import MAX_CLIPS, ExportOptions
from wenet_hs.frontends.base import Frontend
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

_NOISE_S = (1.1, 2.4, 4.1)
"""Lengths of the noise, in seconds."""


@dataclass(frozen=True)
class Clips:
    """The inputs on which the files are compared."""

    utterances: list[Utterance]
    """One per input, in the same order; empty: the inputs are noise."""
    features: list[Tensor]
    """(T, F) or samples (N,) of each; at least one."""

    def __str__(self) -> str:
        """For messages: `20 clips` or `noise`."""
        return f"{len(self.utterances)} clips" if self.utterances else "noise"


def read_comparison_clips(experiment: Experiment, options: ExportOptions) -> Clips:
    """The usable clips among the first ones of the test list; without a list, noise.

    Clips that are too short for the model are left out. Clips that are longer than the window of
    its encoder are left out too, with a warning: an exported encoder reads one window. For a
    stream, silence follows each clip, so that its last chunk is whole.

    Raises DataError if a clip cannot be read, or none is usable.
    """
    frontend = experiment.frontend
    encoder = experiment.model.encoder
    stream = options.stream
    min_frames = encoder.min_frames
    num_silent = 0
    if stream is not None:
        min_frames = chunk_window(encoder, stream).length
        num_silent = round(min_frames * frontend.frame_s * frontend.rate)
    path = options.test_data
    if path is None:
        return Clips([], _noise_features(frontend, num_silent))
    utterances = list(islice(read_data_list(path), MAX_CLIPS))
    usable = list[Utterance]()
    features = list[Tensor]()
    num_too_long = 0
    for utterance in utterances:
        wave_N = read_utterance(utterance, frontend.rate)
        if len(wave_N) > frontend.window_s * frontend.rate:
            num_too_long += 1
            continue
        features_TF = frontend.compute(F.pad(wave_N, (0, num_silent)))
        if len(features_TF) >= min_frames:
            usable.append(utterance)
            features.append(features_TF)
    if not usable:
        raise _no_clip_error(path, frontend.window_s, has_too_long=num_too_long > 0)
    if num_too_long:
        logger.warning(
            "%s: %d of %d clips are not compared: this encoder reads at most %g s when it is exported",
            path,
            num_too_long,
            len(utterances),
            frontend.window_s,
        )
    return Clips(usable, features)


def _no_clip_error(path: Path, window_s: float, *, has_too_long: bool) -> DataError:
    """The error for a list without a usable clip.

    `has_too_long`: some clips were longer than `window_s`, otherwise all were too short.
    """
    if has_too_long:
        return DataError(
            path,
            f"no clip of at most {window_s:g} s, the longest that this encoder reads when it is exported",
            "give a list of such clips",
        )
    return DataError(path, "no clip is long enough for the model", "give a list of longer speech")


def _noise_features(frontend: Frontend, num_silent: int) -> list[Tensor]:
    """Features (T, F) of noise that swells and fades, and of `num_silent` samples after it."""
    generator = torch.Generator().manual_seed(0)
    features = []
    for seconds in _NOISE_S:
        noise_N = 0.1 * torch.randn(round(seconds * frontend.rate), generator=generator)
        swelling_N = noise_N * torch.linspace(0, 9, len(noise_N)).sin()
        features.append(frontend.compute(F.pad(swelling_N, (0, num_silent))))
    return features
