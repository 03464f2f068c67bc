# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs align`: JSON lines, CTM and TextGrid; errors of single utterances."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from command_line import Capsys, error_line
from model_folders import HSOFTMAX, write_clip, write_model_folder
from praatio import textgrid

from wenet_hs.bin import align as align_command
from wenet_hs.bin.main import run_command
from wenet_hs.build import load_experiment
from wenet_hs.decode import alignment, segments
from wenet_hs.decode.output import TimedText
from wenet_hs.manifest import Utterance, write_data_list

TEXTS = {"utt0": "ab a", "utt1": "cc d", "nested/utt2": "g"}
SECONDS = (0.6, 1.1, 0.4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "hsoftmax", **HSOFTMAX)


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    found = []
    for index, (key, txt) in enumerate(TEXTS.items()):
        clip = write_clip(tmp_path / "clips" / f"{index}.wav", SECONDS[index], seed=index, lang="tr")
        found.append(replace(clip, key=key, txt=txt, duration=None if index == 2 else clip.duration))
    return found


def run(folder: Path, utterances: list[Utterance], out: Path, *flags: str) -> int:
    write_data_list(out.parent / "data.list", utterances)
    paths = ["--model_dir", str(folder), "--data_list", str(out.parent / "data.list"), "--out", str(out)]
    return run_command(align_command, [*paths, "--device", "cpu", *flags])


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_textgrid(path: Path) -> dict[str, list[tuple[float, float, str]]]:
    """Intervals by tier."""
    grid = textgrid.openTextgrid(str(path), includeEmptyIntervals=True)
    return {tier.name: [tuple(interval) for interval in tier.entries] for tier in grid.tiers}


def test_units_and_words_as_json_lines_ctm_and_textgrids(
    folder: Path, utterances: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    flags = ("--batch_size", "2", "--textgrid", str(tmp_path / "praat"), "--ctm", str(tmp_path / "words.ctm"))
    assert run(folder, utterances, tmp_path / "align.jsonl", *flags) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'align.jsonl'}: 3 utterances\n"
    found = records(tmp_path / "align.jsonl")
    assert [record["key"] for record in found] == list(TEXTS)
    ctm = [line.split() for line in (tmp_path / "words.ctm").read_text("utf-8").splitlines()]
    words = [(key, "1", word) for key, text in TEXTS.items() for word in text.split()]
    assert [(row[0], row[1], row[4]) for row in ctm] == words
    assert len(list((tmp_path / "praat").iterdir())) == 3
    for record, seconds in zip(found, SECONDS, strict=True):
        assert (record["lang"], record["text"]) == ("tr", TEXTS[record["key"]])
        assert [unit["text"] for unit in record["units"]] == list(record["text"].replace(" ", "▁"))
        assert [word["text"] for word in record["words"]] == record["text"].split()
        times = [(unit["start"], unit["end"]) for unit in record["units"]]
        assert times == sorted(times)
        assert 0.0 < times[0][0] < times[-1][1] < seconds
        for start, end in times:
            assert (end - start) / 0.04 == pytest.approx(round((end - start) / 0.04))
        assert all(0 < part["confidence"] <= 1 for part in (*record["units"], *record["words"], record))
        assert record["score"] < 0
        starts = [float(row[2]) for row in ctm if row[0] == record["key"]]
        assert starts == [word["start"] for word in record["words"]]
        tiers = read_textgrid(tmp_path / "praat" / f"{record['key'].replace('/', '%2F')}.TextGrid")
        assert list(tiers) == ["units", "words"]
        for name, intervals in tiers.items():
            assert (intervals[0][0], intervals[-1][1]) == (0.0, seconds)
            assert all(one[1] == other[0] for one, other in zip(intervals, intervals[1:], strict=False))
            spoken = [(start, end, text) for start, end, text in intervals if text]
            assert spoken == [(part["start"], part["end"], part["text"]) for part in record[name]]


def test_the_batch_changes_nothing(
    folder: Path, utterances: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, utterances, tmp_path / "one.jsonl", "--batch_size", "1")
    sizes: list[int] = []
    monkeypatch.setattr(segments, "MAX_BATCH_S", 1.5)  # 1.1 and 0.6 s padded are 2.2 s, 0.6 and 0.4 s are 1.2 s
    found = alignment.align_utterances(load_experiment(folder), utterances, on_progress=sizes.append)
    assert sizes == [0, 1, 2]
    for record in records(tmp_path / "one.jsonl"):
        aligned = found[record["key"]]
        assert isinstance(aligned, alignment.AlignedUtterance)
        assert [[unit.start, unit.end] for unit in aligned.units] == [[u["start"], u["end"]] for u in record["units"]]
        assert aligned.score == pytest.approx(record["score"], abs=1e-3)


