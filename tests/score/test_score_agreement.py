# SPDX-License-Identifier: Apache-2.0
"""Random pairs in twenty scripts: our counts are jiwer's and the textbook's; and WeNet's known faults, by hand.

jiwer counts with the same library as we do, so it judges how units reach it; the textbook judges the library.
"""

import random
import unicodedata
from functools import cache
from pathlib import Path

import jiwer
import pytest
from textbook import edit_distance

from wenet_hs.bin import score as command
from wenet_hs.bin.command import run_command
from wenet_hs.manifest import write_text
from wenet_hs.score import Rules, count_errors, score, split_units

SCRIPTS = {
    "Latin": (0x41, 0x24F), "Greek": (0x370, 0x3FF), "Cyrillic": (0x400, 0x52F), "Armenian": (0x531, 0x587),
    "Hebrew": (0x591, 0x5EA), "Arabic": (0x610, 0x6D3), "Devanagari": (0x900, 0x97F), "Bengali": (0x980, 0x9FE),
    "Gurmukhi": (0xA01, 0xA75), "Gujarati": (0xA81, 0xAF1), "Tamil": (0xB82, 0xBD7), "Telugu": (0xC00, 0xC6F),
    "Malayalam": (0xD00, 0xD7F), "Thai": (0xE01, 0xE4E), "Georgian": (0x10A0, 0x10FF), "Hangul": (0x1100, 0x11FF),
    "Ethiopic": (0x1200, 0x135A), "Khmer": (0x1780, 0x17DD), "Kana": (0x3041, 0x30FF), "Han": (0x4E00, 0x4FFF),
}  # fmt: skip


@cache
def alphabet(script: str) -> list[str]:
    """Letters and marks of a stretch of Unicode."""
    characters = map(chr, range(SCRIPTS[script][0], SCRIPTS[script][1] + 1))
    return [character for character in characters if unicodedata.category(character)[0] in "LM"]


def random_pair(script: str, generator: random.Random) -> tuple[str, str]:
    """A text of one to six words, and the same misheard; either may be in another form of Unicode."""
    letters = alphabet(script)
    words = ["".join(generator.choices(letters, k=generator.randint(1, 7))) for _ in range(generator.randint(1, 6))]
    rate = generator.choice((0, 0.1, 0.3, 0.9))
    heard = [
        generator.choice(("", " ", generator.choice(letters), letter + generator.choice(letters)))
        if generator.random() < rate
        else letter
        for letter in " ".join(words)
    ]
    form = generator.choice(("NFC", "NFD"))
    return unicodedata.normalize(form, " ".join(words)), "".join(heard)


def check_pairs(num_pairs: int) -> None:
    generator = random.Random(num_pairs)
    for index in range(num_pairs):
        ref, hyp = random_pair([*SCRIPTS][index % len(SCRIPTS)], generator)
        for metric in ("cer", "wer"):
            units, others = split_units(ref, metric), split_units(hyp, metric)
            counts = count_errors(units, others)
            theirs = jiwer.process_words(" ".join(units), " ".join(others))
            assert counts.errors == theirs.substitutions + theirs.deletions + theirs.insertions
            assert counts.num_units == theirs.hits + theirs.substitutions + theirs.deletions
            assert counts.rate == pytest.approx(theirs.wer)
            assert counts.errors == edit_distance(units, others)
            report = score({"k": ref}, {"k": hyp}, rules=Rules(metric=metric), num_resamples=0)
            assert report.micro.counts == counts, "the quick way through a whole scoring says the same"


def test_a_sample_agrees() -> None:
    check_pairs(300)


@pytest.mark.slow
def test_ten_thousand_agree() -> None:
    check_pairs(10_000)


@pytest.mark.parametrize(
    ("metric", "ref", "hyp", "counts"),
    [
        ("cer", "été", "ete", (3, 2)),  # WeNet: ÉT, É
        ("cer", "Straße", "Strasse", (6, 2)),  # WeNet: no error, both upper-cased to SS
        ("wer", "groß", "gross", (1, 1)),
        ("cer", "groß", "GROSS", (4, 5)),
        ("cer", "қазақ тілі", "казак тілі", (9, 2)),  # WeNet: cut before every letter
        ("per", "tʃ a ə̃", "t ʃ a ə̃", (3, 2)),  # WeNet: tʃ is two units
        ("per", "s S", "s s", (2, 1)),  # WeNet: one phone
        ("cer", "bonjour écoute", "bonjur écoute", (13, 1)),  # WeNet: 50 %
        ("cer", "a b", "ab", (2, 0)),  # spaces never count there, and here only when asked
    ],
)
def test_what_wenets_scorer_gets_wrong(metric: str, ref: str, hyp: str, counts: tuple[int, int]) -> None:
    found = count_errors(split_units(ref, metric), split_units(hyp, metric))
    assert (found.num_units, found.errors) == counts


def test_a_missing_hypothesis_counts_and_a_key_is_never_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """WeNet leaves an utterance without hypothesis out, and scores the tail of a key that is not ASCII."""
    monkeypatch.chdir(tmp_path)
    reference = {"a": "bir", "b": "eki", "ключ_é": "üç", "d": "tört"}
    write_text("ref", reference)
    write_text("hyp", {key: text for key, text in reference.items() if key != "d"})
    assert run_command(command, ["--metric", "cer", "--ref", "ref", "--hyp", "hyp", "--num_resamples", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[2:8] == ["4", "12", "0", "4", "0", "33.33"]
