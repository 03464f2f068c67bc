# SPDX-License-Identifier: Apache-2.0
"""From `dataset_conf` to the frontend of the model."""

from functools import lru_cache
from typing import Protocol, runtime_checkable

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.fbank import Fbank


@runtime_checkable
class ExtensionFrontendConf(Protocol):
    """The settings of a frontend of an installed package."""

    def build(self, rate: int) -> Frontend:
        """The frontend for waveforms of `rate` samples per second."""


@lru_cache(maxsize=8)
def build_frontend(conf: DatasetConf) -> Frontend:
    """The frontend that a config describes. Raises ConfigError if its frames are too short."""
    rate = conf.resample_conf.resample_rate
    if conf.frontend != "fbank":
        assert isinstance(conf.frontend_conf, ExtensionFrontendConf)  # `settings_class` has checked it
        return conf.frontend_conf.build(rate)
    fbank = conf.fbank_conf
    return Fbank(
        rate,
        num_mel_bins=fbank.num_mel_bins,
        frame_length_ms=fbank.frame_length,
        frame_shift_ms=fbank.frame_shift,
        dither=fbank.dither,
        profile=fbank.profile,
    )
