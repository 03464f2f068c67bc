# SPDX-License-Identifier: Apache-2.0
"""Recordings to files of annotation tools, and known transcripts to ELAN."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from command_line import Capsys, error_line, run_line
from form_examples import EXAMPLES
from model_folders import noise, write_model_folder
from praatio.textgrid import openTextgrid
from pympi.Elan import Eaf

from wenet_hs.annotation.recordings import Record, read_record
from wenet_hs.bin import align, recognize, transcribe, transcribe_flags
from wenet_hs.decode.segments import find_speech
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.recognizer import load_model
from wenet_hs.tree.errors import DataError

GREEDY = "--mode ctc_greedy_search --device cpu"
KINDS, UNRELIABLE = ("train", "valid"), "confidence_is_unreliable"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "softmax")


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A recording of three stretches of noise with pauses of a second."""
    silence = np.zeros(16000, np.float32)
    parts = [part for seed in range(3) for part in (0.2 + noise(1.2, seed=seed), silence)]
    soundfile.write(tmp_path / "talk.wav", np.concatenate(parts), 16000, subtype="FLOAT")
    return tmp_path / "talk.wav"


def test_all_formats_have_the_texts_of_the_segments(
    folder: Path, talk: Path, capsys: Capsys
) -> None:
    out = talk.parent / "out"
    formats = f"--elan {out} --textgrid {out} --srt {out} --ctm {out}/all.ctm --tsv {out}/all.tsv --low_confidence 0.9"
    assert run_line(transcribe, f"--model_dir {folder} {GREEDY} {formats} {talk}") == 0
    printed = capsys.readouterr().out
    length_s, pieces = find_speech(talk, 60.0)
    assert len(pieces) == 3
    recognizer, samples = load_model(folder), soundfile.read(talk, dtype="float32")[0]
    texts = []
    for piece in pieces:
        assert piece.end_s is not None
        alone = samples[round(16000 * piece.begin_s) : round(16000 * piece.end_s)]
        texts.append(
            recognizer.transcribe((alone, 16000), mode="ctc_greedy_search").text.strip(" ")
        )
    eaf = Eaf(str(out / "talk.eaf"))
    spans = eaf.get_annotation_data_for_tier("wenet_hs")
    assert [span[2] for span in spans] == texts
    assert [span[0] for span in spans] == [round(1000 * piece.begin_s) for piece in pieces]
    words = eaf.get_annotation_data_for_tier("wenet_hs words")
    assert [word[2] for word in words] == " ".join(texts).split()
    low = eaf.get_annotation_data_for_tier("wenet_hs low confidence")
    assert f"{talk}: 3 segments, {len(words)} words, {len(low)} below 0.9\n" == printed
    grid = openTextgrid(str(out / "talk.TextGrid"), False, "error")
    assert [one.label for one in grid.getTier("wenet_hs words")] == [word[2] for word in words]
    assert grid.maxTimestamp == length_s
    assert (out / "talk.srt").read_text("utf-8").count(" --> ") == 3
    assert [line.split()[4] for line in (out / "all.ctm").read_text("utf-8").splitlines()] == [
        word[2] for word in words
    ]
    rows = [line.split("\t") for line in (out / "all.tsv").read_text("utf-8").splitlines()[1:]]
    assert [row[3] for row in rows] == texts


def test_files_of_annotations_are_named_and_the_others_transcribed(
    folder: Path, talk: Path, capsys: Capsys
) -> None:
    for name in ("a.cha", "b.srt"):
        form = "a transcript of CLAN (CHAT)" if name == "a.cha" else "SRT subtitles"
        (talk.parent / name).write_text(EXAMPLES[form][1])
    files = f"{talk.parent}/a.cha {talk} {talk.parent}/b.srt"
    assert run_line(transcribe, f"--model_dir {folder} {GREEDY} {files}") == 2
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{talk}: ")
    first, second, last = printed.err.splitlines()[-3:]
    remedy = "import it into ELAN, save it, and use `wenet-hs prepare elan`"
    assert first == f"{talk.parent}/a.cha: a transcript of CLAN (CHAT); {remedy}"
    assert second.startswith(f"{talk.parent}/b.srt: SRT subtitles; put it beside its recording")
    assert last.endswith("2 of 3 files could not be transcribed; see the lines above")


