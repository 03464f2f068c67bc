# SPDX-License-Identifier: Apache-2.0
"""The code in docs/heads.md, run as it stands there.

`tests/stand_alone.py` runs the code of the first section without other packages.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from page_code import code_blocks

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.tree import NaryTree, Tree, load_tree

PAGE = "docs/heads.md"
OWN_MODEL = "## In a model of your own"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def run_code(*headings: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """The variables after the code below these headings, with the other variables before it."""
    namespace = dict(variables or {})
    for heading in headings:
        for block in code_blocks(PAGE, heading):
            exec(compile(block, PAGE, "exec"), namespace)
    return namespace


def replaced() -> dict[str, Any]:
    return run_code("### Replace the output layer")


def test_every_block_of_the_section_is_below_a_heading_of_these_tests() -> None:
    headings = (
        "### Replace the output layer",
        "### Choose a tree",
        "### Padding",
        "### Decode",
        "### Save and load",
        "### Export to ONNX",
    )
    blocks = [block for heading in headings for block in code_blocks(PAGE, heading)]
    assert blocks == code_blocks(PAGE, OWN_MODEL)


def test_the_replaced_layers_have_the_losses_that_the_page_says() -> None:
    after = replaced()
    hidden, targets, head = after["hidden"], after["targets"], after["head"]
    nll = -head.log_probs(hidden).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(head.loss(hidden, targets), nll)
    assert head.inner_vector.bias is None
    assert head.inner_vector.weight.grad.abs().sum() > 0
    torch.testing.assert_close(after["loss"], after["loss_before"])  # of the adaptive softmax
    with pytest.raises(NotImplementedError, match='missing the required "forward" function'):
        head(hidden)


def test_the_trees_are_those_that_the_page_says() -> None:
    after = run_code("### Choose a tree", variables=replaced())
    brown = dict(zip(range(6), after["brown_tree"].codes(), strict=True))
    assert brown[0][:-1] == brown[1][:-1]
    assert brown[2][:-1] == brown[3][:-1]
    assert isinstance(after["hand_tree"], NaryTree)
    assert after["hand_tree"].codes() == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    assert HSoftmaxHead(4, after["hand_tree"]).tree.num_inner == 5


def test_padding_is_left_out() -> None:
    after = run_code("### Padding", variables=replaced())
    head, hidden, targets = after["head"], after["hidden"], after["targets"]
    assert int(after["is_target"].sum()) == 12
    losses = torch.cat([head.loss(hidden[0], targets[0]), head.loss(hidden[1, :5], targets[1, :5])])
    torch.testing.assert_close(after["loss"], losses.mean())
    targets[0, 0] = 5
    message = "targets: values from -100 to 5, expected 0…5; remove padding before the head"
    with pytest.raises(ValueError, match=message):
        head.loss(hidden, targets)


def test_the_best_units_are_those_of_the_log_probabilities() -> None:
    after = run_code("### Decode", variables=replaced())
    values, ids = after["log_probs"].sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(after["scores"], values[..., :3], rtol=1e-5, atol=1e-6)
    assert torch.equal(after["ids"], ids[..., :3])
    assert not after["scores"].requires_grad
    assert after["head"].topk(after["hidden"], k=3)[0].requires_grad


def test_a_head_is_saved_and_loaded() -> None:
    after = run_code("### Save and load", variables=replaced())
    head, loaded, hidden = after["head"], after["loaded"], after["hidden"]
    assert torch.equal(loaded.log_probs(hidden), head.log_probs(hidden))
    assert head.tree.has_same_structure(load_tree("tree.json"))
    other = HSoftmaxHead(256, Tree.balanced(after["counts"]))
    other.load_state_dict(head.state_dict())
    assert not torch.allclose(other.log_probs(hidden), head.log_probs(hidden))
    assert not head.tree.has_same_structure(other.tree)
    with pytest.raises(RuntimeError, match="size mismatch for inner_vector.weight"):
        HSoftmaxHead(256, Tree.huffman([1, 2, 3])).load_state_dict(head.state_dict())


@pytest.mark.slow
def test_an_exported_head_has_the_log_probabilities() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        after = run_code("### Export to ONNX", variables=replaced())
    session = onnxruntime.InferenceSession("head.onnx", providers=["CPUExecutionProvider"])
    hidden = torch.randn(5, 256)
    (found,) = session.run(["log_probs"], {"hidden": hidden.numpy()})
    expected = after["head"].log_probs(hidden).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


# ---- the other sections


def test_heads_over_the_tree_of_a_recipe() -> None:
    Path("data").mkdir()
    Tree.huffman([5, 3, 1]).save("data/tree.json")
    run_code("## Trees")


def test_the_tree_by_hand_has_the_nodes_that_the_page_says() -> None:
    (text,) = code_blocks(PAGE, "## Write a tree by hand", "json")
    Path("tree.json").write_text(text, "utf-8")
    tree = load_tree("tree.json")
    assert tree.num_inner == 4
    assert tree.codes() == ["0.0", "0.1.0", "0.1.1", "0.1.2", "1.0", "1.1"]


def test_word_vectors_in_python() -> None:
    Path("train.txt").write_text("the cat ran\nthe dog ran\n" * 20, "utf-8")
    words = ["<blank>", "<unk>", "<sos/eos>", "the", "cat", "dog", "ran"]
    lines = [f"{word} {number}\n" for number, word in enumerate(words)]
    Path("words.txt").write_text("".join(lines), "utf-8")
    after = run_code("## Word vectors")
    assert after["vectors"].shape == (len(words), 100)
