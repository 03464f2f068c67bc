# SPDX-License-Identifier: Apache-2.0
"""How often does `prepare folder` take a text for times, or times for a text?

Text: sentences as transcripts of 1, 2, 3, 6 and 20 lines, beside audio of 15 s and of an hour. A text is refused by
mistake if any times are found in it; in an hour more numbers may be times. Times: tiers of ELAN files, and sentences
with made-up times, as transcripts in each of `FORMS`. They are found if the transcript is read or refused.

Example: python benchmarks/unknown_times.py --sentences cv/*.txt --data_lists data/*/data.list --elan fieldwork/*.eaf
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
from paired import body_of, publish

from wenet_hs.annotation.eaf import read_elan
from wenet_hs.base.files import read_lines
from wenet_hs.corpus.labels import read_labels
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.errors import DataError

NUM_LINES = (1, 2, 3, 6, 20)
"""Of a transcript that is made of sentences."""
AUDIO_S = (15, 3600)
WIKITEXT_SIGNS = {" @.@ ": ".", " @,@ ": ",", " @-@ ": "-", " : ": ":", "( ": "(", " )": ")"}
"""How WikiText spaces signs, and how they are usually written."""
_RATE = 8000
_MAX_SEGMENTS = 60
_SENTENCES_PER_FILE = 400
"""Of each file of sentences, which get times."""


@dataclass(frozen=True)
class Segment:
    """A part of a recording."""

    begin_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Form:
    """How a transcript with times is written."""

    name: str
    line: str
    """Of a segment, with the names of `fields`."""
    head: str = ""
    suffix: str = ".txt"
    is_doubtful: bool = False
    """Whether a single such line is text on purpose."""

    def write(self, segments: Sequence[Segment]) -> str:
        lines = [self.line.format_map(fields(segment, number)) for number, segment in enumerate(segments, start=1)]
        return self.head + "\n".join(lines)


def fields(segment: Segment, number: int) -> dict[str, object]:
    """What the line of a form may contain."""
    values: dict[str, object] = {"number": number, "text": segment.text, "word": segment.text.split()[0]}
    for name, seconds in (("begin", segment.begin_s), ("end", segment.end_s)):
        minutes = int(seconds) // 60
        whole = int(seconds) % 60
        milliseconds = int(1000 * seconds) % 1000
        clock = f"{minutes // 60:02d}:{minutes % 60:02d}:{whole:02d}"
        values |= {
            name: f"{seconds:.2f}",
            f"{name}_s": int(seconds),
            f"{name}_ms": int(1000 * seconds),
            f"{name}_100ns": int(1e7 * seconds),
            f"{name}_frame": int(25 * seconds),
            f"{name}_tenth": int(10 * seconds),
            f"{name}_clock": clock,
            f"{name}_exact": f"{clock}.{milliseconds:03d}",
            f"{name}_comma": f"{clock},{milliseconds:03d}",
            f"{name}_mss": f"{minutes}:{whole:02d}",
            f"{name}_spelled": f"{minutes}m{whole:02d}s",
            f"{name}_primes": f"{minutes}'{whole:02d}''",
            f"{name}_dotted": clock.replace(":", "."),
        }
    values["duration"] = f"{segment.end_s - segment.begin_s:.2f}"
    values["duration_s"] = max(1, round(segment.end_s - segment.begin_s))
    return values


FORMS = (
    Form("SRT", "{number}\n{begin_comma} --> {end_comma}\n{text}\n"),
    Form("WebVTT", "{begin_exact} --> {end_exact}\n{text}\n", head="WEBVTT\n\n"),
    Form("SBV", "{begin_exact},{end_exact}\n{text}\n"),
    Form("SubViewer", "{begin_exact},{end_exact}\n{text}\n", head="[INFORMATION]\n[END INFORMATION]\n[SUBTITLE]\n"),
    Form("MicroDVD", "{{{begin_frame}}}{{{end_frame}}}{text}"),
    Form("MPL2", "[{begin_tenth}][{end_tenth}]{text}"),
    Form("TMPlayer", "{begin_clock}:{text}"),
    Form("LRC", "[{begin_mss}.50]{text}"),
    Form("Whisper's output", "[{begin_exact} --> {end_exact}]  {text}"),
    Form("Whisper's TSV", "{begin_ms}\t{end_ms}\t{text}", head="start\tend\ttext\n", suffix=".tsv"),
    Form("table begin, end, text", "{begin}\t{end}\t{text}", head="begin\tend\ttext\n", suffix=".tsv"),
    Form("name, spaces, m:ss; text", "Speaker {number}  {begin_mss}\n{text}\n"),
    Form("name (h:mm:ss): text", "Speaker {number} ({begin_clock}):\n{text}\n"),
    Form("[h:mm:ss] name: text", "[{begin_clock}] Ana: {text}"),
    Form("name [m:ss]: text", "Ana [{begin_mss}]: {text}"),
    Form("m:ss, then text", "{begin_mss}\n{text}"),
    Form("h:mm:ss:ff h:mm:ss:ff text", "{begin_clock}:12 {end_clock}:03 {text}"),
    Form("[s-s] text", "[{begin}-{end}] {text}"),
    Form("Audacity", "{begin}\t{end}\t{text}"),
    Form("HTK (MLF)", "{begin_100ns} {end_100ns} {word}", head='#!MLF!#\n"*/a.lab"\n'),
    Form("ESPS", "    {end}  121 {word}", head="signal a\nnfields 1\n#\n"),
    Form("CTM", "rec 1 {begin} {duration} {word} 0.9", head=";; c\n\n", suffix=".ctm"),
    Form("CTM in whole seconds", "rec 1 {begin_s} {duration_s} {word}", suffix=".ctm"),
    Form("STM", "rec 1 spk {begin} {end} <o,f0,male> {text}", suffix=".stm"),
    Form("STM in whole seconds", "rec 1 spk {begin_s} {end_s} {text}", suffix=".stm"),
    Form("Toolbox", "\\ref {number}\n\\ELANBegin {begin}\n\\ELANEnd {end}\n\\tx {text}\n"),
    Form("SALT", "C {text}", head="$ Child, Examiner\n+ Language: English\n- 0:00\n"),
    Form("ms;ms;text", "{begin_ms};{end_ms};{text}"),
    Form("start= end= text=", "start={begin} end={end} text={text}"),
    Form("s s text", "{begin} {end} {text}", is_doubtful=True),
    Form("s text", "{begin} {text}", is_doubtful=True),
    Form("text s s", "{text} {begin} {end}", is_doubtful=True),
    Form("ms ms text", "{begin_ms} {end_ms} {text}", is_doubtful=True),
    Form("m:ss text", "{begin_mss} {text}", is_doubtful=True),
    Form("number) m:ss text", "{number}) {begin_mss} {text}", is_doubtful=True),
    Form("1m02s text", "{begin_spelled} {text}", is_doubtful=True),
    Form("1'02'' text", "{begin_primes} {text}", is_doubtful=True),
    Form("hh.mm.ss text", "{begin_dotted} {text}", is_doubtful=True),
)


class Recordings:
    """Silent audio files of given lengths, in whole seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_length(self, seconds: int) -> Path:
        path = self._folder / f"{seconds}.flac"
        if not path.exists():
            soundfile.write(path, np.zeros(_RATE * seconds, np.float32), _RATE)
        return path


