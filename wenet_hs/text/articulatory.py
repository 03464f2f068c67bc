# SPDX-License-Identifier: Apache-2.0
"""Vectors of phonological features for phones in IPA, from panphon's table (Mortensen et al. 2016).

Symbols that are not in the table are read by these rules:

- A letter with diacritics that the table does not have together: diacritics are removed, the last
  one first, until the table has it. Each diacritic also has a small coordinate of its own, so `p̚`
  is near `p` but not equal to it.
- `tʃ` is read as `t͡ʃ` if the table has that. Any other symbol of several letters (`aɪ`, `ⁿd`) is
  the mean of its parts; half of the difference, last minus first, gives further coordinates. With a
  vowel in it, it is a vowel.
- Letters with equal features in the table (`r ɾ`, `ə ɜ`, `e ɐ`) have equal vectors, and so share a
  node of a tree.
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
"""In the folder of panphon: one line per segment, with `+`, `-` or `0` for each feature."""
_WEIGHTS = "data/feature_weights.csv"
"""In the folder of panphon: the names of features and their weights."""
_INSTALL = 'pip install "wenet_hs[trees]"'
_FEATURE_VALUES = {"-": -1, "0": 0, "+": 1}
_TONE_WEIGHT = 0.25
"""The weight of most features, used for the two of tone, which have none in panphon."""
_DIACRITIC_COORDINATE = 0.25
"""Coordinate of a diacritic. Its square is a quarter of `_TONE_WEIGHT`, the squared distance of one
step (from 0 to +) in most features.
"""
_MAX_DIACRITICS = 6
"""Diacritics of a symbol that are looked up. No phone has more."""

_TIE = "\u0361"
_TONES = frozenset("˥˦˧˨˩")
_DIACRITIC_CATEGORIES = frozenset(("Mn", "Lm", "Sk", "No"))
"""Of Unicode: the categories of diacritics."""
_NASALS = {"ᵐ": "m", "ᶬ": "ɱ", "ⁿ": "n", "ᶯ": "ɳ", "ᶮ": "ɲ", "ᵑ": "ŋ", "ᶰ": "ɴ"}
"""Before a letter: prenasalised. After a letter, ⁿ is a nasal release."""
_OTHER_SPELLINGS = str.maketrans({
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


class _Diacritic(NamedTuple):
    """A diacritic of a letter."""

    is_after: bool
    """Whether it is written after its letter."""
    character: str


class _Letter(NamedTuple):
    """A letter of a symbol with its diacritics."""

    letter: str
    diacritics: tuple[_Diacritic, ...]
    is_tied: bool
    """Whether it is tied to the letter before it."""


class _Symbol(NamedTuple):
    """What a symbol is written with."""

    letters: Sequence[_Letter]
    tones: str


_DiacriticPosition = tuple[int, int]
"""Index of a letter in a symbol, and index of a diacritic of this letter."""
_SegmentKey = tuple[tuple[str, tuple[_Diacritic, ...]], ...]
"""The letters of a segment (several if they are tied), each with its sorted diacritics."""


class _FeatureTable(NamedTuple):
    """panphon's table."""

    segments: dict[_SegmentKey, NDArray[np.float64]]
    """(K,) features of each segment, multiplied by the roots of their weights.

    So squared distances are weighted sums.
    """
    letters: frozenset[str]
    """Segments of one character that are no tones."""
    syllabic: int
    """The column of the feature `syl`."""
    weights: NDArray[np.float64]
    """(K,)."""


class _Phone(NamedTuple):
    """The features of a symbol."""

    mean: NDArray[np.float64]
    """(K,) mean features of its parts."""
    contour: NDArray[np.float64]
    """(K,) half the difference between the last part and the first."""
    diacritics: Counter[str]
    """How often each diacritic is in it."""


def articulatory_vectors(units: Sequence[str]) -> NDArray[np.float64]:
    """A vector for each unit that is a phone in IPA; the others have a row of NaN.

    The Euclidean distance between rows is the distance between phones. NFC, NFD and other spellings
    of a phone (g, ɡ; t͡ʃ, tʃ, ʧ) give the same row.

    Returns: (V, F): panphon's features times the roots of their weights, the contours, and one
        coordinate per diacritic that any of the units has.
    Raises ConfigError: panphon is not installed.
    """
    table = _feature_table()
    phones = [_read_phone(unit, table) for unit in units]
    diacritics_of_phones = [phone.diacritics for phone in phones if phone is not None]
    diacritics = sorted(set[str]().union(*diacritics_of_phones))
    num_features = 2 * len(table.weights) + len(diacritics)
    vectors_VF = np.full((len(units), num_features), np.nan)
    for row_F, phone in zip(vectors_VF, phones, strict=True):
        if phone is not None:
            diacritic_coordinates = [
                _DIACRITIC_COORDINATE * phone.diacritics[diacritic] for diacritic in diacritics
            ]
            row_F[:] = (*phone.mean, *phone.contour, *diacritic_coordinates)
    return vectors_VF


