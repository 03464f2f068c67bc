# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs recognize` and `transcribe`: output files, order, failures, restart."""

import hashlib
import io
import json
import logging
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import soundfile
import torch
from lock_holder import holder
from model_folders import HSOFTMAX, noise, write_clip, write_model_folder

from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import transcribe as transcribe_command
from wenet_hs.bin.command import run_command
from wenet_hs.build import load_experiment
from wenet_hs.decode import MODES, job
from wenet_hs.decode.modes import stages_of
from wenet_hs.manifest import Utterance, read_text, write_data_list

SECONDS = (0.5, 1.1, 0.7, 0.05, 0.9)
GREEDY = ("--modes", "ctc_greedy_search", "--batch_size", "2")
Capsys = pytest.CaptureFixture[str]
Decoded = tuple[Path, list[Utterance], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "hsoftmax", **HSOFTMAX)


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    return [write_clip(tmp_path / "clips" / f"utt{i}.wav", s, seed=i, lang="tr") for i, s in enumerate(SECONDS)]


def run(folder: Path, utterances: list[Utterance], out: Path, *flags: str) -> int:
    write_data_list(out.parent / "data.list", utterances)
    arguments = ["--model_dir", str(folder), "--test_data", str(out.parent / "data.list"), "--result_dir", str(out)]
    return run_command(recognize_command, [*arguments, "--device", "cpu", "--beam_size", "4", *flags])


def greedy_texts(out: Path) -> dict[str, str]:
    return read_text(out / "ctc_greedy_search" / "text")


def read_rtf(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "rtf.json").read_text("utf-8"))
    return report


@pytest.fixture(scope="module")
def decoded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    """The results of all modes for clips of two languages, their list, and what was printed and logged."""
    out = tmp_path_factory.mktemp("decoded") / "out"
    langs = ("tr", "ru", "tr", "ru", None)
    clips = [
        write_clip(out.parent / "clips" / f"utt{i}.wav", seconds, seed=i, lang=lang)
        for i, (seconds, lang) in enumerate(zip(SECONDS, langs, strict=True))
    ]
    printed, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        with redirect_stdout(printed):
            assert run(folder, clips, out, "--batch_size", "2") == 0
    finally:
        logging.getLogger().removeHandler(handler)
    return out, clips, printed.getvalue() + log.getvalue()


@pytest.mark.parametrize("mode", MODES)
def test_results_in_the_order_of_the_list(decoded: Decoded, mode: str) -> None:
    out, clips, printed = decoded
    texts = read_text(out / mode / "text")
    assert list(texts) == [clip.key for clip in clips]
    lines = (out / mode / "hyps.jsonl").read_text("utf-8").splitlines()
    for clip, record in zip(clips, map(json.loads, lines), strict=True):
        assert (record["key"], record["lang"], record["text"].strip()) == (clip.key, clip.lang, texts[clip.key])
        assert record["nbest"][0] == {name: record[name] for name in ("text", "score", "units")}
        assert 1 <= len(record["nbest"]) <= 4
        if "times" in record:
            assert len(record["times"]) == len(record["units"])
            flat = [second for times in record["times"] for second in times]
            assert flat == sorted(flat)
            assert all(0 < second < float(clip.duration or 0) for second in flat)
            assert (record["confidence"] is None) if not flat else (0 < record["confidence"] <= 1)
        else:  # too short for the encoder, or too many units for CTC
            assert clip.key == "utt3" or mode == "attention"
            assert "confidence" not in record
    assert texts["utt3"] == ""
    assert "too short for the encoder, so their hypothesis is empty: 1 utterances (utt3)" in printed
    assert f"{mode}/text: 5 utterances, RTF " in printed
    assert not (out / "failed.tsv").exists() and not (out / "partial").exists()


def test_speed_report(decoded: Decoded, folder: Path) -> None:
    report = read_rtf(decoded[0])
    assert report["audio_seconds"] == pytest.approx(sum(SECONDS))
    names = ("device", "num_threads", "beam_size", "batch_size", "num_ranks")
    assert [report[name] for name in names] == ["cpu", 1, 4, 2, 1]
    assert report["model"]["final.pt"] == hashlib.sha256((folder / "final.pt").read_bytes()).hexdigest()
    assert set(report["versions"]) == {"torch", "wenet_hs"}
    assert list(report["modes"]) == list(MODES)
    for mode, speed in report["modes"].items():
        stages = ("features", "encoder", *stages_of(mode))
        assert speed["wall_seconds"] == pytest.approx(sum(report["seconds"][stage] for stage in stages))
        assert speed["rtf"] == pytest.approx(speed["wall_seconds"] / report["audio_seconds"])
        assert (speed["sum_seconds"], speed["sum_rtf"]) == (speed["wall_seconds"], speed["rtf"])
    assert report["modes"]["attention_rescoring"]["rtf"] > report["modes"]["ctc_greedy_search"]["rtf"] > 0


