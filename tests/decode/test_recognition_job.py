# SPDX-License-Identifier: Apache-2.0
"""Restartable recognition: interrupted runs, several ranks and segments give the results of one
uninterrupted run.
"""

import json
import logging
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from model_folders import write_clip, write_model_folder
from thread_ranks import run_on_ranks

from wenet_hs.decode import DecodeOptions, job
from wenet_hs.decode.job import DecodingJob, assign_batches, recognize
from wenet_hs.decode.partial_results import DecodedBatch, PartialResults
from wenet_hs.decode.recognition import Recognition, Segment, join_segments, write_decoding_results
from wenet_hs.decode.segments import Piece, plan_batches
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.runs.hypotheses import Alternative
from wenet_hs.text.tokenizer import CharTokenizer, PhoneTokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import ConfigError, DataError

JOB = DecodingJob(
    modes=("ctc_greedy_search", "attention_rescoring"),
    options=DecodeOptions(beam_size=3),
    batch_size=2,
)
SECONDS = (0.5, 1.1, 0.7, 0.05, 0.9, 1.0, 0.6)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return load_experiment(write_model_folder(tmp_path_factory.mktemp("models") / "softmax"))


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    folder = tmp_path_factory.mktemp("clips")
    clips = [
        write_clip(folder / f"utt{i}.wav", seconds, seed=i) for i, seconds in enumerate(SECONDS)
    ]
    return [
        replace(clips[0], duration=None),
        *clips[1:],
        Utterance(key="gone", wav="gone.wav", txt="a"),
    ]


