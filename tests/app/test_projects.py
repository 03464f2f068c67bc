# SPDX-License-Identifier: Apache-2.0
"""Projects: their lock, sources of recordings, commands, exclusion, corrections, uploads and long
lists.
"""

import io
import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import soundfile
from app_client import (
    ORIGIN,
    App,
    new_client,
    write_audio,
    write_elan,
    write_lists,
    write_transcript,
)
from lock_holder import holder
from recipe_projects import write_options

from wenet_hs.annotation.textgrid import write_textgrid
from wenet_hs.annotation.tiers import Tier
from wenet_hs.app import media_views
from wenet_hs.app.projects import Projects
from wenet_hs.base.files import lock_holder
from wenet_hs.corpus.columns import find_columns
from wenet_hs.corpus.edits import EXCLUDED
from wenet_hs.corpus.forms import recognise
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def test_a_second_server_states_that_the_project_is_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    (folder / "p/.app").mkdir(parents=True)
    assert lock_holder(folder / "p/.app") is None
    with holder(folder / "p/.app") as process:
        assert lock_holder(folder / "p/.app") == process.pid
        client, _ = new_client(folder, tmp_path)
        client.get("/?token=the-token")
        answer = client.get("/p/p/check")
    assert answer.status_code == 400
    assert (
        "another wenet-hs app writes here (process 17 on elsewhere); wait for it or use another --dir"
        in answer.text
    )


def test_projects_are_made_once_and_listed(app: App) -> None:
    assert app.post("/projects", name="Mbosi 2").headers["location"] == "/p/Mbosi%202/recordings"
    assert app.post("/projects", name="Mbosi 2").status_code == 400
    assert app.post("/projects", name="../up").status_code == 400
    (app.home / "projects/not-a-project").mkdir()
    html = app.get("/").text
    assert "Mbosi 2" in html and "not-a-project" not in html


# ---- recordings


def test_tiers_with_counts_and_examples_and_the_likely_ones(tmp_path: Path) -> None:
    texts = ["¿Qué tal?", "Muy bien.", "Sí.", "No."]
    write_elan(
        tmp_path / "a.eaf", {"utterance@Ana": texts, "comments": ["x"], "utterance@Beto": ["Hola"]}
    )
    write_elan(tmp_path / "b.eaf", {"utterance@Ana": ["Más"], "gloss": ["a", "b"]})
    (tmp_path / "damaged.eaf").write_text("<")
    source = recognise(tmp_path, "es")
    assert (source.form, len(source.faults)) == ("elan", 1)
    found = {one.name: one for one in source.choices}
    ana = found["utterance@Ana"]
    assert (ana.count, ana.participant, ana.examples) == (5, "Ana", texts[:3])
    assert ana.removed == {"¿": 1, "?": 1, ".": 3}
    assert {name for name, one in found.items() if one.is_likely} == {
        "utterance@Ana",
        "utterance@Beto",
    }


def test_other_forms_are_recognised(tmp_path: Path) -> None:
    table, kaldi, pairs = tmp_path / "t/my.csv", tmp_path / "k", tmp_path / "f"
    for folder in (table.parent, kaldi, pairs):
        folder.mkdir()
    table.write_text("File,Words,note\na.wav,hello there,x\nb.wav,bye,\n")
    source = recognise(table, "en")
    assert source.form == "corpus" and [one.count for one in source.choices] == [2, 2, 1]
    assert [one.kind for one in source.choices] == ["audio", "text", ""]
    (kaldi / "wav.scp").write_text("r1 /x/r1.wav\n")
    (kaldi / "text").write_text("r1 some words\n")
    assert (recognise(kaldi, "en").form, recognise(kaldi, "en").choices[0].examples) == (
        "kaldi",
        ["some words"],
    )
    write_audio(pairs / "a.wav")
    (pairs / "a.txt").write_text("from a file")
    assert (recognise(pairs, "en").form, recognise(pairs, "en").choices[0].examples) == (
        "folder",
        ["from a file"],
    )
    words = Tier(name="words", spans=[(0.0, 1.0, "long words"), (1.0, 2.0, "")])
    notes = Tier(name="notes", is_interval=False, spans=[(0.5, 0.5, "a long note on the words")])
    (tmp_path / "p").mkdir()
    write_textgrid(tmp_path / "p/a.TextGrid", [words, notes], 2.0)
    source = recognise(tmp_path / "p", "en")
    assert (source.form, [(one.name, one.is_likely) for one in source.choices]) == (
        "praat",
        [("words", True), ("notes", False)],
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match="no annotations, no table and no recordings; choose another folder"
    ):
        recognise(tmp_path / "empty", "en")


