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
    """Computes the memory of features that arrive in parts of any size.

    It equals the memory that the encoder computes from all features at once with the same chunks.
    With a `chunk.left` of -1 a frame sees all frames before it. Then the caches grow with the
    utterance, and later chunks take longer.
    """

    def __init__(self, encoder: EncoderStack, chunk: Chunk) -> None:
        """Begins the first utterance.

        `encoder`: in evaluation mode, with a `chunk_rule`. `chunk`: the chunks of the stream.
        """
        self._encoder = encoder
        self.chunk = chunk
        # Features that are not computed yet. `advance` gives them their width F.
        self._pending_TF = encoder.after_norm.weight.new_empty(0, 0)
        self.restart()

    def restart(self, num_kept: int = 0) -> None:
        """Begins a new utterance with the last `num_kept` frames of memory that were computed.

        Positions count from the first of these frames, and attention sees no frame before it. The
        convolutions continue without a gap; if no frame is kept, they begin again with zeros.
        Features that are not in any frame of memory yet belong to the new utterance.
        """
        self.num_frames = num_kept
        if num_kept:
            self._limit_attention(num_kept)
        else:
            self.caches = self._encoder.new_caches()

    def advance(self, features: Tensor) -> Iterator[Tensor]:
        """Adds features (T, F); yields the memory (T', D) of each chunk that is complete now.

        Features of an incomplete chunk are kept for the next call. `restart` may be called between
        two chunks.
        """
        pending_TF = self._pending_TF.reshape(-1, features.size(1))  # at first its shape is (0, 0)
        self._pending_TF = torch.cat([pending_TF, features])
        chunk_stride = self.chunk.size * self._encoder.stride
        # The windows of neighbouring chunks overlap, because a frame needs more than `stride`.
        num_needed = (self.chunk.size - 1) * self._encoder.stride + self._encoder.min_frames
        while len(self._pending_TF) >= num_needed:
            chunk_TF = self._pending_TF[:num_needed]
            self._pending_TF = self._pending_TF[chunk_stride:]
            yield self._compute(chunk_TF)
        # Without the copy, the slice would keep all features of this call allocated.
        self._pending_TF = self._pending_TF.clone()

    def finish(self) -> Tensor:
        """The memory of the features that are left, (T', D); T' is less than a chunk, and may be 0.

        Then no features are left, but the caches are kept until `restart`.
        """
        rest_TF = self._pending_TF
        self._pending_TF = rest_TF[:0]
        if int(self._encoder.output_length(len(rest_TF))) == 0:
            return self._encoder.after_norm.weight.new_empty(0, self._encoder.output_size)
        return self._compute(rest_TF)

    @torch.no_grad()
    def _compute(self, features_TF: Tensor) -> Tensor:
        """The memory (T', D) of the next features; they are added to the caches and `num_frames`.

        The frames see all frames in the caches, from which `_limit_attention` then removes those
        that the next chunk must not see.
        """
        num_cached = self.caches[0].attention.size(2)
        num_new = int(self._encoder.output_length(len(features_TF)))
        visible_11S = torch.ones(
            1, 1, num_cached + num_new, dtype=torch.bool, device=features_TF.device
        )
        memory_1TD = self._encoder.forward_chunk(
            features_TF[None], self.caches, self.num_frames, visible_11S
        )
        self.num_frames += num_new
        sees_all_before = self.chunk.left < 0
        if not sees_all_before:
            self._limit_attention(self.chunk.left * self.chunk.size)
        return memory_1TD[0]

    def _limit_attention(self, num_frames: int) -> None:
        """Removes all but the last `num_frames` frames from the caches of attention.

        Later frames do not see the others any more.
        """
        for cache in self.caches:
            first_kept = max(0, cache.attention.size(2) - num_frames)
            cache.attention = cache.attention[:, :, first_kept:].contiguous()


def encode_streamed(
    encoder: SpeechEncoder,
    features: Tensor,
    lengths: Tensor,
    chunk: Chunk,
) -> tuple[Tensor, Tensor]:
    """Encodes each utterance of a batch as a stream.

    Args:
        encoder: an EncoderStack; no other encoder has chunks.
        features: (B, T, F).
        lengths: (B,) in T.
        chunk: the chunks of the streams.
    Returns: the memory (B, T', D), padded with zeros, and its lengths (B,) in T'.
    """
    assert isinstance(encoder, EncoderStack)
    memories = []
    for features_TF, length in zip(features, lengths.tolist(), strict=True):
        stream = EncoderStream(encoder, chunk)
        full_chunks = list(stream.advance(features_TF[:length]))
        rest = stream.finish()
        memories.append(torch.cat([*full_chunks, rest]))
    return pad_sequence(memories, batch_first=True), encoder.output_length(lengths)