def test_a_record_has_all_of_the_recording(folder: Path, talk: Path) -> None:
    line = f"--model_dir {folder} {GREEDY} --record {talk.parent / 'out'} {talk}"
    assert run_line(transcribe, line) == 0
    found = read_record(talk.parent / "out/talk.json")
    expected = load_model(folder).transcribe_recording(talk, mode="ctc_greedy_search")
    assert found == Record(expected, talk, str(folder)) and len(found.recording.words) == 3
    assert run_line(transcribe, f"{line} --skip_existing") == 0
    (talk.parent / "elsewhere").mkdir()
    other = Path(
        shutil.copy(talk, talk.parent / "elsewhere/talk.wav")
    )  # another recording of the same name
    again = Path(shutil.copytree(folder, talk.parent / "model 2"))
    on = f"{GREEDY} --record {talk.parent / 'out'} --skip_existing"
    for words in (f"--model_dir {folder} {on} {other}", f"--model_dir '{again}' {on} {talk}"):
        for _ in range(2):
            assert run_line(transcribe, words) == 0
    records = {path.name: read_record(path) for path in (talk.parent / "out").iterdir()}
    assert {name: (one.source, one.model) for name, one in records.items()} == {
        "talk.json": (talk, str(folder)),
        "talk-2.json": (other, str(folder)),
        "talk-3.json": (talk, str(again)),
    }
    (talk.parent / "out/talk.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"not a file of `transcribe --record`; transcribe the recording again"
    ):
        read_record(talk.parent / "out/talk.json")


def test_an_annotation_file_instead_of_its_recording(
    folder: Path, talk: Path, capsys: Capsys
) -> None:
    first, second = talk.parent / "first", talk.parent / "second"
    assert run_line(transcribe, f"--model_dir {folder} {GREEDY} --elan {first} {talk}") == 0
    (first / "talk.eaf").rename(talk.with_suffix(".eaf"))
    before = talk.with_suffix(".eaf").read_bytes()
    line = f"--model_dir {folder} {GREEDY} {talk.with_suffix('.eaf')}"
    capsys.readouterr()
    code = run_line(transcribe, f"{line} --elan {second}")
    assert (
        "talk.eaf: has a tier 'wenet_hs' already; choose another name with --tier"
        in capsys.readouterr().err
    )
    assert run_line(transcribe, f"{line} --srt {talk.parent / 'srt'}") == 0, (
        "subtitles have no tiers"
    )
    assert code == 2 and not second.exists()
    assert run_line(transcribe, f"{line} --elan {second} --tier other") == 0
    assert (
        "wenet_hs" in Eaf(str(second / "talk.eaf")).tiers
        and "other words" in Eaf(str(second / "talk.eaf")).tiers
    )
    assert talk.with_suffix(".eaf").read_bytes() == before
    capsys.readouterr()
    error = error_line(run_line(transcribe, f"{line} --elan {talk.parent} --tier other"), capsys)
    assert (
        error == f"{talk.with_suffix('.eaf')}: is the input itself; name another folder with --elan"
    )
    error = error_line(run_line(transcribe, f"{line} --elan {second} --tier other"), capsys)
    refusal = f"{second / 'talk.eaf'}: exists already; name another folder with --elan, or go on with --skip_existing"
    assert error == refusal
    before = (second / "talk.eaf").read_bytes()
    capsys.readouterr()
    line_on = f"{line} --elan {second} --srt {second} --tier other --skip_existing"
    for printed in ("segments", "transcribed already"):
        assert run_line(transcribe, line_on) == 0
        assert printed in capsys.readouterr().out
    assert (second / "talk.srt").exists() and (second / "talk.eaf").read_bytes() == before
    assert run_line(transcribe, line) == 0
    assert capsys.readouterr().out.startswith(f"{talk.with_suffix('.eaf')}: ")


