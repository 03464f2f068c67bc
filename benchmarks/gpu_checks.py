# SPDX-License-Identifier: Apache-2.0
"""The checks of gpu.sh: heads, search, training steps, one rank, recognition and commands on a GPU against a CPU.

Each part appends a line to ROWS: its name, `ok` or `failed`, seconds, and what was found. A part that fails does not
end the others; the exit code is then 1. `--device cpu --small` shows whether the parts run.

Example: python benchmarks/gpu_checks.py heads search --device cuda --rows rows.tsv
"""

import argparse
import copy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from paired import alternate, number, ratios
from recognize import ENDS, UNITS_A_SECOND, options_of
from recognize_sides import make_model, ours, set_end, speech, spread_ctc
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from training_sides import MINI, Size, batch_of, make_batch, make_state, sizes, speech_lengths, write_corpus

from wenet_hs.bin import average, cmvn, recognize, train, tree, units
from wenet_hs.bin.main import run_command
from wenet_hs.decode.modes import MODES
from wenet_hs.devices import has_native_bf16
from wenet_hs.heads import AdaptiveHead, ClassHead, HSoftmaxHead, SoftmaxHead
from wenet_hs.heads.base import OutputHead, SmoothingKind
from wenet_hs.manifest import write_data_list
from wenet_hs.train.speech_steps import run_epoch
from wenet_hs.tree import NaryTree, Tree

