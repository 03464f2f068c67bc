# SPDX-License-Identifier: Apache-2.0
"""Paths and names of requests: nothing outside of the allowed folders, also by links."""

import re
import shutil
import time
import unicodedata
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from app_client import ORIGIN, App, write_audio, write_transcript
from model_folders import write_model_folder
from recipe_projects import write_options

from wenet_hs.app.places import Places, check_file_name, check_name
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.tree.errors import DataError


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write_audio(tmp_path / "outside/secret.wav")


def test_links_are_resolved(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    (root / ".ssh").mkdir(parents=True)
    (root / "in").mkdir()
    (root / "link").symlink_to(outside.parent)
    (root / "hidden").symlink_to(root / ".ssh")
    (root / "loop").symlink_to(root / "loop")
    places = Places([root])
    assert places.resolve(root / "in/../in") == (root / "in").resolve()
    for wrong in (
        "link",
        "link/secret.wav",
        "..",
        "../outside",
        ".ssh",
        "hidden",
        "loop/x",
        "in/\0",
        "/",
        "/etc/passwd",
    ):
        with pytest.raises(DataError):
            places.resolve(f"{root}/{wrong}" if not wrong.startswith("/") else wrong)
    content = places.list_folder(root)
    assert ([path.name for path in content.folders], content.files) == (["in"], [])


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../a", ".hidden", "a\\b", "a\nb", "-flag", "x" * 70, "a..b", "<b>"],
)
def test_names_that_are_paths_or_flags_are_refused(name: str) -> None:
    assert check_name("  Ɔlɛ 2 ") == "Ɔlɛ 2"
    with pytest.raises(DataError, match="choose another"):
        check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "../x.wav", "a/x.wav", "a\\x.wav", ".x.wav", "x.exe", "x.wav\n", "é" * 120 + ".wav"],
)
def test_names_of_uploads_that_are_refused(name: str) -> None:
    with pytest.raises(DataError):
        check_file_name(name, (".wav",))


def test_pages_read_nothing_outside(app: App, outside: Path) -> None:
    (app.project / "escape").symlink_to(outside.parent)
    (app.home / "projects/linked").symlink_to(outside.parent)
    queries = [
        f"recordings?folder={outside.parent}",
        f"recordings?path={outside.parent}",
        "recordings?folder=/",
        f"recordings?path={app.project}/escape",
        f"recordings?path={app.home}/../outside",
        "recordings?folder=%00",
    ]
    for query in queries:
        answer = app.get(f"/p/first/{query}")
        assert "outside of the folders" in answer.text or "not a path" in answer.text, query
        assert "secret.wav" not in answer.text.replace("/secret.wav", "")
    assert app.get("/p/linked/check").status_code == 400
    for name in ("..", "%2e%2e", "..%2f..", "none", ".app"):
        assert app.get(f"/p/{name}/check").status_code in (400, 404)


def test_audio_and_results_outside_are_not_sent(app: App, outside: Path) -> None:
    clip = Utterance(key="u", wav=str(outside), txt="x", start=0.0, end=0.5)
    write_data_list(app.project / "data/dev/data.list", [clip])
    write_transcript(app.project, outside)
    write_transcript(app.project, app.home / "talk.wav", "allowed")
    assert app.get("/p/first/audio?key=u0").headers["content-type"] == "audio/mpeg"
    assert app.get("/p/first/audio?name=allowed&start=0&end=0.5").status_code == 200
    for query in (
        *("audio?key=u", "audio?name=talk&start=0&end=0.5", "download?name=talk&form=eaf"),
        *(
            "audio?key=none",
            "audio?name=allowed&start=0&end=nan",
            "audio?name=allowed&start=0&end=9999",
        ),
        *("audio?name=../../x&start=0&end=1", "text?name=../x", "download?name=allowed&form=exe"),
        *(
            "packed?name=../data/stats.json",
            "report?training=exp/none",
            "live?job=../0001-x",
            "live?training=../x",
        ),
    ):
        assert app.get(f"/p/first/{query}").status_code == 400, query


