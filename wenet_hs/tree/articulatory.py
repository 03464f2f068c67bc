# SPDX-License-Identifier: Apache-2.0
"""Phones as vectors of phonological features, from panphon's table (Mortensen et al. 2016), for `cluster_children`.

What the table does not have is read by rules, so that every symbol of the IPA has its place:

- A letter with signs that the table does not know together loses signs, the last one first, until it is known. Each
  sign also has a small coordinate of its own: `p̚` is beside `p`, not on it.
- `tʃ` is read as `t͡ʃ` where the table has that. Any other symbol of several letters (`aɪ`, `ⁿd`) is the mean of its
  parts, with half of their difference, last minus first, as further coordinates; with a vowel in it, it is a vowel.
- Letters that the table does not tell apart (`r ɾ`, `ə ɜ`, `e ɐ`) have one vector, and so share a node.
- Tone letters add their tone to the vowel before them, and are segments of their own where they stand alone.
- A symbol with any other character (`<blank>`, `▁`, letters of other scripts) has no vector.

Only the table is read, from panphon's folder: its module imports pandas for it, which takes seconds.

Dimension key: V units, K features of the table, F features of a vector.
"""

import csv
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError
from wenet_hs.tree.cluster import log_without_vector

_TABLE = "data/ipa_all.csv"
_WEIGHTS = "data/feature_weights.csv"
_INSTALL = 'pip install "wenet_hs[trees]"'
_DEFAULT_WEIGHT = 0.25  # of the two tone features, which panphon's weights leave out: that of most features
_SIGN_COORDINATE = 0.25  # a quarter of the least distance that one feature makes, squared
_MAX_SIGNS = 6  # of a letter that are looked up; more are on no phone
_SYLLABIC = "syl"

_TIE = "\u0361"
_TONES = frozenset("˥˦˧˨˩")
_SIGN_CATEGORIES = frozenset(("Mn", "Lm", "Sk", "No"))
_NASALS = {"ᵐ": "m", "ᶬ": "ɱ", "ⁿ": "n", "ᶯ": "ɳ", "ᶮ": "ɲ", "ᵑ": "ŋ", "ᶰ": "ɴ"}
"""Before a letter: prenasalised. Behind one, ⁿ is a nasal release."""
_SAME = str.maketrans({
    "g": "ɡ", ":": "ː", "'": "ʼ", "’": "ʼ", "ˁ": "ˤ", "ʱ": "\u0324", "ʴ": "˞",
    "\u035c": _TIE,  # the tie below
    "\u030a": "\u0325", "\u030d": "\u0329", "\u0311": "\u032f",  # above a descender: voiceless, syllabic, non-syllabic
    "˔": "\u031d", "˕": "\u031e", "ɚ": "ə˞", "ɝ": "ɜ˞", "ɩ": "ɪ", "ɷ": "ʊ",
    "ʦ": "t͡s", "ʣ": "d͡z", "ʧ": "t͡ʃ", "ʤ": "d͡ʒ", "ʨ": "t͡ɕ", "ʥ": "d͡ʑ",
    # Letters that the table lacks, as a neighbour with a sign that this one never has:
    "ʜ": "ħ\u0319", "ʢ": "ʕ\u0319", "ʡ": "ʔ\u0319", "ⱱ": "ʋ\u0306", "ȵ": "ɲ\u031f", "ȶ": "c\u031f", "ȡ": "ɟ\u031f",
    "ɿ": "ɨ\u033b", "ʅ": "ɨ\u033a",
})  # fmt: skip
"""Other ways to write a sign or letter of the table."""


@dataclass(frozen=True)
class _Part:
    """A letter of a symbol, with the signs before and behind it."""

    letter: str
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    tied: bool = False
    """To the letter before it."""

    @property
    def signs(self) -> tuple[str, ...]:
        return (*self.before, *self.behind)


_Key = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
"""A segment whatever the order of its signs: letter, signs before, signs behind, for each of the tied letters."""


@dataclass(frozen=True)
class _Table:
    """panphon's segments, features scaled so that squared distances are weighted sums."""

    segments: dict[_Key, NDArray[np.float64]]
    letters: frozenset[str]
    syllabic: int
    """The column of the feature `syl`."""
    weights: NDArray[np.float64]
    """(K,) of the features."""


@dataclass(frozen=True)
class _Phone:
    """(K,) features, (K,) half the way from the first part to the last, and how often each sign stands there."""

    mean: NDArray[np.float64]
    contour: NDArray[np.float64]
    signs: Counter[str]


def articulatory_vectors(units: Sequence[str]) -> NDArray[np.float64]:
    """A vector for each unit that the IPA can write; the others have NaN and are named in one line of the log.

    A Euclidean distance between rows is one between phones. NFC, NFD and other spellings of a phone (g, ɡ; t͡ʃ, tʃ, ʧ)
    give the same row.

    Returns:
        (V, F): panphon's features times the roots of their weights, the contours, and one coordinate for each sign
        that any of the units has.
    Raises:
        ConfigError: panphon is not installed.
    """
    table = _table()
    phones = [_phone(unit, table) for unit in units]
    signs = sorted({sign for phone in phones if phone for sign in phone.signs})
    num_features = len(next(iter(table.segments.values())))
    vectors = np.full((len(units), 2 * num_features + len(signs)), np.nan)
    for row, phone in zip(vectors, phones, strict=True):
        if phone is not None:
            row[:] = (*phone.mean, *phone.contour, *(_SIGN_COORDINATE * phone.signs[sign] for sign in signs))
    log_without_vector(vectors, units, "are no phones that the IPA can write")
    return vectors


