# SPDX-License-Identifier: Apache-2.0
"""The page that explores a tree: complete data, text that stays text, no network, a bounded size, no recursion."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wenet_hs.tree import NaryTree, Tree, plot
from wenet_hs.tree.plot import page_data, tree_page

SCRIPT = (Path(plot.__file__).parent / "templates" / "explorer.js").read_text("utf-8")
HOSTILE = ["<script>alert(1)</script>", "</script>", "<!--", "&amp;", "\u2028", '"', "'", "\\", "]]>", "▁", "\u0301"]


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.scripts:
            self.scripts[-1] += data


def data_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Page(text).scripts[0])
    return data


def test_a_small_tree_is_there_node_by_node() -> None:
    tree = Tree.huffman([1, 2, 4], units=["x", "y", "z"])
    assert data_of(tree_page(tree, "depth 2")) == {
        "binary": True,
        "rows": [[1, 4], [2, 3]],
        "names": ["x", "y", "z"],
        "shares": [0.1429, 0.2857, 0.5714],
        "ids": [0, 1, 2],
        "labels": {},
        "stubs": [],
        "places": {},
    }


def test_names_stay_text() -> None:
    tree = Tree.huffman(range(1, len(HOSTILE) + 1), HOSTILE)
    text = tree_page(tree, "<b>", [["a"], ["<i>"]])
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert len(page.scripts) == 2 and page.scripts[1].strip() == SCRIPT.strip()
    assert data_of(text)["names"] == HOSTILE
    assert data_of(text)["labels"] == {"4": "U+2028", "10": "◌\u0301"}
    assert not {"b", "i"} & {tag for tag, _ in page.elements}
    assert "&lt;i&gt;" in text and "<li>&lt;b&gt;</li>" in text
    title = Tree("<kind>", ("a",), np.zeros((0, 2), dtype=np.int64), np.ones(1))
    assert f"<title>{html.escape('<kind> tree of 1 units')}</title>" in tree_page(title, "")


def test_nothing_is_fetched_and_nothing_becomes_html() -> None:
    text = tree_page(Tree.huffman([1, 2]), "")
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(", SCRIPT)
    for tag, attributes in Page(text).elements:
        assert "src" not in attributes and (tag != "link" or attributes["href"] == "data:,")


def test_a_table_of_languages_only_where_there_is_one() -> None:
    tree = Tree.huffman([1, 2])
    assert "<table>" not in tree_page(tree, "")
    rows = tree_page(tree, "", [["language", "units"], ["ca", "1,234"], ["es", "1"]])
    assert '<tr><th scope="row">ca</th><td>1,234</td></tr>' in rows
    assert rows.count("<tr>") == 3


def test_what_is_left_out_is_counted_where_it_hangs() -> None:
    tree = Tree.huffman([1, 1, 2, 4, 8, 16])
    data = page_data(tree, max_units=3)
    # The root has 5 and the rest, this has 4 and the rest, that has 3 and a stub for 0, 1, 2 in its place, the left.
    assert data["names"] == ["3", "4", "5"] and data["ids"] == [3, 4, 5]
    assert data["rows"] == [[5, 1], [4, 2], [3, 6]] or data["rows"] == [[1, 5], [2, 4], [6, 3]]
    assert data["stubs"] == [(3, 0.125)]
    assert data["places"] == {}
    text = tree_page(tree, "", max_units=3)
    assert "The page has the 3 most probable of 6 units" in text
    assert "The page has" not in tree_page(tree, "")


def test_hidden_children_of_a_wide_node_are_one_stub_and_codes_stay() -> None:
    tree = NaryTree.from_rows([[1, 2, 3, 4], [5, 6]], [5, 1, 9, 2, 2])
    data = page_data(tree, max_units=2)
    # Kept: units 0 and 2. The root's child 0 (units 3 and 4) and unit 1 are in one stub at the end.
    assert data["rows"] == [[1, 2, 3]]
    assert data["stubs"] == [(3, 0.2632)]
    assert data["places"] == {0: [1, 3]}
    assert data["binary"] is False


@pytest.mark.parametrize("max_units", [1, 7, 100])
def test_all_mass_and_all_units_are_accounted_for(max_units: int) -> None:
    random = np.random.default_rng(0)
    for tree in (Tree.huffman(random.random(60)), NaryTree.from_binary(Tree.huffman(random.random(60)), 6)):
        data = page_data(tree, max_units)
        assert sum(data["shares"]) + sum(share for _, share in data["stubs"]) == pytest.approx(1, abs=0.01)
        assert len(data["names"]) + sum(units for units, _ in data["stubs"]) == 60
        children = sorted(child for row in data["rows"] for child in row)
        num_nodes = len(data["rows"]) + len(data["names"]) + len(data["stubs"])
        assert children == list(range(1, num_nodes))
        assert all(child > node for node, row in enumerate(data["rows"]) for child in row)


def test_five_thousand_units_are_a_small_page() -> None:
    units = [f"unit number {number}" for number in range(5000)]
    text = tree_page(Tree.huffman(1 / np.arange(1, 5001), units), "")
    assert len(data_of(text)["names"]) == 5000
    assert len(text.encode()) < 500_000


@pytest.mark.slow
def test_hundreds_of_thousands_of_units_and_thousands_of_levels() -> None:
    text = tree_page(Tree.huffman(1 / np.arange(1, 300_001)), "")
    assert len(data_of(text)["names"]) == 20_000
    assert len(text.encode()) < 1_600_000
    comb = tree_page(Tree.huffman([2.0**exponent for exponent in range(-900, 900)]), "")
    assert len(data_of(comb)["rows"]) == 1799


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_script_is_well_formed(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(SCRIPT, "utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, timeout=60)
