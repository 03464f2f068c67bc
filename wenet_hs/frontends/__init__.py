# SPDX-License-Identifier: Apache-2.0
"""Frontends: the input of an encoder, computed from a waveform.

A config names its frontend, which is built once (`build`). The frontend says how many frames a
waveform has and computes them (`base`): Kaldi's features (`fbank`, `stream`), those of Whisper
(`whisper_mel`), or the waveform itself (`waveform`). No other package calculates frames and Mel
bins.
"""

from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.waveform import Waveform
from wenet_hs.frontends.whisper_mel import WhisperMel

__all__ = ["Fbank", "Frontend", "Waveform", "WhisperMel", "build_frontend"]
