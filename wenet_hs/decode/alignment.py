# SPDX-License-Identifier: Apache-2.0
"""Forced alignment of a data list by the CTC branch, and its files: JSON lines, CTM, TextGrid and
ELAN.

Dimension key: T frames, F features, D width.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.annotation.eaf_writing import write_eaf
from wenet_hs.annotation.recordings import ctm_lines
from wenet_hs.annotation.textgrid import write_textgrid
from wenet_hs.annotation.tiers import (
    DEFAULT_LOW_CONFIDENCE,
    DEFAULT_TIER,
    Tier,
    TimedText,
    TranscribedRecording,
    TranscribedSegment,
    place_segments,
    spans_of,
)
from wenet_hs.data.audio import length_fault, segment_duration
from wenet_hs.data.features import utterance_features
from wenet_hs.data.sampling import ctc_frames_needed
from wenet_hs.decode.ctc_search import align_units, align_windows
from wenet_hs.decode.hypothesis import Alignment
from wenet_hs.decode.modes import pad_features
from wenet_hs.decode.recognition import mean_confidence, timed_units, timed_words
from wenet_hs.decode.segments import (
    Piece,
    out_of_memory_as_error,
    plan_batches,
    utterance_duration,
)
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_LONG_S = 120.0
"""A longer utterance is encoded in windows: the memory of attention increases with the square."""
_CORE_S = 40.0
"""The part of a window whose frames are used."""
_CONTEXT_S = 10.0
"""The parts of a window on both sides of its core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedUtterance:
    """A transcript with the times of its units and words."""

    utterance: Utterance
    duration_s: float
    units: tuple[TimedText, ...]
    words: tuple[TimedText, ...]
    score: float
    """Log-probability of the alignment, including blanks; natural logarithm."""
    is_incomplete: bool = False
    """Whether the clip lacks a little of the length in its header."""


@dataclass(frozen=True)
class _EncodedTranscript:
    """An utterance with the unit ids of its transcript, which the model knows."""

    utterance: Utterance
    duration_s: float
    ids: list[int]


@torch.no_grad()
def align_utterances(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    *,
    batch_size: int = 16,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, AlignedUtterance | str]:
    """The alignment of each utterance with its transcript, or the reason why there is none, by key.

    The encoder reads an utterance of up to two minutes, or its `longest_s`, as a whole, and a
    longer one in windows that overlap (see `encode_windows`). The alignment is exact in both cases.
    An hour needs some tens of MB and about half a minute.

    Args:
        batch_size: maximum number of utterances per batch; changes no result.
        on_progress: called with the number of utterances processed since the last call, and with
            their total number.
    Raises: ConfigError if the model was trained without CTC, or the memory is too small for a
        batch; CheckpointError if the output of the model is NaN.
    """
    if "ctc" not in experiment.model.trained_branches:
        found = "model_conf.ctc_weight is 0, so CTC was not trained and cannot align"
        raise ConfigError(
            experiment.model_dir / "train.yaml", found, "use a model trained with CTC"
        )
    encoder = experiment.model.encoder
    max_whole_s = min(_LONG_S, encoder.longest_s)
    results: dict[str, AlignedUtterance | str] = {}
    short_pieces: list[Piece] = []
    long_pieces: list[Piece] = []
    for row, utterance in enumerate(utterances):
        try:
            duration_s = utterance_duration(utterance)
        except DataError as error:
            results[utterance.key] = str(error)
            continue
        pieces = long_pieces if duration_s > max_whole_s else short_pieces
        pieces.append(Piece(row, duration_s))
    on_progress(len(results), len(utterances))
    for piece in long_pieces:
        utterance = utterances[piece.row]
        with out_of_memory_as_error([utterance.key], piece.duration_s, "cut the recording"):
            results[utterance.key] = _align_long(experiment, utterance, piece.duration_s)
        on_progress(1, len(utterances))
    for batch in plan_batches(short_pieces, batch_size, max_batch_s=encoder.max_batch_s):
        batch_utterances = [utterances[piece.row] for piece in batch]
        durations_s = [piece.duration_s for piece in batch]
        keys = [utterance.key for utterance in batch_utterances]
        remedy = "lower --batch_size, or cut the longest utterances"
        with out_of_memory_as_error(keys, durations_s[0], remedy):
            results |= _align_batch(experiment, batch_utterances, durations_s)
        on_progress(len(batch), len(utterances))
    return results


