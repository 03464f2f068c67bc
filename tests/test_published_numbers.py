# SPDX-License-Identifier: Apache-2.0
"""Numbers of README are in a generated file that the text beside them links to, those of the findings in a table."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TABLES = re.findall(r"(?:^\|.*\n)+", README, re.M)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def numbers_of(path: Path) -> list[str]:
    """The numbers of a generated file, and of the details of its tables in the folder `results` beside it."""
    return [
        number for one in (path, *path.parent.glob("results/*.md")) for number in NUMBER.findall(one.read_text("utf-8"))
    ]


def two_digits(numbers: set[str]) -> set[str]:
    """Numbers of 10 and more with two significant digits, as README may print them."""
    values = (float(number.replace(",", "")) for number in numbers)
    return {f"{float(f'{value:.2g}'):,.0f}" for value in values if value >= 10}


def sources_of(table: str) -> list[Path]:
    """The generated files that the paragraphs beside a table link to."""
    before, after = README.split(table)
    near = before.rstrip().rpartition("\n\n")[2] + after.lstrip().partition("\n\n")[0]
    links = re.findall(r"\]\(([^)#]+)\)", near)
    return [ROOT / link for link in links if link.endswith("RESULTS.md") or link.startswith("benchmarks/notes/")]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.split("|")[1].strip())
def test_each_number_is_in_a_generated_file(table: str) -> None:
    sources = sources_of(table)
    assert sources, "the text beside the table links to no RESULTS.md and no note of a benchmark"
    known = {number for path in sources for number in numbers_of(path)}
    shown = {number for row in table.splitlines()[2:] for cell in row.split("|")[2:] for number in NUMBER.findall(cell)}
    known |= two_digits(known)
    assert shown and shown <= known, f"not in {', '.join(map(str, sources))}: {sorted(shown - known)}"


@pytest.mark.parametrize(
    ("name", "title", "source"),
    [
        ("own-data.md", "How much speech is needed", "examples/own/s0/RESULTS.md"),
        ("own-data-reference.md", "Memory and time", "benchmarks/notes/long_recordings.md"),
    ],
)
def test_each_number_of_own_data_is_in_a_generated_file(name: str, title: str, source: str) -> None:
    page = (ROOT / "docs" / name).read_text("utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert f"](../{source})" in section
    shown = {number for row in section.splitlines() if row.startswith("|") for number in NUMBER.findall(row)}
    assert shown and shown <= {*numbers_of(ROOT / source)}


def test_each_number_of_the_findings_is_in_a_table() -> None:
    findings = (ROOT / "docs/findings.md").read_text("utf-8")
    generated = (*ROOT.glob("examples/*/s0/RESULTS.md"), *ROOT.glob("examples/*/s0/results/*.md"))
    tables = "".join(path.read_text("utf-8") for path in generated)
    shown = {number for number in NUMBER.findall(findings) if "." in number}
    assert shown and shown <= {*NUMBER.findall(tables)}
    assert findings.strip() in (ROOT / "RESULTS.md").read_text("utf-8"), "run make results"
