# SPDX-License-Identifier: Apache-2.0
"""The tree head and the softmax with their Triton kernels on the device of `fake_gpu`: values,
launches and waits.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch on Linux only")
pytestmark = pytest.mark.slow

DIM, NUM_UNITS = 12, 40
LAUNCHES = {  # of loss and gradients: without smoothing, of kind "leaf", of kind "node"
    "paths": (10, 15, 14),
    "paths, bias, sparse": (23, 20, 27),
    "all": (13, 16, 17),
    "softmax": (10, 11, 11),
}


def test_interpreted() -> None:
    """Runs this file: Triton decides when it is imported whether kernels are interpreted."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_training() -> None:
    """Steps with CTC and a tree by the kernels: the losses of the CPU, and one wait, which reads
    them.
    """
    from fake_gpu import DEVICE, on_gpu
    from small_models import small_batch, small_config, small_model

    from wenet_hs.train.optim import Precision, build_optimizer
    from wenet_hs.train.speech_steps import run_epoch
    from wenet_hs.train.state import TrainState

    still = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    sections = {
        "encoder_conf": still,
        "decoder_conf": still,
        "head": "hsoftmax",
        "head_conf": {"tree": "t"},
    }

    def losses(device: torch.device) -> list[list[float]]:
        config, model = small_config(**sections), small_model(**sections).to(device)
        state = TrainState(
            model, build_optimizer(model, config), device, precision=Precision("fp32", device)
        )
        batches = [small_batch([50, 41], [4, 3], seed=seed) for seed in range(3)]
        found = []
        for stats in run_epoch(
            state,
            batches if device.type == "cpu" else [one.pin_memory() for one in batches],
            config,
        ):
            found.append([stats.loss, stats.loss_ctc, stats.grad_norm])
            if len(found) == 3 and device.type != "cpu":
                assert sum(RECORD.waits.values()) <= 1 and not RECORD.unpinned, str(RECORD)
                assert RECORD.launches["forward_kernel"] == RECORD.launches["backward_kernel"] == 1
            RECORD.clear()
        return found

    from fake_gpu import RECORD

    expected = losses(torch.device("cpu"))
    with on_gpu(kernels=True):
        found = losses(DEVICE)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def check_decoding() -> None:
    """A decoder and CTC over a tree: as on the CPU, without waits in the heads."""
    from fake_gpu import DEVICE, on_gpu
    from small_models import small_batch, small_model
    from test_decoding_on_gpu import assert_equal

    from wenet_hs.decode import DecodeOptions, decode

    tree = {"head": "hsoftmax", "head_conf": {"tree": "tree.json"}}
    model, batch = small_model(seed=1, **tree, ctc_conf=tree), small_batch([33, 26], [1, 1])
    options, modes = DecodeOptions(beam_size=3), ["ctc_prefix_beam_search", "attention", "joint"]
    with torch.no_grad():
        expected = decode(model, batch.features, batch.feature_lengths, modes, options)
        with on_gpu(kernels=True) as record:
            data = batch.features.to(DEVICE), batch.feature_lengths.to(DEVICE)
            found = decode(copy.deepcopy(model).to(DEVICE), *data, modes, options)
    assert not [line for line in record.waits if line.startswith("heads/")], str(record)
    for mode in modes:
        assert_equal(found[mode], expected[mode])


def main() -> None:
    from fake_gpu import DEVICE, on_gpu, to_cpu
    from test_heads_on_gpu import SMOOTHINGS, costs_and_gradients

    from wenet_hs.heads import HSoftmaxHead, OutputHead, SoftmaxHead, softmax
    from wenet_hs.tree import Tree

    torch.set_num_threads(1)
    softmax.MANY_UNITS = 30
    tree = Tree.huffman(1.0 / np.arange(1, NUM_UNITS + 1))
    heads: dict[str, Callable[[], OutputHead]] = {
        "paths": lambda: HSoftmaxHead(DIM, tree, route="path"),
        "paths, bias, sparse": lambda: HSoftmaxHead(
            DIM, tree, bias=True, sparse_grad=True, route="path"
        ),
        "all": lambda: HSoftmaxHead(DIM, tree, bias=True, route="all"),
        "softmax": lambda: SoftmaxHead(DIM, NUM_UNITS),
    }
    for name, make in heads.items():
        torch.manual_seed(0)
        head = make()
        hidden, targets = torch.randn(2, 3, DIM), torch.randint(NUM_UNITS, (2, 3))
        expected = [
            costs_and_gradients(head, hidden, targets, *smoothing) for smoothing in SMOOTHINGS
        ]
        with torch.no_grad():
            results = [*head.topk(hidden, 7), *head.eval_metrics(hidden, targets)]
        with on_gpu(kernels=True) as record:
            there, hidden, targets = (
                copy.deepcopy(head).to(DEVICE),
                hidden.to(DEVICE),
                targets.to(DEVICE),
            )
            for smoothing, one, budget in zip(SMOOTHINGS, expected, LAUNCHES[name], strict=True):
                found = costs_and_gradients(there, hidden, targets, *smoothing)
                assert "kernel" in str(record.launches), (name, record.launches)
                assert sum(record.launches.values()) <= budget, (name, smoothing, record.launches)
                assert sum(record.waits.values()) <= ("sparse" in name) and not record.unpinned, (
                    str(record)
                )
                torch.testing.assert_close(to_cpu(found), one, rtol=1e-4, atol=1e-5)
            record.clear()
            with torch.no_grad():
                found = [*there.topk(hidden, 7), *there.eval_metrics(hidden, targets)]
            assert not record.waits and not record.unpinned, str(record)
            torch.testing.assert_close(to_cpu(found), results, rtol=1e-4, atol=1e-5)
    check_training()
    check_decoding()


if __name__ == "__main__":
    main()
