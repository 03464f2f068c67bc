# SPDX-License-Identifier: Apache-2.0
"""Recognition results as text and seconds, and the files that `recognize` writes from them."""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex  # type: ignore[import-untyped]

from wenet_hs.annotation.tiers import TimedText
from wenet_hs.base.files import one_field
from wenet_hs.decode.hypothesis import Alignment, Hypothesis
from wenet_hs.frontends.base import Frontend
from wenet_hs.manifest.data_list import Utterance, write_text
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.runs.file_names import HYPOTHESES_FILE
from wenet_hs.runs.hypotheses import Alternative
from wenet_hs.text.tokenizer import PhoneTokenizer, Tokenizer
from wenet_hs.text.units import NO_SPACES, SPACE
from wenet_hs.tree.atomic import write_atomic

if TYPE_CHECKING:
    from wenet_hs.model.experiment import Experiment

logger = logging.getLogger(__name__)

_PARTS = regex.compile(rf"(?V1)(?=[{NO_SPACES}])\X|(?:(?![{NO_SPACES}])\X)+")
_DIGITS = 4  # of a second: the begin of a frame is a multiple of half a millisecond


def timed_units(
    units: Sequence[str],
    alignment: Alignment,
    encoder: SpeechEncoder,
    frontend: Frontend,
    begin_s: float = 0.0,
) -> list[TimedText]:
    """The units of an alignment with their begin and end.

    A frame stands for one step (frame shift · subsampling), in the middle of the audio that it is
    computed from. With conv2d and 10 ms, frame 0 is computed from 85 ms and stands for 22.5 to 62.5
    ms.

    Args:
        frontend: what computes the encoder's input.
        begin_s: position in the utterance's audio at which the encoder's input begins.
    """
    step_s = encoder.stride * frontend.frame_s
    offset_s = begin_s + (frontend.span_s(encoder.min_frames) - step_s) / 2
    return [
        TimedText(
            text=text,
            start=round(
                max(begin_s, offset_s + first * step_s), _DIGITS
            ),  # centred windows begin before the audio
            end=round(offset_s + end * step_s, _DIGITS),
            confidence=math.exp(log_prob),
        )
        for text, (first, end), log_prob in zip(
            units, alignment.spans, alignment.log_probs, strict=True
        )
    ]


def mean_confidence(units: Sequence[TimedText]) -> float:
    """Geometric mean of the confidences of units, at least one."""
    confidences = [unit.confidence for unit in units]
    return math.exp(sum(map(math.log, confidences)) / len(units)) if all(confidences) else 0.0


def mark_confidence(is_overfitted: bool) -> dict[str, bool]:
    """The field of records with confidences that marks those of an over-fitted model.

    States it, once per command.
    """
    if is_overfitted:
        found = (
            "--model_dir: metrics.jsonl shows over-fitting: the confidences of words are unreliable"
        )
        logger.warning("%s, most are too high; train with more data or a smaller model", found)
    return {"confidence_is_unreliable": True} if is_overfitted else {}


@dataclass(frozen=True)
class _PartOfWord:
    """A timed unit, or the part of it that belongs to one word."""

    unit: TimedText
    text: str
    """Empty if the character of this unit began in a unit before it, as those written in bytes do."""