DIM = 256
SMOOTHINGS: tuple[tuple[float, SmoothingKind], ...] = ((0.0, "leaf"), (0.1, "leaf"), (0.1, "node"))
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2}
"""The accepted relative difference of the loss of a training step from that of the CPU in fp32."""


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference. Raises AssertionError if it is not that of float32 arithmetic in another order."""
    found, expected = found.detach().cpu(), expected.detach().cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    return float((found - expected).abs().max())


# ---- heads


def make_pairs(num_units: int, device: str) -> Iterator[tuple[OutputHead, OutputHead]]:
    """Each head on the device, and the same on the CPU; the tree head there with all nodes."""
    torch.manual_seed(0)
    counts = 1.0 / np.arange(1, num_units + 1)  # Zipf's law
    plain = HSoftmaxHead(DIM, Tree.huffman(counts), route="all", search="all")
    measured = HSoftmaxHead(DIM, Tree.huffman(counts))
    measured.load_state_dict(plain.state_dict())
    yield measured.to(device), plain
    classes = NaryTree.frequency_bins(counts)
    for head in (SoftmaxHead(DIM, num_units), ClassHead(DIM, classes), AdaptiveHead(DIM, counts)):
        yield copy.deepcopy(head).to(device), head


def costs_and_gradients(
    head: OutputHead, hidden: Tensor, targets: Tensor, smoothing: float, kind: SmoothingKind
) -> list[Tensor]:
    """The cost of each target, and the gradients of the mean cost: of the states and of all parameters."""
    hidden = hidden.detach().clone().requires_grad_()
    head.zero_grad()
    costs = head.loss(hidden, targets, smoothing, kind)
    costs.mean().backward()
    return [costs, *(tensor.grad for tensor in (hidden, *head.parameters()) if tensor.grad is not None)]


def check_heads(args: argparse.Namespace) -> str:
    """Costs, gradients, log-probabilities and best units of every head."""
    found = []
    for num_units in (150,) if args.small else (300, 10_000):
        generator = torch.Generator().manual_seed(1)
        hidden = torch.randn(64, DIM, generator=generator)
        targets = torch.randint(num_units, (64,), generator=generator)
        there = hidden.to(args.device), targets.to(args.device)
        for measured, plain in make_pairs(num_units, args.device):
            for smoothing in SMOOTHINGS:
                sides = (
                    costs_and_gradients(head, *data, *smoothing)
                    for head, data in ((measured, there), (plain, (hidden, targets)))
                )
                found += [difference(*pair) for pair in zip(*sides, strict=True)]
            with torch.no_grad():
                log_probs, (values, ids) = plain.log_probs(hidden), measured.topk(there[0], 10)
                found.append(difference(measured.log_probs(there[0]), log_probs))
                found.append(difference(values, plain.topk(hidden, 10)[0]))
                found.append(difference(values, log_probs.gather(-1, ids.cpu())))
    return f"{len(found)} tensors of 4 heads, largest difference {max(found):.1e}"


@torch.no_grad()
def check_search(args: argparse.Namespace) -> str:
    """The best-first search (Triton on a GPU) against the plain search, and from how many units it is faster."""
    num_equal = num_ids = 0
    speeds = {}
    for num_units, scale in product((300,) if args.small else (300, 5_000, 50_000, 267_735), (1.0, 10.0)):
        torch.manual_seed(0)
        plain = HSoftmaxHead(DIM, Tree.huffman(1.0 / np.arange(1, num_units + 1)), search="all")
        plain.inner_vector.weight.mul_(scale)
        heads = {name: HSoftmaxHead(DIM, plain.tree, search=name).to(args.device) for name in ("all", "best_first")}
        for head in heads.values():
            head.load_state_dict(plain.state_dict())
        for num_rows, k in product((1, 10, 160), (1, 10, 32)):
            hidden = torch.randn(num_rows, DIM)
            values, ids = plain.topk(hidden, k)
            found_values, found_ids = heads["best_first"].topk(hidden.to(args.device), k)
            difference(found_values, values)
            num_equal, num_ids = num_equal + int((found_ids.cpu() == ids).sum()), num_ids + ids.numel()
        ten = torch.randn(10, DIM, device=args.device)
        sides = {name: partial(head.topk, ten, 10) for name, head in heads.items()}
        speeds[num_units, scale] = ratios(alternate(sides, 5, device=args.device), "all")["best_first"]
    if num_equal < 0.99 * num_ids:
        raise AssertionError(f"{num_equal} of {num_ids} units are equal")
    shown = ", ".join(f"{number(speed)}× at V = {size:,}" for (size, scale), speed in speeds.items() if scale > 1)
    return f"{num_equal:,} of {num_ids:,} units equal; best_first against all, 10 rows, peaked: {shown}"


# ---- training


def losses_of(size: Size, head: str, side: str, device: str, num_steps: int) -> np.ndarray:
    """The loss of each training step, without dropout."""
    state, config = make_state(size, head, side, torch.device(device))
    batches = [make_batch([150 + 10 * number, 210, 240]) for number in range(5)]
    steps = run_epoch(state, (batches * num_steps)[:num_steps], config)
    return np.array([stats.loss for stats in steps])


def check_steps(args: argparse.Namespace, dtype: str) -> str:
    """Training steps of both heads on the device against the CPU in fp32."""
    if not (dtype == "fp32" or has_native_bf16(torch.device(args.device))):
        return "this processor has no bf16"
    (mini,) = (size for size in sizes(quick=args.small) if size.name == "mini")
    shown = []
    for head in ("softmax", "hsoftmax"):
        start = time.perf_counter()
        found = losses_of(mini, head, dtype, args.device, args.steps)
        seconds = time.perf_counter() - start
        expected = losses_of(mini, head, "fp32", "cpu", args.steps)
        largest = float(np.abs(found / expected - 1).max())
        is_learning = args.small or found[-5:].mean() < found[:5].mean()  # the same five batches
        if not (largest <= TOLERANCE[dtype] and is_learning):
            raise AssertionError(
                f"{head}: losses {found[0]:.3f} … {found[-1]:.3f}, CPU {expected[-1]:.3f}, {largest:.1e}"
            )
        shown.append(f"{head} differs by at most {largest:.1e} ({1000 * seconds / args.steps:.0f} ms per step)")
    return f"{args.steps} steps: {', '.join(shown)}"


def check_one_rank(args: argparse.Namespace) -> str:
    """DistributedDataParallel and collectives with the backends of training, in a group of one rank."""
    (mini,) = (size for size in sizes(quick=args.small) if size.name == "mini")
    model = make_state(mini, "hsoftmax", "fp32", torch.device(args.device))[0].model
    batch = batch_of(mini).to(args.device)
    model(batch).total.backward()
    expected = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    backend = "gloo" if args.device == "cpu" else "cpu:gloo,cuda:nccl"
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        counts, values = torch.tensor([3.0], dtype=torch.float64), torch.ones(4, device=args.device)
        distributed.all_reduce(counts)
        distributed.all_reduce(values)
        parallel = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=True)
        parallel(batch).total.backward()
        del parallel
        distributed.destroy_process_group()
    if (counts.item(), values.sum().item()) != (3.0, 4.0):
        raise AssertionError(f"sums over one rank: {counts}, {values}")
    gradients = dict(model.named_parameters())
    largest = max(difference(gradients[name].grad, value) for name, value in expected.items())
    return f"{backend}: {len(expected)} gradients, largest difference {largest:.1e}"


# ---- recognition


def check_recognition(args: argparse.Namespace) -> str:
    """The hypotheses of every mode on the device and on the CPU, and the real-time factor."""
    seconds = [5.0] * (2 if args.small else 8)
    here, there = speech(seconds, "cpu"), speech(seconds, args.device)
    num_equal = num_all = 0
    shown = []
    for head in ("softmax", "hsoftmax"):
        model = spread_ctc(make_model(300, head=head, device="cpu", quick=args.small), here)
        if head == "softmax":
            set_end(model, here, ENDS[: len(seconds)])
        options = options_of(UNITS_A_SECOND if head == "hsoftmax" else None)
        measured = copy.deepcopy(model).to(args.device)
        for mode in MODES:
            expected, search = ours(model, here, mode, options)(), ours(measured, there, mode, options)
            search()
            start = time.perf_counter()
            found = search()
            rtf = (time.perf_counter() - start) / here.seconds
            num_equal += sum(a[0].ids == b[0].ids for a, b in zip(found, expected, strict=True))
            num_all += len(found)
            shown.append(f"{head} {mode} {rtf:.4f}")
    if num_equal < 0.9 * num_all:
        raise AssertionError(f"{num_equal} of {num_all} best hypotheses are equal")
    return f"{num_equal} of {num_all} best hypotheses equal; RTF: {', '.join(shown)}"


def check_commands(args: argparse.Namespace) -> str:
    """`train` with features on the device, `average` and `recognize`, on clips of noise."""
    dtype = "bf16" if has_native_bf16(torch.device(args.device)) else "fp32"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clips = write_corpus(folder, speech_lengths(6 if args.small else 60).tolist())
        write_data_list(folder / "data.list", clips)
        data, table, exp = f"--data_list {name}/data.list", f"{name}/units.txt", f"{name}/exp"
        override = (
            f"head=hsoftmax head_conf.tree={name}/tree.json dtype={dtype} max_epoch=2 model_conf.ctc_only_steps=0 "
            f"tokenizer_conf.symbol_table_path={table} cmvn_conf.cmvn_file={name}/cmvn encoder_conf.num_blocks=2 "
            "dataset_conf.cache_features=false dataset_conf.fbank_conf.dither=0 dataset_conf.features_on=device"
        )
        lists = f"--train_data {name}/data.list --cv_data {name}/data.list"
        lines = (
            (units, f"{data} --kind char --out {table}"),
            (tree, f"build --kind huffman {data} --units {table} --out {name}/tree.json"),
            (cmvn, f"{data} --config {MINI} --out {name}/cmvn"),
            (train, f"--config {MINI} {lists} --model_dir {exp} --device {args.device} --override_config {override}"),
            (average, f"--model_dir {exp} --num 1"),
            (
                recognize,
                f"--model_dir {exp} --test_data {name}/data.list --result_dir {exp}/test --device {args.device}",
            ),
        )
        for command, line in lines:
            if run_command(command, line.split()):
                raise AssertionError(f"{command.__name__} {line}")
        texts = (folder / "exp/test/attention_rescoring/text").read_text("utf-8").splitlines()
    return f"{dtype}, {len(clips)} clips trained on for 2 epochs, {len(texts)} decoded"


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "heads": check_heads,
    "search": check_search,
    "steps-fp32": lambda args: check_steps(args, "fp32"),
    "steps-bf16": lambda args: check_steps(args, "bf16"),
    "one-rank": check_one_rank,
    "recognition": check_recognition,
    "commands": check_commands,
}


def main() -> None:
    """Run the parts and append their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="cuda", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small models, 5 steps")
    parser.add_argument("--rows", type=Path, required=True, help="file to which the rows are appended")
    args = parser.parse_args()
    args.steps = 5 if args.small else 50
    torch.backends.cudnn.allow_tf32 = False  # the default for convolutions; it keeps 10 bits of float32's 23
    codes = []
    for name in args.parts:
        start = time.perf_counter()
        try:
            result, found = "ok", PARTS[name](args)
        except Exception as error:
            traceback.print_exc()
            result, found = "failed", f"{type(error).__name__}: {error}"
        row = (name, result, f"{time.perf_counter() - start:.0f}", " ".join(found.split()))
        print(*row, sep=" | ", flush=True)
        with args.rows.open("a", encoding="utf-8") as file:
            file.write("\t".join(row) + "\n")
        codes.append(result)
    sys.exit("failed" in codes)


if __name__ == "__main__":
    main()
