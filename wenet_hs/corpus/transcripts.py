# SPDX-License-Identifier: Apache-2.0
"""Transcripts of own recordings: pauses and marks left out, text normalised, faults named.

`TranscriptReader` reads one transcript after the other, and counts what it leaves out.
`report_left_out` states it to the user: a sign that is removed may be a letter of the language.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field

from wenet_hs.base.files import one_field
from wenet_hs.corpus.korean import KoreanMarks, read_korean_marks
from wenet_hs.corpus.pauses import PauseLabels, is_ignored, remove_pauses
from wenet_hs.text.normalize import APOSTROPHES, normalize_counted, normalize_phones
from wenet_hs.text.units import show_unit
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_MAX_QUESTION_MARKS = 3
"""Question marks that an annotator may write for words that are not understood.

If an annotation consists of more, these are letters that were lost in another encoding.
"""
_MAX_LISTED = 8
"""Texts or characters that one line of a report names."""


@dataclass(frozen=True)
class LeftOutTexts:
    """What the data have that is not spoken, each text with its frequency."""

    pauses: Counter[str] = field(default_factory=Counter)
    """Labels of annotations that are pauses."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Labels of annotations that are marked as not to be used."""
    signs: Counter[str] = field(default_factory=Counter)
    """Annotations that consist only of signs, which normalisation removes."""
    inside: Counter[str] = field(default_factory=Counter)
    """Pauses that were written inside a transcript."""
    korean: KoreanMarks = field(default_factory=KoreanMarks)
    punctuation: Counter[str] = field(default_factory=Counter)
    """Characters that normalisation removed."""


@dataclass(frozen=True)
class UsableText:
    """A transcript that can be used."""

    spoken: str
    """As it is written, without pauses and Korean marks."""
    normalized: str
    """The text for training."""


@dataclass(frozen=True)
class UnusableText:
    """A transcript that cannot be used."""

    reason: str
    spoken: str
    """As it is written; without pauses and Korean marks, if they were looked for."""
    is_fault: bool = True
    """False: it is left out as in healthy data, such as the label of a pause."""


@dataclass(frozen=True, kw_only=True)
class TranscriptReader:
    """Reads transcripts one by one; what it leaves out is counted in `left_out`."""

    has_phones: bool
    """Whether the transcripts are phones with spaces between them."""
    should_normalize: bool
    has_letter_apostrophe: bool
    """Whether apostrophes are letters."""
    pause_labels: PauseLabels
    left_out: LeftOutTexts = field(default_factory=LeftOutTexts)

    def read(self, text: str, lang: str, *, is_part: bool) -> UsableText | UnusableText:
        """The text to train with, or why the transcript cannot be used.

        These transcripts cannot be used; the first case that holds counts:
        1. The label of a pause. No fault, counted in `left_out.pauses`.
        2. A label of what is not to be used. No fault, counted in `left_out.ignored`.
        3. Empty, perhaps without the pauses and marks in it. No fault, not counted as a whole.
        4. Only signs that stand for lost letters. A fault; its characters are counted.
        5. Only signs, if the audio is a part of a recording (`is_part`): annotators write them for
           what is no speech, such as laughter. No fault, counted in `left_out.signs`.
        6. Only signs otherwise. A fault; its characters are counted.
        Pauses and marks inside any transcript from 3 on, and in a usable one the characters that
        normalisation removes, are counted too.

        `lang`: code of its language, which decides how the text is normalised.
        """
        label = text.strip()
        if self.pause_labels.is_pause(text):
            self.left_out.pauses[label] += 1
            return UnusableText(f"pause: {one_field(label)!r}", text, is_fault=False)
        if is_ignored(text):
            self.left_out.ignored[label] += 1
            return UnusableText(f"marked as not to be used: {label!r}", text, is_fault=False)
        spoken = self._remove_marks(text, lang)
        normalized, removed = self._normalize(spoken, lang)
        if normalized:
            self.left_out.punctuation.update(removed)
            return UsableText(spoken, normalized)
        if not spoken.strip():
            return UnusableText("empty transcript", spoken, is_fault=False)
        if _has_lost_letters(spoken):
            self.left_out.punctuation.update(removed)
            reason = f"lost letters: {one_field(spoken)!r}; write the text again, in UTF-8"
            return UnusableText(reason, spoken)
        if is_part:
            self.left_out.signs[spoken.strip()] += 1
        else:
            self.left_out.punctuation.update(removed)
        reason = f"empty transcript after normalisation: {one_field(spoken)!r}"
        return UnusableText(reason, spoken, is_fault=not is_part)

    def _remove_marks(self, text: str, lang: str) -> str:
        """The text without pauses and Korean marks; counts what was removed.

        Transcripts of phones, and those of a user who wants no normalisation, stay as they are.
        """
        if self.has_phones or not self.should_normalize:
            return text
        text = read_korean_marks(text, lang, self.left_out.korean)  # it also counts the marks
        text, pauses = remove_pauses(text)
        self.left_out.inside.update(pauses)
        return text

    def _normalize(self, text: str, lang: str) -> tuple[str, Counter[str]]:
        """The text for training, and the characters that were removed with their frequency.

        An apostrophe that is a letter becomes ʼ (U+02BC), which is never removed. Nothing is
        removed from phones, nor without normalisation.
        """
        if self.has_letter_apostrophe:
            text = "".join("ʼ" if character in APOSTROPHES else character for character in text)
        if self.has_phones or not self.should_normalize:
            return normalize_phones(text), Counter()
        return normalize_counted(text, lang)


def _has_lost_letters(text: str) -> bool:
    """Whether a text without letters had some before it was saved in another encoding.

    Programs write U+FFFD or `?` for each letter that they cannot save. Up to three `?` may be an
    annotator's mark of words that are not understood.
    """
    if "\ufffd" in text:
        return True
    has_marks_only = not text.replace("?", "").strip()
    return has_marks_only and text.count("?") > _MAX_QUESTION_MARKS


# ---- reports


def report_left_out(left_out: LeftOutTexts) -> None:
    """Log what was left out, one line per kind, the most frequent texts first."""
    for what, counts in (
        ("annotations left out as pauses", left_out.pauses),
        ("annotations left out because they are marked as not to be used", left_out.ignored),
        ("annotations left out because they have only signs", left_out.signs),
        ("removed from the transcripts as pauses", left_out.inside),
        ("of two Korean spellings the second is used, as it is spoken", left_out.korean.spellings),
        ("removed from the transcripts as letters of noise in Korean", left_out.korean.noises),
    ):
        if counts:
            # The quoted text is cut to 40 characters.
            texts = [f"{text!r:.40} ({num})" for text, num in counts.most_common()]
            logger.info("%s: %s", what, list_names(texts, most=_MAX_LISTED))
    _report_removed(left_out.punctuation)


def _report_removed(removed: Counter[str]) -> None:
    """Log the characters that normalisation removed: one may be a letter of the language."""
    if not removed:
        return
    characters = [f"{show_unit(character)} ({num})" for character, num in removed.most_common()]
    listed = list_names(characters, most=_MAX_LISTED)
    has_apostrophes = not removed.keys().isdisjoint(APOSTROPHES)
    hint = "; are apostrophes letters? --letter_apostrophe keeps them" if has_apostrophes else ""
    logger.info("removed from the transcripts as punctuation: %s%s", listed, hint)
