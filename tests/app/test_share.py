# SPDX-License-Identifier: Apache-2.0
"""Consent per recording, and the card that is edited before packing."""

import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from app_client import App, write_lists
from model_folders import write_model_folder
from waiting import within

from wenet_hs.base.files import file_sha256
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.runs.record import DataFile, DataLists, RunRecord, Start, write_run
from wenet_hs.tree.atomic import write_atomic


def test_consent_is_set_for_one_page_or_for_all_recordings(app: App) -> None:
    names = [f"/speech/r{number:02}.wav" for number in range(30)]
    write_lists(
        app.project,
        [Utterance(key=f"{n}-{name}", wav=name, txt="a") for name in names for n in (0, 1)],
    )
    html = app.get("/p/first/share").text
    assert (
        re.findall(r'name="recording" value="(.*?)"', html) == names[:25]
        and "Page 1 of 2, 30 in all" in html
    )
    assert "those of the 30 recordings" in html
    fields: dict[str, str | list[str]] = {
        "recording": names[25:],
        "allowed": ["yes", "no", "", "", ""],
        "note": ["", "<b>not before 2030</b>", "asked\ttwice", "", ""],
        "was": ["\t"] * 5,
    }
    answer = app.post("/p/first/consent", page="2", **fields)
    assert answer.headers["location"] == "/p/first/share?page=2"
    rows = (app.project / "consent.tsv").read_text("utf-8").splitlines()[1:]
    shown = [
        f"{names[25]}\tyes\t",
        f"{names[26]}\tno\t<b>not before 2030</b>",
        f"{names[27]}\t\tasked\\ttwice",
    ]
    assert rows == shown
    html = app.get("/p/first/share?page=2").text
    assert 'value="&lt;b&gt;not before 2030&lt;/b&gt;"' in html and "<b>" not in html
    assert len(re.findall('value="no" selected', html)) == 1
    app.post("/p/first/consent", all="yes", allowed="yes", note="for research")
    rows = (app.project / "consent.tsv").read_text("utf-8").splitlines()[1:]
    assert rows[:3] == shown  # what was stated stays
    assert sorted(rows[3:]) == [f"{name}\tyes\tfor research" for name in (*names[:25], *names[28:])]


def test_other_recordings_and_words_are_refused_and_a_damaged_file_is_named(app: App) -> None:
    known = str(app.home / "talk.wav")
    for fields, reason in (
        (
            {"recording": "/etc/passwd", "allowed": "yes", "note": "", "was": "\t"},
            "not in the training list",
        ),
        (
            {"recording": known, "allowed": "perhaps", "note": "", "was": "\t"},
            "not yes, no or nothing",
        ),
        (
            {"recording": known, "allowed": "yes", "note": ""},
            "not the fields of this page; load the page again",
        ),
    ):
        answer = app.post("/p/first/consent", **fields)
        assert answer.status_code == 400 and reason in answer.text
    assert not (app.project / "consent.tsv").exists()
    write_atomic(app.project / "consent.tsv", "talk.wav\tnever\n")
    answer = app.get("/p/first/share")
    assert answer.status_code == 400 and "consent.tsv:1: not a line of consent" in answer.text


def test_an_old_tab_takes_back_no_consent(app: App) -> None:
    fields = {"recording": str(app.home / "talk.wav"), "note": ""}
    assert 'name="was" value="\t"' in app.get("/p/first/share").text
    write_atomic(app.project / "consent.tsv", "talk.wav\tno\twithdrawn\n")
    assert 'name="was" value="no\twithdrawn"' in app.get("/p/first/share").text
    assert app.post("/p/first/consent", **fields, allowed="", was="\t").status_code == 303, (
        "was not changed there"
    )
    answer = app.post("/p/first/consent", **fields, allowed="yes", was="\t")
    assert (
        answer.status_code == 400
        and "its consent was changed in another tab, or in the file, since" in answer.text
    )
    assert (app.project / "consent.tsv").read_text("utf-8") == "talk.wav\tno\twithdrawn\n"
    assert (
        app.post("/p/first/consent", **fields, allowed="yes", was="no\twithdrawn  ").status_code
        == 303
    )
    assert f"{app.home}/talk.wav\tyes\t" in (app.project / "consent.tsv").read_text("utf-8")


