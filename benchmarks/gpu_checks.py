# SPDX-License-Identifier: Apache-2.0
"""The checks of gpu.sh: heads, CTC, search, training steps, recognition and commands on a GPU
against a CPU.

Each part writes OUT/PART.json as soon as it ends: `ok` or `failed`, seconds, and what was found. A
part that fails does not end the others; the exit code is then 1. `--device cpu --small` shows
whether the parts run.

Example: python benchmarks/gpu_checks.py heads search --device cuda --out parts
"""

import argparse
import copy
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gpu_checks_heads import check_ctc, check_heads, check_search, difference
from recognize import UNITS_A_SECOND, options_of
from recognize_sides import PEAKED, Speech, make_model, read_speech, set_end, speech, spread_ctc
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from training_sides import (
    MINI,
    SPECIAL,
    TREE,
    Size,
    batch_of,
    build_with_head,
    changed,
    make_batch,
    make_state,
    paper_config,
    sizes,
    speech_lengths,
    write_corpus,
)

from wenet_hs.bin import average, cmvn, recognize, train, tree, units
from wenet_hs.bin.main import run_command
from wenet_hs.compute.devices import has_native_bf16
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.modes import decode
from wenet_hs.heads import HSoftmaxHead, SoftmaxHead
from wenet_hs.lm.backoff import ArpaReader, NgramModel
from wenet_hs.lm.language_model import LanguageModel
from wenet_hs.lm.recurrent import RecurrentModel, RnnLm
from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.modes import MODES
from wenet_hs.text.units import UnitTable
from wenet_hs.train.speech_steps import run_epoch
from wenet_hs.tree import Tree

HEADS = ("softmax", "hsoftmax")
Search = Callable[[str], list[Hypothesis]]
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2}
"""The accepted relative difference of the loss of a training step from that of the CPU in fp32."""


# ---- training


FRAMES = ((150, 210, 240), (333,), (61, 400, 90, 120), (250, 250), (75, 180, 220, 300, 64))
"""Of the utterances of the five batches that training repeats."""
CTC_TREE = {"head": "hsoftmax", "head_conf": TREE}
NODE = {"lsm_kind": "node"}


def losses_of(size: Size, head: str, side: str, device: str, num_steps: int) -> np.ndarray:
    """The loss of each training step, without dropout."""
    state, config = make_state(size, head, side, torch.device(device))
    batches = [make_batch(frames) for frames in FRAMES]
    steps = run_epoch(state, (batches * num_steps)[:num_steps], config)
    return np.array([stats.loss for stats in steps])


def with_trees(size: Size) -> Size:
    """The same with CTC over a tree and smoothing of the decisions on the path."""
    smoothed = size.config.model_copy(
        update={"model_conf": size.config.model_conf.model_copy(update=NODE)}
    )
    return replace(size, config=changed(smoothed, ctc_conf=CTC_TREE))


def check_steps(args: argparse.Namespace, dtype: str) -> str:
    """Training steps on the device against the CPU in fp32, with batches of different lengths."""
    if not (dtype == "fp32" or has_native_bf16(torch.device(args.device))):
        return "this processor has no bf16"
    (mini,) = (size for size in sizes(quick=args.small) if size.name == "mini")
    models = {"softmax": mini, "hsoftmax": mini, "hsoftmax, sparse": with_trees(mini)}
    shown = []
    for head, size in models.items():
        start = time.perf_counter()
        found = losses_of(size, head, dtype, args.device, args.steps)
        seconds = time.perf_counter() - start
        expected = losses_of(size, head, "fp32", "cpu", args.steps)
        largest = float(np.abs(found / expected - 1).max())
        is_learning = args.small or found[-5:].mean() < found[:5].mean()  # the same five batches
        if not (largest <= TOLERANCE[dtype] and is_learning):
            raise AssertionError(
                f"{head}: losses {found[0]:.3f} … {found[-1]:.3f}, CPU {expected[-1]:.3f}, {largest:.1e}"
            )
        name = head if size is mini else f"{head}, node smoothing, CTC over a tree"
        shown.append(
            f"{name} differs by at most {largest:.1e} ({1000 * seconds / args.steps:.0f} ms per step)"
        )
    return f"{args.steps} steps: {'; '.join(shown)}"


