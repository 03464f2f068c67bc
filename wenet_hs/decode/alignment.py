# SPDX-License-Identifier: Apache-2.0
"""Forced alignment of a data list by the CTC branch, and its files: JSON lines, CTM (NIST) and TextGrid (Praat)."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from praatio.textgrid import IntervalTier, Textgrid
from torch import Tensor

from wenet_hs.build import Experiment
from wenet_hs.data.audio import segment_duration
from wenet_hs.data.features import utterance_features
from wenet_hs.data.sampling import ctc_frames_needed
from wenet_hs.decode.ctc import align_units
from wenet_hs.decode.modes import pad_features
from wenet_hs.decode.output import TimedText, mean_confidence, timed_units
from wenet_hs.decode.segments import Piece, out_of_memory_as_error, plan_batches
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import open_atomic, write_atomic
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import SPACE


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
    on_progress: Callable[[int], None] = lambda count: None,
) -> dict[str, AlignedUtterance | str]:
    """Per key the alignment of the utterance with its transcript, or the reason why it cannot be aligned.

    An utterance is aligned as a whole, and the memory of the encoder increases with the square of its length: cut
    recordings of more than some minutes, with their transcripts, beforehand.

    Args:
        batch_size: maximum number of utterances per batch; changes no result.
        on_progress: called with the number of utterances that were processed since the last call.
    Raises: ConfigError if the model was trained without CTC, or the memory is too small for a batch; CheckpointError if
        the output of the model is NaN.
    """
    if not experiment.config.model_conf.ctc_weight:
        raise ConfigError(
            f"{experiment.model_dir / 'train.yaml'}: model_conf.ctc_weight is 0, so CTC was not trained and cannot "
            "align; use a model trained with CTC"
        )
    results, pieces = dict[str, AlignedUtterance | str](), []
    for row, utterance in enumerate(utterances):
        try:
            pieces.append(Piece(row, segment_duration(utterance) if utterance.duration is None else utterance.duration))
        except DataError as error:
            results[utterance.key] = str(error)
    on_progress(len(results))
    remedy = "lower --batch_size, or cut the longest utterances"
    for batch in plan_batches(pieces, batch_size):
        in_batch = [utterances[piece.row] for piece in batch]
        with out_of_memory_as_error(in_batch, batch[0].duration_s, remedy):
            results |= _align_batch(experiment, in_batch, [piece.duration_s for piece in batch])
        on_progress(len(batch))
    return results


def _align_batch(
    experiment: Experiment, utterances: Sequence[Utterance], durations_s: Sequence[float]
) -> dict[str, AlignedUtterance | str]:
    results, items, incomplete = dict[str, AlignedUtterance | str](), [], list[str]()
    for utterance, duration_s in zip(utterances, durations_s, strict=True):
        try:
            items.append((utterance, duration_s, *_read_item(experiment, utterance, incomplete)))
        except DataError as error:
            results[utterance.key] = str(error).removeprefix(f"utterance {utterance.key}: ")
    if not items:
        return results
    model, tokenizer, conf = experiment.model, experiment.tokenizer, experiment.config.dataset_conf
    encoded = model.encode(*pad_features(model, [features_TF for *_, features_TF in items]))
    alignments = align_units(model.ctc, *encoded, [ids for _, _, ids, _ in items])
    for (utterance, duration_s, ids, _), alignment in zip(items, alignments, strict=True):
        if alignment is None:  # probabilities below 1e-38, which are 0 in float32
            results[utterance.key] = "the model gives this transcript the probability 0; check the transcript"
            continue
        names = [tokenizer.table.units[unit] for unit in ids]
        units = timed_units(names, alignment, model.encoder, conf)
        results[utterance.key] = AlignedUtterance(
            utterance=utterance,
            duration_s=duration_s,
            units=tuple(units),
            words=tuple(timed_words(units, tokenizer)),
            score=alignment.score,
            is_incomplete=utterance.key in incomplete,
        )
    return results


def _read_item(experiment: Experiment, utterance: Utterance, incomplete: list[str]) -> tuple[list[int], Tensor]:
    """The unit ids and features (T, F) of an utterance. Raises DataError if it cannot be aligned."""
    tokenizer = experiment.tokenizer
    unknown = tokenizer.unknown(utterance.txt)
    if unknown:
        units = list_names([repr(unit) for unit in unknown], " ")
        raise DataError(
            f"the transcript has units that the model does not know: {units}; correct it, or use another model"
        )
    ids = tokenizer.encode(utterance.txt)
    if not ids:
        raise DataError("the transcript is empty; add the text, or leave the utterance out")
    features_TF = utterance_features(utterance, experiment.config.dataset_conf, incomplete)
    num_frames, needed = experiment.model.encoder.subsampled_length(len(features_TF)), ctc_frames_needed(ids)
    if num_frames < needed:
        raise DataError(
            f"{utterance.wav}: {num_frames} encoder frames, but CTC needs {needed} for this transcript; check that "
            "audio and transcript belong together"
        )
    return ids, features_TF


def timed_words(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units: a unit that begins with `▁` begins a word, and `▁` alone separates two.

    A word lasts from the begin of its first unit to the end of its last. Phones do not mark words: they are one word.
    """
    groups: list[list[TimedText]] = [[]]
    for unit in units:
        if unit.text.startswith(SPACE):
            groups.append([])
        if unit.text != SPACE:
            groups[-1].append(unit)
    return [
        TimedText(
            text=tokenizer.join(unit.text for unit in group).strip(" "),
            start=group[0].start,
            end=group[-1].end,
            confidence=mean_confidence(group),
        )
        for group in groups
        if group
    ]


# ---- files


def write_alignments(path: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write one JSON object per line: key, lang, text, score, confidence, and `units` and `words` with text, start, end
    (seconds from the beginning of the utterance) and confidence of each."""
    lines = []
    for aligned in alignments:
        record: dict[str, object] = {
            "key": aligned.utterance.key,
            "lang": aligned.utterance.lang,
            "text": aligned.utterance.txt,
            "score": aligned.score,
            "confidence": round(mean_confidence(aligned.units), 4),  # how well the transcript fits the audio
        }
        for name, parts in {"units": aligned.units, "words": aligned.words}.items():
            record[name] = [{**asdict(part), "confidence": round(part.confidence, 4)} for part in parts]
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(path, "".join(lines))


def write_ctm(path: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write `key 1 start duration text confidence` per word, or per unit; white space in a text becomes `▁`."""
    lines = [
        f"{aligned.utterance.key} 1 {part.start:.4f} {part.end - part.start:.4f} "
        f"{SPACE.join(part.text.split()) or SPACE} {part.confidence:.4f}\n"
        for aligned in alignments
        for part in (aligned.units if of_units else aligned.words)
    ]
    write_atomic(path, "".join(lines))


def write_textgrids(folder: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write FOLDER/KEY.TextGrid with the tiers `units` and `words`; a `/` in a key becomes `%2F`.

    The grid is as long as the audio. Between two units, and between two words, is an interval without text.
    """
    for aligned in alignments:
        end = max([round(aligned.duration_s, 4), *(part.end for part in (*aligned.units, *aligned.words))])
        grid = Textgrid(0, end)
        for name, parts in {"units": aligned.units, "words": aligned.words}.items():
            grid.addTier(IntervalTier(name, [(part.start, part.end, part.text) for part in parts], 0, end))
        with open_atomic(folder / f"{aligned.utterance.key.replace('/', '%2F')}.TextGrid") as file:
            grid.save(file.name, format="long_textgrid", includeBlankSpaces=True)
