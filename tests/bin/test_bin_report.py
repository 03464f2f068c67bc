# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs report`: the page, the printed lines, and one line per fault."""

import sys
from pathlib import Path

import pytest
from command_line import Capsys, error_line

from wenet_hs.bin import report as command
from wenet_hs.bin.main import run_command
from wenet_hs.score import Rules, report_to_json, score


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Experiment `a` has results in a folder `decoded`; `b` has only a train.yaml."""
    monkeypatch.chdir(tmp_path)
    result = tmp_path / "exp/a/decoded/attention"
    result.mkdir(parents=True)
    (result / "score.json").write_text(
        report_to_json(score({"k": "ab"}, {"k": "ax"}, rules=Rules(metric="per")))
    )
    (tmp_path / "exp/b").mkdir()
    (tmp_path / "exp/b/train.yaml").write_text("head: softmax\n")
    (tmp_path / "stats.json").write_text('{"simulated": true}')
    return tmp_path


def call(line: str) -> int:
    return run_command(command, line.split())


@pytest.mark.parametrize("program", [["/usr/bin/wenet-hs", "report"], ["/wenet_hs/bin/report.py"]])
def test_the_page_and_the_printed_lines(
    folder: Path, program: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--exp exp/a --out out/report.html --test decoded --stats stats.json --title T"
    monkeypatch.setattr(sys, "argv", [*program, *options.split()])
    assert call(options) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("PER in % (simulated speech)", "out/report.html")
    page = (folder / "out/report.html").read_text("utf-8")
    assert "<title>T</title>" in page and "100.00 %" in page and "(simulated speech)" in page
    assert f"<code>wenet-hs report {options}</code>" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--exp exp/z", "exp/z: no such experiment folder; check --exp"),
        (
            "--exp exp/c",
            "exp/c: contains no train.yaml, metrics.jsonl or test/<mode>/score.json; give the --model",
        ),
        (
            "--test decoded --mode joint",
            "--mode joint: no experiment is scored in this mode; scored modes are: att",
        ),
        ("--test decoded --audio_mb -1", "--audio_mb -1.0: must be at least 0; 0 is none"),
        (
            "--test decoded --audio_mb nan",
            "--audio_mb nan: must be a finite number of at least 0; 0 is none",
        ),
        ("--test decoded --utterances -1", "--utterances -1: must be at least 0; 0 is none"),
        (
            "--test decoded --data_list no.list",
            "no.list: cannot be read (No such file or directory)",
        ),
        ("--test decoded --stats no.json", "no.json: cannot be read (No such file or directory)"),
        (
            "--exp exp/b --test x",
            "--test x: no experiment has a x/<mode>/score.json to read; scored are: none, run",
        ),
        (
            "--test x",
            "--test x: no experiment has a x/<mode>/score.json to read; scored are: decoded",
        ),
    ],
)
def test_a_fault_is_one_line(options: str, message: str, folder: Path, capsys: Capsys) -> None:
    (folder / "exp/a/train.yaml").write_text("head: softmax\n")
    (folder / "exp/c").mkdir()
    options = options if "--exp" in options else f"--exp exp/a {options}"
    assert error_line(call(f"{options} --out r.html"), capsys).startswith(message)
    assert not (folder / "r.html").exists()


def test_experiments_without_error_rates(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert call("--exp exp/a --exp exp/b --test decoded --out r.html") == 0
    line = "exp/b: no decoded/<mode>/score.json to read, so no error rates; run `wenet-hs score --json`"
    assert caplog.messages == [line]
    caplog.clear()
    assert call("--exp exp/b --out r.html") == 0, "an experiment that is not decoded yet has a page"
    page = (folder / "r.html").read_text("utf-8")
    assert "<h1>b</h1>" in page and "(simulated speech)" not in page
    assert caplog.messages == [line.replace("decoded", "test")]