def _align_batch(
    experiment: Experiment, utterances: Sequence[Utterance], durations_s: Sequence[float]
) -> dict[str, AlignedUtterance | str]:
    """As `align_utterances`, for utterances that the encoder reads together, as a whole."""
    results: dict[str, AlignedUtterance | str] = {}
    transcripts: list[_EncodedTranscript] = []
    features: list[Tensor] = []
    incomplete: list[str] = []
    for utterance, duration_s in zip(utterances, durations_s, strict=True):
        try:
            ids = _unit_ids(experiment, utterance)
            features_TF = utterance_features(utterance, experiment.frontend, incomplete)
            _check_frames(experiment, utterance, ids, len(features_TF))
        except DataError as error:
            results[utterance.key] = _reason_without_key(error, utterance)
            continue
        transcripts.append(_EncodedTranscript(utterance, duration_s, ids))
        features.append(features_TF)
    if not transcripts:
        return results
    model = experiment.model
    memory_BTD, lengths_B = model.encode(*pad_features(model, features))
    labels = [transcript.ids for transcript in transcripts]
    alignments = align_units(model.ctc, memory_BTD, lengths_B, labels)
    for transcript, alignment in zip(transcripts, alignments, strict=True):
        key = transcript.utterance.key
        results[key] = _aligned_utterance(
            experiment, transcript, alignment, is_incomplete=key in incomplete
        )
    return results


def _align_long(
    experiment: Experiment, utterance: Utterance, duration_s: float
) -> AlignedUtterance | str:
    """The alignment of a long utterance, or the reason why there is none.

    Its audio, features and encoder output are never in memory as a whole.
    """
    frontend = experiment.frontend
    incomplete: list[str] = []
    try:
        fault = length_fault(segment_duration(utterance), duration_s, "the data list")
        if fault is not None:
            return f"{utterance.wav}: {fault}"
        ids = _unit_ids(experiment, utterance)
        num_features = frontend.length(round(duration_s * frontend.rate))
        _check_frames(experiment, utterance, ids, num_features)
        windows = encode_windows(experiment, utterance, duration_s, incomplete)
        alignment = align_windows(experiment.model.ctc, windows, ids)
    except DataError as error:
        return _reason_without_key(error, utterance)
    return _aligned_utterance(
        experiment,
        _EncodedTranscript(utterance, duration_s, ids),
        alignment,
        is_incomplete=bool(incomplete),
    )


def _reason_without_key(error: DataError, utterance: Utterance) -> str:
    """The text of an error without the key of its utterance, which the caller adds."""
    return str(error).removeprefix(f"utterance {utterance.key}: ")


def _unit_ids(experiment: Experiment, utterance: Utterance) -> list[int]:
    """The unit ids of a transcript.

    Raises DataError if it is empty or has units that the model does not know.
    """
    tokenizer = experiment.tokenizer
    where = f"utterance {utterance.key}"
    unknown = tokenizer.count_unknown(utterance.txt)
    if unknown:
        names = list_names([*map(repr, unknown)], " ")
        found = f"the transcript has units that the model does not know: {names}"
        raise DataError(where, found, "correct it, or use another model")
    ids = tokenizer.encode(utterance.txt)
    if not ids:
        raise DataError(
            where, "the transcript is empty", "add the text, or leave the utterance out"
        )
    return ids


def _check_frames(
    experiment: Experiment, utterance: Utterance, ids: Sequence[int], num_features: int
) -> None:
    """Raise DataError if CTC needs more encoder frames for the units than the utterance has.

    `num_features`: its feature frames, from which the encoder makes fewer.
    """
    num_frames = experiment.model.encoder.output_length(num_features)
    num_needed = ctc_frames_needed(ids)
    if num_frames < num_needed:
        found = f"{num_frames} encoder frames, but CTC needs {num_needed} for this transcript"
        raise DataError(utterance.wav, found, "check that audio and transcript belong together")


