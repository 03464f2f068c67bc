# SPDX-License-Identifier: Apache-2.0
"""From `dataset_conf` to the frontend of the model."""

from functools import lru_cache

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.fbank import Fbank


@lru_cache(maxsize=8)
def build_frontend(conf: DatasetConf) -> Frontend:
    """The frontend that a config describes. Raises ConfigError if its frames are too short."""
    fbank = conf.fbank_conf
    return Fbank(
        conf.resample_conf.resample_rate,
        num_mel_bins=fbank.num_mel_bins,
        frame_length_ms=fbank.frame_length,
        frame_shift_ms=fbank.frame_shift,
        dither=fbank.dither,
        profile=fbank.profile,
    )
