# SPDX-License-Identifier: Apache-2.0
"""Speech to text from Python: `wenet_hs.load_model("exp/hsoftmax").transcribe("clip.mp3").text`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        """Two lines: the text; duration, score and the numbers of hypotheses and units."""
        units = "without times" if self.units is None else len(self.units)
        return f"{self.text}\n{self.duration:.2f} s, score {self.score:.2f}, n-best {len(self.nbest)}, units {units}"


class Recognizer:
    """A loaded model that converts audio to text, one utterance at a time."""

    def __init__(
        self,
        experiment: Experiment,
        options: DecodeOptions | None = None,
        lm: AnyLanguageModel | None = None,
    ) -> None:
        """`options` are the options of the searches; `lm` has the weight `options.lm_weight`.

        Raises: ConfigError if the model or the language model does not support the options.
        """
        self._experiment, self._lm = experiment, lm
        self.options = options or DecodeOptions()
        check_options(experiment.model, self.options, lm=lm)
        self._modes_used: set[str] = set()

    def stream(
        self, *, mode: str | None = None, endpoints: EndpointRules | None = None
    ) -> RecognitionStream:
        """A stream of this model, which was trained with chunks; with those of `options`, or 16
        frames and 4 chunks.

        mode: as for `transcribe`; it decodes each segment at its end.

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
        """Whether the records of the training show over-fitting; the confidences are unreliable
        then.
        """
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
        mode, max_segment_s = self._check(mode, max_segment_s)
        rate = self._experiment.frontend.rate
        waveform_N = _read(source, rate)
        duration_s = len(waveform_N) / rate
        pieces = cut_waveform(waveform_N, rate, max_segment_s)
        name = str(source) if isinstance(source, str | Path) else "the audio"
        if not pieces:
            logger.warning("%s: no speech was found in %.3f s; its text is empty", name, duration_s)

        def read(piece: Piece) -> Tensor:
            end = None if piece.end_s is None else round(piece.end_s * rate)
            return waveform_N[round(piece.begin_s * rate) : end]

        segments = self._decode(read, pieces, mode, name) or [Segment(0.0, [_NO_TEXT])]
        joined = join_segments(segments, self._experiment.tokenizer)
        return Transcript(
            text=joined.nbest[0].text,
            score=joined.nbest[0].score,
            nbest=tuple(joined.nbest),
            duration=duration_s,
            units=None if joined.units is None else tuple(joined.units),
        )

    def transcribe_recording(
        self,
        path: str | Path,
        *,
        mode: str | None = None,
        max_segment_s: float = DEFAULT_MAX_SEGMENT_S,
        vad: str = "energy",
        spans: Sequence[tuple[float, float]] | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> TranscribedRecording:
        """The speech of a recording of any length, segment by segment, with words and confidence.

        The audio is read in blocks: the memory does not depend on the length of the recording.

        Args:
            path, mode, max_segment_s: as for `transcribe`.
            vad: how speech is found: `energy`, or `silero` if silero-vad is installed.
            spans: begin and end in seconds of the segments; None: speech is found.
            on_progress: called with the number of segments decoded since the last call, and with
                their total number.
        Raises: as `transcribe`.
        """
        mode, max_segment_s = self._check(mode, max_segment_s)
        if spans is None:
            duration_s, speech = find_speech(path, max_segment_s, vad)
            groups = [[piece] for piece in speech]
        else:
            duration_s = read_duration(path)
            for begin, end in spans:
                if not begin < min(end, duration_s):
                    fault = f"a segment from {begin:g} to {end:g} s has no audio in the {duration_s:.2f} s"
                    raise DataError(path, fault, "correct its times, or give the whole recording")
            groups = [
                cut_span(path, begin, min(end, duration_s), max_segment_s) for begin, end in spans
            ]
        rate, tokenizer = self._experiment.frontend.rate, self._experiment.tokenizer
        if not groups:
            logger.warning("%s: no speech was found in %.1f s", path, duration_s)

        def read(piece: Piece) -> Tensor:
            return read_audio(path, start=piece.begin_s, end=piece.end_s, sample_rate=rate)

        pieces = [piece for group in groups for piece in group]
        found = iter(self._decode(read, pieces, mode, str(path), on_progress))
        joined = [join_segments([next(found) for _ in group], tokenizer) for group in groups]
        segments = [
            TranscribedSegment(
                start=group[0].begin_s,
                end=duration_s if group[-1].end_s is None else group[-1].end_s,
                text=" ".join(filter(None, segment.nbest[0].text.split(" "))),
                words=tuple(timed_parts(segment.units or (), tokenizer)),
                confidence=mean_confidence(segment.units) if segment.units else None,
            )
            for group, segment in zip(groups, joined, strict=True)
        ]
        return TranscribedRecording(
            media=Path(path), duration_s=duration_s, segments=place_segments(segments, duration_s)
        )

    def _check(self, mode: str | None, max_segment_s: float) -> tuple[str, float]:
        """The mode, and `max_segment_s` for this encoder.

        Raise ConfigError or ValueError for wrong options; warn about them once per mode.
        """
        mode = mode or self._experiment.model.default_mode()
        check_max_segment(max_segment_s)
        if mode not in self._modes_used:
            check_options(self._experiment.model, self.options, [mode], self._lm)
            warn_about_options(self._experiment.model, self.options, [mode])
            self._modes_used.add(mode)
        return mode, limit_segment(max_segment_s, self._experiment.model.encoder.longest_s)

    def _decode(
        self,
        read: Callable[[Piece], Tensor],
        pieces: Sequence[Piece],
        mode: str,
        name: str,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Segment]:
        """The hypotheses of each piece. `read` returns the waveform (N,) of a piece."""
        found = dict[Piece, Segment]()
        seconds, max_batch_s = (
            [piece.duration_s for piece in pieces],
            self._experiment.model.encoder.max_batch_s,
        )
        self._experiment.frontend.warn_about_windows(name, seconds, CUT_AT_PAUSES)
        job = DecodingJob(modes=(mode,), options=self.options, lm=self._lm)
        for batch in plan_batches(pieces, _BATCH_SIZE, max_batch_s=max_batch_s):
            begins = [f"{name} at {piece.begin_s:.1f} s" for piece in batch]
            with out_of_memory_as_error(begins, batch[0].duration_s, "lower --max_segment_s"):
                waves = {piece: wave for piece in batch if not is_silent(wave := read(piece))}
                features = {
                    piece: self._experiment.frontend.compute(wave) for piece, wave in waves.items()
                }
                decoded, too_short = decode_pieces(self._experiment, features, job)
            if too_short:
                shortest_s = min(piece.duration_s for piece in too_short)
                logger.warning(
                    "%s: %.3f s is too short for the encoder: its text is empty", name, shortest_s
                )
            found |= {piece: segments[mode] for piece, segments in decoded.items()}
            on_progress(len(batch), len(pieces))
        return [found.get(piece, Segment(piece.begin_s, [_NO_TEXT])) for piece in pieces]


def load_model(
    model_dir: str | Path,
    device: str | torch.device = "cpu",
    *,
    checkpoint: str | Path | None = None,
    options: DecodeOptions | None = None,
    lm: str | Path | None = None,
) -> Recognizer:
    """Load an experiment folder, ours or WeNet's (`train.yaml final.pt units.txt`), or a packed
    model.

    Args:
        model_dir: the folder, a ZIP of `wenet-hs pack`, or `hf://user/name[@revision]`.
        device: cpu, cuda, cuda:1 …, or auto for a GPU if there is one.
        checkpoint: weights instead of `final.pt`.
        options: options of the searches.
        lm: a language model: a folder of `lm train`, or an n-gram model over units (ARPA); needs
            `options.lm_weight`.
    Raises: CheckpointError, DataError or ConfigError naming the file that is missing, damaged or
        does not match.
    """
    experiment = load_experiment(model_dir, checkpoint=checkpoint, device=find_device(str(device)))
    model = (
        None
        if lm is None
        else load_language_model(Path(lm), experiment.tokenizer, find_device(str(device)))
    )
    return Recognizer(experiment, options, model)


def _read(source: AudioSource, to_rate: int) -> Tensor:
    """Any source → (samples,) float32 at `to_rate`."""
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