def encode_windows(
    experiment: Experiment, utterance: Utterance, duration_s: float, incomplete: list[str]
) -> Iterator[Tensor]:
    """The encoder output of a long utterance in parts (1, T, D) of 40 s, in order.

    Its audio is never in memory as a whole. Each part is the core of a window with 10 s of context
    on both sides, whose frames are dropped. Core and context are shorter if `longest_s` of the
    encoder is less than these 60 s. Frames differ from those of the whole utterance only because
    attention does not reach further.

    `incomplete`: gets the key of the utterance for each part that lacks a little of its audio.
    """
    model = experiment.model
    encoder = model.encoder
    frontend = experiment.frontend
    step_s = encoder.stride * frontend.frame_s
    origin_s = utterance.start or 0.0  # of the utterance in its file
    num_frames = encoder.output_length(frontend.length(round(duration_s * frontend.rate)))
    scale = min(1.0, encoder.longest_s / (_CORE_S + 2 * _CONTEXT_S))
    num_context = round(scale * _CONTEXT_S / step_s)
    wanted_core = round(scale * _CORE_S / step_s)
    longest_core = encoder.longest_s / step_s - 2 * num_context  # inf if there is no longest_s
    num_core = int(min(wanted_core, longest_core))
    for core_begin in range(0, num_frames, num_core):
        core_end = min(core_begin + num_core, num_frames)
        begin = max(0, core_begin - num_context)
        end = min(core_end + num_context, num_frames)
        if end == num_frames:
            end_s = utterance.end
        else:
            # One more feature frame than needed: times are rounded to samples of the file's rate.
            last_frame_s = frontend.span_s(encoder.min_frames + 1)
            end_s = origin_s + (end - 1) * step_s + last_frame_s
        window = replace(utterance, start=origin_s + begin * step_s, end=end_s, duration=None)
        features_TF = utterance_features(window, frontend, incomplete)
        memory_1TD, _ = model.encode(*pad_features(model, [features_TF]))
        yield memory_1TD[:, core_begin - begin : core_end - begin]


def _aligned_utterance(
    experiment: Experiment,
    transcript: _EncodedTranscript,
    alignment: Alignment | None,
    *,
    is_incomplete: bool,
) -> AlignedUtterance | str:
    """The alignment in seconds, or the reason why there is none.

    `alignment` is None if every alignment has the probability 0. Too few frames cannot be the
    reason, because `_check_frames` comes first.
    """
    if alignment is None:  # probabilities below 1e-38, which are 0 in float32
        return "the model gives this transcript the probability 0; check the transcript"
    tokenizer = experiment.tokenizer
    names = [tokenizer.table.units[unit] for unit in transcript.ids]
    units = timed_units(names, alignment, experiment.model.encoder, experiment.frontend)
    return AlignedUtterance(
        utterance=transcript.utterance,
        duration_s=transcript.duration_s,
        units=tuple(units),
        words=tuple(timed_words(units, tokenizer)),
        score=alignment.score,
        is_incomplete=is_incomplete,
    )


# ---- files


def check_outputs(
    utterances: Sequence[Utterance],
    *,
    files: Sequence[Path],
    textgrid: Path | None,
    elan: Path | None,
) -> None:
    """Check before the work that all files can be written.

    Args:
        files: single files.
        textgrid, elan: the folders of `write_textgrids` and `write_eafs`; None: not written.
    Raises: DataError if a file exists already, which may have been corrected by hand, or if
        `write_eafs` would raise it.
    """
    _check_absent(files, "name another file, or delete this one")
    if textgrid is not None:
        textgrid_paths = [_textgrid_path(textgrid, utterance.key) for utterance in utterances]
        _check_absent(textgrid_paths, "name another folder")
    if elan is not None:
        eaf_paths = [_eaf_path(elan, utterance.wav) for utterance in utterances]
        _check_absent(eaf_paths, "name another folder")
        _make_recordings((utterance.wav, _empty_segment(utterance)) for utterance in utterances)


def _check_absent(paths: Iterable[Path], to_do: str) -> None:
    """Raise DataError for the first path that exists."""
    for path in paths:
        if path.exists():
            raise DataError(path, "exists already", to_do)


def _empty_segment(utterance: Utterance) -> TranscribedSegment:
    """An utterance without its text.

    An unknown end is 1 ms after the start: a segment must not be empty.
    """
    start_s = utterance.start or 0.0
    return TranscribedSegment(
        start=start_s, end=utterance.end or start_s + 0.001, text="", speaker=utterance.speaker
    )