def has_times(text: str, audio: Path, suffix: str = ".txt") -> bool:
    """Whether `prepare folder` finds times in a transcript: it reads or refuses them."""
    try:
        return read_labels(audio.with_name(f"rec{suffix}"), text, audio) is not None
    except DataError:
        return True


def count_refused_texts(sentences: Sequence[str], audio: Path) -> Counter[str]:
    """How many transcripts of sentences there are (`texts`), and in how many times are found (`refused`)."""
    counts = Counter[str]()
    for num_lines in NUM_LINES:
        for first in range(0, len(sentences) - num_lines + 1, num_lines):
            text = "\n".join(sentences[first : first + num_lines])
            counts["texts"] += 1
            counts["refused"] += has_times(text, audio)
    return counts


def read_texts(sentences: Sequence[Path], data_lists: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """The folder of each file, and its sentences or transcripts that are not empty."""
    for path in sentences:
        sentences_of_lines = map(split_sentences, read_lines(path))
        yield path.parent.name, list(filter(None, chain.from_iterable(sentences_of_lines)))
    for path in data_lists:
        transcripts = [utterance.txt for utterance in read_data_list(path)]
        yield path.parent.parent.name, list(filter(None, transcripts))


def split_sentences(line: str) -> list[str]:
    """The sentences of a paragraph as WikiText writes it, with a space before each full stop.

    Its numbers and clocks get their usual form: `2 @.@ 5` and `3 : 20` become 2.5 and 3:20.
    """
    paragraph = line.replace(" . ", " .\n")
    for spaced, usual in WIKITEXT_SIGNS.items():
        paragraph = paragraph.replace(spaced, usual)
    return [sentence.strip() for sentence in paragraph.splitlines()]


def read_tiers(paths: Sequence[Path]) -> Iterator[list[Segment]]:
    """The segments of each tier with times of ELAN files, in the order of time."""
    for path in paths:
        for tier in read_elan(path).tiers:
            segments = [
                Segment(begin, end, " ".join(text.split()))
                for begin, end, text in tier.spans
                if begin is not None and end is not None and text.strip()
            ]
            if segments:
                yield sorted(segments, key=lambda segment: segment.begin_s)[:_MAX_SEGMENTS]


def make_up_times(sentences: list[str], rng: random.Random) -> Iterator[list[Segment]]:
    """Recordings of 1 to 20 of the sentences in random order, with random lengths and pauses."""
    rng.shuffle(sentences)
    while len(sentences) > 20:
        position_s = rng.uniform(0, 3)
        segments = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 20))):
            end_s = position_s + rng.uniform(0.8, 9)
            segments.append(Segment(position_s, end_s, sentences.pop()))
            position_s = end_s + rng.uniform(0, 2)
        yield segments


