# SPDX-License-Identifier: Apache-2.0
"""Recognition results as values, and the files that `recognize` writes from them."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wenet_hs.decode.alignment import FrameClock, TimedText, Times, timed_units
from wenet_hs.decode.hypothesis import Hypothesis, mean_probability
from wenet_hs.files import one_field, write_atomic
from wenet_hs.manifest import Utterance, write_text
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import SPACE


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A hypothesis as text."""

    text: str
    score: float
    """Natural logarithm, comparable within one mode only."""
    units: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """The hypotheses of a clip, or of a segment of a long clip."""

    begin_s: float
    """From the beginning of the utterance."""
    nbest: Sequence[Alternative]
    """Best first."""
    times: Times | None = None
    """Of the units of the best hypothesis, from the beginning of the utterance; None if CTC cannot align it."""
    log_probs: Sequence[float] = ()
    """Of the same units, by CTC."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Segment":
        """The segment whose fields were written as JSON."""
        times = record["times"] and [(start, end) for start, end in record["times"]]
        nbest = [Alternative(**one) for one in record["nbest"]]
        return cls(**{**record, "nbest": nbest, "times": times})

    def timed_units(self) -> list[TimedText] | None:
        """The units of the best hypothesis with their times."""
        return None if self.times is None else timed_units(self.nbest[0].units, self.times, self.log_probs)


def make_segment(nbest: Sequence[Hypothesis], begin_s: float, tokenizer: Tokenizer, clock: FrameClock) -> Segment:
    """The hypotheses of a segment as text and seconds."""
    names, alignment = tokenizer.table.units, nbest[0].alignment
    alternatives = [
        Alternative(text=tokenizer.decode(one.ids), score=one.score, units=tuple(names[unit] for unit in one.ids))
        for one in nbest
    ]
    if alignment is None:
        return Segment(begin_s, alternatives)
    return Segment(begin_s, alternatives, clock.times(alignment, begin_s=begin_s), alignment.log_probs)


def join_segments(segments: Sequence[Segment], tokenizer: Tokenizer) -> Segment:
    """The segments of an utterance, in order, as one with the joined best hypotheses.

    Texts are joined with a space if the units mark words: characters with `▁`, BPE, and always for phones. Scores are
    added. There are no times if a segment has units that CTC cannot align.
    """
    if len(segments) == 1:
        return segments[0]
    best = [segment.nbest[0] for segment in segments]
    marks_words = any(unit.startswith(SPACE) for unit in tokenizer.table.units)
    separator = " " if marks_words else tokenizer.join(["", ""])  # phones are joined with the tokenizer's separator
    text = separator.join(one.text.strip(" ") for one in best if one.text.strip(" "))
    units = tuple(unit for one in best for unit in one.units)
    joined = Alternative(text=text, score=sum(one.score for one in best), units=units)
    aligned = [(segment.times, segment.log_probs) for segment in segments if segment.times is not None]
    is_complete = all(segment.times is not None or not segment.nbest[0].units for segment in segments)
    if not aligned or not is_complete:
        return Segment(segments[0].begin_s, [joined])
    times = [time for times, _ in aligned for time in times]
    log_probs = [log_prob for _, log_probs in aligned for log_prob in log_probs]
    return Segment(segments[0].begin_s, [joined], times, log_probs)


def _zeros_by_stage() -> defaultdict[Any, defaultdict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


@dataclass
class Recognition:
    """The results of a data list."""

    segments: dict[str, dict[str, list[Segment]]]
    """Mode → key of the utterance → its segments in order; one if the clip was not cut."""
    seconds: defaultdict[int, defaultdict[str, float]] = field(default_factory=_zeros_by_stage)
    """Rank → stage → wall-clock seconds."""
    seconds_by_lang: defaultdict[str | None, defaultdict[str, float]] = field(default_factory=_zeros_by_stage)
    """Language → stage → seconds. In a batch every clip counts the same."""
    audio_seconds: defaultdict[str | None, float] = field(default_factory=lambda: defaultdict(float))
    """Language → seconds of the utterances that were decoded."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key of each utterance that could not be read → reason."""
    too_short: list[str] = field(default_factory=list)
    """Keys of the utterances without an encoder frame; their hypothesis is empty."""
    incomplete: set[str] = field(default_factory=set)
    """Keys of the clips that lack a little of the length in their header."""