def test_the_command_is_shown_and_does_what_the_form_says(app: App) -> None:
    fields: dict[str, str | list[str]] = {
        "form": "elan",
        "path": str(app.home),
        "lang": "Spanish",
        "preview": "yes",
    }
    fields |= {
        "tier": ["utterance@Ana", 'it\'s "new" $(id)', "-x"],
        "letter_apostrophe": "yes",
        "min_minutes": "0",
    }
    command = shlex.split(app.post("/p/first/prepare", **fields).text)
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options["--elan"] == str(app.home) and options["--lang"] == "es"
    words = ["--tier=utterance@Ana", '--tier=it\'s "new" $(id)', "--tier=-x", "--letter_apostrophe"]
    assert shlex.split(options["--prepare"]) == words
    assert options["--data"] == str(app.project / "data") and options["--min_minutes"] == "0"
    assert not (app.project / ".app/jobs").exists()


def test_columns_are_used_as_they_are_chosen(app: App) -> None:
    table = app.home / "my.csv"
    table.write_text("audio,text,Other Words,speaker,split\na.wav,x,y,z,train\n")
    html = app.get("/p/first/recordings", params={"path": str(table)}).text
    assert re.findall(r'<select name="(column:.*?)">', html) == [
        *("column:audio", "column:text", "column:Other Words", "column:speaker", "column:split")
    ]
    fields = {"form": "corpus", "path": str(table), "lang": "es", "preview": "yes"}
    chosen = {
        "column:audio": "audio",
        "column:text": "",
        "column:Other Words": "text",
        "column:speaker": "",
    }
    command = shlex.split(
        app.post("/p/first/prepare", **fields, **chosen, **{"column:split": "split"}).text
    )
    (words,) = shlex.split(dict(zip(command[2::2], command[3::2], strict=True))["--prepare"])
    columns = words.removeprefix("--columns=")
    assert find_columns(table, ["audio", "text", "Other Words", "speaker", "split"], columns) == {
        **{"audio": "audio", "text": "Other Words", "split": "split"}
    }  # and not the speaker, which would be guessed
    for wrong, line in (
        (
            {"column:text": "text"},
            "columns: text: 'text' and 'Other Words' are both chosen for it; choose one of them",
        ),
        ({"column:text": "x=y --out /"}, "column 'text': must be one of audio, text, speaker"),
    ):
        answer = app.post("/p/first/prepare", {"Accept": "text/plain"}, **fields, **chosen | wrong)
        assert line in answer.text and "\n" not in answer.text


def upload(app: App, name: str, content: bytes, to: str = "recordings", **headers: str) -> int:
    sent = {"Origin": ORIGIN, "Content-Type": "application/octet-stream", **headers}
    address = f"/p/first/upload?to={to}"
    return int(
        app.client.post(
            address, params={"to": to, "name": name}, content=content, headers=sent
        ).status_code
    )


