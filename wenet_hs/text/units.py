# SPDX-License-Identifier: Apache-2.0
"""Unit tables: the units with their ids, as in `units.txt`, and how units are shown in messages.

A table that we write begins with `<blank> 0`, `<unk> 1` and `<sos/eos> 2`. The other units follow
in code point order.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from wenet_hs.base.files import read_lines
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, refuse_faults

NO_SPACES = r"\p{Han}\p{Hira}\p{Kana}\p{Bopo}\p{Thai}\p{Laoo}\p{Khmr}\p{Mymr}\p{Tibt}"
"""Scripts without spaces between words, for a set of a regular expression."""
SPACE = "▁"
"""The space as a unit of characters; in a piece of BPE, the boundary of a word."""
OTHER_SPACE = "<space>"
"""The space in the tables of ESPnet and of WeNet's older recipes."""
BLANK = "<blank>"
UNK = "<unk>"
SOS_EOS = "<sos/eos>"
SOS = "<sos>"
EOS = "<eos>"
MOST_UNKNOWN = 0.5
"""If at least this share of a text is `<unk>`, the unit table does not belong to the text.

WikiText-2 has 2.6 %.
"""
SPECIAL_UNITS = (BLANK, UNK, SOS_EOS)
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs")
"""Of Unicode: control and format characters, code points without a character, white space."""
_MOST_FAULTS = 10_000
"""No more faults are collected in a table. The table may be a file that others made."""
_MOST_DIGITS = 9
"""The most digits of an id. A longer number is no id."""
_MARKED = re.compile(r"<(?!0x[0-9A-F]{2}>)[^<>\s]+>|\[[^\[\]\s]+\]")
"""`<noise>` or `[NOISE]`, but not `<0xC3>`, which is a byte."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the units that are not text; `sos` and `eos` have the same id in WeNet's tables."""

    blank: int
    unk: int | None
    """None in a table without `<unk>`: a unit that is not in the table is then an error."""
    sos: int
    eos: int


@dataclass(frozen=True)
class UnitTable:
    """All units in the order of their ids.

    No two units are equal after NFC; `▁` and `<space>` are the same unit.
    """

    units: tuple[str, ...]
    special: SpecialIds

    def __len__(self) -> int:
        return len(self.units)

    def __post_init__(self) -> None:
        """Raises ValueError for a unit that a file cannot hold, and for two equal units."""
        for unit in self.units:
            if not unit or " " in unit or "\n" in unit:
                raise ValueError(f"unit {unit!r} is empty or contains a space or line end")
        num_different_units = len(self._ids)
        if num_different_units == len(self.units):
            return
        for unit_id, unit in enumerate(self.units):
            if self.id_of(unit) != unit_id:  # `_ids` has the id of an equal unit that comes later
                raise ValueError(f"two units are equal after NFC: {unit!r}")

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Form in which a unit is compared → its id."""
        return {_compared_form(unit): unit_id for unit_id, unit in enumerate(self.units)}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that are not text: blank, unknown, <sos> and <eos>."""
        ids = (self.special.blank, self.special.unk, self.special.sos, self.special.eos)
        return frozenset(unit_id for unit_id in ids if unit_id is not None)

    @cached_property
    def marked_units(self) -> list[str]:
        """Units such as `<noise>`, `[NOISE]` and `<en>`, without the special ones and the space."""
        excluded = {*SPECIAL_UNITS, SOS, EOS, OTHER_SPACE}
        return [unit for unit in self.units if _MARKED.fullmatch(unit) and unit not in excluded]

    def id_of(self, unit: str) -> int | None:
        """The id of a unit (compared in NFC), or None if it is not in the table."""
        return self._ids.get(_compared_form(unit))

    def has_same_ids(self, other: "UnitTable") -> bool:
        """Whether both tables have the same units with the same ids, as `id_of` compares them."""
        # The units of `other` in the order of their ids there, each with its id here.
        ids_here = [self.id_of(unit) for unit in other.units]
        has_same_units = ids_here == list(range(len(self)))
        return has_same_units and self.special == other.special

    @classmethod
    def from_units(cls, units: Iterable[str]) -> "UnitTable":
        """The table of these units in NFC, each once, in code point order after the special ones.

        Special units among them are left out, because each table begins with `<blank>`, `<unk>`
        and `<sos/eos>`.
        """
        composed = {unicodedata.normalize("NFC", unit) for unit in units}
        ordinary = sorted(composed - {*SPECIAL_UNITS, SOS, EOS})
        special = SpecialIds(blank=0, unk=1, sos=2, eos=2)
        return cls(units=(*SPECIAL_UNITS, *ordinary), special=special)

    @classmethod
    def read(cls, path: Path | str) -> "UnitTable":
        """Reads a file with one line `unit id` per unit, in any order.

        The special ids are found by the names of the units, so a table in WeNet's old order loads
        too. `<sos/eos>` may also be two units, `<sos>` and `<eos>`.

        Raises DataError: with one line per fault (`units.txt:12: …`), or if `<blank>` or
            `<sos/eos>` is missing.
        """
        units = _read_units(path)
        ids = {unit: unit_id for unit_id, unit in enumerate(units)}
        if BLANK not in ids:
            raise _missing_unit_error(path, BLANK, "<blk>, <eps> or <pad>")
        sos = ids.get(SOS, ids.get(SOS_EOS))
        eos = ids.get(EOS, ids.get(SOS_EOS))
        if sos is None or eos is None:
            raise _missing_unit_error(path, SOS_EOS, "<s> or </s>")
        special = SpecialIds(blank=ids[BLANK], unk=ids.get(UNK), sos=sos, eos=eos)
        return cls(units=units, special=special)

    def write(self, path: Path | str) -> None:
        """Writes one line `unit id` per unit."""
        lines = [f"{unit} {unit_id}\n" for unit_id, unit in enumerate(self.units)]
        write_atomic(path, "".join(lines))


