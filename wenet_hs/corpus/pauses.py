# SPDX-License-Identifier: Apache-2.0
"""Labels of pauses in transcripts, as SPPAS, MFA, WebMAUS, HTK, CHAT, GAT and others write them.

A label of signs or in brackets (`#`, `_`, `(.)`, `(0.7)`, `<p:>`) is never text. A label of letters
(`sil`, `sp`) may be a word of the language, so it is a pause only if the data use it as one, or if
the user names it. Labels of segments that are not to be used are here too (`IGNORED`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import regex  # type: ignore[import-untyped]

AUTO = "auto"
"""Value of --pauses: labels of letters are pauses where the data use them so."""
ALIGNER_LABELS = ("sil", "sp", "ssil", "silb")
"""Labels of letters that forced aligners write for silence.

They are words in some languages: `sil` is Turkish.
"""
PHONE_LABELS = (*ALIGNER_LABELS, "pau")
"""Between phones, where they cannot be words: `pau` is Hawaiian and Portuguese."""
_LETTER_LABELS = (*ALIGNER_LABELS, "silence", "silent", "pause")
"""Labels that may be pauses of an annotation of utterances."""
IGNORED = ("%ignore%", "ignore_time_segment_in_scoring", "inter_segment_gap")
"""Labels of segments that are not to be used: of SayMore, and of NIST's STM."""
_MIN_COUNT = 5
_MIN_SHARE = 0.1
"""Number and share of the annotations from which on a label of letters may be a pause."""

_SECONDS = r"\d+ ?(?:s|sec|secs|seconds)\.?"
"""A whole number of seconds: `2 sec`."""
_DURATION = rf"(?:(?:\d+:)?\d{{0,3}}[.,]\d{{1,2}}(?: ?(?:s|sec|secs|seconds)\.?)?|{_SECONDS})"
"""The duration of a pause: `0.7`, `,5 s`, `1:02.5` or `2 sec`."""
_NAME = r"(?:short |long |brief )?(?:pauses?|pausa|pauze|pauza|пауза|silence|silent|silencio|silenzio|stille)"
"""The name of a pause, with an adjective before it: `long pause`."""
_LENGTH = r"(?: larga| corta| longue| courte| lunga| breve)?"
"""An adjective after the name, or nothing: `pausa larga`."""
_DOTS = r"(?:\.{1,3}|…|-{1,3})"
"""Signs for short and long pauses: `.` in `(.)`."""
_IN_BRACKETS = (
    rf"(?:{_DOTS}|{_DURATION}|{_NAME}{_LENGTH}(?:[ :,]+{_DURATION})?|{_DURATION} {_NAME})"
)
"""What is a pause if it stands in brackets of any form: `.`, `0.7`, `pause, 2 s` or `2 s pause`."""
_IN_ANGLES = r"(?:p:?|sil|sp|eps|no-speech)"
"""What is a pause only in angle brackets: `<p:>`."""
_INSIDE = regex.compile(
    rf"\(\(? ?{_IN_BRACKETS} ?\)?\)|\[ ?{_IN_BRACKETS} ?\]|\{{ ?{_IN_BRACKETS} ?\}}"
    rf"|< ?(?:{_IN_BRACKETS}|{_IN_ANGLES}) ?>|\[sil\]|\{{sil\}}|(?<!\S)!(?:sil|enter|exit)(?!\S)",
    regex.IGNORECASE,
)
"""A pause that is written inside a transcript: its duration or name in brackets, or a word of HTK."""
_FIRST_SIGNS = regex.compile(r"[(\[{<!]")
"""The signs with which a match of `_INSIDE` begins."""
_MAX_LABEL = 60
"""Characters of a label that consists of pauses only; a longer text is a transcript."""
_WHOLE = regex.compile(r"#+|_+|\++|h#|</?s ?/?>|\(\d{1,2}\)", regex.IGNORECASE)
"""A label that is a pause if it is all of an annotation; in a longer text these signs have other
meanings.
"""


@dataclass(frozen=True)
class TimedLabel:
    """The text of an annotation and where it is."""

    recording: str
    start: float | None
    end: float | None
    text: str


@dataclass(frozen=True)
class PauseLabels:
    """Which annotations are pauses."""

    letters: frozenset[str] = frozenset()
    """Labels of letters that are pauses here, in lower case."""

    def is_pause(self, text: str) -> bool:
        """Whether an annotation consists of one pause or several, and of no other text."""
        if is_pause_label(text):
            return True
        return text.strip().lower() in self.letters


# ---- one text


