# SPDX-License-Identifier: Apache-2.0
"""Frontends: what a waveform becomes before the encoder.

The only package with arithmetic of frames and Mel bins.
"""

from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.waveform import Waveform
from wenet_hs.frontends.whisper_mel import WhisperMel

__all__ = ["Fbank", "Frontend", "Waveform", "WhisperMel", "build_frontend"]
