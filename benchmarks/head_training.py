# SPDX-License-Identifier: Apache-2.0
"""Training step of each head: its speed compared with that of a flat softmax.

Forward and backward of N tokens of width 256 with Zipf targets, from V = 150 to 267,735 units; then
the same with the optimizer's step; then the most memory that the step holds. Every side is what a
YAML gives, on its default route; on a GPU there is also a softmax whose product is computed in
bfloat16, with our Triton kernel for its cost.

Example: python benchmarks/head_training.py --out benchmarks/notes/head_training_cpu
         python benchmarks/head_training.py --quick --smoothing leaf --sides softmax tree    one pair, without memory
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from original import OriginalHead, bytes_needed
from paired import (
    Facts,
    Side,
    alternate,
    in_a_process_of_its_own,
    make_parser,
    medians_ms,
    number,
    peak_extra_bytes,
    publish,
    quartiles,
    ratios,
)
from torch import Tensor, nn

from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead
from wenet_hs.heads.base import SmoothingKind, smoothing_weights
from wenet_hs.heads.kernels.triton_launch import has_triton
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree import NaryTree, Tree

DIM = 256
SIZES = (150, 500, 1_000, 5_000, 10_000, 50_000, 267_735)
BASELINE = "softmax"
SMOOTHINGS = {"none": (0.0, "leaf"), "leaf": (0.1, "leaf"), "node": (0.1, "node")}
FUSED = "softmax, bf16 fused"
"""Only on a GPU."""
SIDES = ("softmax", FUSED, "tree", "tree, sparse", "class", "class, sparse", "adaptive", "original")
MEMORY_OF_ORIGINAL = 10 * 2**30
Data = tuple[Tensor, Tensor]
"""Hidden states (N, D) and targets (N,)."""


def num_tokens(num_units: int) -> int:
    """Rows of a step: those of the measured baselines."""
    return 2000 if num_units <= 1000 else 1000


def frequencies(num_units: int) -> np.ndarray:
    """Zipf's law, unit 0 the most frequent."""
    return 1.0 / np.arange(1, num_units + 1)


class FusedSoftmax(SoftmaxHead):
    """The flat softmax as under autocast: weights of float32, the product in bfloat16, the cost of
    it in one kernel.
    """

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> Tensor:
        from wenet_hs.heads.kernels.softmax_triton import softmax_cost

        on_target, on_all, constant = smoothing_weights(smoothing, self.num_units)
        factors = (value.bfloat16() for value in (hidden, self.output.weight, self.output.bias))
        return softmax_cost(*factors, targets, on_target, on_all) + constant


def make_head(side: str, num_units: int) -> nn.Module:
    """The head of one side, with equal weights in each call."""
    torch.manual_seed(0)
    if side == FUSED:
        return FusedSoftmax(DIM, num_units)
    counts = frequencies(num_units)
    kind, _, option = side.partition(", ")
    match kind:
        case "softmax":
            return SoftmaxHead(DIM, num_units)
        case "tree":
            return HSoftmaxHead(DIM, Tree.huffman(counts), sparse_grad=option == "sparse")
        case "class":
            return ClassHead(DIM, NaryTree.frequency_bins(counts), sparse_grad=option == "sparse")
        case "adaptive":
            return AdaptiveHead(DIM, counts)
        case "original":
            return OriginalHead(DIM, Tree.huffman(counts))
    raise ValueError(f"{side}: no such side")


def sides_of(device: str) -> list[str]:
    """The sides that the device can compute."""
    return [side for side in SIDES if side != FUSED or (device != "cpu" and has_triton())]


def fits(side: str, num_units: int) -> bool:
    """Whether the memory is enough for a step of the side."""
    if side != "original":
        return True
    return (
        bytes_needed(num_tokens(num_units), Tree.huffman(frequencies(num_units)))
        < MEMORY_OF_ORIGINAL
    )


