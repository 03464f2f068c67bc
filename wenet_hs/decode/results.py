# SPDX-License-Identifier: Apache-2.0
"""What `recognize` writes: `RESULT/<mode>/text` and `hyps.jsonl`, `RESULT/rtf.json`, `RESULT/failed.tsv`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from wenet_hs.decode.alignment import FrameClock
from wenet_hs.decode.modes import ENCODER, STAGES_OF_MODE
from wenet_hs.decode.outcome import Part, Recognition
from wenet_hs.decode.recognition import FEATURES, Job
from wenet_hs.files import one_field, write_atomic
from wenet_hs.manifest import Utterance, write_text
from wenet_hs.text.tokenizer import SPACE, Tokenizer


def write_results(result_dir: Path, utterances: Sequence[Utterance], found: Recognition, tokenizer: Tokenizer) -> None:
    """Write the hypotheses of each mode in the order of the list, and the clips that failed.

    Each line of `hyps.jsonl`: key, lang, text, score, units of the best hypothesis, and `nbest` with the same of all.
    Where CTC can align the best hypothesis there is also `times`, of each unit [begin, end] in seconds from the
    beginning of the utterance (see alignment.FrameClock), and `confidence`, how probable CTC finds the units on
    average, in [0, 1]; null where there is none.
    A clip that was cut has the best hypotheses of its segments joined: their texts with a space between where units
    mark words, their scores added, and no other reading in `nbest`; `cuts` says where, in seconds.
    `failed.tsv` has `key, reason` a line; without failures there is none, not even that of an earlier run.
    """
    for mode, parts_of in found.parts.items():
        present = [utterance for utterance in utterances if utterance.key in parts_of]
        texts = {utterance.key: joined_text(parts_of[utterance.key], tokenizer) for utterance in present}
        records = (_record(utterance, parts_of[utterance.key], tokenizer, found.clock) for utterance in present)
        lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        write_atomic(result_dir / mode / "hyps.jsonl", "".join(lines))
        write_text(result_dir / mode / "text", texts)
    failures = [f"{u.key}\t{one_field(found.failed[u.key])}\n" for u in utterances if u.key in found.failed]
    if failures:
        write_atomic(result_dir / "failed.tsv", "".join(failures))
    else:
        (result_dir / "failed.tsv").unlink(missing_ok=True)


def write_speed(
    path: Path, found: Recognition, job: Job, conditions: Mapping[str, Any], *, device: torch.device | str
) -> dict[str, float]:
    """Write `rtf.json` and return the real-time factor of each mode: seconds of work for a second of audio.

    The seconds of a mode are those it would take alone: features, encoder and its own searches (attention_rescoring
    begins with the prefix search). Times of units are found for all modes together: `seconds` tells what that took.
    Of several ranks, `wall_seconds` and `rtf` are those of the slowest, whom the user waits for; `sum_seconds` and
    `sum_rtf` are what all of them took together, and `seconds` is a sum too. `sum_rtf_by_lang` gives each clip an equal
    part of its batch's seconds, for padding makes them of one length. What runs that were interrupted have done counts.
    A list without audio has no factor and no file.

    Args:
        conditions: what else belongs to the figures: versions, the model, a language model.
    """
    if not found.audio_seconds:
        path.unlink(missing_ok=True)
        return {}
    modes = {mode: _speed(found, (FEATURES, ENCODER, *STAGES_OF_MODE[mode])) for mode in found.parts}
    stages = sorted({stage for seconds in found.seconds.values() for stage in seconds}, key=_place_of_stage)
    report = {
        "audio_seconds": found.audio_seconds,
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "num_ranks": len(found.seconds),
        **asdict(job.options),
        "batch_size": job.batch_size,
        "max_segment_s": job.max_segment_s,
        "seconds": {stage: sum(of_rank.get(stage, 0.0) for of_rank in found.seconds.values()) for stage in stages},
        "modes": modes,
        **conditions,
    }
    write_atomic(path, json.dumps(report, indent=2) + "\n")
    return {mode: speed["rtf"] for mode, speed in modes.items()}


def joined_text(parts: Sequence[Part], tokenizer: Tokenizer) -> str:
    """The text of the best hypotheses of an utterance's segments, in order.

    Between two there is a space where units mark words: characters with `▁` among them, BPE, and phones always.
    """
    texts = [tokenizer.decode(part.nbest[0].ids) for part in parts]
    if len(texts) == 1:
        return texts[0]
    marks_words = any(unit.startswith(SPACE) for unit in tokenizer.table.units)
    # Phones are joined as the tokenizer joins them.
    between = " " if marks_words else tokenizer.join(["", ""])
    return between.join(text.strip(" ") for text in texts if text.strip(" "))


def joined_times(parts: Sequence[Part], clock: FrameClock) -> tuple[list[tuple[float, float]], float | None] | None:
    """When each unit was said, in seconds from the beginning of the utterance, and the confidence of all of them.

    None where a segment has units that CTC cannot align, or where there is nothing to align at all.
    """
    alignments = [part.nbest[0].alignment for part in parts]
    if any(not alignment and part.nbest[0].ids for alignment, part in zip(alignments, parts, strict=True)):
        return None
    aligned = [(part.begin_s, one) for part, one in zip(parts, alignments, strict=True) if one is not None]
    if not aligned:
        return None
    times = [clock.span(*span, begin_s=begin_s) for begin_s, one in aligned for span in one.spans]
    log_probs = [log_prob for _, one in aligned for log_prob in one.log_probs]
    return times, math.exp(sum(log_probs) / len(log_probs)) if log_probs else None


def _speed(found: Recognition, stages: Sequence[str]) -> dict[str, Any]:
    walls = [sum(seconds.get(stage, 0.0) for stage in stages) for seconds in found.seconds.values()]
    by_lang = {
        lang: sum(time.seconds[stage] for stage in stages) / time.audio_seconds
        for lang, time in sorted(found.by_lang.items())
    }
    return {
        "wall_seconds": max(walls),
        "rtf": max(walls) / found.audio_seconds,
        "sum_seconds": sum(walls),
        "sum_rtf": sum(walls) / found.audio_seconds,
        **({"sum_rtf_by_lang": by_lang} if by_lang else {}),
    }


def _record(utterance: Utterance, parts: Sequence[Part], tokenizer: Tokenizer, clock: FrameClock) -> dict[str, Any]:
    names = tokenizer.table.units
    if len(parts) == 1:
        readings = [
            {"text": tokenizer.decode(one.ids), "score": one.score, "units": [names[unit_id] for unit_id in one.ids]}
            for one in parts[0].nbest
        ]
    else:
        best = [part.nbest[0] for part in parts]
        units = [names[unit_id] for one in best for unit_id in one.ids]
        score = sum(one.score for one in best)
        readings = [{"text": joined_text(parts, tokenizer), "score": score, "units": units}]
    timing: dict[str, Any] = {}
    timed = joined_times(parts, clock)
    if timed is not None:
        times, confidence = timed
        timing = {"confidence": None if confidence is None else round(confidence, 4), "times": times}
    if len(parts) > 1:
        timing["cuts"] = [part.begin_s for part in parts[1:]]
    return {"key": utterance.key, "lang": utterance.lang, **readings[0], **timing, "nbest": readings}


def _place_of_stage(stage: str) -> int:
    order = [FEATURES, ENCODER, *(one for stages in STAGES_OF_MODE.values() for one in stages)]
    return order.index(stage) if stage in order else len(order)
