# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs recognize`, `transcribe` and `align`: output files, order, failures, restart."""

import hashlib
import importlib
import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from command_line import Capsys, error_line
from lock_holder import holder
from model_folders import HSOFTMAX, TABLE, write_clip, write_model_folder
from praatio import textgrid
from small_models import CTC_ONLY

from wenet_hs.annotation.tiers import TimedText
from wenet_hs.bin import align as align_command
from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import transcribe as transcribe_command
from wenet_hs.bin.main import run_command
from wenet_hs.decode import MODES, alignment, job
from wenet_hs.decode.modes import stages_of
from wenet_hs.manifest.data_list import Utterance, read_text, write_data_list
from wenet_hs.model.modes import modes_with

SECONDS = (0.5, 1.1, 0.7, 0.05, 0.9)
LANGS = ("tr", "ru", "tr", "ru", None)
GREEDY = ("--modes", "ctc_greedy_search", "--batch_size", "2")
Decoded = tuple[Path, list[Utterance], str]

RECOMMENDED = {name for name, mode in MODES.items() if mode.is_recommended}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "hsoftmax", **HSOFTMAX)


def write_clips(folder: Path) -> list[Utterance]:
    clips = enumerate(zip(SECONDS, LANGS, strict=True))
    return [
        write_clip(folder / f"utt{i}.wav", seconds, seed=i, lang=lang)
        for i, (seconds, lang) in clips
    ]


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    return write_clips(tmp_path / "clips")


def run(folder: Path, utterances: list[Utterance], out: Path, *flags: str) -> int:
    write_data_list(out.parent / "data.list", utterances)
    arguments = [
        "--model_dir",
        str(folder),
        "--test_data",
        str(out.parent / "data.list"),
        "--result_dir",
        str(out),
    ]
    return run_command(
        recognize_command, [*arguments, "--device", "cpu", "--beam_size", "4", *flags]
    )


def transcribe(folder: Path, *arguments: str) -> int:
    return run_command(
        transcribe_command, ["--model_dir", str(folder), "--device", "cpu", *arguments]
    )


def align(folder: Path, utterances: list[Utterance], out: Path, *flags: str) -> int:
    write_data_list(out.parent / "data.list", utterances)
    paths = [
        "--model_dir",
        str(folder),
        "--data_list",
        str(out.parent / "data.list"),
        "--out",
        str(out),
    ]
    return run_command(align_command, [*paths, "--device", "cpu", *flags])


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def records(out: Path, mode: str) -> list[dict[str, Any]]:
    return read_lines(out / mode / "hyps.jsonl")


