# SPDX-License-Identifier: Apache-2.0
"""Vectors of phonological features for phones in IPA, from panphon's table (Mortensen et al. 2016).

Symbols that are not in the table are read by these rules:

- A letter with diacritics that the table does not have together: diacritics are removed, the last
  one first, until the table has it. Each diacritic also has a small coordinate of its own, so `p̚`
  is near `p` but not equal to it.
- `tʃ` is read as `t͡ʃ` if the table has that. Any other symbol of several letters (`aɪ`, `ⁿd`) is
  the mean of its parts; half of the difference, last minus first, gives further coordinates. With a
  vowel in it, it is a vowel.
- Letters with equal features in the table (`r ɾ`, `ə ɜ`, `e ɐ`) have one vector, and so share a
    node.
- Tone letters add their tone to the preceding vowel. Alone they are segments.
- A symbol with any other character (`<blank>`, `▁`, letters of other scripts) has no vector.

Only panphon's table is read; importing panphon would import pandas, which takes seconds.

Dimension key: V units, K features of the table, F features of a vector.
"""

import csv
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.errors import ConfigError

_TABLE = "data/ipa_all.csv"
_WEIGHTS = "data/feature_weights.csv"
_INSTALL = 'pip install "wenet_hs[trees]"'
_TONE_WEIGHT = 0.25  # of the two tone features, which are not in panphon's weights: the weight of most features
_SIGN_COORDINATE = 0.25  # a quarter of the least distance of one feature, squared
_MAX_SIGNS = 6  # diacritics of a letter that are looked up; no phone has more

_TIE = "\u0361"
_TONES = frozenset("˥˦˧˨˩")
_SIGN_CATEGORIES = frozenset(("Mn", "Lm", "Sk", "No"))
_NASALS = {"ᵐ": "m", "ᶬ": "ɱ", "ⁿ": "n", "ᶯ": "ɳ", "ᶮ": "ɲ", "ᵑ": "ŋ", "ᶰ": "ɴ"}
"""Before a letter: prenasalised. After a letter, ⁿ is a nasal release."""
_SAME = str.maketrans({
    "g": "ɡ", ":": "ː", "'": "ʼ", "’": "ʼ", "ˁ": "ˤ", "ʱ": "\u0324", "ʴ": "˞",
    "\u035c": _TIE,  # the tie below
    "\u030a": "\u0325", "\u030d": "\u0329", "\u0311": "\u032f",  # above a descender: voiceless, syllabic, non-syllabic
    "˔": "\u031d", "˕": "\u031e", "ɚ": "ə˞", "ɝ": "ɜ˞", "ɩ": "ɪ", "ɷ": "ʊ",
    "ʦ": "t͡s", "ʣ": "d͡z", "ʧ": "t͡ʃ", "ʤ": "d͡ʒ", "ʨ": "t͡ɕ", "ʥ": "d͡ʑ",
    # Letters that are not in the table, as a similar letter with a diacritic that this letter never
    # has:
    "ʜ": "ħ\u0319", "ʢ": "ʕ\u0319", "ʡ": "ʔ\u0319", "ⱱ": "ʋ\u0306", "ȵ": "ɲ\u031f", "ȶ": "c\u031f", "ȡ": "ɟ\u031f",
    "ɿ": "ɨ\u033b", "ʅ": "ɨ\u033a",
})  # fmt: skip
"""Other spellings of a diacritic or letter of the table."""


_Sign = tuple[bool, str]
"""Whether a diacritic is after its letter, and the diacritic."""
_Key = tuple[tuple[str, tuple[_Sign, ...]], ...]
"""A segment without the order of its diacritics: each of the tied letters with its diacritics."""


class _Letter(NamedTuple):
    """A letter of a symbol with its diacritics, and whether it is tied to the letter before it."""

    letter: str
    signs: tuple[_Sign, ...]
    is_tied: bool


class _FeatureTable(NamedTuple):
    """panphon's segments, with features scaled so that squared distances are weighted sums; the
    weights (K,).
    """

    segments: dict[_Key, NDArray[np.float64]]
    letters: frozenset[str]
    syllabic: int
    """The column of the feature `syl`."""
    weights: NDArray[np.float64]


class _Phone(NamedTuple):
    """(K,) mean features, (K,) half the difference between the last part and the first, number of
    each diacritic.
    """

    mean: NDArray[np.float64]
    contour: NDArray[np.float64]
    signs: Counter[str]


def articulatory_vectors(units: Sequence[str]) -> NDArray[np.float64]:
    """A vector for each unit that is a phone in IPA; the others have a row of NaN.

    The Euclidean distance between rows is the distance between phones. NFC, NFD and other spellings
    of a phone (g, ɡ; t͡ʃ, tʃ, ʧ) give the same row.

    Returns: (V, F): panphon's features times the roots of their weights, the contours, and one
        coordinate per diacritic that any of the units has.
    Raises ConfigError: panphon is not installed.
    """
    table = _feature_table()
    phones = [_phone(unit, table) for unit in units]
    signs = sorted({sign for phone in phones if phone for sign in phone.signs})
    vectors = np.full((len(units), 2 * len(table.weights) + len(signs)), np.nan)
    for row, phone in zip(vectors, phones, strict=True):
        if phone is not None:
            row[:] = (
                *phone.mean,
                *phone.contour,
                *(_SIGN_COORDINATE * phone.signs[sign] for sign in signs),
            )
    return vectors


