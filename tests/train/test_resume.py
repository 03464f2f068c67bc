# SPDX-License-Identifier: Apache-2.0
"""A training that is stopped at any step, by a kill or a signal, and resumed ends with the same
bits (CPU).
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_batch, small_config, small_model
from tiny_corpus import TinyCorpus, cut_back, metrics, newest, outcome, read_checkpoint

from wenet_hs.bin import train as command
from wenet_hs.bin.main import run_command
from wenet_hs.compute.distributed import World
from wenet_hs.model.checkpoint import Content, list_checkpoints, save_checkpoint, step_of
from wenet_hs.train import speech, training
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.state import TrainState, read_checkpoint_progress
from wenet_hs.tree.errors import CheckpointError, ConfigError, Stopped

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SPARSE = ("head_conf.sparse_grad=true", "model_conf.lsm_kind=node")
COSINE = (
    "scheduler=warmup_cosine",
    "scheduler_conf.total_steps=7",
    "encoder_conf.cnn_module_norm=layer_norm",
)
RAMP = "model_conf={ctc_weight_final: 0.1, ctc_weight_steps: 5, attention_guide: 1.0, attention_guide_steps: 4}"
DYNAMIC = "dataset_conf.batch_conf={batch_type: dynamic, max_frames_in_batch: 130}"
VARIANTS: tuple[tuple[str, ...], ...] = (
    ("softmax", "num_workers=2"),
    ("class", "dataset_conf.cache_features=true"),
    ("adaptive", "head_conf.cutoffs=[3]", *COSINE, RAMP),  # the first batch needs both clusters
    ("hsoftmax",),
    ("hsoftmax", "accum_grad=3", "max_epoch=3"),
    ("hsoftmax", "accum_grad=2", "max_epoch=3", *SPARSE),
    ("hsoftmax", "dtype=bf16", "optim=adamw", DYNAMIC),
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_after_every_step(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, variant: tuple[str, ...]
) -> None:
    head, *overrides = variant
    whole = tiny_corpus.train(tmp_path / "whole", *overrides, head=head)
    expected = outcome(whole)
    num_steps = len(list_checkpoints(whole / "checkpoints"))
    assert num_steps == expected["step"] >= 6
    if "num_workers=2" in overrides:
        assert expected == outcome(trained), "as without processes"
    middle = (
        num_steps // 2
    )  # of all variants two have each step, the others the first, the last two and two in between
    some = {1, middle, middle + 1, num_steps - 1, num_steps}
    for step in range(1, num_steps + 1) if variant in VARIANTS[::5] else sorted(some):
        copy = cut_back(whole, tmp_path / f"from-{step}", step)
        tiny_corpus.train(copy, *overrides, head=head)
        assert outcome(copy) == expected, f"resumed after step {step}"


def test_max_epoch_may_be_raised_and_a_finished_run_is_unchanged(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = cut_back(trained, tmp_path / "m", 4)
    tiny_corpus.train(folder, "max_epoch=1")  # its end is at step 4
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
    copy = cut_back(trained, tmp_path / "m", 7)
    damaged, incomplete = (
        copy / "checkpoints" / name for name in ("step-00000007", ".step-00000008.tmp")
    )
    (damaged / "model.pt").write_bytes((damaged / "model.pt").read_bytes()[:-1] + b"x")
    incomplete.mkdir()
    (incomplete / "model.pt").write_bytes(b"half")
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(copy, "keep_checkpoints=2")
    assert outcome(copy) == outcome(trained)
    fault = "sha256 of model.pt differs from the manifest"
    assert f"{fault}; using step-00000006 (1 steps older); kept as step-00000007.bad" in caplog.text
    assert "step-00000006 (epoch 1, step 6)" in caplog.text
    assert damaged.with_name("step-00000007.bad").is_dir() and not incomplete.exists()
    losses = {
        record["step"]: record["loss"]
        for record in outcome(trained)["metrics"]
        if record["kind"] == "valid"
    }
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


def test_training_ends_with_its_schedule_or_its_time(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    cosine = (
        "scheduler=warmup_cosine",
        "scheduler_conf.total_steps=2",
        "scheduler_conf.warmup_steps=1",
    )
    for num_steps, settings in ((2, cosine), (1, ("max_minutes=1e-9",))):
        folder = tiny_corpus.train(tmp_path / f"m{num_steps}", *settings, "save_interval=null")
        assert [step_of(path) for path in list_checkpoints(folder / "checkpoints")] == [num_steps]
        assert (folder / "checkpoints" / "finished.json").is_file()


def test_training_resumes_from_a_named_checkpoint(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = cut_back(trained, tmp_path / "m", 8)
    with pytest.raises(ConfigError, match="optim_conf.lr was"):
        tiny_corpus.train(
            copy, "optim_conf.lr=0.1", resume=str(copy / "checkpoints" / "step-00000006")
        )
    assert not [*(copy / "checkpoints").glob("*.old")], "a refused resume sets no checkpoint aside"
    with caplog.at_level(logging.INFO):
        tiny_corpus.train(copy, resume=str(copy / "checkpoints" / "step-00000006"))
    assert "step-00000006 (epoch 1, step 6)" in caplog.text
    assert (
        "step-00000007: newer than the one to resume from; kept as step-00000007.old" in caplog.text
    )
    assert outcome(copy) == outcome(trained)
    assert sorted(path.name[-6:] for path in (copy / "checkpoints").glob("*.old")) == [
        "07.old",
        "08.old",
    ]


def test_wrong_values_of_resume(tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path) -> None:
    copy = cut_back(trained, tmp_path / "m", 2)
    (newest(copy) / "rng.pt").write_bytes(b"")
    for resume, message in (
        (
            "atuo",
            "^--resume atuo: not auto, never or one of .*/m/checkpoints/step-.; to start from its weights use",
        ),
        (newest(trained), "^--resume .*step-00000008: not auto, never or one of"),
        (copy, "^--resume .*m: not auto"),
        (
            "never",
            "checkpoints: holds checkpoints and --resume is never; use another --model_dir or remove it$",
        ),
        (
            newest(copy),
            "step-00000002: sha256 of rng.pt differs from the manifest; use an earlier checkpoint$",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            tiny_corpus.train(copy, resume=str(resume))
    shutil.copytree(trained, tmp_path / "final", ignore=shutil.ignore_patterns("checkpoints"))
    for resume in ("auto", "never"):
        with pytest.raises(
            CheckpointError,
            match="final/final.pt: a model without checkpoints, so it cannot be resu",
        ):
            tiny_corpus.train(tmp_path / "final", "seed=5", resume=resume)
        assert (tmp_path / "final" / "train.yaml").read_bytes() == (
            trained / "train.yaml"
        ).read_bytes()


# Signals


@contextlib.contextmanager
def sent_when(
    owner: object,
    name: str,
    number: signal.Signals,
    is_now: Callable[..., bool] = lambda *args: True,
) -> Iterator[None]:
    """Send the signal to this process within the call of `owner.name` for which `is_now` is true."""
    original = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        if is_now(*args):
            os.kill(os.getpid(), number)
        return original(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield


def test_a_signal_ends_training_with_a_checkpoint_and_the_resumed_run_has_the_same_bits(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, handlers = tmp_path / "m", [signal.getsignal(number) for number in training.SIGNALS]
    settings = ("max_epoch=1", "save_interval=2", "keep_checkpoints=1", "keep_best=0")
    with sent_when(
        Monitor, "record_step", signal.SIGTERM, lambda monitor, stats: monitor._progress.step == 1
    ):
        assert run_command(command, tiny_corpus.arguments(folder, *settings)) == 143
    line = f"{newest(folder)}: stopped by SIGTERM after step 1, which is saved; run the same command again to resume"
    assert line in capsys.readouterr().err.splitlines()
    progress = read_checkpoint_progress(newest(folder))
    assert (progress.step, progress.interim, progress.validation_due, progress.validations) == (
        1,
        True,
        False,
        [],
    )
    assert not (folder / "final.pt").exists()
    for number, exit_code in ((signal.SIGINT, 130), (signal.SIGUSR1, 138)):
        in_validation = sent_when(speech, "validate", number)
        with (
            in_validation,
            pytest.raises(Stopped, match=f"by {number.name} after step 2") as stopped,
        ):
            tiny_corpus.train(folder, *settings)
        assert stopped.value.exit_code == exit_code
        assert (
            read_checkpoint_progress(newest(folder)).validation_due,
            step_of(newest(folder)),
        ) == (True, 2)
    assert [signal.getsignal(number) for number in training.SIGNALS] == handlers
    with pytest.MonkeyPatch.context() as patch:  # as if another rank had received a signal
        patch.setattr(
            training.TrainingLoop,
            "_is_asked_to_stop",
            lambda running, **_: running.state.progress.step == 3,
        )
        with pytest.raises(Stopped, match="stopped by SIGTERM after step 3"):
            tiny_corpus.train(folder, *settings)
    tiny_corpus.train(folder, *settings)
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-00000004"]
    for name in ("model.pt", "optimizer.pt", "rng.pt"):
        whole = trained / "checkpoints" / "step-00000004" / name
        assert (newest(folder) / name).read_bytes() == whole.read_bytes(), name
    at_steps = [
        record
        for record in metrics(trained)
        if (record["kind"], record["step"] % 2) != ("valid", 1)
    ]
    assert metrics(folder) == [record for record in at_steps if record["step"] <= 4], (
        "validated before the third step"
    )


def test_a_signal_while_final_pt_is_written_is_ignored(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    with sent_when(training, "write_final", signal.SIGTERM):
        folder = tiny_corpus.train(tmp_path / "m", "max_minutes=1e-9")
    assert (folder / "checkpoints" / "finished.json").exists()


def test_signals_within_a_second_are_one_request_and_a_later_one_ends_the_process() -> None:
    with training.StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGUSR1
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), training.StopRequest():
            training.SAME_REQUEST_SECONDS = 0.0
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(70)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_ignored_signals_stay_ignored_and_other_threads_set_no_handlers() -> None:
    earlier = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with training.StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal is None
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    handlers = [signal.getsignal(signal.SIGTERM)]

    def listen() -> None:
        with training.StopRequest():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == handlers[:1] * 2


# The state in a checkpoint


def state_of(units: str = "a", **sections: Any) -> TrainState:
    model = small_model(**sections)
    optimizer = build_optimizer(model, small_config())
    return TrainState(model, optimizer, torch.device("cpu"), fingerprint={"units.txt": units})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one step."""
    state = state_of()
    list(speech.run_epoch(state, [small_batch([40, 33], [5, 2])], small_config()))
    return save_checkpoint(tmp_path_factory.mktemp("saved"), 3, state.to_files())


