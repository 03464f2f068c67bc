# SPDX-License-Identifier: Apache-2.0
"""Output heads: probabilities of the units from the hidden states of a model.

`base.py` has the interface of all heads: it checks the arguments, computes in float32, and gives
the loss, the log-probabilities and the k best units. Each head (`softmax.py`, `hsoftmax.py`,
`class_softmax.py`, `adaptive.py`) implements them for its distribution; `ctc.py` and
`restricted.py` use any head for CTC, and for a part of the units. `kernels` contains the
computations that are faster than PyTorch's, and each of them exists in plain PyTorch too.

This room and `wenet_hs.tree` use only each other, numpy, numba, torch and the standard library.
`docs/heads.md` begins with their use in a model of one's own.
"""

from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead

__all__ = ["AdaptiveHead", "ClassHead", "HSoftmaxHead", "OutputHead", "SoftmaxHead"]
