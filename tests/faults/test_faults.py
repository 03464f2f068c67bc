# SPDX-License-Identifier: Apache-2.0
"""Every fault with few trials, and violations that the fault tests must notice."""

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import checkpoints
import hostile
import pytest
import run_all
import user_errors
from harness import Tally, call_in_child, last_step, start_training
from tiny_corpus import TinyCorpus, bits, outcome, write_tiny_corpus

from wenet_hs import checkpoint as ckpt
from wenet_hs.bin import train
from wenet_hs.score import score

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def run_slow(name: str, trials: int, expected: str, **options: object) -> Any:
    return pytest.param(name, trials, options, expected, marks=pytest.mark.slow, id=f"{name}-{trials}")


@pytest.mark.parametrize(
    ("name", "trials", "options", "expected"),
    [
        ("save_kills", 3, {"size": 500, "scenarios": 1}, "3 kills at random instants ("),
        ("mutate_tables", 30, {"repeats": False}, "30 tables | "),
        ("mutate_clips", 30, {}, "page 3/3"),
        ("scored_sets", 12, {"pairs": 20}, "silent rates 0/12 | 20 random pairs"),
        run_slow("save_kills", 100, "unloadable or lost 0/2"),
        run_slow("resume_sweep", 8, "softmax 3/3", every=3),
        run_slow("kill_training", 10, "48 steps | 10 kills (after step "),
        run_slow("damaged_checkpoints", 60, "named, and the checkpoint before used,", cuts=20, trainings=3),
        run_slow("full_disk", 20, "20 limits over the", trainings=2, disks=4),
        run_slow("hostile_files", 16, "code run by the commands 0/32", yamls=8, arrays=8),
        run_slow("mutate_tables", 700, "4 preparations"),
        run_slow("mutate_clips", 1000, "page 100/100"),
        run_slow("kill_ranks", 1, "2 ranks | 16 steps | 1 runs | rank 0 killed "),
        run_slow("kill_recognition", 4, " | 4 kills in "),
        run_slow("kill_recognition", 4, "2 ranks | 240 clips", ranks=2),
        run_slow("signal_training", 2, "24 steps | 2 signals | ", epochs=6),
        run_slow("user_mistakes", 25, "60 mistakes (exit 0: ", mistakes=60),
    ],
)
def test_no_promise_is_violated(
    name: str, trials: int, options: dict[str, object], expected: str, tmp_path: Path
) -> None:
    tally = Tally(seed=5)
    figures = run_all.FAULTS[name].test(tmp_path, tally, trials, **options)
    assert tally.violations == []
    assert expected in figures


@pytest.mark.slow
def test_a_save_that_is_not_atomic_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = ckpt.save_checkpoint

    def save_in_place(folder: Path, step: int, files: dict[str, bytes]) -> Path:
        path, made = folder / f"step-{step:08d}", save(folder.parent / "elsewhere", step, files)
        path.mkdir(parents=True, exist_ok=True)
        for item in made.iterdir():
            with (path / item.name).open("wb") as file:
                file.write(item.read_bytes())
        return path

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(ckpt, "save_checkpoint", save_in_place)
    tally = Tally()
    checkpoints.kill_at_every_call(tmp_path, "save and rotate", 500, tally)
    assert any("left a damaged checkpoint" in violation for violation in tally.violations)


def test_a_silent_rate_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def score_decoded(reference: Mapping[str, str], hypothesis: Mapping[str, str], **named: Any) -> Any:
        return score({key: reference[key] for key in reference.keys() & hypothesis.keys()}, hypothesis, **named)

    monkeypatch.setattr("wenet_hs.bin.score.score", score_decoded)
    tally = Tally()
    user_errors.scored_sets(tmp_path, tally, 12, pairs=1)
    assert any("a rate over other utterances" in violation for violation in tally.violations)


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from dill import loads", "np.load(p)", "np.load(p, allow_pickle=True)"),
        *("torch.load(p, weights_only=careful)", "yaml.load(text, yaml.Loader)", "x = eval(text)"),
        *("subprocess.run(line, shell=True)", "os.system(line)", "exec(line)"),
    ],
)
def test_the_scan_finds_ways_to_run_code(text: str, tmp_path: Path) -> None:
    (tmp_path / "wenet_hs").mkdir()
    imports = "import os\nimport subprocess\n\nimport numpy as np\nimport torch\nimport yaml\n\n"
    (tmp_path / "wenet_hs" / "unsafe.py").write_text(f"{imports}model.eval()\nnp.load(p, allow_pickle=False)\n{text}\n")
    (tmp_path / "wenet_hs" / "unsafe.sh").write_text('# eval is evil\ncurl x | sh\neval "$line"\n')
    num_files, found = hostile.scan_sources(tmp_path)
    places = {tuple(line.removeprefix(f"{tmp_path}/wenet_hs/").split(":")[:2]) for line in found}
    assert (num_files, places) == (2, {("unsafe.sh", "2"), ("unsafe.sh", "3"), ("unsafe.py", "10")})