def test_forms_name_nothing_outside(app: App, outside: Path) -> None:
    for path, fields in (
        ("prepare", {"form": "elan", "path": str(outside.parent), "lang": "es"}),
        ("prepare", {"form": "evil", "path": str(app.home), "lang": "es"}),
        ("prepare", {"form": "elan", "path": str(app.home), "lang": "es", "tier": "a\nb"}),
        ("prepare", {"form": "elan", "path": str(app.home), "lang": "--out"}),
        ("transcribe", {"model": "x", "file": str(outside)}),
        ("train", {"start": "encoder", "encoder": str(outside.parent)}),
        ("train", {"start": "nothing", "size": "huge"}),
        ("pack", {"model": "../x", "name": "y"}),
        ("exclude", {"key": "none", "excluded": "yes"}),
        ("stop", {"job": "../../x"}),
    ):
        assert app.post(f"/p/first/{path}", **fields).status_code == 400, path
    assert not (app.project / ".app/jobs").exists()


def test_relative_paths_and_addresses_are_refused(
    app: App, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app.home)
    clips = [
        Utterance(key=f"u{n}", wav=wav, txt="x")
        for n, wav in enumerate((f"file://{outside}", "talk.wav"))
    ]
    write_data_list(app.project / "data/train/data.list", clips)
    for clip in clips:
        answer = app.get(f"/p/first/audio?key={clip.key}")
        assert answer.status_code == 400 and "does not begin with /" in answer.text
    write_options(app.project / "data", folder=str(app.home))
    for path, fields, found in (
        ("prepare", {"form": "folder", "path": ""}, "none chosen; choose one in the list"),
        ("train", {"start": "encoder", "encoder": ""}, "none chosen"),
        ("train", {"start": "encoder", "encoder": "projects"}, "does not begin with /"),
        ("train", {"start": "model", "base": ""}, "none chosen"),
    ):
        answer = app.post(f"/p/first/{path}", **fields)
        assert answer.status_code == 400 and found in answer.text


def test_a_card_that_is_a_link_to_the_outside_is_not_shown(app: App, outside: Path) -> None:
    (app.project / "cards").mkdir()
    (outside.parent / "text").write_text("the secret")
    (app.project / "cards/x.md").symlink_to(outside.parent / "text")
    html = app.get("/p/first/share").text
    assert "the secret" not in html and "outside of the folders" in html


def test_links_do_not_lead_uploads_and_results_out_of_a_project(app: App, outside: Path) -> None:
    write_model_folder(app.project / "exp/softmax")
    for name in ("recordings", "transcribed", "cards", "shared"):
        (app.project / name).symlink_to(outside.parent)
    headers = {"Origin": ORIGIN, "Content-Type": "application/octet-stream", "Accept": "text/html"}
    answers = [
        app.client.post("/p/first/upload?to=recordings&name=a.txt", content=b"x", headers=headers)
    ]
    answers.append(
        app.post("/p/first/transcribe", model="exp/softmax", file=str(app.home / "talk.wav"))
    )
    answers.append(app.post("/p/first/pack", model="exp/softmax", name="mine"))
    answers.append(app.post("/p/first/card", name="mine", text="x"))
    assert all(one.status_code == 400 and "leads out of the project" in one.text for one in answers)
    assert [path.name for path in outside.parent.iterdir()] == ["secret.wav"]
    shutil.rmtree(app.project / "data")
    (app.project / "data").symlink_to(outside.parent)
    answer = app.post("/p/first/exclude", key="x", excluded="no")
    assert answer.status_code == 400 and "leads out of the project" in answer.text
    (outside.parent / "report.html").write_text("secret")
    (app.project / "exp/report.html").symlink_to(outside.parent / "report.html")
    answer = app.get("/p/first/report?training=exp/softmax")
    assert answer.status_code == 400 and "outside of the folders" in answer.text


def test_all_folders_of_the_user_are_reached_from_the_uploads(app: App) -> None:
    (app.project / "recordings").mkdir()
    html = app.get("/p/first/recordings").text
    for folder in (app.project, app.project.parent, app.home):
        [above] = re.findall(r'href="([^"]*)">↑', html)
        html = app.get("/p/first/recordings" + unescape(above)).text
        assert str(folder) in re.findall(r'<section class="browser"><h3>(.*?)</h3>', html)[0]
    assert "talk.wav" in html and "↑" not in html