def results(
    found: Recognition | None, utterances: list[Utterance], experiment: Experiment, folder: Path
) -> Any:
    """The bytes of all result files."""
    assert found is not None
    write_decoding_results(folder, utterances, found, experiment)
    names = [
        "failed.tsv",
        *(f"{mode}/{name}" for mode in JOB.modes for name in ("text", "hyps.jsonl")),
    ]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def whole(
    experiment: Experiment, utterances: list[Utterance], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    return results(
        recognize(experiment, utterances, JOB, folder / "partial"), utterances, experiment, folder
    )


def test_an_interrupted_run_continues_with_the_same_results(
    experiment: Experiment,
    utterances: list[Utterance],
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    decoded: list[str] = []
    utterance_features = job.utterance_features

    def raise_killed(*args: Any) -> Any:
        decoded.append(args[0].key)
        if len(decoded) in (5, 8):  # in the third and in the fourth batch
            raise KeyboardInterrupt
        return utterance_features(*args)

    monkeypatch.setattr(job, "utterance_features", raise_killed)
    partial, settings = tmp_path / "partial", {"model": "a"}
    with pytest.raises(KeyboardInterrupt):
        recognize(experiment, utterances, JOB, partial, settings=settings)
    file = partial / "batches-0.jsonl"
    assert file.read_bytes().count(b"\n") == 2
    file.write_bytes(file.read_bytes() + b'{"number": 2, "seco')  # the last line is incomplete
    with pytest.raises(KeyboardInterrupt):
        recognize(experiment, utterances, JOB, partial, settings=settings)
    assert "2 of 4 batches are decoded already; continuing" in caplog.text
    found = recognize(experiment, utterances, JOB, partial, settings=settings)
    assert len(decoded) == 9  # seven clips, and twice the one at which the run was killed
    assert results(found, utterances, experiment, tmp_path) == whole

    recognize(experiment, utterances, JOB, partial, settings=settings)
    assert "4 of 4 batches" in caplog.text
    assert len(decoded) == 9
    (partial / "plan.json").write_text("{")
    assert PartialResults(partial).find({}) is None
    assert "plan.json: damaged; starting from the beginning" in caplog.text


def recognize_by_ranks(
    experiment: Experiment, utterances: list[Utterance], partial: Path, size: int
) -> Recognition:
    """The results of a list that is shared by `size` ranks."""
    first, *others = run_on_ranks(
        lambda world: recognize(experiment, utterances, JOB, partial, world=world), size
    )
    assert first is not None and others == [None] * (size - 1)
    return first


def test_ranks_share_the_batches_with_the_same_results(
    experiment: Experiment, utterances: list[Utterance], whole: Any, tmp_path: Path
) -> None:
    found = recognize_by_ranks(experiment, utterances, tmp_path / "partial", 3)
    assert sorted(found.seconds) == [0, 1, 2]
    assert results(found, utterances, experiment, tmp_path) == whole
    (tmp_path / "partial" / "batches-1.jsonl").unlink()  # this rank failed; two ranks continue
    found = recognize_by_ranks(experiment, utterances, tmp_path / "partial", 2)
    assert results(found, utterances, experiment, tmp_path) == whole


def test_only_what_failed_is_decoded_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = [
        write_clip(tmp_path / f"utt{i}.wav", seconds, seed=i, lang="tr")
        for i, seconds in enumerate(SECONDS)
    ]
    clips[0] = replace(clips[0], duration=None)  # its header is read when the batches are planned
    good = {clip.key: Path(clip.wav).read_bytes() for clip in clips}
    decode_batch = Mock(side_effect=job._decode_batch)
    monkeypatch.setattr(job, "_decode_batch", decode_batch)

    def decoded() -> list[list[int]]:
        """The rows of the list in each batch since the last call."""
        batches = [
            [piece.row for piece in call.args[1].clips] for call in decode_batch.call_args_list
        ]
        decode_batch.reset_mock()
        return sorted(batches)

    Path(clips[0].wav).unlink()
    for broken in (clips[2], clips[4]):
        Path(broken.wav).write_bytes(b"")
    assert set(recognize_by_ranks(experiment, clips, tmp_path / "partial", 2).failed) == {
        "utt0",
        "utt2",
        "utt4",
    }
    assert len(decoded()) == 3

    for clip in clips:
        Path(clip.wav).write_bytes(good[clip.key])
    found = recognize_by_ranks(experiment, clips, tmp_path / "partial", 2)
    assert not found.failed
    assert decoded() == [[0], [4, 2]]
    assert found.audio_seconds["tr"] == pytest.approx(sum(SECONDS))
    spent = sum(seconds for of_rank in found.seconds.values() for seconds in of_rank.values())
    assert spent == pytest.approx(sum(found.seconds_by_lang["tr"].values()))
    for mode in JOB.modes:
        assert found.segments[mode].keys() == good.keys()


def test_the_attempt_without_failures_or_the_last_one_is_used(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path)
    attempts = [(1, 0, 30.0, "b"), (1, 0, 10.0, "a"), (0, 0, 20.0, "c")]
    attempts += [(1, 1, 10.0, None), (0, 1, 20.0, "worse"), (0, 2, 10.0, "d"), (0, 2, 20.0, None)]
    for rank, number, started_at, reason in attempts:
        with partial.appending(rank) as append:
            append(DecodedBatch([reason or {}], {}, started_at, number, rank))
    best = {number: (result.rank, result.pieces[0]) for number, result in partial.read().items()}
    assert best == {0: (1, "b"), 1: (1, {}), 2: (0, {})}


def test_a_missing_batch_and_out_of_memory_are_one_line(
    experiment: Experiment,
    utterances: list[Utterance],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: Any = PartialResults.read
    with monkeypatch.context() as patched:
        patched.setattr(
            PartialResults, "read", lambda self: {n: one for n, one in read(self).items() if n != 2}
        )
        message = "partial: 1 of 4 batches are missing (the first is 2); run the same command again"
        with pytest.raises(DataError, match=re.escape(message)):
            recognize(experiment, utterances, JOB, tmp_path / "partial")
    text = "DefaultCPUAllocator: can't allocate memory: 8 bytes."
    monkeypatch.setattr(job, "utterance_features", Mock(side_effect=RuntimeError(text)))
    line = "out of memory with a batch of 2, the longest of 1.1 s (utt1, utt5); lower --batch_size or --max_segment_s"
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        recognize(experiment, utterances, JOB, tmp_path)
    monkeypatch.setattr(job, "utterance_features", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        recognize(experiment, utterances, JOB, tmp_path)


def test_batches_have_similar_lengths_and_ranks_similar_seconds() -> None:
    pieces = [
        Piece(row, seconds)
        for row, seconds in enumerate((250.0, 400.0, 100.0, 200.0, 99.0, 98.0, 97.0))
    ]
    rows = [[piece.row for piece in batch] for batch in plan_batches(pieces, 3)]
    assert rows == [[1], [0, 3], [2, 4, 5], [6]]  # two of 400 s are more than MAX_BATCH_S
    rows = [[piece.row for piece in batch] for batch in plan_batches(pieces, 3, max_batch_s=250.0)]
    assert rows == [[1], [0], [3], [2, 4], [5, 6]]
    batches = plan_batches([Piece(row, 1 + row * 7 % 23) for row in range(200)], 8)
    shares = assign_batches(batches, {0, 5}, 3)
    assert sorted(number for share in shares for number in share) == sorted(
        {*range(len(batches))} - {0, 5}
    )
    seconds = [
        sum(len(batches[number]) * batches[number][0].duration_s for number in share)
        for share in shares
    ]
    assert max(seconds) - min(seconds) < 0.1 * max(seconds)


def test_the_encoder_limits_segments_and_batches(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clips = [
        write_clip(tmp_path / f"{name}.wav", seconds, seed=1)
        for name, seconds in (("a", 11.0), ("b", 4.1))
    ]
    five = replace(JOB, max_segment_s=5.0, batch_size=8)
    expected = recognize(experiment, clips, five, tmp_path / "expected")
    for owner, name, value in (
        (experiment.model.encoder, "longest_s", 5.0),
        (experiment.model.encoder, "max_batch_s", 10.0),
        (experiment.frontend, "window_s", 5.0),
    ):
        monkeypatch.setattr(owner, name, value)
    found = recognize(experiment, clips, replace(five, max_segment_s=60.0), tmp_path / "found")
    assert found is not None and expected is not None
    for mode, key in product(JOB.modes, ("a", "b")):
        texts, wanted = (
            [(part.begin_s, part.nbest[0].units) for part in one.segments[mode][key]]
            for one in (found, expected)
        )
        assert texts == wanted and len(texts) == {"a": 3, "b": 1}[key]
    batches = json.loads((tmp_path / "found" / "plan.json").read_text())["batches"]
    assert len(batches) > 1 and all(len(batch) * batch[0][1] <= 10 for batch in batches)
    assert not caplog.messages
    recognize(experiment, clips, replace(five, max_segment_s=0.0), tmp_path / "whole")
    line = "max_segment_s 0: the encoder cuts clips longer than 5 s in the middle of words: 1 of 2; with --max"
    assert caplog.text.count(line) == len(caplog.messages) == 1


def test_a_long_clip_has_the_hypotheses_of_its_segments(
    experiment: Experiment, tmp_path: Path
) -> None:
    long = write_clip(tmp_path / "long.wav", 11.0, seed=1)
    Path(long.wav).write_bytes(Path(long.wav).read_bytes()[:-32])  # lacks 1 ms
    short = write_clip(tmp_path / "short.wav", 0.8, seed=2)
    gone = replace(long, key="shorter", duration=14.0)
    cutting = replace(JOB, max_segment_s=4.0, batch_size=16)
    found = recognize(experiment, [long, short, gone], cutting, tmp_path / "p")
    assert found is not None
    assert (
        "long.wav: cut off: 11.00 s, the data list says 14.00 s; restore the file"
        in found.failed["shorter"]
    )
    parts = found.segments["attention_rescoring"]["long"]
    assert found.incomplete == {"long"}
    bounds = [*(part.begin_s for part in parts), 11.0]
    assert len(parts) >= 3
    assert all(1 <= end - begin <= 4 for begin, end in pairwise(bounds))
    segments = [
        replace(long, key=f"{begin}", start=begin, end=end, duration=None)
        for begin, end in pairwise(bounds)
    ]
    alone = recognize(
        experiment, [*segments, short], replace(cutting, max_segment_s=0), tmp_path / "p2"
    )
    assert alone is not None
    for mode in JOB.modes:
        assert found.segments[mode]["short"] == alone.segments[mode]["short"]
        best = [alone.segments[mode][segment.key][0].nbest[0] for segment in segments]
        assert [part.nbest[0].units for part in found.segments[mode]["long"]] == [
            one.units for one in best
        ]
    write_decoding_results(tmp_path, [long, short], found, experiment)
    record = json.loads(
        (tmp_path / "attention_rescoring" / "hyps.jsonl").read_text("utf-8").splitlines()[0]
    )
    assert record["cuts"] == bounds[1:-1]
    assert len(record["nbest"]) == 1
    assert record["score"] == sum(part.nbest[0].score for part in parts)


def test_texts_of_segments_are_joined_as_words_characters_or_phones() -> None:
    def text(tokenizer: Any, *segments: str) -> str:
        parts = [Segment(0.0, [Alternative(text=one, score=0.0, units=())]) for one in segments]
        return join_segments(parts, tokenizer).nbest[0].text

    assert text(CharTokenizer(UnitTable.from_units("▁ab")), "ab a", "", " b") == "ab a b"
    assert text(make_tokenizer("char", UnitTable.from_units(["a", "<space>"])), "a", "a") == "a a"
    assert text(CharTokenizer(UnitTable.from_units("你好")), "你", "好") == "你好"
    assert text(PhoneTokenizer(UnitTable.from_units(["tʃ", "a"])), "tʃ a", "a") == "tʃ a a"
