# SPDX-License-Identifier: Apache-2.0
"""Trees from nested lists, in Python."""

from typing import Any

import pytest

from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree.errors import DataError
from wenet_hs.tree.nested import nested_tree

SPORTS = [["golf", ["basketball", "football"]], ["piano", "violin"]]
UNITS = ("football", "violin", "golf", "basketball", "piano")


def test_lists_of_two_are_a_binary_tree() -> None:
    tree = nested_tree(SPORTS, UNITS)
    assert isinstance(tree, Tree)
    assert (tree.kind, tree.units, tree.options) == ("nested", UNITS, {})
    assert tree.codes() == ["011", "11", "00", "010", "10"]
    assert tree.frequencies.tolist() == [0.0] * 5


def test_longer_lists_are_an_nary_tree() -> None:
    tree = nested_tree([*SPORTS, "chess"], [*UNITS, "chess"], options={"by": "hand"})
    assert isinstance(tree, NaryTree)
    assert tree.codes() == ["0.1.1", "1.1", "0.0", "0.1.0", "1.0", "2"]
    assert tree.options == {"by": "hand"}


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (
            [SPORTS, "chess"],
            "units not in the unit table: chess; remove them, or give the unit table that has them",
        ),
        (SPORTS[0], "units missing: violin, piano; add each once; <blank> and <unk> beside a rare"),
        ([SPORTS[0], SPORTS], "units in it more than once: golf, basketball, football; keep one"),
        ([SPORTS, 7], "7 is no list; write units in quotation marks"),
        ([SPORTS, ("a", "b")], '["a", "b"] is no list; write units in quotation marks'),
        ([SPORTS, []], "the list [] has no members; a list needs two or more"),
        ([SPORTS, {1}], "is no list; write units in quotation marks"),
    ],
)
def test_lists_that_are_no_tree_over_the_units(lists: list[Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        nested_tree(lists, UNITS)
    assert str(error.value).startswith("nested lists: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_that_contains_itself_is_refused() -> None:
    direct: list[Any] = [*SPORTS]
    direct.append(direct)
    inner: list[Any] = ["violin"]
    outer: list[Any] = [SPORTS[0], inner]
    inner.append(outer)
    for lists in (direct, outer, [outer, "piano"]):
        with pytest.raises(DataError) as error:
            nested_tree(lists, UNITS)
        message = "nested lists: a list contains itself; a tree ends in units"
        assert str(error.value) == message
