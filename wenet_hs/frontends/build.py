# SPDX-License-Identifier: Apache-2.0
"""Builds the frontend of a model from its `dataset_conf`."""

from functools import lru_cache
from typing import Protocol, runtime_checkable

from wenet_hs.base.extensions import calling_extension, wrong_object
from wenet_hs.config.dataset import DatasetConf, FrontendConf
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.fbank import Fbank


@runtime_checkable
class ExtensionFrontendConf(Protocol):
    """The settings of a frontend of an installed package."""

    def build(self, rate: int) -> Frontend:
        """The frontend for waveforms of `rate` samples per second."""


def build_frontend(conf: DatasetConf) -> Frontend:
    """The frontend that a config describes. Equal configs get the same object.

    Raises ConfigError if its frames are too short, or if it is of another package and this package
    cannot build it or has settings without a hash.
    """
    if conf.frontend != "fbank":
        # The config is a key of a cache. If it has no hash, the error names the package.
        with calling_extension(
            "frontend", conf.frontend, "its settings are no key of a dictionary"
        ):
            hash(conf.frontend_conf)
    return _build_frontend(conf)


@lru_cache(maxsize=8)
def _build_frontend(conf: DatasetConf) -> Frontend:
    """As `build_frontend`, which has checked that `conf` can be a key of the cache."""
    rate = conf.resample_conf.resample_rate
    if conf.frontend != "fbank":
        return _build_extension_frontend(conf.frontend, conf.frontend_conf, rate)
    fbank = conf.fbank_conf
    return Fbank(
        rate,
        num_mel_bins=fbank.num_mel_bins,
        frame_length_ms=fbank.frame_length,
        frame_shift_ms=fbank.frame_shift,
        dither=fbank.dither,
        profile=fbank.profile,
    )


def _build_extension_frontend(name: str, conf: FrontendConf, rate: int) -> Frontend:
    """A frontend of another package, by its settings, for `rate` samples per second.

    Raises ConfigError if `build` fails, or if it does not return a Frontend.
    """
    assert isinstance(conf, ExtensionFrontendConf)  # `settings_class` has checked it
    with calling_extension("frontend", name, "`build` failed"):
        frontend = conf.build(rate)
    if not isinstance(frontend, Frontend):
        returned = type(frontend).__name__
        found = f"`build` returned {returned}, not a wenet_hs.frontends.base.Frontend"
        raise wrong_object("frontend", name, found)
    return frontend
