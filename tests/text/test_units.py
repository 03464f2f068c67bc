# SPDX-License-Identifier: Apache-2.0
"""Unit tables: order, round trip, WeNet's orders, and a line for each fault."""

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.text.units import SPECIAL_UNITS, SpecialIds, UnitTable, check_special

WENET_NEW = {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
UNITS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \n"), min_size=1, max_size=4)


def table_of(path: Path, content: str) -> UnitTable:
    path.write_text(content, encoding="utf-8")
    return UnitTable.read(path)


def test_units_start_at_three_in_code_point_order() -> None:
    table = UnitTable.from_units(["ş", "b", "a", "a", "▁", "<unk>"])
    assert table.units == ("<blank>", "<unk>", "<sos/eos>", "a", "b", "ş", "▁")
    assert table.special == SpecialIds(blank=0, unk=1, sos=2, eos=2)
    assert [table.id_of(unit) for unit in ("a", "▁", "z", "s\u0327")] == [3, 6, None, 5]
    assert table.special_ids == {0, 1, 2}
    for units, message in ((("é", "a b"), "contains a space"), (("é", "e\u0301"), "equal after NFC")):
        with pytest.raises(ValueError, match=message):
            UnitTable(units=units, special=table.special)


@settings(max_examples=25)
@example({"\u3000", "\u00a0", "\u2028", "\u0085", "\t", "\x1c"})
@given(units=st.sets(UNITS, max_size=20))
def test_a_written_table_is_read_back(tmp_path_factory: pytest.TempPathFactory, units: set[str]) -> None:
    path = tmp_path_factory.mktemp("units") / "units.txt"
    table = UnitTable.from_units(units)
    table.write(path)
    assert UnitTable.read(path) == table
    assert list(table.units[3:]) == sorted({unicodedata.normalize("NFC", unit) for unit in units} - set(SPECIAL_UNITS))


@pytest.mark.parametrize(
    ("content", "units", "special"),
    [  # WeNet's old order; any order, and tabs
        ("<blank> 0\n<unk> 1\na 2\nb 3\n<sos/eos> 4\n", ("<blank>", "<unk>", "a", "b", "<sos/eos>"), (0, 1, 4, 4)),
        ("a\u0303\t3\r\n<sos> 2\r\n<blank> 1\r\n<eos> 0", ("<eos>", "<blank>", "<sos>", "a\u0303"), (1, None, 2, 0)),
    ],
)
def test_special_units_are_found_by_name(
    tmp_path: Path, content: str, units: tuple[str, ...], special: tuple[int, int | None, int, int]
) -> None:
    table = table_of(tmp_path / "units.txt", content)
    assert (table.units, table.special) == (units, SpecialIds(*special))
    assert [table.id_of(unicodedata.normalize("NFC", unit)) for unit in units] == list(range(len(units)))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("<blank> 0\n<unk> 1\n<sos/eos> 2\na\n", "units.txt:4: expected `unit id`, found 'a'; write two fields"),
        ("<blank> 0\na b 1\n", "units.txt:2: expected `unit id`, found 'a b 1'"),
        ("<blank> 0\na ²\n", "units.txt:2: expected `unit id`, found 'a ²'"),
        ("<blank> 0\na 1\na 2\n", "units.txt:3: 'a' is the same unit (in NFC) as line 2; keep one"),
        ("<blank> 0\né 1\ne\u0301 2\n", "is the same unit (in NFC) as line 2; keep one"),
        ("<blank> 0\na 1\nb 1\n", "units.txt:3: id 1 is already used on line 2; ids must differ"),
        ("<blank> 0\na 1\nb 3\n", "units.txt:3: id 3 in a table of 3 units; ids must be 0 to 2, and 2 is missing"),
        ("<unk> 0\na 1\n", "units.txt: no unit <blank>; create the table with `wenet-hs units`"),
        ("<blank> 0\n<sos> 1\n", "units.txt: no unit <sos/eos>; create the table"),
        ("", "units.txt: contains no units; create it with `wenet-hs units`"),
        ("x\n" * 30, "units.txt: and 20 more faults"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        table_of(tmp_path / "units.txt", lines)


def test_special_tokens_must_equal_the_table(tmp_path: Path) -> None:
    for special_tokens in (WENET_NEW, {"<sos/eos>": 2}, None):
        check_special(UnitTable.from_units(["a"]), special_tokens)
    old = table_of(tmp_path / "units.txt", "<blank> 0\n<unk> 1\na 2\nb 3\n<sos/eos> 4\n")
    message = "tokenizer_conf.special_tokens: <sos> is 2, but is 4 in the unit table; use the units.txt of this model"
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_special(old, WENET_NEW)
    with pytest.raises(ConfigError, match=re.escape("<mask> is 9, but is not in the unit table")):
        check_special(old, {"<mask>": 9})
