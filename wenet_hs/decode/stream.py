# SPDX-License-Identifier: Apache-2.0
"""Recognition of a stream: partial texts while it is spoken, a final text at each endpoint.

Dimension key: N samples, T frames, F features, D width, K best units of a frame.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wenet_hs.annotation.tiers import TimedText
from wenet_hs.compute.devices import one_thread
from wenet_hs.data.samples import AnySamples, Bytes, SampleStream
from wenet_hs.decode.ctc_search import PrefixSearch
from wenet_hs.decode.endpoints import Endpoint, EndpointDetector, EndpointRules
from wenet_hs.decode.hypothesis import DIVERGED, DecodeOptions, Hypothesis
from wenet_hs.decode.modes import (
    StageTimes,
    check_finite,
    check_options,
    decode_memory,
    no_chunks_error,
)
from wenet_hs.decode.recognition import make_segment
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.stream import FbankStream
from wenet_hs.lm.language_model import AnyLanguageModel
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.encoders.stream import EncoderStream
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.errors import CheckpointError, ConfigError

_MAX_SAMPLES = 160_000
"""Samples that are computed at once, which bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class StreamedSegment:
    """A segment of a stream with its final text.

    It lasts from the begin of its first unit to the end of its last one. Times are seconds from the
    beginning of the stream.
    """

    start: float
    end: float
    text: str
    score: float
    """Natural logarithm, by the formula of the mode that decoded the segment."""
    units: tuple[TimedText, ...] | None
    """Times and CTC confidence; None if CTC cannot align the units."""