WRONG = [
    ("--low_confidence 1.5 --tsv t a.wav", "--low_confidence 1.5: must be from 0 to 1"),
    ("--low_confidence nan --tsv t a.wav", "--low_confidence nan: must be from 0 to 1"),
    (
        "--tier x a.wav",
        "--tier: has no effect without --elan, --textgrid, --srt, --record, --ctm, --tsv; give one, or leave it out",
    ),
    ("--vad silero a.wav", "--vad: has no effect without --elan"),
    ("--json --srt out a.wav", "--json: has no effect with --srt; leave one of them out"),
    ("--elan units.txt a.wav", "--elan units.txt: not a folder; name another one"),
    (
        "--tsv units.txt a.wav",
        "units.txt: exists already; name another file with --tsv, or delete this one",
    ),
    (
        "--skip_existing --elan out --tsv t a.wav",
        "--skip_existing: only for --elan, --textgrid, --srt, --record; --c",
    ),
    (
        "--elan out a/x.wav b/x.eaf",
        "a/x.wav and b/x.eaf: the results would have the same name; transcribe them one by",
    ),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_flags(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, line: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    assert error_line(run_line(transcribe, f"--model_dir {folder} {line}"), capsys).startswith(
        message
    )


def test_a_model_without_ctc_gives_segments(tmp_path: Path, talk: Path, capsys: Capsys) -> None:
    folder = write_model_folder(tmp_path / "model", model_conf={"ctc_weight": 0.0})
    line = f"--model_dir {folder} --mode attention --device cpu --beam_size 1 {talk}"
    assert run_line(transcribe, f"{line} --elan {tmp_path / 'out'}") == 0
    assert (
        "this model was trained without CTC: segments get no words and no confidence"
        in capsys.readouterr().err
    )
    eaf = Eaf(str(tmp_path / "out" / "talk.eaf"))
    assert (
        list(eaf.tiers) == ["wenet_hs"] and len(eaf.get_annotation_data_for_tier("wenet_hs")) == 3
    )
    error = error_line(run_line(transcribe, f"{line} --ctm {tmp_path / 'all.ctm'}"), capsys)
    assert error.startswith(
        "--ctm: this model was trained without CTC and gives no times of words; leave it out"
    )


def test_a_recording_that_cannot_be_read_does_not_end_the_others(
    folder: Path, talk: Path, capsys: Capsys
) -> None:
    silent = talk.parent / "silent.wav"
    soundfile.write(silent, np.zeros(16000), 16000)
    (talk.parent / "lost.TextGrid").write_text("")
    names = f"{talk.parent / 'lost.TextGrid'} {talk.parent / 'gone.wav'} {silent}"
    assert (
        run_line(
            transcribe, f"--model_dir {folder} {GREEDY} --tsv {talk.parent / 'all.tsv'} {names}"
        )
        == 2
    )
    errors = capsys.readouterr().err.splitlines()
    assert "lost.TextGrid: missing: no lost.wav (.flac, .mp3 …) in" in errors[0]
    assert "gone.wav: missing" in errors[1]
    assert errors[-1] == "2 of 3 files could not be transcribed; see the lines above"
    assert (talk.parent / "all.tsv").read_text("utf-8") == "file\tstart\tend\ttext\tconfidence\n"
    same_name = talk.parent / "other" / talk.name
    assert (
        run_line(
            transcribe,
            f"--model_dir {folder} {GREEDY} --tsv {talk.parent / 't.tsv'} {talk} {same_name}",
        )
        == 2
    )
    assert capsys.readouterr().err.splitlines()[-1].startswith("1 of 2 files"), (
        "a table has the whole paths"
    )


def test_alignments_as_elan_with_times_of_the_recording(
    folder: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    one = Utterance(
        key="one", wav=str(talk), txt="ab c", start=0.0, end=1.2, duration=1.2, speaker="A"
    )
    both = [one, replace(one, key="two", txt="d", start=2.2, end=3.4, speaker="B")]
    write_data_list(tmp_path / "data.list", both)
    line = f"--model_dir {folder} --data_list {tmp_path / 'data.list'} --device cpu"
    assert run_line(align, f"{line} --out {tmp_path / 'a.jsonl'} --elan {tmp_path / 'elan'}") == 0
    eaf = Eaf(str(tmp_path / "elan" / "talk.eaf"))
    assert [span[2] for span in eaf.get_annotation_data_for_tier("wenet_hs words@A")] == ["ab", "c"]
    assert eaf.get_annotation_data_for_tier("wenet_hs@B") == [(2200, 3400, "d")]
    ((start, end, _),) = eaf.get_annotation_data_for_tier("wenet_hs words@B")
    record = json.loads((tmp_path / "a.jsonl").read_text("utf-8").splitlines()[1])
    assert (start, end) == (
        pytest.approx(2200 + 1000 * record["words"][0]["start"], abs=0.51),
        pytest.approx(2200 + 1000 * record["words"][0]["end"], abs=0.51),
    )
    write_data_list(tmp_path / "data.list", [replace(one, wav=str(tmp_path / "none.wav"))])
    none = f"--out {tmp_path / 'b.jsonl'} --ctm {tmp_path / 'b.ctm'}"  # nothing is written, so it can be repeated
    assert run_line(align, f"{line} {none}") == 2 and not [*tmp_path.glob("b.*")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 1.0, "end": 2.0}, "a.wav: two segments of one speaker overlap at 1.000 s"),
        ({"wav": "b/a.wav"}, "b/a.wav and a.wav: the same name; align them one by one with --elan"),
    ],
)
def test_what_elan_cannot_hold_is_refused_before_the_work(
    tmp_path: Path, capsys: Capsys, change: dict[str, Any], message: str
) -> None:
    one = Utterance(key="one", wav="a.wav", txt="ab", start=0.0, end=1.2)
    write_data_list(tmp_path / "data.list", [one, replace(one, key="two", **change)])
    line = f"--model_dir {tmp_path} --data_list {tmp_path / 'data.list'} --out {tmp_path}/a --elan {tmp_path}"
    assert message in error_line(run_line(align, line), capsys)
    (tmp_path / "a").touch()
    message = f"{tmp_path}/a: exists already; name another file, or delete this one"
    assert message in error_line(run_line(align, line), capsys)
    assert message in error_line(run_line(align, f"{line}2 --ctm {tmp_path}/a"), capsys)
    (tmp_path / "a").unlink()
    (tmp_path / "a.eaf").touch()
    assert f"{tmp_path}/a.eaf: exists already; name another folder" in error_line(
        run_line(align, line), capsys
    )


