# SPDX-License-Identifier: Apache-2.0
"""Names of speakers at the beginning of subtitles, as meeting tools write them.

Zoom, Teams, Meet and WhisperX write `Ana P: good morning` or `[SPEAKER_00]: good morning`. The name
is not spoken. General names such as `Speaker 1` are other people in each file, so they get the name
of the file.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from wenet_hs.tree.errors import list_names

if TYPE_CHECKING:
    from wenet_hs.corpus.labels import Label

logger = logging.getLogger(__name__)

_COLON = r" ?(?::(?!\S)|：) ?"
"""The colon after a name: before a space or the end, so not the colon of 12:30; or one of Chinese."""
_MARK = re.compile(r"(?P<mark>[-–—]|>{1,3})(?P<space> ?)")
"""The mark before what one speaker says: the dash of a dialogue, or `>>` of broadcasts."""
_NAME = re.compile(
    rf"(?:{_MARK.pattern})?(?P<name>\[[^:：\[\]<>]{{1,40}}\]|[^:：\[\]<>]{{1,40}}?)"
    rf"{_COLON}(?P<text>.*)$"
)
"""A name and a colon at the beginning, perhaps after a mark, and what is said."""
_MAX_WORDS = 5
"""A name has at most so many words."""
_MIN_PHONE_NUMBER = 7
"""Digits of a telephone number at least. Zoom names people who call by telephone by their number."""
_MAX_DIFFERENT = 4
"""A file may have so many names of people, also if none of them recurs.

