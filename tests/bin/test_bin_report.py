# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs report` as a user calls it."""

from pathlib import Path

import pytest

from wenet_hs.bin import report as command
from wenet_hs.bin.command import run_command
from wenet_hs.score import Rules, report_to_json, score


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    result = tmp_path / "exp/a/decoded/attention"
    result.mkdir(parents=True)
    (result / "score.json").write_text(report_to_json(score({"k": "ab"}, {"k": "ax"}, rules=Rules(metric="per"))))
    (tmp_path / "exp/b").mkdir()
    (tmp_path / "exp/b/train.yaml").write_text("head: softmax\n")
    (tmp_path / "stats.json").write_text('{"simulated": true}')
    return tmp_path


def call(line: str) -> int:
    return run_command(command, line.split())


def test_writes_the_page_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--exp exp/a --test decoded --stats stats.json --title T"
    assert call(f"{options} --out out/report.html") == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("PER in % (simulated speech)", "out/report.html")
    page = (folder / "out/report.html").read_text("utf-8")
    assert "<title>T</title>" in page
    assert "100.00 %" in page and "(simulated speech)" in page
    again = "wenet-hs report --exp exp/a --out out/report.html --stats stats.json --test decoded --title T"
    assert f"<code>{again}</code>" in page


def test_the_command_on_the_page_has_every_flag(folder: Path) -> None:
    options = "--exp exp/a --out r.html --mode attention --audio_mb 1.5 --utterances 7 --test decoded"
    assert call(options) == 0
    assert f"<code>wenet-hs report {options}</code>" in (folder / "r.html").read_text("utf-8")


def test_the_title_names_the_experiments(folder: Path) -> None:
    assert call("--exp exp/a --test decoded --out r.html") == 0
    page = (folder / "r.html").read_text("utf-8")
    assert "<h1>a</h1>" in page
    assert "(simulated speech)" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--exp exp/z", "exp/z: no such experiment folder; check --exp"),
        ("--exp exp/a", "exp/a: no train.yaml, metrics.jsonl or test/<mode>/score.json; is it an experiment folder?"),
        (
            "--exp exp/a --test decoded --mode joint",
            "--mode joint: no experiment is scored in this mode; scored modes are: attention",
        ),
        ("--exp exp/a --test decoded --audio_mb -1", "--audio_mb -1.0: must be at least 0; 0 is none"),
        ("--exp exp/a --test decoded --audio_mb nan", "--audio_mb nan: must be at least 0; 0 is none"),
        ("--exp exp/a --test decoded --utterances -1", "--utterances -1: must be at least 0; 0 is none"),
        ("--exp exp/a --test decoded --data_list no.list", "no.list: cannot be read (No such file or directory)"),
        ("--exp exp/a --test decoded --stats no.json", "no.json: cannot be read (No such file or directory)"),
    ],
)
def test_faults_are_one_line(options: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{options} --out r.html") == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1
    assert not (folder / "r.html").exists()


def test_an_experiment_without_error_rates_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert call("--exp exp/a --exp exp/b --test decoded --out r.html") == 0
    line = "exp/b: no decoded/<mode>/score.json to read, so no error rates; run `wenet-hs score --json`"
    assert caplog.messages == [line]
    caplog.clear()
    assert call("--exp exp/b --out r.html") == 0, "a training that nobody has decoded yet has its curves"
    assert caplog.messages == [line.replace("decoded", "test")]


def test_a_folder_of_results_that_nobody_has_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "exp/a/train.yaml").write_text("head: softmax\n")
    assert call("--exp exp/a --exp exp/b --test decodde --out r.html") == 2
    line = "--test decodde: no experiment has a decodde/<mode>/score.json to read; scored are: decoded\n"
    assert (capsys.readouterr().err, (folder / "r.html").exists()) == (line, False)
    assert call("--exp exp/b --test decodde --out r.html") == 2
    assert capsys.readouterr().err.endswith("scored are: none, run `wenet-hs score --json`\n")
