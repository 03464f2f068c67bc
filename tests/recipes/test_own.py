# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs own` calls the commands of examples/own/s0/run.sh, over combinations of their options."""

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sample_extension import importable, install_sample
from stub_commands import Command, RecipeRun, make_checkout, read_command, run_recipe

from wenet_hs.bin import check_options, keep_options
from wenet_hs.bin.keep_options import parse_values, select_values
from wenet_hs.bin.main import run_command
from wenet_hs.bin.own import translate_arguments
from wenet_hs.recipes.conf_files import OWN, conf_file
from wenet_hs.recipes.folder_options import portable_values, read_folder_options
from wenet_hs.recipes.own import check_command, experiment_folders, flag_arguments
from wenet_hs.recipes.own_options import OwnOptions, parse_own_options
from wenet_hs.recipes.prepare_words import split_words
from wenet_hs.recipes.run_stages import Programs, run_own

COMBINATIONS = (
    "--corpus my.tsv --lang mdw --prepare '--columns \"text=My Words\"' --min_minutes 3",
    "--elan my/elan --head 'softmax hsoftmax' --tree brown --seeds '777 8' --unit bpe:60"
    " --override 'log_interval=2 seed=3'",
    "--praat my/grids --encoder 'models/my whisper' --data_seed 4 --data D --exp E --stop_stage 5",
    "--kaldi my/kaldi --only_time yes --stage 3",
    "--folder my/clips --unit phone --base_steps 0 --head class --results R --threads 2",
    "--corpus my.tsv --base models/other --seeds '1 2' --tree my/tree-mine.json --head hsoftmax"
    " --stage 2 --modes 'ctc_greedy_search joint'",
    "--corpus my.tsv --nproc 2 --chunk '16 4' --eval_set dev --average_num 3 --base_steps 50"
    " --size tiny --config CHECKOUT/conf/mini.yaml",
    "--corpus my.tsv --head '' --seeds 8 --stage 4",
)