def test_confidences_of_an_over_fitted_model_are_marked(
    tmp_path: Path, talk: Path, capsys: Capsys, caplog: pytest.LogCaptureFixture
) -> None:
    models = [write_model_folder(tmp_path / name) for name in ("good", "over-fitted")]
    losses = ((10, 2.0, 2.0), (20, 1.0, 1.5), (30, 0.5, 2.5))
    lines = [
        {"kind": kind, "step": s, "loss": v}
        for s, *both in losses
        for kind, v in zip(KINDS, both, strict=True)
    ]
    (models[1] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clip = Utterance(key="one", wav=str(talk), txt="ab c", start=0.0, end=1.2)
    write_data_list(tmp_path / "data.list", [clip])
    for model, mark in zip(models, ({}, {"confidence_is_unreliable": True}), strict=True):
        caplog.clear()
        line, out = f"--model_dir {model} --device cpu", tmp_path / f"out-{model.name}"
        assert run_line(transcribe, f"{line} --mode ctc_greedy_search --json {talk}") == 0
        records = [json.loads(capsys.readouterr().out.splitlines()[-1])]
        assert (
            run_line(transcribe, f"{line} --mode ctc_greedy_search --elan {out}/elan {talk}") == 0
        )
        assert run_line(align, f"{line} --data_list {tmp_path}/data.list --out {out}/a.jsonl") == 0
        test_list = f"--test_data {tmp_path}/data.list --modes ctc_greedy_search"
        assert run_line(recognize, f"{line} {test_list} --result_dir {out}/result") == 0
        files = (out / "a.jsonl", out / "result/ctc_greedy_search/hyps.jsonl")
        records += [json.loads(file.read_text("utf-8")) for file in files]
        for record in records:
            assert {name: value for name, value in record.items() if name == UNRELIABLE} == mark
        assert caplog.text.count("the confidences of words are unreliable, most are too high") == (
            4 if mark else 0
        )
    capsys.readouterr()
    assert run_line(transcribe, f"--model_dir {models[1]} {GREEDY} {talk}") == 0
    assert "unreliable" not in capsys.readouterr().err, "plain text has no confidence"


def test_the_segments_of_a_tier_are_transcribed_and_filled(
    folder: Path, talk: Path, capsys: Capsys
) -> None:
    source, out = talk.with_suffix(".eaf"), talk.parent / "out"
    spans = [(100, 1100, ""), (2300, 3400, "by hand"), (3400, 3420, ""), (3500, 6500, "")]
    eaf = Eaf()
    eaf.add_tier("utt", part="Ana")
    for span in spans:
        eaf.add_annotation("utt", *span)
    eaf.to_file(str(source))
    line = f"--model_dir {folder} {GREEDY} {source} --into_tier"
    assert run_line(transcribe, f"{line} utt --elan {out} --tsv {out}/a.tsv --max_segment_s 4") == 0
    recognizer, samples = load_model(folder), soundfile.read(talk, dtype="float32")[0]
    texts = [
        recognizer.transcribe(
            (samples[16 * begin : 16 * end], 16000), mode="ctc_greedy_search"
        ).text.strip(" ")
        for begin, end, _ in spans
    ]
    assert texts[0] and texts[3] and not texts[2], "a segment of 20 ms is too short"
    copy = Eaf(str(out / "talk.eaf"))
    assert [text for *_, text in copy.get_annotation_data_for_tier("wenet_hs")] == texts
    filled = [texts[0], "by hand", "", texts[3]]
    assert copy.get_annotation_data_for_tier("utt") == [
        (*span[:2], text) for span, text in zip(spans, filled, strict=True)
    ]
    assert copy.get_parameters_for_tier("wenet_hs words")["PARTICIPANT"] == "Ana"
    assert "2 without text in tier 'utt' were filled" in capsys.readouterr().out
    rows = [row.split("\t") for row in (out / "a.tsv").read_text("utf-8").splitlines()[1:]]
    assert [row[1:3] for row in rows] == [
        [f"{one / 1000:.3f}" for one in span[:2]] for span in spans
    ]
    segment = recognizer.transcribe_recording(
        talk, mode="ctc_greedy_search", spans=[(0.0, 6.6)], max_segment_s=4
    )
    assert len(segment.segments) == 1 and (segment.segments[0].start, segment.segments[0].end) == (
        0.0,
        6.6,
    )
    for flags, message in {
        f"{source} --tsv {out}/b.tsv": "--into_tier: the segments are those of .eaf files; give these, and --elan",
        f"{source} {talk} --elan {out}2": "--into_tier: the segments are those of .eaf files; give these, and --elan",
        f"{source} --elan {out}2 --vad energy": "--vad: has no effect with --into_tier, which gives the segments",
    }.items():
        wrong = f"--model_dir {folder} --into_tier utt {flags}"
        assert error_line(run_line(transcribe, wrong), capsys).startswith(message)
    assert run_line(transcribe, f"{line} nothing --elan {out}2") == 2
    assert "talk.eaf: no tier 'nothing'; there are: default, utt" in capsys.readouterr().err


def test_every_rule_of_the_flags_is_checked() -> None:
    rules = [name for name in vars(transcribe_flags) if name.startswith(("_require", "_refuse"))]
    assert [rule.__name__ for rule in transcribe_flags.RULES] == rules and len(rules) == 14
