# SPDX-License-Identifier: Apache-2.0
"""A few hundred damaged tables: the script that the reader can run with any number of them."""

import re

import pytest
from mutate_tables import main


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--tables", "70", "--spellings", "150", "--no_repeats"), id="plain"),
        pytest.param(("--tables", "700", "--spellings", "1500"), marks=pytest.mark.slow, id="more"),
    ],
)
def test_every_row_is_used_or_rejected(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seed", "3", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    line = captured.out.splitlines()[-1]
    counts = re.match(
        r"seed 3 \| (\d+) tables \| (\d+) rows = (\d+) used \+ (\d+) rejected \| (\d+) tables refused \| "
        r"(\d+) spellings \| 279 CTC cases \| (\d) preparations",
        line,
    )
    assert counts is not None, line
    assert (counts[1], counts[6]) == (flags[1], flags[3])
    assert int(counts[2]) == int(counts[3]) + int(counts[4]) and min(int(counts[n]) for n in (3, 4, 5)) > 5
    assert counts[7] == ("0" if "--no_repeats" in flags else "4")
    assert line.endswith("no violation")
