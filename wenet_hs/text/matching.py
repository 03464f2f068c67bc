# SPDX-License-Identifier: Apache-2.0
"""Division of words into units of a table, in any Unicode form: the longest unit at each position.

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
    """The parts into which a word is divided."""

    parts: tuple[str, ...]
    """Units as they are written in the table. What is no unit is one part per code point of NFC."""
    num_unknown: int
    """Parts that are no units."""


class UnitMatcher:
    """Divides words into units of a table.

    The parts of a word, one after the other, are canonically equivalent to the word. At each
    position the longest unit is taken, as the tokenizers of transformers do. A unit does not end
    between a letter and its marks, unless the marks are units too.
    """

    def __init__(self, units: Iterable[str]) -> None:
        """`units`: of canonically equivalent ones the last one counts."""
        units = list(units)
        self._composed = _Spellings("NFC", units)
        self._decomposed = _Spellings("NFD", units)
        # Whether each unit that is one code point in NFC is written so in the table. It is not in a
        # table that has `e` and an accent for `é`.
        self._are_letters_composed = all(
            unit == spelling
            for spelling, unit in self._composed.unit_of.items()
            if len(spelling) == 1
        )
        # Whether a unit begins with a mark, and so continues the letter before it. A mark inside a
        # unit does not count: it belongs to a letter of this unit.
        self._has_parts_of_letters = any(_is_part_of_letter(unit[0]) for unit in units)
        # The first code points of the units that have several.
        self._begins_of_long_units = frozenset(self._composed.long_spellings)
        has_special_units = bool(self._begins_of_long_units) or self._has_parts_of_letters
        self._has_plain_letters_only = self._are_letters_composed and not has_special_units

    def are_code_points(self, text: str) -> bool:
        """Whether it is certain that the parts of a text in NFC are its code points.

        This is fast. If it is False, the parts may be its code points all the same.
        """
        if self._has_plain_letters_only:
            return True
        may_have_long_units = not self._begins_of_long_units.isdisjoint(text)
        if may_have_long_units or not self._are_letters_composed:
            return False
        # A code point that is no unit may be divided into parts that are units.
        return not self._has_parts_of_letters or self._composed.has_all_characters(text)

    def split(self, word: str) -> list[str]:
        """The parts of a word in NFC, as in `Division`."""
        if self.are_code_points(word):
            return list(word)
        return list(_divide_word(self, word).parts)

    def divide(self, word: str) -> Division:
        """The division of a word, which is in NFC, with the fewest unknown parts.

        If parts are unknown, and the table has marks as units, the NFD of the word is divided too.
        With equally many unknown parts the division of NFC counts, because its parts are the
        letters that a reader sees.
        """
        composed = self._divide_composed(word)
        if composed.num_unknown == 0 or not self._has_parts_of_letters:
            return composed
        decomposed = self._divide_decomposed(word)
        return decomposed if decomposed.num_unknown < composed.num_unknown else composed

    def _divide_composed(self, word: str) -> Division:
        """The longest unit at each position of a word in NFC.

        A unit after which a mark comes that is no unit is only taken if no other unit fits there.
        Where no unit fits, the code point is an unknown part.
        """
        spellings = self._composed
        parts = list[str]()
        num_unknown = 0
        position = 0
        while position < len(word):
            spelling = spellings.find_before_known_marks(word, position)
            if spelling is None:
                spelling = spellings.find_longest(word, position)
            if spelling is None:
                parts.append(word[position])
                num_unknown += 1
                position += 1
            else:
                parts.append(spellings.unit_of[spelling])
                position += len(spelling)
        return Division(tuple(parts), num_unknown)

    def _divide_decomposed(self, word: str) -> Division:
        """The longest unit at each position of a word, which is converted to NFD for this.

        Where there is none, the order of the marks on the letter is varied: `ệ` has its dot first
        in NFD, but a table may have the units `ê` and dot. A letter for which no order gives units
        is divided in NFC, so only its parts may be unknown.
        """
        word = unicodedata.normalize("NFD", word)
        spellings = self._decomposed
        parts = list[str]()
        num_unknown = 0
        position = 0
        while position < len(word):
            spelling = spellings.find_before_known_marks(word, position)
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
        """The fewest units that spell a letter with its marks, in any equivalent order of them.

        Empty if no order consists of units. `letter`: in NFD.
        """
        best: tuple[str, ...] = ()
        for equivalent in _equivalent_orders(letter):
            units = self._cover(equivalent)
            if units and (not best or len(units) < len(best)):
                best = units
        return best

    def _cover(self, letter: str) -> tuple[str, ...]:
        """The longest unit at each position of a letter with its marks.

        Empty if there is a position without a unit.
        """
        parts = list[str]()
        position = 0
        while position < len(letter):
            spelling = self._decomposed.find_longest(letter, position)
            if spelling is None:
                return ()
            parts.append(self._decomposed.unit_of[spelling])
            position += len(spelling)
        return tuple(parts)


@lru_cache(maxsize=2**15)
def _divide_word(matcher: UnitMatcher, word: str) -> Division:
    """`matcher.divide(word)`, cached because words repeat."""
    return matcher.divide(word)


class _Spellings:
    """The units of a table in one Unicode normal form."""

    def __init__(self, form: "unicodedata._NormalizationForm", units: Iterable[str]) -> None:
        self.unit_of = {unicodedata.normalize(form, unit): unit for unit in units}
        """Spelling in this form → the unit as the table has it."""
        self._single = {spelling for spelling in self.unit_of if len(spelling) == 1}
        """Spellings of one code point."""
        self.long_spellings = defaultdict[str, list[str]](list)
        """First code point → the spellings that have more code points after it, longest first."""
        for spelling in sorted(self.unit_of, key=len, reverse=True):
            if len(spelling) > 1:
                self.long_spellings[spelling[0]].append(spelling)

    def has_all_characters(self, text: str) -> bool:
        """Whether each code point of a text is a unit."""
        return self._single.issuperset(text)

    def find_before_known_marks(self, text: str, position: int) -> str | None:
        """The longest spelling at a position of the text after which all next marks are units.

        None if there is none.
        """
        for spelling in self._candidates(text, position):
            if self._are_next_marks_units(text, position + len(spelling)):
                return spelling
        return None

    def find_longest(self, text: str, position: int) -> str | None:
        """The longest spelling at a position of the text, whatever follows it, or None."""
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
        """Whether all marks that begin at a position of the text are units; True without marks."""
        end = _end_of_marks(text, position)
        while position < end:
            spelling = self.find_longest(text, position)
            if spelling is None:
                return False
            position += len(spelling)
        return True


def _is_part_of_letter(character: str) -> bool:
    """Whether NFD may separate a character from a letter.

    So it is a mark, or a vowel or final consonant of Hangul.
    """
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or "\u1160" <= character <= "\u11ff"


def _end_of_marks(text: str, position: int) -> int:
    """The position after the marks that begin at a position of the text; the same if none begins.

    Only marks that change places in a normal form count (combining class above 0). Vowel signs of
    Indic scripts do not.
    """
    while position < len(text) and unicodedata.combining(text[position]):
        position += 1
    return position


def _equivalent_orders(letter: str) -> Iterator[str]:
    """A letter with its marks (NFD), in each order of the marks that is canonically equivalent.

    With more than `_MOST_MARKS` marks only its own order, because the orders are too many.
    """
    base = letter[0]
    marks = letter[1:]
    if len(marks) > _MOST_MARKS:
        yield letter
        return
    for order in dict.fromkeys(permutations(marks)):
        reordered = base + "".join(order)
        if unicodedata.normalize("NFD", reordered) == letter:
            yield reordered
