# SPDX-License-Identifier: Apache-2.0
"""Recognition as a job: interrupted, shared by ranks or in segments, it says what one undisturbed run says."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from model_folders import write_clip, write_model_folder

from wenet_hs.build import Experiment, load_experiment
from wenet_hs.decode import DecodeOptions, Hypothesis, recognition
from wenet_hs.decode.outcome import Part, Recognition
from wenet_hs.decode.partial import PartialResults
from wenet_hs.decode.plan import Piece, deal, plan_batches
from wenet_hs.decode.ranks import Ranks
from wenet_hs.decode.recognition import Job, recognize
from wenet_hs.decode.results import joined_text, write_results, write_speed
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenize import CharTokenizer, PhoneTokenizer
from wenet_hs.text.units import UnitTable

JOB = Job(modes=("ctc_greedy_search", "attention_rescoring"), options=DecodeOptions(beam_size=3), batch_size=2)
SECONDS = (0.5, 1.1, 0.7, 0.05, 0.9, 1.0, 0.6)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return load_experiment(write_model_folder(tmp_path_factory.mktemp("models") / "softmax"))


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    folder = tmp_path_factory.mktemp("clips")
    clips = [write_clip(folder / f"utt{i}.wav", seconds, seed=i) for i, seconds in enumerate(SECONDS)]
    return [replace(clips[0], duration=None), *clips[1:], Utterance(key="gone", wav="gone.wav", txt="a")]


def results(found: Recognition | None, utterances: list[Utterance], experiment: Experiment, folder: Path) -> Any:
    """The bytes of all result files but the one with times."""
    assert found is not None
    write_results(folder, utterances, found, experiment.tokenizer)
    write_speed(folder / "rtf.json", found, JOB, {}, device="cpu")
    names = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "rtf.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names if "partial" not in path.parts}


@pytest.fixture(scope="module")
def whole(experiment: Experiment, utterances: list[Utterance], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    return results(recognize(experiment, utterances, JOB, folder / "partial"), utterances, experiment, folder)


class Killed(BaseException):
    """What no code catches."""


def test_an_interrupted_run_goes_on_and_says_the_same(
    experiment: Experiment,
    utterances: list[Utterance],
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert set(whole) == {"failed.tsv", *(f"{mode}/{name}" for mode in JOB.modes for name in ("text", "hyps.jsonl"))}
    caplog.set_level(logging.INFO)
    decoded: list[int] = []
    read_features = recognition._read_features

    def dying(*args: Any) -> Any:
        decoded.append(len(args[1]))
        if len(decoded) in (3, 5):
            raise Killed
        return read_features(*args)

    monkeypatch.setattr(recognition, "_read_features", dying)
    partial, settings = tmp_path / "partial", {"model": "a"}
    with pytest.raises(Killed):
        recognize(experiment, utterances, JOB, partial, settings=settings)
    file = partial / "batches-0.jsonl"
    assert file.read_bytes().count(b"\n") == 2
    file.write_bytes(file.read_bytes() + b'{"number": 2, "seco')  # it was cut off in the midst of a line
    with pytest.raises(Killed):
        recognize(experiment, utterances, JOB, partial, settings=settings)
    assert "2 of 4 batches are decoded already; going on" in caplog.text
    found = recognize(experiment, utterances, JOB, partial, settings=settings)
    assert len(decoded) == 6  # four batches, two of which were in flight once
    assert results(found, utterances, experiment, tmp_path) == whole

    caplog.clear()  # all is decoded, the results were not written
    found = recognize(experiment, utterances, JOB, partial, settings=settings)
    assert results(found, utterances, experiment, tmp_path) == whole
    assert "4 of 4 batches" in caplog.text
    assert len(decoded) == 6
    found = recognize(experiment, utterances, JOB, partial, settings={"model": "b"})
    assert "of an interrupted run with other settings (model); starting anew" in caplog.text
    assert len(decoded) == 10
    (partial / "plan.json").write_text("{")
    assert PartialResults(partial).find(settings) is None
    assert "plan.json: damaged; starting anew" in caplog.text


@dataclass
class Threads:
    """Ranks that are threads of one process."""

    rank: int
    size: int
    barrier: Barrier
    told: dict[int, bytes] = field(default_factory=dict)

    def gather(self, content: bytes) -> list[bytes]:
        self.told[self.rank] = content
        self.barrier.wait(60)
        everything = [self.told[rank] for rank in range(self.size)]
        self.barrier.wait(60)
        return everything

    def wait_for_all(self) -> None:
        self.barrier.wait(60)


def test_ranks_share_the_batches_and_say_the_same(
    experiment: Experiment, utterances: list[Utterance], whole: Any, tmp_path: Path
) -> None:
    def run(size: int) -> Recognition:
        barrier, told = Barrier(size), dict[int, bytes]()
        ranks: list[Ranks] = [Threads(rank, size, barrier, told) for rank in range(size)]
        with ThreadPoolExecutor(size) as pool:
            found = list(
                pool.map(lambda r: recognize(experiment, utterances, JOB, tmp_path / "partial", ranks=r), ranks)
            )
        assert found[1:] == [None] * (size - 1)
        assert found[0] is not None
        return found[0]

    found = run(3)
    assert sorted(found.seconds) == [0, 1, 2]
    assert results(found, utterances, experiment, tmp_path) == whole
    (tmp_path / "partial" / "batches-1.jsonl").unlink()  # this rank died; two others finish
    assert results(run(2), utterances, experiment, tmp_path) == whole


def test_shares_are_of_about_equal_seconds() -> None:
    batches = plan_batches([Piece(row, 1 + row * 7 % 23) for row in range(200)], 8)
    shares = deal(batches, {0, 5}, 3)
    assert sorted(number for share in shares for number in share) == sorted({*range(len(batches))} - {0, 5})
    seconds = [sum(len(batches[number]) * batches[number][0].duration_s for number in share) for share in shares]
    assert max(seconds) - min(seconds) < 0.1 * max(seconds)


def test_a_long_clip_says_what_its_segments_say(experiment: Experiment, tmp_path: Path) -> None:
    long = write_clip(tmp_path / "long.wav", 11.0, seed=1)
    short = write_clip(tmp_path / "short.wav", 0.8, seed=2)
    gone = replace(long, key="shorter", duration=14.0)
    job = replace(JOB, max_segment_s=4.0, batch_size=16)
    found = recognize(experiment, [long, short, gone], job, tmp_path / "p")
    assert found is not None
    assert "long.wav: cut off: 11.00 s, the data list says 14.00 s; restore the file" in found.failed["shorter"]
    parts = found.parts["attention_rescoring"]["long"]
    bounds = [*(part.begin_s for part in parts), 11.0]
    assert len(parts) >= 3
    assert all(1 <= end - begin <= 4 for begin, end in zip(bounds[:-1], bounds[1:], strict=True))
    segments = [
        replace(long, key=f"{number}", start=begin, end=end, duration=None)
        for number, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True))
    ]
    alone = recognize(experiment, [*segments, short], replace(job, max_segment_s=0), tmp_path / "p2")
    assert alone is not None
    for mode in job.modes:
        assert found.parts[mode]["short"] == alone.parts[mode]["short"]
        best = [alone.parts[mode][segment.key][0].nbest[0] for segment in segments]
        assert [part.nbest[0].ids for part in found.parts[mode]["long"]] == [one.ids for one in best]
    write_results(tmp_path, [long, short], found, experiment.tokenizer)
    record = json.loads((tmp_path / "attention_rescoring" / "hyps.jsonl").read_text("utf-8").splitlines()[0])
    assert record["cuts"] == bounds[1:-1]
    assert len(record["nbest"]) == 1
    assert record["score"] == sum(part.nbest[0].score for part in parts)
    if "times" in record:
        flat = [second for times in record["times"] for second in times]
        assert len(flat) == 2 * len(record["units"])
        assert flat == sorted(flat)


def test_texts_of_segments_are_joined_as_words_characters_or_phones() -> None:
    def text(tokenizer: Any, *segments: str) -> str:
        return joined_text([Part(0.0, [Hypothesis(tuple(tokenizer.encode(one)), 0.0)]) for one in segments], tokenizer)

    words = CharTokenizer(UnitTable.from_units("▁ab"))
    assert text(words, "ab a", "", " b") == "ab a b"
    assert text(words, " ab ") == " ab "  # one segment stays as it is
    assert text(CharTokenizer(UnitTable.from_units("你好")), "你", "好") == "你好"
    assert text(PhoneTokenizer(UnitTable.from_units(["tʃ", "a"])), "tʃ a", "a") == "tʃ a a"
