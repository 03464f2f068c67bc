# SPDX-License-Identifier: Apache-2.0
"""Trainings, results, transcription and sharing through the page."""

import json
import re
import signal
import stat
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

import pytest
from app_client import ORIGIN, App, write_audio, write_transcript
from lock_holder import holder
from made_up_runs import write_progress_of
from model_folders import write_model_folder
from pympi import Eaf
from recipe_projects import write_options
from waiting import within

from wenet_hs.app import commands
from wenet_hs.base.jobs import start_job
from wenet_hs.recipes.expected_record import ExpectedRecord, PartRecord, write_expected
from wenet_hs.runs.record import RunWarning
from wenet_hs.score.error_rate import score
from wenet_hs.score.report_file import report_to_json
from wenet_hs.score.rules import Rules
from wenet_hs.tree.atomic import write_atomic

RECIPE = """#!/bin/sh
echo "$@"
for word; do
  case "$before" in --exp) exp=$word ;; --data) data=$word ;; --json) json=$word ;; esac
  before=$word
done
mkdir -p "$exp" "$data"
case "$*" in
  plan*) mkdir -p "${json%/*}"; cat expected.json > "$json" ;;
  *--stop_stage*)
    options='{"elan": "/some/where", "lang": "es", "prepare": "--tier=a", "praat": ""}'
    echo "{\\"format\\": \\"wenet_hs.options/1\\", \\"options\\": $options}" > "$data/options.json" ;;
  *)
    options='{"size": "tiny", "base": ""}'
    echo "{\\"format\\": \\"wenet_hs.options/1\\", \\"options\\": $options}" > "$exp/options.json"
    while [ ! -e go ]; do sleep 0.05; done ;;
esac
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `wenet-hs` that prints its options and writes them as `wenet-hs own` does.

    Its training waits for a file `go`. The time that it measures is that of `expected.json`.
    """
    path = tmp_path / "recipe/wenet-hs"
    write_atomic(path, RECIPE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(commands, "WENET_HS", str(path))
    return path


def state(app: App, job: str) -> str:
    """The state of a job, as its page shows it."""
    return str(app.get(f"/p/first/live?job={job}").headers["x-state"])


def test_lists_are_replaced_only_on_request_and_trainings_get_folders_of_their_own(
    app: App, recipe: Path
) -> None:
    fields: dict[str, str | list[str]] = {
        "form": "elan",
        "path": str(app.home),
        "lang": "es",
        "tier": "a",
    }
    assert app.post("/p/first/prepare", **fields).headers["location"] == "/p/first/check"
    assert within(20, lambda: state(app, "0001-prepare") == "done")
    answer = app.post("/p/first/prepare", **fields | {"lang": "Basque"})
    assert answer.status_code == 400
    assert (
        "the lists that exist: were made with other choices; tick the box that replaces them"
        in answer.text
    )
    assert app.post("/p/first/prepare", **fields, replace="yes").status_code == 303
    assert within(20, lambda: state(app, "0002-prepare") == "done")
    assert (app.project / "data-old-1/options.json").exists()
    assert (app.project / "data/options.json").exists()
    (app.project / "data-old-1/stats.json").rename(app.project / "data/stats.json")
    assert (
        app.post("/p/first/train", start="nothing", size="small", minutes="2,5").status_code == 303
    )
    assert within(20, lambda: (app.project / "exp/options.json").exists())
    command = app.site.projects.open("first").jobs("train")[0].command
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert (
        options["--elan"] == "/some/where"
        and options["--size"] == "small"
        and options["--stage"] == "1"
    )
    assert options["--override"] == "max_minutes=2.5 scheduler_conf.warmup_steps=100"
    for path in ("train", "prepare_again"):  # both write to data/
        assert app.post(f"/p/first/{path}", start="nothing").status_code == 400
    shown = app.post("/p/first/train", start="nothing", preview="yes").text
    assert shown.endswith(f" --exp {app.project}/exp-2")
    (app.project / "go").touch()
    assert within(20, lambda: state(app, "0003-train") == "done")
    assert "0003-train" in app.get("/p/first/train").text


def test_the_expected_time_of_a_choice_is_shown_after_it_was_measured(
    app: App, recipe: Path
) -> None:
    line = "expected time of a training: 6.9 min + 14 min for 3000 + 3000 steps (measured …)"
    record = ExpectedRecord(
        format="wenet_hs.expected_time/1",
        hours=0.5,
        size="tiny",
        parts=(PartRecord(steps=3000, seconds=414.0),),
        outputs=None,
        checkpoint_bytes=0,
        has_time_limit=False,
        machine="a CPU",
        sentence=line,
    )
    write_expected(app.project / "expected.json", record)
    write_options(app.project / "data", elan="/some/where", lang="es")

    def expected(**fields: str | list[str]) -> str:
        answer = app.post("/p/first/train", start="nothing", preview="yes", **fields)
        return unquote(answer.headers["x-expected"])

    assert expected(size="tiny").startswith(
        "The expected time of this choice was not measured on this computer yet"
    )
    answer = app.post("/p/first/train", start="nothing", size="tiny", only_time="yes")
    assert answer.headers["location"] == "/p/first/train#new"
    assert within(20, lambda: state(app, "0001-time") == "done")
    command = app.site.projects.open("first").jobs("time")[0].command
    assert command[1:3] == ("plan", "--only_time") and command[-2] == "--json"
    assert expected(size="tiny") == line
    write_options(app.project / "exp")  # the next training has another folder
    assert expected(size="tiny") == line
    assert expected(size="small") != line and expected(size="tiny", minutes="5") != line
    html = app.get("/p/first/train").text
    assert "Measured time 0001</strong>: done" in html
    assert '<option value="tiny" selected>' in html, "the form has the choice that was measured"
    for hours in (0.25, "many"):
        damaged = {**record.model_dump(), "hours": hours}
        write_atomic(Path(command[-1]), json.dumps(damaged))
        assert expected(size="tiny") != line, "of other lists, or damaged"
    write_expected(Path(command[-1]), record)
    assert expected(size="tiny") == line
    write_atomic(app.project / "data/stats.json", (app.project / "data/stats.json").read_text())
    assert expected(size="tiny") != line, "the lists were made again"
    answer = app.post(
        "/p/first/train", {"Accept": "text/plain"}, start="nothing", size="tiny", only_time="yes"
    )
    assert (answer.status_code, answer.headers["X-Next"]) == (200, "/p/first/train#new"), (
        "for a script"
    )
    assert within(20, lambda: state(app, "0002-time") == "done")


def test_the_form_has_all_choices_that_were_measured(app: App, recipe: Path) -> None:
    base = write_model_folder(app.project / "exp/softmax")
    write_atomic(app.project / "expected.json", "{}")
    write_options(app.project / "data", elan="/some/where", lang="es")
    app.post("/p/first/train", start="model", base=str(base), minutes="2,50", only_time="yes")
    assert within(20, lambda: state(app, "0001-time") == "done")
    html = app.get("/p/first/train").text
    assert '<option value="model" selected>' in html and f'<option value="{base}" selected>' in html
    assert 'name="minutes" inputmode="decimal" size="5" value="2.5"' in html
    html = app.get("/p/first/train", params={"encoder": "/a/whisper"}).text
    assert (
        '<option value="encoder" selected>' in html and 'name="encoder" value="/a/whisper"' in html
    )
    assert 'size="5" value=""' in html


def test_a_training_of_a_shell_is_shown_and_stopped(app: App, recipe: Path) -> None:
    model = app.project / "exp-mine/softmax"
    write_atomic(model / "train.yaml", "")
    write_options(app.project / "data", elan="/some/where", lang="es")
    write_options(
        model.parent, size="tiny", base="../exp/other", data="../x", config="conf/own.yaml"
    )
    records = [{"kind": "train", "step": step, "loss": 9.0 / step} for step in (50, 100)]
    records += [
        {"kind": "valid", "step": step, "ctc_error_rate": rate}
        for step, rate in ((50, 0.3), (100, 0.4321))
    ]
    write_atomic(model / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    warnings = (RunWarning(code="overfitted", step=100, text="step 100: over-fits"),)
    write_progress_of(model, 100, 3000, minutes_left=4.3, warnings=warnings)
    with holder(model) as process:
        answer = app.get("/p/first/live?training=exp-mine/softmax")
        assert answer.headers["x-state"] == "running"
        assert "Step 100 of 3,000, about 4 min left" in answer.text and "<polyline" in answer.text
        assert "step 100: over-fits" in answer.text
        assert (
            "Dev set: 43.21 % of the letters or phones are wrong (lowest: 30.00 %)" in answer.text
        )
        assert "Unit error rate of the validation set, greedy CTC search" in answer.text
        assert "Stop exp-mine/softmax" in app.get("/p/first/train").text
        write_progress_of(model, 100, 3000, minutes_left=0.2)
        assert (
            "less than a minute left in this part"
            in app.get("/p/first/live?training=exp-mine/softmax").text
        )
        job = start_job(
            app.project / ".app/jobs",
            "train",
            ["sleep", "60"],
            folder=app.home,
            details={"own": {"exp": str(model.parent)}},
        )
        assert "Stop exp-mine/softmax" not in app.get("/p/first/train").text, (
            "the job has a button of its own"
        )
        job.stop()
        assert within(20, lambda: not job.is_running)
        assert app.post("/p/first/stop", training="exp-mine/softmax").status_code == 303
        assert process.wait(10) == -signal.SIGTERM
    write_atomic(model / "metrics.jsonl", '{"kind": "valid", "step": 100, "loss": 0.5}\n')
    answer = app.get("/p/first/live?training=exp-mine/softmax")
    assert answer.headers["x-state"] == "done" and "the model has no CTC" in answer.text
    assert "Go on with exp-mine/softmax" in app.get("/p/first/train").text
    write_atomic(model.with_name("report.html"), "")  # of a recipe that has ended
    assert "Go on with exp-mine/softmax" not in app.get("/p/first/train").text
    shown = app.post(
        "/p/first/resume", training="exp-mine/softmax", preview="yes"
    ).text  # heads and seeds are unknown
    assert f"repeat its command of run.sh there, with --exp {app.project}/exp-mine" in shown


def test_a_job_of_somebody_else_is_not_repeated(app: App, recipe: Path) -> None:
    write_atomic(app.project / "exp/softmax/train.yaml", "")
    folders = {"data": str(app.project / "data"), "exp": str(app.project / "exp")}
    evil = ["touch", str(app.home / "evil")]
    words = [f"--{name}={value}" for name, value in folders.items()]
    earlier = {"kind": "train", "command": [str(recipe), *words]}  # without details
    write_atomic(app.project / ".app/jobs/0001-train/job.json", json.dumps(earlier))
    answer = app.post("/p/first/resume", training="exp/softmax")
    assert answer.status_code == 400 and "was begun in a shell" in answer.text
    limited = ["max_minutes=2.5", "scheduler_conf.warmup_steps=100"]
    for number, (options, minutes, reason) in enumerate(
        (
            ({"base_steps": "a[$(id)]"}, None, "has the option --base_steps"),
            ({"results": str(app.home)}, None, "has the option --results"),
            ({"config": str(app.home)}, None, "has the option --config"),
            ({"evil": "x"}, None, "has the option --evil"),
            ({"prepare": ["--out=elsewhere"]}, None, "has the option --out"),
            ({"prepare": ["--tier", "--ou", "x"]}, None, "has the option --ou"),
            (
                {"override": ["max_minutes=1", "log_dir=/x"]},
                1.0,
                "has settings that this page does",
            ),
            ({"override": limited}, None, "has settings that this page does not write"),
            ({"override": limited}, "2.5", "has settings that this page does not write"),
            ({"stage": "many"}, None, "has settings that this page does not write"),
            ({"override": limited}, 2.5, ""),
            ({"stage": 1, "elan": "/some/where"}, None, ""),
        ),
        start=2,
    ):
        details = {"own": folders | options, "minutes": minutes}
        job = {"kind": "train", "command": evil, "details": details}
        write_atomic(app.project / f".app/jobs/{number:04}-train/job.json", json.dumps(job))
        answer = app.post("/p/first/resume", training="exp/softmax", preview="yes")
        if reason:
            assert reason in answer.text
        else:
            assert answer.text.startswith(f"{recipe} own --") and "touch" not in answer.text
    expected = (
        f"{recipe} own --elan /some/where --stage 1 --data {folders['data']} --exp {folders['exp']}"
    )
    assert answer.text == expected


def test_a_training_of_the_page_goes_on_with_its_options(app: App, recipe: Path) -> None:
    write_options(app.project / "data", elan="/some/where", lang="es", prepare="--tier 'a b'")
    assert (
        app.post("/p/first/train", start="nothing", size="small", minutes="2,5").status_code == 303
    )
    project = app.site.projects.open("first")
    [job] = project.jobs("train")
    assert within(20, lambda: (app.project / "exp/options.json").exists())
    job.stop()
    assert within(20, lambda: not job.is_running)
    write_atomic(app.project / "exp/softmax/train.yaml", "")
    assert app.post("/p/first/resume", training="exp/softmax").status_code == 303
    assert project.jobs("train")[0].command == job.command
    assert project.jobs("train")[0].details == job.details
    project.jobs("train")[0].stop()


def test_options_of_a_project_of_somebody_else_are_checked(app: App, recipe: Path) -> None:
    for options, reason in (
        ({"base_steps": "a[$(id)]"}, "has the option --base_steps, which this page does not use"),
        ({"prepare": "--tier=a --out=/elsewhere"}, "has the option --out"),
        ({"prepare": "--ou /elsewhere"}, "has the option --ou"),
        # xargs has no escapes in quotes
        ({"prepare": '--tier "a\\" --out "x"y" "'}, "has the option --out"),
        ({"prepare": "--tier 'a"}, "a quote has no end"),
        # but a backslash outside of them
        ({"prepare": "\\--out=/elsewhere"}, "has the option --out"),
    ):
        write_options(app.project / "data", elan=str(app.home), lang="es", **options)
        for path in ("prepare_again", "train"):
            answer = app.post(f"/p/first/{path}", start="nothing")
            assert answer.status_code == 400 and reason in answer.text, options
    assert not (app.project / ".app/jobs").exists()
    words = "--tier 'it'\"'\"'s new' \"utterance@*\" --drop_overlaps"
    write_options(app.project / "data", elan=str(app.home), prepare=words)
    assert app.post("/p/first/prepare_again", preview="yes").text.startswith(
        f"{recipe} own --elan "
    )


def test_lists_that_a_training_reads_are_not_moved_away(app: App, recipe: Path) -> None:
    job = start_job(app.project / ".app/jobs", "train", ["sleep", "60"], folder=app.project)
    answer = app.post("/p/first/prepare", form="elan", path=str(app.home), lang="es", replace="yes")
    assert answer.status_code == 400 and "0001-train: still runs" in answer.text
    assert (app.project / "data/stats.json").exists() and not (app.project / "data-old-1").exists()
    job.stop()
    assert within(20, lambda: not job.is_running)
    write_atomic(app.project / "exp-mine/softmax/train.yaml", "")
    with holder(app.project / "exp-mine/softmax"):
        answer = app.post(
            "/p/first/prepare", form="elan", path=str(app.home), lang="es", replace="yes"
        )
        assert (
            "exp-mine/softmax: is trained in a shell; wait for its end, or stop it" in answer.text
        )
    assert not (app.project / "data-old-1").exists()
    tiers = [f"{number:05}{'x' * 190}" for number in range(700)]
    answer = app.post(
        "/p/first/prepare", form="elan", path=str(app.home), lang="es", replace="yes", tier=tiers
    )
    assert "a part of a command with more than 131,071 bytes; choose fewer" in answer.text
    assert not (app.project / "data-old-1").exists()


def test_results_in_a_sentence_and_the_worst_utterances_first(app: App) -> None:
    folder = app.project / "exp/softmax"
    write_atomic(folder / "train.yaml", "")
    references = {f"u{n}": "abcd efgh" for n in range(25)}
    texts = references | {"u7": "abxd <b>", "u0": "abcd efg"}
    report = score(references, texts, rules=Rules(metric="cer"), num_resamples=50)
    write_atomic(folder / "test/attention_rescoring/score.json", report_to_json(report))
    html = app.get("/p/first/results").text
    assert re.search(
        r"[\d.]+ % of the letters of the test set are wrong \(95 % interval: [\d.]+ to [\d.]+ %\)",
        html,
    )
    assert (
        re.findall(r"<article.*?<code>(u\d+)</code>", html)[:2] == ["u7", "u0"]
        and len(re.findall("<article", html)) == 10
    )
    assert "&lt;" in html and "<b>" not in html
    assert 'class="u D' in html and 'class="u S' in html
    assert "Page 3 of 3" in app.get("/p/first/results?page=3").text
    other = app.get("/p/first/results?mode=ctc_greedy_search")  # that of the training shown before
    assert 'value="attention_rescoring" selected' in other.text
    of_langs = score(
        references,
        texts,
        rules=Rules(metric="cer"),
        num_resamples=50,
        langs=dict.fromkeys(texts, "es") | {"u7": "gn"},
    )
    write_atomic(folder / "test/attention_rescoring/score.json", report_to_json(of_langs))
    assert (
        "are wrong, as the mean of 2 languages that count equally"
        in app.get("/p/first/results").text
    )
    assert app.get("/p/first/report?training=exp/softmax").status_code == 400


def test_confusions_have_an_example_to_hear_and_units_are_sorted_by_their_recall(app: App) -> None:
    folder = app.project / "exp/softmax"
    write_atomic(folder / "train.yaml", "")
    references = {"u0": "aaa bbbbb", "u1": "aa ccccc", "u2": "<d>"}
    texts = {"u0": "xxx bbbbb", "u1": "xa ccccy", "u2": "<d>"}
    report = score(references, texts, rules=Rules(metric="cer"), num_resamples=50)
    write_atomic(folder / "test/attention_rescoring/score.json", report_to_json(report))
    html = app.get("/p/first/results").text
    confusions, recalls, _ = re.findall("<tbody>(.*?)</tbody>", html, re.DOTALL) + [""]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in confusions.split("</tr>")[:-1]
    ]
    assert [row[:4] for row in rows] == [["a", "x", "4", "80.00"], ["c", "y", "1", "20.00"]]
    assert "audio?key=u1" in rows[0][4] and "u0" not in rows[0][4], "u1 has fewer errors"
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in recalls.split("</tr>")[:-1]
    ]
    assert rows == [["a", "20.00", "1", "5"], ["c", "80.00", "4", "5"]]
    assert "The letters that are seldom right" in html


