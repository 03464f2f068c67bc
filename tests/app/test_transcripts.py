# SPDX-License-Identifier: Apache-2.0
"""Transcribed recordings: borders, confirmation, other tiers, waveform, training speech,
comparison, long uploads.
"""

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from app_client import ORIGIN, App, write_audio, write_elan, write_lists, write_transcript
from model_folders import write_model_folder
from pympi import Eaf
from recipe_projects import write_options
from test_models import recipe, state
from waiting import within

from wenet_hs.annotation.corrections import (
    Correction,
    annotations_beside,
    read_corrected,
    read_given,
    save_correction,
)
from wenet_hs.annotation.recordings import Record, find_record, write_record
from wenet_hs.annotation.textgrid import write_textgrid
from wenet_hs.annotation.tiers import Tier, TimedText, TranscribedRecording, TranscribedSegment
from wenet_hs.app import media_views
from wenet_hs.corpus.edits import read_added
from wenet_hs.data.peaks import PEAKS_PER_SECOND
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.recipes.folder_options import FolderOptions, portable_values, write_folder_options
from wenet_hs.score.error_rate import score
from wenet_hs.score.report_file import report_to_json
from wenet_hs.score.rules import Rules
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

__all__ = ["recipe"]


def corrections(app: App) -> Any:
    """The file of corrections of the recording `talk`, without the hash of its segments."""
    found = json.loads((app.project / "transcribed/talk.corrections.json").read_text("utf-8"))
    assert re.fullmatch("[0-9a-f]{16}", found.pop("segments"))
    return found


def save(app: App, **fields: str) -> str:
    """Save a correction of the recording `talk`; the line of the error, or nothing."""
    answer = app.post("/p/first/text", {"Accept": "text/plain"}, name="talk", **fields)
    return "" if answer.status_code in (200, 303) else str(answer.text)


# ---- borders


def test_borders_are_saved_and_in_every_format(app: App) -> None:
    source = write_elan(app.home / "talk.eaf", {"gloss": ["one", "two"]})
    write_transcript(app.project, app.home / "talk.wav", source=source)
    assert save(app, number="0", text="old words", start="0.05", end="0,45") == ""
    assert corrections(app) == {"0": {"start": 0.05, "end": 0.45}}
    assert save(app, number="1", text="new end", start="0.600", end="1.25", confirmed="yes") == ""
    assert corrections(app)["1"] == {"text": "new end", "end": 1.25, "confirmed": True}
    for form, expected in {
        "srt": "00:00:00,050 --> 00:00:00,450",
        "tsv": "\t0.600\t1.250\tnew end\t",
        "TextGrid": "xmin = 0.05\n            xmax = 0.45",
        "txt": "old words\nnew end\n",
    }.items():
        assert expected in app.get(f"/p/first/download?name=talk&form={form}").text, form
    write_atomic(app.home / "out.eaf", app.get("/p/first/download?name=talk&form=eaf").content)
    eaf = Eaf(str(app.home / "out.eaf"))
    assert eaf.get_annotation_data_for_tier("wenet_hs") == [
        (50, 450, "old words"),
        (600, 1250, "new end"),
    ]
    assert eaf.get_annotation_data_for_tier("gloss") == [(0, 100, "one"), (100, 200, "two")]
    assert eaf.get_annotation_data_for_tier("wenet_hs words") == [
        (50, 100, "old"),
        (100, 200, "words"),
    ]
    assert (
        save(app, number="0", text="old words", start="0", end="0.5") == ""
    )  # as the model wrote it
    assert [*corrections(app)] == ["1"]


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (
            "0.4",
            "0.4",
            "segment 1: 0.400 to 0.400 s: shorter than 0.01 s; the end must be after the begin",
        ),
        ("0.4", "0.1", "shorter than 0.01 s"),
        (
            "0",
            "0.7",
            "segment 1: 0.000 to 0.700 s: crosses segment 2, 0.600 to 1.000 s; move its border first",
        ),
        ("-1", "0.5", "start '-1': must be a number from 0 to 100000"),
        ("0", "nan", "end 'nan': must be a number"),
        ("0", "inf", "end 'inf': must be a number"),
        ("0", "1:30", "end '1:30': must be a number"),
        ("0", "<b>", "end '<b>': must be a number"),
        ("0", "9" * 4000, "must be a number"),
    ],
)
def test_wrong_borders_are_refused_in_one_line(
    app: App, start: str, end: str, message: str
) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    fault = save(app, number="0", text="not saved", start=start, end=end)
    assert message in fault and "\n" not in fault
    assert not (app.project / "transcribed/talk.corrections.json").exists()


