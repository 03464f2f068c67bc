# SPDX-License-Identifier: Apache-2.0
"""What a training writes into its run record: at the start, while it runs, at each resume and at
its end.
"""

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_corpus import TinyCorpus, cut_back

from wenet_hs.base.files import file_sha256
from wenet_hs.compute.distributed import World
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.runs.record import End, FirstWeights, RunRecord, Start, read_run, write_run
from wenet_hs.train import run_recorder, training
from wenet_hs.train.model_folder import prepare_folder, resolve_auto
from wenet_hs.train.run_recorder import MAX_WARNINGS, RunRecorder
from wenet_hs.train.start import find_earlier_training, read_request
from wenet_hs.train.start_record import Hardware
from wenet_hs.train.state import Progress
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, Stopped

TRAINED_STEPS = 8


def record_of(model_dir: Path) -> RunRecord:
    record = read_run(model_dir)
    assert record is not None
    return record


def stop_at(step: int) -> pytest.MonkeyPatch:
    """From this step on a training acts as if it had received a signal, until the patch is undone."""
    patch = pytest.MonkeyPatch()

    def is_asked(running: training.TrainingLoop, *, at_step: bool = False) -> bool:
        return running.state.progress.step == step

    patch.setattr(training.TrainingLoop, "_is_asked_to_stop", is_asked)
    return patch


def test_the_record_of_a_whole_training(tiny_corpus: TinyCorpus, trained_tree: Path) -> None:
    record = record_of(trained_tree)
    assert (record.model, record.head, record.ctc_head, record.seed) == (
        "recogniser",
        "hsoftmax",
        "softmax",
        1,
    )
    assert record.trees == {"tree.json": "huffman"}
    assert record.lists.train_paths == [str(tiny_corpus.train_data)]
    assert record.lists.train_sums == [file_sha256(tiny_corpus.train_data)]
    assert record.lists.valid_paths == [str(tiny_corpus.cv_data)]
    assert record.first_weights == FirstWeights(kind="random")
    assert [start.step for start in record.starts] == [0]
    assert record.steps is not None
    assert (record.steps.planned, record.steps.per_epoch, record.steps.warmup) == (
        TRAINED_STEPS,
        4,
        4,
    )
    assert record.resources is not None
    assert [(size.name, size.utterances) for size in record.resources.lists] == [
        ("training", 10),
        ("validation", 3),
    ]
    assert record.progress is not None
    assert (record.progress.step, record.progress.epoch, record.progress.dev_step) == (
        TRAINED_STEPS,
        2,
        TRAINED_STEPS,
    )
    assert record.progress.losses.keys() >= {"loss", "loss_att", "loss_ctc"}
    assert record.progress.dev_error_rate is not None
    assert record.end is not None and record.end.state == "trained"
    assert record.state(trained_tree) == "trained"


