# SPDX-License-Identifier: Apache-2.0
"""Recognition of a stream: partial texts while it is spoken, and a segment with its final text at each endpoint.

Dimension key: N samples, T frames, F features, D width, K best units of a frame.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wenet_hs.annotation.tiers import TimedText
from wenet_hs.data.samples import Bytes, Samples, SampleStream
from wenet_hs.decode.ctc_search import PrefixSearch
from wenet_hs.decode.hypothesis import DIVERGED, DecodeOptions, Hypothesis
from wenet_hs.decode.modes import (
    StageTimes,
    check_finite,
    check_options,
    decode_memory,
    no_chunks_error,
)
from wenet_hs.decode.recognition import make_segment
from wenet_hs.devices import one_thread
from wenet_hs.encoders.stack import EncoderStack
from wenet_hs.encoders.stream import EncoderStream
from wenet_hs.errors import CheckpointError, ConfigError
from wenet_hs.experiment import Experiment
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.stream import FbankStream
from wenet_hs.lm.language_model import AnyLanguageModel

_LARGEST_PIECE = 160_000  # samples that are computed at once, which bounds the memory


@dataclass(frozen=True, kw_only=True)
class EndpointRules:
    """When a segment of a stream ends: with the chunk in which a rule is met. Silence is where blank is the best unit
    of CTC."""

    silence_s: float = 1.0
    """This much silence after speech."""
    max_segment_s: float = 20.0
    """A segment of this length ends, also within a word; math.inf: never."""
    no_speech_s: float = 5.0
    """A segment without speech begins again after this time, without a text."""

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if not seconds > 0:
                raise ValueError(f"{name} {seconds:g}: must be above 0 s")


@dataclass(frozen=True, kw_only=True)
class StreamedSegment:
    """A segment of a stream with its final text. Times are seconds from the beginning of the stream: of its units."""

    start: float
    end: float
    text: str
    score: float
    """Of the mode that decoded the segment, natural logarithm."""
    units: tuple[TimedText, ...] | None
    """Times and CTC confidence; None if CTC cannot align the units."""


class RecognitionStream:
    """A stream of samples. The encoder and the search of CTC's prefixes go on from piece to piece.

    Partial texts are those of CTC. At the end of a segment the mode decodes it as a whole from the memory of the
    encoder, with the decoder and the language model. Then the encoder begins again. All work has one thread.
    """

    def __init__(
        self,
        experiment: Experiment,
        mode: str,
        options: DecodeOptions,
        lm: AnyLanguageModel | None,
        endpoints: EndpointRules,
    ) -> None:
        """Raises ConfigError if the model was not trained with chunks, or without CTC."""
        model = experiment.model
        if model.encoder.chunk_rule is None:
            raise no_chunks_error(model.encoder, "stream", "use another model")
        if options.decoding_chunk_size == -1:
            raise ConfigError("decoding_chunk_size -1", "a stream has chunks", "give their size, or leave it out")
        given = options.decoding_chunk_size, options.num_decoding_left_chunks
        size, left = model.encoder.chunk_rule.chunk_of_stream(*given)
        options = replace(options, decoding_chunk_size=size, num_decoding_left_chunks=left)
        check_options(model, options, [mode], lm)
        if not model.loss_weights.ctc:
            raise ConfigError("stream", "this model was trained without CTC, which gives partial texts", "use another")
        assert isinstance(model.encoder, EncoderStack) and isinstance(experiment.frontend, Fbank) and options.chunk
        self._experiment, self._mode, self._options, self._lm = experiment, mode, options, lm
        self._samples, self._features = SampleStream(experiment.frontend.rate), FbankStream(experiment.frontend)
        self._encoder = EncoderStream(model.encoder, options.chunk)
        self._frame_s, self._start, self._is_finished = model.encoder.stride * experiment.frontend.frame_s, 0, False
        self._most_silent, self._most, self._most_empty = (
            seconds / self._frame_s for seconds in (endpoints.silence_s, endpoints.max_segment_s, endpoints.no_speech_s)
        )
        self._begin()

    def _begin(self) -> None:
        self._start += self._encoder.num_frames
        self._encoder.restart()
        self._search = PrefixSearch(blank=self._experiment.model.ctc.blank, beam_size=self._options.beam_size)
        self._memory: list[Tensor] = []
        self._best: list[int] = []

    @property
    def partial(self) -> str:
        """The text of the segment that has not ended yet, so far."""
        return self._experiment.tokenizer.decode(self._search.hypotheses()[0].ids)

    @one_thread()
    def feed(self, piece: Samples | Bytes, sample_rate: float) -> list[StreamedSegment]:
        """The segments that end in this piece of the stream, which may have any length.

        Args:
            piece: (samples,) or (channels, samples), floats in [-1, 1] or integers of 16 or 32 bits; or bytes: 16 bits,
                little-endian, mono.
            sample_rate: the same for all pieces.
        Raises: ValueError for other samples, for another rate, and after the end.
        """
        if self._is_finished:
            raise ValueError("the stream has ended: begin another one")
        samples_N, found = self._samples.advance(piece, sample_rate), list[StreamedSegment]()
        for part_N in torch.split(samples_N, _LARGEST_PIECE):
            found += self._advance(self._features.advance(part_N))
        return found

    @one_thread()
    def finish(self) -> list[StreamedSegment]:
        """The last segments. Then the stream has ended."""
        if self._is_finished:
            raise ValueError("the stream has ended: begin another one")
        features_TF = torch.cat([self._features.advance(self._samples.finish()), self._features.finish()])
        found, self._is_finished = [*self._advance(features_TF)], True
        self._extend(self._encoder.finish())
        return found + self._end()

    def _advance(self, features_TF: Tensor) -> Iterator[StreamedSegment]:
        device = next(self._experiment.model.parameters()).device
        for memory_TD in self._encoder.advance(features_TF.to(device)):
            self._extend(memory_TD)
            blank = self._experiment.model.ctc.blank
            silent = next((t for t, unit in enumerate(reversed(self._best)) if unit != blank), None)
            if silent is None and len(self._best) >= self._most_empty:
                self._begin()
            elif (silent is not None and silent >= self._most_silent) or len(self._best) >= self._most:
                yield from self._end()

    @torch.no_grad()
    def _extend(self, memory_TD: Tensor) -> None:
        """Adds a chunk to the segment."""
        if not len(memory_TD):
            return
        check_finite(memory_TD)
        model = self._experiment.model
        values_1TK, ids_1TK = model.ctc.head.topk(memory_TD[None], min(self._options.beam_size, model.num_units))
        if bool(values_1TK.isnan().any()):
            raise CheckpointError("CTC output", "NaN", DIVERGED)
        ids_TK = ids_1TK[0].cpu().contiguous().numpy()
        self._search.advance(values_1TK[0].double().cpu().contiguous().numpy(), ids_TK)
        self._best += ids_TK[:, 0].tolist()
        self._memory.append(memory_TD)

    def _end(self) -> list[StreamedSegment]:
        """Ends the segment: its final text, if it has one."""
        begin_s, num_frames = self._start * self._frame_s, len(self._best)
        # The decoder may find a text where blank is the best unit everywhere: in the first segment, as in a whole
        # utterance. After it, it would be asked about each silence.
        is_speech = any(unit != self._experiment.model.ctc.blank for unit in self._best)
        nbest = self._decode() if self._memory and (is_speech or not self._start) else []
        self._begin()
        segment = make_segment(nbest or [Hypothesis((), 0.0)], begin_s, self._experiment)
        if not segment.nbest[0].text.strip():
            return []
        units, end_s = segment.units, begin_s + num_frames * self._frame_s
        return [
            StreamedSegment(
                start=units[0].start if units else round(begin_s, 4),
                end=units[-1].end if units else round(end_s, 4),
                text=segment.nbest[0].text,
                score=segment.nbest[0].score,
                units=None if segment.units is None else tuple(segment.units),
            )
        ]

    def _decode(self) -> list[Hypothesis]:
        memory_1TD = torch.cat(self._memory)[None]
        lengths_1 = torch.tensor([memory_1TD.size(1)], device=memory_1TD.device)
        prefixes = None if self._lm is not None or self._options.length_bonus else [self._search.hypotheses()]
        found = decode_memory(
            self._experiment.model,
            (memory_1TD, lengths_1),
            [self._mode],
            self._options,
            lm=self._lm,
            align=True,
            times=StageTimes(),
            prefixes=prefixes,
        )
        return found[self._mode][0]