def test_borders_stay_within_the_recording_and_the_neighbours_as_they_are_now(app: App) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    assert "outside of the recording of 2.000 s" in save(
        app, number="1", text="end", start="0.6", end="2.01"
    )
    assert save(app, number="1", text="end", start="0.8", end="2") == ""
    assert (
        save(app, number="0", text="old words", start="0", end="0.75") == ""
    )  # the neighbour has moved
    assert "crosses segment 1" in save(app, number="1", text="end", start="0.6", end="2")
    assert "crosses segment 1" in save(app, number="1", text="end")  # as it was transcribed
    assert corrections(app)["1"] == {"start": 0.8, "end": 2.0}


def test_texts_can_be_saved_although_segments_overlap_already(tmp_path: Path) -> None:
    segments = tuple(TranscribedSegment(start=n / 2, end=n + 1.0, text=str(n)) for n in range(3))
    recording = TranscribedRecording(media=tmp_path / "a.wav", duration_s=9.0, segments=segments)
    write_record(tmp_path / "a.json", Record(recording, tmp_path / "a.wav"))
    save_correction(tmp_path / "a.json", 1, Correction("one"))
    with pytest.raises(DataError, match="crosses"):
        save_correction(tmp_path / "a.json", 1, Correction("one", 0.4))
    two = tuple(
        TranscribedSegment(start=0.0, end=1.0, text="x", speaker=speaker)
        for speaker in ("Ana", "Beto")
    )  # people may speak at the same time
    write_record(
        tmp_path / "b.json",
        Record(TranscribedRecording(media=tmp_path, duration_s=9.0, segments=two), tmp_path),
    )
    save_correction(tmp_path / "b.json", 0, Correction("x", 0.0, 1.5))


def test_words_outside_of_new_borders_lose_their_times(app: App) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    assert save(app, number="0", text="old words", start="0.1", end="0.5") == ""
    assert read_corrected(app.project / "transcribed/talk.json").apply().segments[0].words == ()


@pytest.mark.parametrize(
    "content", ["[]", '{"x": "y"}', '{"0": 3}', '{"0": {"start": "a"}}', '{"0": {"end": NaN}}', "{"]
)
def test_damaged_corrections_are_named(app: App, content: str) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    write_atomic(app.project / "transcribed/talk.corrections.json", content)
    assert "not a file of corrections; restore it, or move it away" in save(
        app, number="0", text="x"
    )
    assert "not a file of corrections" in app.get("/p/first/text?name=talk").text


def test_a_record_without_its_model_and_corrections_without_their_segments_are_read(
    app: App,
) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    record = json.loads((app.project / "transcribed/talk.json").read_text())
    del record["model"]
    write_atomic(app.project / "transcribed/talk.json", json.dumps(record))
    write_atomic(app.project / "transcribed/talk.corrections.json", '{"0": "corrected before"}')
    html = app.get("/p/first/text?name=talk").text
    assert ">corrected before</textarea>" in html and 'role="status">corrected</span>' in html
    assert save(app, number="1", text="end", confirmed="yes") == ""
    assert corrections(app) == {"0": "corrected before", "1": {"confirmed": True}}
    assert "2 segments corrected or confirmed" in app.get("/p/first/transcribe").text


# ---- two tabs, and another transcription


def seen_hashes(app: App) -> list[str]:
    """The hashes that the page of the recording `talk` has in its forms."""
    return re.findall('name="seen" value="([0-9a-f]{16})"', app.get("/p/first/text?name=talk").text)


