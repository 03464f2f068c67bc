# SPDX-License-Identifier: Apache-2.0
"""A training stopped at any step and resumed ends in the same bits as one that was never stopped (CPU)."""

import logging
from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus, cut_back, outcome, weights_of

from wenet_hs.checkpoint import list_checkpoints

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
WORKERS = "num_workers=2"


def resumed_at_every_step(
    corpus: TinyCorpus, folder: Path, head: str, overrides: tuple[str, ...], every: int = 1
) -> int:
    """How many places it was stopped at; every resumed run has equalled the unbroken one."""
    whole = corpus.train(folder / "whole", *overrides, head=head)
    expected = outcome(whole)
    num_steps = len(list_checkpoints(whole / "checkpoints"))
    assert num_steps == expected["step"] >= 6
    cuts = range(1, num_steps + 1, every)
    for step in cuts:
        copy = cut_back(whole, folder / f"from-{step}", step)
        corpus.train(copy, *overrides, head=head)
        assert outcome(copy) == expected, f"stopped at step {step}"
    return len(cuts)


def test_stopped_at_some_steps(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    assert resumed_at_every_step(tiny_corpus, tmp_path, "softmax", (), every=3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), (WORKERS,)], ids=["a thread", "two processes"])
@pytest.mark.parametrize(
    ("head", "variant"),
    [
        (head, name)
        for head in ("softmax", "hsoftmax")
        for name in VARIANTS
        if (head, name) != ("softmax", "sparse rows")
    ],
)
def test_stopped_at_every_step_in_every_variant(
    tiny_corpus: TinyCorpus, tmp_path: Path, head: str, variant: str, workers: tuple[str, ...]
) -> None:
    assert resumed_at_every_step(tiny_corpus, tmp_path, head, (*VARIANTS[variant], *workers)) >= 6


def test_worker_processes_change_no_bit(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    assert outcome(tiny_corpus.train(tmp_path / "m", WORKERS)) == outcome(trained)


def test_more_epochs_are_the_same_as_more_epochs_at_once(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    tiny_corpus.train(tmp_path / "m", "max_epoch=1")
    first = weights_of(tmp_path / "m")
    tiny_corpus.train(tmp_path / "m", "max_epoch=3")
    assert outcome(tmp_path / "m") == outcome(tiny_corpus.train(tmp_path / "at-once", "max_epoch=3"))
    assert any(not value.equal(first[name]) for name, value in weights_of(tmp_path / "m").items())


def test_a_run_killed_before_its_first_checkpoint_starts_anew(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    copy = cut_back(trained, tmp_path / "m", 0)
    (copy / "checkpoints" / ".step-00000001.tmp").mkdir()
    (copy / "checkpoints" / ".step-00000001.tmp" / "model.pt").write_bytes(b"half")
    tiny_corpus.train(copy)
    assert outcome(copy) == outcome(trained)
    assert not list((copy / "checkpoints").glob(".*")), "what a killed run left behind is cleared away"


@pytest.mark.parametrize("name", ["model.pt", "manifest.json"])
def test_a_damaged_newest_checkpoint_costs_steps_but_no_bit(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    copy = cut_back(trained, tmp_path / "m", 5)
    content = bytearray((copy / "checkpoints" / "step-00000005" / name).read_bytes())
    content[len(content) // 2] ^= 64
    (copy / "checkpoints" / "step-00000005" / name).write_bytes(content)
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(copy)
    assert outcome(copy) == outcome(trained)
    assert "using step-00000004 (1 steps older)" in caplog.text
    assert "step-00000004 (epoch 1, step 4)" in caplog.text
    assert (copy / "checkpoints" / "step-00000005.bad").is_dir()


def test_only_the_newest_and_the_best_checkpoints_stay(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    tiny_corpus.train(tmp_path / "m", "keep_checkpoints=2")
    kept = {path.name for path in list_checkpoints(tmp_path / "m" / "checkpoints")}
    losses = {record["step"]: record["loss"] for record in outcome(trained)["metrics"] if record["kind"] == "valid"}
    best = sorted(losses, key=lambda step: losses[step])[:2]
    assert kept == {f"step-{step:08d}" for step in {7, 8, *best}}
    assert outcome(tmp_path / "m") == outcome(trained)


def test_a_finished_run_is_left_alone(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_corpus.train(tmp_path / "m", "max_epoch=1")
    (folder / "final.pt").write_bytes(b"averaged since")
    before = (folder / "metrics.jsonl").read_bytes()
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(folder, "max_epoch=1")
    assert "final.pt: trained already (4 steps)" in caplog.text
    assert (folder / "final.pt").read_bytes() == b"averaged since"
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("missing", ["final.pt", "checkpoints/finished.json"])
def test_a_run_killed_while_it_wrote_its_end_writes_it(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, missing: str
) -> None:
    copy = cut_back(trained, tmp_path / "m", 8)
    (copy / "checkpoints" / "finished.json").write_text('{"step": 4}')
    (copy / "final.pt").write_bytes(b"of an earlier end")
    (copy / missing).unlink()
    tiny_corpus.train(copy)
    assert outcome(copy) == outcome(trained)


def test_a_cosine_ends_training_with_its_rate(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cosine = ("scheduler=warmup_cosine", "scheduler_conf.total_steps=6", "save_interval=null")
    folder = tiny_corpus.train(tmp_path / "m", *cosine)
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-00000004", "step-00000006"]
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(folder, *cosine)
    assert "trained already (6 steps)" in caplog.text


def test_time_ends_a_training_with_a_checkpoint(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    folder = tiny_corpus.train(tmp_path / "m", "max_minutes=1e-9", "save_interval=null")
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-00000001"]
    assert (folder / "final.pt").is_file()
    tiny_corpus.train(folder)
    assert outcome(folder) == outcome(trained)
