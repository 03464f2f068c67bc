# SPDX-License-Identifier: Apache-2.0
"""A training that is stopped at any step and resumed ends with the bits of one that was not stopped (CPU)."""

import logging
from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus, cut_back, outcome

from wenet_hs.checkpoint import list_checkpoints, step_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

VARIANTS = {
    "plain": (),
    "cached": ("dataset_conf.cache_features=true",),
    "windows of three batches": ("accum_grad=3", "max_epoch=3"),
    "sparse rows": (
        "head_conf.sparse_grad=true",
        "head_conf.route=torch-path",
        "model_conf.lsm_kind=node",
        "accum_grad=2",
        "max_epoch=3",
    ),
    "layer norm, guide, ramp, cosine": (
        "encoder_conf.cnn_module_norm=layer_norm",
        "model_conf.ctc_weight_final=0.1",
        "model_conf.ctc_weight_steps=5",
        "model_conf.attention_guide=1.0",
        "model_conf.attention_guide_steps=4",
        "scheduler=warmup_cosine",
        "scheduler_conf.total_steps=7",
    ),
    "bfloat16, AdamW, dynamic batches": (
        "dtype=bf16",
        "optim=adamw",
        "dataset_conf.batch_conf.batch_type=dynamic",
        "dataset_conf.batch_conf.max_frames_in_batch=130",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("num_workers=2",)], ids=["a thread", "two processes"])
@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_after_every_step(
    tiny_corpus: TinyCorpus, tmp_path: Path, head: str, variant: str, workers: tuple[str, ...]
) -> None:
    if (head, variant) == ("softmax", "sparse rows"):
        pytest.skip("a softmax has no sparse gradients")
    overrides = (*VARIANTS[variant], *workers)
    whole = tiny_corpus.train(tmp_path / "whole", *overrides, head=head)
    expected = outcome(whole)
    num_steps = len(list_checkpoints(whole / "checkpoints"))
    assert num_steps == expected["step"] >= 6
    for step in range(1, num_steps + 1):
        copy = cut_back(whole, tmp_path / f"from-{step}", step)
        tiny_corpus.train(copy, *overrides, head=head)
        assert outcome(copy) == expected, f"resumed after step {step}"


@pytest.mark.slow
def test_worker_processes_change_no_bit(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    assert outcome(tiny_corpus.train(tmp_path / "m", "num_workers=2")) == outcome(trained)


def test_max_epoch_may_be_raised_and_a_finished_run_is_unchanged(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_corpus.train(tmp_path / "m", "max_epoch=1")
    tiny_corpus.train(folder)
    assert outcome(folder) == outcome(trained)
    (folder / "final.pt").write_bytes(b"averaged since")
    before = (folder / "metrics.jsonl").read_bytes()
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(folder)
    assert "final.pt: trained already (8 steps)" in caplog.text
    assert (folder / "final.pt").read_bytes() == b"averaged since"
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_resume_skips_a_damaged_checkpoint_and_keeps_the_newest_and_the_best(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = cut_back(trained, tmp_path / "m", 5)
    damaged, incomplete = (copy / "checkpoints" / name for name in ("step-00000005", ".step-00000006.tmp"))
    content = bytearray((damaged / "model.pt").read_bytes())
    content[len(content) // 2] ^= 64
    (damaged / "model.pt").write_bytes(content)
    incomplete.mkdir()
    (incomplete / "model.pt").write_bytes(b"half")
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(copy, "keep_checkpoints=2")
    assert outcome(copy) == outcome(trained)
    assert "using step-00000004 (1 steps older)" in caplog.text
    assert "step-00000004 (epoch 1, step 4)" in caplog.text
    assert damaged.with_name("step-00000005.bad").is_dir() and not incomplete.exists()
    losses = {record["step"]: record["loss"] for record in outcome(trained)["metrics"] if record["kind"] == "valid"}
    best = sorted(losses, key=lambda step: losses[step])[:2]
    kept = {path.name for path in list_checkpoints(copy / "checkpoints")}
    assert kept == {f"step-{step:08d}" for step in {7, 8, *best}}


@pytest.mark.parametrize("missing", ["final.pt", "checkpoints/finished.json"])
def test_restart_after_a_kill_while_final_pt_was_written(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, missing: str
) -> None:
    copy = cut_back(trained, tmp_path / "m", 8)
    (copy / "checkpoints" / "finished.json").write_text('{"step": 4}')
    (copy / "final.pt").write_bytes(b"of an earlier end")
    (copy / missing).unlink()
    tiny_corpus.train(copy)
    assert outcome(copy) == outcome(trained)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (("scheduler=warmup_cosine", "scheduler_conf.total_steps=6"), [4, 6]),
        (("max_minutes=1e-9",), [1]),
    ],
    ids=["cosine", "time"],
)
def test_training_ends_with_its_schedule_or_its_time(
    tiny_corpus: TinyCorpus, tmp_path: Path, settings: tuple[str, ...], steps: list[int]
) -> None:
    folder = tiny_corpus.train(tmp_path / "m", *settings, "save_interval=null")
    assert [step_of(path) for path in list_checkpoints(folder / "checkpoints")] == steps
    assert (folder / "checkpoints" / "finished.json").is_file()
