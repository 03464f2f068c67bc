# SPDX-License-Identifier: Apache-2.0
"""Columns of tables as tools write them: usual and near names, units of time, rows that name one
whole file.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from annotation_forms import write_audio
from prepared import prepare_line, read_lists

from wenet_hs.corpus.columns import find_columns, suggest_columns
from wenet_hs.corpus.table import TableOptions, read_entries
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

TEXTS = ["mo lu", "ba mo", "ke pi", "ti da", "so re", "na pi"]


def prepare(folder: Path, words: str = "") -> tuple[dict[str, Utterance], dict[str, Any]]:
    """The utterances of `t.csv` by text, and the statistics."""
    out = f"--out {folder / 'out'} --num_workers 0 --split_by none --max_rejected 0.9"
    stats = prepare_line(f"table --table {folder / 't.csv'} {out} {words}")["total"]
    return {u.txt: u for of_set in read_lists(folder / "out").values() for u in of_set}, stats


def write_rows(folder: Path, header: str, row: str) -> dict[str, tuple[float, float]]:
    """Six rows of two recordings.

    `row` is a pattern of wav, text, n, and start, end, length and clock of the start.

    Returns: the times in seconds by text.
    """
    lines, times = [header], dict[str, tuple[float, float]]()
    for n, text in enumerate(TEXTS):
        wav, start = write_audio(folder / f"rec{n // 3}.wav", seconds=8).name, 2.0 * (n % 3) + 0.5
        times[text] = start, start + 1.25
        ms = {"start_ms": round(start * 1000), "end_ms": round(start * 1000) + 1250}
        lines.append(
            row.format(
                wav=wav,
                text=text,
                n=n,
                start=start,
                end=start + 1.25,
                clock=f"0:00:{start:06.3f}",
                **ms,
            )
        )
    (folder / "t.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return times


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("ID duration wav spk_id wrd", "key=ID audio=wav speaker=spk_id text=wrd"),  # SpeechBrain
        (
            "audio_filepath text duration offset",
            "audio=audio_filepath text=text duration=duration start=offset",
        ),  # NeMo
        (
            "wav_filename wav_filesize transcript",
            "audio=wav_filename text=transcript",
        ),  # DeepSpeech
        (
            "client_id path sentence locale segment",
            "speaker=client_id audio=path text=sentence lang=locale",
        ),
        (
            "id file_name raw_transcription transcription",
            "key=id audio=file_name text=transcription",
        ),  # FLEURS
        (
            "id audio raw_text normalized_text split speaker_id",
            "key=id audio=audio text=normalized_text split=split",
        ),
        ("id wav length words", "key=id audio=wav text=words"),  # SpeechBrain's template
        ("audio text words normalized_text", "audio=audio text=text"),
        (
            "segment_id audio begin_time end_time text",
            "key=segment_id audio=audio start=begin_time end=end_time",
        ),
        (
            "id recording_id start duration text",
            "key=id audio=recording_id start=start duration=duration",
        ),  # lhotse
        ("file tmin text tmax", "audio=file start=tmin text=text end=tmax"),  # Praat
        ("file onset offset text", "audio=file start=onset end=offset text=text"),  # R
        (
            "fileName startTime endTime Transcription",
            "audio=fileName start=startTime end=endTime text=Transcription",
        ),
        ("File-Path Start_ms END(ms) Text", "audio=File-Path start=Start_ms end=END(ms) text=Text"),
    ],
)
def test_columns_are_found_by_the_names_that_tools_write(header: str, expected: str) -> None:
    found = find_columns(Path("t.csv"), header.split(), "")
    assert {tuple(pair.split("=")) for pair in expected.split()} <= {*found.items()}


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Begin Time - ss.msec,End Time - ss.msec", "{start:.3f},{end:.3f}"),
        ("Begin Time - msec,End Time - msec", "{start_ms},{end_ms}"),
        ("Begin Time - hh:mm:ss.ms,Duration - ss.msec", "{clock},1.250"),
        ("Begin Time - ss.msec,Duration - msec", "{start},1250"),
        (
            "Begin Time - hh:mm:ss.ms,Begin Time - ss.msec,Begin Time - msec,End Time - msec",
            "{clock},{start},1,{end_ms}",
        ),
        ("start_ms,endMs", "{start_ms}.0,{end_ms}.0"),
        ("Start (s),End (s)", "{start},{end}"),
    ],
)
def test_times_have_the_unit_that_the_name_of_the_column_says(
    tmp_path: Path, header: str, row: str
) -> None:
    times = write_rows(tmp_path, f"wav,text,{header}", f"{{wav}},{{text}},{row}")
    assert {text: (u.start, u.end) for text, u in prepare(tmp_path)[0].items()} == times


def test_an_export_that_names_the_annotation_files_finds_their_audio(tmp_path: Path) -> None:
    header = "Tier,File Path,Begin Time - ss.msec,End Time - ss.msec,Annotation"
    times = write_rows(tmp_path, header, "A,file:///C:/x/{wav},{start},{end},{text}")
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(".wav", ".eaf"))
    assert {text: (u.start, u.end) for text, u in prepare(tmp_path)[0].items()} == times


def test_a_unit_that_is_not_read_and_a_comma_in_milliseconds_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "wav,text,Anfang (frames),end", "{wav},{text},{n},{end}")
    with pytest.raises(
        DataError,
        match=r"t\.csv:1: 'Anfang \(frames\)' has another unit; write seconds, milliseconds",
    ):
        prepare(tmp_path, '--columns "start=Anfang (frames)"')
    write_rows(tmp_path, "wav;text;start_ms;end_ms", "{wav};{text};1,500;{end_ms}")
    with pytest.raises(DataError, match="times 6"):
        prepare(tmp_path)
    assert "times: '1,500' is not a number of milliseconds" in (
        tmp_path / "out" / "rejected.tsv"
    ).read_text("utf-8")


def test_columns_that_are_not_used_are_printed_and_near_names_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(
        tmp_path,
        "wav,text,start,end,speaker_label,speaker_age,votes",
        "{wav},{text},{start},{end},a,7,1",
    )
    caplog.set_level("INFO")
    assert {u.speaker for u in prepare(tmp_path)[0].values()} == {None}
    line = "t.csv: columns not used: 'speaker_label', 'speaker_age', 'votes'; 'speaker_label' looks like the speaker: "
    assert f'{line}--columns "speaker=speaker_label"' in caplog.text
    caplog.clear()
    prepare(tmp_path, '--columns "speaker="')
    assert "columns not used: 'speaker_label', 'speaker_age', 'votes'\n" in caplog.text
    assert {
        u.speaker for u in prepare(tmp_path, "--columns speaker=speaker_label")[0].values()
    } == {"a"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("speeker Speakers", {"speaker": "speeker"}),
        (
            "languages dialect start_at end_at",
            {"lang": "languages", "start": "start_at", "end": "end_at"},
        ),
        ("Begin_hh:mm:ss:ff start_frame speaker_gender age id_number segment", {}),
        (
            "langauge chanel speakerName",
            {"speaker": "speakerName", "lang": "langauge", "channel": "chanel"},
        ),
        (
            "state status stat send trend weekend legend gender restart star change speak local slang",
            {},
        ),
        ("started splitter speech stage asset spread onward tender lender chant trains", {}),
        ("start_date end_user start_page end_char begin_line end_of_year", {}),
        ("native_language language_probability num_speakers first_language speaker_count", {}),
    ],
)
def test_near_names(names: str, expected: dict[str, str]) -> None:
    hints = [
        f'{name!r} looks like the {content}: --columns "{content}={name}"'
        for content, name in expected.items()
    ]
    assert suggest_columns(names.split(), {"audio", "text"}) == hints
    assert suggest_columns(names.split(), {"audio", "text", *expected}) == []


@pytest.mark.parametrize("name", ["state", "gender", "restart", "weekend"])
def test_a_column_of_another_word_is_no_hint_and_no_guess(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level("INFO")
    rows = [f"wav,text,{name}"]
    for n, text in enumerate(TEXTS):
        write_audio(tmp_path / f"{n}.wav", seconds=0.5 + n / 10)
        rows.append(f"{n}.wav,{text},done")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert len(prepare(tmp_path)[0]) == len(TEXTS)
    assert f"columns not used: {name!r}\n" in caplog.text and "looks like" not in caplog.text
    for other, missing in {"end": "start", "start": "end or duration"}.items():
        flag = f'--columns "{missing.split()[0]}=…"'
        with pytest.raises(DataError, match=f"t.csv:1: no column of {missing}; name them: {flag}"):
            find_columns(Path("t.csv"), ["wav", "text", other, name], "")


def test_rows_that_give_one_whole_file_different_texts_are_refused_with_the_likely_times(
    tmp_path: Path,
) -> None:
    write_rows(tmp_path, "no,wav,text,Anfang,Ende,votes", "{n},{wav},{text},{start},{end},2")
    found = r"^.*t\.csv:2: 6 rows give whole files, which other rows give with another text; "
    remedy = r"'Anfang' and 'Ende' may be their times: --columns \"start=Anfang end=Ende\", or keep one row per file$"
    with pytest.raises(DataError, match=found + remedy):
        prepare(tmp_path)
    assert len(prepare(tmp_path, '--columns "start=Anfang end=Ende"')[0]) == 6
    write_rows(tmp_path, "no,wav,text,start_frame,end_frame", "{n},{wav},{text},{start},{end}")
    with pytest.raises(
        DataError, match=found + 'name the columns of times: --columns "start=… end=…", or keep'
    ):
        prepare(tmp_path)


def test_one_text_per_channel_or_file_and_a_few_repeated_files_are_no_reason_to_refuse(
    tmp_path: Path,
) -> None:
    names = [f"r{n:02d}.wav" for n in range(30)]
    rows = [f"{write_audio(tmp_path / name, seconds=0.5).name},{name} a," for name in names]
    (tmp_path / "t.csv").write_text(
        "\n".join(["wav,text,channel", *rows, "r00.wav,another,", "r01.wav,r01.wav a,"])
    )
    found, stats = prepare(tmp_path)
    assert len(found) == 29 and "another" not in found
    assert stats["rejected"] == {"several transcripts": 2, "repeated": 1}
    for name in names:
        soundfile.write(
            tmp_path / name, np.random.default_rng(0).uniform(-0.1, 0.1, (4000, 2)), 8000
        )
    rows = [f"{name},{name} {side},{side}" for name in names for side in ("left", "right")]
    (tmp_path / "t.csv").write_text("\n".join(["wav,text,channel", *rows]))
    assert len(prepare(tmp_path)[0]) == 60


def test_several_usual_names_of_the_transcript_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "wav,Orthography,transcription,start,end", "{wav},{text},x,{start},{end}")
    with pytest.raises(
        DataError,
        match="several columns can be the transcript: 'transcription', 'Orthography'; name",
    ):
        prepare(tmp_path)


def test_segments_of_label_studio_in_a_cell_are_no_transcript(tmp_path: Path) -> None:
    row = "{wav}\t{text}\t{start}\t{end}"
    write_rows(tmp_path, "audio\ttranscription\tstart\tend", row)
    segments = 'rec0.wav\t[{"start": 0, "labels": ["Speech"]}]\t7\t8\n'
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text("utf-8") + segments, "utf-8")
    found, stats = prepare(tmp_path)
    assert (found.keys(), stats["rejected"]) == ({*TEXTS}, {"transcription": 1})


def test_a_transcript_that_is_a_usual_name_of_a_column_makes_no_header(tmp_path: Path) -> None:
    for n in range(6):
        write_audio(tmp_path / f"LX-{n}.wav", seconds=0.5)
    texts = ["end", "set", "speaker", "one", "two", "three"]
    (tmp_path / "t.csv").write_text("\n".join(f"LX-{n},{text}" for n, text in enumerate(texts)))
    assert prepare(tmp_path)[0].keys() == {*texts}


def test_a_length_beside_a_start_is_the_duration(tmp_path: Path) -> None:
    times = write_rows(tmp_path, "wav,start,length,text", "{wav},{start},1.25,{text}")
    utterances = prepare(tmp_path)[0]
    assert {text: (one.start, one.end) for text, one in utterances.items()} == times


@pytest.mark.parametrize("flags", ["", '--columns "end=Ende"'])
def test_a_length_beside_an_end_is_not_used(tmp_path: Path, flags: str) -> None:
    end = "Ende" if flags else "end"
    times = write_rows(
        tmp_path, f"wav,start,{end},length,text", "{wav},{start},{end},5 letters,{text}"
    )
    utterances = prepare(tmp_path, flags)[0]
    assert {text: (one.start, one.end) for text, one in utterances.items()} == times


def test_a_start_without_an_end_asks_for_an_end_or_a_duration(tmp_path: Path) -> None:
    times = write_rows(tmp_path, "wav,start,Clip Length,text", "{wav},{start},1.25,{text}")
    with pytest.raises(DataError) as caught:
        prepare(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 't.csv'}:1: no column of end or duration; did you mean Clip Length? name them: "
        '--columns "end=…" (or "duration=…"), of: wav, start, Clip Length, text; '
        'or use whole files: --columns "start="'
    )
    utterances = prepare(tmp_path, '--columns "duration=Clip Length"')[0]
    assert {text: (one.start, one.end) for text, one in utterances.items()} == times


@pytest.mark.parametrize("name", ["'Start time'", r"Start\ time", r"Start\\ time"])
def test_quotation_marks_around_a_name_with_spaces(tmp_path: Path, name: str) -> None:
    times = write_rows(tmp_path, "wav,Start time,End time,text", "{wav},{start},{end},{text}")
    options = TableOptions(
        corpus=tmp_path / "t.csv", out=tmp_path, columns=f"start={name} end=End time"
    )
    flag = '--columns "start=Start time"'
    with pytest.raises(ConfigError) as caught:
        list(read_entries(options.corpus, options))
    assert str(caught.value) == (
        f"--columns {f'start={name}'!r}: write {flag}, without other quotation marks or backslashes; "
        "t.csv has the columns: wav, Start time, End time, text"
    )
    utterances = prepare(tmp_path, f'{flag[:-1]} end=End time"')[0]
    assert {text: (one.start, one.end) for text, one in utterances.items()} == times


@pytest.mark.parametrize("second", ["end", "duration"])
def test_milliseconds_without_a_unit_are_named_and_with_it_are_read(
    tmp_path: Path, second: str
) -> None:
    pattern = (
        "{wav},{start_ms},{end_ms},{text}" if second == "end" else "{wav},{start_ms},1250,{text}"
    )
    times = write_rows(tmp_path, f"wav,start,{second},text", pattern)
    with pytest.raises(DataError) as caught:
        prepare(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 't.csv'}: times outside the audio, line 2: from 500 to 1750 s in audio of 8 s; "
        f"if they are milliseconds, name the columns start_ms and {second}_ms; write other units in seconds"
    )
    write_rows(tmp_path, f"wav,start_ms,{second}_ms,text", pattern)
    utterances = prepare(tmp_path)[0]
    assert {text: (one.start, one.end) for text, one in utterances.items()} == times


def test_long_segments_inside_their_audio_are_seconds(tmp_path: Path) -> None:
    rows = ["wav,start,end,text"]
    for n, text in enumerate(TEXTS):
        write_audio(tmp_path / f"{n}.wav", seconds=81.0)
        rows.append(f"{n}.wav,{5 + n / 10},{75 + n},{text}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert len(prepare(tmp_path)[0]) == len(TEXTS)