def test_an_old_tab_does_not_write_over_a_correction(app: App) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    first, second = seen_hashes(app)
    fields = {"name": "talk", "start": "0.000", "end": "0.500"}
    answer = app.post(
        "/p/first/text",
        {"Accept": "text/plain"},
        **fields,
        number="0",
        text="right words",
        seen=first,
    )
    assert answer.status_code == 200 and [answer.text, second] == seen_hashes(app)
    fault = save(
        app, number="0", text="old words", start="0.000", end="0.450", seen=first
    )  # only the border is new
    assert fault == "segment 1: changed in another tab since; load the page again"
    assert corrections(app) == {"0": "right words"}
    assert save(app, number="1", text="end", confirmed="yes", seen=second) == ""  # another segment
    assert (
        save(app, number="0", text="right words", start="0.000", end="0.450", seen=answer.text)
        == ""
    )
    assert corrections(app)["0"] == {"text": "right words", "end": 0.45}


def test_corrections_of_another_transcription_are_refused_in_one_line(app: App) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    assert save(app, number="1", text="corrected end") == ""
    (app.project / "transcribed/talk.json").unlink()
    write_transcript(app.project, app.home / "talk.wav", text="other words")
    fault = save(app, number="0", text="x")
    expected = "talk.corrections.json: made for other segments than those of talk.json; restore these, or move it away"
    assert fault.endswith(expected) and "\n" not in fault
    assert expected in app.get("/p/first/text?name=talk").text
    with pytest.raises(DataError, match="made for other segments"):
        read_corrected(app.project / "transcribed/talk.json")


def test_a_text_between_borders_of_single_samples_can_be_corrected(app: App) -> None:
    border = next(
        n / 16000 for n in range(1, 16000) if abs(round(n / 16000, 3) - n / 16000) >= 0.0005 > 0
    )
    segments = tuple(
        TranscribedSegment(start=start, end=end, text="x")
        for start, end in ((0.0, border), (border, 1.9))
    )
    (app.project / "transcribed").mkdir()
    recording = TranscribedRecording(media=app.home / "talk.wav", duration_s=2.0, segments=segments)
    write_record(app.project / "transcribed/talk.json", Record(recording, app.home / "talk.wav"))
    assert save(app, number="0", text="a", start="0.000", end=f"{border:.3f}") == ""
    assert save(app, number="1", text="b", start=f"{border:.3f}", end="1.900") == ""
    assert corrections(app) == {"0": "a", "1": "b"}


# ---- what is beside the text


def test_other_tiers_are_beside_the_segments(app: App) -> None:
    tiers = {"gloss": ["<b>one</b>", "two"], "ترجمة": ["", "مرحبا"]}
    source = write_elan(app.home / "talk.eaf", tiers, step_ms=450)
    write_transcript(app.project, app.home / "talk.wav", source=source)
    html = app.get("/p/first/text?name=talk").text
    assert '<dt>gloss</dt><dd dir="auto">&lt;b&gt;one&lt;/b&gt; two</dd>' in html
    assert html.count('<dt>ترجمة</dt><dd dir="auto">مرحبا</dd>') == 2
    source.write_text("<")
    html = app.get("/p/first/text?name=talk").text
    assert "talk.eaf: not XML" in html and "old words" in html
    source.unlink()
    html = app.get("/p/first/text?name=talk").text
    assert (
        "talk.eaf: cannot be read (No such file or directory); check the path" in html
        and "old words" in html
    )


def test_points_and_shifted_textgrids_are_beside_the_segments(tmp_path: Path) -> None:
    points = Tier(name="tones", is_interval=False, spans=[(10.2, 10.2, "H"), (11.5, 11.5, "L")])
    write_textgrid(tmp_path / "a.TextGrid", [points], 12.0)
    text = (tmp_path / "a.TextGrid").read_text().replace("xmin = 0.0", "xmin = 10.0")
    (tmp_path / "a.TextGrid").write_text(text)
    segments = [
        TranscribedSegment(start=0.0, end=1.0, text=""),
        TranscribedSegment(start=1.0, end=2.0, text=""),
    ]
    given = read_given(tmp_path / "a.TextGrid")
    assert annotations_beside(given, 2.0, segments) == [[("tones", "H")], [("tones", "L")]]
    with pytest.raises(DataError, match="begins at 10 s"):
        annotations_beside(given, 5.0, segments)


