# SPDX-License-Identifier: Apache-2.0
"""Alignments as files: JSON lines, CTM (NIST's time-marked words) and TextGrid (Praat's tiers of intervals)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from wenet_hs.data.audio import probe_audio
from wenet_hs.decode.alignment import TimedText
from wenet_hs.decode.forced import AlignedUtterance
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import SPACE


def write_alignments(path: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write a JSON object a line: key, lang, text, score, confidence, and `units` and `words` with the text, start, end
    (seconds from the beginning of the utterance) and confidence of each."""
    lines = (json.dumps(_record(aligned), ensure_ascii=False, allow_nan=False) + "\n" for aligned in alignments)
    write_atomic(path, "".join(lines))


def write_ctm(path: Path, alignments: Iterable[AlignedUtterance], *, of_units: bool) -> None:
    """Write `key 1 start duration text confidence` for each word, or for each unit; white space in a text is `▁`."""
    lines = [
        f"{aligned.utterance.key} 1 {part.start:.4f} {part.end - part.start:.4f} "
        f"{SPACE.join(part.text.split()) or SPACE} {part.confidence:.4f}\n"
        for aligned in alignments
        for part in (aligned.units if of_units else aligned.words)
    ]
    write_atomic(path, "".join(lines))


def write_textgrids(folder: Path, alignments: Iterable[AlignedUtterance]) -> None:
    """Write FOLDER/KEY.TextGrid with the tiers `units` and `words`; a `/` in a key becomes `%2F`.

    The grid is as long as the audio. What lies between two units, and between two words, is an interval without text.
    """
    for aligned in alignments:
        name = aligned.utterance.key.replace("/", "%2F")
        tiers = {"units": aligned.units, "words": aligned.words}
        write_atomic(folder / f"{name}.TextGrid", textgrid(tiers, _duration(aligned.utterance)))


def textgrid(tiers: Mapping[str, Sequence[TimedText]], duration: float) -> str:
    """A TextGrid in Praat's long text format. Intervals fill each tier from 0 to `duration` seconds."""
    duration = max([round(duration, 4), *(part.end for parts in tiers.values() for part in parts)])
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {duration:.4f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, parts) in enumerate(tiers.items(), start=1):
        intervals = _intervals(parts, duration)
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += ["        xmin = 0", f"        xmax = {duration:.4f}", f"        intervals: size = {len(intervals)}"]
        for index, (start, end, text) in enumerate(intervals, start=1):
            lines += [f"        intervals [{index}]:", f"            xmin = {start:.4f}"]
            lines += [f"            xmax = {end:.4f}", f"            text = {_quoted(text)}"]
    return "\n".join(lines) + "\n"


def _intervals(parts: Sequence[TimedText], duration: float) -> list[tuple[float, float, str]]:
    """The parts and the gaps between them, none of which has length 0."""
    intervals, reached = [], 0.0
    for part in parts:
        if part.start > reached:
            intervals.append((reached, part.start, ""))
        intervals.append((part.start, part.end, part.text))
        reached = part.end
    if duration > reached:
        intervals.append((reached, duration, ""))
    return intervals


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _record(aligned: AlignedUtterance) -> dict[str, object]:
    return {
        "key": aligned.utterance.key,
        "lang": aligned.utterance.lang,
        "text": aligned.utterance.txt,
        "score": aligned.score,
        "confidence": round(aligned.confidence, 4),
        "units": [_part(part) for part in aligned.units],
        "words": [_part(part) for part in aligned.words],
    }


def _part(part: TimedText) -> dict[str, object]:
    return {**asdict(part), "confidence": round(part.confidence, 4)}


def _duration(utterance: Utterance) -> float:
    """Seconds of the utterance's audio, of which alone the times are."""
    if utterance.duration is not None:
        return utterance.duration
    end = utterance.end if utterance.end is not None else probe_audio(utterance.wav).duration_s
    return end - (utterance.start or 0.0)
