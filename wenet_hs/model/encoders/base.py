# SPDX-License-Identifier: Apache-2.0
"""The interface of an encoder of speech, and the rule for its chunks in training and in streams."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.frontends.base import Frontend
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.subsampling import FrameLength

_LARGEST_DRAWN = 25
"""The largest chunk that is drawn in training, in encoder frames."""
_STREAM = Chunk(size=16, left=4)
"""The chunks of a stream by default. With conv2d and features every 10 ms, a chunk is 640 ms, and
its frames see 2,560 ms before it.
"""


@dataclass(frozen=True)
class ChunkRule:
    """The chunks with which an encoder was trained."""

    size: int | None
    """Encoder frames of all chunks; None: drawn for each batch, so that the encoder also recognises
    whole utterances.
    """
    draws_left: bool = False
    """Whether the number of chunks that a frame sees before its own is drawn too. If False, a frame
    sees all chunks before its own.
    """

    def chunk_of_stream(self, size: int | None, left: int | None) -> Chunk:
        """The chunks of a stream.

        Args:
            size: encoder frames per chunk. None: the size of the training, or 16 if it was drawn.
            left: how many chunks before its own a frame sees; -1: all. None: 4.
        """
        chosen_size = size or self.size or _STREAM.size
        chosen_left = _STREAM.left if left is None else left
        return Chunk(chosen_size, chosen_left)

    def draw(self, length: int) -> Chunk | None:
        """The chunks of a training batch of `length` encoder frames; None: one chunk has all frames.

        If the rule has a size, nothing is drawn and a frame sees all chunks before its own.
        Otherwise the chunks have WeNet's distribution: about half of the batches are one chunk, and
        the others have chunks of 1 to 25 frames. With `draws_left` the number of chunks that a
        frame sees before its own is drawn too; otherwise it sees all of them.
        """
        if self.size is not None:
            return Chunk(self.size)
        # torch.randint excludes its upper limit, which must be above the lower one.
        drawn = int(torch.randint(1, max(2, length), ()))
        is_one_chunk = drawn > length // 2
        if is_one_chunk:
            return None
        size = drawn % _LARGEST_DRAWN + 1  # the remainder is from 0 to 24
        if not self.draws_left:
            return Chunk(size)
        # As in WeNet: from 0 to one less than the number of chunks before the last one.
        num_before_last = (length - 1) // size
        left = int(torch.randint(0, max(1, num_before_last), ()))
        return Chunk(size, left)


class SpeechEncoder(nn.Module, ABC):
    """An encoder: it computes the memory from the input frames of a frontend.

    Padding after the end of an utterance never changes its frames.
    """

    output_size: int
    """Width D of the memory."""
    num_layers: int
    """Number of the layers whose outputs `forward` can return."""
    min_frames: int
    """Number of input frames from which subsampling computes one output frame.

    The layers after it may see more.
    """
    stride: int
    """Number of input frames from one output frame to the next."""
    own_frontend: Frontend | None = None
    """The frontend of the inputs, if the encoder can use only one; None: that of `dataset_conf`."""
    longest_s: float = math.inf
    """Longest audio in seconds that decoding and alignment encode as one whole; inf: no limit."""
    max_batch_s: float = math.inf
    """Maximum seconds of audio per batch of decoding and alignment, including padding, so that the
    batch fits into memory; inf: no limit.
    """
    chunk_rule: ChunkRule | None = None
    """The chunks of training; None: the encoder reads whole utterances only, so it cannot stream."""

    @abstractmethod
    def output_length(self, length: FrameLength) -> FrameLength:
        """The number of output frames of `length` input frames, an int or (B,); 0 for too few."""

    @abstractmethod
    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor,
        layers: Sequence[int] = (),
        chunk: Chunk | None = None,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Encodes a batch.

        Args:
            inputs: (B, T, F) float32.
            lengths: (B,) in input frames.
            layers: numbers from 1 to `num_layers`, of the layers whose outputs are returned too.
            chunk: the chunks, for an encoder with a `chunk_rule`. None: the rule chooses them in
                training, and also in evaluation if it has one size. Otherwise, and without a rule,
                each frame sees the whole utterance.
        Returns: the memory (B, T', D), its lengths (B,) in T', and the outputs (B, T', D) of
            `layers` by number. These are normalized as the memory is, so that the output of the
            last layer equals the memory.
            An utterance too short for one output frame has length 0; T' is at least 1, also for a
            batch of such utterances.
        Raises ValueError for a number in `layers` that is not a layer.
        """

    def _check_layers(self, layers: Sequence[int]) -> None:
        """Raises ValueError with the first number that is not from 1 to `num_layers`."""
        for layer in layers:
            if not 1 <= layer <= self.num_layers:
                raise ValueError(f"layers: {layer}: must be from 1 to {self.num_layers}")

    def _pad_to_min_frames(self, inputs: Tensor) -> Tensor:
        """Adds zeros after inputs (B, T) or (B, T, F) with fewer than `min_frames` frames."""
        num_missing = self.min_frames - inputs.size(1)
        if num_missing <= 0:
            return inputs
        # F.pad reads the last dimension first: no padding of F, then the padding of T.
        no_padding = (0, 0) * (inputs.dim() - 2)
        return F.pad(inputs, (*no_padding, 0, num_missing))
