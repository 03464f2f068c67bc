# SPDX-License-Identifier: Apache-2.0
"""Speech to text from Python: `wenet_hs.load_model("exp/hsoftmax").transcribe("clip.mp3").text`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from numbers import Real
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.annotation.tiers import (
    TimedText,
    TranscribedRecording,
    TranscribedSegment,
    place_segments,
)
from wenet_hs.compute.devices import find_device
from wenet_hs.data.audio import is_silent, read_audio, read_duration, resample
from wenet_hs.data.samples import AnySamples, mono_samples
from wenet_hs.decode.endpoints import EndpointRules
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.job import DecodingJob, decode_pieces
from wenet_hs.decode.modes import check_options, warn_about_options
from wenet_hs.decode.recognition import Segment, join_segments, mean_confidence, timed_parts
from wenet_hs.decode.segments import (
    CUT_AT_PAUSES,
    DEFAULT_MAX_SEGMENT_S,
    Piece,
    check_max_segment,
    cut_span,
    cut_waveform,
    find_speech,
    limit_segment,
    out_of_memory_as_error,
    plan_batches,
)
from wenet_hs.decode.stream import RecognitionStream
from wenet_hs.lm.language_model import AnyLanguageModel
from wenet_hs.lm.loader import load_language_model
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.runs.hypotheses import Alternative
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

AudioSource = str | Path | bytes | tuple[AnySamples, float]
"""A file, the bytes of a file, or (waveform, sample rate)."""

_BATCH_SIZE = 8  # segments of long audio
_NO_TEXT = Alternative(text="", score=0.0, units=())
"""The only hypothesis for audio without speech."""


def _ignore_progress(num_new: int, total: int) -> None:
    """The default of `on_progress`: does nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """The text of an utterance."""

    text: str
    """Of the best hypothesis, empty if the audio has no speech or is too short for the model."""
    score: float
    """Of the best hypothesis, natural logarithm."""
    nbest: tuple[Alternative, ...]
    """All hypotheses, best first; only the best one if the audio was cut."""
    duration: float
    """Of the audio, in seconds."""
    units: tuple[TimedText, ...] | None = None
    """Times and CTC confidence of the units of the best hypothesis.

    None if CTC cannot align them: more units than frames, audio too short for the model, a model
    trained without CTC.
    """

    def __repr__(self) -> str:
        """Two lines: the text; duration, score and the numbers of hypotheses and timed units."""
        num_units = "without times" if self.units is None else str(len(self.units))
        facts = [
            f"{self.duration:.2f} s",
            f"score {self.score:.2f}",
            f"n-best {len(self.nbest)}",
            f"units {num_units}",
        ]
        return f"{self.text}\n{', '.join(facts)}"


