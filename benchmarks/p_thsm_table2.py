# SPDX-License-Identifier: Apache-2.0
"""Table 2 of the p-tHSM paper (Jiang et al.

2017): milliseconds and memory of a batch of 20 × 50 at 267,735 words.

Rows as there: softmax; cHSM, the two-level class head of √V frequency bins; tHSM, the tree walked
level by level; p-tHSM, all decisions of the paths at once in plain PyTorch; and below them what
this package trains with. Frequencies follow Zipf's law in place of WikiText-103's.

Example: python benchmarks/p_thsm_table2.py --out benchmarks/notes/p_thsm_table2_cpu
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import head_training
import torch
import torch.nn.functional as F
from head_training import Data, batch, extra_megabytes, frequencies
from paired import (
    alternate,
    in_a_process_of_its_own,
    make_parser,
    medians_ms,
    number,
    publish,
    ratios,
)
from torch import Tensor, nn

from wenet_hs.heads import HSoftmaxHead
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree import Tree

NUM_UNITS, DIM = 267_735, 256
BASELINE = "Softmax"
PUBLISHED = {  # total and forward, CPU and K40m
    "Softmax": "510.4 / 262.1 / 352.2 / 62.9",
    "cHSM": "506.5 / 40.6 / 28.7 / 14.6",
    "tHSM": "1,004.0 / 444.4 / 8.1 / 5.6",
    "p-tHSM": "383.5 / 86.4 / 7.0 / 1.4",
}
SIDES = {"Softmax": "softmax", "cHSM": "class"}
"""Rows under their names in head_training.py."""
ROWS = (*PUBLISHED, "tree", "tree, sparse", "class, sparse", "adaptive")


class LevelByLevel(nn.Module):
    """tHSM: one decision of every token at a time, from the root down, as the algorithm is usually
    written.
    """

    def __init__(self, dim: int, tree: Tree) -> None:
        super().__init__()
        nodes, turns = tree.paths()
        self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=False)
        self.register_buffer("nodes", torch.from_numpy(nodes))
        self.register_buffer("turns", torch.from_numpy(turns))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) nats."""
        nodes_NP, turns_NP = self.nodes[targets_N], self.turns[targets_N]
        cost_N = hidden_ND.new_zeros(len(hidden_ND))
        for level in range(int((turns_NP != 0).sum(-1).max())):
            vectors_ND = F.embedding(nodes_NP[:, level], self.inner_vector.weight)
            turns_N = turns_NP[:, level]
            cost_N = (
                cost_N - F.logsigmoid((vectors_ND * hidden_ND).sum(-1) * turns_N) * turns_N.abs()
            )
        return cost_N


class PlainTreeHead(HSoftmaxHead):
    """p-tHSM: the nodes on the targets' paths by PyTorch's operations, at every size."""

    _kernel_cost = HSoftmaxHead._plain_cost

    def _is_path_faster(self, hidden: Tensor) -> bool:
        return True


def make_head(row: str, num_units: int) -> nn.Module:
    """The head of one row."""
    torch.manual_seed(0)
    tree = Tree.huffman(frequencies(num_units))
    match row.partition(", "):
        case "tHSM", _, _:
            return LevelByLevel(DIM, tree)
        case "p-tHSM", _, option:
            return PlainTreeHead(DIM, tree, sparse_grad=option == "sparse")
    return head_training.make_head(SIDES.get(row, row), num_units)


def total_and_forward(
    head: nn.Module, data: Data
) -> tuple[Callable[[], None], Callable[[], object]]:
    """Input to gradients, and input to the cost."""
    hidden, targets = data

    def total() -> None:
        hidden.grad = None
        for parameter in head.parameters():
            parameter.grad = None
        head.nll(hidden, targets).mean().backward()

    def forward() -> object:
        return head.nll(hidden, targets).mean()  # gradients stay possible, as in training

    return total, forward


def memory_of(row: str, head: nn.Module, data: Data, args: argparse.Namespace) -> float:
    """Megabytes. On a CPU in a process of its own; a GPU counts the memory of tensors exactly."""
    if args.device != "cpu":
        return extra_megabytes(
            head, lambda some: total_and_forward(head, some)[0], data, args.device
        )
    arguments = ["--memory", row, "--units", str(args.units), "--device", args.device]
    return float(in_a_process_of_its_own(Path(__file__), *arguments))


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=7)
    text = "words (default: %(default)s, those of WikiText-103); fewer show whether it runs"
    parser.add_argument("--units", type=int, default=NUM_UNITS, help=text)
    parser.add_argument("--quick", action="store_true", help="without memory")
    parser.add_argument("--memory", choices=ROWS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = batch(args.units, args.device)
    if args.memory:
        head = make_head(args.memory, args.units).to(args.device)
        print(
            extra_megabytes(head, lambda some: total_and_forward(head, some)[0], data, args.device)
        )
        return
    heads = {row: make_head(row, args.units).to(args.device) for row in ROWS}
    sides = {row: total_and_forward(head, data) for row, head in heads.items()}
    totals = alternate(
        {row: side[0] for row, side in sides.items()}, args.rounds, device=args.device
    )
    forwards = alternate(
        {row: side[1] for row, side in sides.items()}, args.rounds, device=args.device
    )
    memory = (
        {} if args.quick else {row: memory_of(row, head, data, args) for row, head in heads.items()}
    )
    ms, forward_ms = medians_ms(totals), medians_ms(forwards)
    gain, forward_gain = ratios(totals, BASELINE), ratios(forwards, BASELINE)
    other = [
        "not measured",
        "not measured",
    ]  # a machine has one or the other; run it there with --device
    rows = [
        [
            row,
            number(memory[row]) if row in memory else "–",
            f"{number(ms[row])} ({number(gain[row])}×)",
            f"{number(forward_ms[row])} ({number(forward_gain[row])}×)",
            *other,
            PUBLISHED.get(row, "–"),
        ]
        for row in ROWS
    ]
    here, there = ("CPU", "GPU") if args.device == "cpu" else ("GPU", "CPU")
    header = [
        "",
        "extra memory, MB",
        f"{here} total, ms",
        f"{here} forward, ms",
        f"{there} total",
        f"{there} forward",
    ]
    header.append("published: total CPU / GPU / forward CPU / GPU")
    device = "CPU" if args.device == "cpu" else torch.cuda.get_device_name()
    text = (
        f"Batch 20 × 50, width {DIM}, {args.units:,} units, Zipf targets, on {device}; in brackets how many times "
        f"faster than softmax in the same rounds (median of {args.rounds}).\n\n{markdown_table(header, rows)}"
    )
    facts = {"total_ms": ms, "forward_ms": forward_ms, "total_ratio": gain, "peak_extra_mb": memory}
    publish("Table 2 of the p-tHSM paper", text, facts, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