@dataclass(frozen=True)
class _EncodedFrames:
    """Consecutive frames of a stream, and the best units of CTC in each of them."""

    memory: Tensor
    """(T, D), the output of the encoder."""
    log_probs: Tensor
    """(T, K) on the CPU, of the best units, best first."""
    ids: Tensor
    """(T, K) on the CPU, of the best units."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def best_ids(self) -> list[int]:
        """The best unit of each frame."""
        return self.ids[:, 0].tolist()

    def select(self, frames: slice) -> "_EncodedFrames":
        """A part of the frames."""
        return _EncodedFrames(self.memory[frames], self.log_probs[frames], self.ids[frames])

    @staticmethod
    def join(parts: Sequence["_EncodedFrames"]) -> "_EncodedFrames":
        """The frames of all parts, of which there is at least one, in their order."""
        return _EncodedFrames(
            memory=torch.cat([part.memory for part in parts]),
            log_probs=torch.cat([part.log_probs for part in parts]),
            ids=torch.cat([part.ids for part in parts]),
        )


class RecognitionStream:
    """Recognition of one stream of samples, which arrive in pieces of any length.

    Each piece continues the encoder and the search of CTC's prefixes.

    Partial texts are those of CTC. At the end of a segment the mode decodes it as a whole from the
    memory of the encoder, with the decoder and the language model. The next segment begins within
    the silence (`EndpointDetector`), and the encoder goes on: no frame is computed again, and each
    frame belongs to one segment. All work has one thread.
    """

    def __init__(
        self,
        experiment: Experiment,
        mode: str,
        options: DecodeOptions,
        lm: AnyLanguageModel | None,
        endpoints: EndpointRules,
    ) -> None:
        """Raises ConfigError for a model or options that a stream cannot have.

        The model must be trained with chunks and with CTC, and have the frontend fbank. The options
        must give a chunk size or none, and be possible for the mode (`check_options`).
        """
        model = experiment.model
        if model.encoder.chunk_rule is None:
            raise no_chunks_error(model.encoder, "stream", "use another model")
        if options.decoding_chunk_size == -1:  # whole utterances
            to_do = "give their size, or leave it out"
            raise ConfigError("decoding_chunk_size -1", "a stream has chunks", to_do)
        chunk = model.encoder.chunk_rule.chunk_of_stream(
            options.decoding_chunk_size,
            options.num_decoding_left_chunks,
        )
        options = replace(
            options,
            decoding_chunk_size=chunk.size,
            num_decoding_left_chunks=chunk.left,
        )
        check_options(model, options, [mode], lm)
        if "ctc" not in model.trained_branches:
            found = "this model was trained without CTC, which gives partial texts"
            raise ConfigError("stream", found, "use another")
        frontend = experiment.frontend
        if not isinstance(frontend, Fbank):
            found = f"the frontend {experiment.config.dataset_conf.frontend} reads whole utterances"
            raise ConfigError("stream", found, "use a model with the frontend fbank")
        assert isinstance(model.encoder, EncoderStack)  # as every encoder with a chunk rule
        self._experiment = experiment
        self._mode = mode
        self._options = options
        self._lm = lm
        self._samples = SampleStream(frontend.rate)
        self._features = FbankStream(frontend)
        self._encoder = EncoderStream(model.encoder, chunk)
        self._frame_s = model.encoder.stride * frontend.frame_s
        """Seconds per frame of the encoder."""
        self._detector = EndpointDetector(endpoints, frame_s=self._frame_s, blank=model.ctc.blank)
        self._is_finished = False
        self._begin_segment(0)

    def _begin_segment(self, start: int) -> None:
        """Begins an empty segment. `start`: frames of the stream before it."""
        self._start = start
        self._parts: list[_EncodedFrames] = []
        self._best_ids: list[int] = []
        self._search = self._new_search()

    def _new_search(self) -> PrefixSearch:
        """A search of CTC's prefixes that has no frame yet."""
        blank = self._experiment.model.ctc.blank
        return PrefixSearch(blank=blank, beam_size=self._options.beam_size)

    @property
    def partial(self) -> str:
        """The text of the segment that has not ended yet, so far."""
        return self._experiment.tokenizer.decode(self._search.hypotheses()[0].ids)

    @one_thread()
    def feed(self, piece: AnySamples | Bytes, sample_rate: float) -> list[StreamedSegment]:
        """Recognise the next piece of the stream. Returns the segments that end in it.

        Args:
            piece: of any length. (samples,) or (channels, samples), floats in [-1, 1] or integers
                of 16 or 32 bits; or bytes: 16 bits, little-endian, mono.
            sample_rate: the same for all pieces.
        Raises: ValueError for other samples, for bytes that begin a file of audio, for another
            rate, and after the end.
        """
        if self._is_finished:
            raise ValueError("the stream has ended: begin another one")
        samples_N = self._samples.advance(piece, sample_rate)
        segments = list[StreamedSegment]()
        for part_N in torch.split(samples_N, _MAX_SAMPLES):
            segments += self._advance(self._features.advance(part_N))
        return segments

    @one_thread()
    def finish(self) -> list[StreamedSegment]:
        """End the stream: recognise the rest of its samples. Returns the last segments.

        Raises ValueError after the end.
        """
        if self._is_finished:
            raise ValueError("the stream has ended: begin another one")
        before_end_TF = self._features.advance(self._samples.finish())
        features_TF = torch.cat([before_end_TF, self._features.finish()])
        segments = list(self._advance(features_TF))  # now, before the encoder ends
        self._is_finished = True
        self._extend(self._score(self._encoder.finish()))
        end_of_stream = Endpoint(num_frames=len(self._best_ids))
        return segments + self._end_segment(end_of_stream)

    def _advance(self, features_TF: Tensor) -> Iterator[StreamedSegment]:
        """The segments that end in these features (T, F).

        The encoder computes a chunk whenever it has all frames for it. At most one segment ends per
        chunk.
        """
        device = next(self._experiment.model.parameters()).device
        for memory_TD in self._encoder.advance(features_TF.to(device)):
            self._extend(self._score(memory_TD))
            endpoint = self._detector.find(self._best_ids)
            if endpoint is not None:
                yield from self._end_segment(endpoint)

    @torch.no_grad()
    def _score(self, memory_TD: Tensor) -> _EncodedFrames:
        """The frames of a chunk (T, D) with their best units.

        Raises: CheckpointError if the output of the encoder is not finite, or that of CTC is NaN.
        """
        check_finite(memory_TD)
        model = self._experiment.model
        num_best = min(self._options.beam_size, model.num_units)
        log_probs_1TK, ids_1TK = model.ctc.head.topk(memory_TD[None], num_best)
        if bool(log_probs_1TK.isnan().any()):
            raise CheckpointError("CTC output", "NaN", DIVERGED)
        return _EncodedFrames(memory_TD, log_probs_1TK[0].cpu(), ids_1TK[0].cpu())

    def _extend(self, frames: _EncodedFrames) -> None:
        """Adds frames to the segment."""
        self._parts.append(frames)
        self._best_ids += frames.best_ids
        _advance_search(self._search, frames)

    def _end_segment(self, endpoint: Endpoint) -> list[StreamedSegment]:
        """Ends the segment, and begins the next one with the frames after the endpoint.

        Returns: the segment with its final text, if it has one.
        """
        frames = _EncodedFrames.join(self._parts)
        ended = frames.select(slice(0, endpoint.num_frames))
        kept = frames.select(slice(endpoint.num_frames, None))
        segments = [] if endpoint.is_dropped else self._recognize(ended)
        self._begin_segment(self._start + len(ended))
        self._encoder.restart(len(kept))  # with its last frames, which are those that are kept
        self._extend(kept)
        return segments

    def _recognize(self, frames: _EncodedFrames) -> list[StreamedSegment]:
        """The segment of these frames with its final text; nothing if it has none."""
        begin_s = self._start * self._frame_s
        # The decoder may find a text although blank is the best unit of each frame. So it is used for
        # the first segment in any case, as for a whole utterance. Later segments without speech are
        # only silences.
        blank = self._experiment.model.ctc.blank
        has_speech = any(unit != blank for unit in frames.best_ids)
        is_first = self._start == 0
        if len(frames) > 0 and (has_speech or is_first):
            nbest = self._decode(frames)
        else:
            nbest = [Hypothesis((), 0.0)]
        segment = make_segment(nbest, begin_s, self._experiment)
        best = segment.nbest[0]
        if not best.text.strip():
            return []
        units = segment.units
        end_s = begin_s + len(frames) * self._frame_s
        return [
            StreamedSegment(
                start=units[0].start if units else round(begin_s, 4),
                end=units[-1].end if units else round(end_s, 4),
                text=best.text,
                score=best.score,
                units=None if units is None else tuple(units),
            )
        ]

    def _decode(self, frames: _EncodedFrames) -> list[Hypothesis]:
        """The hypotheses of the mode for these frames, best first.

        The prefix search is made here, from the best units that are known, unless the mode's own
        one needs a language model or a length bonus.
        """
        memory_1TD = frames.memory[None]
        lengths_1 = torch.tensor([len(frames)], device=memory_1TD.device)
        prefixes = None
        if self._lm is None and not self._options.length_bonus:
            search = self._new_search()
            _advance_search(search, frames)
            prefixes = [search.hypotheses()]
        nbests = decode_memory(
            self._experiment.model,
            (memory_1TD, lengths_1),
            [self._mode],
            self._options,
            lm=self._lm,
            align=True,
            times=StageTimes(),
            prefixes=prefixes,
        )
        return nbests[self._mode][0]


def _advance_search(search: PrefixSearch, frames: _EncodedFrames) -> None:
    """Extend the beam of a search by frames."""
    log_probs_TK = frames.log_probs.double().contiguous().numpy()
    ids_TK = frames.ids.contiguous().numpy()
    search.advance(log_probs_TK, ids_TK)
