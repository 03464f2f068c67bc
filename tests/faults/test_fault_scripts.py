# SPDX-License-Identifier: Apache-2.0
"""Every script of this folder at a small size; and that each would notice what it is there to notice."""

import importlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import run_all
import save_kills
import scored_sets
import source_scan
import torch
from fault_script import Tally
from tiny_corpus import cut_back, write_tiny_corpus

from wenet_hs import checkpoint as ckpt
from wenet_hs.errors import CheckpointError
from wenet_hs.score import Report, score
from wenet_hs.train.state import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Printed = pytest.CaptureFixture[str]


def figures(capsys: Printed, script: str, arguments: str) -> str:
    """The line that a script prints, which must have found nothing."""
    code = importlib.import_module(script).main(arguments.split())
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out.count("\n") == 1
    assert printed.out.endswith("| no violation\n")
    return printed.out


def test_kills_in_saves(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    line = figures(capsys, "save_kills", "--kills 3 --bytes 500 --scenarios final.pt")
    assert "| 3 kills at random instants (" in line
    assert "| unloadable or lost 0/10 |" in line


def test_scores_of_other_sets(capsys: Printed) -> None:
    line = figures(capsys, "scored_sets", "--mutations 12 --pairs 20")
    assert "silent rates 0/12 | 20 random pairs" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("save_kills", "--kills 100", "unloadable or lost 0/2"),
        ("resume_sweep", "--steps 8 --every 3", "softmax 3/3"),
        ("damaged_checkpoints", "--flips 60 --cuts 20 --trainings 3", "named, and the checkpoint before used,"),
        ("full_disk", "--limits 20 --trainings 2 --disks 4", "20 limits over the"),
        ("hostile_files", "--pickles 16 --yamls 8 --arrays 8", "code run by the commands 0/32"),
        ("mistakes", "--mismatches 25 --mistakes 60", "60 mistakes (exit 0: "),
    ],
)
def test_the_others(capsys: Printed, script: str, arguments: str, expected: str) -> None:
    assert expected in figures(capsys, script, arguments)


