# SPDX-License-Identifier: Apache-2.0
"""An encoder over a stream: chunk by chunk, with caches of fixed size.

Dimension key: T input frames or frames of the memory, F features, D width, S cached frames.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.nn.layers import Chunk


class EncoderStream:
    """The memory of features that arrive in parts of any size.

    It is equal to that of the whole with the same chunks. With `chunk.left` of -1 the caches grow
    with the utterance, and so does the time of a chunk.
    """

    def __init__(self, encoder: EncoderStack, chunk: Chunk) -> None:
        """`encoder`: in evaluation mode, with a `chunk_rule`."""
        self._encoder = encoder
        self.chunk = chunk
        self._pending_TF = encoder.after_norm.weight.new_empty(0, 0)
        self.restart()

    def restart(self, num_kept: int = 0) -> None:
        """Begins a new utterance with the last `num_kept` frames that were computed.

        Positions count from the first of these frames, and attention sees none before it. The
        convolutions go on without a gap; if no frame is kept, they begin anew too. Features that no
        frame was computed from yet belong to the new utterance.
        """
        self.num_frames = num_kept
        if num_kept:
            self._limit_attention(num_kept)
        else:
            self.caches = self._encoder.new_caches()

    def advance(self, features: Tensor) -> Iterator[Tensor]:
        """features (T, F) → the memory of each chunk that is complete now, (T', D).

        Between two of them `restart` may be called.
        """
        self._pending_TF = torch.cat([self._pending_TF.reshape(-1, features.size(1)), features])
        size, stride = self.chunk.size, self._encoder.stride
        needed = (size - 1) * stride + self._encoder.min_frames
        while len(self._pending_TF) >= needed:
            chunk_TF = self._pending_TF[:needed]
            self._pending_TF = self._pending_TF[size * stride :]
            yield self._run(chunk_TF)
        self._pending_TF = self._pending_TF.clone()  # not a view of all that was given

    def finish(self) -> Tensor:
        """The memory of the rest, (T', D), less than a chunk. Then a new stream may begin."""
        rest_TF = self._pending_TF
        self._pending_TF = rest_TF[:0]
        if not int(self._encoder.output_length(len(rest_TF))):
            return self._encoder.after_norm.weight.new_empty(0, self._encoder.output_size)
        return self._run(rest_TF)

    @torch.no_grad()
    def _run(self, features_TF: Tensor) -> Tensor:
        past = self.caches[0].attention.size(2)
        count = int(self._encoder.output_length(len(features_TF)))
        visible_11S = torch.ones(1, 1, past + count, dtype=torch.bool, device=features_TF.device)
        memory_1TD = self._encoder.forward_chunk(
            features_TF[None],
            self.caches,
            self.num_frames,
            visible_11S,
        )
        self.num_frames += count
        if self.chunk.left >= 0:
            self._limit_attention(self.chunk.left * self.chunk.size)
        return memory_1TD[0]

    def _limit_attention(self, num_frames: int) -> None:
        """Later frames see at most the last `num_frames` of those that were computed."""
        for cache in self.caches:
            first = max(0, cache.attention.size(2) - num_frames)
            cache.attention = cache.attention[:, :, first:].contiguous()


def encode_streamed(
    encoder: SpeechEncoder,
    features: Tensor,
    lengths: Tensor,
    chunk: Chunk,
) -> tuple[Tensor, Tensor]:
    """features (B, T, F), lengths (B,) → memory (B, T', D), lengths (B,).

    Each utterance is computed as a stream.
    """
    assert isinstance(encoder, EncoderStack)
    memories = []
    for features_TF, length in zip(features, lengths.tolist(), strict=True):
        stream = EncoderStream(encoder, chunk)
        memories.append(torch.cat([*stream.advance(features_TF[:length]), stream.finish()]))
    return pad_sequence(memories, batch_first=True), encoder.output_length(lengths)