def test_peaks_are_sent_and_kept_and_only_of_allowed_recordings(app: App, tmp_path: Path) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    answer = app.get("/p/first/peaks?name=talk")
    assert len(answer.content) == 2 * PEAKS_PER_SECOND and max(answer.content) > 20
    assert len([*(app.project / ".app/peaks").iterdir()]) == 1
    secret = write_audio(tmp_path / "outside/secret.wav")
    write_transcript(app.project, secret, "secret")
    assert "outside of the folders" in app.get("/p/first/peaks?name=secret").text
    assert app.get("/p/first/peaks?name=../x").status_code == 400
    (app.home / "talk.wav").unlink()
    answer = app.get("/p/first/peaks?name=talk", headers={"Accept": "application/octet-stream"})
    assert answer.status_code == 400 and "\n" not in answer.text


@pytest.mark.slow
def test_two_hours_open_at_once(app: App) -> None:
    segments = list[TranscribedSegment]()
    for start in range(0, 7200, 3):
        times = [start + n / 4 for n in range(8)]
        words = tuple(
            TimedText(text="word", start=one, end=one + 0.2, confidence=0.5) for one in times
        )
        segments.append(
            TranscribedSegment(start=start, end=start + 2.5, text="word " * 8, words=words)
        )
    recording = TranscribedRecording(
        media=app.home / "talk.wav", duration_s=7200.0, segments=tuple(segments)
    )
    tiers = {name: ["words"] * 2400 for name in ("gloss", "translation")}
    source = write_elan(app.home / "talk.eaf", tiers, step_ms=3000)
    (app.project / "transcribed").mkdir()
    write_record(app.project / "transcribed/talk.json", Record(recording, source))
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        assert app.get("/p/first/text?name=talk&page=60").status_code == 200
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.2, seconds


# ---- training speech


def reviewed_project(app: App) -> Path:
    """A model, lists, and a recording with a corrected, a confirmed and, of another one, an unseen
    segment.
    """
    model = app.project / "exp/softmax"
    write_model_folder(model)
    write_options(app.project / "data", elan="/some/where", lang="es")
    clips = [
        Utterance(
            key="u0", wav=str(app.home / "talk.wav"), txt="a", speaker="Ana <b>", start=0.0, end=0.4
        )
    ]
    write_lists(app.project, clips)
    write_transcript(app.project, app.home / "talk.wav", model=str(model))
    write_transcript(app.project, app.home / "talk.wav", "unseen")
    assert save(app, number="0", text="a corrected text", start="0.1", end="0.5") == ""
    assert save(app, number="1", text="end", confirmed="yes") == ""
    return model


def test_corrected_segments_become_training_speech_of_a_training_from_their_model(
    app: App, recipe: Path
) -> None:
    model = reviewed_project(app)
    write_model_folder(app.project / "exp-other/softmax")
    html = app.get("/p/first/transcribe").text
    assert f'<option value="{model}" selected>exp/softmax</option>' in html
    assert "Corrected or confirmed segments: 2" in html
    assert '<option value="Ana &lt;b&gt;">' in app.get("/p/first/text?name=talk").text
    assert save(app, speaker="Beto\tJosé") == ""
    fields = {"corrected": "yes", "start": "model", "base": str(model), "minutes": "1"}
    shown = app.post("/p/first/train", **fields, preview="yes").text
    table = app.project / "data/added.tsv"
    assert not table.exists()
    command = shlex.split(shown)
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert (
        options["--elan"] == "/some/where"
        and options["--base"] == str(model)
        and "--stage" not in options
    )
    assert options["--exp"] != str(model.parent)
    assert (
        app.post("/p/first/train", **fields, only_table="yes").headers["location"]
        == "/p/first/transcribe"
    )
    rows = [row for _, row in read_added(table)]
    assert [(row["text"], row["start"], row["end"], row["speaker"]) for row in rows] == [
        ("a corrected text", "0.100", "0.500", "Beto\\tJosé"),
        ("end", "0.600", "1.000", "Beto\\tJosé"),
    ]
    assert {row["audio"] for row in rows} == {str(app.home / "talk.wav")}
    assert not (app.project / ".app/jobs").exists()
    assert app.post("/p/first/train", **fields).headers["location"] == "/p/first/train"
    (app.project / "go").touch()
    assert within(20, lambda: state(app, "0001-train") == "done")
    assert (model / "train.yaml").exists()


