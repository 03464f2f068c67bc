# SPDX-License-Identifier: Apache-2.0
"""From features to hypotheses: the four searches of WeNet and the joint one of attention and CTC."""

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import MODES, decode

__all__ = ["MODES", "DecodeOptions", "Hypothesis", "decode"]