def test_the_ctm_of_a_phone_model_has_phones(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "phones", tokenizer="phone")
    clip = replace(write_clip(tmp_path / "clip.wav", 0.9), txt="a c b")
    assert run(folder, [clip], tmp_path / "align.jsonl", "--ctm", str(tmp_path / "phones.ctm")) == 0
    assert [line.split()[4] for line in (tmp_path / "phones.ctm").read_text("utf-8").splitlines()] == ["a", "c", "b"]
    assert [word["text"] for word in records(tmp_path / "align.jsonl")[0]["words"]] == ["a c b"]


def test_a_textgrid_with_quotes_that_is_shorter_than_its_last_unit(tmp_path: Path) -> None:
    word = TimedText(text='say "a"', start=0.0, end=0.5, confidence=1.0)
    clip = Utterance(key="a", wav="a.wav", txt="")
    parts = {"units": (), "words": (word,), "score": 0.0, "confidence": 1.0}
    alignment.write_textgrids(tmp_path, [alignment.AlignedUtterance(utterance=clip, duration_s=0.4, **parts)])
    assert read_textgrid(tmp_path / "a.TextGrid") == {"units": [(0.0, 0.5, "")], "words": [(0.0, 0.5, 'say "a"')]}


def test_utterances_that_cannot_be_aligned_are_named_and_the_others_aligned(
    folder: Path, utterances: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    texts = {"unknown": "a xyz", "silent": "", "long": "aab" * 9}
    bad = [replace(utterances[0], key=key, txt=txt) for key, txt in texts.items()]
    bad.append(replace(utterances[0], key="gone", wav=str(tmp_path / "gone.wav")))
    state = torch.load(folder / "final.pt", weights_only=True)
    state["ctc.head.output.bias"][5] = -torch.inf  # "c", only in the second transcript
    torch.save(state, tmp_path / "never.pt")
    checkpoint = ("--checkpoint", str(tmp_path / "never.pt"))
    assert run(folder, [*bad, *utterances], tmp_path / "align.jsonl", *checkpoint) == 2
    assert [record["key"] for record in records(tmp_path / "align.jsonl")] == ["utt0", "nested/utt2"]
    expected = (
        "utterance unknown: the transcript has units that the model does not know: 'x' 'y' 'z'; correct it",
        "utterance silent: the transcript is empty; add the text, or leave the utterance out",
        "utterance long: .*0.wav: 13 encoder frames, but CTC needs 36 for this transcript; check that audio",
        "utterance gone: .*gone.wav: missing",
        "utterance utt1: the model gives this transcript the probability 0; check",
        ".*data.list: 5 of 7 utterances could not be aligned; see the lines above",
    )
    for pattern, line in zip(expected, capsys.readouterr().err.splitlines(), strict=True):
        assert re.match(pattern, line)


def test_wrong_flags_and_models(
    folder: Path, utterances: list[Utterance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    out = tmp_path / "align.jsonl"
    assert error_line(run(folder, utterances, out, "--batch_size", "0"), capsys) == "--batch_size 0: must be at least 1"
    untrained = write_model_folder(tmp_path / "untrained", model_conf={"ctc_weight": 0.0})
    found = error_line(run(untrained, utterances, out), capsys)
    assert "train.yaml: model_conf.ctc_weight is 0, so CTC was not trained and cannot align; use" in found
    state = torch.load(folder / "final.pt", weights_only=True)
    state["ctc.head.output.bias"][0] = torch.nan
    torch.save(state, tmp_path / "nan.pt")
    found = error_line(run(folder, utterances, out, "--checkpoint", str(tmp_path / "nan.pt")), capsys)
    assert found.startswith("CTC output: NaN; the weights are damaged")
    monkeypatch.setattr(alignment, "align_units", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    found = error_line(run(folder, utterances, out, "--batch_size", "2"), capsys)
    large = "out of memory with a batch of 2, the longest of 1.1 s (utt1, utt0)"
    assert found == f"{large}; lower --batch_size, or cut the longest utterances"
    assert not out.exists()