def phone_features(units: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The features of each unit as it begins and as it ends, -1 to 1, NaN for what is no phone; and their weights.

    The same readings as `articulatory_vectors`, without its coordinates for signs: `p̚` is `p` where panphon's table
    does not know the sign. Both ends of a symbol of one segment are alike.

    Returns:
        (V, K), (V, K) and (K,), panphon's weights.
    Raises:
        ConfigError: panphon is not installed.
    """
    table = _table()
    ends_2VK = np.full((2, len(units), len(table.weights)), np.nan)
    for index, unit in enumerate(units):
        phone = _phone(unit, table)
        if phone is not None:
            ends_2VK[:, index] = (phone.mean - phone.contour, phone.mean + phone.contour)
    # A diphthong counts as a vowel from end to end, which its two ends may overshoot.
    starts_VK, ends_VK = np.clip(ends_2VK / np.sqrt(table.weights), -1, 1)
    return starts_VK, ends_VK, table.weights


def _phone(unit: str, table: _Table) -> _Phone | None:
    read = _read(unit, table.letters)
    if read is None:
        return None
    parts, tones = read
    segments = _segments(parts, table)
    groups = [group for group in (segments, [_tone(tone, table) for tone in tones]) if group]
    # Tones and segments have their features apart, zero in the others', so that their sum is both.
    mean = np.sum([np.mean(group, axis=0) for group in groups], axis=0)
    contour = np.sum([(group[-1] - group[0]) / 2 for group in groups], axis=0)
    if segments:
        mean[table.syllabic] = max(segment[table.syllabic] for segment in segments)
    return _Phone(mean, contour, Counter(sign for part in parts for sign in part.signs))


def _tone(letter: str, table: _Table) -> NDArray[np.float64]:
    return table.segments[((letter, (), ()),)]


def _segments(parts: Sequence[_Part], table: _Table) -> list[NDArray[np.float64]]:
    """The features of each segment of a symbol; every letter alone is in the table."""
    whole = _lookup(parts, table) if len(parts) == 2 or any(part.tied for part in parts) else None
    if whole is not None:
        return [whole]
    found = [_lookup([part], table) for part in parts]
    return [features for features in found if features is not None]


def _lookup(parts: Sequence[_Part], table: _Table) -> NDArray[np.float64] | None:
    """The features of these letters as one segment, with as many of their signs as the table knows together."""
    places = [(index, place) for index, part in enumerate(parts) for place in range(len(part.signs))][:_MAX_SIGNS]
    for num_kept in range(len(places), -1, -1):
        for kept in combinations(places, num_kept):  # the first signs first, so the last is the first to go
            features = table.segments.get(_key(parts, frozenset(kept)))
            if features is not None:
                return features
    return None


def _key(parts: Sequence[_Part], kept: frozenset[tuple[int, int]]) -> _Key:
    key = []
    for index, part in enumerate(parts):
        behind = range(len(part.before), len(part.signs))
        signs = [
            tuple(sorted(part.signs[place] for place in side if (index, place) in kept))
            for side in (range(len(part.before)), behind)
        ]
        key.append((part.letter, signs[0], signs[1]))
    return tuple(key)


def _read(symbol: str, letters: frozenset[str]) -> tuple[list[_Part], str] | None:
    """The letters of a symbol with their signs, and its tone letters; None if there is anything else in it."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", symbol).translate(_SAME))
    parts: list[_Part] = []
    before: list[str] = []
    tones, tied = "", False
    for character in text:
        if character in _TONES:
            tones += character
        elif character == _TIE and parts:
            tied = True
        elif character in letters or (character in _NASALS and not parts):
            parts.append(_Part(_NASALS.get(character, character), tuple(before), (), tied))
            before, tied = [], False
        elif unicodedata.category(character) not in _SIGN_CATEGORIES:
            return None
        elif parts:
            last = parts[-1]
            parts[-1] = _Part(last.letter, last.before, (*last.behind, character), last.tied)
        else:
            before.append(character)
    return (parts, tones) if (parts or tones) and not before else None


@cache
def _table() -> _Table:
    """panphon's table; a letter is what it has as a segment of one character."""
    with (_panphon_folder() / _TABLE).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    weights = np.array(_weights(header[1:]))
    scales = np.sqrt(weights)
    features = {
        unicodedata.normalize("NFD", row[0]): scales * [("-0+".index(value) - 1) for value in row[1:]] for row in rows
    }
    letters = frozenset(text for text in features if len(text) == 1) - _TONES
    segments: dict[_Key, NDArray[np.float64]] = {((tone, (), ()),): features[tone] for tone in _TONES}
    for text, values in features.items():
        read = _read(text, letters)
        if read is not None and read[0]:
            parts = read[0]
            everything = frozenset(
                (index, place) for index, part in enumerate(parts) for place in range(len(part.signs))
            )
            segments.setdefault(_key(parts, everything), values)
    return _Table(segments, letters, header.index(_SYLLABIC) - 1, weights)


def _weights(names: Sequence[str]) -> list[float]:
    """panphon's weight of each feature, by name: its file has another order than its table."""
    with (_panphon_folder() / _WEIGHTS).open(encoding="utf-8", newline="") as file:
        known, values = islice(csv.reader(file), 2)
    weights = dict(zip(known, map(float, values), strict=True))
    return [weights.get(name, _DEFAULT_WEIGHT) for name in names]


def _panphon_folder() -> Path:
    spec = find_spec("panphon")  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"--kind articulatory: panphon is not installed; run {_INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    absent = [name for name in (_TABLE, _WEIGHTS) if not (folder / name).is_file()]
    if absent:
        raise ConfigError(f"--kind articulatory: {folder / absent[0]} is not there; run {_INSTALL} again")
    return folder
