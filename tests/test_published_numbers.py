# SPDX-License-Identifier: Apache-2.0
"""Numbers of README, RESULTS.md and the pages beside them are in a file that a command wrote."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
RESULTS = (ROOT / "RESULTS.md").read_text("utf-8")
TABLES = re.findall(r"(?:^\|.*\n)+", README, re.M)
NUMBER = re.compile(r"(?<!\w)\d[\d,]*(?:\.\d+)?")
RECIPES = sorted(path.parents[1] for path in ROOT.glob("examples/*/s0/*results/intro.md"))


def numbers_in(paths: Iterable[Path]) -> set[str]:
    return {number for path in paths for number in NUMBER.findall(path.read_text("utf-8"))}


def numbers_of(path: Path) -> set[str]:
    """The numbers of a generated file, and of the details of its tables in the folder `results`
    beside it.
    """
    return numbers_in((path, *path.parent.glob("results/*.md")))


def two_digits(numbers: set[str]) -> set[str]:
    """Numbers of 10 and more with two significant digits, as README may print them."""
    values = (float(number.replace(",", "")) for number in numbers)
    return {f"{float(f'{value:.2g}'):,.0f}" for value in values if value >= 10}


def numbers_shown(table: str) -> set[str]:
    """The numbers of the cells, without those of the first column."""
    without_links = re.sub(r"\]\([^)]*\)", "]", table)
    cells = [cell for row in without_links.splitlines()[2:] for cell in row.split("|")[2:]]
    return {number for cell in cells for number in NUMBER.findall(cell)}


def sources_of(table: str) -> list[Path]:
    """The generated files that the paragraphs beside a table link to."""
    before, after = README.split(table)
    near = before.rstrip().rpartition("\n\n")[2] + after.lstrip().partition("\n\n")[0]
    links = re.findall(r"\]\(([^)#]+)\)", near)
    return [
        ROOT / link
        for link in links
        if link.endswith("RESULTS.md") or link.startswith("benchmarks/notes/")
    ]


@pytest.mark.parametrize(
    "table", [*filter(numbers_shown, TABLES)], ids=lambda table: table.split("|")[1].strip()
)
def test_each_number_is_in_a_generated_file(table: str) -> None:
    sources = sources_of(table)
    assert sources, "the text beside the table links to no RESULTS.md and no note of a benchmark"
    known = {number for path in sources for number in numbers_of(path)}
    known |= two_digits(known)
    shown = numbers_shown(table)
    assert shown <= known, f"not in {', '.join(map(str, sources))}: {sorted(shown - known)}"


def test_the_results_of_readme_are_rows_of_results() -> None:
    table = next(table for table in TABLES if "error rate, %" in table.splitlines()[0])
    rows = table.splitlines()
    assert len(rows) > 4 and set(rows) <= set(RESULTS.splitlines())
    assert all("(real) |" in row for row in rows[2:])


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
    shown = {
        number
        for row in section.splitlines()
        if row.startswith("|")
        for number in NUMBER.findall(row)
    }
    assert shown and shown <= {*numbers_of(ROOT / source)}


FINDINGS = re.split(r"\n(?=## )", (ROOT / "docs/findings.md").read_text("utf-8"))[1:]


def decimals_of(section: str) -> set[str]:
    return {number for number in NUMBER.findall(section) if "." in number}


@pytest.mark.parametrize(
    "section", [*filter(decimals_of, FINDINGS)], ids=lambda section: section.split("\n")[0]
)
def test_each_number_of_a_finding_is_in_a_file_that_it_links_to(section: str) -> None:
    links = re.findall(r"\]\((examples/[^)#]+|benchmarks/[^)#]+)", section)
    known = {number for link in links for number in numbers_of(ROOT / link)}
    known |= {f"{float(number):.1f}" for number in known if re.fullmatch(r"\d+\.\d\d+", number)}
    shown = decimals_of(section)
    assert shown <= known, f"not in {', '.join(links)}: {sorted(shown - known)}"


@pytest.fixture
def results_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("results_page")


def test_results_are_those_of_today(results_page: ModuleType) -> None:
    page = results_page.write_page(ROOT / results_page.ROWS, ROOT / results_page.TEXT)
    assert page == RESULTS, "run make results"


MINI = "examples/mini/s0/results/mini"
PUBLIC = "examples/ucla/s0/results/public_models.json"


@pytest.mark.parametrize(
    ("kind", "values", "line"),
    [
        (
            "TrainedSystem",
            {"table": MINI, "system": "hsoftmaxx", "mode": "attention"},
            f"{MINI} has no system hsoftmaxx",
        ),
        (
            "TrainedSystem",
            {"table": MINI, "system": "softmax", "mode": "joint"},
            f"{MINI}: softmax has no results in joint",
        ),
        (
            "PublicRow",
            {"file": PUBLIC, "row": "zipaa"},
            f"{PUBLIC} has no row zipaa; it has softmax-whisper, ",
        ),
    ],
)
def test_a_row_that_does_not_exist_gets_one_line(
    results_page: ModuleType, kind: str, values: dict[str, str], line: str
) -> None:
    entry = getattr(results_page, kind)(label="x", **values)
    with pytest.raises(results_page.DataError, match=re.escape(line)):
        entry.format_rate()


def test_a_rate_and_a_difference_without_an_interval(results_page: ModuleType) -> None:
    assert results_page.format_rate(0.5, None) == "50.0"
    assert results_page.format_difference(0.5, None) == ""


def test_a_text_without_the_mark_is_refused(results_page: ModuleType, tmp_path: Path) -> None:
    text = tmp_path / "findings.md"
    text.write_text("# Results\n")
    with pytest.raises(
        results_page.DataError, match="0 lines .* write one where the table belongs"
    ):
        results_page.write_page(ROOT / results_page.ROWS, text)


def test_a_wrong_row_names_its_place(results_page: ModuleType, tmp_path: Path) -> None:
    rows = tmp_path / "rows.yaml"
    rows.write_text(
        "rows:\n  - {speech: x, system: {label: a, table: b}, against: {label: c, published: '1'}}\n"
    )
    with pytest.raises(
        results_page.ConfigError, match=r"rows\.yaml: rows\.0\.system\..*Field required"
    ):
        results_page.read_spec(rows)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.parent.name)
def test_numbers_of_what_was_found_are_in_the_tables_of_the_recipe(recipe: Path) -> None:
    (intro,) = recipe.glob("*results/intro.md")
    _, _, found = intro.read_text("utf-8").partition("## What was found\n")
    found = found.partition("\n## ")[0]
    assert found
    tables = [path for path in recipe.glob("*results/*.md") if path != intro]
    page = (recipe / "RESULTS.md").read_text("utf-8")
    text = intro.read_text("utf-8").strip()
    assert text in page, "run make results"
    known = numbers_in(tables) | set(NUMBER.findall(page.replace(text, "")))
    cited = {"61.1", "52.5", "0.3", "2.7"}  # of papers, named beside them
    shown = {number for number in NUMBER.findall(found) if "." in number}
    assert shown and shown - cited <= known, sorted(shown - cited - known)
