# SPDX-License-Identifier: Apache-2.0
"""Every command gives a file of annotations the same line, and what the line says to do works."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from annotation_forms import Annotation, write_audio, write_elan
from form_examples import EXAMPLES
from prepared import prepare_line, read_lists

from wenet_hs.corpus.forms import recognise
from wenet_hs.data.audio import read_duration
from wenet_hs.lm.text import read_running_text
from wenet_hs.manifest.data_list import Utterance, read_data_list, read_sentences
from wenet_hs.text.tokenizer import CharTokenizer
from wenet_hs.text.units import SpecialIds, UnitTable
from wenet_hs.tree.errors import DataError

REFUSED = (
    *[
        "a transcript of CLAN (CHAT)",
        "a transcript of EXMARaLDA",
        "a file of Transcriber",
        "a text of FLEx",
    ],
    *["a file of Toolbox", "a Collection of Praat", "a text of Pangloss", "a file of SPPAS"],
    *["a file of Annotation Pro", "a session of Phon", "a CTM of NIST", "an STM of NIST"],
)
UNITS = UnitTable(
    ["<blank>", "<unk>", "m", "o", "<sos/eos>"], SpecialIds(blank=0, unk=1, sos=4, eos=4)
)
OPTIONS = "--lang qaa --num_workers 0 --split_by none --max_rejected 0.9"


def prepare(words: str, out: Path) -> list[Utterance]:
    """The utterances in the order of their times."""
    prepare_line(f"{words} --out {out} {OPTIONS}")
    utterances = [one for of_set in read_lists(out).values() for one in of_set]
    return sorted(utterances, key=lambda one: (one.wav, one.start or 0.0))


def prepare_folder(path: Path) -> None:
    write_audio(path.with_suffix(".wav"))
    prepare_line(
        f"folder --corpus {path.parent} --text_suffix {path.suffix} --out {path.parent / 'out'} {OPTIONS}"
    )


def prepare_with(command: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        prepare_line(f"{command} --corpus {path} --out {path.parent / 'out'} {OPTIONS}")

    return run


COMMANDS: dict[str, Callable[[Path], object]] = {
    "folder": prepare_folder,
    "table": prepare_with("table"),
    "elan": prepare_with("elan"),
    "praat": prepare_with("praat"),
    "a folder for elan": lambda path: prepare_with("elan")(path.parent),
    "app": lambda path: recognise(path, "qaa"),
    "a folder in app": lambda path: recognise(path.parent, "qaa"),
    "check, train": read_data_list,
    "transcribe, align": read_duration,
    "units, tree, embed": read_sentences,
    "lm": lambda path: read_running_text([path], CharTokenizer(UNITS)),
}


def line_of(command: str, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        COMMANDS[command](path)
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_all_commands_have_one_line_for_a_form(name: str, encoding: str, tmp_path: Path) -> None:
    file_name, text = EXAMPLES[name]
    if encoding == "latin-1":
        text += "\n\\tx été" if name == "a file of Toolbox" else ""
    for number, command in enumerate(
        COMMANDS if encoding == "utf-8" else ("folder", "table", "check, train", "lm")
    ):
        path = tmp_path / str(number) / file_name
        path.parent.mkdir()
        path.write_text(text, encoding)
        line = line_of(command, path)
        assert line.startswith(f"{path}: {name}; "), command
        assert line == line_of("transcribe, align", path), command


@pytest.mark.parametrize("command", ["check, train", "units, tree, embed", "lm"])
@pytest.mark.parametrize(
    "name", ["SRT subtitles", "a file of ELAN", "a table of the segments of one recording"]
)
def test_files_that_prepare_reads_are_no_text(name: str, command: str, tmp_path: Path) -> None:
    file_name, text = EXAMPLES[name]
    (tmp_path / file_name).write_text(text)
    line = line_of(command, tmp_path / file_name)
    assert line == line_of("transcribe, align", tmp_path / file_name)
    assert line.startswith(f"{tmp_path / file_name}: {name}; ")


def test_tags_in_sentences_are_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("<s> mo lu </s>\n\n<s> ke </s>\n" + "ba\n" * 2000)
    sentences = read_sentences(path)
    assert [sentence.txt for sentence in sentences[:2]] == ["<s> mo lu </s>", "<s> ke </s>"]
    assert len(sentences) == 2002


def test_a_form_comes_before_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.cha"
    path.write_bytes("@UTF8\n@Begin\n*SPA:\tété .\n".encode("latin-1"))
    assert all(
        line_of(command, path).startswith(f"{path}: a transcript of CLAN")
        for command in ("folder", "table")
    )
    srt = tmp_path / "srt" / "a.srt"
    srt.parent.mkdir()
    srt.write_bytes(
        "1\n00:00:00,250 --> 00:00:03,500\nété\n\n2\n00:00:04 --> 00:00:05\nmo\n".encode("cp1252")
    )
    assert line_of("folder", srt).endswith(
        "save it as UTF-8, or name its encoding, such as --encoding cp1252"
    )
    for number in range(3):
        shutil.copy(srt, srt.with_stem(f"b{number}"))
        write_audio(srt.with_name(f"b{number}.wav"))
    words = f"folder --corpus {srt.parent} --text_suffix .srt --encoding cp1252"
    assert prepare(words, tmp_path / "out")[0].txt == "été"


# ---- what the lines say to do


def test_lists_of_nist_as_a_table(tmp_path: Path) -> None:
    for name in (
        "a CTM of NIST",
        "an STM of NIST",
        "a Master Label File of HTK",
        "a transcript of SALT",
    ):
        path = tmp_path / EXAMPLES[name][0]
        path.write_text(EXAMPLES[name][1])
        remedy = "make a table with the columns path, text, start and end, and use `wenet-hs prepare table`"
        assert line_of("table", path).endswith(remedy)
    write_audio(tmp_path / "rec.wav")
    rows = [
        "path\ttext\tstart\tend",
        "rec.wav\tmo\t0\t1",
        "rec.wav\tlu\t1.5\t2",
        "rec.wav\tke\t3\t4.25",
    ]
    (tmp_path / "t.tsv").write_text("\n".join(rows))
    found = prepare(f"table --table {tmp_path / 't.tsv'}", tmp_path / "out")
    assert [(u.txt, u.start, u.end) for u in found] == [
        ("mo", 0.0, 1.0),
        ("lu", 1.5, 2.0),
        ("ke", 3.0, 4.25),
    ]


SEGMENTS = [{"start": 0.25, "end": 3.5, "text": "mo lu"}, {"start": 4.25, "end": 6.5, "text": "ke"}]
GIGASPEECH = {
    "audios": [
        {"path": "rec.wav", "segments": [{"begin_time": 0.25, "end_time": 3.5, "text_tn": "mo"}]}
    ]
}


@pytest.mark.parametrize(
    "content",
    [
        {"text": "mo " * 40_000, "segments": SEGMENTS, "language": "qaa"},
        {"segments": SEGMENTS, "word_segments": [{"start": 0.25, "end": 1.0, "word": "mo"}]},
        GIGASPEECH,
        [{"path": "rec.wav", "segments": SEGMENTS}],
    ],
    ids=["whisper", "whisperx", "gigaspeech", "lists"],
)
def test_json_with_lists_of_segments_is_named(content: object, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    remedy = "write one object per segment, with path, text, start and end, and use `wenet-hs prepare table`"
    name = "JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech"
    assert line_of("table", path) == f"{path}: {name}; {remedy}"


MAKE_LIST = "make a data.list of it with `wenet-hs prepare table`"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            json.dumps({"segments": SEGMENTS}),
            ": JSON with a list of segments per recording, as of Whisper",
        ),
        (
            json.dumps(GIGASPEECH, indent=2),
            ": JSON with a list of segments per recording, as of Whisper",
        ),
        (
            json.dumps([{"path": "rec.wav", "text": "mo"}]),
            f": JSON of the whole file, not one object per line; {MAKE_LIST}",
        ),
        (
            json.dumps({"results": {}}, indent=2),
            f": JSON of the whole file, not one object per line; {MAKE_LIST}",
        ),
        (
            '{"audio_filepath": "rec.wav", "duration": 1.0, "text": "mo"}\n' * 10,
            f": a manifest of NeMo; {MAKE_LIST}",
        ),
        (
            '{"id": "a", "recording_id": "a", "start": 0, "duration": 1, "channel": 0}\n' * 10,
            ":1: supervisions of lhotse; make a data.list of them with `wenet-hs prepare table`",
        ),
    ],
    ids=["whisper", "gigaspeech", "list", "indented", "nemo", "lhotse"],
)
def test_json_that_is_no_data_list_gets_one_line(
    content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    line = line_of("check, train", path)
    assert line.startswith(f"{path}{message}")
    assert "\n" not in line


def test_a_manifest_of_nemo_becomes_a_data_list(tmp_path: Path) -> None:
    """The remedy of the message."""
    rows = [
        {"audio_filepath": f"{number}.wav", "duration": 1.0, "text": f"mo {number}"}
        for number in range(3)
    ]
    for row in rows:
        write_audio(tmp_path / str(row["audio_filepath"]), 1.0)
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    assert len(prepare(f"table --table {tmp_path / 'a.json'}", tmp_path / "out")) == 3


def test_a_data_list_may_have_lists_of_segments(tmp_path: Path) -> None:
    path = tmp_path / "data.list"
    path.write_text(json.dumps({"key": "a", "wav": "a.wav", "txt": "mo", "segments": SEGMENTS}))
    assert [utterance.key for utterance in read_data_list(path)] == ["a"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LICENCE.html", "<html><body>mo</body></html>"),
        ("a0.pfsx", '<?xml version="1.0"?>\n<preferences></preferences>'),
        ("licence.rtf", "{\\rtf1 mo}"),
    ],
)
def test_a_document_beside_the_recordings_is_not_named(
    name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    elan = f"{tmp_path}: no .eaf file; --corpus is a .eaf file, or a folder with them"
    assert line_of("a folder for elan", path) == elan
    app = f"{tmp_path}: no annotations, no table and no recordings; choose another folder"
    assert line_of("a folder in app", path) == app
    (tmp_path / "meta.json").write_text('{"title": "mo"}')
    assert line_of("a folder for elan", path) == elan


TO_SEGMENTS = (
    "write one object per segment, with path, text, start and end, and use `wenet-hs prepare table`"
)
LABEL_STUDIO = [{"result": [{"value": {"start": 0.25, "end": 3.5, "text": ["mo"]}}]}]


@pytest.mark.parametrize(
    ("record", "missing", "nested"),
    [
        (
            {"jobName": "a", "results": {"transcripts": [{"transcript": "mo"}]}},
            "audio, text",
            "'results'",
        ),
        ({"id": 1, "audio": "a.wav", "annotations": LABEL_STUDIO}, "text", "'annotations'"),
    ],
    ids=["Amazon Transcribe", "Label Studio"],
)
def test_json_with_lists_of_segments_of_other_names_is_named(
    record: dict[str, object], missing: str, nested: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([record]), "utf-8")
    found = f"no column of {missing}, but lists of segments in {nested}"
    line = line_of("table", path)
    assert line.startswith(f"{path}: {found}; {TO_SEGMENTS}; or ")
    assert "name them: --columns " in line
    assert line.endswith(f", of: {', '.join(record)}")


@pytest.mark.parametrize(
    "extra",
    [
        {"meta": {"x": 1, "duration": 3}},
        {"tags": [{"name": "x"}], "sizes": [1, 2]},
        {"tokens": [{"word": "mo", "start": 0.25}]},
    ],
)
def test_columns_of_json_beside_lists_and_objects_may_be_named(
    extra: dict[str, object], tmp_path: Path
) -> None:
    rows = [{"path": f"{n}.wav", "phrase": f"mo {n}", **extra} for n in range(3)]
    for row in rows:
        write_audio(tmp_path / str(row["path"]), 1.0)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    line = line_of("table", path)
    assert f'name them: --columns "text=…", of: path, phrase, {", ".join(extra)}' in line
    assert ("lists of segments in 'tokens'" in line) == ("tokens" in extra)
    assert len(prepare(f"table --table {path} --columns text=phrase", tmp_path / "out")) == 3


def test_one_object_per_segment_is_read(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    segments = [*SEGMENTS, {"start": 7.0, "end": 8.0, "text": "ba"}]
    lines = [json.dumps({"path": "rec.wav", **segment, "words": []}) for segment in segments]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = prepare(f"table --table {tmp_path / 'a.jsonl'}", tmp_path / "out")
    assert [(u.txt, u.start, u.end) for u in found] == [
        ("mo lu", 0.25, 3.5),
        ("ke", 4.25, 6.5),
        ("ba", 7.0, 8.0),
    ]


def test_json_with_segments_beside_text_and_audio_is_a_table(tmp_path: Path) -> None:
    for number in range(3):
        write_audio(tmp_path / f"{number}.wav", 1.0)
    rows = [
        {"path": f"{number}.wav", "text": f"mo {number}", "segments": SEGMENTS}
        for number in range(3)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(prepare(f"table --table {tmp_path / 'a.jsonl'}", tmp_path / "out")) == 3


def test_wav_scp_is_no_table_and_its_folder_is_read(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    for name in names:
        write_audio(tmp_path / f"{name}.wav", 1.0)
    path = tmp_path / "wav.scp"
    path.write_text("".join(f"{name} {tmp_path / name}.wav\n" for name in names))
    remedy = "give the folder with `text` beside it to `wenet-hs prepare kaldi`"
    assert (
        line_of("table", path)
        == f"{path}: a list of audio files, such as wav.scp of Kaldi; {remedy}"
    )
    (tmp_path / "text").write_text("".join(f"{name} mo {name}\n" for name in names))
    assert len(prepare(f"kaldi --corpus {tmp_path}", tmp_path / "out")) == 3


@pytest.mark.parametrize(
    "name",
    [
        "SBV subtitles",
        "SRT subtitles",
        "WebVTT subtitles",
        "a table of the segments of one recording",
    ],
)
def test_subtitles_given_as_a_table_are_read_beside_their_recording(
    name: str, tmp_path: Path
) -> None:
    file_name, text = EXAMPLES[name]
    for number in range(3):
        write_audio(tmp_path / f"{number}.wav")
        (tmp_path / f"{number}{Path(file_name).suffix}").write_text(
            text.replace("mo", f"mo {number}")
        )
    path = tmp_path / f"0{Path(file_name).suffix}"
    remedy = f"use `wenet-hs prepare folder --text_suffix {path.suffix}`"
    assert (
        f"{path}: {name}; put it beside its recording, with the same name, and {remedy}"
        in line_of("table", path)
    )
    assert line_of("transcribe, align", path) == line_of("table", path)
    found = prepare(f"folder --corpus {tmp_path} --text_suffix {path.suffix}", tmp_path / "out")
    assert [(u.start, u.end, u.txt) for u in found] == [
        (0.25, 3.5, f"mo {number}") for number in range(3)
    ]


def test_an_elan_file_of_another_suffix(tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav")
    write_elan(
        tmp_path,
        [Annotation("rec", "Ana", 1000 * n, 1000 * n + 900, f"mo {n}") for n in range(1, 5)],
    )
    path = (tmp_path / "rec.eaf").rename(tmp_path / "rec.xml")
    expected = (
        f"{path}: a file of ELAN; use `wenet-hs prepare elan`, for which its name ends in .eaf"
    )
    assert line_of("elan", path) == expected
    path.rename(tmp_path / "rec.eaf")
    assert len(prepare(f"elan --corpus {tmp_path / 'rec.eaf'}", tmp_path / "out")) == 4


# ---- healthy tables without names of columns that look like other forms

WORDS = ["mo", "lu", "ke", "ba"]


@pytest.mark.parametrize(
    ("name", "row", "flags"),
    [
        ("words.tsv", "{word}\tclips/a{n}.wav", ""),
        ("yes_no.tsv", "{yes_no}\tclips/a{n}.wav", ""),
        ("times.csv", "clips/a{n}.wav,{word} sa,0.10,0.90", '--columns "start=3 end=4"'),
        ("times.csv", "clips/a{n}.wav,{word} sa,0.10,0.90", ""),
        ("stems.csv", "a{n},{word} sa,0.10,0.90", ""),
        ("speakers.tsv", "clips/a{n}.wav\tana\tes\t0.10\t0.90\t{word} hola", ""),
        ("chosen.scp", "{word}\tclips/a{n}.wav", "--columns speaker="),
    ],
)
def test_tables_without_names_of_columns_are_no_lists_of_audio(
    name: str, row: str, flags: str, tmp_path: Path
) -> None:
    lines = []
    for n, word in enumerate(WORDS):
        write_audio(tmp_path / "clips" / f"a{n}.wav", 1.0)
        lines.append(row.format(n=n, word=word, yes_no=("si", "no")[n % 2]) + "\n")
    (tmp_path / name).write_text("".join(lines))
    utterances = prepare(f"table --table {tmp_path / name} {flags}", tmp_path / "out")
    assert [Path(one.wav).name for one in utterances] == ["a0.wav", "a1.wav", "a2.wav", "a3.wav"]
    texts = [one.txt.removesuffix(" sa").removesuffix(" hola") for one in utterances]
    assert texts == (WORDS if name != "yes_no.tsv" else ["si", "no", "si", "no"])
    has_times = "start=3" in flags
    assert {(one.start, one.end) for one in utterances} == {
        (0.1, 0.9) if has_times else (None, None)
    }


@pytest.mark.parametrize("keys", ["{word}", "spk_{word}", "u{n}"])
def test_a_list_of_keys_is_named_and_with_names_of_columns_it_is_a_table(
    keys: str, tmp_path: Path
) -> None:
    lines = []
    for n, word in enumerate(WORDS):
        stem = word if keys == "{word}" else f"a{n}"
        write_audio(tmp_path / f"{stem}.wav", 1.0)
        lines.append(f"{keys.format(word=word, n=n)}\t{stem}.wav\n")
    path = tmp_path / "list.tsv"
    path.write_text("".join(lines))
    line = line_of("table", path)
    assert line.startswith(f"{path}: a list of audio files, such as wav.scp of Kaldi; ")
    assert line.endswith(
        "; if column 1 is the text, write a first line with the names text and path"
    )
    path.write_text("text\tpath\n" + "".join(lines))
    assert len(prepare(f"table --table {path}", tmp_path / "out")) == len(WORDS)


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_an_stm_beside_its_recording_is_no_table(separator: str, tmp_path: Path) -> None:
    write_audio(tmp_path / "rec.wav", 4.0)
    path = tmp_path / "rec.stm"
    rows = [["rec", "1", "ana", "0.5", "1.5", "mo lu"], ["rec", "1", "ana", "2.0", "3.5", "ke ba"]]
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    assert line_of("table", path).startswith(f"{path}: an STM of NIST; ")