def read_rtf(out: Path) -> Any:
    return json.loads((out / "rtf.json").read_text("utf-8"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def decoded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    """The results of all modes, their list, and what was printed."""
    out = tmp_path_factory.mktemp("decoded") / "out"
    clips, printed = write_clips(out.parent / "clips"), io.StringIO()
    with redirect_stdout(printed):
        assert run(folder, clips, out, "--batch_size", "2") == 0
    return out, clips, printed.getvalue()


@pytest.mark.parametrize("mode", MODES)
def test_results_in_the_order_of_the_list(decoded: Decoded, mode: str) -> None:
    out, clips, printed = decoded
    texts = read_text(out / mode / "text")
    assert list(texts) == [clip.key for clip in clips]
    for clip, record in zip(clips, records(out, mode), strict=True):
        assert (record["key"], record["lang"], record["text"].strip()) == (
            clip.key,
            clip.lang,
            texts[clip.key],
        )
        assert record["nbest"][0] == {name: record[name] for name in ("text", "score", "units")}
        assert 1 <= len(record["nbest"]) <= 4
        if "times" in record:
            assert len(record["times"]) == len(record["units"])
            flat = [second for times in record["times"] for second in times]
            assert [0.0, *flat, clip.duration] == sorted([0.0, *flat, clip.duration or 0])
            assert (record["confidence"] is None) if not flat else (0 < record["confidence"] <= 1)
        else:  # too short for the encoder, or too many units for CTC
            assert clip.key == "utt3" or "ctc" not in MODES[mode].branches
            assert "confidence" not in record
    assert texts["utt3"] == ""
    assert f"{mode}/text: 5 utterances, RTF " in printed
    assert not (out / "failed.tsv").exists() and not (out / "partial").exists()


def test_speed_report(decoded: Decoded, folder: Path) -> None:
    report = read_rtf(decoded[0])
    assert report["audio_seconds"] == pytest.approx(sum(SECONDS))
    names = ("device", "num_threads", "beam_size", "batch_size", "num_ranks")
    assert [report[name] for name in names] == ["cpu", 1, 4, 2, 1]
    paths = [folder / name for name in ("final.pt", "train.yaml", "units.txt", "tree.json")]
    assert report["model"] == {path.name: sha256(path) for path in paths}
    assert set(report["versions"]) == {"torch", "wenet_hs"}
    assert list(report["modes"]) == list(MODES)
    for mode, speed in report["modes"].items():
        stages = ("features", "encoder", *stages_of(mode))
        assert speed["wall_seconds"] == speed["sum_seconds"]
        assert speed["wall_seconds"] == pytest.approx(
            sum(report["seconds"][stage] for stage in stages)
        )
        assert (
            speed["rtf"]
            == speed["sum_rtf"]
            == pytest.approx(speed["wall_seconds"] / report["audio_seconds"])
        )
        assert speed["rtf"] > 0


def test_one_batch_in_another_order_gives_the_same_texts_and_the_speed_by_language(
    decoded: Decoded, folder: Path, tmp_path: Path
) -> None:
    """In one batch every clip takes the same time, so a language of shorter clips is slower per
    second of audio.
    """
    run(
        folder,
        decoded[1][::-1],
        tmp_path / "out",
        "--batch_size",
        "5",
        "--modes",
        "ctc_greedy_search",
        "joint",
    )
    for mode in ("ctc_greedy_search", "joint"):
        assert read_text(tmp_path / "out" / mode / "text") == read_text(decoded[0] / mode / "text")
    speed = read_rtf(tmp_path / "out")["modes"]["ctc_greedy_search"]
    share = speed["sum_seconds"] / 5
    assert speed["sum_rtf_by_lang"] == pytest.approx(
        {"ru": 2 * share / 1.15, "tr": 2 * share / 1.2}
    )


def test_other_units_a_large_beam_and_incomplete_clips_give_warnings(
    folder: Path,
    utterances: list[Utterance],
    tmp_path: Path,
    capsys: Capsys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wav = Path(utterances[1].wav)
    wav.write_bytes(wav.read_bytes()[:-32])
    clips, modes = (
        [replace(utterances[0], txt="ab ßx ß"), utterances[1]],
        ("attention", "ctc_prefix_beam_search"),
    )
    assert run(folder, clips, tmp_path / "out", "--beam_size", "30", "--modes", *modes) == 0
    assert (
        "1 clips lack less than 0.1 s of the length in their header; they are used"
        in capsys.readouterr().out
    )
    assert (
        "--test_data: 1 of 2 utterances have units that the model does not have (ß x): they will co"
        in caplog.text
    )
    assert "beam_size 30: the model has 11 units; a larger beam takes time" in caplog.text
    for mode in modes:
        found = [
            tuple(alternative["units"])
            for alternative in records(tmp_path / "out", mode)[0]["nbest"]
        ]
        assert 11 < len(found) == len(set(found)) <= 30


PATHS = {
    "recognize": "--test_data data.list --result_dir out",
    "transcribe": "a.wav",
    "align": "--data_list data.list --out out",
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("recognize --beam_size 0", "--beam_size 0: must be at least 1"),
        (
            "recognize --max_segment_s 1",
            "--max_segment_s 1: must be at least 4, or 0 to cut nothing",
        ),
        ("recognize --batch_size 0", "--batch_size 0: must be at least 1"),
        ("recognize --checkpoint gone.pt", "gone.pt"),
        ("recognize --device abacus", "--device abacus: not a device; use cpu, cuda or cuda:N"),
        (
            "recognize --lm_weight 0.5",
            "lm_weight 0.5: there is no language model; give one with --lm",
        ),
        (
            "recognize --lm no.arpa",
            "--lm no.arpa: no such file; give the folder of `lm train` or an n-gram model in ARPA format",
        ),
        ("transcribe --beam_size 0", "--beam_size 0: must be at least 1"),
        (
            "transcribe --lm lm.arpa",
            "lm_weight 0: the language model has no effect; give --lm_weight above 0",
        ),
        ("align --batch_size 0", "--batch_size 0: must be at least 1"),
    ],
)
def test_wrong_flags(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
    line: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_unigrams(Path("lm.arpa"))
    write_data_list("data.list", [Utterance(key="a", wav="a.wav", txt="a")])
    name, *flags = line.split()
    arguments = [*PATHS[name].split(), "--model_dir", str(folder), "--device", "cpu", *flags]
    command = importlib.import_module(f"wenet_hs.bin.{name}")
    assert message in error_line(run_command(command, arguments), capsys)
    assert not Path("out").exists()


def test_an_interrupted_command_continues(
    folder: Path, decoded: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(
            recognize_command, "write_decoding_results", Mock(side_effect=KeyboardInterrupt)
        )
        assert run(folder, decoded[1], out, *GREEDY) == 130
    kept = f"run the same command again: finished batches are kept in {out / 'partial'}"
    assert capsys.readouterr().err == f"wenet-hs recognize: stopped; {kept}\n"
    monkeypatch.setattr(job, "_decode_batch", Mock(side_effect=AssertionError("decoded again")))
    assert run(folder, decoded[1], out, *GREEDY) == 0
    for path in ("ctc_greedy_search/text", "ctc_greedy_search/hyps.jsonl"):
        assert (out / path).read_bytes() == (decoded[0] / path).read_bytes()
    assert not (out / "partial").exists()


def test_unreadable_clips_are_named_and_decoded_after_their_repair(
    folder: Path,
    utterances: list[Utterance],
    decoded: Decoded,
    tmp_path: Path,
    capsys: Capsys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, wavs = tmp_path / "out", [Path(clip.wav) for clip in utterances[:2]]
    contents = [wav.read_bytes() for wav in wavs]
    wavs[0].unlink()
    wavs[1].write_bytes(contents[1][: len(contents[1]) // 2])
    moved = [replace(clip, wav=str(tmp_path / "gone.wav")) for clip in utterances[:2]]
    assert run(folder, moved, out, *GREEDY) == 2
    assert "2 of 2 utterances could not be read" in capsys.readouterr().err
    assert read_text(out / "ctc_greedy_search/text") == {} and not (out / "rtf.json").exists()

    assert (
        run(folder, [*moved, *utterances[2:]], out, *GREEDY)
        == run(folder, utterances, out, *GREEDY)
        == 2
    )
    assert (
        "plan.json: of an interrupted run with other settings (audio); starting from the beginning"
        in caplog.text
    )
    assert (
        "too short for the encoder, so their hypothesis is empty: 1 utterances (utt3)"
        in caplog.text
    )
    assert list(read_text(out / "ctc_greedy_search/text")) == ["utt2", "utt3", "utt4"]
    rows = [row.split("\t") for row in (out / "failed.tsv").read_text("utf-8").splitlines()]
    assert [key for key, _ in rows] == ["utt0", "utt1"]
    assert "utt0.wav: missing" in rows[0][1] and "utt1.wav: cut off" in rows[1][1]
    errors = capsys.readouterr().err.splitlines()[-3:]
    assert [error.partition(": ")[0] for error in errors[:2]] == [
        "utterance utt0",
        "utterance utt1",
    ]
    assert (
        "failed.tsv: 2 of 5 utterances could not be read; repair their audio or remove them"
        in errors[2]
    )

    for wav, content in zip(wavs, contents, strict=True):
        wav.write_bytes(content)
    assert run(folder, utterances, out, *GREEDY) == 0
    assert read_text(out / "ctc_greedy_search/text") == read_text(
        decoded[0] / "ctc_greedy_search/text"
    )
    assert not (out / "failed.tsv").exists() and not (out / "partial").exists()
    assert read_rtf(out)["audio_seconds"] == pytest.approx(sum(SECONDS))


def test_a_second_recognition_with_the_same_folder_is_refused(
    folder: Path, decoded: Decoded, tmp_path: Path, capsys: Capsys
) -> None:
    with holder(tmp_path / "out"):
        error = error_line(run(folder, decoded[1], tmp_path / "out"), capsys)
    other = "another recognition writes here (process 17 on elsewhere)"
    assert error == f"{tmp_path}/out: {other}; wait for it or use another --result_dir"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def write_unigrams(path: Path) -> Path:
    """A language model over the units of the models, each a little less probable than the one
    before.
    """
    words = ("</s>", *TABLE.units[3:])
    grams = "\n".join(f"{-1 - index / 9:.3f}\t{unit}" for index, unit in enumerate(words))
    path.write_text(f"\\data\\\nngram 1={len(words)}\n\n\\1-grams:\n{grams}\n\n\\end\\\n", "utf-8")
    return path


def test_options_of_the_searches(folder: Path, decoded: Decoded, tmp_path: Path) -> None:
    lm, modes = write_unigrams(tmp_path / "lm.arpa"), ("attention", "joint", "attention_rescoring")
    flags = f"--nbest 2 --max_len_ratio 0.5 --finished_list --lm_weight 0.5 --length_bonus 0.3 --lm {lm}".split()
    assert run(folder, decoded[1][:2], tmp_path / "out", *flags, "--modes", *modes) == 0
    settings = read_rtf(tmp_path / "out")
    assert (settings["nbest"], settings["lm_weight"], settings["finished_list"]) == (2, 0.5, True)
    assert settings["lm"] == {"lm.arpa": sha256(lm)}
    for mode in modes:
        assert [len(record["nbest"]) for record in records(tmp_path / "out", mode)] == [2, 2]


# ---- transcribe


def test_transcribe_gives_the_text_of_recognize_on_a_long_clip(
    folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    clip = write_clip(tmp_path / "long.wav", 9.0, seed=3)
    flags = ("--max_segment_s", "4")
    run(folder, [clip], tmp_path / "out", "--modes", "attention_rescoring", *flags)
    (expected,) = records(tmp_path / "out", "attention_rescoring")
    capsys.readouterr()
    assert transcribe(folder, "--json", "--beam_size", "4", *flags, clip.wav) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["duration"]) == (clip.wav, pytest.approx(9.0))
    assert len(expected["cuts"]) >= 2
    assert (found["text"], found["nbest"][0]["units"]) == (expected["text"], expected["units"])
    assert found["score"] == pytest.approx(expected["score"], abs=1e-3)
    assert len(found["nbest"]) == 1
    assert [[unit["start"], unit["end"]] for unit in found["units"] or []] == expected.get(
        "times", []
    )


def test_transcribe_names_unreadable_files(
    folder: Path, decoded: Decoded, tmp_path: Path, capsys: Capsys
) -> None:
    gone, paths = str(tmp_path / "gone.wav"), [clip.wav for clip in decoded[1]]
    assert transcribe(folder, "--beam_size", "4", "--mode", "joint", gone, *paths) == 2
    printed = capsys.readouterr()
    lines = [line.partition(": ") for line in printed.out.splitlines()]
    texts = read_text(decoded[0] / "joint" / "text")
    assert [(path, text.strip()) for path, _, text in lines] == list(
        zip(paths, texts.values(), strict=True)
    )
    first, last = printed.err.splitlines()
    assert first.startswith(f"{gone}: missing")
    assert last == "1 of 6 files could not be transcribed; see the lines above"


# ---- align

TEXTS = {"utt0": "ab a", "utt1": "cc d", "nested/utt2": "g"}


@pytest.fixture
def spoken(tmp_path: Path) -> list[Utterance]:
    clips = [
        write_clip(tmp_path / f"{i}.wav", seconds, seed=i, lang="tr")
        for i, seconds in enumerate((0.6, 1.1, 0.4))
    ]
    clips[2] = replace(clips[2], duration=None)
    return [
        replace(clip, key=key, txt=txt)
        for clip, (key, txt) in zip(clips, TEXTS.items(), strict=True)
    ]


def read_textgrid(path: Path) -> dict[str, list[tuple[float, float, str]]]:
    """Intervals by tier."""
    grid = textgrid.openTextgrid(str(path), includeEmptyIntervals=True)
    return {tier.name: [tuple(interval) for interval in tier.entries] for tier in grid.tiers}


def test_units_and_words_as_json_lines_ctm_and_textgrids(
    folder: Path, spoken: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    flags = (
        "--batch_size",
        "2",
        "--textgrid",
        str(tmp_path / "praat"),
        "--ctm",
        str(tmp_path / "words.ctm"),
    )
    assert align(folder, spoken, tmp_path / "align.jsonl", *flags) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'align.jsonl'}: 3 utterances\n"
    found = read_lines(tmp_path / "align.jsonl")
    assert [record["key"] for record in found] == list(TEXTS)
    ctm = [line.split() for line in (tmp_path / "words.ctm").read_text("utf-8").splitlines()]
    words = [(key, "1", word) for key, text in TEXTS.items() for word in text.split()]
    assert [(row[0], row[1], row[4]) for row in ctm] == words
    assert len(list((tmp_path / "praat").iterdir())) == 3
    for record, seconds in zip(found, (0.6, 1.1, 0.4), strict=True):
        assert (record["lang"], record["text"]) == ("tr", TEXTS[record["key"]])
        assert [unit["text"] for unit in record["units"]] == list(record["text"].replace(" ", "▁"))
        assert [word["text"] for word in record["words"]] == record["text"].split()
        times = [(unit["start"], unit["end"]) for unit in record["units"]]
        assert times == sorted(times) and 0.0 < times[0][0] < times[-1][1] < seconds
        assert all(
            0 < part["confidence"] <= 1 for part in (*record["units"], *record["words"], record)
        )
        assert record["score"] < 0
        starts = [float(row[2]) for row in ctm if row[0] == record["key"]]
        assert starts == [word["start"] for word in record["words"]]
        tiers = read_textgrid(tmp_path / "praat" / f"{record['key'].replace('/', '%2F')}.TextGrid")
        assert list(tiers) == ["units", "words"]
        for name, intervals in tiers.items():
            assert (intervals[0][0], intervals[-1][1]) == (0.0, seconds)
            named = [interval for interval in intervals if interval[2]]
            assert named == [(part["start"], part["end"], part["text"]) for part in record[name]]


def test_the_ctm_of_a_phone_model_has_phones(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "phones", tokenizer="phone")
    clip = replace(write_clip(tmp_path / "clip.wav", 0.9), txt="a c b")
    assert (
        align(folder, [clip], tmp_path / "align.jsonl", "--ctm", str(tmp_path / "phones.ctm")) == 0
    )
    assert [
        line.split()[4] for line in (tmp_path / "phones.ctm").read_text("utf-8").splitlines()
    ] == ["a", "c", "b"]
    assert [word["text"] for word in read_lines(tmp_path / "align.jsonl")[0]["words"]] == ["a c b"]


def test_a_textgrid_with_quotes_that_is_shorter_than_its_last_unit(tmp_path: Path) -> None:
    word = TimedText(text='say "a"', start=0.0, end=0.5, confidence=1.0)
    clip = Utterance(key="a", wav="a.wav", txt="")
    parts = {"units": (), "words": (word,), "score": 0.0}
    alignment.write_textgrids(
        tmp_path, [alignment.AlignedUtterance(utterance=clip, duration_s=0.4, **parts)]
    )
    assert read_textgrid(tmp_path / "a.TextGrid") == {
        "units": [(0.0, 0.5, "")],
        "words": [(0.0, 0.5, 'say "a"')],
    }


def test_utterances_that_cannot_be_aligned_are_named_and_the_others_aligned(
    folder: Path, spoken: list[Utterance], tmp_path: Path, capsys: Capsys
) -> None:
    texts = {"unknown": "a xyz", "silent": "", "long": "aab" * 9}
    bad = [replace(spoken[0], key=key, txt=txt) for key, txt in texts.items()]
    bad.append(replace(spoken[0], key="gone", wav=str(tmp_path / "gone.wav")))
    state = torch.load(folder / "final.pt", weights_only=True)
    state["ctc.head.output.bias"][5] = -torch.inf  # "c", only in the second transcript
    torch.save(state, tmp_path / "never.pt")
    flags = ("--checkpoint", str(tmp_path / "never.pt"))
    assert align(folder, [*bad, *spoken], tmp_path / "align.jsonl", *flags) == 2
    assert [record["key"] for record in read_lines(tmp_path / "align.jsonl")] == [
        "utt0",
        "nested/utt2",
    ]
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


def test_models_that_cannot_align(
    folder: Path,
    spoken: list[Utterance],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    out = tmp_path / "align.jsonl"
    untrained = write_model_folder(tmp_path / "untrained", model_conf={"ctc_weight": 0.0})
    found = error_line(align(untrained, spoken, out), capsys)
    assert (
        "train.yaml: model_conf.ctc_weight is 0, so CTC was not trained and cannot align; use"
        in found
    )
    monkeypatch.setattr(
        alignment, "align_units", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    )
    found = error_line(align(folder, spoken, out, "--batch_size", "2"), capsys)
    large = "out of memory with a batch of 2, the longest of 1.1 s (utt1, utt0)"
    assert found == f"{large}; lower --batch_size, or cut the longest utterances"
    assert not out.exists()


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("auto", RECOMMENDED),
        ("auto attention auto", RECOMMENDED | {"attention"}),
    ],
)
def test_the_recommended_modes(
    named: str,
    expected: set[str],
    folder: Path,
    utterances: list[Utterance],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert run(folder, utterances[:2], out, "--modes", *named.split()) == 0
    assert {path.parent.name for path in out.glob("*/text")} == expected


def test_the_recommended_modes_of_a_model_without_a_decoder(
    utterances: list[Utterance],
    tmp_path: Path,
) -> None:
    model = write_model_folder(tmp_path / "ctc", **CTC_ONLY)
    out = tmp_path / "out"
    assert run(model, utterances[:2], out, "--modes", "auto") == 0
    found = {path.parent.name for path in out.glob("*/text")}
    assert found == set(modes_with({"ctc"}))
