# SPDX-License-Identifier: Apache-2.0
"""How much faster does each head find the k best units than a flat softmax layer?

The flat side is `linear`, `log_softmax`, `topk` alone; the others are `head.topk`: exact, sorted,
ties by id, float32 inside. `softmax` is the flat layer under that contract. Each call searches
other states, as decoding does: one and the same would find its nodes in the cache. Weights as
initialised (hard for the search: nothing is likely) and ten times larger (as of a trained model).

Example: python benchmarks/head_search.py --out benchmarks/notes/head_search_cpu
"""

import argparse
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from head_training import DIM, make_head
from paired import Facts, alternate, make_parser, medians_ms, number, publish, ratios
from torch import Tensor, nn

from wenet_hs.heads import SoftmaxHead
from wenet_hs.score.tables import markdown_table

SIZES = (150, 300, 1_000, 5_000, 10_000, 50_000, 267_735)
ROWS = (1, 10, 80, 160)
BASELINE = "flat"
SIDES = ("flat", "softmax", "tree", "class", "adaptive")
STATES = 4096  # that the calls of a side go through, at least
SCALES = {"as initialised": 1.0, "peaked": 10.0}


def flat_topk(head: SoftmaxHead) -> Callable[[Tensor, int], object]:
    """The least that a flat layer needs."""
    weight_VD, bias_V = head.output.weight, head.output.bias
    return lambda hidden, k: F.log_softmax(F.linear(hidden, weight_VD, bias_V), dim=-1).topk(k)


def in_turn(
    find: Callable[[Tensor, int], object], batches: Sequence[Tensor], k: int
) -> Callable[[], object]:
    """A search of the next batch at each call, round and round."""
    turns = itertools.cycle(batches)
    return lambda: find(next(turns), k)


def make_heads(num_units: int, scale: float, device: str) -> dict[str, nn.Module]:
    """A head for each side over Zipf's frequencies."""
    heads = {side: make_head(side, num_units) for side in SIDES[1:]}
    for head in heads.values():
        for parameter in head.parameters():
            parameter.data.mul_(scale)
    return {side: head.to(device).eval() for side, head in heads.items()}


@torch.no_grad()
def measure(num_units: int, args: argparse.Namespace) -> list[Facts]:
    """One record for each number of rows and scale of the weights."""
    records = []
    for label, scale in SCALES.items():
        heads = make_heads(num_units, scale, args.device)
        searches = {"flat": flat_topk(heads["softmax"])} | {
            side: head.topk for side, head in heads.items()
        }
        for num_rows in args.rows:
            shape = max(8, STATES // num_rows), num_rows, DIM
            batches = (
                torch.randn(shape, generator=torch.Generator().manual_seed(2))
                .to(args.device)
                .unbind()
            )
            sides = {side: in_turn(find, batches, args.k) for side, find in searches.items()}
            times = alternate(sides, args.rounds, device=args.device)
            record = {"units": num_units, "rows": num_rows, "weights": label}
            records.append(record | {"ms": medians_ms(times), "ratio": ratios(times, BASELINE)})
            print(records[-1], flush=True)
    return records


def table(records: list[Facts]) -> str:
    """Ratios to the flat layer, which is in microseconds."""
    rows = []
    for record in records:
        ms, ratio = record["ms"], record["ratio"]
        row = [
            f"{record['units']:,}",
            str(record["rows"]),
            str(record["weights"]),
            number(1e3 * ms[BASELINE]),
        ]
        row.append(number(1e3 * ms["tree"]))
        rows.append(row + [f"{number(ratio[side])}×" for side in SIDES[1:]])
    names = ["softmax head", *SIDES[2:]]
    return markdown_table(["V", "rows", "weights", "flat, µs", "tree, µs", *names], rows)


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument(
        "--units", type=int, nargs="+", default=SIZES, help="sizes of the vocabulary"
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=ROWS, help="hidden states searched at once"
    )
    parser.add_argument(
        "--k", type=int, default=10, help="best units of each (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    records = [record for num_units in args.units for record in measure(num_units, args)]
    text = (
        f"The {args.k} best of V units, width {DIM}, float32; × is how many times faster than the flat layer in the "
        f"same rounds (median of {args.rounds}); below 1 is slower.\n\n{table(records)}"
    )
    publish(
        "Search for the best units",
        text,
        {"records": records, "k": args.k},
        device=args.device,
        out=args.out,
    )


if __name__ == "__main__":
    main()
