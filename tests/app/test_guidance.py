# SPDX-License-Identifier: Apache-2.0
"""What leads a user on: choices that are kept, a failure with its remedy, next steps, states,
limits in words.
"""

import json
import re
from pathlib import Path

import pytest
from app_client import App, write_elan
from made_up_runs import write_progress_of
from recipe_projects import write_options
from test_models import recipe, state
from waiting import within

from wenet_hs.app import projects
from wenet_hs.app.job_details import read_recipe_details
from wenet_hs.tree.atomic import write_atomic

__all__ = ["recipe"]


def fields_of(html: str) -> dict[str, list[str]]:
    """The hidden fields of the first form that prepares."""
    (form,) = re.findall(r'(?s)<form method="post" action="/p/first/prepare"(.*?)</form>', html)[:1]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', form):
        found.setdefault(name, []).append(value)
    return found


def prepare(app: App, min_minutes: str = "7") -> None:
    write_elan(app.home / "field/a.eaf", {"utterance@Ana": ["Hola."] * 3, "notes": ["[x]"]})
    fields: dict[str, str | list[str]] = {
        "form": "elan",
        "path": str(app.home / "field"),
        "lang": "Spanish",
    }
    answer = app.post(
        "/p/first/prepare",
        **fields,
        unit="char",
        tier=["notes"],
        no_normalize="yes",
        min_minutes=min_minutes,
    )
    assert answer.headers["location"] == "/p/first/check"


def test_the_choice_of_recordings_is_kept(app: App, recipe: Path) -> None:
    assert "Change what was chosen there" not in app.get("/p/first/recordings").text
    prepare(app)
    assert within(20, lambda: state(app, "0001-prepare") == "done")
    html = app.get("/p/first/recordings").text
    assert "The lists were made from /some/where (ELAN files, language: es)." in html, (
        "those of the choice were refused"
    )
    write_options(app.project / "data", elan=f"{app.home}/field", lang="es")
    html = app.get("/p/first/recordings").text
    assert f"The lists were made from {app.home}/field (ELAN files, language: Spanish)." in html
    html = app.get("/p/first/recordings", params={"path": str(app.home / "field")}).text
    assert '<input name="lang" value="Spanish"' in html and "Language: Spanish, es." in html
    assert 'value="notes" checked' in html and 'value="utterance@Ana" checked' not in html
    assert (
        'name="no_normalize" value="yes" checked' in html and 'name="min_minutes" value="7"' in html
    )
    other = {
        "path": str(app.home / "field"),
        "form": "elan",
        "unit": "char",
        "tier": "utterance@Ana",
        "lang": "Spanihs",
    }
    html = app.get("/p/first/recordings", params=other).text
    assert "no known code or name of a language, similar are Spanish (es)" in html
    assert 'value="utterance@Ana" checked' in html and 'value="notes" checked' not in html, (
        "the table stays"
    )


def test_lists_of_a_shell_are_named_and_a_damaged_choice_too(app: App) -> None:
    write_options(app.project / "data", elan=f"{app.home}/field", lang="es")
    assert (
        f"made from {app.home}/field (ELAN files, language: es)"
        in app.get("/p/first/recordings").text
    )
    for content in ("[]", "{", '{"tier": 1}'):
        write_atomic(app.project / ".app/recordings.json", content)
        answer = app.get("/p/first/recordings")
        assert (
            answer.status_code == 400
            and "recordings.json: not the fields of a form; remove the file" in answer.text
        )


def test_names_of_languages_are_suggested(app: App) -> None:
    assert app.get("/languages?name=Mbosh").json()["Mboshi"] == "mdw"
    assert app.get("/languages?name=x").json() == {} == app.get("/languages").json()


def test_too_little_speech_has_a_sentence_and_a_button(app: App, recipe: Path) -> None:
    good = recipe.read_text()
    write_atomic(recipe, "#!/bin/sh\nexit 2\n")
    recipe.chmod(0o700)
    prepare(app, min_minutes="40")
    assert within(20, lambda: state(app, "0001-prepare") == "failed")
    html = app.get("/p/first/check").text
    assert (
        "30.0 minutes of speech are left for the training. That is less than the limit of 40 minutes"
        in html
    )
    assert "Use these lists all the same" in html and 'class="job failed"' in html
    sent = fields_of(html)
    assert sent["min_minutes"] == ["0"] and sent["tier"] == ["notes"]
    assert "The lists are not complete yet" in app.get("/p/first/train").text
    write_atomic(recipe, good)
    recipe.chmod(0o700)
    app.post("/p/first/prepare", **sent)
    assert within(20, lambda: state(app, "0002-prepare") == "done")
    details = read_recipe_details(app.site.projects.open("first").jobs("prepare")[0])
    assert details is not None and details.options.min_minutes == 0
    assert details.options.prepare == ("--tier=notes", "--no_normalize")
    html = app.get("/p/first/check").text
    assert "Go on to Train" in html and "Use these lists" not in html


def test_another_failure_has_no_button_for_too_little_speech(app: App, recipe: Path) -> None:
    write_atomic(recipe, "#!/bin/sh\nexit 2\n")
    recipe.chmod(0o700)
    prepare(app, min_minutes="30")  # as many as there are
    assert within(20, lambda: state(app, "0001-prepare") == "failed")
    assert "Use these lists all the same" not in app.get("/p/first/check").text


def test_lists_without_a_language_are_named(app: App) -> None:
    write_elan(app.home / "field/a.eaf", {"utterance@Ana": ["Hola."] * 3})
    path = str(app.home / "field")
    line = "No language is given. The lists can be made without one (und)"
    assert line in app.get("/p/first/recordings", params={"path": path}).text
    assert line not in app.get("/p/first/recordings", params={"path": path, "lang": "es"}).text


def test_a_fault_keeps_the_steps(app: App) -> None:
    answer = app.get("/p/first/results?training=none")
    assert answer.status_code == 400 and 'href="/p/first/check"' in answer.text
    assert 'aria-label="Steps"' not in app.get("/p/none/check").text


def test_projects_have_a_state(app: App) -> None:
    app.site.projects.create("new")
    write_options(app.project / "data", lang="es")
    html = app.get("/").text
    assert "has no lists yet" in html and "has lists; nothing is trained yet" in html
    write_atomic(app.project / "exp/softmax/train.yaml", "max_minutes: 1.0\n")
    write_atomic(app.project / "exp/softmax/final.pt", "")
    assert "trained models: 1" in app.get("/").text


def test_a_limit_of_the_time_is_in_words(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    model = app.project / "exp/softmax"
    write_atomic(model / "train.yaml", "max_epoch: 3\nmax_minutes: 2.0\n")
    records = [
        {"kind": "valid", "step": step, "loss": 1.0, "ctc_error_rate": 0.5} for step in (50, 105)
    ]
    write_atomic(model / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_progress_of(model, 105, 3000, minutes_left=0.5, max_minutes=2.0)
    html = app.get("/p/first/live?training=exp/softmax").text
    assert (
        "Ended by the limit of 2 min, after step 105 of 3,000." in html and "<progress" not in html
    )
    monkeypatch.setattr(projects, "lock_holder", lambda _: 1)
    html = app.get("/p/first/live?training=exp/softmax").text
    assert "Step 105; this part ends after 2 min, less than a minute left" in html
    assert (
        '<progress max="1" value="0.75"' in html
        and "Wrong letters or phones of the dev set over" in html
    )
    assert html.index("Dev set: 50.00 %") < html.index("<details>") and "<details open" not in html
