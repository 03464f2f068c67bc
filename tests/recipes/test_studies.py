# SPDX-License-Identifier: Apache-2.0
"""The Snakefiles of the recipes: their jobs are those of the published tables, and their rules call
run.sh.

Settings may have spaces and apostrophes: the commands of all rules are run with programs that
record their arguments.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {
    "mini": (),
    "ucla": ("corpus=/c",),
    "commonvoice": ("sentences=s", "statistics=j"),
    "own": (
        "sentences=s",
        "mboshi=m",
        "encoder=e",
        "tables=mboshi field adaptation mboshi_encoder mboshi_encoder_whole",
    ),
    "wikitext": ("corpus=/c",),
}
REPEATED = {"softmax", "hsoftmax", "hsoftmax-random", "hsoftmax-articulatory"}
"""Systems of a table whose results are in another table."""


DRY_RUNS = """
import json, os, sys
from snakemake.cli import main
for folder, arguments in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.chdir(folder)
        main(arguments)
    assert os.wait()[1] == 0
"""
"""A process that imports Snakemake once, and a fork of it for each study."""


def dry_runs(runs: list[tuple[str, list[str]]]) -> str:
    """What Snakemake prints for dry runs, each of a folder and its arguments."""
    command = [sys.executable, "-c", DRY_RUNS, json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_jobs_of_a_study_are_the_systems_of_its_tables(tmp_path: Path) -> None:
    flags = ["--profile", "../../profile", "--dry-run", "--nolock", "--config"]
    runs = [
        (str(EXAMPLES / recipe / "s0"), [*flags, f"study={tmp_path}/{recipe}", *settings])
        for recipe, settings in SETTINGS.items()
    ]
    jobs = re.findall(rf"output: {tmp_path}/(\w+)/(\w+)/(\S+)-seed\d\.json", dry_runs(runs))
    for recipe in SETTINGS:
        systems = {(table, system) for of_recipe, table, system in jobs if of_recipe == recipe}
        assert systems, recipe
        for table in {table for table, _ in systems}:
            results = "lm_results" if recipe == "wikitext" else "results"
            path = EXAMPLES / recipe / "s0" / results / table / "table.yaml"
            named = yaml.safe_load(path.read_text("utf-8"))["systems"].keys()
            found = {system for of_table, system in systems if of_table == table}
            assert found <= named and named - found <= REPEATED, path


# ---- settings with spaces and apostrophes


def hostile(name: str) -> str:
    """A value with a space and an apostrophe, whose first and last words are in no other value."""
    return f"{name}-begin it's {name}-end"


HOSTILE: dict[str, tuple[list[str], list[str]]] = {
    "mini": (["table", "streaming", "fusion"], ["heads", "seeds"]),
    "wikitext": ([], ["corpus", "systems", "seeds", "table"]),
    "commonvoice": ([], ["sentences", "statistics", "seeds", "hours"]),
    "ucla": (["report", "combined"], ["corpus", "encoder"]),
    "own": ([], ["sentences", "mboshi", "encoder", "seeds"]),
}
"""Recipe → targets, and its settings that may be any text; the others are names of tables and seeds
of the study.
"""
RECORDER = """#!/bin/sh
printf '%s\\037' "${0##*/}" "$@" >> "$RECORD"
echo >> "$RECORD"
"""
"""A program that appends its name and arguments to a file, a line per call, each with a separator
after it.
"""


def shell_commands(printed: str) -> Iterator[str]:
    """The commands in what Snakemake prints with -p: each is followed by the next job or a summary."""
    for part in printed.split("Shell command: ")[1:]:
        yield re.split(r"\n\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]\n|\nJob stats:\n", part)[0]


def write_recorders(folder: Path) -> None:
    """Programs that record their arguments, and the files that commands read."""
    for name in ("run.sh", "bin/wenet-hs", "bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    for part in ("train", "dev"):
        (folder / "data" / part).mkdir(parents=True)
        (folder / "data" / part / "text").write_text("a b\n")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", HOSTILE)
def test_settings_with_spaces_and_apostrophes(recipe: str, tmp_path: Path) -> None:
    targets, names = HOSTILE[recipe]
    study = tmp_path / hostile("study")
    settings = [f"{name}={hostile(name)}" for name in names]
    if recipe == "mini":
        settings.append(
            f'options=--exp "{hostile("options")}" '
        )  # without the space Snakemake removes the quote
    if recipe == "ucla":  # numbers, which the folders of its trees have in their names
        settings.append("seeds=1 2 3")
        tables = sorted(
            path.parent.name for path in (EXAMPLES / "ucla/s0/results").glob("*/table.yaml")
        )
        settings.append(f"tables={' '.join(tables)}")
    settings += [setting for setting in SETTINGS[recipe] if setting.startswith("tables=")]
    flags = ["--profile", "../../profile", "--dry-run", "--nolock", "-p", *targets]
    run = (str(EXAMPLES / recipe / "s0"), [*flags, "--config", f"study={study}", *settings])
    commands = {*shell_commands(dry_runs([run]))}
    assert len(commands) >= 4

    folder, record = tmp_path / "recipe", tmp_path / "record.txt"
    write_recorders(folder)
    for log in {
        found for command in commands for found in re.findall(r"> (\S.*?\.log\S*) 2>&1", command)
    }:
        subprocess.run(
            ["bash", "-c", f"mkdir -p {log} && rmdir {log}"], check=True
        )  # as Snakemake does
    study.mkdir(exist_ok=True)
    before = {*folder.iterdir()}
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "RECORD": str(record),
    }
    for command in sorted(commands):
        line = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, command + done.stderr
    assert {*folder.iterdir()} == before, (
        "a file that a redirection to the first word of a path made"
    )

    arguments = [
        argument
        for call in record.read_text("utf-8").splitlines()
        for argument in call.split("\037")[1:-1]
    ]
    expected = {*names, "study", *(["options"] if recipe == "mini" else [])}
    for name in expected:
        with_name = [
            argument
            for argument in arguments
            if f"{name}-begin" in argument or f"{name}-end" in argument
        ]
        is_list = name in (
            "heads",
            "seeds",
            "systems",
        )  # of words: they reach the commands as words, or all together
        assert with_name, f"{name} reaches no command"
        assert is_list or all(hostile(name) in argument for argument in with_name), with_name


@pytest.mark.slow
def test_options_of_a_study_with_a_quote_that_has_no_end() -> None:
    """Snakemake removes a quote that is the last character of a setting; the line says so, and its
    remedy works.
    """
    flags = ["--profile", "../../profile", "--dry-run", "--nolock", "-p", "--config"]
    lines = []
    for end in ("", " "):
        command = [sys.executable, "-m", "snakemake", *flags, f"options=--langs 'es it'{end}"]
        folder = EXAMPLES / "mini/s0"
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
        )
        lines.append(done.stdout + done.stderr)
    assert (
        "options: No closing quotation; if the last character is a quote, write a space after it"
        in lines[0]
    )
    assert "./run.sh --langs 'es it' --stop_stage 3" in lines[1]


@pytest.mark.slow
def test_a_study_in_a_folder_with_spaces_and_an_apostrophe(tmp_path: Path) -> None:
    """All rules of mini's table are run; the study, the lists and the experiments are in such
    folders.
    """
    root = tmp_path / "my work's copy"
    for name in ("conf", "tools", "examples/profile", "examples/mini/s0"):
        ignored = shutil.ignore_patterns(
            "data*", "exp*", "study*", ".snakemake", "corpus", "simulated*"
        )
        shutil.copytree(EXAMPLES.parent / name, root / name, ignore=ignored)
    steps = "scheduler_conf.total_steps=20 scheduler_conf.warmup_steps=5 save_interval=10 model_conf.ctc_only_steps=5"
    options = (
        f"--langs es --hours 0.05 --override '{steps}' --modes ctc_greedy_search --average_num 1 "
        '--data "it\'s data" --exp "it\'s exp" '
    )
    flags = [
        "--profile",
        "../../profile",
        "--cores",
        "1",
        "--config",
        "study=my study's",
        "seeds=1",
        "heads=softmax",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *flags, f"options={options}"],
        cwd=root / "examples/mini/s0",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log = root / "examples/mini/s0/my study's/mini/softmax-seed1.log"
    assert done.returncode == 0, (
        done.stdout + done.stderr + (log.read_text("utf-8") if log.is_file() else "")
    )
    assert log.stat().st_size > 0
    names = {path.name for path in (root / "examples/mini/s0").iterdir()}
    assert {"my study's", "it's data", "it's exp"} <= names and "my" not in names
    assert (root / "examples/mini/s0/my study's/RESULTS.md").is_file()
