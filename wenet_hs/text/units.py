# SPDX-License-Identifier: Apache-2.0
"""UnitTable, the content of `units.txt`: `<blank> 0`, `<unk> 1`, `<sos/eos> 2`, then the units in
code point order.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, refuse_faults

NO_SPACES = r"\p{Han}\p{Hira}\p{Kana}\p{Bopo}\p{Thai}\p{Laoo}\p{Khmr}\p{Mymr}\p{Tibt}"
"""Scripts without spaces between words, for a set of a regular expression."""
SPACE = "▁"
OTHER_SPACE = "<space>"
"""The space in the tables of ESPnet and of WeNet's older recipes."""
BLANK = "<blank>"
UNK = "<unk>"
SOS_EOS = "<sos/eos>"
SOS = "<sos>"
EOS = "<eos>"
MOST_UNKNOWN = 0.5
"""If so large a share of a text is `<unk>`, text and unit table do not belong together.

WikiText-2 has 2.6 %.
"""
SPECIAL_UNITS = (BLANK, UNK, SOS_EOS)
_SHAPELESS = ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs")
_MOST_FAULTS = 10_000  # that are counted in a table, which may come from others
_MARKED = re.compile(r"<(?!0x[0-9A-F]{2}>)[^<>\s]+>|\[[^\[\]\s]+\]")  # `<0xC3>` is a byte


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
        for unit in self.units:
            if not unit or " " in unit or "\n" in unit:
                raise ValueError(f"unit {unit!r} is empty or contains a space or line end")
        if len(self._ids) != len(self.units):
            second = next(
                unit for unit_id, unit in enumerate(self.units) if self.id_of(unit) != unit_id
            )
            raise ValueError(f"two units are equal after NFC: {second!r}")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {_key(unit): unit_id for unit_id, unit in enumerate(self.units)}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that are not text: blank, unknown, <sos> and <eos>."""
        ids = (self.special.blank, self.special.unk, self.special.sos, self.special.eos)
        return frozenset(unit_id for unit_id in ids if unit_id is not None)

    @cached_property
    def marked_units(self) -> list[str]:
        """Units such as `<noise>`, `[NOISE]` and `<en>`, which are neither special nor the space."""
        known = {*SPECIAL_UNITS, SOS, EOS, OTHER_SPACE}
        return [unit for unit in self.units if _MARKED.fullmatch(unit) and unit not in known]

    def id_of(self, unit: str) -> int | None:
        """The id of a unit (compared in NFC), or None if it is not in the table."""
        return self._ids.get(_key(unit))

    def has_same_ids(self, other: "UnitTable") -> bool:
        """Whether both tables have the same units with the same ids, as `id_of` compares them."""
        same = [self.id_of(unit) for unit in other.units] == [*range(len(self))]
        return same and self.special == other.special

    @classmethod
    def from_units(cls, units: Iterable[str]) -> "UnitTable":
        """The table of these units: the special ones, then the others in NFC and code point order,
        each once.
        """
        ordinary = sorted(
            {unicodedata.normalize("NFC", unit) for unit in units} - {*SPECIAL_UNITS, SOS, EOS}
        )
        return cls(
            units=(*SPECIAL_UNITS, *ordinary), special=SpecialIds(blank=0, unk=1, sos=2, eos=2)
        )

    @classmethod
    def read(cls, path: Path | str) -> "UnitTable":
        """Reads `unit id` lines in any order; special ids are found by name, so WeNet's old order
        loads too.

        Raises DataError with one line per fault: `units.txt:12: …`.
        """
        units = _read_units(path)
        ids = {unit: unit_id for unit_id, unit in enumerate(units)}
        sos, eos = ids.get(SOS, ids.get(SOS_EOS)), ids.get(EOS, ids.get(SOS_EOS))
        if BLANK not in ids or sos is None or eos is None:
            missing = BLANK if BLANK not in ids else SOS_EOS
            others = "<blk>, <eps> or <pad>" if missing == BLANK else "<s> or </s>"
            to_do = f"create the table with `wenet-hs units`, or rename the unit that has this role (as {others})"
            raise DataError(path, f"no unit {missing}", to_do)
        return cls(
            units=units, special=SpecialIds(blank=ids[BLANK], unk=ids.get(UNK), sos=sos, eos=eos)
        )

    def write(self, path: Path | str) -> None:
        """Writes one line `unit id` per unit."""
        write_atomic(
            path, "".join(f"{unit} {unit_id}\n" for unit_id, unit in enumerate(self.units))
        )


def check_special(
    table: UnitTable, special_tokens: Mapping[Any, int] | None, where: str = "tokenizer_conf"
) -> None:
    """Raises ConfigError if `special_tokens` of a config differs from the table.

    WeNet would train with the ids of the config, and so with an ordinary unit as end of sentence.
    """
    ids = {
        BLANK: table.special.blank,
        UNK: table.special.unk,
        SOS: table.special.sos,
        EOS: table.special.eos,
    }
    ids[SOS_EOS] = table.special.sos
    for name, configured in (special_tokens or {}).items():
        found = ids.get(name, table.id_of(name))
        if found != configured:
            in_table = (
                f"is {found} in the unit table" if found is not None else "is not in the unit table"
            )
            to_do = "use the units.txt of this model, or leave special_tokens out"
            raise ConfigError(
                f"{where}.special_tokens", f"{name} is {configured}, but {in_table}", to_do
            )


def _key(unit: str) -> str:
    """The form in which units are compared."""
    return SPACE if unit == OTHER_SPACE else unicodedata.normalize("NFC", unit)


def _read_units(path: Path | str) -> tuple[str, ...]:
    """The units in the order of their ids, which must be 0…V-1.

    Raises DataError with one line per fault.
    """
    unit_of: dict[int, str] = {}
    line_of_id: dict[int, int] = {}
    line_of_unit: dict[str, int] = {}
    faults = list[str]()
    for number, line in enumerate(read_lines(path), start=1):
        if len(faults) == _MOST_FAULTS:
            break
        # A unit may itself be white space (U+3000), so the line is split only at the last space or
        # tab.
        unit, _, digits = line.rpartition(" ") if " " in line else line.rpartition("\t")
        if (
            not unit
            or " " in unit
            or not (digits.isascii() and digits.isdigit() and len(digits) < 10)
        ):
            faults.append(
                f"{path}:{number}: expected `unit id`, found {line[:60]!r}; write two fields on each line"
            )
            continue
        unit_id = int(digits)
        if (first := line_of_unit.setdefault(_key(unit), number)) != number:
            how = "the space" if _key(unit) == SPACE else "in NFC"
            faults.append(
                f"{path}:{number}: {unit!r} is the same unit ({how}) as line {first}; keep one"
            )
        elif (first := line_of_id.setdefault(unit_id, number)) != number:
            faults.append(
                f"{path}:{number}: id {unit_id} is already used on line {first}; ids must differ"
            )
        unit_of[unit_id] = unit
    refuse_faults(path, faults)
    if not unit_of:
        raise DataError(path, "contains no units", "create it with `wenet-hs units`")
    if max(unit_of) >= len(unit_of):  # a line was lost
        missing, highest = min(set(range(len(unit_of))) - set(unit_of)), max(unit_of)
        to_do = f"ids must be 0 to {len(unit_of) - 1}, and {missing} is missing"
        raise DataError(
            f"{path}:{line_of_id[highest]}",
            f"id {highest} in a table of {len(unit_of)} units",
            to_do,
        )
    return tuple(unit_of[unit_id] for unit_id in range(len(unit_of)))


def script_of(unit: str) -> str:
    """The script of a letter: the first word of its Unicode name; empty for other characters."""
    return unicodedata.name(unit[0], "").partition(" ")[0].capitalize() if unit[0].isalpha() else ""


@lru_cache(maxsize=2**14)
def show_unit(unit: str, *, in_full: bool = False) -> str:
    """A visible form of a unit: ▁ for a space, ◌ before a mark without its letter, code points if
    nothing is visible.

    in_full: also the code points of what is invisible inside a unit. Some scripts have joiners in
    most words.
    """
    has_letter = not unit or unicodedata.category(unit[0])[0] != "M"
    shown = unit.replace(" ", "▁") if has_letter else f"◌{unit}"
    hidden = {one: f"U+{ord(one):04X}" for one in shown if unicodedata.category(one) in _SHAPELESS}
    if hidden.keys() >= set(shown):
        return " ".join(hidden[one] for one in shown)
    return "".join(hidden.get(one, one) for one in shown) if in_full else shown


def show_two(one: str, other: str) -> tuple[str, str]:
    """Two units as `show_unit`, and in full if only what is invisible differs."""
    shown = show_unit(one), show_unit(other)
    visible = [
        [char for char in unit if unicodedata.category(char) not in _SHAPELESS] for unit in shown
    ]
    is_alike = one != other and visible[0] == visible[1]
    return (show_unit(one, in_full=True), show_unit(other, in_full=True)) if is_alike else shown