def timed_words(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units.

    They are separated by `▁`, wherever it stands: alone, or at either end of a unit.

    In a script without spaces between words each letter with its marks is a word (`NO_SPACES`). A
    word lasts from the begin of its first unit to the end of its last. A unit with a space in the
    middle belongs to both words. Phones do not mark words: they are one word.
    """
    return [
        TimedText(
            text=tokenizer.join(part.text for part in parts),
            start=parts[0].unit.start,
            end=parts[-1].unit.end,
            confidence=mean_confidence([part.unit for part in parts]),
        )
        for word in _divide_at_spaces(units, tokenizer)
        for parts in _divide_letters(word)
    ]


def _divide_at_spaces(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[list[_PartOfWord]]:
    """The parts of each word that is separated by `▁`. A word may have no part."""
    words: list[list[_PartOfWord]] = [[]]
    texts = tokenizer.texts(unit.text for unit in units)
    for unit, text in zip(units, texts, strict=True):
        before_space, *after_spaces = text.split(SPACE)
        is_rest_of_character = not text and bool(
            words[-1]
        )  # not the rest of a space that is written in bytes
        if before_space or is_rest_of_character:
            words[-1].append(_PartOfWord(unit, before_space))
        for begin_of_word in after_spaces:
            words.append([_PartOfWord(unit, begin_of_word)] if begin_of_word else [])
    return words


def _divide_letters(word: Sequence[_PartOfWord]) -> list[list[_PartOfWord]]:
    """The parts of each letter of a script without spaces, and of what is between such letters."""
    begins = {match.start() for match in _PARTS.finditer("".join(part.text for part in word))}
    letters = list[list[_PartOfWord]]()
    position = 0
    for part in word:
        if part.text and position in begins:
            letters.append([])
        letters[-1].append(part)
        position += len(part.text)
    return letters


def timed_parts(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units, or of a phone model the phones."""
    return list(units) if isinstance(tokenizer, PhoneTokenizer) else timed_words(units, tokenizer)


@dataclass(frozen=True)
class Segment:
    """The hypotheses of a clip, or of a segment of a long clip."""

    begin_s: float
    """From the beginning of the utterance."""
    nbest: Sequence[Alternative]
    """Best first."""
    units: Sequence[TimedText] | None = None
    """Of the best hypothesis; None if CTC cannot align it."""


def make_segment(nbest: Sequence[Hypothesis], begin_s: float, experiment: Experiment) -> Segment:
    """The hypotheses of a segment as text and seconds."""
    tokenizer, alignment = experiment.tokenizer, nbest[0].alignment
    names = tokenizer.table.units
    alternatives = [
        Alternative(
            text=tokenizer.decode(one.ids),
            score=one.score,
            units=tuple(names[unit] for unit in one.ids),
        )
        for one in nbest
    ]
    if alignment is None:
        return Segment(begin_s, alternatives)
    units = timed_units(
        alternatives[0].units, alignment, experiment.model.encoder, experiment.frontend, begin_s
    )
    return Segment(begin_s, alternatives, units)


def join_segments(segments: Sequence[Segment], tokenizer: Tokenizer) -> Segment:
    """The segments of an utterance, in order, as one with the joined best hypotheses.

    Texts are joined with a space if the units mark words: characters with `▁`, BPE, and always for
    phones. Scores are added. There are no times if a segment has units that CTC cannot align.
    """
    if len(segments) == 1:
        return segments[0]
    best = [segment.nbest[0] for segment in segments]
    marks_words = any(SPACE in text for text in tokenizer.texts(tokenizer.table.units))
    separator = (
        " " if marks_words else tokenizer.join(["", ""])
    )  # phones are joined with the tokenizer's separator
    text = separator.join(one.text.strip(" ") for one in best if one.text.strip(" "))
    units = tuple(unit for one in best for unit in one.units)
    joined = Alternative(text=text, score=sum(one.score for one in best), units=units)
    aligned = [segment.units for segment in segments if segment.units is not None]
    is_complete = all(
        segment.units is not None or not segment.nbest[0].units for segment in segments
    )
    timed = (
        [unit for of_segment in aligned for unit in of_segment] if aligned and is_complete else None
    )
    return Segment(segments[0].begin_s, [joined], timed)


def _zeros_by_stage() -> defaultdict[Any, defaultdict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


@dataclass
class Recognition:
    """The results of a data list."""

    segments: dict[str, dict[str, list[Segment]]]
    """Mode → key of the utterance → its segments in order; one if the clip was not cut."""
    seconds: defaultdict[int, defaultdict[str, float]] = field(default_factory=_zeros_by_stage)
    """Rank → stage → wall-clock seconds."""
    seconds_by_lang: defaultdict[str | None, defaultdict[str, float]] = field(
        default_factory=_zeros_by_stage
    )
    """Language → stage → seconds. In a batch every clip counts the same."""
    audio_seconds: defaultdict[str | None, float] = field(
        default_factory=lambda: defaultdict(float)
    )
    """Language → seconds of the utterances that were decoded."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key of each utterance that could not be read → reason, in the order of the list."""
    incomplete: set[str] = field(default_factory=set)
    """Keys of the clips that lack a little of the length in their header."""


def write_decoding_results(
    result_dir: Path, utterances: Sequence[Utterance], found: Recognition, experiment: Experiment
) -> None:
    """Write the hypotheses of each mode in the order of the list, and the clips that failed.

    Each line of `hyps.jsonl` has key, lang, text, score and units of the best hypothesis, and
    `nbest` with these of all. If CTC can align the best hypothesis there are also `times`, [begin,
    end] per unit in seconds from the beginning of the utterance, and `confidence`, the mean
    probability of the units by CTC, in [0, 1] (null if there is no unit), marked by
    `mark_confidence`. A clip that was cut has the joined best hypotheses of its segments, and
    `cuts` in seconds. `failed.tsv` has `key, reason` per line. Without failures it is removed.
    """
    mark, tokenizer = mark_confidence(experiment.is_overfitted), experiment.tokenizer
    for mode, segments_of in found.segments.items():
        records = []
        for utterance in utterances:
            segments = segments_of.get(utterance.key)
            if segments is None:
                continue
            whole = join_segments(segments, tokenizer)
            record: dict[str, Any] = {
                "key": utterance.key,
                "lang": utterance.lang,
                **vars(whole.nbest[0]),
            }
            if whole.units is not None:
                record["confidence"] = (
                    round(mean_confidence(whole.units), 4) if whole.units else None
                )
                record |= mark
                record["times"] = [(unit.start, unit.end) for unit in whole.units]
            if len(segments) > 1:
                record["cuts"] = [segment.begin_s for segment in segments[1:]]
            record["nbest"] = whole.nbest
            records.append(record)
        write_hypotheses(result_dir / mode, records)
    if found.failed:
        failures = "".join(f"{key}\t{one_field(reason)}\n" for key, reason in found.failed.items())
        write_atomic(result_dir / "failed.tsv", failures)
    else:
        (result_dir / "failed.tsv").unlink(missing_ok=True)


def write_hypotheses(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as `hyps.jsonl`, and their keys and texts as `text`."""
    lines = [
        json.dumps(record, ensure_ascii=False, allow_nan=False, default=vars) + "\n"
        for record in records
    ]
    write_atomic(folder / HYPOTHESES_FILE, "".join(lines))
    write_text(folder / "text", {record["key"]: record["text"] for record in records})


def write_speed(
    path: Path,
    found: Recognition,
    stages_of: Mapping[str, Sequence[str]],
    conditions: Mapping[str, Any],
) -> dict[str, float]:
    """Write `rtf.json` and return the real-time factor of each mode: seconds of work per second of
    audio.

    The seconds of a mode are those of the mode itself: features, encoder and its own searches
    (attention_rescoring includes the prefix search). The alignment is computed for all modes
    together and only listed in `seconds`. With several ranks, `wall_seconds` and `rtf` are those of
    the slowest rank; `seconds`, `sum_seconds` and `sum_rtf` are sums over the ranks.
    `sum_rtf_by_lang` gives each clip an equal part of the seconds of its batch, as padding makes
    them equally long. Interrupted runs are included. A list without audio has no factor and no
    file.

    Args:
        stages_of: the stages of each mode.
        conditions: what else belongs to the figures: options, versions, device, model.
    """
    if not found.audio_seconds:
        path.unlink(missing_ok=True)
        return {}
    audio_seconds, modes = sum(found.audio_seconds.values()), dict[str, dict[str, Any]]()
    for mode in found.segments:
        walls = [
            sum(seconds[stage] for stage in stages_of[mode]) for seconds in found.seconds.values()
        ]
        modes[mode] = {
            "wall_seconds": max(walls),
            "rtf": max(walls) / audio_seconds,
            "sum_seconds": sum(walls),
            "sum_rtf": sum(walls) / audio_seconds,
        }
        by_lang = {
            lang: sum(found.seconds_by_lang[lang][stage] for stage in stages_of[mode])
            / found.audio_seconds[lang]
            for lang in sorted(filter(None, found.audio_seconds))
        }
        if by_lang:
            modes[mode]["sum_rtf_by_lang"] = by_lang
    stages = dict.fromkeys(stage for seconds in found.seconds.values() for stage in seconds)
    report = {
        "audio_seconds": audio_seconds,
        "num_ranks": len(found.seconds),
        "seconds": {
            stage: sum(seconds[stage] for seconds in found.seconds.values()) for stage in stages
        },
        "modes": modes,
        **conditions,
    }
    write_atomic(path, json.dumps(report, indent=2) + "\n")
    return {mode: speed["rtf"] for mode, speed in modes.items()}
