# SPDX-License-Identifier: Apache-2.0
"""The Snakefiles of the recipes: their jobs are those of the published tables, and their rules call run.sh."""

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
    "own": ("sentences=s", "mboshi=m"),
    "wikitext": ("corpus=/c",),
}
REPEATED = {"softmax", "hsoftmax", "hsoftmax-random", "hsoftmax-articulatory"}
"""Systems of a table whose results are in another table."""


@pytest.mark.parametrize("recipe", SETTINGS)
def test_the_jobs_of_a_study_are_the_systems_of_its_tables(recipe: str, tmp_path: Path) -> None:
    folder = EXAMPLES / recipe / "s0"
    command = [sys.executable, "-m", "snakemake", "--profile", "../../profile", "--dry-run", "--nolock", "--config"]
    settings = (f"study={tmp_path}/s", *SETTINGS[recipe])
    done = subprocess.run([*command, *settings], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = set(re.findall(rf"output: {tmp_path}/s/(\w+)/(\S+)-seed\d\.json", done.stdout + done.stderr))
    assert jobs
    for table in {table for table, _ in jobs}:
        path = folder / ("lm_results" if recipe == "wikitext" else "results") / table / "table.yaml"
        named = yaml.safe_load(path.read_text("utf-8"))["systems"].keys()
        found = {system for of_table, system in jobs if of_table == table}
        assert found <= named and named - found <= REPEATED, table
