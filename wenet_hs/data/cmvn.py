# SPDX-License-Identifier: Apache-2.0
"""Global mean and variance of the features (CMVN), in WeNet's JSON.

Dimension key: T frames, F Mel bins.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from wenet_hs.base.files import read_lines
from wenet_hs.data.audio import ClipError
from wenet_hs.data.features import utterance_features
from wenet_hs.data.loading import load_ahead
from wenet_hs.frontends.base import Frontend
from wenet_hs.manifest.data_list import BadClip, Utterance
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

CMVN_GROUP = 32
"""Utterances whose sums a worker adds before it sends them."""
_MIN_VARIANCE = 1e-20
"""WeNet's: a constant bin has a huge but finite scale."""
_REMEDY = "compute it again with `wenet-hs cmvn`"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSums:
    """Sums of the features of some utterances; `+` adds those of others."""

    sums: Tensor
    """(2F + 1,) float64: F sums of the features, F sums of their squares, the number of frames."""
    bad_clips: tuple[BadClip, ...] = ()
    """Clips that cannot be read; they are not in the sums."""
    num_incomplete: int = 0
    """Clips in the sums that lack a little of the length in their header."""

    def __add__(self, other: "FeatureSums") -> "FeatureSums":
        return FeatureSums(
            sums=self.sums + other.sums,
            bad_clips=self.bad_clips + other.bad_clips,
            num_incomplete=self.num_incomplete + other.num_incomplete,
        )


class CmvnFile(BaseModel):
    """The fields of WeNet's `global_cmvn`."""

    model_config = ConfigDict(strict=True)

    mean_stat: list[float]
    """(F,) the sum of each bin over all frames, not its mean."""
    var_stat: list[float]
    """(F,) the sum of the squares of each bin."""
    frame_num: float
    """The number of frames."""


def global_sums(
    utterances: Sequence[Utterance],
    frontend: Frontend,
    *,
    num_workers: int = 0,
    rank: int = 0,
    num_ranks: int = 1,
) -> Iterator[FeatureSums]:
    """Compute the sums of successive groups of CMVN_GROUP utterances.

    The features have neither dither nor augmentation. Sums that are added in this order are the
    same bits for every number of workers.

    Args:
        num_workers: see `load_ahead`.
        rank, num_ranks: of several ranks, this one has the groups rank, rank + num_ranks, …
    """
    group_starts = range(rank * CMVN_GROUP, len(utterances), num_ranks * CMVN_GROUP)
    load = partial(_group_sums, utterances, frontend)
    return load_ahead(load, group_starts, num_workers=num_workers)


def _group_sums(utterances: Sequence[Utterance], frontend: Frontend, first: int) -> FeatureSums:
    """Compute the sums of the group that begins with the utterance `first`."""
    total = torch.zeros(2 * frontend.width + 1, dtype=torch.float64)
    bad_clips = list[BadClip]()
    incomplete = list[str]()  # the keys of such clips
    for number in range(first, min(first + CMVN_GROUP, len(utterances))):
        try:
            features_TF = utterance_features(utterances[number], frontend, incomplete)
        except ClipError as error:
            bad_clips.append(error.clip)
            continue
        wide_TF = features_TF.double()  # float32 loses digits after some hours of audio
        sums_F = wide_TF.sum(0)
        squares_F = wide_TF.square().sum(0)
        num_frames = torch.tensor([len(wide_TF)]).double()
        total += torch.cat([sums_F, squares_F, num_frames])
    return FeatureSums(sums=total, bad_clips=tuple(bad_clips), num_incomplete=len(incomplete))


def write_cmvn(path: Path | str, total: Tensor) -> None:
    """Write `global_cmvn` in WeNet's JSON.

    total: (2F + 1,), the total of all `global_sums`; see `FeatureSums.sums`.

    Raises DataError if there are no frames.
    """
    num_bins = len(total) // 2
    sums, squares, num_frames = total.double().tensor_split((num_bins, 2 * num_bins))
    if num_frames < 1:
        raise DataError(
            path, "no frames to compute statistics from", "the audio is empty or too short"
        )
    record = {
        "mean_stat": sums.tolist(),
        "var_stat": squares.tolist(),
        "frame_num": int(num_frames),
    }
    write_atomic(path, json.dumps(record) + "\n")


def read_cmvn(path: Path | str) -> tuple[Tensor, Tensor]:
    """Read the mean (F,) and the inverse standard deviation (F,) of the features, float32.

    Raises: DataError naming the file: it is missing or not WeNet's JSON, or it has other lengths
        for sums than for squares, no frames, or values that are not finite.
    """
    path = Path(path)
    record = _read_record(path)
    sums = np.array(record.mean_stat)
    squares = np.array(record.var_stat)
    num_frames = record.frame_num
    if len(sums) != len(squares) or not len(sums):
        raise DataError(path, f"{len(sums)} sums and {len(squares)} sums of squares", _REMEDY)
    if not np.isfinite([*sums, *squares, num_frames]).all():
        raise DataError(path, "values that are not finite", _REMEDY)
    if num_frames < 1:
        raise DataError(path, f"statistics of {num_frames:g} frames", _REMEDY)
    mean_F = torch.from_numpy(sums) / num_frames
    variance_F = torch.from_numpy(squares) / num_frames - mean_F.square()
    istd_F = variance_F.clamp(min=_MIN_VARIANCE).rsqrt()
    return mean_F.float(), istd_F.float()


def _read_record(path: Path) -> CmvnFile:
    """Read the JSON of a `global_cmvn`. Raises DataError if it is missing or another format."""
    try:
        return CmvnFile.model_validate(json.loads("\n".join(read_lines(path))))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = "".join(f"{part}: " for part in fault["loc"])
        # pydantic names its class, which a user does not know, where JSON has no section.
        expected = fault["msg"].removesuffix(" or instance of CmvnFile")
        found = repr(fault["input"])[:40]  # one line of a message
        raise DataError(path, f"{key}{expected}, found {found}", _REMEDY) from error
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"not JSON ({error})", _REMEDY) from error
