# SPDX-License-Identifier: Apache-2.0
"""Checks that `wenet_hs.tree` and `wenet_hs.heads` work with torch, numpy and numba only.

A program, which needs no pytest: `stand_alone.py [NAME OF A CHECK …]`. `tests/test_stand_alone.py`
runs it in the environment of the checkout. `make alone` runs it in an environment that has only
these three packages and what they require. Other packages and modules of ours are hidden.
"""

import contextlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from import_guard import Visible, install_guard, packages_of
from page_code import code_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from wenet_hs.heads import OutputHead
    from wenet_hs.tree import NaryTree, Tree

VISIBLE = Visible(
    packages=packages_of(["torch", "numpy", "numba"]),
    our_modules=frozenset({"wenet_hs.version", "wenet_hs.tree", "wenet_hs.heads"}),
)
PAGES = {
    "README.md": "## The head in your own model",
    "docs/heads.md": "## In a model of your own",
}
NOT_HERE = "torch.onnx"
"""Code with this needs packages for ONNX. `tests/heads/test_heads_page.py` runs it."""
DIM = 24
UNITS = tuple("abcdefghijkl")
COUNTS = [400.0, 90, 70, 50, 50, 30, 20, 10, 5, 2, 1, 0]
NESTED = '[["a", "b", ["c", "d"]], [["e", "f", "g"], "h"], "i", ["j", "k", "l"]]'
NUM_MANY = 3_000
"""Units enough for the search from the root and for the costs along the paths."""


# ---- files


def check_tree_files() -> None:
    """A binary and an n-ary tree are written and read; a damaged file gives one line."""
    from wenet_hs.tree import NaryTree, Tree, load_tree
    from wenet_hs.tree.errors import DataError

    for tree in (Tree.huffman(COUNTS, UNITS), NaryTree.frequency_bins(COUNTS, units=UNITS)):
        tree.save("tree.json")
        assert load_tree("tree.json") == tree
    Path("damaged.json").write_text("{}")
    try:
        load_tree("damaged.json")
    except DataError as error:
        assert str(error).startswith("damaged.json: format: this field is missing; "), error
    else:
        raise AssertionError("a damaged file was read")


def check_nested_lists() -> None:
    """Nested lists become a tree whose units are where the lists have them."""
    tree = nested_tree()
    codes = dict(zip(UNITS, tree.codes(), strict=True))
    assert [codes[unit] for unit in "adil"] == ["0.0", "0.2.1", "2", "3.2"]


def check_format_of_the_original() -> None:
    """The files of the paper's implementation are written and read."""
    from wenet_hs.tree import Tree
    from wenet_hs.tree.original import read_original_tree, write_original_tree

    tree = Tree.huffman(COUNTS, UNITS)
    write_original_tree(tree, "original")
    assert read_original_tree("original", UNITS).has_same_structure(tree)


# ---- builders


def check_builders() -> None:
    """Each builder places all units; Brown's puts units with the same neighbours together."""
    for name, tree in built_trees().items():
        assert tree.units == UNITS, name
        assert tree.num_leaves()[0] == len(UNITS), name
        assert tree.mean_code_length() >= tree.entropy() - 1e-12, name
    brown = built_trees()["brown"]
    codes = dict(zip(UNITS, brown.codes(), strict=True))
    neighbours = [unit for unit in UNITS if codes[unit][:-1] == codes["a"][:-1]]
    assert neighbours == ["a", "c"], codes


def built_trees() -> "dict[str, Tree | NaryTree]":
    from wenet_hs.tree import NaryTree, Tree

    # "a" and "c" are both between "b" and "d"; every other unit has neighbours of its own.
    sequences = [[1, 0, 3, 4, 5], [1, 2, 3, 6, 7], [8, 9, 10, 6, 4]] * 3
    huffman = Tree.huffman(COUNTS, UNITS)
    return {
        "huffman": huffman,
        "huffman, limited": Tree.huffman(COUNTS, UNITS, max_depth=4),
        "fano": Tree.fano(COUNTS, UNITS),
        "balanced": Tree.balanced(COUNTS, UNITS),
        "random": Tree.random(COUNTS, UNITS, seed=3),
        "brown": Tree.brown(sequences, COUNTS, UNITS),
        "frequency bins": NaryTree.frequency_bins(COUNTS, units=UNITS),
        "classes of a binary tree": NaryTree.from_binary(huffman),
        "binary again": NaryTree.from_binary(huffman).binary(),
    }


def nested_tree() -> "NaryTree":
    from wenet_hs.tree import NaryTree
    from wenet_hs.tree.nested import read_nested_tree

    Path("nested.json").write_text(NESTED)
    tree = read_nested_tree(Path("nested.json"), UNITS)
    assert isinstance(tree, NaryTree)
    return tree


# ---- heads


