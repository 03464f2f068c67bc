# SPDX-License-Identifier: Apache-2.0
"""The drawing of a tree as SVG and PNG, and the page that explores it."""

import dataclasses
import itertools
import json
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree_kinds import plot
from wenet_hs.tree_kinds.plot import _choose_fonts, tree_page, tree_png, tree_svg, unit_label

SCRIPT = (Path(plot.__file__).parent / "templates" / "explorer.js").read_text("utf-8")
HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    "<!--",
    "&amp;",
    "\u2028",
    '"',
    "'",
    "\\",
    "]]>",
    "▁",
    "\u0301",
]


def texts(svg: str) -> list[str]:
    names = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [element.text or "" for element in names]


def test_a_small_tree_is_drawn_completely() -> None:
    svg = tree_svg(Tree.huffman([5, 9, 12, 13, 16], units=["a", "<b>", "c&", "▁", '"']))
    assert texts(svg) == [
        *("c&", "21.8 %", "00"), *("▁", "23.6 %", "01"), *("a", "9.1 %", "100"), *("<b>", "16.4 %", "101"),
        *('"', "29.1 %", "11"),
    ]  # fmt: skip
    assert "<title>huffman tree of 5 units, depth 3" in svg
    assert svg.count("stroke-width") == 2 * 4
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) == {
        "currentColor",
        "none",
    }  # the page's colours
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched


def test_the_more_probable_edge_is_thicker() -> None:
    svg = tree_svg(Tree.huffman([1, 99]))
    rare, frequent = map(float, re.findall(r'stroke-width="([\d.]+)"', svg))
    assert rare < frequent


def test_an_nary_tree_is_drawn_with_dotted_codes() -> None:
    tree = NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 6, 8], units=list("abcde"))
    assert texts(tree_svg(tree))[::3] == list("cdeab")
    assert texts(tree_svg(tree))[2::3] == ["0.0", "0.1", "0.2", "1", "2"]
    assert "classes tree of 5 units, depth 2" in tree_svg(tree)


def check_rows(svg: str, num_units: int) -> list[str]:
    """The labels of a drawing whose rows stand for all units and all their mass."""
    labels, shares = texts(svg)[::3], texts(svg)[1::3]
    folded = [re.fullmatch(r"… ([\d,]+) units( in \d+ branches)?", label) for label in labels]
    assert sum(int(match[1].replace(",", "")) if match else 1 for match in folded) == num_units
    assert sum(float(share.removesuffix(" %")) for share in shares) == pytest.approx(100, abs=2)
    return labels


def test_a_large_tree_is_folded_and_a_wide_node_shows_its_most_probable_children() -> None:
    counts = 1e5 / np.arange(1, 2001)
    labels = check_rows(tree_svg(Tree.huffman([*counts, *[0] * 500]), max_leaves=25), 2500)
    assert len(labels) == 25 and "0" in labels  # the most frequent unit is drawn
    wide = NaryTree.from_rows([range(1, 1001)], range(1000, 0, -1))
    assert check_rows(tree_svg(wide, max_leaves=30), 1000) == [*map(str, range(9)), "… 991 units"]
    labels = check_rows(tree_svg(NaryTree.from_binary(Tree.huffman(counts)), max_leaves=40), 2000)
    assert 30 <= len(labels) <= 40
    assert any("branches" in label for label in labels)


def test_extreme_trees_can_be_drawn() -> None:
    for frequencies, max_leaves in itertools.product(
        ([1], [0, 0, 0], [2.0**-i for i in range(100)]), (1, 200)
    ):
        svg = tree_svg(Tree.huffman(frequencies), max_leaves=max_leaves)
        assert float(ElementTree.fromstring(svg).attrib["width"]) < 1200
        assert max(len(code) for code in texts(svg)[2::3]) <= 40


