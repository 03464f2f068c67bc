# SPDX-License-Identifier: Apache-2.0
"""The row mapping between heads with different units, orders and trees."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, OutputHead, SoftmaxHead
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.train.finetune import map_head, match_units, mix_rows
from wenet_hs.tree import NaryTree, Tree

Nested = Any
"""A unit, or a list of the branches of a node."""


def tree_of(nested: Nested, units: Sequence[str], counts: Sequence[float]) -> NaryTree:
    """The tree of a nested list, numbered breadth first."""
    nodes = [nested]
    for node in nodes:  # grows as it is read
        nodes += [child for child in node if isinstance(child, list)]
    numbers = {id(node): number for number, node in enumerate(nodes)}
    rows = [[numbers.get(id(child)) or len(nodes) + units.index(child) for child in node] for node in nodes]
    return NaryTree.from_rows(rows, counts, units=units)


def random_nested(units: Sequence[str], rng: np.random.Generator, most: int) -> Nested:
    if len(units) == 1:
        return units[0]
    number = int(rng.integers(2, min(most, len(units)) + 1))
    cuts = np.sort(rng.choice(np.arange(1, len(units)), number - 1, replace=False))
    return [random_nested(list(part), rng, most) for part in np.split(np.array(units), cuts)]


def shuffled(nested: Nested, rng: np.random.Generator) -> Nested:
    """The same tree with the branches of each node in another order."""
    return [shuffled(nested[i], rng) for i in rng.permutation(len(nested))] if isinstance(nested, list) else nested


def grafted(nested: Nested, unit: str, new: str) -> Nested:
    """The tree with a decision between `unit` and `new` where `unit` was."""
    if isinstance(nested, list):
        return [grafted(child, unit, new) for child in nested]
    return [new, unit] if nested == unit else nested


def head_of(kind: str, nested: Nested, units: Sequence[str], counts: dict[str, float]) -> OutputHead:
    tree = tree_of(nested, units, [counts[unit] for unit in units])
    if kind == "hsoftmax":
        binary = Tree("t", tree.units, tree.children.reshape(-1, 2), tree.frequencies)
        return HSoftmaxHead(4, binary, bias=True)
    if kind == "class":
        return ClassHead(4, tree)
    return AdaptiveHead(4, tree, div_value=2.0) if kind == "adaptive" else SoftmaxHead(4, len(units))


def table_of(units: Sequence[str]) -> UnitTable:
    ids = [units.index(name) for name in ("<blank>", "<unk>", "<sos/eos>")]
    return UnitTable(tuple(units), SpecialIds(blank=ids[0], unk=ids[1], sos=ids[2], eos=ids[2]))


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(kind=st.sampled_from(["hsoftmax", "class", "adaptive"]), number=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_another_order_of_units_and_branches_changes_no_probability(kind: str, number: int, seed: int) -> None:
    """A new unit next to an old one shares its probability, in both directions."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    units = ["<blank>", "<unk>", "<sos/eos>", *"abcde"[:number]]
    counts = dict(zip([*units, "new"], rng.uniform(1, 99, len(units) + 1), strict=True))
    nested = random_nested([str(unit) for unit in rng.permutation(units)], rng, 2 if kind == "hsoftmax" else 4)
    permuted = [str(unit) for unit in rng.permutation(units)]
    beside = str(rng.choice(units))
    extended = [str(unit) for unit in rng.permutation([*units, "new"])]
    mirrored, more = shuffled(nested, rng), shuffled(grafted(nested, beside, "new"), rng)
    forms = [(nested, units), (mirrored, permuted)] + ([(more, extended)] if kind != "adaptive" else [])
    one, other = (forms[int(chosen)] for chosen in rng.integers(len(forms), size=2))
    tables = table_of(one[1]), table_of(other[1])
    old, new = head_of(kind, *one, counts), head_of(kind, *other, counts)
    state, theirs = new.state_dict(), old.state_dict()
    for name, rows in map_head(old, new, match_units(*tables).outputs).items():
        state[name] = mix_rows(state[name], theirs[rows.name], rows)[0]
    new.load_state_dict(state)
    hidden = torch.randn(3, 4, dtype=torch.float64)  # float32 would load the kernels, which takes longer than the test
    probs = [head.log_probs(hidden).exp().detach() for head in (old, new)]
    for unit in units:
        names = [unit, "new"] if unit == beside else [unit]
        both = [
            torch.stack([prob[:, ids] for name in names if (ids := table.id_of(name)) is not None]).sum(0)
            for prob, table in zip(probs, tables, strict=True)
        ]
        torch.testing.assert_close(both[0], both[1])


def test_special_units_are_matched_by_role() -> None:
    one = UnitTable(("<sos/eos>", "a", "<blank>", "<unk>"), SpecialIds(blank=2, unk=3, sos=0, eos=0))
    two = UnitTable(("<blank>", "a", "<sos>", "<eos>"), SpecialIds(blank=0, unk=None, sos=2, eos=3))
    apart, joined = match_units(one, two), match_units(two, one)
    assert (apart.inputs.tolist(), apart.outputs.tolist()) == ([2, 1, 0, 0], [2, 1, -1, 0])
    assert (joined.inputs.tolist(), joined.outputs.tolist()) == ([2, 1, 0, -1], [3, 1, 0, -1])


def test_rows_without_a_match_are_new() -> None:
    """Nodes that split the shared units differently, clusters of another width, heads of another class."""
    units = ["<blank>", "<unk>", "<sos/eos>", *"abc"]
    table, counts = table_of(units), dict.fromkeys(units, 1.0)
    one = [[["<blank>", "<unk>"], ["<sos/eos>", "a"]], ["b", "c"]]
    other = [[["<blank>", "<unk>"], ["b", "a"]], ["<sos/eos>", "c"]]
    outputs = match_units(table, table).outputs
    heads = {kind: head_of(kind, one, units, counts) for kind in ("softmax", "hsoftmax", "class")}
    rows = map_head(heads["hsoftmax"], head_of("hsoftmax", other, units, counts), outputs)
    assert rows["inner_vector.weight"].source.tolist() == [-1, -1, -1, 3, -1]
    rows = map_head(heads["class"], head_of("class", other, units, counts), outputs)
    assert rows["output.bias"].source.tolist() == [-1, -1, 2, -1, 8, 5, 6, 7, 4, 9]
    assert map_head(heads["class"], heads["softmax"], outputs) == {}
    ranks = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    old = AdaptiveHead(16, ranks, [2, 4], 2.0)
    new = AdaptiveHead(16, ranks, [3, 4], 2.0)
    found = {name: rows.source.tolist() for name, rows in map_head(old, new, outputs).items()}
    assert found["adaptive.head.weight"] == [0, 1, -1, -1, 3]
    assert found["adaptive.tail.0.1.weight"] == [1]
    assert found["adaptive.tail.1.1.weight"] == [0, 1]
    narrow = map_head(old, AdaptiveHead(16, ranks, [2, 4], 3.0), outputs)
    assert list(narrow) == ["adaptive.head.weight"]