def test_uploads_are_whole_or_absent_and_limited(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    assert upload(app, "a.wav", b"12345") == 200
    assert (app.project / "recordings/a.wav").read_bytes() == b"12345"
    assert upload(app, "a.wav", b"other") == 400 and upload(app, "a.wav", b"1234567") == 400
    assert upload(app, "a.wav", b"12345") == 200, "the same content may be sent again"
    kind = "application/x-www-form-urlencoded"
    assert upload(app, "b.wav", b"a=b", **{"Content-Type": kind}) == 400
    assert upload(app, "../b.wav", b"1") == 400
    assert upload(app, "b.wav", b"1", to="../data") == 400
    assert upload(app, "b.exe", b"1") == 400
    assert upload(app, "b.wav", b"1", Origin="http://evil.example") == 403
    monkeypatch.setattr(media_views, "MAX_UPLOAD_BYTES", 10)
    assert upload(app, "big.wav", b"x" * 11) == 400
    sent = {"Origin": ORIGIN, "Content-Type": "application/octet-stream", "Content-Length": "5"}
    parts = iter([b"12345", b"67890", b"1"])  # more than was declared
    assert (
        app.client.post(
            "/p/first/upload?to=recordings&name=c.wav", content=parts, headers=sent
        ).status_code
        == 400
    )
    monkeypatch.setattr(media_views, "MAX_UPLOADS", 1)
    assert upload(app, "d.wav", b"1") == 400
    assert [path.name for path in (app.project / "recordings").iterdir()] == ["a.wav"]


def test_what_an_upload_to_a_killed_server_left_is_deleted(app: App, tmp_path: Path) -> None:
    assert upload(app, "a.wav", b"12345") == 200
    (app.project / "recordings/.b.wav.12345678.tmp").write_bytes(b"half")
    (app.project / "models").symlink_to(app.home)
    (app.home / ".c.zip.12345678.tmp").write_bytes(b"of others")
    app.site.projects.close()
    again = Projects(app.home / "projects", app.site.places)
    again.open("first")
    assert [path.name for path in (app.project / "recordings").iterdir()] == ["a.wav"]
    assert (app.home / ".c.zip.12345678.tmp").exists()
    again.close()


def test_one_odd_folder_does_not_hide_the_projects(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.site.projects.create("second")
    shutil.rmtree(app.project / ".app/jobs", ignore_errors=True)
    (app.project / ".app/jobs").symlink_to(app.home)
    (app.home / "projects/lost+found").mkdir()
    exists = Path.exists

    def refuse(path: Path, **options: Any) -> bool:
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refuse)
    html = app.get("/").text
    assert (
        "/p/second/recordings" in html
        and "first/.app/jobs: is a link that leads out of the project" in html
    )
    answer = app.get(f"/p/{chr(0x1E900) * 64}/check")
    assert answer.status_code == 400 and "at most 64" in answer.text


# ---- check


def test_excluded_utterances_are_kept_as_a_list(app: App) -> None:
    write_lists(
        app.project, [Utterance(key="u0", wav="x.wav", txt="a")], "train\tu0\tclipped\t2 %\n"
    )
    assert app.post("/p/first/exclude", key="u0", excluded="yes", kind="clipped").status_code == 303
    assert app.post("/p/first/exclude", key="u0", excluded="yes").status_code == 303
    assert (app.project / "data" / EXCLUDED).read_text() == "u0\n"
    assert "Excluded utterances: 1" in app.get("/p/first/check").text
    back = app.post("/p/first/exclude", key="u0", excluded="no").headers["location"]
    assert '<h3 id="found">clipped</h3>' in app.get(back).text
    assert (app.project / "data" / EXCLUDED).read_text() == ""


def test_each_of_many_excluded_utterances_can_be_taken_back(app: App) -> None:
    write_atomic(
        app.project / "data" / EXCLUDED, "".join(f"k{number:03}\n" for number in range(250))
    )
    html = app.get("/p/first/check?excluded=3").text
    assert "Excluded utterances: 250" in html and "Page 3 of 3" in html
    assert re.findall(r'name="key" value="(k\d+)"', html) == [
        f"k{number}" for number in range(200, 250)
    ]
    assert '<details id="excluded" open>' in html


def test_damaged_files_are_one_line_each(app: App) -> None:
    """Files of the project that another program wrote, or that were cut."""
    for path, content, pages, line in (
        ("data/stats.json", b"{}", ("check", "train", "transcribe"), "not the numbers of lists"),
        (
            "data/stats.json",
            b'{"total": {"hours": {"train": "x"}}}',
            ("check",),
            "not the numbers of lists",
        ),
        (
            "data/check.tsv",
            b"set\tkey\nx\ty\n",
            ("check",),
            "a line without set, key, kind and details",
        ),
        ("data/options.json", b"\xe4", ("recordings",), "options.json:1: not UTF-8"),
        ("cards/x.md", b"\xe4", ("share",), "x.md:1: not UTF-8"),
    ):
        path = app.project / path
        before = path.read_bytes() if path.is_file() else b""
        write_atomic(path, content)
        for page in pages:
            assert line in app.get(f"/p/first/{page}").text, (path, page)
        write_atomic(path, before)


def test_one_damaged_file_of_corrections_or_a_name_of_another_coding_does_not_hide_the_others(
    app: App,
) -> None:
    for name in ("good", "damaged"):
        write_transcript(app.project, app.home / "talk.wav", name)
    write_atomic(app.project / "transcribed/damaged.corrections.json", "{")
    (app.project / "transcribed" / os.fsdecode(b"\xe9t\xe9.json")).touch()
    write_atomic(app.project / "transcribed/cut.json", "{")
    html = app.get("/p/first/transcribe").text
    assert (
        "text?name=good" in html
        and "damaged.corrections.json: " in html
        and "transcribed/cut.json: " in html
    )


def test_jobs_of_another_form_are_shown(app: App) -> None:
    for number, kind in enumerate(("time", "transcribe"), start=1):
        content = json.dumps({"kind": kind, "command": ["x"]})
        write_atomic(app.project / f".app/jobs/{number:04}-{kind}/job.json", content)
    write_options(app.project / "data", folder=str(app.home))
    assert app.post("/p/first/train", start="nothing", preview="yes").status_code == 200
    assert "0002-transcribe" in app.get("/p/first/transcribe").text


def test_html_in_names_and_texts_is_text(app: App) -> None:
    clips = [
        Utterance(
            key=EVIL.replace(" ", "_"), wav=str(app.home / "talk.wav"), txt=EVIL, start=0.0, end=1.0
        )
    ]
    write_lists(
        app.project, clips, f"train\t{clips[0].key}\tclipped\t{EVIL}\n", f"{EVIL}\t{EVIL}\t{EVIL}\n"
    )
    write_elan(app.home / f"{EVIL.replace('/', '')}/a.eaf", {EVIL: [EVIL]})
    write_transcript(app.project, app.home / "talk.wav", text=EVIL)
    folder = app.home / EVIL.replace("/", "")
    pages = ["check", "rejected", "text?name=talk", "transcribe", "share", "train"]
    htmls = [app.get(f"/p/first/{page}").text for page in pages]
    htmls += [
        app.get("/p/first/recordings", params={name: str(folder)}).text
        for name in ("folder", "path")
    ]
    htmls += [app.get(f"/p/{EVIL.replace('/', '')}/check").text]
    for html in htmls:
        assert "<script>" not in html and "<img" not in html
    shown = {"check": 0, "rejected": 1, "text": 2, "tiers": 7}
    assert [name for name, number in shown.items() if "&lt;img" not in htmls[number]] == []


def test_a_page_of_20000_utterances_takes_less_than_200_ms(app: App) -> None:
    clips = [
        Utterance(key=f"u{n}", wav="x.wav", txt="some words " * 5, duration=2.0)
        for n in range(20_000)
    ]
    rows = "".join(f"train\tu{n}\tspeaking rate\t0.1 s\n" for n in range(20_000))
    write_lists(
        app.project, clips, rows, "".join(f"r{n}\tx.wav\tempty transcript\n" for n in range(20_000))
    )
    for path in (
        "check?kind=speaking rate&page=700",
        "rejected?page=300",
        "check?page=99999999999",
        "check?page=-1",
    ):
        seconds = []
        for _ in range(5):  # the first one reads the lists
            begin = time.perf_counter()
            html = app.get(f"/p/first/{path}").text
            seconds.append(time.perf_counter() - begin)
        assert min(seconds) < 0.2, path
        assert len(re.findall("<article|<tr>", html)) < 80
    assert "u13980" in app.get("/p/first/check?kind=speaking rate&page=700").text


# ---- transcripts


def test_a_correction_is_on_the_disk_and_in_every_format(app: App) -> None:
    source = write_elan(app.home / "talk.eaf", {"gloss": ["one", "two"]})
    write_transcript(app.project, app.home / "talk.wav")
    record = json.loads((app.project / "transcribed/talk.json").read_text())
    (app.project / "transcribed/talk.json").write_text(json.dumps(record | {"source": str(source)}))
    text = "مرحبا kà̰\u0301ŋ"
    assert app.post("/p/first/text", name="talk", number="0", text=f"  {text}\n").status_code == 303
    assert json.loads((app.project / "transcribed/talk.corrections.json").read_text())["0"] == text
    eaf = ElementTree.fromstring(app.get("/p/first/download?name=talk&form=eaf").content)
    tiers = {
        one.get("TIER_ID"): [value.text for value in one.iter("ANNOTATION_VALUE")]
        for one in eaf.iter("TIER")
    }
    assert tiers["gloss"] == ["one", "two"]
    assert tiers["wenet_hs"] == [text, "end"] and tiers["wenet_hs words"] == text.split()
    for form in ("TextGrid", "srt", "tsv", "txt"):
        answer = app.get(f"/p/first/download?name=talk&form={form}")
        assert text in answer.text and answer.headers["content-disposition"].startswith(
            "attachment"
        )
    app.post("/p/first/text", name="talk", number="0", text="old words")  # as the model wrote it
    assert [*json.loads((app.project / "transcribed/talk.corrections.json").read_text())] == [
        "segments"
    ]
    for number in ("2", "-1", "x", "", "9" * 30, "9" * 5000, "²"):
        assert app.post("/p/first/text", name="talk", number=number, text="x").status_code == 400


def test_words_are_shaded_by_confidence(app: App) -> None:
    write_transcript(app.project, app.home / "talk.wav")
    assert re.search(r'class="play word k3"[^>]*>old<', app.get("/p/first/text?name=talk").text)


def test_annotations_that_are_not_used_can_be_heard_where_their_audio_exists(app: App) -> None:
    talk, hidden = app.home / "talk.wav", write_audio(app.home / ".hidden/secret.wav")
    text = write_audio(app.home / "noise.txt.wav").rename(app.home / "noise.txt")
    rows = [
        ("z.eaf: a & b, 0.5 s", talk, "excluded: listed in exclude.txt", "0.500", "1.000", "a <b>"),
        ("whole.wav", talk, "too short", "", ""),
        ("gone.eaf", app.home / "gone.wav", "missing", "0.0", "1.0"),
        ("hidden.eaf", hidden, "x", "0.0", "1.0"),
        ("text", text, "x", "0.0", "1.0"),
    ]
    table = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    write_atomic(app.project / "data/rejected.tsv", "key\tpath\treason\tstart\tend\ttext\n" + table)
    html = app.get("/p/first/rejected?order=key").text
    assert "a &lt;b&gt;" in html and "excluded under Check" in html
    assert re.findall(r'audio\?rejected=([^"]+)"', html) == [
        "hidden.eaf",
        "whole.wav",
        "z.eaf%3A+a+%26+b%2C+0.5+s",
    ]
    for key, seconds in (("z.eaf: a & b, 0.5 s", 0.5), ("whole.wav", 2.0)):
        answer = app.get("/p/first/audio", params={"rejected": key})
        assert answer.headers["content-type"] == "audio/mpeg"
        assert soundfile.info(io.BytesIO(answer.content)).duration == pytest.approx(
            seconds, abs=0.2
        )
    for key in ("gone.eaf", "hidden.eaf", "text", "other", "../talk.wav"):
        assert app.get("/p/first/audio", params={"rejected": key}).status_code == 400
    without_times = "".join("\t".join(map(str, row[:3])) + "\n" for row in rows)
    write_atomic(app.project / "data/rejected.tsv", "key\tpath\treason\n" + without_times)
    assert app.get("/p/first/rejected").status_code == 200
