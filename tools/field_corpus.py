# SPDX-License-Identifier: Apache-2.0
"""Make a small field corpus of SIMULATED speech: long recordings of two speakers, annotated in
ELAN.

It has what real ones have: overlapping speech, a silent stretch, annotations without text,
dependent annotations with a vocabulary, a tier of comments, and media links of a Windows computer.
It is for tests and for trying `examples/own`.

Example: python tools/field_corpus.py --sentences examples/mini/s0/sentences/es.txt --lang es --out fieldwork
"""

import argparse
import random
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from pympi import Eaf

from wenet_hs.base.files import read_lines
from wenet_hs.corpus.espeak import SAMPLE_RATE, speak, voice_name
from wenet_hs.tree.errors import WenetHsError

RATE = 16_000
SPEAKERS = {"Ana": ("f2", 60), "Beto": ("m3", 40)}
"""Name → variant of espeak-ng's voice, and pitch."""
LOUDNESS = ("loud", "quiet")
COMMENTS = ("[dog barks]", "[laughs]", "?? check with Ana", "")


def main() -> None:
    """Write OUT/*.wav and OUT/*.eaf."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sentences", type=Path, required=True, help="text file, one sentence per line")
    add("--lang", required=True, help="voice of espeak-ng")
    add("--out", type=Path, required=True, help="folder to write")
    add("--files", type=int, default=3, help="number of recordings (default: %(default)s)")
    add(
        "--minutes",
        type=float,
        default=10.0,
        help="length of each recording (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="of every random choice (default: %(default)s)")
    args = parser.parse_args()
    try:
        sentences = [line for line in read_lines(args.sentences) if line.strip()]
        for number in range(1, args.files + 1):
            write_recording(args.out, number, sentences, args)
    except WenetHsError as error:
        parser.exit(2, f"{error}\n")


def write_recording(
    folder: Path, number: int, sentences: list[str], args: argparse.Namespace
) -> None:
    """Write one recording with its annotations; the folder is made for the first one."""
    draw = random.Random(f"{args.seed} {number}")
    name = f"REC_{number:02d}"
    samples, spans = record(sentences, args.lang, args.minutes * 60, draw)
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / f"{name}.wav", samples, RATE, subtype="PCM_16")
    annotate(name, spans, folder, draw)
    print(f"{folder / name}.eaf: {len(spans)} utterances")


def record(
    sentences: list[str], lang: str, seconds: float, draw: random.Random
) -> tuple[NDArray[np.float32], list[tuple[str, int, int, str]]]:
    """Samples (N,) at RATE, and who speaks from when to when (ms) and what; some begin before the
    other has ended.
    """
    samples = (
        np.random.default_rng(draw.randrange(2**32))
        .normal(0, 3e-4, round(seconds * RATE))
        .astype(np.float32)
    )
    silent_ms = draw.uniform(0.3, 0.6) * seconds * 1000
    spans: list[tuple[str, int, int, str]] = []
    at_ms, last = 500, "Beto"
    while True:
        speaker = last if draw.random() < 0.3 else next(name for name in SPEAKERS if name != last)
        variant, pitch = SPEAKERS[speaker]
        text = draw.choice(sentences)
        wave = speak(
            text, voice=voice_name(lang, variant), rate_wpm=draw.randint(140, 200), pitch=pitch
        )
        wave = soxr.resample(wave, SAMPLE_RATE, RATE)
        if speaker != last and spans and draw.random() < 0.1:
            at_ms = spans[-1][2] - 300
        end_ms = at_ms + len(wave) * 1000 // RATE
        if end_ms > seconds * 1000 - 500:
            return np.clip(samples, -1, 1), spans
        begin = at_ms * RATE // 1000
        samples[begin : begin + len(wave)] += 0.5 * wave
        spans.append((speaker, at_ms, end_ms, text))
        pause_ms = draw.randint(150, 900)
        if at_ms < silent_ms <= end_ms + pause_ms:
            pause_ms += min(20_000, round(50 * seconds))  # a long stretch in which nobody speaks
        at_ms, last = end_ms + pause_ms, speaker


def annotate(
    name: str, spans: list[tuple[str, int, int, str]], out: Path, draw: random.Random
) -> None:
    """Write the .eaf: per speaker a tier with the participant and a dependent one, and a tier of
    comments.
    """
    eaf = Eaf(author="wenet_hs")
    eaf.remove_tier("default")
    eaf.add_linked_file(
        f"file:///C:/Users/Ana/Feldforschung/{name}.wav",
        f"../../Feldforschung/{name}.wav",
        "audio/x-wav",
    )
    eaf.add_language("eng")
    eaf.add_controlled_vocabulary("loudness")
    for value in LOUDNESS:
        eaf.add_cv_entry("loudness", f"cve_{value}", [(value, "eng", f"{value} speech")])
    eaf.add_linguistic_type("loudness", "Symbolic_Association", timealignable=False)
    eaf.linguistic_types["loudness"]["CONTROLLED_VOCABULARY_REF"] = "loudness"
    for speaker in SPEAKERS:
        eaf.add_tier(f"utterance@{speaker}", part=speaker)
        eaf.add_tier(f"loudness@{speaker}", "loudness", f"utterance@{speaker}", part=speaker)
    eaf.add_tier("comments")
    for speaker, begin_ms, end_ms, text in spans:
        eaf.add_annotation(
            f"utterance@{speaker}", begin_ms, end_ms, "" if draw.random() < 0.02 else text
        )
        eaf.add_ref_annotation(
            f"loudness@{speaker}", f"utterance@{speaker}", begin_ms + 1, draw.choice(LOUDNESS)
        )
        if draw.random() < 0.05:
            eaf.add_annotation("comments", begin_ms, end_ms, draw.choice(COMMENTS))
    eaf.to_file(str(out / f"{name}.eaf"))


if __name__ == "__main__":
    main()