def nearest_phones(units: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """For each unit the index of the nearest of the `known` units, by `articulatory_vectors`.

    If several are equally near, it is the first of them. None for a unit without a vector; known
    units without one are never the nearest. Raises ConfigError if panphon is not installed.
    """
    vectors = articulatory_vectors([*known, *units])
    known_vectors = vectors[: len(known)]
    nearest = list[int | None]()
    for vector in vectors[len(known) :]:
        distances = np.linalg.norm(known_vectors - vector, axis=1)  # NaN if a vector is missing
        has_distance = not np.isnan(distances).all()
        nearest.append(int(np.nanargmin(distances)) if has_distance else None)
    return nearest


def phone_features(
    units: Sequence[str],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The features of each unit at its start and at its end, and the weights of the features.

    Symbols are read as in `articulatory_vectors`, without the coordinates for diacritics: `p̚`
    equals `p`. Both ends of a symbol of one segment are equal. Features are -1 to 1, and NaN for a
    unit that is not a phone.

    Returns: (V, K), (V, K) and (K,), panphon's weights.
    Raises ConfigError: panphon is not installed.
    """
    table = _feature_table()
    ends_2VK = np.full((2, len(units), len(table.weights)), np.nan)
    for index, unit in enumerate(units):
        phone = _read_phone(unit, table)
        if phone is not None:
            # The contour is half the difference between end and start.
            ends_2VK[:, index] = (phone.mean - phone.contour, phone.mean + phone.contour)
    unscaled_2VK = ends_2VK / np.sqrt(table.weights)
    # A diphthong counts as a vowel from start to end, so its two ends may exceed the range.
    starts_VK, ends_VK = np.clip(unscaled_2VK, -1, 1)
    return starts_VK, ends_VK, table.weights


def _read_phone(unit: str, table: _FeatureTable) -> _Phone | None:
    """The features of a unit; None if it is not a phone in IPA.

    Its segments and its tones are two groups of parts. They use different features, which are 0 in
    the other group, so the sum over the groups contains both. A symbol with a vowel in it is a
    vowel: it has the greatest `syl` of its segments.
    """
    symbol = _read_symbol(unit, table.letters)
    if symbol is None:
        return None
    segments = _find_segments(symbol.letters, table)
    tones = [table.segments[_tone_key(tone)] for tone in symbol.tones]
    # Of each group the mean, and half the difference between its last part and its first.
    groups = [group for group in (segments, tones) if group]
    mean = np.sum([np.mean(group, axis=0) for group in groups], axis=0)
    contour = np.sum([(group[-1] - group[0]) / 2 for group in groups], axis=0)
    if segments:
        mean[table.syllabic] = max(segment[table.syllabic] for segment in segments)
    diacritics = Counter[str]()
    for letter in symbol.letters:
        diacritics.update(diacritic.character for diacritic in letter.diacritics)
    return _Phone(mean, contour, diacritics)


def _find_segments(letters: Sequence[_Letter], table: _FeatureTable) -> list[NDArray[np.float64]]:
    """The features of the segments in a symbol with these letters.

    Tied letters are one segment, and so are two letters that are not tied, if the table has them
    as one: `tʃ` is `t͡ʃ`. Otherwise each letter is one. Letters without features are left out.
    """
    may_be_one_segment = len(letters) == 2 or any(letter.is_tied for letter in letters)
    if may_be_one_segment:
        features = _look_up(letters, table)
        if features is not None:
            return [features]
    segments = []
    for letter in letters:
        features = _look_up([letter], table)
        if features is not None:
            segments.append(features)
    return segments


def _look_up(letters: Sequence[_Letter], table: _FeatureTable) -> NDArray[np.float64] | None:
    """The features (K,) of these letters as one segment; None if the table does not have it.

    If the table does not have the letters with all of their diacritics, as few diacritics as
    possible are left out, and of equally many the last ones.
    """
    positions = _diacritic_positions(letters)[:_MAX_DIACRITICS]
    for num_kept in range(len(positions), -1, -1):
        for kept in combinations(positions, num_kept):  # the first positions come first
            features = table.segments.get(_segment_key(letters, kept))
            if features is not None:
                return features
    return None


def _diacritic_positions(letters: Sequence[_Letter]) -> list[_DiacriticPosition]:
    """The positions of all diacritics of these letters, in order."""
    positions = list[_DiacriticPosition]()
    for letter_index, letter in enumerate(letters):
        positions += [
            (letter_index, diacritic_index) for diacritic_index in range(len(letter.diacritics))
        ]
    return positions


def _segment_key(letters: Sequence[_Letter], kept: Collection[_DiacriticPosition]) -> _SegmentKey:
    """The key of the segment with these letters and those of their diacritics that are kept."""
    parts = []
    for letter_index, letter in enumerate(letters):
        kept_diacritics = [
            diacritic
            for diacritic_index, diacritic in enumerate(letter.diacritics)
            if (letter_index, diacritic_index) in kept
        ]
        parts.append((letter.letter, tuple(sorted(kept_diacritics))))
    return tuple(parts)


def _tone_key(tone: str) -> _SegmentKey:
    """The key of a tone letter, which has no diacritics."""
    return ((tone, ()),)


def _read_symbol(symbol: str, known_letters: frozenset[str]) -> _Symbol | None:
    """The letters of a symbol with their diacritics, and its tone letters.

    A diacritic belongs to the letter before it, or to the first letter if it is before that one.
    The small nasals of `_NASALS` (`ⁿ`) are letters at the beginning, and diacritics elsewhere.

    None if the symbol has any other character, has neither a letter nor a tone, or has diacritics
    but no letter.
    """
    decomposed = unicodedata.normalize("NFD", symbol)
    # In the spelling of the table; its letters may have to be decomposed again.
    text = unicodedata.normalize("NFD", decomposed.translate(_OTHER_SPELLINGS))
    letters: list[_Letter] = []
    diacritics_before_letter: list[_Diacritic] = []
    tones = ""
    is_tied = False  # a tie before the next letter
    for character in text:
        is_nasal_letter = character in _NASALS and not letters
        if character in _TONES:
            tones += character
        elif character == _TIE and letters:
            is_tied = True
        elif character in known_letters or is_nasal_letter:
            letter = _NASALS.get(character, character)
            letters.append(_Letter(letter, tuple(diacritics_before_letter), is_tied))
            diacritics_before_letter = []
            is_tied = False
        elif unicodedata.category(character) not in _DIACRITIC_CATEGORIES:
            return None
        elif letters:
            last = letters[-1]
            diacritic = _Diacritic(is_after=True, character=character)
            letters[-1] = last._replace(diacritics=(*last.diacritics, diacritic))
        else:
            diacritics_before_letter.append(_Diacritic(is_after=False, character=character))
    is_empty = not letters and not tones
    if is_empty or diacritics_before_letter:
        return None
    return _Symbol(letters, tones)


# ---- panphon's table


@cache
def _feature_table() -> _FeatureTable:
    """panphon's table. Raises ConfigError if panphon is not installed or lacks a file."""
    folder = _find_panphon()
    with (folder / _TABLE).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    feature_names = header[1:]
    weights_K = _read_weights(folder / _WEIGHTS, feature_names)
    scales_K = np.sqrt(weights_K)
    features = dict[str, NDArray[np.float64]]()
    for text, *values in rows:
        values_K = [_FEATURE_VALUES[value] for value in values]
        features[unicodedata.normalize("NFD", text)] = scales_K * values_K
    letters = frozenset(text for text in features if len(text) == 1) - _TONES
    segments = {_tone_key(tone): features[tone] for tone in _TONES}
    for text, features_K in features.items():
        symbol = _read_symbol(text, letters)
        if symbol is not None and symbol.letters:
            key = _segment_key(symbol.letters, _diacritic_positions(symbol.letters))
            segments.setdefault(key, features_K)  # of several spellings the first counts
    return _FeatureTable(segments, letters, feature_names.index("syl"), weights_K)


def _find_panphon() -> Path:
    """The folder of panphon, which is not imported: that would import pandas, which takes seconds.

    Raises ConfigError if panphon is not installed, or if one of the files that are read is missing.
    """
    spec = find_spec("panphon")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("features of phones", "panphon is not installed", f"run {_INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    for name in (_TABLE, _WEIGHTS):
        if not (folder / name).is_file():
            raise ConfigError(
                "features of phones", f"{folder / name} is missing", f"run {_INSTALL} again"
            )
    return folder


def _read_weights(path: Path, feature_names: Sequence[str]) -> NDArray[np.float64]:
    """(K,) the weights of these features; the file has them in another order."""
    with path.open(encoding="utf-8", newline="") as file:
        names, values = islice(csv.reader(file), 2)
    weight_of = dict(zip(names, map(float, values), strict=True))
    return np.array([weight_of.get(name, _TONE_WEIGHT) for name in feature_names])