def count_missed_times(recordings: Sequence[Sequence[Segment]], silence: Recordings) -> dict[str, list[Counter[str]]]:
    """Per form, for recordings of one segment and of several: how many there are, and how many become text."""
    counts = {form.name: [Counter[str](), Counter[str]()] for form in FORMS}
    for segments in recordings:
        audio = silence.of_length(int(segments[-1].end_s) + 1)
        has_several = len(segments) > 1
        for form in FORMS:
            of_form = counts[form.name][has_several]
            of_form["recordings"] += 1
            of_form["missed"] += not has_times(form.write(segments), audio, form.suffix)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sentences", type=Path, nargs="+", required=True, help="texts, one sentence or paragraph per line"
    )
    parser.add_argument("--data_lists", type=Path, nargs="*", default=[], help="data lists: FOLDER/SET/data.list")
    parser.add_argument("--elan", type=Path, nargs="*", default=[], help="ELAN files with times")
    parser.add_argument("--seed", type=int, default=1, help="of the made-up times (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    refused: dict[str, dict[int, Counter[str]]] = {}
    timed_sentences = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        silence = Recordings(Path(folder))
        for folder_name, sentences in read_texts(args.sentences, args.data_lists):
            of_folder = refused.setdefault(folder_name, {seconds: Counter() for seconds in AUDIO_S})
            for seconds in AUDIO_S:
                of_folder[seconds] += count_refused_texts(sentences, silence.of_length(seconds))
            timed_sentences += rng.sample(sentences, min(_SENTENCES_PER_FILE, len(sentences)))
        recordings = [*read_tiers(args.elan), *make_up_times(timed_sentences, rng)]
        missed = count_missed_times(recordings, silence)
    facts = {"refused": refused, "missed": missed}
    publish("Times of an unknown form", _write_tables(refused, missed), facts, device="cpu", out=args.out)


def _write_tables(refused: dict[str, dict[int, Counter[str]]], missed: dict[str, list[Counter[str]]]) -> str:
    text_rows = [
        [name, *(_share(counts, "refused", "texts") for counts in of_folder.values())]
        for name, of_folder in refused.items()
    ]
    time_rows = []
    for form in FORMS:
        shares = [_share(counts, "missed", "recordings") for counts in missed[form.name]]
        time_rows.append([f"*{form.name}*" if form.is_doubtful else form.name, *shares])
    clear_forms = [form for form in FORMS if not form.is_doubtful]
    time_rows.append(["all forms that are not in italics", *_sum_of(clear_forms, missed)])
    texts = markdown_table(["sentences", *(f"refused, audio of {seconds:,} s" for seconds in AUDIO_S)], text_rows)
    times = markdown_table(["form", "missed, one segment", "missed, several segments"], time_rows)
    remark = "In italics: one line that begins so, with a plain time or number, is text on purpose."
    return f"{body_of(__doc__)}\n\n{texts}\n\n{times}\n\n{remark}"


def _sum_of(forms: Sequence[Form], missed: dict[str, list[Counter[str]]]) -> list[str]:
    """The counts of all these forms, for one segment and for several."""
    sums = [Counter[str](), Counter[str]()]
    for form in forms:
        for sum_of_all, counts in zip(sums, missed[form.name], strict=True):
            sum_of_all.update(counts)
    return [_share(counts, "missed", "recordings") for counts in sums]


def _share(counts: Counter[str], part: str, whole: str) -> str:
    return f"{counts[part]:,} of {counts[whole]:,}"


if __name__ == "__main__":
    main()