def batch(num_units: int, device: str) -> Data:
    """Hidden states and Zipf targets."""
    generator = np.random.default_rng(1)
    p = frequencies(num_units)
    targets = generator.choice(num_units, size=num_tokens(num_units), p=p / p.sum())
    hidden = torch.from_numpy(generator.standard_normal((len(targets), DIM), dtype=np.float32))
    return hidden.to(device).requires_grad_(), torch.from_numpy(targets).to(device)


def optimizers(head: nn.Module) -> list[torch.optim.Optimizer]:
    """Adam over dense gradients, torch's SparseAdam over sparse ones: what training uses."""
    sparse = [parameter for parameter in getattr(head, "sparse_parameters", list)()]
    dense = [p for p in head.parameters() if all(p is not other for other in sparse)]
    made: list[torch.optim.Optimizer] = []
    if dense:
        made.append(torch.optim.Adam(dense, lr=1e-4, fused=True))
    if sparse:
        made.append(torch.optim.SparseAdam(sparse, lr=1e-4))
    return made


def make_step(
    head: nn.Module, data: Data, smoothing: str, *, steps: Iterable[torch.optim.Optimizer]
) -> Callable[[], None]:
    """Forward and backward of the mean loss, and the optimizers where there are any."""
    hidden, targets = data
    amount, kind = SMOOTHINGS[smoothing]
    parameters, optimizers = list(head.parameters()), list(steps)

    def step() -> None:
        hidden.grad = None
        for parameter in parameters:
            parameter.grad = None
        head.loss(hidden, targets, amount, kind).mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def applies(side: str, smoothing: str) -> bool:
    """Leaf smoothing reaches every unit, so there is nothing sparse; the original knows leaf
    smoothing only.
    """
    return not (
        (smoothing == "leaf" and "sparse" in side) or (smoothing == "node" and side == "original")
    )


def measure(num_units: int, args: argparse.Namespace) -> list[Facts]:
    """One record for each smoothing: milliseconds and ratios to softmax of each side, with and
    without optimizer.
    """
    data = batch(num_units, args.device)
    heads = {
        side: make_head(side, num_units).to(args.device)
        for side in args.sides
        if fits(side, num_units)
    }
    records = []
    for smoothing in args.smoothing or (["none"] if args.quick else SMOOTHINGS):
        record: Facts = {"units": num_units, "tokens": len(data[1]), "smoothing": smoothing}
        for what in ("step", "with optimizer"):
            sides = {
                side: make_step(
                    head, data, smoothing, steps=optimizers(head) if what != "step" else ()
                )
                for side, head in heads.items()
                if applies(side, smoothing)
            }
            times = alternate(sides, args.rounds, device=args.device)
            record[what] = {"ms": medians_ms(times), "ratio": ratios(times, BASELINE)}
            record[what]["quartiles"] = quartiles(times, BASELINE)
        measured = {} if args.quick else heads
        record["peak_extra_mb"] = {
            side: memory(side, head, num_units, smoothing, args.device)
            for side, head in measured.items()
            if applies(side, smoothing)
        }
        records.append(record)
        print(record, flush=True)
    return records


def memory(side: str, head: nn.Module, num_units: int, smoothing: str, device: str) -> float:
    """Megabytes. On a CPU in a process of its own; a GPU counts the memory of tensors exactly."""
    if device != "cpu":
        step = partial(make_step, head, smoothing=smoothing, steps=())
        return extra_megabytes(head, step, batch(num_units, device), device)
    arguments = [
        "--memory",
        side,
        "--units",
        str(num_units),
        "--smoothing",
        smoothing,
        "--device",
        device,
    ]
    arguments += ["--threads", str(torch.get_num_threads())]
    return float(in_a_process_of_its_own(Path(__file__), *arguments))