def test_a_line_that_matches_no_recording_is_shown(app: App) -> None:
    write_atomic(app.project / "consent.tsv", "Talk.wav\tno\ntakl.wav\tno\nother.wav\tyes\n")
    html = app.get("/p/first/share").text
    assert "no recording of the lists has this name: takl.wav. Correct it" in html
    assert len(re.findall('value="no" selected', html)) == 1


def test_a_card_is_edited_only_where_one_was_made(app: App) -> None:
    assert app.post("/p/first/card", name="mine", text="x").status_code == 400
    for name in ("../x", "a/b", ".hidden"):
        assert app.post("/p/first/card", name=name, text="x").status_code == 400
    write_model_folder(app.project / "exp/softmax")
    command = app.post(
        "/p/first/pack", model="exp/softmax", name="mine", card_only="yes", preview="yes"
    ).text
    assert command.endswith(
        f"pack --model_dir {app.project}/exp/softmax --out {app.project}/cards/mine.md"
    )
    write_atomic(app.project / "cards/mine.md", "made\n")
    assert (
        app.post(
            "/p/first/card", name="mine", was="made\n", text="<i>edited</i>\r\nby hand\n"
        ).status_code
        == 303
    )
    for fields in ({"was": "made\n", "text": "of an old tab"}, {"was": "<i>edited</i>\nby hand\n"}):
        answer = app.post("/p/first/card", name="mine", **fields)
        assert (
            answer.status_code == 400
            and "mine.md: changed in another tab, or in the file, since" in answer.text
        )
    assert (app.project / "cards/mine.md").read_bytes() == b"<i>edited</i>\nby hand\n"
    assert "&lt;i&gt;edited&lt;/i&gt;" in app.get("/p/first/share").text
    command = app.post("/p/first/pack", model="exp/softmax", name="mine", preview="yes").text
    assert command.endswith(
        f"--out {app.project}/shared/mine.zip --card {app.project}/cards/mine.md"
    )


@pytest.mark.slow
def test_an_edited_card_is_packed_and_a_recording_that_is_not_allowed_blocks_it(app: App) -> None:
    model, path = (
        write_model_folder(app.project / "exp/softmax"),
        app.project / "data/train/data.list",
    )
    lists = DataLists(train=(DataFile(path=str(path), sha256=file_sha256(path)),))
    write_run(model, RunRecord(starts=(Start(),), lists=lists))

    def run(number: int, **fields: str | list[str]) -> str:
        app.post("/p/first/pack", model="exp/softmax", name="mine", license="mit", **fields)
        address = f"/p/first/live?job={number:04}-pack"
        assert within(120, lambda: app.get(address).headers["x-state"] in ("done", "failed"))
        return str(app.get(address).text)

    run(1, card_only="yes")
    card = (app.project / "cards/mine.md").read_text("utf-8")
    app.post("/p/first/card", name="mine", was=card, text=card + "\nThanks to all speakers.\n")
    app.post("/p/first/consent", all="yes", allowed="no", note="")
    assert "consent.tsv: 1 recording of the training not allowed (talk.wav)" in run(2)
    assert not Path(app.project / "shared/mine.zip").exists()
    fields = {"recording": str(app.home / "talk.wav"), "allowed": "yes", "note": "for research"}
    assert "changed in another tab" in app.post("/p/first/consent", **fields, was="yes\t").text
    app.post("/p/first/consent", **fields, was="no\t")
    run(3)
    assert 'name="license" value="mit"' in app.get("/p/first/share").text
    with ZipFile(app.project / "shared/mine.zip") as archive:
        text = archive.read("mine/README.md").decode()
    assert (
        "Thanks to all speakers." in text
        and "- 1 of them: for research" in text
        and "talk.wav" not in text
    )
