# SPDX-License-Identifier: Apache-2.0
"""The PNG of a tree: the size of the layout, ink where the tree is, and no empty boxes for characters."""

import struct

import numpy as np
import pytest

from wenet_hs.tree import Tree
from wenet_hs.tree.plot import layout_tree
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.plot import _fonts, tree_png

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(SIGNATURE)
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


def test_a_large_tree_is_folded_and_runs_agree() -> None:
    tree = Tree.huffman(1e4 / np.arange(1, 5001))
    first = tree_png(tree, max_leaves=20)
    assert size_of(first)[1] == 2 * (20 * 18 + 24)
    assert first == tree_png(tree, max_leaves=20)


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