def check_training_steps() -> None:
    """A step of each head lowers its loss, without smoothing and with each kind of it."""
    import torch

    for name, head in made_heads().items():
        hidden, targets = made_batch(head)
        for smoothing, kind in ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node")):
            before = head.loss(hidden, targets, smoothing, kind)
            optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
            optimizer.zero_grad()
            before.mean().backward()
            optimizer.step()
            after = head.loss(hidden, targets, smoothing, kind)
            assert after.mean() < before.mean(), (name, smoothing, kind)


def check_searches() -> None:
    """The best units of each head are those of a sort of all log-probabilities."""
    import torch

    from wenet_hs.heads.restricted import restrict_head

    heads = made_heads()
    heads["restricted"] = restrict_head(heads["softmax"], {0: 0, 2: 2, 5: 5, 7: 7})
    for name, head in heads.items():
        hidden, _ = made_batch(head)
        log_probs = head.log_probs(hidden).detach()
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(hidden.shape[:-1]))
        expected = log_probs.sort(dim=-1, descending=True, stable=True)
        for is_training in (False, True):
            with torch.set_grad_enabled(is_training):
                values, ids = head.topk(hidden, 3)
            torch.testing.assert_close(values, expected.values[..., :3])
            assert torch.equal(ids, expected.indices[..., :3]), (name, is_training)


def check_ctc() -> None:
    """CTC over a tree has torch's loss of all log-probabilities, and a step lowers it."""
    import torch
    import torch.nn.functional as F

    from wenet_hs.heads import HSoftmaxHead
    from wenet_hs.heads.ctc import Ctc
    from wenet_hs.tree import Tree

    torch.manual_seed(0)
    ctc = Ctc(HSoftmaxHead(DIM, Tree.huffman(zipf_counts(NUM_MANY))), blank=0)
    memory = torch.randn(2, 9, DIM)
    memory_lengths = torch.tensor([9, 7])
    targets = torch.tensor([[5, 5, 2_000], [7, 1, -1]])
    target_lengths = torch.tensor([3, 2])
    loss = ctc.loss(memory, memory_lengths, targets, target_lengths)
    expected = F.ctc_loss(
        ctc.log_probs(memory).transpose(0, 1),
        targets.clamp(min=0),
        memory_lengths,
        target_lengths,
        reduction="sum",
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    torch.optim.SGD(ctc.parameters(), lr=0.05).step()
    assert ctc.loss(memory, memory_lengths, targets, target_lengths) < loss


def made_heads() -> "dict[str, OutputHead]":
    """Each kind of head with few units, and those that compute in another way with many."""
    import torch

    from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead
    from wenet_hs.tree import NaryTree, Tree

    torch.manual_seed(0)
    many = zipf_counts(NUM_MANY)
    return {
        "softmax": SoftmaxHead(DIM, len(UNITS)),
        "hsoftmax": HSoftmaxHead(DIM, Tree.huffman(COUNTS, UNITS), bias=True),
        "class": ClassHead(DIM, NaryTree.frequency_bins(COUNTS, units=UNITS)),
        "class, nested": ClassHead(DIM, nested_tree()),
        "adaptive": AdaptiveHead(DIM, COUNTS),
        "hsoftmax, many units": HSoftmaxHead(DIM, Tree.huffman(many)),
        "class, many units": ClassHead(DIM, Tree.huffman(many), search="best_first"),
        "adaptive, many units": AdaptiveHead(DIM, many),
    }


def zipf_counts(num_units: int) -> list[float]:
    return [1 / rank for rank in range(1, num_units + 1)]


def made_batch(head: "OutputHead") -> "tuple[Tensor, Tensor]":
    """Hidden states (2, 5, D) and their targets (2, 5)."""
    import torch

    return torch.randn(2, 5, DIM), torch.randint(head.num_units, (2, 5))


# ---- pages


def check_code_of_pages() -> None:
    """The code for those who have a model of their own runs as it stands in the pages."""
    for page, heading in PAGES.items():
        namespace: dict[str, object] = {}
        for block in code_blocks(page, heading):
            if NOT_HERE not in block:
                exec(compile(block, page, "exec"), namespace)


CHECKS: tuple[Callable[[], None], ...] = (
    check_tree_files,
    check_nested_lists,
    check_format_of_the_original,
    check_builders,
    check_training_steps,
    check_searches,
    check_ctc,
    check_code_of_pages,
)


def run_check(check: Callable[[], None]) -> bool:
    """Runs a check in an empty folder, prints its traceback, and returns whether it passes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            check()
        except Exception:
            traceback.print_exc()
            return False
    return True


def main(names: Sequence[str]) -> int:
    """Runs the checks with these names, all if there are none. Returns 1 if one fails, else 0."""
    install_guard(VISIBLE)
    import wenet_hs

    chosen = [check for check in CHECKS if not names or check.__name__ in names]
    failed = [check.__name__ for check in chosen if not run_check(check)]
    folder = Path(wenet_hs.__file__).parent
    passed = f"{len(chosen) - len(failed)} of {len(chosen)} checks passed"
    print(f"{folder}: {passed}", *failed)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
