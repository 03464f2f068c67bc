# SPDX-License-Identifier: Apache-2.0
"""Transcripts of own recordings, one text at a time."""

import pytest

from wenet_hs.corpus.pauses import PauseLabels
from wenet_hs.corpus.transcripts import TranscriptReader, UnusableText, UsableText


def make_reader(*, has_phones: bool = False, should_normalize: bool = True) -> TranscriptReader:
    return TranscriptReader(
        has_phones=has_phones,
        should_normalize=should_normalize,
        has_letter_apostrophe=False,
        pause_labels=PauseLabels(frozenset({"sil"})),
    )


def test_a_transcript_loses_pauses_and_punctuation_which_are_counted() -> None:
    reader = make_reader()
    text = reader.read("Hello, (0.7) World.", "en", is_part=True)
    assert text == UsableText(spoken="Hello, World.", normalized="hello world")
    assert reader.left_out.inside == {"(0.7)": 1}
    assert reader.left_out.punctuation == {",": 1, ".": 1}


@pytest.mark.parametrize(
    ("text", "is_part", "reason", "is_fault"),
    [
        (" SIL ", True, "pause: 'SIL'", False),
        ("#", False, "pause: '#'", False),
        ("%ignore%", True, "marked as not to be used: '%ignore%'", False),
        ("  ", True, "empty transcript", False),
        ("????", True, "lost letters: '????'; write the text again, in UTF-8", True),
        ("???", True, "empty transcript after normalisation: '???'", False),
        ("???", False, "empty transcript after normalisation: '???'", True),
    ],
)
def test_why_a_transcript_cannot_be_used(
    text: str, is_part: bool, reason: str, is_fault: bool
) -> None:
    expected = UnusableText(reason, spoken=text, is_fault=is_fault)
    assert make_reader().read(text, "en", is_part=is_part) == expected


def test_signs_of_a_part_are_no_removed_punctuation() -> None:
    reader = make_reader()
    reader.read("???", "en", is_part=True)
    assert reader.left_out.signs == {"???": 1} and not reader.left_out.punctuation
    reader.read("???", "en", is_part=False)
    assert reader.left_out.punctuation == {"?": 3}


@pytest.mark.parametrize("has_phones", [False, True])
def test_without_normalisation_pauses_inside_are_kept(has_phones: bool) -> None:
    reader = make_reader(has_phones=has_phones, should_normalize=False)
    text = reader.read("A  (0.7) B", "en", is_part=True)
    assert text == UsableText(spoken="A  (0.7) B", normalized="A (0.7) B")