def test_uploaded_recordings_are_chosen_once_until_they_are_transcribed(app: App) -> None:
    write_model_folder(app.project / "exp/softmax")
    for name in (
        "a.wav",
        "a.eaf",
        "b.flac",
        "c.txt",
        "d.wav",
        "d.wav.eaf",
        "done.mp3",
        "done.json",
    ):
        write_atomic(app.project / "to_transcribe" / name, "")
    write_transcript(app.project, app.project / "to_transcribe/done.mp3", "done")
    write_atomic(app.project / "exp-2/base/train.yaml", "")
    write_atomic(app.project / "exp-2/base/model.safetensors", "")
    write_atomic(app.project / "exp/softmax/test/joint/score.json", "{}")
    html = app.get("/p/first/transcribe").text
    assert re.findall(r"<option>(.*?)<", html) == ["exp/softmax", "exp-2/base"], (
        "scored models first"
    )
    assert re.findall(r'to_transcribe/([\w.]+)" checked', html) == ["a.eaf", "b.flac", "d.wav.eaf"]
    assert "c.txt" not in html


def test_a_zip_of_somebody_else_is_opened_or_refused(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, entries in {
        "good.zip": {
            "m/train.yaml": "",
            "m/model.safetensors": "",
            "m/README.md": "<script>card</script>",
        },
        "evil.zip": {"m/train.yaml": "", "m/model.safetensors": "", "../../evil": "x"},
        "other.zip": {"x.txt": ""},
    }.items():
        with ZipFile(tmp_path / name, "w") as archive:
            for entry, content in entries.items():
                archive.writestr(entry, content)
        headers = {"Origin": ORIGIN, "Content-Type": "application/octet-stream"}
        address = f"/p/first/upload?to=models&name={name}"
        assert (
            app.client.post(
                address, content=(tmp_path / name).read_bytes(), headers=headers
            ).status_code
            == 200
        )
    html = app.get("/p/first/share").text
    assert "&lt;script&gt;card" in html
    assert (
        "evil.zip: has entries outside of its folder" in html
        and "other.zip: has 0 train.yaml" in html
    )
    assert not list(tmp_path.glob("**/evil"))
    assert "models/good.zip" in app.get("/p/first/transcribe").text


@pytest.mark.slow
def test_from_a_recording_to_a_corrected_file_and_a_model_to_share(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(app.home / "cache"))
    write_model_folder(app.project / "exp/softmax")
    write_audio(app.home / "new/talk.wav", 3.0)
    files = str(app.home / "new/talk.wav")
    assert app.post("/p/first/transcribe", model="exp/softmax", file=files).status_code == 303
    assert within(120, lambda: state(app, "0001-transcribe") == "done"), app.get(
        "/p/first/transcribe"
    ).text
    assert "talk.wav: done" in app.get("/p/first/transcribe").text
    app.post("/p/first/text", name="talk", number="0", text="a corrected text")
    content = app.get("/p/first/download?name=talk&form=eaf").content
    write_atomic(app.home / "talk.eaf", content)
    assert (
        Eaf(str(app.home / "talk.eaf")).get_annotation_data_for_tier("wenet_hs")[0][2]
        == "a corrected text"
    )
    assert (
        app.post("/p/first/pack", model="exp/softmax", name="mine", license="cc0-1.0").status_code
        == 303
    )
    assert within(120, lambda: state(app, "0002-pack") == "done"), app.get("/p/first/share").text
    packed = app.get("/p/first/packed?name=mine.zip").content
    headers = {"Origin": ORIGIN, "Content-Type": "application/octet-stream"}
    assert (
        app.client.post(
            "/p/first/upload?to=models&name=mine.zip", content=packed, headers=headers
        ).status_code
        == 200
    )
    assert "license: &#34;cc0-1.0&#34;" in app.get("/p/first/share").text
