# SPDX-License-Identifier: Apache-2.0
"""How many encoder frames a millisecond does the CTC prefix beam search take, against the same search in plain Python?

The search part alone: the k best units of each frame are found beforehand. Log-probabilities as of a model at the
start of its training (flat: every beam is a close race) and of a trained one (peaked: most frames are blank).

Example: python benchmarks/prefix_search.py --out benchmarks/notes/prefix_search_cpu
"""

import argparse

import torch
from paired import alternate, common_arguments, markdown_table, medians_ms, number, publish, ratios
from torch import Tensor

from wenet_hs.decode import DecodeOptions, ctc
from wenet_hs.heads.kernels.search import topk_lowest_id_first

BASELINE = "python"
BLANK_SHARE = 0.6
WEIGHTS = {"flat": 1.0, "peaked": 10.0}


def frames_of(args: argparse.Namespace, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Values, ids and lengths of a batch: units that last for two frames and blanks between them, more or less sure."""
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, args.frames, args.units)
    spoken_BT = torch.randint(1, args.units, shape[:2], generator=generator)
    spoken_BT = spoken_BT.repeat_interleave(2, dim=1)[:, : args.frames]
    spoken_BT = spoken_BT.masked_fill(torch.rand(shape[:2], generator=generator) < BLANK_SHARE, 0)
    scores_BTV = torch.randn(shape, generator=generator)
    scores_BTV.scatter_add_(2, spoken_BT[..., None], torch.full((*shape[:2], 1), scale))
    values, ids = topk_lowest_id_first(scores_BTV.log_softmax(-1), min(args.beam, args.units))
    return values, ids, torch.full((args.batch,), args.frames)


def measure(weights: str, args: argparse.Namespace) -> dict[str, object]:
    """Times of both sides, and whether they find the same."""
    case, options = frames_of(args, WEIGHTS[weights]), DecodeOptions(beam_size=args.beam)
    sides = {
        "python": lambda: ctc.prefix_beam_search_with_lm(*case, blank=0, eos=-1, options=options, lm=None)[0],
        "kernel": lambda: ctc.prefix_beam_search(*case, blank=0, beam_size=args.beam),
    }
    found, expected = ([[h.ids for h in nbest] for nbest in sides[side]()] for side in ("kernel", "python"))
    times = alternate(sides, args.rounds)
    per_ms = {side: args.batch * args.frames / ms for side, ms in medians_ms(times).items()}
    record = {"weights": weights, "frames_per_ms": per_ms, "ratio": ratios(times, BASELINE)["kernel"]}
    print(record, flush=True)
    return record | {"same_hypotheses": found == expected}


def table(records: list[dict[str, object]]) -> str:
    """Frames a millisecond of both sides."""
    rows = []
    for record in records:
        per_ms, ratio = record["frames_per_ms"], record["ratio"]
        assert isinstance(per_ms, dict) and isinstance(ratio, float)
        same = "yes" if record["same_hypotheses"] else "NO"
        rows.append(
            [str(record["weights"]), number(per_ms["python"]), number(per_ms["kernel"]), f"{number(ratio)}×", same]
        )
    return markdown_table(["weights", "Python, frames/ms", "kernel, frames/ms", "ratio", "same n-best"], rows)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_arguments(parser, rounds=15)
    parser.add_argument("--units", type=int, default=300, help="size of the vocabulary (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=10, help="prefixes kept (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="utterances (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=125, help="encoder frames of each (default: %(default)s)")
    parser.add_argument("--remark", help="a sentence for the note, such as what else ran on the machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    records = [measure(weights, args) for weights in WEIGHTS]
    text = (
        f"Prefix beam search alone, {args.batch} utterances of {args.frames} encoder frames, V = {args.units}, beam "
        f"{args.beam}, the {args.beam} best units of a frame; both sides in the same rounds (medians of {args.rounds})."
        f"{' ' + args.remark if args.remark else ''}\n\n{table(records)}"
    )
    publish("Prefix beam search", text, {"records": records, "remark": args.remark}, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
