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

_LETTER_OR_REST = regex.compile(rf"(?V1)(?=[{NO_SPACES}])\X|(?:(?![{NO_SPACES}])\X)+")
"""One letter with its marks of a script without spaces, or what is between such letters."""
_DIGITS = 4
"""Decimals of a second: the begin of a frame is a multiple of half a millisecond."""


# ---- one segment


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
    """The hypotheses of a segment as text, and the units of the best one in seconds."""
    tokenizer = experiment.tokenizer
    unit_names = tokenizer.table.units
    alternatives = []
    for hypothesis in nbest:
        text = tokenizer.decode(hypothesis.ids)
        units_of_text = tuple(unit_names[unit] for unit in hypothesis.ids)
        alternatives.append(Alternative(text=text, score=hypothesis.score, units=units_of_text))
    alignment = nbest[0].alignment
    if alignment is None:
        return Segment(begin_s, alternatives)
    units = timed_units(
        alternatives[0].units, alignment, experiment.model.encoder, experiment.frontend, begin_s
    )
    return Segment(begin_s, alternatives, units)


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
    timed = []
    for text, (first, end), log_prob in zip(
        units, alignment.spans, alignment.log_probs, strict=True
    ):
        start_s = max(begin_s, offset_s + first * step_s)  # centred windows begin before the audio
        end_s = offset_s + end * step_s
        timed.append(
            TimedText(
                text=text,
                start=round(start_s, _DIGITS),
                end=round(end_s, _DIGITS),
                confidence=math.exp(log_prob),
            )
        )
    return timed


def mean_confidence(units: Sequence[TimedText]) -> float:
    """Geometric mean of the confidences of units, at least one; 0 if one of them is 0."""
    confidences = [unit.confidence for unit in units]
    if not all(confidences):
        return 0.0
    return math.exp(sum(map(math.log, confidences)) / len(units))


def mark_confidence(is_overfitted: bool) -> dict[str, bool]:
    """The field of records with confidences that marks those of an over-fitted model.

    For such a model it also logs a warning, so it is called once per command. Empty for any other.
    """
    if not is_overfitted:
        return {}
    found = "--model_dir: metrics.jsonl shows over-fitting: the confidences of words are unreliable"
    logger.warning("%s, most are too high; train with more data or a smaller model", found)
    return {"confidence_is_unreliable": True}