A file with more names has each of them in two cues on average; otherwise they are no names.
"""
_PARTICLES = {
    "af",
    "al",
    "ap",
    "av",
    "bin",
    "bint",
    "da",
    "das",
    "de",
    "del",
    "della",
    "den",
    "der",
    "di",
    "do",
    "dos",
    "du",
    "e",
    "el",
    "ibn",
    "la",
    "las",
    "le",
    "los",
    "ter",
    "van",
    "ver",
    "von",
    "y",
    "zu",
    "zum",
    "zur",
}
"""Words inside a name that begin with a small letter."""
_ROLES = (
    "speaker",
    "spk",
    "spkr",
    "unknown",
    "unidentified",
    "participant",
    "person",
    "guest",
    "user",
    "host",
    "caller",
    "interviewer",
    "interviewee",
    "moderator",
    "narrator",
    "voice",
    "man",
    "woman",
    "male",
    "female",
    "audience",
    "sprecher",
    "sprecherin",
    "locuteur",
    "locutrice",
    "intervenant",
    "hablante",
    "orador",
    "oradora",
    "falante",
    "parlante",
    "interlocutore",
    "спикер",
    "говорящий",
    "说话人",
    "发言人",
    "講者",
    "話者",
    "화자",
    "참석자",
)
"""General names, in several languages: words for the part that somebody has in a conversation."""
_GENERAL = re.compile(
    rf"(?:unknown |unidentified )?(?:{'|'.join(_ROLES)})[ _.-]*#?(?:\d+|[a-z])?|[a-z]\d*|\d{{1,3}}",
    re.IGNORECASE,
)
"""Names that each file may have for other people: a role, also with a number, or a number."""


def is_general_name(name: str) -> bool:
    """Whether a name such as `Speaker 1`, `SPEAKER_00`, `Host` or `A` may be another person in
    another file.
    """
    return _GENERAL.fullmatch(name.strip()) is not None


def qualify_name(name: str, transcript: Path) -> str:
    """The name of a person of this transcript: `A_rec1_Speaker 1`.

    `transcript`: relative to the corpus.
    """
    return "_".join([*transcript.with_suffix("").parts, name])


@dataclass(frozen=True)
class _Turn:
    """What one speaker says in a cue. It may begin with a name and a colon."""

    name: str | None
    """What stands before the first colon, which may be a name; None: there is no colon."""
    text: str
    """What stands after the colon, or all of it if there is no colon."""
    whole: str
    """All of the turn, with its name and mark."""


@dataclass(frozen=True)
class _CueFile:
    """The cues of a file. A transcript without times is one cue."""

    path: Path
    """Relative to the corpus."""
    labels: Sequence["Label"]
    turns: Sequence[Sequence[_Turn]]
    """For each label its turns. They are empty if names are not searched in it."""

    @property
    def num_with_text(self) -> int:
        """Cues that are not empty."""
        return sum(bool(label.text) for label in self.labels)

    @property
    def names(self) -> set[str]:
        """What stands before the colons."""
        return {turn.name for turn in chain.from_iterable(self.turns) if turn.name is not None}

    def list_first_names(self, names: Collection[str]) -> list[str]:
        """Of each cue the first name that is one of `names`; cues without such a name are left out."""
        first_names = list[str]()
        for turns in self.turns:
            for turn in turns:
                if turn.name is not None and turn.name in names:
                    first_names.append(turn.name)
                    break
        return first_names


@dataclass
class CueNames:
    """Finds the names at the beginning of cues. Add all files, then split them, then report.

    If most cues with a text begin with the names of people, these become the speakers.
    """

    keep_names: bool = False
    """Names before a colon are always text."""
    take_names: bool = False
    """Names before a colon are speakers also where few cues have one."""
    _files: list[_CueFile] = field(default_factory=list)
    _texts_of_name: dict[str, set[str]] = field(default_factory=dict)
    """What may be a name → the different texts after it, in all files."""
    _num_turns_of_name: Counter[str] = field(default_factory=Counter)
    """What may be a name → how often it occurs, in all files."""
    _num_cues: int = 0
    """Cues with a text in all files that were split."""
    _num_cues_with_speakers: int = 0
    """Cues with a text in files whose names were taken for speakers."""
    _num_named_cues: int = 0
    """Cues with a name that was taken for a speaker."""
    _speakers: Counter[str] = field(default_factory=Counter)
    """Names that were taken for speakers → how often."""
    _kept: Counter[str] = field(default_factory=Counter)
    """Names that were kept as text → number of cues."""
    _general: dict[str, str] = field(default_factory=dict)
    """General names of speakers → an example with the name of a file."""

    def add(self, labels: Sequence["Label"], path: Path) -> None:
        """Add the cues of a file. `path`: relative to the corpus.

        Names are not searched in a cue whose speaker the form names, nor in any cue if the user
        wants names kept as text.
        """
        turns_of_labels = list[list[_Turn]]()
        for label in labels:
            is_text_only = self.keep_names or label.speaker is not None
            turns_of_labels.append([] if is_text_only else _find_turns(label.text))
        for turn in chain.from_iterable(turns_of_labels):
            if turn.name is not None:
                self._texts_of_name.setdefault(turn.name, set()).add(turn.text)
                self._num_turns_of_name[turn.name] += 1
        self._files.append(_CueFile(path, labels, turns_of_labels))

    def split(self) -> list[list["Label"]]:
        """The labels of each file with their speakers, in the order in which the files were added.

        General names of speakers get the name of the file. What `report` states is counted.
        """
        return [self._split_file(file) for file in self._files]

    def _split_file(self, file: _CueFile) -> list["Label"]:
        """The labels of a file, with their speakers.

        If the names before colons are those of people, these names are removed from the texts and
        become the speakers. Otherwise they are kept as text, and counted for the report.
        """
        self._num_cues += file.num_with_text
        candidates = set(filter(self._may_be_name, file.names))
        names = candidates if self.take_names else self._choose_names(file, candidates)
        labels = file.labels
        if names:
            self._num_cues_with_speakers += file.num_with_text
            pairs = zip(labels, file.turns, strict=True)
            labels = [self._name_speaker(label, turns, names) for label, turns in pairs]
        else:
            self._kept.update(file.list_first_names(candidates))
        return [self._qualify(label, file.path) for label in labels]

    def _may_be_name(self, name: str) -> bool:
        """Whether a text before a colon may be a name.

        It may if it is written as a name. A text in small letters, such as `ana p`, may be a name
        if it has the form of one and recurs in the files.
        """
        if _is_like_name(name):
            return True
        return _has_form_of_name(name) and self._num_turns_of_name[name] > 1

    def _choose_names(self, file: _CueFile, candidates: Collection[str]) -> Collection[str]:
        """The candidates that are names of people in a file; none if its cues are text.

        They are names if most cues with a text have one, and if they are few and recur, as people
        do. Names with small letters, such as `ana p`, count only if each cue has a name.
        """
        like_names = [name for name in candidates if _is_like_name(name)]
        names_of_cues = file.list_first_names(like_names)
        have_most_cues_names = len(names_of_cues) > file.num_with_text / 2
        if not have_most_cues_names or not self._are_people(names_of_cues):
            return ()
        has_each_cue_a_name = len(file.list_first_names(candidates)) == file.num_with_text
        return candidates if has_each_cue_a_name else like_names

    def _are_people(self, names_of_cues: Sequence[str]) -> bool:
        """Whether the names at the beginning of cues, one per cue, are those of people.

        They are if there are at least two cues with names, few different names, and in at least
        half of these cues a general name or one that has different texts after it. A name that
        always has the same text is no speaker: `Hello: Hallo` recurs in a language lesson.
        """
        num_cues = len(names_of_cues)
        if num_cues < 2:
            return False
        if len({*names_of_cues}) > max(_MAX_DIFFERENT, num_cues / 2):
            return False
        num_of_people = sum(
            is_general_name(name) or len(self._texts_of_name[name]) > 1 for name in names_of_cues
        )
        return num_of_people >= num_cues / 2

    def _name_speaker(
        self,
        label: "Label",
        turns: Sequence[_Turn],
        names: Collection[str],
    ) -> "Label":
        """The label without these names in its text, and with the person whom it names as speaker.

        It has no speaker if several people speak in it, or if a part of it has no name. A label
        without any of the names is returned as it is. Counts the label and its names for the report.
        """
        parts = list[_Part]()
        for turn in turns:
            parts += _divide_at_names(turn, names)
        names_of_label = [part.name for part in parts if part.name is not None]
        if not names_of_label:
            return label
        self._num_named_cues += 1
        self._speakers.update(names_of_label)
        is_one_person = len({part.name for part in parts}) == 1  # None counts as another person
        text = " ".join(part.text for part in parts if part.text)
        return label._replace(text=text, speaker=names_of_label[0] if is_one_person else None)

    def _qualify(self, label: "Label", path: Path) -> "Label":
        """The label, with the name of the file in the name of its speaker if that is general."""
        if label.speaker is None or not is_general_name(label.speaker):
            return label
        qualified = qualify_name(label.speaker, path)
        self._general.setdefault(label.speaker, qualified)
        return label._replace(speaker=qualified)

    def report(self) -> None:
        """Log which names were taken for speakers, kept as text, and got the name of the file."""
        if self._speakers:
            logger.info(
                "%d of %d cues begin with a name and a colon, which is the speaker and no text: %s; "
                "--keep_names keeps it",
                self._num_named_cues,
                self._num_cues_with_speakers,
                _list_counts(self._speakers),
            )
        if self._kept.total() > 1:
            logger.info(
                "%d of %d transcripts begin with a name and a colon, which is kept as text: %s; "
                "--take_names makes it the speaker",
                self._kept.total(),
                self._num_cues,
                _list_counts(self._kept),
            )
        if self._general:
            logger.info(
                "%s may be other people in each file; speakers have the file in their name, such as %r",
                list_names([repr(name) for name in self._general]),
                next(iter(self._general.values())),
            )


def _list_counts(names: Counter[str]) -> str:
    """The names with their numbers, the most frequent first: `'Ana' (12), 'Ben' (3)`."""
    return list_names([f"{name!r} ({num})" for name, num in names.most_common()])


# ---- text of a cue → turns


def _find_turns(text: str) -> list[_Turn]:
    """What each speaker says in a cue.

    A cue that begins with a mark is divided at all marks that are written like this one, with or
    without a space after them: `- mo lu - ke` are two turns, `- mo -lu` is one.
    """
    text = " ".join(text.split())
    mark = _MARK.match(text)
    if mark is None:
        return [_find_name(text)]
    after_mark = r"\s" if mark["space"] else r"\S"  # another mark may be a part of the text
    parts = re.split(rf"\s+(?={re.escape(mark['mark'])}{after_mark})", text)
    return [_find_name(part) for part in parts]


def _find_name(text: str) -> _Turn:
    """The turn of a text, with what stands before and after its first colon.

    Brackets around all of the name are removed.
    """
    match = _NAME.match(text)
    if match is None:
        return _Turn(None, text, text)
    name = match["name"]
    is_in_brackets = re.fullmatch(r"\[.*\]|\([^()]*\)", name) is not None
    if is_in_brackets:
        name = name[1:-1].strip()
    return _Turn(name, match["text"], text)


@dataclass(frozen=True)
class _Part:
    """A part of a turn: what follows a name."""

    name: str | None
    """None: the beginning of a turn, before the first name."""
    text: str


def _divide_at_names(turn: _Turn, names: Collection[str]) -> list[_Part]:
    """The parts of a turn, divided wherever one of the names stands before a colon.

    Speakers may also change inside a turn, because some texts have no marks between them. If the
    turn does not begin with one of the names, the text before the first name is a part without a
    name. Example: `Ana: mo Ben: lu` has the parts `mo` of Ana and `lu` of Ben.
    """
    begins_with_name = turn.name in names
    any_name = "|".join(map(re.escape, names))
    # One of the names and a colon, perhaps after a mark, and perhaps in brackets.
    name_inside = rf"(?:^|(?<=\s))(?:(?:[-–—]|>{{1,3}}) ?)?[\[(]?({any_name})[\])]?{_COLON}"
    text_to_divide = turn.text if begins_with_name else turn.whole
    # The text before the first name, then alternately a name and the text after it.
    first_text, *names_and_texts = re.split(name_inside, text_to_divide)
    pairs = zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
    parts = [_Part(name, text.strip()) for name, text in pairs]
    if begins_with_name:
        parts.insert(0, _Part(turn.name, first_text.strip()))
    elif first_text.strip():
        parts.insert(0, _Part(None, first_text.strip()))
    return parts


# ---- names


def _is_like_name(name: str) -> bool:
    """Whether a text has the form of a name, and is a general name or written as a name.

    `speaker 1` is a general name. A text is written as a name if a word is not in small letters,
    and all words in small letters are particles, as in `Ana de Paz`. Notes in brackets do not count.
    """
    if not _has_form_of_name(name):
        return False
    if is_general_name(name):
        return True
    words = re.sub(r"\([^()]*\)", "", name).split()
    small_words = {word for word in words if word.islower()}
    has_other_word = any(not word.islower() for word in words)
    return has_other_word and small_words <= _PARTICLES


def _has_form_of_name(name: str) -> bool:
    """Whether a text has letters, at most five words, and no end of a sentence.

    A number is no name unless it is one of a telephone. A full stop ends a sentence only before a
    word of at least four letters, so `Dr. Paz` has no end of a sentence.
    """
    has_letter = any(map(str.isalpha, name))
    has_telephone = sum(map(str.isdigit, name)) >= _MIN_PHONE_NUMBER
    if not has_letter and not has_telephone:
        return False
    has_end_of_sentence = re.search(r"[?!;]|\.\s+\w{4}", name) is not None
    return len(name.split()) <= _MAX_WORDS and not has_end_of_sentence
