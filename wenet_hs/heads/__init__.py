# SPDX-License-Identifier: Apache-2.0
"""Output heads: distributions over the units from decoder states. `model/build.py` makes one from the configuration."""

from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead

__all__ = ["AdaptiveHead", "ClassHead", "HSoftmaxHead", "OutputHead", "SoftmaxHead"]