LABELS = {
    "a": "a",
    " ": "▁",
    "▁the": "▁the",
    "\u0301": "◌\u0301",
    "\u093f": "◌\u093f",
    "x" * 40: "x" * 23 + "…",
}
LABELS |= {
    "\u200d": "U+200D",
    "\u3000": "U+3000",
    "\uffff": "U+FFFF",
    "\ue000": "U+E000",
    "a\u0378": "aU+0378",
}


def test_units_are_readable() -> None:
    assert {unit: unit_label(unit) for unit in LABELS} == LABELS
    assert set(texts(tree_svg(Tree.huffman(range(len(LABELS)), units=list(LABELS))))) >= set(
        LABELS.values()
    )


@pytest.mark.slow
def test_the_picture_is_the_drawing_at_twice_the_resolution_with_all_characters() -> None:
    """A missing glyph is a warning, and so an error in these tests."""
    units = [
        *"ʃʒθðŋɲɹʔɛɔəɪʊжщя",
        "tʃ",
        "ã",
        "o̞",
        "n̪",
        "\u0301",
        "\u0329",
        "▁",
        " ",
        "$x_1$",
        "<b>",
        "\\frac{",
    ]
    tree = Tree.huffman(range(len(units)), units)
    png = tree_png(tree)
    svg_size = ElementTree.fromstring(tree_svg(tree)).attrib
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width == 2 * round(float(svg_size["width"]))
    assert height == 2 * round(float(svg_size["height"]))
    assert not _choose_fonts(units)[1]
    # The last ideograph of extension H, drawn as its number where no font has it.
    rare = "\U000323af"
    assert tree_png(Tree.huffman([1, 1], units=[rare, "a"]))
    assert _choose_fonts([rare, "a"])[1] <= {rare}


# ---- the explorer


def data_of(page: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return data


def test_every_node_of_a_small_or_deep_tree_is_on_the_page() -> None:
    deep = Tree.huffman([2.0**exponent for exponent in range(-900, 900)])
    assert len(data_of(tree_page(deep, ""))["rows"]) == 1799
    tree = Tree.huffman([1, 2, 4], units=["x", "y", "z"])
    assert data_of(tree_page(tree, "depth 2")) == {
        "binary": True, "rows": [[1, 4], [2, 3]], "names": ["x", "y", "z"], "shares": [0.1429, 0.2857, 0.5714],
        "labels": {},
    }  # fmt: skip


def test_names_are_escaped_and_nothing_is_fetched() -> None:
    tree = dataclasses.replace(Tree.huffman(range(1, len(HOSTILE) + 1), HOSTILE), kind="<kind>")
    page = tree_page(tree, "<b>", [["a"], ["<i>"]])
    assert data_of(page)["names"] == HOSTILE
    assert data_of(page)["labels"] == {"4": "U+2028", "10": "◌\u0301"}
    assert page.count("<script") == page.count("</script") == 2 and SCRIPT in page
    assert not re.search("<(b|i|kind)>", page)
    assert '<tr><th scope="row">&lt;i&gt;</th></tr>' in page and "<li>&lt;b&gt;</li>" in page
    assert "<title>&lt;kind&gt; tree of 11 units</title>" in page
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page
    assert not re.search(r"https?:|//[a-z]|@import|url\(|src=", page.replace("// ", ""))
    assert re.findall("<link.*>", page) == ['<link rel="icon" href="data:,">']
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(", SCRIPT
    )


def test_at_least_one_leaf_is_drawn() -> None:
    with pytest.raises(ValueError, match="^max_leaves: must be at least 1, got 0$"):
        tree_svg(Tree.huffman([1, 1, 2, 4, 8, 16]), max_leaves=0)


def test_the_page_of_a_tree_of_classes_has_all_units() -> None:
    tree = NaryTree.from_binary(Tree.huffman(np.random.default_rng(0).random(60)), 6)
    data = data_of(tree_page(tree, ""))
    assert (data["binary"], data["rows"], data["names"]) == (False, tree.rows(), list(tree.units))
    assert sum(data["shares"]) == pytest.approx(1, abs=0.01)


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_script_is_well_formed(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(SCRIPT, "utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, timeout=60)
