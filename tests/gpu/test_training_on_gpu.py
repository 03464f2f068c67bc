# SPDX-License-Identifier: Apache-2.0
"""Training on the device of `fake_gpu`: the losses of the CPU, and a step that waits for the device
once or twice.
"""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import DEVICE, NAME, Record, on_gpu
from small_models import small_batch, small_config, small_model
from tiny_corpus import TinyCorpus, cut_back, metrics, outcome, write_tiny_corpus

from wenet_hs.compute import devices
from wenet_hs.model.checkpoint import list_checkpoints
from wenet_hs.train.average import average_weights
from wenet_hs.train.optim import Precision, build_optimizer
from wenet_hs.train.speech_steps import run_epoch, validate
from wenet_hs.train.state import TrainState

pytestmark = pytest.mark.slow
NO_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
TREE = {"tree": "tree.json"}
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "hsoftmax": {"head": "hsoftmax", "head_conf": TREE},
    "hsoftmax, sparse": {
        "head": "hsoftmax",
        "head_conf": {**TREE, "sparse_grad": True},
        "model_conf": {"lsm_kind": "node"},
    },
    "class": {"head": "class", "head_conf": TREE},
    "adaptive": {"head": "adaptive", "head_conf": TREE, "model_conf": {"lsm_weight": 0.0}},
    "CTC over a tree": {"ctc_conf": {"head": "hsoftmax", "head_conf": TREE}},
    "guide": {"model_conf": {"attention_guide": 2.0, "attention_guide_steps": 9}},
    "two directions": {
        "decoder": "bitransformer",
        "decoder_conf": {"r_num_blocks": 1},
        "model_conf": {"reverse_weight": 0.3},
    },
    "CTC alone": {"decoder": "none", "decoder_conf": None, "model_conf": None},
    "layer_norm": {"encoder_conf": {"cnn_module_norm": "layer_norm"}},
    "transformer": {"encoder": "transformer"},
    "heads of width 4": {
        "encoder_conf": {"attention_heads": 4},
        "decoder_conf": {"attention_heads": 4},
    },
    "accum_grad": {"accum_grad": 2},
}
LAUNCHES = {  # of a step that is not logged
    "softmax": 735,
    "hsoftmax": 755,
    "hsoftmax, sparse": 771,
    "class": 767,
    "adaptive": 770,
    "CTC over a tree": 846,
    "guide": 766,
    "two directions": 900,
    "CTC alone": 472,
    "layer_norm": 625,
    "transformer": 464,
    "heads of width 4": 753,
    "accum_grad": 1588,
}
WAITS, WAITS_OF_CTC = {"hsoftmax, sparse": 1}, 2
"""Per training step, besides the one that reads the losses and the norm. torch's CTC loss reads
lengths; with Triton a kernel of ours replaces it (test_kernels_on_gpu.py).
"""


def losses_of_steps(
    device: torch.device, name: str, record: Record | None = None, **more: Any
) -> list[list[float]]:
    """Loss, norm and accuracy of five steps and of a validation; all but the first step keep the
    budgets.
    """
    sections = {**MODELS[name], **more}
    both = {} if sections.get("decoder") == "none" else {"decoder_conf": NO_DROPOUT}
    base = {"encoder_conf": NO_DROPOUT, **both, "log_interval": 2}
    merged = {
        k: {**base[k], **v} if isinstance(v, dict) and k in base else v
        for k, v in {**base, **sections}.items()
    }
    config, model = small_config(**merged), small_model(**merged).to(device)
    precision = Precision(config.dtype, device)
    state = TrainState(model, build_optimizer(model, config), device, precision=precision)
    batches = [
        small_batch([60, 50 + 3 * seed], [5, 4], seed=seed) for seed in range(5 * config.accum_grad)
    ]
    found, launches = [], list[int]()
    for stats in run_epoch(
        state, map(type(batches[0]).pin_memory, batches) if record else batches, config
    ):
        if record and found:
            waits = 1 + WAITS_OF_CTC * config.accum_grad + WAITS.get(name, 0)
            assert sum(record.waits.values()) <= waits, str(record)
            assert not record.unpinned, str(record)
            launches.append(sum(record.launches.values()))
        found.append([stats.loss, stats.grad_norm, stats.accuracy])
        if record:
            record.clear()
    if launches and config.dtype == "fp32":
        assert max(launches[1::2]) <= LAUNCHES[name], (name, launches)  # the others are logged
    sums = validate(model, batches[:2], config, device).per_target()
    return [*found, [sums["loss"], sums["loss_ctc"], sums["accuracy"]]]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "fp32") for name in MODELS),
        *((n, d) for n in ("softmax", "hsoftmax") for d in ("bf16", "fp16")),
    ],
)
def test_the_steps_are_those_of_the_cpu(name: str, dtype: str) -> None:
    expected = losses_of_steps(torch.device("cpu"), name)
    with on_gpu() as record:
        found = losses_of_steps(DEVICE, name, record, dtype=dtype)
    tolerance = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 1e-2}[dtype]
    assert found == [
        pytest.approx(row, rel=tolerance, abs=tolerance, nan_ok=True) for row in expected
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


def test_a_training_with_resume_and_average(
    corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From features to `final.pt`; the batches come pinned from the thread that loads them."""
    still = (
        "dataset_conf.speed_perturb=false",
        "dataset_conf.fbank_conf.dither=0",
        "dataset_conf.spec_aug=false",
    )
    plain = [f"{part}.{name}=0" for part in ("encoder_conf", "decoder_conf") for name in NO_DROPOUT]
    by_cpu = corpus.train(tmp_path / "cpu", *still, *plain, head="hsoftmax")
    with on_gpu() as record, caplog.at_level(logging.INFO):
        whole = corpus.train(tmp_path / "whole", *still, *plain, head="hsoftmax", device=NAME)
        assert not [line for line in record.unpinned if line.startswith("data/")], str(record)
        copy = cut_back(whole, tmp_path / "copy", 3)
        corpus.train(copy, *still, *plain, head="hsoftmax", device=NAME)
        averaged = average_weights(list_checkpoints(copy / "checkpoints")[-3:])
    assert outcome(copy) == outcome(whole)
    for one, other in zip(metrics(whole), metrics(by_cpu), strict=True):
        # Adam makes steps of some biases from rounding alone: their gradient is 0.
        assert one["loss"] == pytest.approx(
            other["loss"], rel=1e-5 if one["kind"] == "train" else 1e-3
        )
    assert not any(value.device.type == NAME for value in averaged.values())


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(
        devices.ConfigError, match="--device gpu: not supported; use cpu, cuda or cuda:N"
    ):
        devices.find_device(NAME)