@pytest.mark.slow
def test_a_save_that_is_not_atomic_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script must have teeth: here files go straight to their place."""

    def in_place(folder: Path, step: int, files: dict[str, bytes]) -> Path:
        path = ckpt.checkpoint_path(folder, step)
        path.mkdir(parents=True, exist_ok=True)
        for name, content in {**files, ckpt.MANIFEST: ckpt._manifest(files)}.items():
            with (path / name).open("wb") as file:
                file.write(content)
        return path

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(ckpt, "save_checkpoint", in_place)
    tally = Tally(1)
    save_kills.kills_at_every_call(tmp_path, "save and rotate", 500, tally)
    assert any("left a damaged checkpoint" in violation for violation in tally.violations)


def test_a_checkpoint_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    """Killed between the two renames of a save over the same step."""
    path = ckpt.save_checkpoint(tmp_path, 7, {"model.pt": b"weights"})
    path.rename(tmp_path / ".step-00000007.replaced")
    ckpt.remove_litter(tmp_path)
    assert ckpt.read_checkpoint(path) == {"model.pt": b"weights"}
    path.rename(tmp_path / ".step-00000007.replaced")
    ckpt.save_checkpoint(tmp_path, 7, {"model.pt": b"newer"})
    ckpt.remove_litter(tmp_path)
    assert ckpt.read_checkpoint(path) == {"model.pt": b"newer"}
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"cos\nsystem\n(S'true'\ntR.",
            r"^model.pt: cannot be read \(Weights only load failed.*; use an earlier check",
        ),
        (b"", r"^model.pt: cannot be read \(.*\); use an earlier checkpoint$"),
        ([1, 2], "^model.pt: is no dict of names; use an earlier checkpoint$"),
        ({1: 2}, "^model.pt: is no dict of names; use an earlier checkpoint$"),
    ],
)
def test_a_file_of_a_checkpoint_that_is_none(content: object, message: str) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with pytest.raises(CheckpointError, match=message):
        saved(content if isinstance(content, bytes) else buffer.getvalue(), Path("model.pt"))


@pytest.mark.slow
def test_files_of_another_training_are_named(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    whole = corpus.train(tmp_path / "whole", "max_epoch=1")
    files = ckpt.read_checkpoint(ckpt.list_checkpoints(whole / "checkpoints")[-1])
    buffer = io.BytesIO()
    torch.save({"state": 1}, buffer)
    for name, fault in (("optimizer.pt", "is of another optimizer"), ("rng.pt", "holds no random state")):
        copy = cut_back(whole, tmp_path / name, 4)
        ckpt.save_checkpoint(copy / "checkpoints", 4, {**files, name: buffer.getvalue()})
        with pytest.raises(CheckpointError, match=f"step-00000004/{name}: {fault}; use an earlier checkpoint$"):
            corpus.train(copy, "max_epoch=1")


def test_a_silent_rate_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    def over_what_was_decoded(reference: Mapping[str, str], hypothesis: Mapping[str, str], **named: Any) -> Report:
        return score({key: reference[key] for key in reference.keys() & hypothesis.keys()}, hypothesis, **named)

    monkeypatch.setattr("wenet_hs.bin.score.score", over_what_was_decoded)
    assert scored_sets.main(["--mutations", "12", "--pairs", "1"]) == 1
    assert "a rate over other utterances" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import pickle", "import pickle"),
        ("from dill import loads", "from dill import"),
        ("np.load(p)", "np.load without allow_pickle"),
        ("np.load(p, allow_pickle=True)", "allow_pickle=True"),
        ("torch.load(p, weights_only=careful)", "weights_only=False"),
        ("yaml.load(text, yaml.Loader)", "yaml.load"),
        ("x = eval(text)", "eval()"),
        ("subprocess.run(line, shell=True)", "shell=True"),
        ("os.system(line)", "os.system"),
    ],
)
def test_the_scan_sees_ways_to_run_code(text: str, fault: str) -> None:
    assert fault in [what for _, what in source_scan.faults_of_python(text)]


def test_no_source_runs_code_that_came_with_data() -> None:
    tally = Tally(1)
    assert source_scan.scan_sources(tally) > 100
    assert tally.violations == []
    assert source_scan.faults_of_python("model.eval()\nnp.load(p, allow_pickle=False)") == []
    assert source_scan.faults_of_shell('eval "$line"\n# eval is evil\ncurl x | sh') == [
        (1, 'eval "$line"'),
        (3, "curl x | sh"),
    ]


def test_all_scripts_in_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    """Every script of the folder is in the list, and a violation in any is the exit code."""
    folder = Path(__file__).parent
    scripts = {path.name for path in folder.glob("[!t]*.py") if "__main__" in path.read_text("utf-8")}
    assert {script.file for script in run_all.SCRIPTS} >= scripts - {"run_all.py"}
    made = fake_results({"full_disk.py": 1})
    monkeypatch.setattr(run_all, "run", made)
    assert run_all.main(["--quick", "--out", str(tmp_path / "faults")]) == 1
    note = (tmp_path / "faults.md").read_text("utf-8")
    assert "violations in: full_disk.py" in note
    assert "- power loss" in note
    record: dict[str, Any] = json.loads((tmp_path / "faults.json").read_text("utf-8"))
    assert len(record["results"]) == len(run_all.SCRIPTS)
    assert run_all.main(["--only", "scored_sets.py"]) == 0
    monkeypatch.setattr(run_all, "run", fake_results({}))
    assert run_all.main(["--only", "full_disk.py", "--out", str(tmp_path / "faults")]) == 0
    assert len(json.loads((tmp_path / "faults.json").read_text("utf-8"))["results"]) == len(run_all.SCRIPTS)
    capsys.readouterr()


def fake_results(codes: dict[str, int]) -> Callable[[run_all.Script, str], run_all.Result]:
    """`run_all.run` without running."""
    return lambda script, arguments: run_all.Result(
        script.promise, script.file, "figures", 0.1, codes.get(script.file, 0), "abc"
    )


def test_a_script_is_run_and_its_last_line_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint('first')\nprint('a | b', *sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(run_all, "FOLDER", tmp_path)
    result = run_all.run(run_all.Script("script.py", "promise", "", ""), "--kills 2")
    assert (result.exit_code, result.figure, result.promise) == (3, "a · b --kills 2", "promise")
    assert capsys.readouterr().err.endswith("first\na | b --kills 2\n")