def check_one_rank(args: argparse.Namespace) -> str:
    """DistributedDataParallel and collectives with the backends of training, in a group of one
    rank.
    """
    (mini,) = (size for size in sizes(quick=args.small) if size.name == "mini")
    model = make_state(mini, "hsoftmax", "fp32", torch.device(args.device))[0].model
    batch = batch_of(mini).to(args.device)
    model(batch).total.backward()
    expected = {
        name: value.grad.clone()
        for name, value in model.named_parameters()
        if value.grad is not None
    }
    model.zero_grad()
    backend = "gloo" if args.device == "cpu" else "cpu:gloo,cuda:nccl"
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(
            backend, init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        counts, values = torch.tensor([3.0], dtype=torch.float64), torch.ones(4, device=args.device)
        distributed.all_reduce(counts)
        distributed.all_reduce(values)
        parallel = DistributedDataParallel(
            model, broadcast_buffers=False, find_unused_parameters=True
        )
        parallel(batch).total.backward()
        del parallel
        distributed.destroy_process_group()
    if (counts.item(), values.sum().item()) != (3.0, 4.0):
        raise AssertionError(f"sums over one rank: {counts}, {values}")
    gradients = dict(model.named_parameters())
    largest = max(difference(gradients[name].grad, value) for name, value in expected.items())
    return f"{backend}: {len(expected)} gradients, largest difference {largest:.1e}"


# ---- recognition


def make_models(said: Speech, *, quick: bool) -> dict[str, AsrModel]:
    """Models of random weights that find hypotheses of different lengths, and one with trees
    everywhere.
    """
    models = {
        head: spread_ctc(make_model(300, head=head, device="cpu", quick=quick), said)
        for head in HEADS
    }
    set_end(models["softmax"], said, [8.0 * float(length) / 100 for length in said.lengths])
    torch.manual_seed(0)
    of_trees = build_with_head(paper_config(quick=quick, ctc_conf=CTC_TREE), "hsoftmax", 300).eval()
    with torch.no_grad():
        for parameter in (*of_trees.head.parameters(), *of_trees.ctc.parameters()):
            parameter.mul_(PEAKED)
    return {**models, "CTC over a tree": of_trees}


def make_search(
    model: AsrModel, said: Speech, options: DecodeOptions, *, lm: LanguageModel | None = None
) -> Search:
    """Features → the best hypothesis of each utterance, by mode."""

    def search(mode: str) -> list[Hypothesis]:
        return [
            nbest[0]
            for nbest in decode(model, said.features, said.lengths, [mode], options, lm=lm)[mode]
        ]

    return search


def count_equal(found: list[Hypothesis], expected: list[Hypothesis]) -> np.ndarray:
    """How many hypotheses have equal units, and how many there are."""
    return np.array([sum(a.ids == b.ids for a, b in zip(found, expected, strict=True)), len(found)])


def check_recognition(args: argparse.Namespace) -> str:
    """The hypotheses of every mode on the device and on the CPU, for utterances of different
    lengths.
    """
    seconds = [2.0, 3.3] if args.small else read_speech(4.0, 4)
    here, there = speech(seconds, "cpu"), speech(seconds, args.device)
    equal = {"fp32": np.zeros(2, int), "bf16": np.zeros(2, int)}
    for name, model in make_models(here, quick=args.small).items():
        options = options_of(None if name == "softmax" else UNITS_A_SECOND)
        own = make_search(model, here, options)
        measured = make_search(copy.deepcopy(model).to(args.device), there, options)
        for mode in MODES:
            expected = own(mode)
            equal["fp32"] += count_equal(measured(mode), expected)
            with torch.autocast(args.device, torch.bfloat16):
                equal["bf16"] += count_equal(measured(mode), expected)
    require(equal["fp32"])
    shown = [f"{dtype} {same} of {total}" for dtype, (same, total) in equal.items()]
    return f"best hypotheses equal to those of the CPU in fp32: {', '.join(shown)}"


def require(equal: np.ndarray) -> None:
    """Raises AssertionError if fewer than nine in ten are equal: others may be ties of random
    weights.
    """
    if equal[0] < 0.9 * equal[1]:
        raise AssertionError(f"{equal[0]} of {equal[1]} best hypotheses are equal")


def make_lms(num_units: int, device: str) -> Iterator[LanguageModel]:
    """An n-gram model of few units, and recurrent models with either head; `device`: of these."""
    names = ("<blank>", "<unk>", "<sos/eos>", *(f"u{number}" for number in range(3, num_units)))
    units = UnitTable(names, SPECIAL)
    ones = "".join(
        f"-{2 + number / 100:.2f}\t{name}\t-0.3\n" for number, name in enumerate(names[3:])
    )
    twos = "".join(
        f"-0.5\t{one} {other}\n" for one, other in zip(names[3:-1], names[4:], strict=True)
    )
    counts = f"ngram 1={len(names)}\nngram 2={len(names) - 4}\n\n"
    arpa = f"\\data\\\n{counts}\\1-grams:\n-3\t<unk>\n-99\t<s>\t-0.5\n-1.8\t</s>\n{ones}\n\\2-grams:\n{twos}\n\\end\\\n"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lm.arpa").write_text(arpa, "utf-8")
        yield NgramModel(ArpaReader(Path(folder) / "lm.arpa"), units)
    for kind in ("gru", "lstm"):
        torch.manual_seed(3)
        tree = Tree.huffman(1.0 / np.arange(1, num_units + 1))
        head = HSoftmaxHead(64, tree) if kind == "lstm" else SoftmaxHead(64, num_units)
        model = (
            RnnLm(head, kind=kind, embedding_size=32, num_layers=2, dropout_rate=0.0)
            .eval()
            .to(device)
        )
        yield RecurrentModel("lm", model, lm_units=units, recogniser_units=units)


def check_language_models(args: argparse.Namespace) -> str:
    """The hypotheses of the searches with each kind of language model, on the device and on the
    CPU.
    """
    seconds = [2.0, 3.3] if args.small else read_speech(3.0, 3)
    here, there = speech(seconds, "cpu"), speech(seconds, args.device)
    model = spread_ctc(make_model(300, head="hsoftmax", device="cpu", quick=True), here)
    options = replace(options_of(UNITS_A_SECOND), lm_weight=0.3)
    measured = copy.deepcopy(model).to(args.device)
    equal = np.zeros(2, int)
    for own, other in zip(make_lms(300, "cpu"), make_lms(300, args.device), strict=True):
        sides = (
            make_search(measured, there, options, lm=other),
            make_search(model, here, options, lm=own),
        )
        for mode in MODES:
            if not MODES[mode].is_greedy:
                equal += count_equal(*(side(mode) for side in sides))
    require(equal)
    return f"{equal[0]} of {equal[1]} best hypotheses equal, with an n-gram model, a GRU and an LSTM over a tree"


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
        decoded = f"--model_dir {exp} --test_data {name}/data.list --device {args.device}"
        lines = (
            (units, f"{data} --kind char --out {table}"),
            (tree, f"build --kind huffman {data} --units {table} --out {name}/tree.json"),
            (cmvn, f"{data} --config {MINI} --out {name}/cmvn"),
            (
                train,
                f"--config {MINI} {lists} --model_dir {exp} --device {args.device} --override_config {override}",
            ),
            (average, f"--model_dir {exp} --num 1"),
            (recognize, f"{decoded} --result_dir {exp}/test"),
            (recognize, f"{decoded} --result_dir {exp}/test-{dtype} --dtype {dtype}"),
        )
        for command, line in lines:
            if run_command(command, line.split()):
                raise AssertionError(f"{command.__name__} {line}")
        texts = (folder / "exp/test/attention_rescoring/text").read_text("utf-8").splitlines()
    return f"{dtype}, {len(clips)} clips trained on for 2 epochs, {len(texts)} decoded"


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "heads": check_heads,
    "ctc": check_ctc,
    "search": check_search,
    "steps-fp32": lambda args: check_steps(args, "fp32"),
    "steps-bf16": lambda args: check_steps(args, "bf16"),
    "one-rank": check_one_rank,
    "recognition": check_recognition,
    "language-models": check_language_models,
    "commands": check_commands,
}


def main() -> None:
    """Run the parts and write what they found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="cuda", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small models, 5 steps")
    parser.add_argument("--out", type=Path, required=True, help="folder for PART.json of each part")
    args = parser.parse_args()
    args.steps = 5 if args.small else 50
    torch.backends.cudnn.allow_tf32 = (
        False  # the default for convolutions; it keeps 10 bits of float32's 23
    )
    args.out.mkdir(parents=True, exist_ok=True)
    codes = []
    for name in args.parts:
        start = time.perf_counter()
        try:
            result, found = "ok", PARTS[name](args)
        except Exception as error:
            traceback.print_exc()
            result, found = "failed", f"{type(error).__name__}: {error}"
        seconds = round(time.perf_counter() - start)
        row = {"part": name, "result": result, "seconds": seconds, "found": " ".join(found.split())}
        print(row, flush=True)
        (args.out / f"{name}.json").write_text(json.dumps(row) + "\n", encoding="utf-8")
        codes.append(result)
    sys.exit("failed" in codes)


if __name__ == "__main__":
    main()