def test_one_batch_in_another_order_gives_the_same_texts_and_the_speed_by_language(
    decoded: Decoded, folder: Path, tmp_path: Path
) -> None:
    """In one batch every clip takes the same time, so a language of shorter clips is slower per second of audio."""
    modes = ("ctc_greedy_search", "attention", "joint")
    run(folder, decoded[1][::-1], tmp_path / "out", "--batch_size", "5", "--modes", *modes)
    for mode in modes:
        assert read_text(tmp_path / "out" / mode / "text") == read_text(decoded[0] / mode / "text")
    speed = read_rtf(tmp_path / "out")["modes"]["ctc_greedy_search"]
    share = speed["sum_seconds"] / 5
    assert speed["sum_rtf_by_lang"] == pytest.approx({"ru": 2 * share / 1.15, "tr": 2 * share / 1.2})


def test_a_clip_that_lacks_a_little_is_decoded_and_counted(
    folder: Path, utterances: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    Path(utterances[1].wav).write_bytes(Path(utterances[1].wav).read_bytes()[:-32])
    assert run(folder, utterances[1:2], tmp_path / "out", *GREEDY) == 0
    assert "1 clips lack less than 0.1 s of the length in their header; they are used" in capsys.readouterr().out


def test_a_list_without_a_readable_clip(folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    missing = [Utterance(key=f"gone{i}", wav=str(tmp_path / "gone.wav"), txt="a", duration=1.0) for i in range(2)]
    assert run(folder, missing, tmp_path / "out", *GREEDY) == 2
    assert "2 of 2 utterances could not be read" in capsys.readouterr().err
    assert greedy_texts(tmp_path / "out") == {}
    assert not (tmp_path / "out" / "rtf.json").exists()


def test_segments_of_one_file(folder: Path, tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.wav", 2.0)
    soundfile.write(tmp_path / "part.wav", noise(2.0)[8000:24000], 16000)
    parts = [
        Utterance(key="segment", wav=whole.wav, txt="a", start=0.5, end=1.5),
        Utterance(key="file", wav=str(tmp_path / "part.wav"), txt="a"),
        Utterance(key="rest", wav=whole.wav, txt="a", start=1.0),
    ]
    assert run(folder, parts, tmp_path / "out", "--modes", "ctc_greedy_search") == 0
    texts = greedy_texts(tmp_path / "out")
    assert texts["segment"] == texts["file"]
    assert read_rtf(tmp_path / "out")["audio_seconds"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beam_size", "0"], "--beam_size 0: must be at least 1"),
        (["--max_segment_s", "1"], "--max_segment_s 1: must be at least 4, or 0 to cut nothing"),
        (["--batch_size", "0"], "--batch_size 0: must be at least 1"),
        (["--checkpoint", "gone.pt"], "gone.pt"),
        (["--device", "abacus"], "--device abacus: not a device; use cpu, cuda or cuda:N"),
        (["--lm_weight", "0.5"], "lm_weight 0.5: there is no language model; give one with --lm"),
        (["--lm", "no.arpa"], "no.arpa: no such file; give an n-gram model in ARPA format"),
    ],
)
def test_wrong_flags(folder: Path, tmp_path: Path, capsys: Capsys, flags: list[str], message: str) -> None:
    assert run(folder, [Utterance(key="a", wav="a.wav", txt="a")], tmp_path / "out", *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_a_beam_larger_than_the_vocabulary_gives_a_warning(
    folder: Path, utterances: list[Utterance], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modes = ("attention", "ctc_prefix_beam_search")
    assert run(folder, utterances[:1], tmp_path / "out", "--beam_size", "30", "--modes", *modes) == 0
    assert "beam_size 30: the model has 11 units; a larger beam takes time" in caplog.text
    for mode in modes:
        record = json.loads((tmp_path / "out" / mode / "hyps.jsonl").read_text("utf-8"))
        found = [tuple(alternative["units"]) for alternative in record["nbest"]]
        assert 11 < len(found) == len(set(found)) <= 30


def test_a_checkpoint_other_than_final(folder: Path, utterances: list[Utterance], tmp_path: Path) -> None:
    state = torch.load(folder / "final.pt", weights_only=True)
    state["ctc.head.output.bias"][0] += 100.0  # only blanks
    torch.save(state, tmp_path / "blank.pt")
    run(folder, utterances[:2], tmp_path / "out", *GREEDY, "--checkpoint", str(tmp_path / "blank.pt"))
    assert set(greedy_texts(tmp_path / "out").values()) == {""}


def test_an_interrupted_command_continues(
    folder: Path,
    utterances: list[Utterance],
    decoded: Decoded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(recognize_command, "write_results", Mock(side_effect=KeyboardInterrupt))
        assert run(folder, utterances, out, *GREEDY) == 130
    kept = f"run the same command again: finished batches are kept in {out / 'partial'}"
    assert capsys.readouterr().err == f"wenet-hs recognize: stopped; {kept}\n"
    assert (out / "partial" / "batches-0.jsonl").read_bytes().count(b"\n") == 3
    with monkeypatch.context() as patched:
        patched.setattr(job, "_decode_batch", Mock(side_effect=AssertionError("decoded again")))
        assert run(folder, utterances, out, *GREEDY) == 0
    for name in ("text", "hyps.jsonl"):  # equal except for the languages
        content = (decoded[0] / "ctc_greedy_search" / name).read_bytes()
        expected = re.sub(rb'"lang": ("ru"|null)', b'"lang": "tr"', content)
        assert (out / "ctc_greedy_search" / name).read_bytes() == expected
    assert not (out / "partial").exists()


def test_unreadable_clips_are_named_and_decoded_after_their_repair(
    folder: Path,
    utterances: list[Utterance],
    decoded: Decoded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    out = tmp_path / "out"
    late = replace(utterances[0], duration=None)  # its header is read when the batches are planned
    clips = [late, *utterances[1:]]
    contents = {clip.key: Path(clip.wav).read_bytes() for clip in clips[:2]}
    Path(late.wav).unlink()
    Path(clips[1].wav).write_bytes(contents["utt1"][: len(contents["utt1"]) // 2])
    assert run(folder, clips, out, *GREEDY) == 2
    assert list(greedy_texts(out)) == ["utt2", "utt3", "utt4"]
    rows = [row.split("\t") for row in (out / "failed.tsv").read_text("utf-8").splitlines()]
    assert [key for key, _ in rows] == ["utt0", "utt1"]
    assert "utt0.wav: missing" in rows[0][1] and "utt1.wav: cut off" in rows[1][1]
    errors = capsys.readouterr().err.splitlines()
    assert [error.partition(": ")[0] for error in errors[:2]] == ["utterance utt0", "utterance utt1"]
    assert "failed.tsv: 2 of 5 utterances could not be read; repair their audio or remove them" in errors[2]

    decode_batch = Mock(side_effect=job._decode_batch)
    monkeypatch.setattr(job, "_decode_batch", decode_batch)
    for clip in clips[:2]:
        Path(clip.wav).write_bytes(contents[clip.key])
    assert run(folder, clips, out, *GREEDY) == 0
    assert [[one.key for one in call.args[1]] for call in decode_batch.call_args_list] == [["utt1", "utt4"], ["utt0"]]
    assert greedy_texts(out) == greedy_texts(decoded[0])
    assert not (out / "failed.tsv").exists() and not (out / "partial").exists()
    assert read_rtf(out)["audio_seconds"] == pytest.approx(sum(SECONDS))


def test_a_run_with_other_audio_or_another_table_starts_from_the_beginning(
    folder: Path, utterances: list[Utterance], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = (folder / "train.yaml").read_text("utf-8")
    model = Path(shutil.copytree(folder, tmp_path / "model"))
    (model / "units.txt").rename(model / "lang_char.txt")  # as WeNet's recipes call it
    (model / "train.yaml").write_text(config.replace("units.txt", "data/lang_char.txt"), "utf-8")
    gone = replace(utterances[1], wav=str(tmp_path / "gone.wav"))
    assert run(model, [utterances[0], gone], tmp_path / "out", *GREEDY) == 2
    assert run(model, utterances[:2], tmp_path / "out", *GREEDY) == 0
    assert "plan.json: of an interrupted run with other settings (audio); starting from the beginning" in caplog.text
    report = read_rtf(tmp_path / "out")
    assert list(report["model"]) == ["final.pt", "train.yaml", "lang_char.txt", "tree.json"]
    table = hashlib.sha256((model / "lang_char.txt").read_bytes()).hexdigest()
    assert report["model"]["lang_char.txt"] == table


def test_a_list_with_other_units_is_decoded_with_a_warning(
    folder: Path, utterances: list[Utterance], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = [replace(utterances[0], txt="ab ßx ß"), *utterances[1:]]
    assert run(folder, other, tmp_path / "out", *GREEDY) == 0
    warning = "--test_data: 1 of 5 utterances have units that the model does not have (ß x): they will count as errors"
    assert warning in caplog.text


def test_a_second_recognition_with_the_same_folder_is_refused(
    folder: Path, utterances: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    with holder(tmp_path / "out"):
        assert run(folder, utterances, tmp_path / "out") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"{tmp_path}/out: another recognition writes here (process 17 on elsewhere); wait for it or use another "
        "--result_dir"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def write_unigrams(path: Path, folder: Path) -> Path:
    """A language model over the units of a model, each a little less probable than the one before."""
    units = load_experiment(folder).tokenizer.table.units
    grams = "\n".join(f"{-1 - index / 9:.3f}\t{unit}" for index, unit in enumerate(("</s>", *units[3:])))
    path.write_text(f"\\data\\\nngram 1={len(units) - 2}\n\n\\1-grams:\n{grams}\n\n\\end\\\n", "utf-8")
    return path


def test_options_of_the_searches(folder: Path, utterances: list[Utterance], tmp_path: Path) -> None:
    lm = write_unigrams(tmp_path / "lm.arpa", folder)
    modes = ("attention", "joint", "attention_rescoring")
    flags = ["--nbest", "2", "--max_len_ratio", "0.5", "--finished_list", "--lm", str(lm)]
    flags += ["--lm_weight", "0.5", "--length_bonus", "0.3", "--modes", *modes]
    assert run(folder, utterances[:2], tmp_path / "out", *flags) == 0
    settings = read_rtf(tmp_path / "out")
    assert (settings["nbest"], settings["lm_weight"], settings["finished_list"]) == (2, 0.5, True)
    assert settings["lm"] == {"lm.arpa": hashlib.sha256(lm.read_bytes()).hexdigest()}
    for mode in modes:
        lines = (tmp_path / "out" / mode / "hyps.jsonl").read_text("utf-8").splitlines()
        assert [len(json.loads(line)["nbest"]) for line in lines] == [2, 2]


# ---- transcribe


def transcribe(folder: Path, *arguments: str) -> int:
    return run_command(transcribe_command, ["--model_dir", str(folder), "--device", "cpu", *arguments])


def test_transcribe_gives_the_text_of_recognize_on_a_long_clip(folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    clip = write_clip(tmp_path / "long.wav", 9.0, seed=3)
    flags = ("--max_segment_s", "4")
    run(folder, [clip], tmp_path / "out", "--modes", "attention_rescoring", *flags)
    expected = json.loads((tmp_path / "out" / "attention_rescoring" / "hyps.jsonl").read_text("utf-8"))
    capsys.readouterr()
    assert transcribe(folder, "--json", "--beam_size", "4", *flags, clip.wav) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["duration"]) == (clip.wav, pytest.approx(9.0))
    assert len(expected["cuts"]) >= 2
    assert (found["text"], found["nbest"][0]["units"]) == (expected["text"], expected["units"])
    assert found["score"] == pytest.approx(expected["score"], abs=1e-3)
    assert len(found["nbest"]) == 1
    assert [[unit["start"], unit["end"]] for unit in found["units"] or []] == expected.get("times", [])


def test_transcribe_continues_after_a_file_that_cannot_be_read(
    folder: Path, utterances: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    wav = utterances[0].wav
    assert transcribe(folder, str(tmp_path / "gone.wav"), wav) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{wav}: ")
    first, last = captured.err.splitlines()
    assert "gone.wav: missing" in first
    assert last == "1 of 2 files could not be read; see the lines above"
    assert transcribe(folder, "--beam_size", "0", wav) == 2
    assert capsys.readouterr().err == "--beam_size 0: must be at least 1\n"
    assert transcribe(folder, "--max_segment_s", "1", wav) == 2
    assert capsys.readouterr().err == "--max_segment_s 1: must be at least 4, or 0 to cut nothing\n"


def test_transcribe_gives_the_text_of_recognize_with_a_language_model(
    folder: Path, utterances: list[Utterance], decoded: Decoded, tmp_path: Path, capsys: Capsys
) -> None:
    flags = ["--lm", str(write_unigrams(tmp_path / "lm.arpa", folder)), "--lm_weight", "2", "--length_bonus", "1"]
    run(folder, utterances, tmp_path / "out", "--modes", "joint", *flags)
    texts = read_text(tmp_path / "out" / "joint" / "text")
    assert read_text(decoded[0] / "joint" / "text") != texts
    capsys.readouterr()
    paths = [utterance.wav for utterance in utterances]
    assert transcribe(folder, "--beam_size", "4", "--mode", "joint", *flags, *paths) == 0
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    assert [(path, text.strip()) for path, _, text in lines] == list(zip(paths, texts.values(), strict=True))
    assert transcribe(folder, *flags[:2], *paths) == 2
    assert capsys.readouterr().err == "lm_weight 0: the language model has no effect; give --lm_weight above 0\n"
