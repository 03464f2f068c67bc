# SPDX-License-Identifier: Apache-2.0
"""Forced alignment of a data list by the CTC branch, and its files: JSON lines, CTM, TextGrid and
ELAN.

Dimension key: T frames, F features, D width.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from wenet_hs.decode.segments import Piece, out_of_memory_as_error, plan_batches
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_LONG_S = 120.0  # a longer utterance is encoded in windows: the memory of attention increases with the square
_CORE_S = 40.0
_CONTEXT_S = 10.0  # on both sides of a window


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


@torch.no_grad()
def align_utterances(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    *,
    batch_size: int = 16,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, AlignedUtterance | str]:
    """Per key the alignment of the utterance with its transcript, or the reason why it cannot be
    aligned.

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
    results, pieces = dict[str, AlignedUtterance | str](), []
    for row, utterance in enumerate(utterances):
        try:
            pieces.append(
                Piece(
                    row,
                    segment_duration(utterance)
                    if utterance.duration is None
                    else utterance.duration,
                )
            )
        except DataError as error:
            results[utterance.key] = str(error)
    on_progress(len(results), len(utterances))
    encoder = experiment.model.encoder
    whole_s = min(_LONG_S, encoder.longest_s)
    remedy = "lower --batch_size, or cut the longest utterances"
    for piece in pieces:
        if piece.duration_s > whole_s:
            utterance = utterances[piece.row]
            with out_of_memory_as_error([utterance.key], piece.duration_s, "cut the recording"):
                results[utterance.key] = _align_long(experiment, utterance, piece.duration_s)
            on_progress(1, len(utterances))
    whole = [piece for piece in pieces if piece.duration_s <= whole_s]
    for batch in plan_batches(whole, batch_size, max_batch_s=encoder.max_batch_s):
        in_batch = [utterances[piece.row] for piece in batch]
        with out_of_memory_as_error([one.key for one in in_batch], batch[0].duration_s, remedy):
            results |= _align_batch(experiment, in_batch, [piece.duration_s for piece in batch])
        on_progress(len(batch), len(utterances))
    return results


def _align_batch(
    experiment: Experiment, utterances: Sequence[Utterance], durations_s: Sequence[float]
) -> dict[str, AlignedUtterance | str]:
    results, items, incomplete = dict[str, AlignedUtterance | str](), [], list[str]()
    model = experiment.model
    for utterance, duration_s in zip(utterances, durations_s, strict=True):
        try:
            ids = _unit_ids(experiment, utterance)
            features_TF = utterance_features(utterance, experiment.frontend, incomplete)
            _check_frames(experiment, utterance, ids, len(features_TF))
            items.append((utterance, duration_s, ids, features_TF))
        except DataError as error:
            results[utterance.key] = str(error).removeprefix(f"utterance {utterance.key}: ")
    if items:
        encoded = model.encode(*pad_features(model, [features_TF for *_, features_TF in items]))
        alignments = align_units(model.ctc, *encoded, [ids for _, _, ids, _ in items])
        for (utterance, duration_s, ids, _), alignment in zip(items, alignments, strict=True):
            is_incomplete = utterance.key in incomplete
            results[utterance.key] = _result(
                experiment, utterance, duration_s, ids, alignment, is_incomplete
            )
    return results


def _align_long(
    experiment: Experiment, utterance: Utterance, duration_s: float
) -> AlignedUtterance | str:
    """The alignment of a long utterance, whose audio, features and encoder output are never in
    memory as a whole.
    """
    frontend, incomplete = experiment.frontend, list[str]()
    try:
        if reason := length_fault(segment_duration(utterance), duration_s, "the data list"):
            return f"{utterance.wav}: {reason}"
        ids = _unit_ids(experiment, utterance)
        length = frontend.length(round(duration_s * frontend.rate))
        _check_frames(experiment, utterance, ids, length)
        windows = encode_windows(experiment, utterance, duration_s, incomplete)
        alignment = align_windows(experiment.model.ctc, windows, ids)
    except DataError as error:
        return str(error).removeprefix(f"utterance {utterance.key}: ")
    return _result(experiment, utterance, duration_s, ids, alignment, bool(incomplete))


