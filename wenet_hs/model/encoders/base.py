# SPDX-License-Identifier: Apache-2.0
"""What the model, decoding and export need of an encoder of speech."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wenet_hs.frontends.base import Frontend
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.subsampling import FrameLength

_LARGEST_DRAWN = 25  # encoder frames
_STREAM = Chunk(16, 4)  # 640 ms with conv2d and features every 10 ms, that see 2,560 ms before them


@dataclass(frozen=True)
class ChunkRule:
    """The chunks with which an encoder was trained."""

    size: int | None
    """Encoder frames of all chunks; None: drawn for each batch, so that it also recognises whole
    utterances.
    """
    draws_left: bool = False
    """Whether the number of chunks that a frame sees before its own is drawn too; otherwise it is
    all of them.
    """

    def chunk_of_stream(self, size: int | None, left: int | None) -> Chunk:
        """The chunks of a stream.

        Where None is given, the size is that of the training, or 16 frames; left is 4.
        """
        return Chunk(size or self.size or _STREAM.size, _STREAM.left if left is None else left)

    def draw(self, length: int) -> Chunk | None:
        """The chunks of a training batch of `length` encoder frames, by WeNet's distribution; None:
        one chunk.
        """
        if self.size is not None:
            return Chunk(self.size)
        size = int(torch.randint(1, max(2, length), ()))
        if size > length // 2:
            return None
        size = size % _LARGEST_DRAWN + 1
        return Chunk(
            size, int(torch.randint(0, max(1, (length - 1) // size), ())) if self.draws_left else -1
        )


class SpeechEncoder(nn.Module, ABC):
    """Input frames of a frontend → memory.

    Padding after the end of an utterance never changes its frames.
    """

    output_size: int
    """Width D of the memory."""
    num_layers: int
    """Layers whose outputs can be asked for."""
    min_frames: int
    """Input frames from which subsampling computes one output frame.

    The layers after it may use more.
    """
    stride: int
    """Input frames from one output frame to the next."""
    own_frontend: Frontend | None = None
    """What computes the inputs, if this is fixed by the encoder; None: the frontend of
    `dataset_conf`.
    """
    longest_s: float = math.inf
    """Longest audio that decoding and alignment let it encode as one whole, seconds."""
    max_batch_s: float = math.inf
    """Maximum seconds of audio per batch of decoding and alignment, including padding: bounds the
    memory.
    """
    chunk_rule: ChunkRule | None = None
    """None: the encoder reads whole utterances only, so it cannot stream."""

    @abstractmethod
    def output_length(self, length: FrameLength) -> FrameLength:
        """How many output frames `length` input frames give, 0 where they are too few for one; (B,)
        → (B,).
        """

    @abstractmethod
    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor,
        layers: Sequence[int] = (),
        chunk: Chunk | None = None,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """inputs (B, T, F) float32, lengths (B,) in input frames → (memory (B, T', D), lengths (B,)
        in T', outputs).

        An utterance too short for one output frame has length 0; T' is at least 1, for a batch of
        such utterances.

        Args:
            layers: numbers of layers from 1 to `num_layers`, whose outputs (B, T', D) are returned
                by number, after the final normalization, so that the output of the last layer
                equals the memory.
            chunk: what the frames see, for an encoder with a `chunk_rule`. None: by the rule in
                training and where it has one size, otherwise everything.
        """
