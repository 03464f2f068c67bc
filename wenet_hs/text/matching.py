# SPDX-License-Identifier: Apache-2.0
"""Finds the units of a table in a text: the longest unit at each position, whatever the Unicode
form of both.

Unicode writes some letters in several ways, which are canonically equivalent: `é` is one code point
or `e` and an accent, and Bengali `য়` is one code point or two. Texts are in NFC, but a table may
have either form. It may also have a letter and its accents as separate units.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

_MOST_MARKS = 4
"""Marks on a letter whose order is varied. With more, only the order of NFD is tried."""


@dataclass(frozen=True)
class Division:
    """The parts of a word."""

    parts: tuple[str, ...]
    """Units as they are written in the table. What is no unit is one part per code point of NFC."""
    num_unknown: int
    """Parts that are no units."""


class UnitMatcher:
    """Divides words into units of a table; their concatenation is canonically equivalent to the
    word.

    At each position the longest unit is taken, as the tokenizers of transformers do. A unit does
    not end between a letter and its marks, unless the marks are units too.
    """

    def __init__(self, units: Iterable[str]) -> None:
        """`units`: no two of them are canonically equivalent."""
        units = list(units)
        self._composed = _Spellings("NFC", units)
        self._decomposed = _Spellings("NFD", units)
        # Where a table has `é` as `e` and an accent, the code point of NFC is not what the table
        # has.
        short = {
            spelling: unit
            for spelling, unit in self._composed.unit_of.items()
            if len(spelling) == 1
        }
        self._are_short_units_composed = all(unit == spelling for spelling, unit in short.items())
        # A unit that continues a letter begins with a mark. A mark inside a unit belongs to a
        # letter of this unit.
        self._has_parts_of_letters = any(_is_part_of_letter(unit[0]) for unit in units)
        self._begins_of_long_units = frozenset(self._composed.long_spellings)
        has_special_units = bool(self._begins_of_long_units) or self._has_parts_of_letters
        self._has_plain_letters_only = self._are_short_units_composed and not has_special_units

    def are_code_points(self, text: str) -> bool:
        """Whether the parts of a text in NFC are surely its code points. This is fast."""
        if self._has_plain_letters_only:
            return True
        may_have_long_units = not self._begins_of_long_units.isdisjoint(text)
        if may_have_long_units or not self._are_short_units_composed:
            return False
        return not self._has_parts_of_letters or self._composed.knows_all(text)

    def split(self, word: str) -> list[str]:
        """The parts of a word in NFC. Parts that are no units are code points."""
        if self.are_code_points(word):
            return list(word)
        return list(_divide_word(self, word).parts)

    def divide(self, word: str) -> Division:
        """The parts of a word in NFC, and how many of them are unknown."""
        division = self._divide_composed(word)
        if division.num_unknown and self._has_parts_of_letters:
            decomposed = self._divide_decomposed(word)
            # With equal numbers the first one counts: its parts are the letters that a reader sees.
            if decomposed.num_unknown < division.num_unknown:
                division = decomposed
        return division

    def _divide_composed(self, word: str) -> Division:
        """The longest unit at each position of a word in NFC."""
        spellings = self._composed
        parts = list[str]()
        num_unknown = 0
        position = 0
        while position < len(word):
            spelling = spellings.match(word, position) or spellings.match_any(word, position)
            if spelling is None:
                parts.append(word[position])
                num_unknown += 1
                position += 1
            else:
                parts.append(spellings.unit_of[spelling])
                position += len(spelling)
        return Division(tuple(parts), num_unknown)

    def _divide_decomposed(self, word: str) -> Division:
        """The longest unit at each position of a word in NFD.

        Where there is none, the order of the marks on the letter is varied: `ệ` has its dot first
        in NFD, but a table may have the units `ê` and dot. What is then left over is divided in
        NFC.
        """
        word = unicodedata.normalize("NFD", word)
        spellings = self._decomposed
        parts = list[str]()
        num_unknown = 0
        position = 0
        while position < len(word):
            spelling = spellings.match(word, position)
            if spelling is not None:
                parts.append(spellings.unit_of[spelling])
                position += len(spelling)
                continue
            end = _end_of_marks(word, position + 1)
            letter = word[position:end]
            units_of_letter = self._divide_reordered(letter)
            if units_of_letter:
                parts.extend(units_of_letter)
            else:
                division = self._divide_composed(unicodedata.normalize("NFC", letter))
                parts.extend(division.parts)
                num_unknown += division.num_unknown
            position = end
        return Division(tuple(parts), num_unknown)

    def _divide_reordered(self, letter: str) -> tuple[str, ...]:
        """The fewest units of a letter with its marks, in any equivalent order of the marks;
        nothing if there are none.

        `letter`: in NFD.
        """
        best: tuple[str, ...] = ()
        for equivalent in _equivalent_orders(letter):
            units = self._cover(equivalent)
            if units and (not best or len(units) < len(best)):
                best = units
        return best

    def _cover(self, letter: str) -> tuple[str, ...]:
        """The longest unit at each position of a letter with its marks; nothing if some of it is no
        unit.
        """
        parts = list[str]()
        position = 0
        while position < len(letter):
            spelling = self._decomposed.match_any(letter, position)
            if spelling is None:
                return ()
            parts.append(self._decomposed.unit_of[spelling])
            position += len(spelling)
        return tuple(parts)


@lru_cache(maxsize=2**15)
def _divide_word(matcher: UnitMatcher, word: str) -> Division:
    """Cached, because words repeat."""
    return matcher.divide(word)


class _Spellings:
    """The units of a table in one Unicode normal form."""

    def __init__(self, form: "unicodedata._NormalizationForm", units: Iterable[str]) -> None:
        self.unit_of = {unicodedata.normalize(form, unit): unit for unit in units}
        """Spelling in this form → the unit as the table has it."""
        self._single = {spelling for spelling in self.unit_of if len(spelling) == 1}
        self.long_spellings = defaultdict[str, list[str]](list)
        """First code point → the spellings of several code points that begin with it, the longest
        first.
        """
        for spelling in sorted(self.unit_of, key=len, reverse=True):
            if len(spelling) > 1:
                self.long_spellings[spelling[0]].append(spelling)

    def knows_all(self, word: str) -> bool:
        """Whether each code point of a word is a unit."""
        return self._single.issuperset(word)

    def match(self, text: str, position: int) -> str | None:
        """The longest spelling at a position of the text whose next marks are units; None if there
        is none.
        """
        for spelling in self._candidates(text, position):
            if self._are_next_marks_units(text, position + len(spelling)):
                return spelling
        return None

    def match_any(self, text: str, position: int) -> str | None:
        """The longest spelling at a position of the text, whatever follows; None if there is none."""
        return next(self._candidates(text, position), None)

    def _candidates(self, text: str, position: int) -> Iterator[str]:
        """The spellings at a position of the text, the longest first."""
        first = text[position]
        for spelling in self.long_spellings.get(first, ()):
            if text.startswith(spelling, position):
                yield spelling
        if first in self._single:
            yield first

    def _are_next_marks_units(self, text: str, position: int) -> bool:
        """Whether all marks at a position of the text are units; True if there is none."""
        end = _end_of_marks(text, position)
        while position < end:
            spelling = self.match_any(text, position)
            if spelling is None:
                return False
            position += len(spelling)
        return True


def _is_part_of_letter(character: str) -> bool:
    """Whether a character may be decomposed from a letter in NFD: a mark, or a vowel or final
    consonant of Hangul.
    """
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or "\u1160" <= character <= "\u11ff"


def _end_of_marks(text: str, position: int) -> int:
    """The position behind the marks at a position of the text, which is the same if there are none.

    Only marks that change places in a normal form count (combining class above 0). Vowel signs of
    Indic scripts do not.
    """
    while position < len(text) and unicodedata.combining(text[position]):
        position += 1
    return position


def _equivalent_orders(letter: str) -> Iterator[str]:
    """A letter with its marks in NFD, in each order of the marks that is canonically equivalent."""
    base, marks = letter[0], letter[1:]
    if len(marks) > _MOST_MARKS:
        yield letter
        return
    for order in dict.fromkeys(permutations(marks)):
        reordered = base + "".join(order)
        if unicodedata.normalize("NFD", reordered) == letter:
            yield reordered
