# SPDX-License-Identifier: Apache-2.0
"""Signals end a training after a checkpoint; the resumed run equals an uninterrupted one."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_corpus import TinyCorpus, metrics, outcome

from wenet_hs.bin import train as command
from wenet_hs.bin.command import run_command
from wenet_hs.checkpoint import list_checkpoints, step_of
from wenet_hs.errors import Stopped
from wenet_hs.train import signals, trainer
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.state import read_progress


def send(number: signal.Signals) -> None:
    """As another process would, to this one."""
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def sent_when(owner: object, name: str, number: signal.Signals, is_now: Callable[..., bool]) -> Iterator[None]:
    """Send the signal within the call of `owner.name` for which `is_now` says so."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_now(*args, **kwargs):
            send(number)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield


def at_step(number: signal.Signals, step: int) -> contextlib.AbstractContextManager[None]:
    return sent_when(Monitor, "step", number, lambda monitor, stats: stats.step == step)


def in_validation(number: signal.Signals) -> contextlib.AbstractContextManager[None]:
    return sent_when(trainer, "validate", number, lambda *args, **kwargs: True)


def newest(folder: Path) -> Path:
    return list_checkpoints(folder / "checkpoints")[-1]


def test_a_signal_ends_training_with_a_checkpoint_and_its_exit_code(
    tiny_corpus: TinyCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, handlers = tmp_path / "m", [signal.getsignal(number) for number in signals.SIGNALS]
    with at_step(signal.SIGTERM, 1):
        assert run_command(command, tiny_corpus.arguments(folder, "max_epoch=1", "save_interval=3")) == 143
    line = f"{newest(folder)}: stopped by SIGTERM after step 1, which is saved; run the same command again to resume"
    assert line in capsys.readouterr().err.splitlines()
    progress = read_progress(newest(folder))
    assert (progress.step, progress.interim, progress.validation_due, progress.validations) == (1, True, False, [])
    assert not (folder / "final.pt").exists()
    with in_validation(signal.SIGINT), pytest.raises(Stopped, match="stopped by SIGINT after step 3") as stopped:
        tiny_corpus.train(folder, "max_epoch=1", "save_interval=3")
    assert stopped.value.exit_code == 130
    assert (read_progress(newest(folder)).validation_due, step_of(newest(folder))) == (True, 3)
    assert [signal.getsignal(number) for number in signals.SIGNALS] == handlers


@pytest.mark.slow
def test_signals_change_neither_bits_nor_metrics_nor_the_kept_checkpoints(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    settings = ("save_interval=3", "keep_checkpoints=1", "keep_best=0")
    whole, folder = tiny_corpus.train(tmp_path / "whole", *settings), tmp_path / "m"
    for interrupted in (at_step(signal.SIGTERM, 1), in_validation(signal.SIGINT)):
        with interrupted, pytest.raises(Stopped):
            tiny_corpus.train(folder, *settings)
    with in_validation(signal.SIGUSR1), pytest.raises(Stopped, match="stopped by SIGUSR1 after step 3") as stopped:
        tiny_corpus.train(folder, *settings)
    assert stopped.value.exit_code == 138
    with at_step(signal.SIGTERM, 6), pytest.raises(Stopped, match="after step 6"):  # a checkpoint was due at this step
        tiny_corpus.train(folder, *settings)
    assert [(record["kind"], record["step"]) for record in metrics(folder)][-2:] == [("train", 5), ("train", 6)]
    with at_step(signal.SIGTERM, 8), pytest.raises(Stopped, match="after step 8"):  # its validation is not done
        tiny_corpus.train(folder, *settings)
    tiny_corpus.train(folder, *settings)
    assert outcome(folder) == outcome(whole)
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [newest(whole).name]


def test_a_signal_while_final_pt_is_written_is_ignored(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    with sent_when(trainer, "write_final", signal.SIGTERM, lambda *args, **kwargs: True):
        folder = tiny_corpus.train(tmp_path / "m", "max_epoch=1")
    assert (folder / "checkpoints" / "finished.json").exists()


def test_signals_within_a_second_are_one_request_and_a_later_one_ends_the_process() -> None:
    assert signals.stop_requested() is None
    with signals.watch_signals():
        send(signal.SIGUSR1)
        send(signal.SIGTERM)
        assert signals.stop_requested() == signal.SIGUSR1
    assert signals.stop_requested() is None
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), signals.watch_signals():
            signals.SAME_REQUEST_SECONDS = 0.0
            send(signal.SIGTERM)
            send(signal.SIGTERM)
        os._exit(70)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_ignored_signals_stay_ignored_and_other_threads_set_no_handlers() -> None:
    earlier = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with signals.watch_signals():
            send(signal.SIGUSR1)
            assert signals.stop_requested() is None
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    seen = []

    def listen() -> None:
        with signals.watch_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_rank_without_a_signal_ends_with_the_code_of_sigterm() -> None:
    assert signals.stopped_after(7, Path("m/step-00000007")).exit_code == 143