def write_results(result_dir: Path, utterances: Sequence[Utterance], found: Recognition, tokenizer: Tokenizer) -> None:
    """Write the hypotheses of each mode in the order of the list, and the clips that failed.

    Each line of `hyps.jsonl` has key, lang, text, score and units of the best hypothesis, and `nbest` with these of
    all. If CTC can align the best hypothesis there are also `times`, [begin, end] per unit in seconds from the
    beginning of the utterance, and `confidence`, the mean probability of the units by CTC, in [0, 1] (null if there is
    no unit). A clip that was cut has the joined best hypotheses of its segments, and `cuts` in seconds.
    `failed.tsv` has `key, reason` per line. Without failures it is removed.
    """
    for mode, segments_of in found.segments.items():
        texts, lines = {}, []
        for utterance in utterances:
            if utterance.key in segments_of:
                record = _record(utterance, segments_of[utterance.key], tokenizer)
                texts[utterance.key] = record["text"]
                lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False, default=vars) + "\n")
        write_atomic(result_dir / mode / "hyps.jsonl", "".join(lines))
        write_text(result_dir / mode / "text", texts)
    failures = [f"{u.key}\t{one_field(found.failed[u.key])}\n" for u in utterances if u.key in found.failed]
    if failures:
        write_atomic(result_dir / "failed.tsv", "".join(failures))
    else:
        (result_dir / "failed.tsv").unlink(missing_ok=True)


def _record(utterance: Utterance, segments: Sequence[Segment], tokenizer: Tokenizer) -> dict[str, Any]:
    """A line of `hyps.jsonl`."""
    whole = join_segments(segments, tokenizer)
    record: dict[str, Any] = {"key": utterance.key, "lang": utterance.lang, **vars(whole.nbest[0])}
    if whole.times is not None:
        confidence = mean_probability(whole.log_probs)
        record["confidence"] = None if confidence is None else round(confidence, 4)
        record["times"] = whole.times
    if len(segments) > 1:
        record["cuts"] = [segment.begin_s for segment in segments[1:]]
    return {**record, "nbest": whole.nbest}


def write_speed(
    path: Path, found: Recognition, stages_of: Mapping[str, Sequence[str]], conditions: Mapping[str, Any]
) -> dict[str, float]:
    """Write `rtf.json` and return the real-time factor of each mode: seconds of work per second of audio.

    The seconds of a mode are those of the mode alone: features, encoder and its own searches (attention_rescoring
    includes the prefix search). The alignment is computed for all modes together and only listed in `seconds`.
    With several ranks, `wall_seconds` and `rtf` are those of the slowest rank; `seconds`, `sum_seconds` and `sum_rtf`
    are sums over the ranks. `sum_rtf_by_lang` gives each clip an equal part of the seconds of its batch, as padding
    makes them equally long. Interrupted runs are included. A list without audio has no factor and no file.

    Args:
        stages_of: the stages of each mode.
        conditions: what else belongs to the figures: options, versions, device, model.
    """
    if not found.audio_seconds:
        path.unlink(missing_ok=True)
        return {}
    modes = {mode: _speed(found, stages_of[mode]) for mode in found.segments}
    stages = dict.fromkeys(stage for seconds in found.seconds.values() for stage in seconds)
    report = {
        "audio_seconds": sum(found.audio_seconds.values()),
        "num_ranks": len(found.seconds),
        "seconds": {stage: sum(seconds[stage] for seconds in found.seconds.values()) for stage in stages},
        "modes": modes,
        **conditions,
    }
    write_atomic(path, json.dumps(report, indent=2) + "\n")
    return {mode: speed["rtf"] for mode, speed in modes.items()}


def _speed(found: Recognition, stages: Sequence[str]) -> dict[str, Any]:
    walls = [sum(seconds[stage] for stage in stages) for seconds in found.seconds.values()]
    audio_seconds = sum(found.audio_seconds.values())
    by_lang = {
        lang: sum(found.seconds_by_lang[lang][stage] for stage in stages) / found.audio_seconds[lang]
        for lang in sorted(filter(None, found.audio_seconds))
    }
    return {
        "wall_seconds": max(walls),
        "rtf": max(walls) / audio_seconds,
        "sum_seconds": sum(walls),
        "sum_rtf": sum(walls) / audio_seconds,
        **({"sum_rtf_by_lang": by_lang} if by_lang else {}),
    }