def test_rows_of_a_shell_stay_and_a_refused_training_writes_none(app: App, recipe: Path) -> None:
    model = reviewed_project(app)
    table, by_hand = app.project / "data/added.tsv", "audio\ttext\n/home/me/x.wav\tby hand\n"
    write_atomic(table, by_hand)
    fields = {"corrected": "yes", "start": "model", "base": str(model), "minutes": "1"}
    assert app.post("/p/first/train", **fields).status_code == 303
    assert within(20, lambda: state(app, "0001-train") == "running")
    assert [row["text"] for _, row in read_added(table)] == ["by hand", "a corrected text", "end"]
    write_atomic(table, by_hand)
    answer = app.post("/p/first/train", **fields)  # the first one runs
    assert (
        answer.status_code == 400
        and "still runs" in answer.text
        and table.read_text("utf-8") == by_hand
    )
    (app.project / "go").touch()
    assert within(20, lambda: state(app, "0001-train") == "done")


def test_recordings_that_need_a_speaker_are_named_before_the_button(app: App) -> None:
    reviewed_project(app)
    html = app.get("/p/first/transcribe").text
    assert re.search(
        r'are left out: <a href="/p/first/text\?name=talk">Speaker of talk</a></p>', html
    )
    assert html.index("are left out:") < html.index("Make the lists again and train")
    assert save(app, speaker="Beto") == ""
    assert "are left out:" not in app.get("/p/first/transcribe").text


def test_without_a_segment_that_may_be_used_there_is_no_training(app: App, recipe: Path) -> None:
    model = reviewed_project(app)
    assert save(app, speaker="Beto") == ""
    clip = Utterance(key="t", wav=str(app.home / "copy/talk.wav"), txt="a", speaker="Ana")
    write_data_list(app.project / "data/test/data.list", [clip])
    answer = app.post("/p/first/train", corrected="yes", start="model", base=str(model))
    assert (
        answer.status_code == 400
        and "can be training speech: its recording is in the test set" in answer.text
    )
    assert (
        not (app.project / "data/added.tsv").exists() and not (app.project / ".app/jobs").exists()
    )


def test_recordings_of_one_name_in_two_folders_are_two(app: App, recipe: Path) -> None:
    model = reviewed_project(app)
    (app.project / "transcribed/unseen.json").unlink()
    other = write_audio(app.home / "other/talk.wav")
    fields: dict[str, str | list[str]] = {
        "model": "exp/softmax",
        "file": [str(other), str(app.home / "talk.wav")],
    }
    command = shlex.split(app.post("/p/first/transcribe", **fields, preview="yes").text)
    assert command[-3:] == ["--", str(other), str(app.home / "talk.wav")]
    job = app.project / ".app/jobs/0001-transcribe"
    write_atomic(job / "job.json", json.dumps({"kind": "transcribe", "command": command}))
    assert "talk.wav: " not in app.get("/p/first/transcribe").text, "a job without details"
    details = {"model": str(model), "files": command[-2:]}
    record = {"kind": "transcribe", "command": command, "details": details}
    write_atomic(job / "job.json", json.dumps(record))
    shown = re.findall(r"<li>(talk.wav: \w+)</li>", app.get("/p/first/transcribe").text)
    assert shown == ["talk.wav: waiting", "talk.wav: done"]
    write_transcript(app.project, other, "talk-2", model=str(model))
    shown = re.findall(r"<li>(talk.wav: \w+)</li>", app.get("/p/first/transcribe").text)
    assert shown == ["talk.wav: done", "talk.wav: done"]
    details["model"] = str(app.project / "exp-2/softmax")  # again, with another model
    write_atomic(job / "job.json", json.dumps(record))
    assert app.get("/p/first/transcribe").text.count("talk.wav: waiting") == 2
    uploaded = write_audio(app.project / "to_transcribe/talk.wav")
    html = app.get("/p/first/transcribe").text
    assert f'value="{uploaded}" checked' in html