def _compared_form(unit: str) -> str:
    """The form in which units are compared: NFC, and one spelling of the space."""
    return SPACE if unit == OTHER_SPACE else unicodedata.normalize("NFC", unit)


def _missing_unit_error(path: Path | str, name: str, names_elsewhere: str) -> DataError:
    """The error for a table without a special unit, which other toolkits call `names_elsewhere`."""
    to_do = (
        "create the table with `wenet-hs units`, "
        f"or rename the unit that has this role (as {names_elsewhere})"
    )
    return DataError(path, f"no unit {name}", to_do)


class _UnitLine(NamedTuple):
    """A line of a unit table."""

    unit: str
    unit_id: int


def _read_units(path: Path | str) -> tuple[str, ...]:
    """The units of a file in the order of their ids, which must be 0 to V-1.

    Raises DataError: with one line per fault; if the file has no units; or if an id is missing.
    """
    unit_of_id: dict[int, str] = {}
    line_of_id: dict[int, int] = {}
    line_of_unit: dict[str, int] = {}  # by the form in which units are compared
    faults = list[str]()
    for number, text in enumerate(read_lines(path), start=1):
        if len(faults) == _MOST_FAULTS:  # probably the file is something else
            break
        line = _parse_line(text)
        if line is None:
            found = f"expected `unit id`, found {text[:60]!r}"
            faults.append(f"{path}:{number}: {found}; write two fields on each line")
            continue
        compared_unit = _compared_form(line.unit)
        line_of_equal_unit = line_of_unit.setdefault(compared_unit, number)
        if line_of_equal_unit != number:
            how = "the space" if compared_unit == SPACE else "in NFC"
            found = f"{line.unit!r} is the same unit ({how}) as line {line_of_equal_unit}"
            faults.append(f"{path}:{number}: {found}; keep one")
            continue
        line_of_equal_id = line_of_id.setdefault(line.unit_id, number)
        if line_of_equal_id != number:
            found = f"id {line.unit_id} is already used on line {line_of_equal_id}"
            faults.append(f"{path}:{number}: {found}; ids must differ")
            continue
        unit_of_id[line.unit_id] = line.unit
    refuse_faults(path, faults)
    _check_no_id_is_missing(path, line_of_id)
    return tuple(unit_of_id[unit_id] for unit_id in range(len(unit_of_id)))


