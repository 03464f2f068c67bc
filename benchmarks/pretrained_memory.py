# SPDX-License-Identifier: Apache-2.0
"""How much time and memory does a step need that fine-tunes a pretrained encoder, by what is
frozen?

The encoder has the size of XLS-R-300M (24 layers × 1024) and random weights; the model has CTC and
no decoder. Each row is a process of its own. The peak is the resident memory of that process. What
the backward pass needs of a forward pass is measured after the optimizer has its state.

Example: python benchmarks/pretrained_memory.py --threads 2 --out benchmarks/notes/pretrained_memory
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from paired import _status, in_a_process_of_its_own, make_parser, number, peak_extra_bytes, publish
from training_sides import LABELS_A_SECOND, NUM_UNITS, RATE, SPECIAL

from wenet_hs.compute.devices import has_native_bf16
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.dataset import Example, collate
from wenet_hs.model.build import build_model
from wenet_hs.model.encoders.description import EncoderDescription
from wenet_hs.score.tables import markdown_table
from wenet_hs.train.optim import Precision, build_optimizer, freeze
from wenet_hs.train.speech_steps import run_epoch
from wenet_hs.train.state import TrainState

SIZES = {
    "300M": {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
    "1B": {"hidden_size": 1280, "num_hidden_layers": 48, "intermediate_size": 5120},
    "small": {"hidden_size": 64, "num_hidden_layers": 24, "intermediate_size": 128},
}
"""The sizes of XLS-R, and a small one to try the script."""
XLS_R: dict[str, Any] = {
    **{"model_type": "wav2vec2", "num_attention_heads": 16, "conv_bias": True},
    **{"feat_extract_norm": "layer", "do_stable_layer_norm": True},
}
PARAMETERS_1B = 962_497_408
SIDES: dict[str, dict[str, Any]] = {
    "freeze: all": {"freeze": "all"},
    "freeze: 20": {"freeze": 20},
    "freeze: feature_encoder": {},
    "freeze: feature_encoder, gradient_checkpointing": {"gradient_checkpointing": True},
    "freeze: feature_encoder, bf16": {},
}


def make_state(side: str, size: str, device: torch.device) -> tuple[TrainState, ExperimentConfig]:
    """The model with what the side freezes, ready to train."""
    config = ExperimentConfig(
        **{
            "encoder": "pretrained",
            "encoder_conf": {"path": "x", **SIDES[side]},
            "decoder": "none",
        },
        **{
            "dataset_conf": {"spec_aug": False},
            "dtype": "bf16" if side.endswith("bf16") else "fp32",
        },
    )
    torch.manual_seed(0)
    model = build_model(
        config, NUM_UNITS, SPECIAL, pretrained=EncoderDescription({**XLS_R, **SIZES[size]})
    )
    freeze(model, model.encoder.frozen_parts(), where=side)
    model.to(device)
    return TrainState(
        model, build_optimizer(model, config), device, precision=Precision(config.dtype, device)
    ), config


def measure(args: argparse.Namespace) -> None:
    """The child process: prints the facts of one side. The batch has noise and random labels."""
    device, times, kept = torch.device(args.device), list[float](), list[torch.Tensor]()
    state, config = make_state(args.side, args.size, device)
    targets = torch.randint(3, NUM_UNITS, (args.clips, round(LABELS_A_SECOND * args.seconds)))
    clips = zip(0.1 * torch.randn(args.clips, round(RATE * args.seconds)), targets, strict=True)
    batch = collate(
        [
            Example(key="x", features=wave, target=row, audio_seconds=args.seconds)
            for wave, row in clips
        ]
    )
    for _ in range(args.rounds + 1):
        start = time.perf_counter()
        list(run_epoch(state, [batch], config))
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else _status("VmHWM")

    def forward() -> None:
        with state.precision.autocast():
            kept.append(state.model(batch.to(device)).total)

    values = [*state.model.parameters()]
    facts = {
        "parameters": sum(v.numel() for v in values),
        "trained": sum(v.numel() for v in values if v.requires_grad),
    }
    facts |= {"peak_bytes": peak, "forward_bytes": peak_extra_bytes(forward, args.device)}
    print(json.dumps({**facts, "seconds_per_step": statistics.median(times[1:])}))


def describe(found: dict[str, Any], args: argparse.Namespace) -> str:
    """The text of the note, with what XLS-R-1B needs by arithmetic."""
    rows, audio_s = [], args.clips * args.seconds
    for side, facts in found.items():
        weights = 4e-9 * facts["parameters"] + 12e-9 * facts["trained"]
        cells = (
            1e-6 * facts["trained"],
            weights,
            1e-6 * facts["forward_bytes"] / audio_s,
            1e-9 * facts["peak_bytes"],
        )
        rows.append([side, *map(number, (*cells, facts["seconds_per_step"]))])
    header = [
        "",
        "trained, M",
        "weights, gradients, Adam, GB",
        "forward pass, MB per second of audio",
        "peak, GB",
    ]
    text = (
        f"XLS-R-{args.size}, {args.clips} clips of {args.seconds:g} s, median of {args.rounds} steps. Third column: 4 "
        "bytes per parameter, and 12 per trained one. Fourth column: what a forward pass holds above what was there "
        "before it. Peak: of the process, with its libraries.\n\n"
        + markdown_table([*header, "s per step"], rows)
    )
    if args.size != "300M":
        return text
    layers = SIZES["1B"]["num_hidden_layers"] * SIZES["1B"]["hidden_size"]
    factor, all_bytes = layers / (24 * 1024), 16 * PARAMETERS_1B
    per_s = factor * found["freeze: feature_encoder"]["forward_bytes"] / audio_s
    return (
        f"{text}\n\nXLS-R-1B by arithmetic, not measured: 16 bytes × {PARAMETERS_1B / 1e6:.0f} M parameters = "
        f"{1e-9 * all_bytes:.1f} GB in fp32 where all is trained. Its activations are {factor:.1f} times those of "
        f"XLS-R-300M (layers × width): {1e-6 * per_s:.0f} MB per second of audio. For {audio_s:g} s of audio that is "
        f"{1e-9 * (all_bytes + per_s * audio_s):.1f} GB together."
    )


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument(
        "--size", choices=SIZES, default="300M", help="size of the encoder (default: %(default)s)"
    )
    parser.add_argument(
        "--clips", type=int, default=4, help="clips of the batch (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="seconds of each clip (default: %(default)s)"
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.side is not None:
        measure(args)
        return
    names, found = ("size", "clips", "seconds", "threads", "rounds", "device"), {}
    flags = [text for name in names for text in (f"--{name}", str(getattr(args, name)))]
    for side in SIDES:
        if not side.endswith("bf16") or has_native_bf16(torch.device(args.device)):
            found[side] = json.loads(
                in_a_process_of_its_own(Path(__file__), "--side", side, *flags)
            )
            print(side, found[side], flush=True)
    title, text = "Memory of fine-tuning a pretrained encoder", describe(found, args)
    publish(title, text, {"sides": found}, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
