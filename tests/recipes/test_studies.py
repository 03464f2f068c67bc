# SPDX-License-Identifier: Apache-2.0
"""The Snakefiles of the recipes: their jobs are those of the published tables, and their rules call run.sh."""

import json
import re
import subprocess
import sys
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


@pytest.mark.slow
def test_the_jobs_of_a_study_are_the_systems_of_its_tables(tmp_path: Path) -> None:
    flags = ["--profile", "../../profile", "--dry-run", "--nolock", "--config"]
    runs = [
        (str(EXAMPLES / recipe / "s0"), [*flags, f"study={tmp_path}/{recipe}", *settings])
        for recipe, settings in SETTINGS.items()
    ]
    command = [sys.executable, "-c", DRY_RUNS, json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = re.findall(rf"output: {tmp_path}/(\w+)/(\w+)/(\S+)-seed\d\.json", done.stdout + done.stderr)
    for recipe in SETTINGS:
        systems = {(table, system) for of_recipe, table, system in jobs if of_recipe == recipe}
        assert systems, recipe
        for table in {table for table, _ in systems}:
            results = "lm_results" if recipe == "wikitext" else "results"
            path = EXAMPLES / recipe / "s0" / results / table / "table.yaml"
            named = yaml.safe_load(path.read_text("utf-8"))["systems"].keys()
            found = {system for of_table, system in systems if of_table == table}
            assert found <= named and named - found <= REPEATED, path
