# SPDX-License-Identifier: Apache-2.0
"""Pages of lists, and the numbers of data/stats.json."""

from pathlib import Path

import pytest

from wenet_hs.app.lists import read_project_stats, select_page
from wenet_hs.app.projects import Project
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError


@pytest.mark.parametrize(
    ("number", "expected_number", "expected_items"),
    [
        ("1", 1, ["a", "b"]),
        ("3", 3, ["e"]),  # the last page may have fewer items
        ("4", 3, ["e"]),  # beyond the last page: the last one
        ("0", 1, ["a", "b"]),
        ("", 1, ["a", "b"]),
        ("-2", 1, ["a", "b"]),
        ("two", 1, ["a", "b"]),
        ("99999999", 3, ["e"]),
        ("999999999", 1, ["a", "b"]),  # with nine digits no number of a page
    ],
)
def test_a_page_of_a_list(number: str, expected_number: int, expected_items: list[str]) -> None:
    page = select_page(["a", "b", "c", "d", "e"], number, size=2)
    assert (page.number, page.items) == (expected_number, expected_items)
    assert (page.num_pages, page.total) == (3, 5)


def test_an_empty_list_has_one_page() -> None:
    page = select_page([], "2")
    assert (page.items, page.number, page.num_pages, page.total) == ([], 1, 1, 0)


@pytest.mark.parametrize(
    "stats",
    [
        "{",
        "[]",
        '{"total": {"hours": {}}}',
        '{"total": {"hours": {"train": "many"}, "utterances": {}}}',
        '{"total": {"hours": {"train": 1.0}, "utterances": {"train": null}}}',
        '{"total": {"hours": {"train": 1.0}, "utterances": ["train"]}}',
    ],
)
def test_damaged_numbers_of_lists_are_named(tmp_path: Path, stats: str) -> None:
    path = tmp_path / "data/stats.json"
    write_atomic(path, stats)
    with pytest.raises(DataError) as error:
        read_project_stats(Project(tmp_path))
    line = f"{path}: not the numbers of lists; prepare the recordings again"
    assert str(error.value) == line