def write_alignments(
    path: Path, alignments: Iterable[AlignedUtterance], mark: Mapping[str, bool]
) -> None:
    """Write one JSON object per line.

    It has key, lang, text, score, confidence (how well the transcript fits the audio, in [0, 1]),
    and `units` and `words`. Each of these has text, start, end (seconds from the beginning of the
    utterance) and confidence.

    `mark`: fields of `mark_confidence`, which each object gets.
    """
    lines = []
    for aligned in alignments:
        record: dict[str, object] = {
            "key": aligned.utterance.key,
            "lang": aligned.utterance.lang,
            "text": aligned.utterance.txt,
            "score": aligned.score,
            "confidence": round(mean_confidence(aligned.units), 4),
            **mark,
            "units": [_timed_record(unit) for unit in aligned.units],
            "words": [_timed_record(word) for word in aligned.words],
        }
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(path, "".join(lines))


def _timed_record(timed: TimedText) -> dict[str, object]:
    """A unit or word as an object of JSON."""
    return {
        "text": timed.text,
        "start": timed.start,
        "end": timed.end,
        "confidence": round(timed.confidence, 4),
    }


def write_ctm(path: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write `key 1 start duration text confidence` per word, or per unit.

    White space in a text becomes `▁`.
    """
    lines = []
    for aligned in alignments:
        parts = aligned.units if of_units else aligned.words
        lines.append(ctm_lines(aligned.utterance.key, parts))
    write_atomic(path, "".join(lines))


def write_textgrids(folder: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write FOLDER/KEY.TextGrid with the tiers `units` and `words`; a `/` in a key becomes `%2F`.

    The grid is as long as the audio, or ends with the last unit or word if that is later. Between
    two units, and between two words, is an interval without text.
    """
    for aligned in alignments:
        ends_s = [part.end for part in (*aligned.units, *aligned.words)]
        grid_end_s = max([round(aligned.duration_s, 4), *ends_s])
        tiers = [
            Tier(name="units", spans=spans_of(aligned.units)),
            Tier(name="words", spans=spans_of(aligned.words)),
        ]
        write_textgrid(_textgrid_path(folder, aligned.utterance.key), tiers, grid_end_s)


def write_eafs(folder: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write FOLDER/NAME.eaf per recording NAME.

    Each speaker has tiers of utterances, words (or units, if `of_units`) and confidence.

    Raises: DataError if two recordings have the same name, or utterances of one speaker overlap.
    """
    segments = [
        (aligned.utterance.wav, _segment(aligned, of_units=of_units)) for aligned in alignments
    ]
    for recording in _make_recordings(segments):
        write_eaf(
            _eaf_path(folder, str(recording.media)), recording, DEFAULT_TIER, DEFAULT_LOW_CONFIDENCE
        )


def _segment(aligned: AlignedUtterance, *, of_units: bool) -> TranscribedSegment:
    """An utterance with times from the beginning of its recording, and its words or units."""
    utterance = aligned.utterance
    origin_s = utterance.start or 0.0
    parts = [
        replace(part, start=origin_s + part.start, end=origin_s + part.end)
        for part in (aligned.units if of_units else aligned.words)
    ]
    return TranscribedSegment(
        start=origin_s,
        end=origin_s + aligned.duration_s,
        text=utterance.txt,
        words=tuple(parts),
        confidence=mean_confidence(aligned.units),
        speaker=utterance.speaker,
    )


def _make_recordings(
    segments: Iterable[tuple[str, TranscribedSegment]],
) -> list[TranscribedRecording]:
    """One recording per path, with its segments. Raises as `write_eafs`.

    `segments`: each with the path of its recording.
    """
    segments_by_wav = defaultdict[str, list[TranscribedSegment]](list)
    wav_of_name: dict[str, str] = {}
    for wav, segment in segments:
        segments_by_wav[wav].append(segment)
        other_wav = wav_of_name.setdefault(Path(wav).stem, wav)
        if other_wav != wav:
            raise DataError(
                f"{wav} and {other_wav}", "the same name", "align them one by one with --elan"
            )
    recordings = []
    for wav, segments_of_wav in segments_by_wav.items():
        length_s = max(segment.end for segment in segments_of_wav)
        try:
            placed_segments = place_segments(segments_of_wav, length_s)
        except DataError as error:
            raise DataError(wav, str(error)) from error
        recordings.append(
            TranscribedRecording(media=Path(wav), duration_s=length_s, segments=placed_segments)
        )
    return recordings


def _textgrid_path(folder: Path, key: str) -> Path:
    """The file of an utterance; a `/` in its key becomes `%2F`."""
    return folder / f"{key.replace('/', '%2F')}.TextGrid"


def _eaf_path(folder: Path, wav: str) -> Path:
    """The file of a recording, which has the name of its audio."""
    return folder / f"{Path(wav).stem}.eaf"