def test_recordings_outside_are_no_training_speech(app: App, recipe: Path, tmp_path: Path) -> None:
    model = reviewed_project(app)
    write_transcript(app.project, write_audio(tmp_path / "outside/secret.wav"), "secret")
    assert app.post("/p/first/text", name="secret", number="0", text="x").status_code == 303
    answer = app.post("/p/first/train", corrected="yes", start="model", base=str(model))
    assert answer.status_code == 400 and "outside of the folders" in answer.text
    assert (
        not (app.project / "data/added.tsv").exists() and not (app.project / ".app/jobs").exists()
    )


def test_segments_that_nobody_has_seen_are_no_training_speech(app: App, recipe: Path) -> None:
    reviewed_project(app)
    assert (
        save(app, number="0", text="old words", start="0.1", end="0.5") == ""
    )  # a border says nothing of the text
    assert save(app, number="1", text="", confirmed="yes") == ""  # no speech
    answer = app.post(
        "/p/first/train", corrected="yes", start="model", base=str(app.project / "exp/softmax")
    )
    assert (
        answer.status_code == 400
        and "corrected segments: none; correct or confirm some first" in answer.text
    )
    assert not (app.project / "data/added.tsv").exists()
    assert save(app, speaker="x" * 101).startswith("speaker 'xxxx")
    assert save(app, number="0") == "segment: no text; load the page again"


def test_corrections_that_were_taken_back_leave_the_table(app: App, recipe: Path) -> None:
    model, table = reviewed_project(app), app.project / "data/added.tsv"
    write_atomic(table, "audio\ttext\n/home/me/x.wav\tby hand\n")
    fields = {"corrected": "yes", "start": "model", "base": str(model), "only_table": "yes"}
    assert app.post("/p/first/train", **fields).status_code == 303 and len(read_added(table)) == 3
    (app.project / "transcribed/talk.corrections.json").unlink()
    answer = app.post("/p/first/train", **fields)
    assert answer.status_code == 400 and "corrected segments: none" in answer.text
    assert [row["audio"] for _, row in read_added(table)] == ["/home/me/x.wav"]


def test_speech_that_is_corrected_in_two_transcripts_is_named(app: App, recipe: Path) -> None:
    model = reviewed_project(app)
    write_transcript(app.project, app.home / "talk.wav", "talk-2", model="other")
    answer = app.post(
        "/p/first/text", {"Accept": "text/plain"}, name="talk-2", number="1", text="new"
    )
    assert answer.status_code == 200
    answer = app.post(
        "/p/first/train", {"Accept": "text/plain"}, corrected="yes", start="model", base=str(model)
    )
    assert (
        "talk.wav: corrected in talk-2 and in talk, at 0.6 s; take back the correction in one of them"
        in answer.text
    )


@pytest.mark.parametrize(
    "change", [{"start": None}, {"start": float("nan")}, {"confidence": "x"}, {"text": 3}]
)
def test_a_record_of_others_is_read_with_care(app: App, change: dict[str, Any]) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    path = app.project / "transcribed/talk.json"
    content = json.loads(path.read_text("utf-8"))
    content["segments"][1] |= change
    path.write_text(json.dumps(content), "utf-8")
    answer = app.get("/p/first/text?name=talk")
    assert (
        answer.status_code == 400
        and "talk.json: not a file of `transcribe --record`" in answer.text
    )