def _result(
    experiment: Experiment,
    utterance: Utterance,
    duration_s: float,
    ids: Sequence[int],
    alignment: Alignment | None,
    is_incomplete: bool,
) -> AlignedUtterance | str:
    """The alignment in seconds, or the reason why there is none."""
    if alignment is None:  # probabilities below 1e-38, which are 0 in float32
        return "the model gives this transcript the probability 0; check the transcript"
    tokenizer = experiment.tokenizer
    names = [tokenizer.table.units[unit] for unit in ids]
    units = timed_units(names, alignment, experiment.model.encoder, experiment.frontend)
    return AlignedUtterance(
        utterance=utterance,
        duration_s=duration_s,
        units=tuple(units),
        words=tuple(timed_words(units, tokenizer)),
        score=alignment.score,
        is_incomplete=is_incomplete,
    )


def encode_windows(
    experiment: Experiment, utterance: Utterance, duration_s: float, incomplete: list[str]
) -> Iterator[Tensor]:
    """The encoder output of a long utterance, (1, T, D) per 40 s, in order.

    Its audio is never in memory as a whole.

    Each window is encoded with 10 s of context on both sides, whose frames are dropped. Both are
    shorter if `longest_s` of the encoder is less than these 60 s. Frames differ from those of the
    whole utterance only because attention does not reach further. incomplete: see `read_utterance`.
    """
    model, frontend, encoder = experiment.model, experiment.frontend, experiment.model.encoder
    step_s, origin = encoder.stride * frontend.frame_s, utterance.start or 0.0
    total = encoder.output_length(frontend.length(round(duration_s * frontend.rate)))
    scale = min(1.0, encoder.longest_s / (_CORE_S + 2 * _CONTEXT_S))
    context = round(scale * _CONTEXT_S / step_s)
    core = int(min(round(scale * _CORE_S / step_s), encoder.longest_s / step_s - 2 * context))
    for begin in range(0, total, core):
        first, end = max(0, begin - context), min(begin + core, total)
        start_s, last = origin + first * step_s, min(end + context, total)
        # One more feature frame than needed: times are rounded to samples of the file's rate.
        end_s = origin + (last - 1) * step_s + frontend.span_s(encoder.min_frames + 1)
        part = replace(
            utterance, start=start_s, end=utterance.end if last == total else end_s, duration=None
        )
        features_TF = utterance_features(part, frontend, incomplete)
        memory_1TD, _ = model.encode(*pad_features(model, [features_TF]))
        yield memory_1TD[:, begin - first : end - first]


def _unit_ids(experiment: Experiment, utterance: Utterance) -> list[int]:
    """The unit ids of a transcript. Raises DataError if it cannot be aligned."""
    tokenizer, where = experiment.tokenizer, f"utterance {utterance.key}"
    unknown = tokenizer.count_unknown(utterance.txt)
    if unknown:
        found = f"the transcript has units that the model does not know: {list_names([*map(repr, unknown)], ' ')}"
        raise DataError(where, found, "correct it, or use another model")
    ids = tokenizer.encode(utterance.txt)
    if not ids:
        raise DataError(
            where, "the transcript is empty", "add the text, or leave the utterance out"
        )
    return ids


def _check_frames(
    experiment: Experiment, utterance: Utterance, ids: Sequence[int], length: int
) -> None:
    """Raise DataError if `length` feature frames are too few for the units."""
    found, needed = experiment.model.encoder.output_length(length), ctc_frames_needed(ids)
    if found < needed:
        fault = f"{found} encoder frames, but CTC needs {needed} for this transcript"
        raise DataError(utterance.wav, fault, "check that audio and transcript belong together")


# ---- files


def write_alignments(
    path: Path, alignments: Iterable[AlignedUtterance], mark: Mapping[str, bool]
) -> None:
    """Write one JSON object per line: key, lang, text, score, confidence, and `units` and `words`
    with text, start, end (seconds from the beginning of the utterance) and confidence of each.
    `mark`: of `mark_confidence`.
    """
    lines = []
    for aligned in alignments:
        record: dict[str, object] = {
            "key": aligned.utterance.key,
            "lang": aligned.utterance.lang,
            "text": aligned.utterance.txt,
            "score": aligned.score,
            "confidence": round(
                mean_confidence(aligned.units), 4
            ),  # how well the transcript fits the audio
            **mark,
        }
        for name, parts in {"units": aligned.units, "words": aligned.words}.items():
            record[name] = [
                {**asdict(part), "confidence": round(part.confidence, 4)} for part in parts
            ]
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(path, "".join(lines))


