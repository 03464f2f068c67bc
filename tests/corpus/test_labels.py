# SPDX-License-Identifier: Apache-2.0
"""Transcripts with times in a folder: labels of Audacity, SRT, WebVTT and TIMIT; other forms are
refused by name.
"""

from pathlib import Path
from typing import Any

import pytest
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.corpus.labels import read_labels
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

AUDACITY = "0.250000\t3.500000\tMo lu, ke\n\\\t100.000000\t4000.000000\n4,25\t6,5\tba  mo\n7\t8\t\n8.5\t9.25\tre\n"
SRT = """1
00:00:00,250 --> 00:00:03,500 X1:10 X2:20
<i>Mo lu</i>, {\\an8}ke

2
00:00:04.250 --> 0:00:06,50
ba
mo

3
00:00:08 --> 00:00:09,250
1984
"""
VTT = """WEBVTT - made by hand
Kind: captions

STYLE
::cue { color: red }

NOTE 00:01.000 is no cue

intro
00:00.250 --> 00:03.500 align:start position:0%
<v.loud Ana>Mo<00:00:01.500><c> lu</c>, <00:00:02.000>ke &amp; &lt;</v>

NOTE not spoken

second
00:00:04.250 --> 00:00:06.500
<v Ana>ba</v>
<v Beto>mo</v>

00:00:08.000 --> 00:00:09.250
<v Beto Núñez>1984
"""
SPANS = [(0.25, 3.5), (4.25, 6.5), (8.0, 9.25)]


def labels(
    tmp_path: Path, text: str, name: str = "a.txt", seconds: float = 12.0
) -> list[tuple[Any, ...]] | None:
    found = read_labels(tmp_path / name, text, write_audio(tmp_path / "a.wav", seconds))
    return None if found is None else [tuple(one) for one in found[1]]


def test_labels_of_audacity(tmp_path: Path) -> None:
    expected = [
        *[(1, 0.25, 3.5, "Mo lu, ke", None), (3, 4.25, 6.5, "ba  mo", None)],
        *[(4, 7.0, 8.0, "", None), (5, 8.5, 9.25, "re", None)],
    ]
    assert (
        labels(tmp_path, AUDACITY) == labels(tmp_path, AUDACITY.replace("\n", "\r\n")) == expected
    )


def test_subtitles(tmp_path: Path) -> None:
    found = labels(tmp_path, SRT)
    assert found == [
        (2, *SPANS[0], "Mo lu, ke", None),
        (6, *SPANS[1], "ba mo", None),
        (11, *SPANS[2], "1984", None),
    ]
    assert labels(tmp_path, SRT.replace("\n\n", "\n")) is not None, (
        "no empty lines between the subtitles"
    )


def test_webvtt_with_notes_styles_times_of_words_and_speakers(tmp_path: Path) -> None:
    texts = [("Mo lu, ke & <", "Ana"), ("ba mo", None), ("1984", "Beto Núñez")]
    assert labels(tmp_path, VTT) == [
        (line, *span, *text) for line, span, text in zip((10, 16, 20), SPANS, texts, strict=True)
    ]


def test_a_line_with_a_space_does_not_end_a_cue(tmp_path: Path) -> None:
    cue = "00:00:00.250 --> 00:00:03.500 align:start position:0%\n \nmo<00:00:01.000><c> lu</c>\n"
    assert labels(tmp_path, f"\nWEBVTT\n\n{cue}\n\nNOTE x\n") == [(4, *SPANS[0], "mo lu", None)]
    assert labels(tmp_path, " 1 \n 00:00:00,250 --> 00:00:03,500 \nmo\n \nlu\n") == [
        (2, *SPANS[0], "mo lu", None)
    ]


def test_rolling_captions_have_each_line_once(tmp_path: Path) -> None:
    cues = [
        ("00:00:00.000 --> 00:00:02.990", " \nmo<00:00:01.000><c> lu</c>"),
        ("00:00:02.990 --> 00:00:03.000", "mo lu\n "),
        ("00:00:03.000 --> 00:00:05.990", "mo lu\nke"),  # a line of one word has no times
        ("00:00:05.990 --> 00:00:06.000", "ke\n "),
        ("00:00:06.000 --> 00:00:08.000", "ke\nba<00:00:07.000><c> mo</c>"),
    ]
    text = "WEBVTT\nKind: captions\n\n" + "".join(
        f"{t} align:start position:0%\n{body}\n\n" for t, body in cues
    )
    found = labels(tmp_path, text)
    assert found and [(begin, words) for _, begin, _, words, _ in found] == [
        (0.0, "mo lu"),
        (3.0, "ke"),
        (6.0, "ba mo"),
    ]