def test_a_recording_of_another_form_is_another_recording(tmp_path: Path) -> None:
    def record(media: str, source: str) -> Record:
        recording = TranscribedRecording(media=tmp_path / media, duration_s=1.0, segments=())
        return Record(recording, tmp_path / source, "m")

    assert record("a.wav", "a.wav").is_of(tmp_path / "a.eaf", "m")
    assert record("a.wav", "a.eaf").is_of(tmp_path / "a.wav", "m")
    assert not record("a.wav", "a.wav").is_of(tmp_path / "a.mp3", "m")
    write_record(tmp_path / "a.json", record("a.wav", "a.wav"))
    assert find_record(tmp_path, tmp_path / "a.mp3", "m").name == "a-2.json"
    assert find_record(tmp_path, tmp_path / "a.corrections.wav", "m").name == "a.corrections-1.json"


# ---- comparison


def scored(app: App, name: str, wrong: int, num: int = 40, *, base: Path | None = None) -> Path:
    folder = app.project / name / "softmax"
    write_atomic(folder / "train.yaml", "")
    refs = {f"u{n}": "abcd efgh" for n in range(num)}
    texts = refs | {f"u{n}": "abxd e" for n in range(wrong)}
    report = score(refs, texts, rules=Rules(metric="cer"), num_resamples=0)
    write_atomic(folder / "test/attention_rescoring/score.json", report_to_json(report))
    if base:
        options = FolderOptions("own", portable_values({"base": str(base)}, folder.parent))
        write_folder_options(folder.parent, options)
    return folder


def test_old_and_new_model_are_compared_on_the_same_test_set(app: App) -> None:
    old = scored(app, "exp", 30)
    assert "Old and new model" not in app.get("/p/first/transcribe").text
    scored(app, "exp-2", 5, base=old)
    html = app.get("/p/first/transcribe").text
    assert "exp-2/softmax began from exp/softmax" in html
    assert "The new model is better on the same test set." in html
    assert "6.25 % are wrong; with the old model 37.50 %." in html
    assert "Difference: -31.25 points, 95 % interval [-" in html and "over utterances" in html
    assert "The new model is better" in app.get("/p/first/results").text
    scored(app, "exp-2", 30, base=old)
    assert "No difference was detected" in app.get("/p/first/transcribe").text
    scored(app, "exp-2", 27, base=old)  # three clips differ: the interval excludes 0, but p is 0.25
    assert "No difference was detected" in app.get("/p/first/transcribe").text
    scored(app, "exp-2", 38, base=old)
    assert "The new model is worse" in app.get("/p/first/transcribe").text
    scored(app, "exp-2", 5, 41, base=old)
    html = app.get("/p/first/transcribe").text
    assert (
        "Not compared: the two scorings: different references or rules" in html
        and "is better" not in html
    )


# ---- uploads


def test_long_recordings_are_refused_in_one_line(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_audio(app.home / "long.wav", 4.0).read_bytes()
    monkeypatch.setattr(media_views, "MAX_UPLOAD_HOURS", 3 / 3600)
    headers = {"Origin": ORIGIN, "Content-Type": "application/octet-stream", "Accept": "text/plain"}

    def upload(name: str, sent: bytes) -> tuple[int, str]:
        address = f"/p/first/upload?to=to_transcribe&name={name}"
        answer = app.client.post(address, content=sent, headers=headers)
        return answer.status_code, answer.text

    code, line = upload("long.wav", content)
    assert code == 400 and line.startswith("file 'long.wav': more than 0.0008") and "\n" not in line
    assert [*(app.project / "to_transcribe").iterdir()] == []
    assert upload("short.wav", write_audio(app.home / "short.wav", 2.0).read_bytes())[0] == 200
    assert upload("notes.txt", content)[0] == 200  # no recording by its name
    samples = np.zeros((1, 4 * 16000), np.float32)
    with av.open(str(app.home / "long.m4a"), "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=16000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    assert upload("long.m4a", (app.home / "long.m4a").read_bytes())[0] == 400
    monkeypatch.setattr("wenet_hs.data.audio.MAX_HOURS", 3 / 3600)  # what no reader reads
    assert upload("days.wav", content)[0] == 400