def test_a_stop_and_a_resume_are_one_entry_each(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    patch = stop_at(2)
    try:
        with pytest.raises(Stopped):
            tiny_corpus.train(folder)
    finally:
        patch.undo()
    stopped = record_of(folder)
    assert stopped.state(folder) == "stopped"
    assert (
        stopped.end is not None
        and stopped.end.text == "stopped by SIGTERM after step 2, which is saved"
    )
    tiny_corpus.train(folder)
    resumed = record_of(folder)
    assert [start.step for start in resumed.starts] == [0, 2]
    assert resumed.end is not None and resumed.end.state == "trained"
    assert resumed.starts[0] == stopped.starts[0]


def record_at_resume(corpus: TinyCorpus, folder: Path) -> RunRecord:
    """The record with which a resumed training begins."""
    request = read_request(corpus.options(folder), None, 1, ExperimentConfig)
    earlier = find_earlier_training(folder, "auto", World(), ExperimentConfig)
    config = resolve_auto(
        request.config, torch.device("cpu"), where=request.config_file, earlier=earlier
    )
    hardware = Hardware(processors=("P",), ranks=1)
    record = prepare_folder(replace(request, config=config), earlier, hardware).record
    assert record is not None
    return record


def test_a_resume_does_not_promise_the_time_of_the_start_before(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    folder = cut_back(trained, tmp_path / "m", 3)
    before = record_of(folder)
    assert before.progress is not None
    slow = before.progress.model_copy(
        update={"first_seconds_per_step": 9.0, "seconds_left": 99.0, "speed": 0.1}
    )
    write_run(folder, before.model_copy(update={"progress": slow}))
    record = record_at_resume(tiny_corpus, folder)
    assert record.progress is not None
    assert (record.progress.step, record.progress.seconds) == (slow.step, slow.seconds)
    assert (
        record.progress.first_seconds_per_step,
        record.progress.seconds_left,
        record.progress.speed,
    ) == (
        None,
        None,
        None,
    )
    assert record.resources is None


def test_a_training_that_has_ended_is_not_started_again(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    folder = shutil.copytree(trained, tmp_path / "m")
    before = (folder / "run.json").read_bytes()
    tiny_corpus.train(folder)
    assert (folder / "run.json").read_bytes() == before


def test_an_end_that_a_kill_has_prevented_is_written_by_the_next_run(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    folder = shutil.copytree(trained, tmp_path / "m")
    killed = record_of(folder).model_copy(update={"end": None})
    write_run(folder, killed)
    assert killed.state(folder) == "killed"
    tiny_corpus.train(folder)
    record = record_of(folder)
    assert record.end is not None and record.end.state == "trained"
    assert record.starts == killed.starts


def test_a_resume_that_is_refused_leaves_the_record(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path
) -> None:
    folder = cut_back(trained, tmp_path / "m", 3)
    before = (folder / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="seed was 1, is now 2"):
        tiny_corpus.train(folder, "seed=2")
    with pytest.raises(CheckpointError, match="trained with another validation list"):
        tiny_corpus.train(folder, cv_data=tiny_corpus.train_data)
    assert (folder / "run.json").read_bytes() == before


def test_a_new_training_that_fails_says_why(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with pytest.raises(DataError) as caught:
        tiny_corpus.train(folder, cv_data=tmp_path / "none.list")
    record = record_of(folder)
    assert record.end is not None
    assert (record.end.state, record.end.text) == ("failed", str(caught.value))
    assert record.state(folder) == "failed"


def test_warnings_have_a_code_a_step_and_the_sentence_of_the_log(
    tiny_corpus: TinyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    units = (tiny_corpus.folder / "units.txt").read_text()
    (tmp_path / "units.txt").write_text(units.replace("e 7\n", ""))
    table = f"tokenizer_conf.symbol_table_path={tmp_path / 'units.txt'}"
    many = "dataset_conf.max_unknown_units=1"
    folder = tiny_corpus.train(tmp_path / "m", table, many, "max_minutes=1e-9")
    warnings = record_of(folder).warnings
    assert [(warning.code, warning.step) for warning in warnings] == [
        ("unknown_units", 0),
        ("unknown_units", 0),
        ("ended_in_warmup", 1),
    ]
    assert [warning.text for warning in warnings] == [
        entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING
    ]


def test_the_newest_warnings_are_kept(tmp_path: Path) -> None:
    position = Progress()
    with RunRecorder(tmp_path, RunRecord(starts=(Start(),))) as recorder:
        recorder.use_position(position)
        recorder.begin()
        for position.step in range(MAX_WARNINGS + 5):
            logging.getLogger("wenet_hs.anything").warning("number %d", position.step)
    warnings = record_of(tmp_path).warnings
    assert len(warnings) == MAX_WARNINGS
    assert (warnings[0].text, warnings[-1].step) == ("number 5", MAX_WARNINGS + 4)
    logging.getLogger("wenet_hs.anything").warning("after the end")
    assert record_of(tmp_path).warnings == warnings


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (
            DataError("a.list", "is empty", "give another one"),
            "failed",
            "a.list: is empty; give another one",
        ),
        (ZeroDivisionError("division\nby zero"), "failed", "ZeroDivisionError: division by zero"),
        (Stopped("x", "stopped by SIGINT", "run it again", 130), "stopped", "stopped by SIGINT"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
    ],
)
def test_the_end_by_an_error(tmp_path: Path, error: BaseException, state: str, text: str) -> None:
    recorder = RunRecorder(tmp_path, RunRecord(starts=(Start(),)))
    with pytest.raises(type(error)), recorder:
        recorder.begin()
        raise error
    end = record_of(tmp_path).end
    assert end is not None and (end.state, end.text) == (state, text)


def test_a_resume_keeps_the_last_validation_until_the_next_one(
    tiny_corpus: TinyCorpus, tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cut_back(trained, tmp_path / "m", 5)
    seen = list[tuple[int, int | None]]()

    def write(model_dir: Path, record: RunRecord) -> None:
        assert record.progress is not None
        seen.append((record.progress.step, record.progress.dev_step))
        write_run(model_dir, record)

    monkeypatch.setattr(run_recorder, "write_run", write)
    tiny_corpus.train(folder)
    assert seen[0] == (5, TRAINED_STEPS), (
        "the validations of the killed run, at the position of the checkpoint"
    )
    assert (6, 6) in seen and None not in [dev_step for _, dev_step in seen]


def test_a_stop_between_two_log_intervals_is_at_its_step(
    tiny_corpus: TinyCorpus, tmp_path: Path
) -> None:
    patch = stop_at(3)
    try:
        with pytest.raises(Stopped):
            tiny_corpus.train(tmp_path / "m", "log_interval=100", "save_interval=100")
    finally:
        patch.undo()
    progress = record_of(tmp_path / "m").progress
    assert progress is not None and progress.step == 3


def test_a_record_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(model_dir: Path, record: RunRecord) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with RunRecorder(tmp_path, RunRecord(starts=(Start(),))) as recorder:
        recorder.begin()
        with monkeypatch.context() as patch:
            patch.setattr(run_recorder, "write_run", fail)
            recorder.record_progress(losses={"loss": 1.0})
            recorder.record_progress(losses={"loss": 2.0})
        recorder.record_progress(losses={"loss": 3.0})
    warnings = [entry.getMessage() for entry in caplog.records]
    assert warnings == [f"{tmp_path}/run.json: cannot be written ({os.strerror(errno.EDQUOT)})"]
    progress = record_of(tmp_path).progress
    assert progress is not None and progress.losses == {"loss": 3.0}


def test_a_wrong_call_of_the_logger_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunRecorder(tmp_path, RunRecord(starts=(Start(),))) as recorder:
        recorder.begin()
        entry = logging.LogRecord("wenet_hs.x", logging.WARNING, "x.py", 1, "a %d", ("b",), None)
        logging.getLogger("wenet_hs").handlers[-1].handle(entry)
    assert "Logging error" in capsys.readouterr().err
    assert record_of(tmp_path).warnings == ()


def test_nothing_is_written_before_the_begin(tmp_path: Path) -> None:
    with RunRecorder(
        tmp_path, RunRecord(end=End(state="trained", time="2026-11-28T10:00:00Z"))
    ) as recorder:
        recorder.record_warning("general", "text")
        recorder.confirm_end()
    assert not (tmp_path / "run.json").exists()
