# SPDX-License-Identifier: Apache-2.0
"""What so many minutes of speech can give: the numbers are those of the published tables."""

import re
from pathlib import Path

import pytest

from wenet_hs.corpus.expectations import MIN_MINUTES, RESULTS, describe_results, find_too_little

FOLDER = Path(__file__).parents[2] / "examples/own/s0"
TABLES = (FOLDER / "RESULTS.md").read_text("utf-8")


def test_the_results_are_those_of_the_published_tables() -> None:
    names = {
        10: "from scratch, 10 minutes",
        60: "from scratch, 1 hour",
        300: "from scratch, 5 hours",
    }
    for result in RESULTS:
        section = {18: "## A field corpus in ELAN files", 47: "## One hour of Mboshi"}.get(
            int(result.minutes), ""
        )
        details = (
            FOLDER
            / "results"
            / ({18: "field", 47: "mboshi"}.get(int(result.minutes), "adaptation") + ".md")
        )
        name = names.get(int(result.minutes), "softmax")
        rows = TABLES[TABLES.index(section) :]
        rate = re.search(rf"^\| {name} \| ([\d.]+) ±", rows, re.M)
        hours = re.search(
            rf"^\| {name} \| 1 2 3 \|[^|]+\| ([\d.]+) \+", details.read_text("utf-8"), re.M
        )
        assert rate is not None and float(rate[1]) == result.cer
        assert hours is not None and round(60 * float(hours[1])) == result.minutes
    assert MIN_MINUTES == 10


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        (
            0.001,
            "0.1 minutes of training speech; character error rates that we measured: 3.8 % with 10 minutes of",
        ),
        (
            0.3,
            "18.0 minutes of training speech; character error rates that we measured: 7.1 % with 18 minutes of",
        ),
        (
            4.0,
            "240.0 minutes of training speech; character error rates that we measured: 0.4 % with 300 minutes of",
        ),
    ],
)
def test_the_nearest_results_are_stated_with_their_kind_of_speech(
    hours: float, expected: str
) -> None:
    line = describe_results(hours)
    assert line.startswith(expected)
    assert (
        "simulated" in line
        and "; 36.0 % with 47 minutes of real speech in Mboshi; nothing else was measured" in line
    )


def test_the_floor_is_the_least_of_the_tables() -> None:
    assert find_too_little(0.1671, MIN_MINUTES) == ""
    assert find_too_little(0.0, 0.0) == ""
    assert find_too_little(0.15, MIN_MINUTES).startswith(
        "9.0 minutes of training speech are less than --min_minutes 10 ("
    )
