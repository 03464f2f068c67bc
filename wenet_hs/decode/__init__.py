# SPDX-License-Identifier: Apache-2.0
"""Decoding: CTC and attention searches, language models, alignment, restartable recognition of data
lists.
"""

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import decode
from wenet_hs.model.modes import MODES

__all__ = ["MODES", "DecodeOptions", "Hypothesis", "decode"]
