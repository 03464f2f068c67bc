# SPDX-License-Identifier: Apache-2.0
"""A checkout whose `wenet-hs` only records its arguments, and runs of its recipes."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_program.py")
RECIPES = tuple(sorted(path.parts[-3] for path in ROOT.glob("examples/*/s0/run.sh")))
NOT_OF_A_STAGE = ("check-options", "heads-without-tree", "keep-options", "progress")
"""Commands about the options of a recipe, and the live line; the others are its stages."""


@dataclass(frozen=True)
class Command:
    """A call of a stub."""

    program: str
    arguments: tuple[str, ...]
    threads: str
    """OMP_NUM_THREADS."""

    def shown(self) -> str:
        """As a line of a shell, with the threads of a training."""
        words = list(self.arguments)
        if self.program != "wenet-hs":
            words.insert(0, self.program)
        line = shlex.join(words)
        return f"OMP_NUM_THREADS={self.threads} {line}" if self.is_training() else line

    def is_training(self) -> bool:
        return "--model_dir" in self.arguments and "train" in self.arguments

    def is_stage(self) -> bool:
        """Whether it does the work of a stage."""
        return self.arguments[0] not in NOT_OF_A_STAGE


@dataclass(frozen=True)
class RecipeRun:
    """A run of a recipe that has ended."""

    output: str
    error: str
    commands: tuple[Command, ...]

    def stage_commands(self) -> list[Command]:
        return [command for command in self.commands if command.is_stage()]


def make_checkout(folder: Path) -> Path:
    """A checkout in `folder`: the recipes, the configs and stubs of the programs that they call."""
    for recipe in RECIPES:
        script = f"examples/{recipe}/s0/run.sh"
        (folder / script).parent.mkdir(parents=True)
        shutil.copy(ROOT / script, folder / script)
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/recipe.sh", folder / "tools")
    (folder / "conf").symlink_to(ROOT / "conf")
    python = shlex.quote(sys.executable)
    stub = f"exec {python} -IS {shlex.quote(str(STUB))}"
    write_program(folder / "bin/wenet-hs", f'{stub} wenet-hs "$@"')
    # torchrun is called as `python -m torch.distributed.run`; other calls are of files.
    write_program(folder / "bin/python", f'[ "$1" = -m ] || exec {python} "$@"; {stub} python "$@"')
    return folder


def write_program(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)


def run_recipe(checkout: Path, recipe: str, *options: str, code: int = 0) -> RecipeRun:
    """Run a recipe in its folder. Raises AssertionError for another exit code than `code`.

    Paths in its commands are relative to the folder of the recipe; others begin with CHECKOUT.
    """
    folder = checkout / "examples" / recipe / "s0"
    record = checkout / "record.jsonl"
    record.write_text("")
    environment = {
        **os.environ,
        "PATH": f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "STUB_RECORD": str(record),
    }
    done = subprocess.run(
        ["./run.sh", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    lines = record.read_text("utf-8").splitlines()
    commands = [read_command(line, checkout, folder) for line in lines]
    return RecipeRun(done.stdout, done.stderr, tuple(commands))


def read_command(line: str, checkout: Path, folder: Path) -> Command:
    record = json.loads(line)
    arguments = []
    for argument in record["arguments"]:
        below_folder = argument.replace(f"{folder}/", "")
        arguments.append(below_folder.replace(str(checkout), "CHECKOUT"))
    return Command(record["program"], tuple(arguments), record["threads"])
