# SPDX-License-Identifier: Apache-2.0
"""The drawing of a tree as SVG and PNG: complete for small trees, folded for large ones, every unit readable."""

import re
import struct
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.plot import _fonts, layout_tree, tree_png, tree_svg, unit_label

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_small_tree_is_drawn_whole() -> None:
    tree = Tree.huffman([5, 9, 12, 13, 16], units=["a", "<b>", "c&", "▁", '"'])
    rows = texts(tree_svg(tree))
    assert rows == [
        *("c&", "21.8 %", "00"), *("▁", "23.6 %", "01"), *("a", "9.1 %", "100"), *("<b>", "16.4 %", "101"),
        *('"', "29.1 %", "11"),
    ]  # fmt: skip
    root = ElementTree.fromstring(tree_svg(tree))
    assert (root.find(f"{SVG}title").text or "").startswith("huffman tree of 5 units, depth 3")  # type: ignore[union-attr]


def test_every_edge_is_drawn_and_thicker_where_more_probable() -> None:
    svg = tree_svg(Tree.huffman([1, 99]))
    thickness = [float(width) for width in re.findall(r'stroke-width="([\d.]+)"', svg)]
    assert len(thickness) == 2
    assert thickness[0] < thickness[1]
    assert tree_svg(Tree.huffman(range(1, 30))).count("stroke-width") == 2 * 28


def test_colours_are_those_of_the_page() -> None:
    svg = tree_svg(Tree.huffman([1, 2, 3]))
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) == {"currentColor", "none"}
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched


def test_a_large_tree_is_folded() -> None:
    tree = Tree.huffman(np.concatenate([1e5 / np.arange(1, 2001), np.zeros(500)]))
    rows = texts(tree_svg(tree, max_leaves=25))
    labels = rows[::3]
    assert len(labels) == 25
    folded = [int(match[1].replace(",", "")) for label in labels if (match := re.fullmatch(r"… ([\d,]+) units", label))]
    assert sum(folded) + 25 - len(folded) == 2500
    assert "0" in labels  # the most frequent unit is in sight
    assert sum(float(share.removesuffix(" %")) for share in rows[1::3]) == pytest.approx(100, abs=2)


@pytest.mark.parametrize("frequencies", [[1], [0], [0, 0, 0], [1, 0], [2.0**-i for i in range(400)]])
def test_extreme_trees_can_be_drawn(frequencies: list[float]) -> None:
    ElementTree.fromstring(tree_svg(Tree.huffman(frequencies)))
    ElementTree.fromstring(tree_svg(Tree.huffman(frequencies), max_leaves=1))


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        ("a", "a"),
        (" ", "▁"),
        ("▁the", "▁the"),
        ("\u0301", "◌\u0301"),
        ("\u093f", "◌\u093f"),
        ("\t", "U+0009"),
        ("\u200d", "U+200D"),
        ("\u3000", "U+3000"),
        ("x" * 40, "x" * 23 + "…"),
        ("\uffff", "U+FFFF"),
        ("\ue000", "U+E000"),
        ("a\u0378", "aU+0378"),
    ],
)
def test_units_are_readable(unit: str, label: str) -> None:
    assert unit_label(unit) == label
    if unit != " ":
        assert label in texts(tree_svg(Tree.huffman([1, 2], units=[unit, "other"])))


def test_children_of_an_nary_tree_hang_on_one_line() -> None:
    tree = NaryTree.from_rows([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 6, 8], units=list("abcde"))
    svg = tree_svg(tree)
    assert texts(svg) == [
        *("c", "15.0 %", "0.0"), *("d", "30.0 %", "0.1"), *("e", "40.0 %", "0.2"), *("a", "5.0 %", "1"),
        *("b", "10.0 %", "2"),
    ]  # fmt: skip
    assert svg.count("stroke-width") == 6
    assert "classes tree of 5 units, depth 2" in svg


def test_a_wide_node_shows_its_most_probable_children() -> None:
    flat = NaryTree.from_rows([range(1, 1001)], range(1000, 0, -1))
    rows = texts(tree_svg(flat, max_leaves=30))
    assert rows[::3] == [*map(str, range(9)), "… 991 units"]
    assert sum(float(share.removesuffix(" %")) for share in rows[1::3]) == pytest.approx(100, abs=1)


def test_a_wide_root_leaves_room_for_its_classes() -> None:
    tree = NaryTree.from_binary(Tree.huffman(1e5 / np.arange(1, 2001)))
    labels = texts(tree_svg(tree, max_leaves=40))[::3]
    assert 30 <= len(labels) <= 40
    rest = [re.fullmatch(r"… ([\d,]+) units( in \d+ branches)?", label) for label in labels]
    units = sum(int(match[1].replace(",", "")) if match else 1 for match in rest)
    assert units == 2000
    assert any(match and match[2] for match in rest)


def test_a_very_deep_tree_stays_narrow() -> None:
    svg = tree_svg(Tree.huffman([2.0**i for i in range(60)]))
    width = int(re.search(r'width="(\d+)"', svg)[1])  # type: ignore[index]
    assert width < 1200
    assert max(len(code) for code in texts(svg)[2::3]) == 40


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize(
    "tree",
    [Tree.huffman(range(1, 51)), NaryTree.from_rows([[1, 2, 3], [4, 5]], [1, 2, 3, 4]), Tree.huffman([1.0])],
    ids=["binary", "n-ary", "one unit"],
)
def test_the_picture_is_the_layout_twice_as_fine(tree: Tree | NaryTree) -> None:
    layout = layout_tree(tree, max_leaves=60)
    assert size_of(tree_png(tree)) == (2 * round(layout.width), 2 * round(layout.height))


def test_phones_and_marks_have_a_shape() -> None:
    """Nothing here may warn of a missing glyph: a warning is an error in these tests."""
    units = [*"ʃʒθðŋɲɹʔɛɔəɪʊжщя", "tʃ", "ã", "o̞", "n̪", "\u0301", "\u0329", "▁", " ", "$x_1$", "<b>", "\\frac{"]
    families, missing = _fonts(units)
    assert families[0] == "DejaVu Sans"
    assert not missing
    assert size_of(tree_png(Tree.huffman(range(len(units)), units)))


def test_a_character_that_no_font_has_is_its_number() -> None:
    rare = "\U000323af"  # the last ideograph of extension H
    _, missing = _fonts([rare, "a"])
    tree = Tree.huffman([1, 1], units=[rare, "a"])
    assert tree_png(tree)  # and no warning
    assert missing <= {rare}
    assert _fonts(["a"])[1] == frozenset()