def changed(saved: Path, folder: Path, name: str, content: Content) -> Path:
    """A copy of the checkpoint with other content of a file, and its manifest."""
    return save_checkpoint(folder, 4, {**read_checkpoint(saved), name: content})


def test_checkpoints_of_other_units_models_or_programs_are_refused(
    saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        CheckpointError,
        match="step-00000003: was trained with another units.txt; use another --model",
    ):
        state_of(units="b").restore(saved)
    message = r"step-0000000.: does not fit this training \(.*\); use an earlier checkpoint, or another --model_dir$"
    with pytest.raises(CheckpointError, match=message):
        state_of(encoder_conf={"num_blocks": 1}).restore(saved)
    for name in ("optimizer.pt", "rng.pt"):
        with pytest.raises(CheckpointError, match=message):
            state_of().restore(changed(saved, tmp_path / name, name, {"a": 1}))
    for text in ("", "[]", '{"progress": {"steps": 3}}', '{"progress": 3}'):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(
            CheckpointError, match="state.json cannot be read; use an earlier checkpoint$"
        ):
            read_checkpoint_progress(tmp_path)


def test_another_environment_is_reported(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = json.loads((saved / "state.json").read_text())
    assert record["environment"] == {"torch": torch.__version__, "threads": "1", "device": "cpu"}
    record["environment"] |= {"torch": "2.0.0", "threads": "64"}
    older = changed(saved, tmp_path, "state.json", json.dumps(record).encode())
    second = state_of()
    second.world = World(rank=1, size=2)
    state_of().restore(saved)
    second.restore(older)
    assert not caplog.records, "only rank 0 warns"
    state_of().restore(older)
    now = f"torch 2.0.0 then, {torch.__version__} now; threads 64 then, 1 now"
    assert f"{older}: {now}; the result may differ in its last bits" in caplog.text