def extra_megabytes(
    head: nn.Module, step_of: Callable[[Data], Side], data: Data, device: str
) -> float:
    """The most that forward and backward of `data` hold above the parameters."""
    few = data[0].detach()[:8].clone().requires_grad_(), data[1][:8]
    step_of(few)()  # libraries, kernels and tables of the tree load
    for parameter in head.parameters():
        parameter.grad = None
    return peak_extra_bytes(step_of(data), device) / 1e6


def table(records: list[Facts], what: str, sides: Sequence[str] = SIDES[1:]) -> str:
    """Ratios to softmax, softmax in milliseconds."""
    rows = []
    for record in records:
        cells = record[what]
        row = [
            f"{record['units']:,}",
            f"{record['tokens']:,}",
            str(record["smoothing"]),
            number(cells["ms"][BASELINE]),
        ]
        rows.append(row + [cell(cells, side, spread=len(sides) == 1) for side in sides])
    return markdown_table(["V", "N", "smoothing", "softmax, ms", *sides], rows)


def cell(cells: Facts, side: str, *, spread: bool) -> str:
    """The ratio of a side, with its quartiles over the rounds where there is one side only."""
    if side not in cells["ratio"]:
        return "–"
    between = " to ".join(map(number, cells["quartiles"][side]))
    return f"{number(cells['ratio'][side])}×" + (f" ({between})" if spread else "")


def memory_table(records: list[Facts], sides: Sequence[str]) -> str:
    """Megabytes above the parameters."""
    rows = []
    for record in records:
        cells = record["peak_extra_mb"]
        row = [f"{record['units']:,}", f"{record['tokens']:,}", str(record["smoothing"])]
        rows.append(row + [number(cells[s]) if s in cells else "–" for s in sides])
    return markdown_table(["V", "N", "smoothing", *sides], rows)


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument(
        "--units", type=int, nargs="+", default=SIZES, help="sizes of the vocabulary"
    )
    parser.add_argument(
        "--quick", action="store_true", help="without memory, and without smoothing"
    )
    parser.add_argument(
        "--sides",
        choices=SIDES,
        nargs="+",
        help=f"with softmax (default: all, on a CPU without '{FUSED}')",
    )
    parser.add_argument("--memory", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--smoothing", choices=SMOOTHINGS, nargs="+", help="only these")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        head = make_head(args.memory, args.units[0]).to(args.device)
        step = partial(make_step, head, smoothing=args.smoothing[0], steps=())
        print(extra_megabytes(head, step, batch(args.units[0], args.device), args.device))
        return
    possible = sides_of(args.device)
    lacking = [side for side in args.sides or () if side not in possible]
    if lacking:
        parser.error(
            f"--sides '{lacking[0]}': needs a GPU with Triton; leave it out, or give --device cuda"
        )
    args.sides = [BASELINE, *(side for side in args.sides or possible if side != BASELINE)]
    records = [record for num_units in args.units for record in measure(num_units, args)]
    between = ", in brackets the quartiles of the rounds" if len(args.sides) == 2 else ""
    but = f" but for `{FUSED}`" if FUSED in args.sides else ""
    parts = [
        f"Width {DIM}, Zipf targets, float32{but}. × is how many times faster than the flat softmax in the same rounds "
        f"(median of {args.rounds}{between}); below 1 is slower. `original`: the V × depth algorithm, – where it would "
        f"need more than {MEMORY_OF_ORIGINAL / 2**30:.0f} GiB.",
        "## Forward and backward",
        table(records, "step", args.sides[1:]),
        "## Forward, backward and optimizer (Adam; SparseAdam on sparse gradients)",
        table(records, "with optimizer", args.sides[1:]),
    ]
    if not args.quick:
        title = "## Most memory held by forward and backward above the parameters, MB (gradients included)"
        parts += [title, memory_table(records, args.sides)]
    text = "\n\n".join(parts)
    publish(
        "Training step of the heads", text, {"records": records}, device=args.device, out=args.out
    )


if __name__ == "__main__":
    main()