def nearest_phones(units: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """For each unit the index of the nearest of the `known` ones by `articulatory_vectors`; of
    equally near the first.

    None for a unit without a vector. Raises ConfigError if panphon is not installed.
    """
    vectors = articulatory_vectors([*known, *units])
    distances = [
        np.linalg.norm(vectors[: len(known)] - row, axis=1) for row in vectors[len(known) :]
    ]
    return [None if np.isnan(row).all() else int(np.nanargmin(row)) for row in distances]


def phone_features(
    units: Sequence[str],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The features of each unit at its start and at its end, -1 to 1, NaN for a unit that is not a
    phone; and weights.

    Symbols are read as in `articulatory_vectors`, without the coordinates for diacritics: `p̚`
    equals `p`. Both ends of a symbol of one segment are equal.

    Returns: (V, K), (V, K) and (K,), panphon's weights.
    Raises ConfigError: panphon is not installed.
    """
    table = _feature_table()
    ends_2VK = np.full((2, len(units), len(table.weights)), np.nan)
    for index, unit in enumerate(units):
        phone = _phone(unit, table)
        if phone is not None:
            ends_2VK[:, index] = (phone.mean - phone.contour, phone.mean + phone.contour)
    # A diphthong counts as a vowel from start to end, so its two ends may exceed the range.
    starts_VK, ends_VK = np.clip(ends_2VK / np.sqrt(table.weights), -1, 1)
    return starts_VK, ends_VK, table.weights


def _phone(unit: str, table: _FeatureTable) -> _Phone | None:
    read = _read_symbol(unit, table.letters)
    if read is None:
        return None
    parts, tones = read
    whole = (
        _look_up(parts, table) if len(parts) == 2 or any(part.is_tied for part in parts) else None
    )
    found = [_look_up([part], table) for part in parts] if whole is None else [whole]
    segments = [features for features in found if features is not None]
    groups = [
        group for group in (segments, [table.segments[((tone, ()),)] for tone in tones]) if group
    ]
    # Tones and segments use different features, zero in each other's, so their sum contains both.
    mean = np.sum([np.mean(group, axis=0) for group in groups], axis=0)
    contour = np.sum([(group[-1] - group[0]) / 2 for group in groups], axis=0)
    if segments:
        mean[table.syllabic] = max(segment[table.syllabic] for segment in segments)
    return _Phone(mean, contour, Counter(sign for part in parts for _, sign in part.signs))


def _look_up(parts: Sequence[_Letter], table: _FeatureTable) -> NDArray[np.float64] | None:
    """The features of these letters as one segment, with as many of their diacritics as the table
    has together.
    """
    indexes = _all_signs(parts)[:_MAX_SIGNS]
    for num_kept in range(len(indexes), -1, -1):
        for kept in combinations(
            indexes, num_kept
        ):  # in this order the last diacritic is removed first
            features = table.segments.get(_key(parts, kept))
            if features is not None:
                return features
    return None


def _key(parts: Sequence[_Letter], kept: Collection[tuple[int, int]]) -> _Key:
    """The parts with the diacritics whose (index of the letter, index of the diacritic) is kept."""
    return tuple(
        (
            part.letter,
            tuple(sorted(sign for at, sign in enumerate(part.signs) if (index, at) in kept)),
        )
        for index, part in enumerate(parts)
    )


def _all_signs(parts: Sequence[_Letter]) -> list[tuple[int, int]]:
    return [(index, at) for index, part in enumerate(parts) for at in range(len(part.signs))]


def _read_symbol(symbol: str, letters: frozenset[str]) -> tuple[list[_Letter], str] | None:
    """The letters of a symbol with their diacritics, and its tone letters; None if it has any other
    character.
    """
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", symbol).translate(_SAME))
    parts: list[_Letter] = []
    before: list[_Sign] = []
    tones, is_tied = "", False
    for character in text:
        if character in _TONES:
            tones += character
        elif character == _TIE and parts:
            is_tied = True
        elif character in letters or (character in _NASALS and not parts):
            parts.append(_Letter(_NASALS.get(character, character), tuple(before), is_tied))
            before, is_tied = [], False
        elif unicodedata.category(character) not in _SIGN_CATEGORIES:
            return None
        elif parts:
            parts[-1] = parts[-1]._replace(signs=(*parts[-1].signs, (True, character)))
        else:
            before.append((False, character))
    return (parts, tones) if (parts or tones) and not before else None


@cache
def _feature_table() -> _FeatureTable:
    """panphon's table. Its segments of one character are the letters."""
    spec = find_spec("panphon")  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("features of phones", "panphon is not installed", f"run {_INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    absent = [name for name in (_TABLE, _WEIGHTS) if not (folder / name).is_file()]
    if absent:
        raise ConfigError(
            "features of phones", f"{folder / absent[0]} is missing", f"run {_INSTALL} again"
        )
    with (folder / _TABLE).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    with (folder / _WEIGHTS).open(
        encoding="utf-8", newline=""
    ) as file:  # in another order than the table
        names, values = islice(csv.reader(file), 2)
    weight_of = dict(zip(names, map(float, values), strict=True))
    weights = np.array([weight_of.get(name, _TONE_WEIGHT) for name in header[1:]])
    scales = np.sqrt(weights)
    features = {
        unicodedata.normalize("NFD", row[0]): scales
        * [("-0+".index(value) - 1) for value in row[1:]]
        for row in rows
    }
    letters = frozenset(text for text in features if len(text) == 1) - _TONES
    segments: dict[_Key, NDArray[np.float64]] = {((tone, ()),): features[tone] for tone in _TONES}
    for text, values_K in features.items():
        read = _read_symbol(text, letters)
        if read is not None and read[0]:
            segments.setdefault(_key(read[0], _all_signs(read[0])), values_K)
    return _FeatureTable(segments, letters, header.index("syl") - 1, weights)