def test_captions_of_youtube(tmp_path: Path) -> None:
    text = "0:00:00.250,0:00:03.500\nMo lu,\nke\n\n0:00:04.250,0:00:06.500\nba[br]mo\n\n0:00:08.000,0:00:09.250\n"
    found = labels(tmp_path, text)
    assert found == [
        (1, *SPANS[0], "Mo lu, ke", None),
        (5, *SPANS[1], "ba mo", None),
        (8, *SPANS[2], "", None),
    ]
    assert labels(tmp_path, text[:31]) == [(1, *SPANS[0], "Mo lu,", None)], "one caption"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", 'start\tend\ttext\n250\t3500\tMo lu, ke\n4250\t6500\tba "mo\n8000\t9250\t1984\n'),
        (
            "a.csv",
            'start,end,text\n250,3500," Mo lu, ke"\n4250,6500," ba ""mo"\n8000,9250," 1984"\n',
        ),
        ("a.csv", 'text,start,end\n"Mo lu, ke",0.25,3.5\n"ba ""mo",4.25,6.5\n1984,8.0,9.25\n'),
        ("a.tsv", 'begin\tend\ttext\n0.25\t3.5\tMo lu, ke\n4.25\t6.5\tba "mo\n8.0\t9.25\t1984\n'),
        (
            "a.csv",
            'Start (s),To,sentence\n0.25,3.5,"Mo lu, ke"\n4.25,6.5,"ba ""mo"\n8.0,9.25,1984\n',
        ),
        ("a.csv", '"Mo lu, ke",0.25,3.50\n"ba ""mo",4.25,6.50\n1984,8.00,9.25\n'),
        (
            "a.txt",
            'Start;End;Text\n0:00.25;0:03.5;Mo lu, ke\n0:04.25;0:06.5;ba ""mo\n0:08;0:09.25;1984',
        ),
    ],
    ids=["whisper", "whisper.cpp", "named", "begin", "sentence", "whisper-timestamped", "clocks"],
)
def test_tables_of_the_segments_of_one_recording(tmp_path: Path, name: str, text: str) -> None:
    found = [
        (begin, end, words.replace('""', '"'))
        for _, begin, end, words, _ in labels(tmp_path, text, name) or []
    ]
    assert found == [
        (*span, words) for span, words in zip(SPANS, ("Mo lu, ke", 'ba "mo', "1984"), strict=True)
    ]
    first = [labels(tmp_path, "\n".join(text.split("\n")[:num]), name) or [] for num in (1, 2)]
    assert (0.25, 3.5, "Mo lu, ke") in [one[1:4] for of_lines in first for one in of_lines], (
        "one segment"
    )


def test_whole_numbers_of_a_table_are_milliseconds_unless_nobody_speaks_so_fast(
    tmp_path: Path,
) -> None:
    table = read_labels(
        tmp_path / "a.tsv", "start\tend\ttext\tspeaker\n0\t4\tmo lu\tAna\n4\t9\tke\t", tmp_path
    )
    form, found = table or ("", [])
    assert form == "tables of segments with times in s"
    assert [tuple(one) for one in found] == [
        (2, 0.0, 4.0, "mo lu", "Ana"),
        (3, 4.0, 9.0, "ke", None),
    ]
    form, _ = read_labels(tmp_path / "a.tsv", "start\tend\ttext\n140\t940\tmo lu", tmp_path) or (
        "",
        [],
    )
    assert form == "tables of segments with times in ms"


