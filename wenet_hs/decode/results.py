# SPDX-License-Identifier: Apache-2.0
"""What `recognize` writes: `RESULT/<mode>/text` and `hyps.jsonl`, `RESULT/rtf.json`, `RESULT/failed.tsv`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from wenet_hs.decode.alignment import FrameClock
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import ENCODER, STAGES_OF_MODE
from wenet_hs.decode.recognition import FEATURES, Recognition
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance, write_text
from wenet_hs.text.tokenize import Tokenizer


def write_results(result_dir: Path, utterances: Sequence[Utterance], found: Recognition, tokenizer: Tokenizer) -> None:
    """Write the hypotheses of each mode in the order of the list, and the clips that failed.

    Each line of `hyps.jsonl`: key, lang, text, score, units of the best hypothesis, and `nbest` with the same of all.
    Where CTC can align the best hypothesis there is also `times`, of each unit [begin, end] in seconds from the
    beginning of the utterance (see alignment.FrameClock), and `confidence`, how probable CTC finds the units on
    average, in [0, 1]; null where there is none.
    `failed.tsv` has `key, reason` a line; without failures there is none, not even that of an earlier run.
    """
    for mode, nbest_of in found.nbest.items():
        present = [utterance for utterance in utterances if utterance.key in nbest_of]
        texts = {utterance.key: tokenizer.decode(nbest_of[utterance.key][0].ids) for utterance in present}
        records = (_record(utterance, nbest_of[utterance.key], tokenizer, found.clock) for utterance in present)
        lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        write_atomic(result_dir / mode / "hyps.jsonl", "".join(lines))
        write_text(result_dir / mode / "text", texts)
    failures = [f"{u.key}\t{_one_field(found.failed[u.key])}\n" for u in utterances if u.key in found.failed]
    if failures:
        write_atomic(result_dir / "failed.tsv", "".join(failures))
    else:
        (result_dir / "failed.tsv").unlink(missing_ok=True)


def write_speed(
    path: Path, found: Recognition, options: DecodeOptions, *, batch_size: int, device: torch.device | str
) -> dict[str, float]:
    """Write `rtf.json` and return the real-time factor of each mode: seconds of work for a second of audio.

    The seconds of a mode are those it would take alone: features, encoder and its own searches (attention_rescoring
    begins with the prefix search). Times of units are found for all modes together: `seconds` tells what that took.
    A list without audio has no factor and no file.
    """
    if not found.audio_seconds:
        path.unlink(missing_ok=True)
        return {}
    walls = {
        mode: sum(found.times.seconds[stage] for stage in (FEATURES, ENCODER, *STAGES_OF_MODE[mode]))
        for mode in found.nbest
    }
    rtf = {mode: wall / found.audio_seconds for mode, wall in walls.items()}
    report = {
        "audio_seconds": found.audio_seconds,
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        **asdict(options),
        "batch_size": batch_size,
        "seconds": dict(found.times.seconds),
        "modes": {mode: {"wall_seconds": walls[mode], "rtf": rtf[mode]} for mode in walls},
    }
    write_atomic(path, json.dumps(report, indent=2) + "\n")
    return rtf


def _record(
    utterance: Utterance, nbest: Sequence[Hypothesis], tokenizer: Tokenizer, clock: FrameClock
) -> dict[str, Any]:
    readings = [
        {
            "text": tokenizer.decode(hypothesis.ids),
            "score": hypothesis.score,
            "units": [tokenizer.table.units[unit_id] for unit_id in hypothesis.ids],
        }
        for hypothesis in nbest
    ]
    timing: dict[str, Any] = {}
    alignment = nbest[0].alignment
    if alignment is not None:
        confidence = None if alignment.confidence is None else round(alignment.confidence, 4)
        timing = {"confidence": confidence, "times": [clock.span(*span) for span in alignment.spans]}
    return {"key": utterance.key, "lang": utterance.lang, **readings[0], **timing, "nbest": readings}


def _one_field(text: str) -> str:
    return " ".join(text.split())
