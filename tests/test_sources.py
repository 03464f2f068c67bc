# SPDX-License-Identifier: Apache-2.0
"""The calculations of docs/sources.md: what the source documents print, and what is right."""

import lzma
import math
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.text.normalize import normalize_counted
from wenet_hs.tree import Tree

Floats = NDArray[np.float64]


def zipf(num_units: int) -> Floats:
    return 1.0 / np.arange(1, num_units + 1)


def path_scores(tree: Tree, scores_NI: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """d·θh of each decision on each path, (N, V, P), and where a path has a decision, (V, P).

    Left is +1.
    """
    nodes_VP, turns_VP = tree.paths()
    return turns_VP * scores_NI[:, nodes_VP], turns_VP != 0


def probabilities(tree: Tree, scores_NI: Floats) -> Floats:
    """(N, V) equation 1: the product of the decisions."""
    scores_NVP, used_VP = path_scores(tree, scores_NI)
    return np.exp(np.where(used_VP, -np.logaddexp(0, -scores_NVP), 0).sum(-1))


def head_of(scores: list[float], tree: Tree) -> HSoftmaxHead:
    """The tree head whose node scores are these for the state [1]."""
    head = HSoftmaxHead(1, tree)
    head.inner_vector.weight.data = torch.tensor(scores)[:, None]
    return head


def test_algorithm_3_with_zero_padding_bias_gives_log_0_and_so_does_a_certain_node() -> None:
    # The tree of figure 2: w1 and w2 are under the left child of the root, w3 is its right child.
    sign, bias = (
        torch.tensor([[1.0, 1], [1, -1], [-1, 0]]),
        torch.tensor([[0.0, 0], [0, 1], [1, 0]]),
    )
    h = torch.tensor([0.3, -0.8]).sigmoid()
    assert torch.log(sign * h + bias).sum(-1)[2] == -math.inf  # as printed: zero matrices
    bias[2, 1] = 1.0  # appendix B
    tree = Tree.huffman([1, 2, 4])
    assert tree.codes() == ["00", "01", "1"]
    log_probs = head_of([0.3, -0.8], tree).log_probs(torch.ones(1, 1))[0]
    torch.testing.assert_close(torch.log(sign * h + bias).sum(-1), log_probs)
    # In float32 σ(17) is 1, so that log(1 - σ(17)) is log 0; log σ(-17) is not.
    assert torch.log(1 - torch.tensor(17.0).sigmoid()) == -math.inf
    assert head_of([17.0, 0.0], tree).log_probs(torch.ones(1, 1))[0, 2].item() == pytest.approx(
        -17.0
    )


def test_left_is_sigma_as_in_equation_1() -> None:
    left, right = head_of([2.0], Tree.huffman([1, 2])).log_probs(torch.ones(1, 1))[0].exp().tolist()
    sigma = 1 / (1 + math.exp(-2.0))
    assert (left, right) == pytest.approx((sigma, 1 - sigma))  # appendix B: 1 - σ for left


TABLE_3 = {  # bin sbc mal kea klu aeb mak fin abk ace
    "softmax": (70.4, 87.4, 98.0, 83.4, 86.2, 84.1, 84.5, 94.2, 75.0, 75.5),
    "hsoftmax": (38.0, 68.9, 80.8, 59.6, 62.9, 60.9, 73.7, 75.2, 70.9, 48.6),
}
TABLES_4_5 = {  # rates by language, and the printed overall
    (5.5, 9.4, 12.1, 8.8, 9.7): 9.1, (5.3, 8.8, 11.3, 8.4, 10.0): 8.8, (5.0, 5.4, 9.2, 11.6, 11.5): 8.5,
    (4.8, 5.4, 8.8, 10.4, 11.6): 8.2, (16.9, 18.3, 14.0, 10.2, 20.6): 16.0, (14.4, 17.2, 12.8, 9.1, 16.3): 14.0,
    (7.3, 9.4, 15.1, 8.4, 21.8): 12.4, (5.7, 9.0, 11.3, 7.3, 15.4): 9.7, (5.8, 5.8, 8.5, 10.6, 11.5): 8.4,
    (6.1, 5.9, 8.2, 8.5, 9.8): 7.7, (11.8, 13.7, 12.3, 7.6, 13.5): 11.8, (11.0, 13.6, 10.3, 7.1, 13.7): 11.1,
}  # fmt: skip


def test_overall_is_the_macro_mean_in_tables_4_and_5_but_not_in_table_3() -> None:
    assert all(abs(fmean(rates) - printed) < 0.051 for rates, printed in TABLES_4_5.items())
    softmax, tree = (fmean(rates) for rates in TABLE_3.values())
    assert (softmax, tree, softmax - tree) == pytest.approx(
        (83.87, 63.95, 19.92)
    )  # printed: 85.2, 64.7, 20.51
    seven = (0, 1, 2, 3, 5, 8, 9)  # without klu, mak, fin
    assert [fmean(rates[index] for index in seven) for rates in TABLE_3.values()] == pytest.approx(
        [81.97, 61.10], abs=5e-3
    )


@pytest.mark.parametrize("num_units", [8, 60, 300])
def test_p_thsm_as_printed_sums_to_half_the_number_of_words(num_units: int) -> None:
    tree = Tree.huffman(zipf(num_units))
    draws_NI = np.random.default_rng(0).standard_normal((200, num_units - 1))
    for scores_NI in (np.zeros((1, num_units - 1)), draws_NI):
        scores_NVP, used_VP = path_scores(tree, scores_NI)
        equation_5 = (
            (1 / (1 + np.exp(-scores_NVP.sum(-1)))).sum(-1).mean()
        )  # σ(dᵀθh): also exp(-loss) of equation 6
        assert equation_5 == pytest.approx(num_units / 2, rel=1e-9 if len(scores_NI) == 1 else 0.02)
        equation_9 = (
            np.where(used_VP, 1 / (1 + np.exp(-scores_NVP)), 0).sum((1, 2)).mean()
        )  # a sum over i
        assert equation_9 == pytest.approx(used_VP.sum() / 2, rel=0.02)
        assert probabilities(tree, scores_NI).sum(-1) == pytest.approx(1.0)


def test_equation_8_is_the_gradient_of_the_printed_loss_not_of_the_likelihood() -> None:
    signs, scores = (
        torch.tensor([1.0, -1.0, 1.0]),
        torch.tensor([0.4, 1.5, -0.7], requires_grad=True),
    )
    printed = (torch.sigmoid(signs @ scores.detach()) - 1) * signs
    torch.testing.assert_close(
        torch.autograd.grad(torch.nn.functional.softplus(-signs @ scores), scores)[0], printed
    )
    right = (torch.sigmoid(signs * scores.detach()) - 1) * signs
    cost = -torch.nn.functional.logsigmoid(signs * scores).sum()
    torch.testing.assert_close(torch.autograd.grad(cost, scores)[0], right)
    assert not torch.allclose(printed, right, atol=0.1)


@pytest.mark.parametrize(
    ("num_units", "unit_scores", "tripled_scores"),
    [(3, 0.85, 0.98), (8, 0.70, 0.91), (64, 0.45, 0.81), (300, 0.37, 0.72)],
)
def test_greedy_descent_often_misses_the_best_unit(
    num_units: int, unit_scores: float, tripled_scores: float
) -> None:
    tree, rows = Tree.huffman(zipf(num_units)), np.arange(max(400, 60_000 // num_units))
    scores_NI = np.random.default_rng(0).standard_normal((len(rows), num_units - 1))
    for scale, expected in ((1, unit_scores), (3, tripled_scores)):
        node_N = np.zeros_like(rows)
        while (node_N < tree.num_inner).any():
            inner_N = np.minimum(node_N, tree.num_inner - 1)
            chosen_N = tree.children[inner_N, (scores_NI[rows, inner_N] < 0).astype(int)]
            node_N = np.where(node_N < tree.num_inner, chosen_N, node_N)
        best_N = probabilities(tree, scale * scores_NI).argmax(-1)
        assert np.mean(node_N - tree.num_inner == best_N) == pytest.approx(expected, abs=0.04)


def test_mean_and_longest_paths_may_exceed_log_v() -> None:
    assert (
        Tree.huffman([1, 1, 1]).mean_code_length() == pytest.approx(5 / 3) and math.log2(3) < 5 / 3
    )
    assert [Tree.huffman(zipf(num_units)).depth for num_units in (150, 1000, 10_000)] == [
        10,
        13,
        17,
    ]
    fibonacci = [1, 1]
    while len(fibonacci) < 20:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert Tree.huffman(fibonacci).depth == 19


def test_the_tree_of_the_characters_of_the_papers_languages_is_deeper_than_log_v(
    shared_dir: Path,
) -> None:
    counts = Counter[str]()
    for path in (shared_dir / "data" / "cv_sentences").glob("*.txt"):
        for line in path.read_text("utf-8").split("\n")[::10]:
            counts.update(normalize_counted(line, path.stem)[0])
    tree = Tree.huffman(sorted(counts.values()))
    assert (tree.num_units, tree.depth) == (124, 17) and math.log2(124) == pytest.approx(
        7.0, abs=0.05
    )


def test_the_sentences_of_wikitext_2_are_lines(shared_dir: Path) -> None:
    with lzma.open(
        shared_dir / "data" / "wikitext-2" / "wiki.train.txt.xz", "rt", encoding="utf-8"
    ) as file:
        lines = [line.strip() for line in file]
    assert len(lines) == 36_718
    assert (sum(not line for line in lines), sum(line.startswith("=") for line in lines)) == (
        12_951,
        6_211,
    )