@pytest.mark.parametrize(
    ("name", "unit", "start", "end"),
    [
        ("start_ms", "ms", 0.004, 0.009),
        ("Begin Time - msec", "ms", 0.004, 0.009),
        ("onset (s)", "s", 4.0, 9.0),
    ],
)
def test_the_name_of_a_column_decides_the_unit_of_a_table_of_segments(
    tmp_path: Path, name: str, unit: str, start: float, end: float
) -> None:
    text = f"{name}\tend\tspeaker\ttranscript\n4\t9\tAna\tmo"
    table = read_labels(tmp_path / "a.tsv", text, tmp_path)
    assert table == (f"tables of segments with times in {unit}", [(2, start, end, "mo", "Ana")])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "0\t4",
            r"a.tsv:3: wrong number of columns: 2, expected 3 \(start, end, text\); correct the row",
        ),
        (
            "0\tx\tmo",
            "a.tsv:3: times: 'x' is not a number of seconds, mm:ss or h:mm:ss; correct the row",
        ),
    ],
)
def test_a_row_of_a_table_of_segments_that_is_wrong(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels(tmp_path, f"start\tend\ttext\n0\t4\tmo\n{row}\n", "a.tsv")


PLAIN = [
    *[
        "mo lu ke ba",
        "mo\nlu\n",
        "1 2 3 4",
        "0 800 555",
        "1 2 buckle my shoe\n3 4 knock",
        "12:30 we left",
        "",
    ],
    *[
        "[laughs] mo",
        "12:30 we left\nlu ke\nmo",
        "a --> b",
        "@ home",
        "room 101 3 4",
        "3.5 kilos",
        "- mo\n- lu",
    ],
]


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_times_stays_text(tmp_path: Path, text: str) -> None:
    assert labels(tmp_path, text) is None


OTHER = {
    "@UTF8\n@Begin\n*SPA:\tmo lu . 250_3500\n": "a transcript of CLAN (CHAT); import it into ELAN",
    '<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT DATE="">': "a file of ELAN; use `wenet-hs prepare elan`",
    'File type = "ooTextFile"\nObject class = "TextGrid"': "a TextGrid of Praat; use `wenet-hs prepare praat`",
    '<?xml version="1.0"?><basic-transcription>': "a transcript of EXMARaLDA; export it as an ELAN file there",
    '<?xml version="1.0"?><!DOCTYPE Trans SYSTEM "trans-14.dtd">\n<Trans scribe="x">': "a file of Transcriber; import",
    "<html><body>mo</body></html>": "XML or HTML; save it as plain text",
    "\\_sh v3.0  400  Text\n\\ref 001\n\\tx mo": "a file of Toolbox; import it into ELAN",
    "[Script Info]\nTitle: x": "SubStation subtitles; convert it to SRT or WebVTT",
    '{"text": "mo", "segments": []}': "JSON; make a table with the columns path, text, start and end",
    "{\\rtf1\\ansi mo}": "RTF; save it as plain text",
    ";; made by x\nrec1 1 0.25 0.31 mo\nrec1 1 0.56 0.3 lu 0.9\n": "a CTM of NIST; make a table",
    "rec1 A spk1 0.25 3.50 <o,f0,male> mo lu\n": "an STM of NIST; make a table",
    "rec1 1 spk1 0 3.5 mo lu\nrec1 1 spk1 3.5 6 ke": "an STM of NIST; make a table",
    "SPEAKER rec1 1 0.25 3.25 <NA> <NA> spk1 <NA> <NA>\n": "an RTTM of NIST, which has no text; give the transcripts",
    "[00:00.000 --> 00:03.500]  mo lu\n": "times in an unknown form, '[00:00.000 --> 00:03.500]  mo lu'; convert it",
    "[00:01.20] mo lu\n[00:04.00] ke": "times in an unknown form, '[00:01.20] mo lu'; convert it",
    "Name\tStart\tLength\nCue 1\t0:00.250\t0:03.250\nCue 2\t0:04.250\t0:02.250\n": "unknown form, 'Cue 1\\t0:00",
    "utt\tAna\t00:00:00.250\t0.25\tmo\nutt\tAna\t00:00:04.250\t4.25\tlu": "times in an unknown form, 'utt\\tAna\\t00:",
    "0.25 3.5 mo\n4.25 6.5 lu\n": "times in an unknown form, '0.25 3.5 mo'; convert it",
    "0 3000000 sil\n3000000 9000000 a\n": "ends with sample 9000000, its audio has 96000; restore the audio",
}


@pytest.mark.parametrize("text", OTHER)
def test_other_forms_are_refused_in_one_line_that_says_what_they_are(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(DataError) as caught:
        labels(tmp_path, text)
    assert OTHER[text] in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'a.txt'}:")


# ---- folders


def prepare(out: Path, words: str) -> tuple[list[Utterance], dict[str, int]]:
    """The utterances in the order of their times, and why others were left out."""
    stats = prepare_line(
        f"folder {words} --out {out} --num_workers 0 --lang qaa --split_by none --max_rejected 0.9"
    )
    total = stats["total"]
    found = [u for of_set in read_lists(out).values() for u in of_set]
    return sorted(found, key=lambda u: (u.wav, u.start or 0)), total["rejected"] | total["left_out"]


@pytest.mark.parametrize(("name", "text"), [("srt", SRT), ("vtt", VTT), ("txt", VTT), ("TXT", SRT)])
def test_each_label_is_an_utterance_whatever_the_suffix(
    tmp_path: Path, name: str, text: str
) -> None:
    write_audio(tmp_path / "rec.wav")
    (tmp_path / f"rec.{name}").write_text(text, "utf-16")
    found, _ = prepare(tmp_path / "out", f"--corpus {tmp_path} --text_suffix {name}")
    assert [(u.start, u.end, u.txt) for u in found] == [
        (*span, txt) for span, txt in zip(SPANS, ("mo lu ke", "ba mo", "1984"), strict=True)
    ]
    assert found[0].speaker == ("Ana" if text == VTT else None)


def test_a_mixed_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    other = next(iter(OTHER))
    for name, text in {
        "chat": other,
        "labels": AUDACITY,
        "plain": "mo\nlu",
        "srt": SRT,
        "short": "0 800 555",
    }.items():
        write_audio(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    found, left_out = prepare(tmp_path / "out", f"--corpus {tmp_path}")
    keys = [
        f"labels-{times}" for times in ("0000250-0003500", "0004250-0006500", "0008500-0009250")
    ]
    keys += [
        "plain",
        "short",
        *(f"srt-{round(1000 * a):07}-{round(1000 * b):07}" for a, b in SPANS),
    ]
    assert [u.key for u in found] == keys
    assert left_out == {"empty transcript": 1, "unreadable": 1}
    assert (
        "1 transcripts are labels of Audacity, whose times are used, such as labels.txt"
        in caplog.messages
    )
    assert (
        "1 transcripts have several lines, which are joined, such as plain.txt" in caplog.messages
    )
    assert (
        f"{tmp_path / 'chat.txt'}: a transcript of CLAN (CHAT); import it into ELAN" in caplog.text
    )


def test_only_other_forms_or_other_suffixes(tmp_path: Path) -> None:
    for name in "ab":
        write_audio(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.cha").write_text("@Begin\n")
    with pytest.raises(
        DataError,
        match=r"a.cha: a transcript of CLAN \(CHAT\); import it .* elan` \(the first of 2 files that",
    ):
        prepare(tmp_path / "out", f"--corpus {tmp_path} --text_suffix .cha")
    found = "no metadata.csv, and no x.txt beside x.wav, but x.cha (2)"
    remedy = "x.cha is a transcript of CLAN (CHAT); import it into ELAN, save it, and use `wenet-hs prepare elan`"
    assert line_of_folder(tmp_path) == f"{tmp_path}: {found}; {remedy}"


def line_of_folder(folder: Path, options: str = "") -> str:
    with pytest.raises(DataError) as caught:
        prepare(folder / "out", f"--corpus {folder} {options}")
    return str(caught.value)


WHISPER = "start\tend\ttext\n250\t3500\tmo lu\n4250\t6500\tke\n"


@pytest.mark.parametrize(
    ("options", "texts", "beside", "suffix"),
    [
        ("", {".transcript.vtt": VTT}, "x.transcript.vtt (2)", ".transcript.vtt"),
        ("--text_suffix .vtt", {".transcript.vtt": VTT}, "x.transcript.vtt (2)", ".transcript.vtt"),
        ("", {".en.srt": SRT}, "x.en.srt (2)", ".en.srt"),
        (
            "",
            {".json": '{"segments": [{"start": 1}]}', ".tsv": WHISPER},
            "x.json (2), x.tsv (2)",
            ".tsv",
        ),
    ],
    ids=["Zoom", "Zoom, last suffix", "YouTube", "Whisper"],
)
def test_the_suffix_of_transcripts_with_times_is_named(
    options: str, texts: dict[str, str], beside: str, suffix: str, tmp_path: Path
) -> None:
    for name in "ab":
        write_audio(tmp_path / f"{name}.wav", 12.0)
        for text_suffix, text in texts.items():
            (tmp_path / f"{name}{text_suffix}").write_text(text, "utf-8")
    missing = options.partition(" ")[2] or ".txt"
    found = f"no metadata.csv, and no x{missing} beside x.wav, but {beside}"
    assert line_of_folder(tmp_path, options) == f"{tmp_path}: {found}; add --text_suffix {suffix}"
    utterances, _ = prepare(tmp_path / "out2", f"--corpus {tmp_path} --text_suffix {suffix}")
    assert {Path(utterance.wav).name for utterance in utterances} == {"a.wav", "b.wav"}


def test_another_form_of_a_recording_is_no_file_beside_it(tmp_path: Path) -> None:
    for suffix in (".wav", ".flac"):
        write_audio(tmp_path / f"a{suffix}", 12.0)
    (tmp_path / "a.transcript.vtt").write_text(VTT, "utf-8")
    line = line_of_folder(tmp_path, "--text_suffix .vtt")
    assert line.endswith(", but x.transcript.vtt (1); add --text_suffix .transcript.vtt")


def test_the_command_for_annotations_in_a_folder_is_named(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav")
    (tmp_path / "a.eaf").write_text('<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT DATE="">')
    (tmp_path / "a.pfsx").write_text('<?xml version="1.0"?>\n<preferences></preferences>')
    assert "x.eaf is a file of ELAN; use `wenet-hs prepare elan`" in line_of_folder(tmp_path)


def write_timit(folder: Path, num_samples: int = 12000) -> None:
    """Three speakers in two sets; 8000 samples per second."""
    for place in ("TRAIN/DR1/SPKA", "TRAIN/DR2/SPKB", "TEST/DR1/SPKA", "TEST/DR1/SPKC"):
        for n in (1, 2):
            write_audio(folder / place / f"S{n}.WAV", 1.5)
            text = {
                "TXT": f"0 {num_samples} mo lu {place[-1]} {n}\n",
                "WRD": "1600 4000 mo\n4000 8000 lu\n",
            }
            text["PHN"] = f"0 1600 h#\n1600 4000 {place[-1]}\n4000 {num_samples} ow{n}\n"
            for suffix, content in text.items():
                (folder / place / f"S{n}.{suffix}").write_text(content)


def test_timit(tmp_path: Path) -> None:
    write_timit(tmp_path)
    found, left_out = prepare(tmp_path / "out", f"--corpus {tmp_path} --speaker_from folder")
    assert left_out == {} and {(u.start, u.end) for u in found} == {(0.0, 1.5)}
    assert {(u.speaker, u.txt) for u in found} == {
        (f"SPK{a}", f"mo lu {a.lower()} {n}") for a in "ABC" for n in (1, 2)
    }
    assert {u.wav.split("/")[-4] for u in read_lists(tmp_path / "out")["test"]} == {"TEST"}
    found, _ = prepare(
        tmp_path / "phones", f"--corpus {tmp_path} --text_suffix .PHN --unit phone --no_normalize"
    )
    assert {(u.start, u.end, u.txt) for u in found} == {
        (0.0, 1.5, f"h# {a} ow{n}") for a in "ABC" for n in (1, 2)
    }
    [label] = labels(tmp_path, "1600 4000 mo\n4100 8000 lu\n", "S1.WRD", 1.5) or []
    assert label == (1, 0.2, 1.0, "mo lu", None)
    with pytest.raises(
        DataError,
        match=r"S1.PHN: phones of TIMIT; give --unit phone \(the first of 8 files that cannot be read\)$",
    ):
        prepare(tmp_path / "chars", f"--corpus {tmp_path} --text_suffix .phn")


def test_numbers_that_are_not_samples_of_the_audio(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match="S1.PHN: ends with sample 13000, its audio has 12000; restore the audio, or",
    ):
        labels(tmp_path, "0 13000 h#", "S1.PHN", 1.5)
    with pytest.raises(
        DataError, match="S1.WRD: not TIMIT: expected two numbers of samples and a label per line"
    ):
        labels(tmp_path, "0 13000 h#\nmo", "S1.WRD", 1.5)


def test_speakers_of_metadata_by_folder(tmp_path: Path) -> None:
    rows = ["file_name,text,speaker"]
    for n in range(6):
        write_audio(tmp_path / "AB"[n % 2] / f"{n}.wav", 1.0)
        rows.append(f"{'AB'[n % 2]}/{n}.wav,mo {n},{'C' if n == 5 else ''}")
    (tmp_path / "metadata.csv").write_text("\n".join(rows))
    found, _ = prepare(tmp_path / "out", f"--corpus {tmp_path} --speaker_from folder")
    assert [u.speaker for u in found] == ["A", "A", "A", "B", "B", "C"]