def write_ctm(path: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write `key 1 start duration text confidence` per word, or per unit; white space in a text
    becomes `▁`.
    """
    lines = [
        ctm_lines(one.utterance.key, one.units if of_units else one.words) for one in alignments
    ]
    write_atomic(path, "".join(lines))


def _textgrid_path(folder: Path, key: str) -> Path:
    return folder / f"{key.replace('/', '%2F')}.TextGrid"


def _eaf_path(folder: Path, wav: str) -> Path:
    return folder / f"{Path(wav).stem}.eaf"


def write_textgrids(folder: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write FOLDER/KEY.TextGrid with the tiers `units` and `words`; a `/` in a key becomes `%2F`.

    The grid is as long as the audio. Between two units, and between two words, is an interval
    without text.
    """
    for aligned in alignments:
        end = max(
            [round(aligned.duration_s, 4), *(part.end for part in (*aligned.units, *aligned.words))]
        )
        parts = {"units": aligned.units, "words": aligned.words}
        tiers = [Tier(name=name, spans=spans_of(of_tier)) for name, of_tier in parts.items()]
        write_textgrid(_textgrid_path(folder, aligned.utterance.key), tiers, end)


def check_outputs(
    utterances: Sequence[Utterance],
    *,
    files: Sequence[Path],
    textgrid: Path | None,
    elan: Path | None,
) -> None:
    """Raise DataError if a file exists, which may have been corrected by hand, or if `write_eafs`
    would.
    """
    if existing := [path for path in files if path.exists()]:
        raise DataError(existing[0], "exists already", "name another file, or delete this one")
    paths = [_textgrid_path(textgrid, one.key) for one in utterances if textgrid is not None]
    paths += [_eaf_path(elan, one.wav) for one in utterances if elan is not None]
    if existing := [path for path in paths if path.exists()]:
        raise DataError(existing[0], "exists already", "name another folder")
    if elan is None:
        return
    # an unknown end is 1 ms after the start
    for_elan = [
        (one, one.start or 0.0, one.end or (one.start or 0.0) + 0.001) for one in utterances
    ]
    _make_recordings(
        (one.wav, TranscribedSegment(start=start, end=end, text="", speaker=one.speaker))
        for one, start, end in for_elan
    )


def write_eafs(folder: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write FOLDER/NAME.eaf per recording NAME: tiers of utterances, words (or units) and
    confidence of each speaker.

    Raises: DataError if two recordings have the same name, or utterances of one speaker overlap.
    """
    segments = ((one.utterance.wav, _segment(one, of_units=of_units)) for one in alignments)
    for recording in _make_recordings(segments):
        write_eaf(
            _eaf_path(folder, str(recording.media)), recording, DEFAULT_TIER, DEFAULT_LOW_CONFIDENCE
        )


def _make_recordings(
    segments: Iterable[tuple[str, TranscribedSegment]],
) -> list[TranscribedRecording]:
    """One recording per path, with its segments. Raises as `write_eafs`."""
    by_media, stems = defaultdict[str, list[TranscribedSegment]](list), dict[str, str]()
    for wav, segment in segments:
        by_media[wav].append(segment)
        if stems.setdefault(Path(wav).stem, wav) != wav:
            raise DataError(
                f"{wav} and {stems[Path(wav).stem]}",
                "the same name",
                "align them one by one with --elan",
            )
    recordings = []
    for wav, of_media in by_media.items():
        length_s = max(segment.end for segment in of_media)
        try:
            placed = place_segments(of_media, length_s)
        except DataError as error:
            raise DataError(wav, str(error)) from error
        recordings.append(
            TranscribedRecording(media=Path(wav), duration_s=length_s, segments=placed)
        )
    return recordings


def _segment(aligned: AlignedUtterance, *, of_units: bool) -> TranscribedSegment:
    """An utterance with times from the beginning of its recording."""
    utterance, origin = aligned.utterance, aligned.utterance.start or 0.0
    parts = aligned.units if of_units else aligned.words
    return TranscribedSegment(
        start=origin,
        end=origin + aligned.duration_s,
        text=utterance.txt,
        words=tuple(
            replace(part, start=origin + part.start, end=origin + part.end) for part in parts
        ),
        confidence=mean_confidence(aligned.units),
        speaker=utterance.speaker,
    )
