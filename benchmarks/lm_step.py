# SPDX-License-Identifier: Apache-2.0
"""Figure 4 of the p-tHSM paper (Jiang et al.

2017): time of a language model's training step against the vocabulary.

A step is that of `wenet-hs lm train`: input vectors, one GRU layer of width 256, the output layer,
gradients, their norm and the optimizer, for 20 × 50 units. Rows: softmax, NCE and BlackOut with
V/20 noise units, adaptive softmax, cHSM (class head), tHSM (the tree level by level), p-tHSM (all
decisions of a path at once, plain PyTorch), and our tree (`hsoftmax`) with dense and with sparse
gradients. The input vectors of all but "tree, dense" have sparse gradients. Frequencies and targets
follow Zipf's law.

Example: python benchmarks/lm_step.py --out benchmarks/notes/lm_step_cpu
"""

from collections.abc import Callable
from pathlib import Path

import torch
from head_training import frequencies
from p_thsm_table2 import LevelByLevel, make_head
from paired import alternate, make_parser, medians_ms, number, publish, ratios
from torch import Tensor, nn

from wenet_hs.config.lm import LmConfig
from wenet_hs.lm.recurrent import RnnLm
from wenet_hs.lm.sampled import SampledLoss
from wenet_hs.score.tables import markdown_table
from wenet_hs.train.optim import build_optimizer, clip_gradient

SIZES = (1_000, 3_333, 10_000, 33_278, 100_000, 267_735)
"""Vocabularies: 33,278 is that of WikiText-2, 267,735 that of WikiText-103."""
DIM, BATCH, STEPS = 256, 20, 50
BASELINE = "softmax"
ROWS = (BASELINE, "nce", "blackout", "adaptive", "cHSM", "tHSM", "p-tHSM", "tree, dense", "tree")
SIDES = {
    "cHSM": "class, sparse",
    "p-tHSM": "p-tHSM, sparse",
    "tree, dense": "tree",
    "tree": "tree, sparse",
}
"""Rows under their names in p_thsm_table2.py."""


def make_loss(
    row: str, num_units: int, device: str
) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """The output layer of a row, and its loss per target. `device`: of the noise."""
    if row in ("nce", "blackout"):
        head = make_head("softmax", num_units)
        sampled = SampledLoss(
            row, torch.as_tensor(frequencies(num_units)), num_units // 20, 0.4
        ).to(device)
        return head, lambda hidden, targets: sampled(head, hidden, targets)
    found = make_head(SIDES.get(row, row), num_units)
    return found, found.nll


class LevelHead(nn.Module):
    """A `LevelByLevel` in the place of an output head."""

    def __init__(self, inner: LevelByLevel, num_units: int) -> None:
        super().__init__()
        self.inner, self.dim, self.num_units = inner, DIM, num_units


def training_step(row: str, num_units: int, device: str) -> Callable[[], None]:
    """One optimizer step on the same batch, with the state carried."""
    torch.manual_seed(0)
    head, loss = make_loss(row, num_units, device)
    of_model = LevelHead(head, num_units) if isinstance(head, LevelByLevel) else head
    options = {"kind": "gru", "embedding_size": DIM, "num_layers": 1, "dropout_rate": 0.5}
    model = RnnLm(of_model, **options, sparse_grad=row != "tree, dense").train().to(device)
    optimizer = build_optimizer(model, LmConfig())
    weights = torch.as_tensor(frequencies(num_units)).double()
    units = (
        torch.multinomial(weights / weights.sum(), BATCH * (STEPS + 1), replacement=True)
        .view(BATCH, STEPS + 1)
        .to(device)
    )
    carried = {"state": model.start(BATCH)}

    def step() -> None:
        hidden_BTD, state = model(units[:, :-1], carried["state"])
        loss(hidden_BTD.flatten(0, 1), units[:, 1:].flatten()).mean().backward()
        clip_gradient(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        carried["state"] = state.detach()

    return step


def plot(ms: dict[str, dict[int, float]], path: Path) -> None:
    """Milliseconds per 1,000 units against the vocabulary, both on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, by_size in ms.items():
        axes.plot(
            list(by_size),
            list(by_size.values()),
            marker="o",
            label=row,
            linewidth=2.5 if row == "tree" else 1.2,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="units in the vocabulary, V",
        ylabel="ms per 1,000 units of text",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(ncols=2, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="vocabularies (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ms: dict[str, dict[int, float]] = {row: {} for row in ROWS}
    gains: dict[str, dict[int, float]] = {row: {} for row in ROWS}
    for size in args.sizes:
        times = alternate(
            {row: training_step(row, size, args.device) for row in ROWS},
            args.rounds,
            device=args.device,
        )
        for row, value in medians_ms(times).items():
            ms[row][size] = value * 1000 / (BATCH * STEPS)
        for row, value in ratios(times, BASELINE).items():
            gains[row][size] = value
    header = ["", *(f"V = {size:,}" for size in args.sizes)]
    cells = [
        [row, *(f"{number(ms[row][size])} ({number(gains[row][size])}×)" for size in args.sizes)]
        for row in ROWS
    ]
    text = (
        f"Whole training step of a GRU language model, batch {BATCH} × {STEPS}, width {DIM}: milliseconds per "
        f"1,000 units of text; in brackets how many times faster than softmax in the same rounds (median of "
        f"{args.rounds}).\n\n"
        f"{markdown_table(header, cells)}"
    )
    if args.out is not None:
        image = args.out.with_suffix(".svg")
        image.parent.mkdir(parents=True, exist_ok=True)
        plot(ms, image)
        text += f"\n\n![Milliseconds per 1,000 units against the vocabulary]({image.name})"
    publish(
        "Figure 4 of the p-tHSM paper",
        text,
        {"ms_per_1000": ms, "ratio": gains},
        device=args.device,
        out=args.out,
    )


if __name__ == "__main__":
    main()
