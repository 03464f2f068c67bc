# SPDX-License-Identifier: Apache-2.0
"""Channels of audio as tables, Kaldi folders and tiers name them: A and B, left and right, numbers."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from wenet_hs.data.audio import AudioError, read_num_channels
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"(?P<word>channel|chan|ch)?[ _.-]*((?P<side>left|right|[a-hlr])|(?P<number>\d+)(\.0)?)([ _.-]*channel)?",
    re.I,
)
_NO_CHANNEL = re.compile("[^a-z]*[a-z]?[^a-z]*|ch(an)?[a-h]", re.I)
"""Fewer than two letters, or what may be the name of a person."""
_SIDES = {"left": 0, "l": 0, "right": 1, "r": 1} | {
    letter: number for number, letter in enumerate("abcdefgh")
}
_ALL = ("-1", "mono", "stereo", "mix", "mixed", "both", "all", "average", "mean")
_REMEDY = "write left, right, A or B"


@lru_cache(maxsize=4096)
def count_channels(path: Path | str) -> int:
    """The channels of an audio file; 0 if it cannot be read."""
    try:
        return read_num_channels(path)
    except AudioError:
        return 0


def find_channel_name(names: Sequence[str]) -> str | None:
    """The first name of a tier or participant that is the name of a channel as a whole (left, ch1),
    not A, 1 or Cha.
    """
    return next(
        (one for one in names if _NAME.fullmatch(one) and not _NO_CHANNEL.fullmatch(one)), None
    )


def resolve_channels(written: Sequence[tuple[int | str | None, Path]]) -> list[int | str | None]:
    """The channel, from 0, of each annotation; None: the mean of all; a text: why it cannot be
    used.

    Numbers count from 0 if a 0 is among them, and from 1 if one is the number of channels of its
    audio or is written as ch1; otherwise they are refused. Audio with one channel needs no name,
    unless several are given for one file.

    Args:
        written: a number from 0 or a name, and the audio file, of each annotation.
    """
    of_path = defaultdict[Path, set[str]](set)
    for name, path in written:
        of_path[path] |= {name.lower()} - {*_ALL} if isinstance(name, str) else set()
    num_of = {path: count_channels(path) for path, names in of_path.items() if names}
    found = [
        (num, match)
        for path, num in num_of.items()
        for match in map(_NAME.fullmatch, of_path[path])
        if match
    ]
    numbers = [
        (int(match["number"]), num, match["word"])
        for num, match in found
        if match["number"] and num > 1
    ]
    first = 1 if any(number == num or word for number, num, word in numbers) else None
    first = 0 if any(number == 0 for number, *_ in numbers) else first
    resolved = [
        _resolve(name.lower(), num_of.get(path, 0), of_path[path], first)
        if isinstance(name, str)
        else name
        for name, path in written
    ]
    counts = Counter(
        (name, one)
        for (name, _), one in zip(written, resolved, strict=True)
        if isinstance(name, str)
    )
    used = {pair: num for pair, num in counts.items() if not isinstance(pair[1], str)}
    lines = [
        f"{name!r} is {'the whole audio' if one is None else one} ({num})"
        for (name, one), num in used.items()
    ]
    if lines:
        logger.info("channels, counted from 0: %s", list_names(lines, most=8))
    return resolved


def _resolve(name: str, count: int, names: set[str], first: int | None) -> int | str | None:
    match = _NAME.fullmatch(name)
    if count < 2 and len(names) > 1:
        return f"channel: the audio has only one, the data name {list_names(sorted(names))}; give the original audio"
    if count < 2 or name in _ALL:
        return None
    if match is None:
        return (
            f'channel: {name!r} is not known; {_REMEDY}, or ignore the column: --columns "channel="'
        )
    if match["number"] and first is None:
        return f"channel: {name!r} of audio with {count} may count from 0 or from 1; {_REMEDY}"
    index = (
        int(match["number"]) - (first or 0) if match["number"] else _SIDES[match["side"].lower()]
    )
    return index if index < count else f"outside the audio: channel {name!r} of audio with {count}"