def test_names_in_all_scripts(app: App) -> None:
    names = ("हिन्दी", "தமிழ்", "ọ̀rọ̀", "K'iche'", "ภาษาไทย", "עִבְרִית", "می\u200cخواهم")
    for name in names:
        location = app.post("/projects", name=name).headers["location"]
        assert app.get(location).status_code == 200, name
    for wrong in ("'x", "\u0301x", "x.", "a\u202eb"):
        with pytest.raises(DataError):
            check_name(wrong)


SIGNS_IN_WORDS = {
    "Tibetan": "བོད་སྐད",
    "Tibetan, no line break": "བོད༌སྐད",
    "Ethiopic": "ሰላም፡ለዓለም",
    "Hebrew": "בית־ספר",
    "Hebrew abbreviation": "צה״ל",
    "Armenian": "հայ֊ռուս",
    "Catalan": "col·legi",
    "Japanese": "アイヌ・イタㇰ",
    "Devanagari": "डॉ॰ शर्मा",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u202fᠤᠨ ᠰᠠᠷ\u180eᠠ",
    "tone letters": "ma˥˩",
    "letters of Oceania": "ꞌAu꞉a",
    "dash": "Mbosi – 2019",
    "hyphen": "Mbosi\u2010Koyo",
    "number sign": "récits № 3",
    "Tifinagh": "ⵜⴰ⵰ⵎⴰ",
}


@pytest.mark.parametrize("name", SIGNS_IN_WORDS.values(), ids=SIGNS_IN_WORDS.keys())
def test_a_project_name_may_have_the_signs_that_a_script_writes_in_words(
    app: App, name: str
) -> None:
    assert check_name(name) == name
    location = app.post("/projects", name=name).headers["location"]
    assert app.get(location).status_code == 200
    assert name in app.get("/").text


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a:b", "has ':'; a name has letters, digits, spaces, ' - _ . and signs of other scripts"),
        ("$(ls)", "has '$'; a name has"),
        ("a\x1bb", r"has '\x1b'; a name has"),
        ("a\udc80b", r"has '\udc80'; a name has"),
        ("a\u3000b", r"has '\u3000'; a name has"),
        ("་བོད", "does not begin with a letter or digit"),
        ("བོད.", "ends with a full stop"),
        ("a..b", "has two full stops in a row"),
        ("x" * 65, "is too long, at most 64 characters and 200 bytes"),
        ("𑄌" * 60, "is too long, at most 64 characters and 200 bytes"),
    ],
)
def test_what_is_wrong_with_a_name_is_stated(name: str, fault: str) -> None:
    with pytest.raises(DataError) as caught:
        check_name(name, "project")
    assert str(caught.value).startswith("project ")
    assert f": {fault}" in str(caught.value) and str(caught.value).endswith("; choose another one")


def test_a_listed_folder_with_another_form_of_its_name_is_opened(app: App) -> None:
    for name in (unicodedata.normalize("NFD", "récits"), "Mbosi (2019)"):
        (app.home / "projects" / name / ".app").mkdir(parents=True)
        assert name in app.get("/").text
        assert app.get(f"/p/{quote(name)}/recordings").status_code == 200


@pytest.mark.slow
def test_a_folder_of_20000_files_is_shown_in_pages(app: App) -> None:
    folder = app.home / "many"
    folder.mkdir()
    for number in range(20_000):
        (folder / f"r{number:05}.wav").touch()
    write_model_folder(app.project / "exp/softmax")
    for step in ("recordings", "transcribe", "train"):
        begin = time.perf_counter()
        html = app.get(f"/p/first/{step}", params={"folder": str(folder)}).text
        assert time.perf_counter() - begin < 1, step
        assert ("Page 1 of 40, 20,000 in all" in html) == (step != "train"), step
    html = app.get("/p/first/recordings", params={"folder": str(folder), "page": "40"}).text
    assert "r19999.wav" in html and "r00000.wav" not in html