def timed_parts(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units, or of a phone model the phones."""
    return list(units) if isinstance(tokenizer, PhoneTokenizer) else timed_words(units, tokenizer)


def timed_words(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[TimedText]:
    """The words of timed units.

    They are separated by `▁`, wherever it stands: alone, or at either end of a unit.

    In a script without spaces between words each letter with its marks is a word (`NO_SPACES`). A
    word lasts from the begin of its first unit to the end of its last. A unit with a space in the
    middle belongs to both words. Phones do not mark words: they are one word.
    """
    words = []
    for word in _divide_at_spaces(units, tokenizer):
        for parts in _divide_letters(word):
            words.append(
                TimedText(
                    text=tokenizer.join(part.text for part in parts),
                    start=parts[0].unit.start,
                    end=parts[-1].unit.end,
                    confidence=mean_confidence([part.unit for part in parts]),
                )
            )
    return words


@dataclass(frozen=True)
class _PartOfWord:
    """A timed unit, or the part of it that belongs to one word."""

    unit: TimedText
    text: str
    """Empty if its character began in a unit before it, as characters written in bytes do."""


def _divide_at_spaces(units: Sequence[TimedText], tokenizer: Tokenizer) -> list[list[_PartOfWord]]:
    """The parts of each word that is separated by `▁`. A word may have no part.

    The units `a`, `b▁c` and `▁d` make the words (`a`, `b`), (`c`) and (`d`).
    """
    words: list[list[_PartOfWord]] = [[]]
    texts = tokenizer.texts(unit.text for unit in units)
    for unit, text in zip(units, texts, strict=True):
        before_space, *after_spaces = text.split(SPACE)
        # A unit without text is the rest of a character that began in a unit before it. If the word
        # has no part yet, this character was the space, which belongs to no word.
        is_rest_of_character = not text and bool(words[-1])
        if before_space or is_rest_of_character:
            words[-1].append(_PartOfWord(unit, before_space))
        for begin_of_word in after_spaces:
            words.append([_PartOfWord(unit, begin_of_word)] if begin_of_word else [])
    return words


def _divide_letters(word: Sequence[_PartOfWord]) -> list[list[_PartOfWord]]:
    """The parts of each letter of a script without spaces, and of what is between such letters."""
    word_text = "".join(part.text for part in word)
    begins = {match.start() for match in _LETTER_OR_REST.finditer(word_text)}
    letters = list[list[_PartOfWord]]()
    position = 0  # of the part in the text of the word
    for part in word:
        if part.text and position in begins:
            letters.append([])
        letters[-1].append(part)
        position += len(part.text)
    return letters


# ---- one utterance


def join_segments(segments: Sequence[Segment], tokenizer: Tokenizer) -> Segment:
    """The segments of an utterance, in order, as one with the joined best hypotheses.

    Texts are joined with a space if the units mark words: characters with `▁`, BPE, and always for
    phones. Scores are added. There are no times if a segment has units that CTC cannot align.
    """
    if len(segments) == 1:
        return segments[0]
    best = [segment.nbest[0] for segment in segments]
    marks_words = any(SPACE in text for text in tokenizer.texts(tokenizer.table.units))
    # Without marks: what the tokenizer has between phones, and nothing between characters.
    separator = " " if marks_words else tokenizer.join(["", ""])
    texts = [alternative.text.strip(" ") for alternative in best]
    units = [unit for alternative in best for unit in alternative.units]
    joined = Alternative(
        text=separator.join(text for text in texts if text),
        score=sum(alternative.score for alternative in best),
        units=tuple(units),
    )
    return Segment(segments[0].begin_s, [joined], _join_timed_units(segments))


def _join_timed_units(segments: Sequence[Segment]) -> list[TimedText] | None:
    """The timed units of all segments, if CTC could align each of them that has units; else None.

    None also if no segment has times.
    """
    has_times = False
    timed: list[TimedText] = []
    for segment in segments:
        if segment.units is not None:
            has_times = True
            timed += segment.units
        elif segment.nbest[0].units:
            return None
    return timed if has_times else None


# ---- a data list and its files


def _zeros_by_stage() -> defaultdict[Any, defaultdict[str, float]]:
    """Seconds by anything, then by stage; 0 where none was added."""
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
    result_dir: Path,
    utterances: Sequence[Utterance],
    recognition: Recognition,
    experiment: Experiment,
) -> None:
    """Write the hypotheses of each mode in the order of the list, and the clips that failed.

    Per mode there are the files of `write_hypotheses`, with a record per utterance that was
    decoded (`_record`). `failed.tsv` has `key, reason` per line. Without failures it is removed.
    """
    mark = mark_confidence(experiment.is_overfitted)
    for mode, segments_of in recognition.segments.items():
        records = [
            _record(utterance, segments_of[utterance.key], experiment.tokenizer, mark)
            for utterance in utterances
            if utterance.key in segments_of
        ]
        write_hypotheses(result_dir / mode, records)
    failed_path = result_dir / "failed.tsv"
    if recognition.failed:
        lines = [f"{key}\t{one_field(reason)}\n" for key, reason in recognition.failed.items()]
        write_atomic(failed_path, "".join(lines))
    else:
        failed_path.unlink(missing_ok=True)


def _record(
    utterance: Utterance,
    segments: Sequence[Segment],
    tokenizer: Tokenizer,
    mark: Mapping[str, bool],
) -> dict[str, Any]:
    """The line of `hyps.jsonl` of an utterance.

    It has key, lang, text, score and units of the best hypothesis, and `nbest` with these of all.
    If CTC can align the best hypothesis there are also `times`, [begin, end] per unit in seconds
    from the beginning of the utterance, and `confidence`, the mean probability of the units by CTC,
    in [0, 1] (null if there is no unit), with the field `mark`. A clip that was cut has the joined
    best hypotheses of its segments, and `cuts` in seconds.
    """
    joined = join_segments(segments, tokenizer)
    record: dict[str, Any] = {
        "key": utterance.key,
        "lang": utterance.lang,
        **vars(joined.nbest[0]),  # text, score, units
    }
    if joined.units is not None:
        record["confidence"] = round(mean_confidence(joined.units), 4) if joined.units else None
        record |= mark
        record["times"] = [(unit.start, unit.end) for unit in joined.units]
    if len(segments) > 1:
        record["cuts"] = [segment.begin_s for segment in segments[1:]]
    record["nbest"] = joined.nbest
    return record


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
    recognition: Recognition,
    stages_of: Mapping[str, Sequence[str]],
    conditions: Mapping[str, Any],
) -> dict[str, float]:
    """Write `rtf.json`, and return the real-time factor of each mode.

    It is the seconds of work per second of audio. The seconds of a mode are those of the mode
    itself: features, encoder and its own searches (attention_rescoring includes the prefix search).
    The alignment is computed for all modes together and only listed in `seconds`. With several
    ranks, `wall_seconds` and `rtf` are those of the slowest rank; `seconds`, `sum_seconds` and
    `sum_rtf` are sums over the ranks. `sum_rtf_by_lang` gives each clip an equal part of the
    seconds of its batch, as padding makes them equally long. Interrupted runs are included. A list
    without audio has no factor, and its file is removed.

    Args:
        stages_of: the stages of each mode.
        conditions: what else belongs to the figures: options, versions, device, model.
    """
    if not recognition.audio_seconds:
        path.unlink(missing_ok=True)
        return {}
    speed_of = {
        mode: _speed_of_stages(recognition, stages_of[mode]) for mode in recognition.segments
    }
    seconds_by_stage: dict[str, float] = {}  # in the order in which the ranks have them
    for seconds_of_rank in recognition.seconds.values():
        for stage, seconds in seconds_of_rank.items():
            seconds_by_stage[stage] = seconds_by_stage.get(stage, 0) + seconds
    report = {
        "audio_seconds": sum(recognition.audio_seconds.values()),
        "num_ranks": len(recognition.seconds),
        "seconds": seconds_by_stage,
        "modes": speed_of,
        **conditions,
    }
    write_atomic(path, json.dumps(report, indent=2) + "\n")
    return {mode: speed["rtf"] for mode, speed in speed_of.items()}


def _speed_of_stages(recognition: Recognition, stages: Sequence[str]) -> dict[str, Any]:
    """The figures of a mode with these stages, as `rtf.json` has them."""
    audio_seconds = sum(recognition.audio_seconds.values())
    seconds_of_ranks = []
    for seconds_by_stage in recognition.seconds.values():
        seconds_of_ranks.append(sum(seconds_by_stage[stage] for stage in stages))
    speed: dict[str, Any] = {
        "wall_seconds": max(seconds_of_ranks),
        "rtf": max(seconds_of_ranks) / audio_seconds,
        "sum_seconds": sum(seconds_of_ranks),
        "sum_rtf": sum(seconds_of_ranks) / audio_seconds,
    }
    langs = sorted(lang for lang in recognition.audio_seconds if lang)
    if langs:
        rtf_by_lang = {}
        for lang in langs:
            seconds_by_stage = recognition.seconds_by_lang[lang]
            lang_seconds = sum(seconds_by_stage[stage] for stage in stages)
            rtf_by_lang[lang] = lang_seconds / recognition.audio_seconds[lang]
        speed["sum_rtf_by_lang"] = rtf_by_lang
    return speed