class Recognizer:
    """A loaded model that converts audio to text, one utterance at a time."""

    def __init__(
        self,
        experiment: Experiment,
        options: DecodeOptions | None = None,
        lm: AnyLanguageModel | None = None,
    ) -> None:
        """
        Args:
            options: of the searches.
            lm: a language model, with the weight `options.lm_weight`.
        Raises: ConfigError if the model or the language model does not support the options.
        """
        self._experiment = experiment
        self._lm = lm
        self.options = options or DecodeOptions()
        check_options(experiment.model, self.options, lm=lm)
        self._modes_used: set[str] = set()

    def stream(
        self, *, mode: str | None = None, endpoints: EndpointRules | None = None
    ) -> RecognitionStream:
        """A stream that recognises audio while it arrives, with a model trained with chunks.

        Its chunks are those of `options`. By default they have 16 frames, and a frame sees 4 chunks
        before its own.

        Args:
            mode: as for `transcribe`; it decodes each segment at its end.
            endpoints: the rules for the end of a segment; None: the usual ones.
        Raises: ConfigError if the model or the mode cannot do this.
        """
        mode = mode or self._experiment.model.default_mode()
        return RecognitionStream(
            self._experiment, mode, self.options, self._lm, endpoints or EndpointRules()
        )

    @property
    def has_times(self) -> bool:
        """Whether the model was trained with CTC, which gives times and confidence."""
        return "ctc" in self._experiment.model.trained_branches

    @property
    def is_overfitted(self) -> bool:
        """Whether the training has over-fitted, by its records: confidences are then unreliable."""
        return self._experiment.is_overfitted

    def transcribe(
        self,
        source: AudioSource,
        *,
        mode: str | None = None,
        max_segment_s: float = DEFAULT_MAX_SEGMENT_S,
    ) -> Transcript:
        """The text of an utterance.

        Args:
            source: a path, the bytes of an audio file, or (waveform, sample_rate). The waveform is
                a tensor or an array, (samples,) or (channels, samples), floats in [-1, 1] or
                integers of 16 or 32 bits. Channels are averaged and any rate is resampled.
            mode: a decoding mode: a name from `wenet_hs.decode.MODES`; None: the model's
                `default_mode`.
            max_segment_s: longer audio is cut at pauses, and audio longer than the encoder's
                `longest_s`; 0: never.
        Raises: DataError if a file cannot be read; ConfigError if an option does not fit the mode
        or the model; ValueError for a wrong waveform or mode.
        """
        max_segment_s = self._limit_segment(max_segment_s)
        mode = self._check_mode(mode)
        rate = self._experiment.frontend.rate
        waveform_N = _read_source(source, rate)
        duration_s = len(waveform_N) / rate
        name = str(source) if isinstance(source, str | Path) else "the audio"

        def select_samples(piece: Piece) -> Tensor:
            """The waveform of a piece; without an `end_s`, to the end."""
            begin = round(piece.begin_s * rate)
            end = None if piece.end_s is None else round(piece.end_s * rate)
            return waveform_N[begin:end]

        pieces = cut_waveform(waveform_N, rate, max_segment_s)
        if pieces:
            segments = self._decode(select_samples, pieces, mode, name)
        else:
            logger.warning("%s: no speech was found in %.3f s; its text is empty", name, duration_s)
            segments = [Segment(0.0, [_NO_TEXT])]
        whole = join_segments(segments, self._experiment.tokenizer)
        best = whole.nbest[0]
        return Transcript(
            text=best.text,
            score=best.score,
            nbest=tuple(whole.nbest),
            duration=duration_s,
            units=None if whole.units is None else tuple(whole.units),
        )

    def transcribe_recording(
        self,
        path: str | Path,
        *,
        mode: str | None = None,
        max_segment_s: float = DEFAULT_MAX_SEGMENT_S,
        vad: str = "energy",
        spans: Sequence[tuple[float, float]] | None = None,
        on_progress: Callable[[int, int], None] = _ignore_progress,
    ) -> TranscribedRecording:
        """The speech of a recording of any length, segment by segment, with words and confidence.

        The audio is read in blocks: the memory does not depend on the length of the recording.

        Args:
            path, mode, max_segment_s: as for `transcribe`.
            vad: how speech is found: `energy`, or `silero` if silero-vad is installed.
            spans: begin and end in seconds of the segments; None: speech is found.
            on_progress: called with the number of segments decoded since the last call, and with
                their total number.
        Raises: as `transcribe`; DataError also for a segment of `spans` that has no audio.
        """
        max_segment_s = self._limit_segment(max_segment_s)
        mode = self._check_mode(mode)
        if spans is None:
            duration_s, speech = find_speech(path, max_segment_s, vad)
            pieces_of_segments = [[piece] for piece in speech]
        else:
            duration_s = read_duration(path)
            pieces_of_segments = _cut_spans(path, spans, duration_s, max_segment_s)
        if not pieces_of_segments:
            logger.warning("%s: no speech was found in %.1f s", path, duration_s)
        rate = self._experiment.frontend.rate

        def read_piece(piece: Piece) -> Tensor:
            """The waveform of a piece, from the file."""
            return read_audio(path, start=piece.begin_s, end=piece.end_s, sample_rate=rate)

        pieces = list(chain.from_iterable(pieces_of_segments))
        # The pieces of the first segment, then those of the second one, and so on.
        decoded = iter(self._decode(read_piece, pieces, mode, str(path), on_progress))
        segments = []
        for pieces_of_segment in pieces_of_segments:
            decoded_pieces = list(islice(decoded, len(pieces_of_segment)))
            segments.append(self._make_segment(pieces_of_segment, decoded_pieces, duration_s))
        return TranscribedRecording(
            media=Path(path), duration_s=duration_s, segments=place_segments(segments, duration_s)
        )

    def _check_mode(self, mode: str | None) -> str:
        """The mode, or for None the default mode of the model.

        Raises ConfigError or ValueError if the mode does not fit the model or the options. Warns
        about options once per mode.
        """
        model = self._experiment.model
        mode = mode or model.default_mode()
        if mode not in self._modes_used:
            check_options(model, self.options, [mode], self._lm)
            warn_about_options(model, self.options, [mode])
            self._modes_used.add(mode)
        return mode

    def _limit_segment(self, max_segment_s: float) -> float:
        """`max_segment_s`, or the longest audio that the encoder reads if that is shorter.

        0, which means never to cut, stays 0. Raises ConfigError if it is too short.
        """
        check_max_segment(max_segment_s)
        return limit_segment(max_segment_s, self._experiment.model.encoder.longest_s)

    def _decode(
        self,
        read: Callable[[Piece], Tensor],
        pieces: Sequence[Piece],
        mode: str,
        name: str,
        on_progress: Callable[[int, int], None] = _ignore_progress,
    ) -> list[Segment]:
        """The hypotheses of each piece, in the order of `pieces`.

        A silent piece has the empty text. One that is too short for the encoder has it too, and is
        named in a warning.

        Args:
            read: returns the waveform (N,) of a piece.
            name: of the audio, for messages.
            on_progress: as for `transcribe_recording`; called after each batch.
        Raises: ConfigError if the memory does not suffice.
        """
        encoder = self._experiment.model.encoder
        frontend = self._experiment.frontend
        durations_s = [piece.duration_s for piece in pieces]
        frontend.warn_about_windows(name, durations_s, CUT_AT_PAUSES)
        job = DecodingJob(modes=(mode,), options=self.options, lm=self._lm)
        segment_of = dict[Piece, Segment]()
        for batch in plan_batches(pieces, _BATCH_SIZE, max_batch_s=encoder.max_batch_s):
            places = [f"{name} at {piece.begin_s:.1f} s" for piece in batch]
            longest_s = batch[0].duration_s  # batches begin with their longest piece
            with out_of_memory_as_error(places, longest_s, "lower --max_segment_s"):
                features = dict[Piece, Tensor]()
                for piece in batch:
                    wave_N = read(piece)
                    if not is_silent(wave_N):
                        features[piece] = frontend.compute(wave_N)
                segments_by_mode, too_short = decode_pieces(self._experiment, features, job)
            if too_short:
                shortest_s = min(piece.duration_s for piece in too_short)
                logger.warning(
                    "%s: %.3f s is too short for the encoder: its text is empty", name, shortest_s
                )
            for piece, segments in segments_by_mode.items():
                segment_of[piece] = segments[mode]
            on_progress(len(batch), len(pieces))
        return [segment_of.get(piece, Segment(piece.begin_s, [_NO_TEXT])) for piece in pieces]

    def _make_segment(
        self, pieces: Sequence[Piece], decoded: Sequence[Segment], duration_s: float
    ) -> TranscribedSegment:
        """A segment of a recording from the hypotheses of its successive pieces.

        `duration_s`: of the recording, where a piece without an `end_s` ends.
        """
        tokenizer = self._experiment.tokenizer
        whole = join_segments(decoded, tokenizer)
        end_s = pieces[-1].end_s
        words_of_text = [word for word in whole.nbest[0].text.split(" ") if word]
        return TranscribedSegment(
            start=pieces[0].begin_s,
            end=duration_s if end_s is None else end_s,
            text=" ".join(words_of_text),  # without the spaces of empty units
            words=tuple(timed_parts(whole.units or (), tokenizer)),
            confidence=mean_confidence(whole.units) if whole.units else None,
        )