def _parse_line(text: str) -> _UnitLine | None:
    """The unit and the id in a line `unit id`; None if it is not such a line.

    A unit may itself be white space (U+3000), so the line is split only at its last space, or at
    its last tab if it has no space.
    """
    separator = " " if " " in text else "\t"
    unit, _, digits = text.rpartition(separator)
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    if not unit or " " in unit or not is_number:
        return None
    return _UnitLine(unit, int(digits))


def _check_no_id_is_missing(path: Path | str, line_of_id: Mapping[int, int]) -> None:
    """Raises DataError if a table has no ids, or if its V different ids are not 0 to V-1.

    The second happens when a line was lost.
    """
    if not line_of_id:
        raise DataError(path, "contains no units", "create it with `wenet-hs units`")
    num_units = len(line_of_id)
    highest = max(line_of_id)
    if highest >= num_units:
        missing = min(set(range(num_units)) - set(line_of_id))
        raise DataError(
            f"{path}:{line_of_id[highest]}",
            f"id {highest} in a table of {num_units} units",
            f"ids must be 0 to {num_units - 1}, and {missing} is missing",
        )


def check_special(
    table: UnitTable, special_tokens: Mapping[Any, int] | None, where: str = "tokenizer_conf"
) -> None:
    """Raises ConfigError if `special_tokens` of a config (name → id) differs from the table.

    WeNet would train with the ids of the config, and so with an ordinary unit as end of sentence.
    `where` is the section of the config. `special_tokens` is None if the config does not have it.
    """
    special_ids = {
        BLANK: table.special.blank,
        UNK: table.special.unk,
        SOS: table.special.sos,
        EOS: table.special.eos,
        SOS_EOS: table.special.sos,
    }
    for name, configured_id in (special_tokens or {}).items():
        table_id = special_ids.get(name, table.id_of(name))
        if table_id == configured_id:
            continue
        in_table = "is not in the unit table"
        if table_id is not None:
            in_table = f"is {table_id} in the unit table"
        raise ConfigError(
            f"{where}.special_tokens",
            f"{name} is {configured_id}, but {in_table}",
            "use the units.txt of this model, or leave special_tokens out",
        )


def script_of(unit: str) -> str:
    """The script of a unit that begins with a letter, such as `Latin`; empty for other units.

    It is the first word of the letter's name in Unicode.
    """
    if not unit[0].isalpha():
        return ""
    name = unicodedata.name(unit[0], "")
    return name.partition(" ")[0].capitalize()


@lru_cache(maxsize=2**14)
def show_unit(unit: str, *, in_full: bool = False) -> str:
    """A visible form of a unit, for messages and tables.

    A space is `▁`. A mark without its letter stands on `◌`. A unit of invisible characters only is
    written as their code points (`U+200C`).

    in_full: invisible characters beside visible ones are written as code points too. By default
        they stay as they are, because some scripts have joiners in most words.
    """
    begins_with_mark = unit != "" and unicodedata.category(unit[0]).startswith("M")
    visible = f"◌{unit}" if begins_with_mark else unit.replace(" ", SPACE)
    if all(map(_is_invisible, visible)):
        return " ".join(map(_code_point, visible))
    if not in_full:
        return visible
    return "".join(
        _code_point(character) if _is_invisible(character) else character for character in visible
    )


def show_two(first: str, second: str) -> tuple[str, str]:
    """Two units as `show_unit` gives them; in full if they differ only in what is invisible."""
    first_shown = show_unit(first)
    second_shown = show_unit(second)
    looks_equal = _visible_part(first_shown) == _visible_part(second_shown)
    if first != second and looks_equal:
        return show_unit(first, in_full=True), show_unit(second, in_full=True)
    return first_shown, second_shown


def _visible_part(text: str) -> str:
    """The text without its invisible characters."""
    return "".join(character for character in text if not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    """Whether a character leaves no ink, such as a joiner (U+200C)."""
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES


def _code_point(character: str) -> str:
    """The code point of a character in Unicode's notation, such as `U+200C`."""
    return f"U+{ord(character):04X}"
