# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run with --quick, from one end to the other; their notes have a row per question."""

import json
import os
import runpy
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import HSOFTMAX, write_clip, write_model_folder

from wenet_hs.manifest.data_list import write_data_list

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_each_script_can_be_imported(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(BENCHMARKS / script), run_name="imported")


def quick_note(script: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The note that benchmarks/SCRIPT writes, as text and as facts."""
    line = [
        sys.executable,
        str(BENCHMARKS / script),
        "--quick",
        "--threads",
        "1",
        "--out",
        str(folder / "note"),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "note.md").read_text("utf-8"), json.loads(
        (folder / "note.json").read_text("utf-8")
    )


def test_recognize_writes_its_note(tmp_path: Path) -> None:
    note, facts = quick_note("recognize.py", tmp_path)
    assert "tiny layers, no figures" in note
    cases = {record["case"]: record for record in facts["wenet"]}
    limited, ending = cases["attention, to the limit"], cases["attention, ends at different times"]
    assert limited["units"] == [124, 124]  # as many as encoder frames
    assert max(ending["units"]) < 124 and len(ending["rows"]) < 124
    assert all(record["same_places"] > 0.9 and record["ratio"] > 0 for record in cases.values())
    assert [record["set"][:2] for record in facts["sets"][::2]] == [
        "tr",
        "pl",
        "ru",
        "20",
        "40",
        "80",
    ]
    assert [record["units"] for record in facts["vocabularies"][::2]] == [300, 500, 5_000, 10_000]


def test_training_speed_writes_its_note(tmp_path: Path) -> None:
    _, facts = quick_note("training_speed.py", tmp_path)
    assert [(record["size"], record["head"]) for record in facts["options"]] == [
        *(("paper", "softmax"), ("paper", "hsoftmax"), ("mini", "softmax"), ("mini", "hsoftmax"))
    ]
    assert all({"plain", "fp32"} <= set(record["ratio"]) for record in facts["options"])
    assert 0 < facts["padding"]["waste_of_plan"] < 0.2
    assert 0 < facts["padding"]["waste_planned"] < facts["padding"]["waste_arrival"]
    assert set(facts["loop"]) == {"paper", "mini"}
    assert all(0 < loop["outside"] < 1 for loop in facts["loop"].values())
    assert all(speed > 0 for speed in facts["data"].values())


def test_table6_has_a_row_per_language_and_mode(tmp_path: Path) -> None:
    models = [
        write_model_folder(tmp_path / "softmax"),
        write_model_folder(tmp_path / "hsoftmax", **HSOFTMAX),
    ]
    clips = [
        write_clip(tmp_path / f"{lang}{n}.wav", 1 + n / 2, lang=lang)
        for lang in ("tr", "pl")
        for n in range(2)
    ]
    write_data_list(tmp_path / "data.list", clips)
    line = [
        sys.executable,
        str(BENCHMARKS / "table6.py"),
        "--data_list",
        str(tmp_path / "data.list"),
        "--threads",
        "1",
    ]
    line += [f"--model_dir={model}" for model in models] + [
        "--rounds",
        "2",
        "--title",
        "noise",
        "--out",
        str(tmp_path / "n"),
    ]
    subprocess.run(line, capture_output=True, check=True, timeout=300)
    records = json.loads((tmp_path / "n.json").read_text("utf-8"))["records"]
    modes = ("attention", "joint", "attention_rescoring")
    assert [(record["mode"], record["lang"]) for record in records] == [
        *product(modes, ("pl", "tr"))
    ]
    assert all(record["tokens"] == 3 and record["faster"]["hsoftmax"] > 0 for record in records)


def test_release_measures_each_command_and_extrapolates(tmp_path: Path) -> None:
    line = [
        sys.executable,
        str(BENCHMARKS / "release.py"),
        "--rows",
        "300",
        "--clips",
        "20",
        "--millions",
        "0.003",
    ]
    subprocess.run(
        [*line, "--out", str(tmp_path / "n")], capture_output=True, check=True, timeout=300
    )
    records = json.loads((tmp_path / "n.json").read_text("utf-8"))["records"]
    assert len(records) == 8 and "extrapolated" in (tmp_path / "n.md").read_text("utf-8")
    assert all(of_rows["300"]["processor_s"] > 0 for of_rows in records.values())


def test_features_counts_audio_per_core_second(tmp_path: Path) -> None:
    line = [
        sys.executable,
        str(BENCHMARKS / "features.py"),
        "--threads",
        "1",
        "--clips",
        "4",
        "--rounds",
        "1",
    ]
    subprocess.run(
        [*line, "--out", str(tmp_path / "n")], capture_output=True, check=True, timeout=300
    )
    facts = json.loads((tmp_path / "n.json").read_text("utf-8"))
    assert {*facts["audio_seconds_per_second"]} == {"worker", "device"}
    assert facts["core_hours"]["worker"] == pytest.approx(
        45_000 / facts["audio_seconds_per_second"]["worker"]
    )


def test_gpu_runs_its_parts_on_a_cpu_and_goes_on_after_one_that_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *head_search.py*) echo broken; exit 3 ;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [str(BENCHMARKS / "gpu.sh"), *map(str, arguments)]
        environment = {key: value for key, value in os.environ.items() if key != "OUT"} | {
            "PYTHON": str(python)
        }
        return subprocess.run(
            line, env=environment, capture_output=True, text=True, check=False, timeout=500
        )

    done = run("--small", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    facts = json.loads((tmp_path / "out" / "gpu.json").read_text("utf-8"))
    checks = (
        "heads",
        "ctc",
        "search",
        "steps-fp32",
        "steps-bf16",
        "one-rank",
        "recognition",
        "language-models",
    )
    measured = ("head_training", "p_thsm_table2", "lm_step", "training_rate", "recognize")
    results = dict.fromkeys((*checks, "commands", *measured), "ok") | {"head_search": "failed"}
    shown = {
        name: f"not measured (small form on the CPU: {result})" for name, result in results.items()
    }
    assert {part["part"]: part["result"] for part in facts["parts"]} == shown
    assert [part["found"] for part in facts["parts"] if part["part"] == "head_search"] == ["broken"]
    assert tuple(facts["notes"]) == measured
    files = {name: tmp_path / "out" / name for name in ("parts", "notes")}
    assert {path.stem for path in files["parts"].iterdir()} == set(shown), (
        "each part has a file of its own"
    )
    assert {path.stem for path in files["notes"].glob("*.json")} == set(measured)
    heads = facts["notes"]["head_training"]["records"]
    assert [record["smoothing"] for record in heads] == ["none", "leaf"]
    assert all("softmax, bf16 fused" not in record["step"]["ratio"] for record in heads), (
        "it needs a GPU"
    )
    rates = facts["notes"]["training_rate"]
    assert {record["size"] for record in rates["steps"]} == {"paper_ucla", "paper_cv"}
    assert all(record["share_of_matrix_rate"] > 0 for record in rates["steps"])
    assert all(0 <= record["wait"] < 1 for record in rates["loops"])
    assert {record["dtype"] for record in facts["notes"]["recognize"]["sets"]} == {"fp32", "bf16"}
    note = (tmp_path / "out" / "gpu.md").read_text("utf-8")
    assert (
        "- command: benchmarks/gpu.sh --small\n" in note
        and "\n## Table 2 of the p-tHSM paper\n" in note
    )
    assert "| one-rank | not measured (small form on the CPU: ok) |" in done.stdout

    for arguments, message in (
        ((), "--out DIR is required (try --help)"),
        (("--outt", "x"), "unknown option '--outt' (try --help)"),
        (("--out", tmp_path), "PyTorch finds no GPU here; --small runs the small form on the CPU"),
    ):
        if message.startswith("PyTorch") and torch.cuda.is_available():
            continue
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (2, f"{BENCHMARKS / 'gpu.sh'}: {message}\n")
