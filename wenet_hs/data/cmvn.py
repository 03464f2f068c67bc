# SPDX-License-Identifier: Apache-2.0
"""Global mean and variance of the features, in WeNet's JSON.   Dimension key: T frames, F Mel bins."""

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
_REMEDY = "compute it again with `wenet-hs cmvn`"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSums:
    """Sums over utterances; `+` adds two of them."""

    sums: Tensor
    """(2F + 1,) float64: the sums of the features, the sums of their squares, and the number of
    frames.
    """
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
    """The fields of WeNet's `global_cmvn`: sums over all frames, per bin, and the number of frames."""

    model_config = ConfigDict(strict=True)

    mean_stat: list[float]
    var_stat: list[float]
    frame_num: float


def global_sums(
    utterances: Sequence[Utterance],
    frontend: Frontend,
    *,
    num_workers: int = 0,
    rank: int = 0,
    num_ranks: int = 1,
) -> Iterator[FeatureSums]:
    """The sums of successive groups of CMVN_GROUP utterances, without dither or augmentation.

    Sums added in this order are the same bits for every number of workers. Of several ranks, each
    has the groups rank, rank + num_ranks, …
    """
    groups = range(rank * CMVN_GROUP, len(utterances), num_ranks * CMVN_GROUP)
    return load_ahead(partial(_group_sums, utterances, frontend), groups, num_workers=num_workers)


def _group_sums(utterances: Sequence[Utterance], frontend: Frontend, first: int) -> FeatureSums:
    total = torch.zeros(2 * frontend.width + 1, dtype=torch.float64)
    bad_clips, incomplete = list[BadClip](), list[str]()
    for number in range(first, min(first + CMVN_GROUP, len(utterances))):
        try:
            features_TF = utterance_features(utterances[number], frontend, incomplete)
        except ClipError as error:
            bad_clips.append(error.clip)
            continue
        wide_TF = features_TF.double()  # float32 loses digits after some hours of audio
        total += torch.cat(
            [wide_TF.sum(0), wide_TF.square().sum(0), torch.tensor([len(wide_TF)]).double()]
        )
    return FeatureSums(sums=total, bad_clips=tuple(bad_clips), num_incomplete=len(incomplete))


def write_cmvn(path: Path | str, total: Tensor) -> None:
    """Write `global_cmvn` in WeNet's JSON. total: (2F + 1,), the sum of all `global_sums`.

    Raises DataError where there are no frames.
    """
    sums, squares, frames = total.double().tensor_split((len(total) // 2, len(total) - 1))
    if frames < 1:
        raise DataError(
            path, "no frames to compute statistics from", "the audio is empty or too short"
        )
    record = {"mean_stat": sums.tolist(), "var_stat": squares.tolist(), "frame_num": int(frames)}
    write_atomic(path, json.dumps(record) + "\n")


def read_cmvn(path: Path | str) -> tuple[Tensor, Tensor]:
    """The mean (F,) and the inverse standard deviation (F,) of the features, float32.

    Raises: DataError naming the file: missing, another format, lengths that differ, no frames, not
        finite.
    """
    path = Path(path)
    try:
        record = CmvnFile.model_validate(json.loads("\n".join(read_lines(path))))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in fault["loc"])
        expected = fault["msg"].removesuffix(" or instance of CmvnFile")
        raise DataError(
            path, f"{where}{expected}, found {repr(fault['input'])[:40]}", _REMEDY
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"not JSON ({error})", _REMEDY) from error
    sums, squares, num_frames = (
        np.array(record.mean_stat),
        np.array(record.var_stat),
        record.frame_num,
    )
    if len(sums) != len(squares) or not len(sums):
        raise DataError(path, f"{len(sums)} sums and {len(squares)} sums of squares", _REMEDY)
    if not np.isfinite([*sums, *squares, num_frames]).all():
        raise DataError(path, "values that are not finite", _REMEDY)
    if num_frames < 1:
        raise DataError(path, f"statistics of {num_frames:g} frames", _REMEDY)
    mean_F = torch.from_numpy(sums) / num_frames
    variance_F = torch.from_numpy(squares) / num_frames - mean_F.square()
    istd_F = variance_F.clamp(
        min=1e-20
    ).rsqrt()  # WeNet's floor: a constant bin has a huge but finite scale
    return mean_F.float(), istd_F.float()
