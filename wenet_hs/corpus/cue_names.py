# SPDX-License-Identifier: Apache-2.0
"""Names of speakers at the beginning of subtitles, as meeting tools write them, and names that are
general.

Zoom, Teams, Meet and WhisperX write `Ana P: good morning` or `[SPEAKER_00]: good morning`. The name
is not spoken.
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
_MARK = re.compile(r"(?P<mark>[-–—]|>{1,3})(?P<space> ?)")
"""Before what one speaker says: the dash of a dialogue, or `>>` of broadcasts."""
_NAME = re.compile(
    rf"(?:{_MARK.pattern})?(?P<name>\[[^:：\[\]<>]{{1,40}}\]|[^:：\[\]<>]{{1,40}}?)"
    rf"{_COLON}(?P<text>.*)$"
)
"""A name and a colon at the beginning, perhaps after a mark, and what is said."""
_MAX_WORDS = 5
_MIN_PHONE_NUMBER = 7
"""Digits; Zoom names people who call by telephone so."""
_MAX_DIFFERENT = 4
"""Up to this number all cues of a file may have different names.

Of more, each name is in two cues on average.
"""
_PARTICLES = frozenset(
    ("af", "al", "ap", "av", "bin", "bint", "da", "das", "de", "del", "della", "den", "der", "di")
    + ("do", "dos", "du", "e", "el", "ibn", "la", "las", "le", "los", "ter", "van", "ver", "von")
    + ("y", "zu", "zum", "zur")
)
"""Words inside a name that begin with a small letter."""
_ROLES = (
    *(
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
    ),
    *(
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
    ),
    *(
        "sprecher",
        "sprecherin",
        "locuteur",
        "locutrice",
        "intervenant",
        "hablante",
        "orador",
        "oradora",
        "falante",
    ),
    *(
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
    ),
)
_GENERAL = re.compile(
    rf"(?:unknown |unidentified )?(?:{'|'.join(_ROLES)})[ _.-]*#?(?:\d+|[a-z])?|[a-z]\d*|\d{{1,3}}",
    re.IGNORECASE,
)
"""Names that every file has, for other people."""


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
    """What one speaker says in a cue."""

    name: str | None
    """What stands before its colon; None: it has no colon."""
    text: str
    """What stands after the colon."""
    whole: str
    """All of it, with name and mark."""


@dataclass(frozen=True)
class _CueFile:
    """The cues of a file. A transcript without times is one cue."""

    path: Path
    """Relative to the corpus."""
    labels: Sequence["Label"]
    turns: Sequence[Sequence[_Turn]]
    """Of each label; none if the form names its speaker."""

    @property
    def num_with_text(self) -> int:
        """Cues that are not empty."""
        return sum(bool(label.text) for label in self.labels)

    @property
    def names(self) -> set[str]:
        """What stands before the colons."""
        return {turn.name for turn in chain.from_iterable(self.turns) if turn.name is not None}

    def find_named(self, names: Collection[str]) -> list[str]:
        """The first of these names in each cue that has one."""
        first_names = (_find_first(turns, names) for turns in self.turns)
        return [name for name in first_names if name is not None]


@dataclass
class CueNames:
    """Finds the names at the beginning of cues. Add all files, then split them, then report.

    If most cues with a text begin with the names of people, these become the speakers.
    """

    keep_names: bool = False
    """Names before a colon are always text."""
    take_names: bool = False
    """Names before a colon are speakers also where few cues have one."""
    num_cues: int = 0
    """In files whose names were taken for speakers."""
    num_named: int = 0
    """Cues with a name that was taken for a speaker."""
    speakers: Counter[str] = field(default_factory=Counter)
    """Names that were taken for speakers, with their frequency."""
    kept: Counter[str] = field(default_factory=Counter)
    """Names that were kept as text, with their cues."""
    num_all: int = 0
    """Cues with a text in all files."""
    general: dict[str, str] = field(default_factory=dict)
    """General names, and how one of them was qualified."""
    _transcripts: list[_CueFile] = field(default_factory=list)
    _texts: dict[str, set[str]] = field(default_factory=dict)
    """Name → what follows it, in all files."""
    _counts: Counter[str] = field(default_factory=Counter)
    """Name → its cues in all files."""

    def add(self, labels: Sequence["Label"], path: Path) -> None:
        """Add the cues of a file. `path`: relative to the corpus."""
        turns_of_labels = list[list[_Turn]]()
        for label in labels:
            is_text_only = self.keep_names or label.speaker is not None
            turns_of_labels.append([] if is_text_only else _find_turns(label.text))
        for turn in chain.from_iterable(turns_of_labels):
            if turn.name is not None:
                self._texts.setdefault(turn.name, set()).add(turn.text)
                self._counts[turn.name] += 1
        self._transcripts.append(_CueFile(path, labels, turns_of_labels))

    def split(self) -> list[list["Label"]]:
        """The labels of each file with their speakers, in the order in which the files were added.

        General names of speakers get the name of the file.
        """
        return [self._split_file(transcript) for transcript in self._transcripts]

    def _split_file(self, transcript: _CueFile) -> list["Label"]:
        self.num_all += transcript.num_with_text
        candidates = set(filter(self._may_be_name, transcript.names))
        names = candidates if self.take_names else self._choose_names(transcript, candidates)
        labels = transcript.labels
        if names:
            self.num_cues += transcript.num_with_text
            pairs = zip(labels, transcript.turns, strict=True)
            labels = [self._name_speaker(label, turns, names) for label, turns in pairs]
        else:
            self.kept.update(transcript.find_named(candidates))
        return [self._qualify(label, transcript.path) for label in labels]

    def _may_be_name(self, name: str) -> bool:
        """Whether it is like a name. If it recurs it may be one too: some people write `ana p`."""
        return _is_like_name(name) or (_has_form_of_name(name) and self._counts[name] > 1)

    def _choose_names(
        self,
        transcript: _CueFile,
        candidates: Collection[str],
    ) -> Collection[str]:
        """The names of people in a file; none if too few of its cues begin with one.

        Words with small letters are names only if each cue begins with a name.
        """
        like_names = [name for name in candidates if _is_like_name(name)]
        cues_of_people = transcript.find_named(like_names)
        have_most_cues_names = len(cues_of_people) > transcript.num_with_text / 2
        if not have_most_cues_names or not self._are_people(cues_of_people):
            return ()
        has_each_cue_a_name = len(transcript.find_named(candidates)) == transcript.num_with_text
        return candidates if has_each_cue_a_name else like_names

    def _are_people(self, names: Sequence[str]) -> bool:
        """Whether the names of the cues of a file are those of people, which are few and recur.

        A person says different things: in a lesson of languages `Hello: Hallo` recurs too.
        """
        if len(names) < 2 or len({*names}) > max(_MAX_DIFFERENT, len(names) / 2):
            return False
        num_known = sum(is_general_name(name) or len(self._texts[name]) > 1 for name in names)
        return num_known >= len(names) / 2

    def _name_speaker(
        self,
        label: "Label",
        turns: Sequence[_Turn],
        names: Collection[str],
    ) -> "Label":
        """The label without these names. It has no speaker if several people speak in it."""
        parts = [part for turn in turns for part in _divide_at_names(turn, names)]
        named = [part.name for part in parts if part.name is not None]
        if not named:
            return label
        self.num_named += 1
        self.speakers.update(named)
        is_one_person = len({part.name for part in parts}) == 1
        text = " ".join(part.text for part in parts if part.text)
        return label._replace(text=text, speaker=named[0] if is_one_person else None)

    def _qualify(self, label: "Label", transcript: Path) -> "Label":
        if label.speaker is None or not is_general_name(label.speaker):
            return label
        qualified = qualify_name(label.speaker, transcript)
        self.general.setdefault(label.speaker, qualified)
        return label._replace(speaker=qualified)

    def report(self) -> None:
        """State what was taken for a speaker, what was kept as text, and which names are qualified."""
        if self.speakers:
            logger.info(
                "%d of %d cues begin with a name and a colon, which is the speaker and no text: %s; "
                "--keep_names keeps it",
                self.num_named,
                self.num_cues,
                _list_counts(self.speakers),
            )
        if self.kept.total() > 1:
            logger.info(
                "%d of %d transcripts begin with a name and a colon, which is kept as text: %s; "
                "--take_names makes it the speaker",
                self.kept.total(),
                self.num_all,
                _list_counts(self.kept),
            )
        if self.general:
            example = next(iter(self.general.values()))
            names = list_names([repr(name) for name in self.general])
            message = "%s may be other people in each file; speakers have the file in their name, such as %r"
            logger.info(message, names, example)


def _list_counts(names: Counter[str]) -> str:
    return list_names([f"{name!r} ({num})" for name, num in names.most_common()])


# ---- text of a cue → turns


def _find_turns(text: str) -> list[_Turn]:
    """What each speaker says in a cue.

    A cue that begins with a mark is divided at all marks that are written like this one.
    """
    text = " ".join(text.split())
    mark = _MARK.match(text)
    if mark is None:
        return [_find_name(text)]
    after_mark = r"\s" if mark["space"] else r"\S"
    parts = re.split(rf"\s+(?={re.escape(mark['mark'])}{after_mark})", text)
    return [_find_name(part) for part in parts]


def _find_name(text: str) -> _Turn:
    """What stands before the first colon, and after it."""
    match = _NAME.match(text)
    if match is None:
        return _Turn(None, text, text)
    name = match["name"]
    is_in_brackets = re.fullmatch(r"\[.*\]|\([^()]*\)", name) is not None
    return _Turn(name[1:-1].strip() if is_in_brackets else name, match["text"], text)


def _find_first(turns: Sequence[_Turn], names: Collection[str]) -> str | None:
    return next((turn.name for turn in turns if turn.name in names), None)


@dataclass(frozen=True)
class _Part:
    """A part of a turn: what follows a name."""

    name: str | None
    text: str


def _divide_at_names(turn: _Turn, names: Collection[str]) -> list[_Part]:
    """The turn, divided where one of the names stands with a colon: marks may be left out.

    A turn that does not begin with one of the names begins with a part without a name.
    """
    is_named = turn.name in names
    any_name = "|".join(map(re.escape, names))
    inside = rf"(?:^|(?<=\s))(?:(?:[-–—]|>{{1,3}}) ?)?[\[(]?({any_name})[\])]?{_COLON}"
    first, *others = re.split(inside, turn.text if is_named else turn.whole)
    pairs = zip(others[::2], others[1::2], strict=True)
    parts = [_Part(name, text.strip()) for name, text in pairs]
    if is_named or first.strip():
        parts.insert(0, _Part(turn.name if is_named else None, first.strip()))
    return parts


# ---- names


def _is_like_name(name: str) -> bool:
    """Whether it has the form of a name, and no words in small letters but particles (`de`).

    Notes in brackets may have small letters, and so may general names (`speaker 1`).
    """
    if not _has_form_of_name(name):
        return False
    words = re.sub(r"\([^()]*\)", "", name).split()
    is_capitalised = any(not word.islower() for word in words)
    small_words = {word for word in words if word.islower()}
    return is_general_name(name) or (is_capitalised and small_words <= _PARTICLES)


def _has_form_of_name(name: str) -> bool:
    """Whether it has at most five words and is no sentence.

    Numbers are no names, except those of telephones.
    """
    has_letter = any(map(str.isalpha, name))
    has_telephone = sum(map(str.isdigit, name)) >= _MIN_PHONE_NUMBER
    has_end_of_sentence = re.search(r"[?!;]|\.\s+\w{4}", name) is not None
    is_short = len(name.split()) <= _MAX_WORDS
    return (has_letter or has_telephone) and is_short and not has_end_of_sentence
