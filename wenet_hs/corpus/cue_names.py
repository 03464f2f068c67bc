# SPDX-License-Identifier: Apache-2.0
"""Names of speakers at the beginning of subtitles, as meeting tools write them, and names that are general.

Zoom, Teams, Meet and WhisperX write `Ana P: good morning` or `[SPEAKER_00]: good morning`. The name is not spoken.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wenet_hs.errors import list_names

if TYPE_CHECKING:
    from wenet_hs.corpus.labels import Label

logger = logging.getLogger(__name__)

_NAME = re.compile(r"\s*[-–—]?\s*[\[(]?(?P<name>[^:：\[\]<>]{1,40}?)[\])]?\s*(?::(?!\S)|：)\s*(?P<text>.*)$", re.DOTALL)
"""A name and a colon at the beginning, perhaps after the dash of a dialogue, and what is said."""
_MAX_WORDS = 5
_MIN_PHONE_NUMBER = 7
"""Digits; Zoom names people who call by telephone so."""
_MAX_DIFFERENT = 4
"""Up to this number all cues of a file may have different names. Of more, each name is in two cues on average."""
_ROLES = (
    *("speaker", "spk", "spkr", "unknown", "unidentified", "participant", "person", "guest", "user", "host", "caller"),
    *("interviewer", "interviewee", "moderator", "narrator", "voice", "man", "woman", "male", "female", "audience"),
    *("sprecher", "sprecherin", "locuteur", "locutrice", "intervenant", "hablante", "orador", "oradora", "falante"),
    *("parlante", "interlocutore", "спикер", "говорящий", "说话人", "发言人", "講者", "話者", "화자", "참석자"),
)
_GENERAL = re.compile(
    rf"(?:unknown |unidentified )?(?:{'|'.join(_ROLES)})[ _.-]*#?(?:\d+|[a-z])?|[a-z]\d*|\d{{1,3}}", re.IGNORECASE
)
"""Names that every file has, for other people."""


def is_general_name(name: str) -> bool:
    """Whether a name such as `Speaker 1`, `SPEAKER_00`, `Host` or `A` may be another person in another file."""
    return _GENERAL.fullmatch(name.strip()) is not None


def qualify_name(name: str, transcript: Path) -> str:
    """The name of a person of this transcript: `A_rec1_Speaker 1`. `transcript`: relative to the corpus."""
    return "_".join([*transcript.with_suffix("").parts, name])


@dataclass
class CueNames:
    """Finds the names at the beginning of cues, and counts them for one line about all files."""

    num_cues: int = 0
    """In files whose names were taken for speakers."""
    speakers: Counter[str] = field(default_factory=Counter)
    """Names that were taken for speakers, with their cues."""
    kept: Counter[str] = field(default_factory=Counter)
    """Names that were kept as text, because few cues of their file have one."""
    general: dict[str, str] = field(default_factory=dict)
    """General names, and how one of them was qualified."""

    def split(self, labels: Sequence["Label"], transcript: Path, *, keep_names: bool = False) -> list["Label"]:
        """The labels of one file with their speakers. General names of speakers get the name of the file.

        If most cues with a text begin with a name and a colon, it becomes the speaker, except with `keep_names`.
        """
        cues = [None if keep_names else _find_name(label) for label in labels]
        names = [cue.name for cue in cues if cue]
        num_with_text = sum(bool(label.text) for label in labels)
        has_names = len(names) > 1 and _are_names(names)
        if has_names and len(names) > num_with_text / 2:
            self.num_cues += num_with_text
            self.speakers.update(names)
            labels = [_with_speaker(label, cue) for label, cue in zip(labels, cues, strict=True)]
        elif has_names:
            self.kept.update(name for name in names if names.count(name) > 1)
        return [self._qualify(label, transcript) for label in labels]

    def _qualify(self, label: "Label", transcript: Path) -> "Label":
        if label.speaker is None or not is_general_name(label.speaker):
            return label
        qualified = qualify_name(label.speaker, transcript)
        self.general.setdefault(label.speaker, qualified)
        return label._replace(speaker=qualified)

    def report(self) -> None:
        """State what was taken for a speaker, what was kept as text, and which names are qualified."""
        if self.speakers:
            found = f"{self.speakers.total()} of {self.num_cues} cues begin with a name and a colon"
            message = "%s, which is the speaker and no text: %s; --keep_names keeps it"
            logger.info(message, found, _counts(self.speakers))
        if self.kept:
            found = f"{self.kept.total()} cues begin with a name and a colon"
            message = "%s, which is kept as text, because most cues of their files do not: %s"
            logger.info(message, found, _counts(self.kept))
        if self.general:
            example = next(iter(self.general.values()))
            names = list_names([repr(name) for name in self.general])
            message = "%s may be other people in each file; speakers have the file in their name, such as %r"
            logger.info(message, names, example)


def _counts(names: Counter[str]) -> str:
    return list_names([f"{name!r} ({num})" for name, num in names.most_common()])


@dataclass(frozen=True)
class _NamedCue:
    """The text of a cue, divided at its colon."""

    name: str
    text: str


def _find_name(label: "Label") -> _NamedCue | None:
    """What stands before the colon of a cue, and after it; None: no colon, or the form names the speaker."""
    match = _NAME.match(label.text)
    if match is None or label.speaker is not None:
        return None
    return _NamedCue(" ".join(match["name"].split()), match["text"].strip())


def _with_speaker(label: "Label", cue: _NamedCue | None) -> "Label":
    return label if cue is None else label._replace(text=cue.text, speaker=cue.name)


def _are_names(names: Sequence[str]) -> bool:
    """Whether what stands before the colons of a file are names of people.

    They are few, and each is like a name or is there again. Numbers are none, except those of telephones.
    """
    counts = Counter(names)
    if len(counts) > max(_MAX_DIFFERENT, len(names) / 2):
        return False
    if not all(map(_is_word_or_telephone, counts)):
        return False
    return all(count > 1 or _is_like_name(name) for name, count in counts.items())


def _is_word_or_telephone(name: str) -> bool:
    has_letter = any(map(str.isalpha, name))
    return has_letter or sum(map(str.isdigit, name)) >= _MIN_PHONE_NUMBER


def _is_like_name(name: str) -> bool:
    """Whether it has at most five words, does not begin with a small letter, and is no sentence."""
    has_end_of_sentence = re.search(r"[?!;]|\.\s+\w{4}", name) is not None
    return len(name.split()) <= _MAX_WORDS and not name[:1].islower() and not has_end_of_sentence