NUM_PLAIN = 1
"""Combinations in the plain test run, which has to be short; CI runs all."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


def read_options(line: str, checkout: Path) -> OwnOptions:
    """The options of a line of a shell."""
    words = shlex.split(line.replace("CHECKOUT", str(checkout)))
    assignments = [word.removeprefix("--").partition("=") for word in translate_arguments(words)]
    return parse_own_options({name: value for name, _, value in assignments})


def run_own_with_stubs(
    checkout: Path,
    options: OwnOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> RecipeRun:
    """Run the stages in the folder of the recipe, with the programs of the checkout."""
    folder = checkout / "examples/own/s0"
    record = checkout / "record of own.jsonl"
    record.write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STUB_RECORD", str(record))
    stub = Programs(wenet_hs=(f"{checkout}/bin/wenet-hs",), python=f"{checkout}/bin/python")
    lines = list[str]()
    run_own(options, stub, lines.append)
    text = record.read_text("utf-8").replace(str(conf_file(OWN)), f"{checkout}/conf/own.yaml")
    commands = [read_command(line, checkout, folder) for line in text.splitlines()]
    return RecipeRun("\n".join(lines), "", tuple(commands))


def titles(output: str, folder: Path) -> list[str]:
    """The titles of stages, without the time; folders are relative to that of the recipe."""
    lines = output.replace(f"{folder}/", "").splitlines()
    return [line.partition(" stage ")[2] for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        *COMBINATIONS[:NUM_PLAIN],
        *(pytest.param(line, marks=pytest.mark.slow) for line in COMBINATIONS[NUM_PLAIN:]),
    ],
)
def test_commands_of_both(line: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkout / "examples/own/s0"
    line += " --jobs 1"  # the order of the trainings is fixed
    words = shlex.split(line.replace("CHECKOUT", str(checkout)))
    script = run_recipe(checkout, "own", *words)
    for name in ("data", "exp", "D", "E"):
        made = folder / name
        if made.exists():
            made.rename(folder / f"{name} of run.sh")
    own = run_own_with_stubs(checkout, read_options(line, checkout), monkeypatch)
    assert own.stage_commands() == script.stage_commands()
    assert len(script.stage_commands()) >= 1
    assert titles(own.output, folder) == titles(script.output, folder)
    assert checked_options(own) == checked_options(script)
    check_kept_options(script, folder)


def checked_options(run: RecipeRun) -> dict[str, list[str]]:
    """The flags of the check before the first stage, and their values in any order."""
    [check] = [command for command in run.commands if command.arguments[0] == "check-options"]
    flags: dict[str, list[str]] = {}
    flag = ""
    for word in check.arguments[1:]:
        if word.startswith("--"):
            flag = word
            flags[flag] = []
        else:
            flags[flag].append(with_words_of_prepare(word))
    for name in ("--program", "--recipe_dir"):  # of the program that is called
        flags.pop(name, None)
    return {name: sorted(values) for name, values in flags.items()}


def with_words_of_prepare(value: str) -> str:
    """NAME=VALUE of an option; that of --prepare as its words, which may be quoted differently."""
    name, _, text = value.partition("=")
    return f"{name}={split_words(text)}" if name == "prepare" else value


def check_kept_options(script: RecipeRun, folder: Path) -> None:
    """Raise AssertionError unless own has written the options that run.sh keeps, into each folder."""
    for command in script.commands:
        if command.arguments[0] == "keep-options":
            check_kept_by(command, folder)


def check_kept_by(command: Command, folder: Path) -> None:
    arguments = list(command.arguments)
    values_at = arguments.index("--values")
    names = arguments[arguments.index("--options") + 1 : values_at]
    values = select_values(parse_values(arguments[values_at + 1 :]), names)
    if "config" in values:
        values["config"] = values["config"].replace("CHECKOUT", str(folder.parents[2]))
    if "prepare" in values:
        values["prepare"] = shlex.join(split_words(values["prepare"]))
    kept_in = folder / arguments[arguments.index("--folder") + 1]
    kept = read_folder_options(kept_in)
    assert kept is not None and kept.recipe == "own"
    expected = portable_values(values, kept_in)
    assert shipped_configs(kept.values) == shipped_configs(expected)


def shipped_configs(values: Mapping[str, str]) -> dict[str, str]:
    """The values, with the name only of a config of wenet_hs: the checkout of the test has a link."""
    config = Path(values.get("config", ""))
    return {**values, "config": config.name}


# ---- folders that the other program made


def run_option_commands(checkout: Path, name: str) -> list[int]:
    """Run the commands of this name that the last run.sh called, really. Returns their codes."""
    codes = []
    for line in (checkout / "record.jsonl").read_text("utf-8").splitlines():
        arguments = json.loads(line)["arguments"]
        if arguments[0] == name:
            module = {"keep-options": keep_options, "check-options": check_options}[name]
            codes.append(run_command(module, arguments[1:]))
    return codes


@pytest.mark.parametrize(
    "others",
    [
        "--base exp/other --exp exp-2",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("--config conf.yaml", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_own_and_run_sh_accept_folders_of_each_other(
    others: str,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = checkout / "examples/own/s0"
    (folder / "exp/other").mkdir(parents=True)
    (folder / "exp/other/final.pt").touch()
    shutil.copy(conf_file("mini.yaml"), folder / "exp/other/train.yaml")
    shutil.copy(conf_file("mini.yaml"), folder / "conf.yaml")
    line = f"--elan my/elan --prepare '--tier \"a b\"' --stop_stage 4 --jobs 1 {others}"
    run_recipe(checkout, "own", *shlex.split(line))
    monkeypatch.chdir(folder)
    options = read_options(line, checkout)
    check = check_command(options).arguments[1:]
    assert run_option_commands(checkout, "keep-options") == [0, 0]
    assert run_command(check_options, check) == 0, "own after run.sh"
    for kept in (options.data, options.exp):
        (kept / "options.json").unlink()
    script_record = (checkout / "record.jsonl").read_bytes()
    run_own_with_stubs(checkout, options, monkeypatch)
    (checkout / "record.jsonl").write_bytes(script_record)
    assert run_option_commands(checkout, "check-options") == [0], "run.sh after own"
    other = check_command(replace(options, data=Path("D"), lang="es"))
    assert run_command(check_options, other.arguments[1:]) == 2
    line = f"wenet-hs own: --data D: {options.exp} was made with --data data; "
    assert capsys.readouterr().err.startswith(line)
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    monkeypatch.chdir(moved / "examples/own/s0")
    elan = folder / "my/elan"  # recordings stay where they are
    check = check_command(replace(options, elan=elan)).arguments[1:]
    assert run_command(check_options, check) == 0, "after a move"


# ---- heads without a tree


def test_experiments_of_heads_without_a_tree_are_not_named_after_one(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`cosine` is a head of another package, for which the stub of run.sh answers."""
    line = "--corpus my.tsv --head 'cosine softmax class' --tree brown --stage 5 --stop_stage 5"
    folders = ["exp/cosine", "exp/softmax", "exp/class-brown"]
    script = run_recipe(checkout, "own", *shlex.split(line))
    with importable(install_sample(tmp_path / "site")):
        own = run_own_with_stubs(checkout, read_options(line, checkout), monkeypatch)
    for run in (script, own):
        averaged = [command.arguments for command in run.stage_commands()]
        assert averaged == [("average", "--model_dir", folder, "--num", "5") for folder in folders]


def test_a_wrong_head_is_refused_by_the_check_and_not_by_its_name(checkout: Path) -> None:
    options = read_options("--corpus my.tsv --head sofmax --tree brown", checkout)
    assert experiment_folders(options) == [Path("exp/sofmax-brown")]


def test_flags_are_followed_by_their_values() -> None:
    flags = {"--out": Path("a b"), "--seeds": (7, 8), "--modes": (), "--base": None, "--num": 5}
    words = ("--out", "a b", "--seeds", "7", "8", "--modes", "--base", "", "--num", "5")
    assert flag_arguments(flags) == words