def is_pause_label(text: str) -> bool:
    """Whether the text is a pause in any data: signs or a label in brackets, or several of them.

    Examples: `#`, `(0.7)`, `<p:> <p:>`. An empty text is no pause.
    """
    label = text.strip()
    if not label or len(label) > _MAX_LABEL:
        return False
    words_outside_brackets = _INSIDE.sub(" ", label).split()  # may be empty: then it is a pause
    return all(map(_WHOLE.fullmatch, words_outside_brackets))


def is_ignored(text: str) -> bool:
    """Whether the annotation is marked as one that is not to be used."""
    return text.strip().lower() in IGNORED


def remove_pauses(text: str) -> tuple[str, Counter[str]]:
    """The text without the pauses that are written inside it, such as `(0.7)`, and how often each
    occurs.

    A text without pauses stays as it is; otherwise its words have single spaces between them.
    """
    removed = Counter[str]()
    if not _FIRST_SIGNS.search(text):  # a quick test, for most texts
        return text, removed
    removed.update(_INSIDE.findall(text))
    if not removed:
        return text, removed
    return " ".join(_INSIDE.sub(" ", text).split()), removed


def may_be_pause(text: str) -> bool:
    """Whether the text is a label of letters that may be a pause: see `find_pause_labels`."""
    return _normalize_label(text) in _LETTER_LABELS


def _normalize_label(text: str) -> str:
    """The text as labels are compared: in lower case, without spaces around it."""
    return text.strip().lower()


# ---- labels of letters


def find_aligner_labels(pauses: str, unit: str) -> PauseLabels:
    """The labels written with letters, such as `sil`, that are pauses of a forced aligner.

    Args:
        pauses: the value of --pauses: labels that are pauses, or `auto` for the usual ones.
        unit: `phone`: the usual labels between phones; otherwise those between words.
    """
    if pauses != AUTO:
        return _read_labels(pauses)
    return PauseLabels(frozenset(PHONE_LABELS if unit == "phone" else ALIGNER_LABELS))


def _read_labels(pauses: str) -> PauseLabels:
    """The labels that the user names in --pauses, with spaces between them."""
    return PauseLabels(frozenset(pauses.lower().split()))


def find_pause_labels(
    labels: Iterable[TimedLabel], pauses: str, unit: str
) -> tuple[PauseLabels, Counter[str]]:
    """The labels written with letters, such as `sil`, that are pauses in these data.

    - If the user names labels, these are the pauses.
    - With phones, all usual labels are pauses.
    - With text, a usual label is a pause if it is frequent, and if more than half of its annotations
      touch an annotation of text, because a pause fills the time between utterances.

    Returns: these labels; and the usual labels that are no pauses here, which stay text, with the
        number of their annotations.

    Args:
        labels: the texts of the data; those without start or end are not counted.
        pauses: the value of --pauses: labels that are pauses, or `auto`.
        unit: what a transcript contains, `char` or `phone`.
    """
    if pauses != AUTO:
        return _read_labels(pauses), Counter()
    if unit == "phone":
        return PauseLabels(frozenset(PHONE_LABELS)), Counter()
    timed = [label for label in labels if label.start is not None and label.end is not None]
    counts = Counter(_normalize_label(label.text) for label in timed if may_be_pause(label.text))
    num_touching = _count_touching(timed, counts)
    min_count = max(_MIN_COUNT, _MIN_SHARE * len(timed))
    used_as_pauses = set[str]()
    for text, count in counts.items():
        if count >= min_count and num_touching[text] > count / 2:
            used_as_pauses.add(text)
    left_as_text = {text: num for text, num in counts.items() if text not in used_as_pauses}
    return PauseLabels(frozenset(used_as_pauses)), Counter(left_as_text)


def _count_touching(labels: Sequence[TimedLabel], texts: Collection[str]) -> Counter[str]:
    """How many annotations of each of the texts touch an annotation of any other text.

    An annotation touches another one if it begins where that ends, or ends where that begins, to
    the millisecond. Two annotations whose texts are both among `texts` do not count.

    Args:
        labels: all annotations; they have times.
        texts: the texts to count, in lower case.
    """
    candidates = [label for label in labels if _normalize_label(label.text) in texts]
    others = [label for label in labels if _normalize_label(label.text) not in texts]
    starts_of_others = {_make_time_key(label.recording, label.start) for label in others}
    ends_of_others = {_make_time_key(label.recording, label.end) for label in others}
    num_touching = Counter[str]()
    for label in candidates:
        follows_other = _make_time_key(label.recording, label.start) in ends_of_others
        precedes_other = _make_time_key(label.recording, label.end) in starts_of_others
        if follows_other or precedes_other:
            num_touching[_normalize_label(label.text)] += 1
    return num_touching


def _make_time_key(recording: str, seconds: float | None) -> tuple[str, int]:
    """The recording and the time in whole ms: a key, so that equal times of two recordings differ."""
    assert seconds is not None  # only annotations with times are counted
    return recording, round(1000 * seconds)