def test_no_source_runs_code_that_came_with_data() -> None:
    num_files, found = hostile.scan_sources()
    assert (found, num_files > 80) == ([], True)


def test_the_note_has_a_row_per_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def violate(folder: Path, tally: Tally, trials: int, **options: object) -> str:
        tally.check(trials != 3, "bits differ")
        return f"{trials} trials"

    for name, fault in list(run_all.FAULTS.items()):
        monkeypatch.setitem(run_all.FAULTS, name, fault._replace(test=violate, quick=1))
    out = str(tmp_path / "faults")
    assert run_all.main(["--quick", "--out", out]) == 0
    assert run_all.main(["full_disk", "--trials", "3", "--out", out]) == 1
    note = (tmp_path / "faults.md").read_text("utf-8")
    assert "violations in: python tests/faults/run_all.py full_disk --trials 3" in note and "- power loss" in note
    rows = json.loads((tmp_path / "faults.json").read_text("utf-8"))["results"]
    assert [row["exit_code"] for row in rows] == [int(name == "full_disk") for name in run_all.FAULTS]
    assert "seed 1 · 3 trials · 0 s · 1 violations" in rows[4]["figure"]
    assert run_all.main(["full_disk", "--quick", "--out", out]) == 0
    assert "violation: bits differ" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_all.main(["earthquake"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_changes_no_bit(corpus: TinyCorpus, tmp_path: Path) -> None:
    """The limit is met by the first checkpoint, and later by train.yaml, by TensorBoard and by the weights."""
    folder, whole = tmp_path / "m", corpus.train(tmp_path / "whole")
    (line,) = call_in_child(train, *corpus.arguments(folder), limit=100_000).err.splitlines()
    assert line.startswith(f"{folder}/checkpoints/step-00000001: disk full while writing (File too large")
    assert "; no checkpoint was written before; free some space" in line
    before = bits(corpus.train(folder, "max_epoch=1"))
    for limit in (500, 20_000, 151_000):
        ended = call_in_child(train, *corpus.arguments(folder), limit=limit)
        (line,) = ended.err.splitlines()
        assert ended.code == 2 and ": disk full while writing (File too large; " in line, limit
        assert line.endswith("; last good checkpoint: step-00000004; free some space and run the same command again"), (
            limit
        )
        assert bits(folder) == before, limit
        assert [path.name for path in (folder / "checkpoints").glob(".*")] == []
    assert outcome(corpus.train(folder)) == outcome(whole)


@pytest.mark.slow
def test_a_silent_rank_ends_the_run_within_the_timeout(
    corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WENET_HS_RANK_TIMEOUT_S", "5")
    program = start_training(corpus, tmp_path, "max_epoch=8", "save_interval=2", "num_workers=0", ranks=2)
    assert program.wait_until(lambda: last_step(tmp_path) > 0 and 1 in program.rank_processes())
    rank = program.rank_processes()[1]
    os.kill(rank, signal.SIGSTOP)
    message = "another rank has not answered for 5 s"
    assert program.wait_until(lambda: message in program.log.read_text())
    time.sleep(0.1)
    os.kill(rank, signal.SIGKILL)  # torchrun would wait half a minute for its end
    assert program.wait() == 1
    lines = [line for line in program.log.read_text().splitlines() if line.startswith("rank 0: ")]
    advice = "read its message, then run the same command again to resume"
    assert lines == [f"rank 0: {message}; {advice}"]