def _cut_spans(
    path: str | Path,
    spans: Sequence[tuple[float, float]],
    duration_s: float,
    max_segment_s: float,
) -> list[list[Piece]]:
    """The pieces of each span (begin and end in seconds) of a recording, which has `duration_s`.

    A span longer than `max_segment_s` is cut at pauses; 0: never. It ends at the end of the
    recording at the latest. Raises DataError for a span that has no audio.
    """
    bounds = []
    for begin_s, end_s in spans:
        last_s = min(end_s, duration_s)
        has_audio = begin_s < last_s  # False for NaN
        if not has_audio:
            raise DataError(
                path,
                f"a segment from {begin_s:g} to {end_s:g} s has no audio in the {duration_s:.2f} s",
                "correct its times, or give the whole recording",
            )
        bounds.append((begin_s, last_s))
    return [cut_span(path, begin_s, last_s, max_segment_s) for begin_s, last_s in bounds]


def load_model(
    model_dir: str | Path,
    device: str | torch.device = "cpu",
    *,
    checkpoint: str | Path | None = None,
    options: DecodeOptions | None = None,
    lm: str | Path | None = None,
) -> Recognizer:
    """Load a model to recognise speech: an experiment folder or a packed model.

    Args:
        model_dir: a folder, ours or WeNet's (`train.yaml final.pt units.txt`) or a packed one, a
            ZIP of `wenet-hs pack`, or `hf://user/name[@revision]`.
        device: cpu, cuda, cuda:1 …, or auto for a GPU if there is one.
        checkpoint: weights instead of `final.pt`.
        options: options of the searches.
        lm: a language model: a folder of `lm train`, or an n-gram model over units (ARPA); needs
            `options.lm_weight`.
    Raises: CheckpointError, DataError or ConfigError naming the file that is missing, damaged or
        does not match.
    """
    torch_device = find_device(str(device))
    experiment = load_experiment(model_dir, checkpoint=checkpoint, device=torch_device)
    language_model = None
    if lm is not None:
        language_model = load_language_model(Path(lm), experiment.tokenizer, torch_device)
    return Recognizer(experiment, options, language_model)


def _read_source(source: AudioSource, to_rate: int) -> Tensor:
    """The samples (N,) of a source, float32, at `to_rate` samples per second.

    Raises DataError if a file cannot be read, ValueError for a tuple that is no waveform with its
    rate.
    """
    if not isinstance(source, tuple):
        return read_audio(source, sample_rate=to_rate)
    if len(source) != 2 or not isinstance(source[1], Real):
        kinds = ", ".join(type(part).__name__ for part in source)
        raise ValueError(
            f"audio: a tuple of ({kinds}), expected (waveform, sample_rate), the rate a number"
        )
    waveform, rate = source
    if not rate > 0:
        raise ValueError(f"sample rate {rate}: must be above 0 Hz")
    samples_N = mono_samples(waveform)
    if not len(samples_N):
        raise ValueError(
            f"waveform: shape {tuple(samples_N.shape)}, expected (samples,) or (channels, samples)"
        )
    return resample(samples_N, rate, to_rate)
