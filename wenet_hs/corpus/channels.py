# SPDX-License-Identifier: Apache-2.0
"""Channels of audio as tables, Kaldi folders and tiers name them: A and B, left and right, numbers.

`resolve_channels` gives the number of each annotation's channel. Whether numbers count from 0 or
from 1 is decided once, from all names and the audio.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from wenet_hs.data.audio import AudioError, read_num_channels
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"(?P<word>channel|chan|ch)?[ _.-]*((?P<side>left|right|[a-hlr])|(?P<number>\d+)(\.0)?)([ _.-]*channel)?",
    re.I,
)
"""A name of one channel: its side or its number, which a word may precede, such as `ch1`."""
_NO_CHANNEL = re.compile("[^a-z]*[a-z]?[^a-z]*|ch(an)?[a-h]", re.I)
"""Names that may mean a person or something else: at most one letter, or a name such as Cha."""
_SIDES = {"left": 0, "l": 0, "right": 1, "r": 1} | {
    letter: number for number, letter in enumerate("abcdefgh")
}
"""Side of a channel in lower case → its number from 0."""
_ALL = ("-1", "mono", "stereo", "mix", "mixed", "both", "all", "average", "mean")
"""Names of all channels together, whose mean is used."""
_REMEDY = "write left, right, A or B"
_UNREADABLE = 0
"""Number of channels of an audio file that cannot be read."""


@dataclass(frozen=True)
class UnusableChannel:
    """The channel of an annotation that cannot be used."""

    reason: str


def resolve_channels(
    written: Sequence[tuple[int | str | None, Path]],
) -> list[int | None | UnusableChannel]:
    """The channel of each annotation, from 0; None: the mean of all.

    Numbers count from 0 if a 0 is among them, and from 1 if one is the number of channels of its
    audio or is written as ch1; otherwise they cannot be used. Audio with one channel needs no name,
    unless several are given for one file. What each name means is logged.

    Args:
        written: the channel and the audio file of each annotation. The channel is a number from 0,
            a name, or None.
    """
    names_of_path = defaultdict[Path, set[str]](set)  # without names of all channels together
    for name, path in written:
        if isinstance(name, str) and name.lower() not in _ALL:
            names_of_path[path].add(name.lower())
    num_channels_of = {path: count_channels(path) for path in names_of_path}
    first_number = _find_first_number(names_of_path, num_channels_of)
    resolved = list[int | None | UnusableChannel]()
    for name, path in written:
        if isinstance(name, str):
            num_channels = num_channels_of.get(path, _UNREADABLE)
            names = names_of_path.get(path, set())
            resolved.append(_resolve_name(name.lower(), num_channels, names, first_number))
        else:  # a number from 0, or None
            resolved.append(name)
    _report_channels([name for name, _ in written], resolved)
    return resolved


@lru_cache(maxsize=4096)
def count_channels(path: Path | str) -> int:
    """The channels of an audio file; 0 if it cannot be read."""
    try:
        return read_num_channels(path)
    except AudioError:
        return _UNREADABLE


def _find_first_number(
    names_of_path: Mapping[Path, Iterable[str]], num_channels_of: Mapping[Path, int]
) -> int | None:
    """Whether the numbers of channels count from 0 or from 1; None: both are possible.

    They count from 0 if one of them is 0. They count from 1 if one is the number of channels of its
    audio, or has a word before it, as in ch1. Files with one channel tell nothing.
    """
    first_number = None
    for path, names in names_of_path.items():
        num_channels = num_channels_of[path]
        if num_channels < 2:
            continue
        for match in _match_names(names):
            if match["number"] is None:
                continue
            number = int(match["number"])
            if number == 0:
                return 0
            if number == num_channels or match["word"]:
                first_number = 1
    return first_number


def _match_names(names: Iterable[str]) -> Iterator[re.Match[str]]:
    """The match of each name that is a known name of a channel."""
    return filter(None, map(_NAME.fullmatch, names))


def _resolve_name(
    name: str, num_channels: int, names: set[str], first_number: int | None
) -> int | None | UnusableChannel:
    """The channel with this name, from 0; None: the mean of all.

    Audio with one channel needs no name, so any single name of it is accepted.

    Args:
        name: in lower case.
        num_channels: of the audio file; 0: it cannot be read, which the check of the clips states.
        names: all names of channels of this file.
        first_number: the number of the first channel, 0 or 1; None: not known.
    """
    if num_channels < 2 and len(names) > 1:
        listed = list_names(sorted(names))
        return UnusableChannel(
            f"channel: the audio has only one, the data name {listed}; give the original audio"
        )
    if num_channels < 2 or name in _ALL:
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        return UnusableChannel(
            f'channel: {name!r} is not known; {_REMEDY}, or ignore the column: --columns "channel="'
        )
    if match["number"] is None:
        channel = _SIDES[match["side"].lower()]
    elif first_number is None:
        return UnusableChannel(
            f"channel: {name!r} of audio with {num_channels} may count from 0 or from 1; {_REMEDY}"
        )
    else:
        channel = int(match["number"]) - first_number
    if channel >= num_channels:
        return UnusableChannel(f"outside the audio: channel {name!r} of audio with {num_channels}")
    return channel


def _report_channels(
    names: Sequence[int | str | None], resolved: Sequence[int | None | UnusableChannel]
) -> None:
    """Log which channel each name is, and how many annotations have the name."""
    counts = Counter[tuple[str, int | None]]()
    for name, channel in zip(names, resolved, strict=True):
        if isinstance(name, str) and not isinstance(channel, UnusableChannel):
            counts[name, channel] += 1
    lines = []
    for (name, channel), num in counts.items():
        meaning = "the whole audio" if channel is None else channel
        lines.append(f"{name!r} is {meaning} ({num})")
    if lines:
        logger.info("channels, counted from 0: %s", list_names(lines, most=8))


def find_channel_name(names: Sequence[str]) -> str | None:
    """The first of these names, of a tier and its participant, that is the name of a channel.

    Such names are `left` and `ch1`. A, 1 and Cha may mean something else, so they do not count.
    None: no name is that of a channel.
    """
    for name in names:
        if _NAME.fullmatch(name) and not _NO_CHANNEL.fullmatch(name):
            return name
    return None
