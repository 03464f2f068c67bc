# SPDX-License-Identifier: Apache-2.0
"""tools/recipe.sh with a `wenet-hs` that only records its arguments: stages, folders and settings of each run.sh."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from wenet_hs.config.heads import HEADS, TreeHeadConf
from wenet_hs.config.load import load_config
from wenet_hs.decode.modes import MODES
from wenet_hs.tree.build import KINDS

ROOT = Path(__file__).parents[2]
TABLES = ("wenet_hs/config/heads.py", "wenet_hs/tree/build.py", "wenet_hs/decode/modes.py")
COMMAND = """#!/usr/bin/env bash
echo "$(printf "%q " "$@")" >> {calls}
while [ $# -gt 0 ]; do
  case "$1" in
    --result_dir) folder=$2 ;;
    --modes) shift; for mode; do mkdir -p "$folder/$mode"; done ;;
  esac
  shift
done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the recipes and tools, and a bin/wenet-hs that appends its arguments to calls.txt."""
    (tmp_path / "conf").mkdir()
    recipes = (f"examples/{name}/s0/run.sh" for name in ("mini", "ucla", "commonvoice", "own"))
    for name in (
        *recipes,
        "tools/recipe.sh",
        "tools/parse_options.sh",
        "tools/own_settings.py",
        "tools/progress.py",
        *TABLES,
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = tmp_path / "bin" / "wenet-hs"
    command.parent.mkdir()
    command.write_text(COMMAND.format(calls=tmp_path / "calls.txt"))
    command.chmod(0o755)
    return tmp_path


def call(checkout: Path, recipe: str, *options: str, code: int = 0) -> tuple[str, list[list[str]]]:
    """Runs a recipe; returns its stderr and the arguments of each `wenet-hs` call."""
    (checkout / "calls.txt").write_text("")
    script = checkout / "examples" / recipe / "s0" / "run.sh"
    folders = (checkout / "bin", Path(sys.executable).parent, os.environ["PATH"])
    environment = os.environ | {"PATH": ":".join(map(str, folders))}
    done = subprocess.run([script, *options], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    lines = (checkout / "calls.txt").read_text("utf-8").replace(f"{script.parent}/", "").splitlines()
    return done.stderr, [shlex.split(line) for line in lines]


def flag(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def folders(calls: list[list[str]]) -> list[str]:
    return sorted(flag(arguments, "--model_dir") for arguments in calls if arguments[0] == "train")


def test_plain_case_uses_the_short_names_and_one_setting_differs_between_heads(checkout: Path) -> None:
    _, calls = call(checkout, "mini")
    assert [arguments[0] for arguments in calls[:4]] == ["prepare", "units", "tree", "cmvn"]
    assert folders(calls) == ["exp/hsoftmax", "exp/softmax"]
    settings = {
        flag(arguments, "--model_dir"): set(arguments[arguments.index("--override_config") + 1 :])
        for arguments in calls
        if arguments[0] == "train"
    }
    only = settings["exp/hsoftmax"] ^ settings["exp/softmax"]
    assert only == {"head=softmax", "head=hsoftmax", "head_conf.tree=data/tree-huffman.json"}
    assert {"tokenizer=char", "seed=777"} <= settings["exp/softmax"]
    report = "report --exp exp/softmax --exp exp/hsoftmax --stats data/stats.json --data_list data/test/data.list "
    report += "--test test --out exp/report.html"
    assert calls[-1] == report.split()


def own_data(checkout: Path, hours: float) -> list[str]:
    """Options of examples/own whose lists have these hours of training speech."""
    data = checkout / "examples/own/s0/data-fieldwork-mdw"
    data.mkdir(parents=True, exist_ok=True)
    (data / "stats.json").write_text(json.dumps({"total": {"hours": {"train": hours}}}))
    return [
        "--elan",
        "x/fieldwork",
        "--lang",
        "mdw",
        "--prepare",
        "--tier 'utt@*' --drop_overlaps",
        "--stop_stage",
        "4",
    ]


def test_the_size_of_an_own_model_follows_the_hours(checkout: Path) -> None:
    sizes = {0.2: (96, 3000), 1.0: (144, 6000), 19.0: (192, 12000), 30.0: (256, 20000)}
    for hours, (width, steps) in sizes.items():
        _, calls = call(checkout, "own", *own_data(checkout, hours), "--stage", "4")
        base, train = calls
        assert {f"encoder_conf.output_size={width}", f"scheduler_conf.total_steps={steps}"} <= set(base)
        assert flag(train, "--checkpoint") == flag(base, "--model_dir") == "exp-fieldwork-mdw/base"
    _, calls = call(checkout, "own", *own_data(checkout, 1.0), "--stage", "4", "--size", "tiny")
    assert "exp-fieldwork-mdw/softmax-tiny" in folders(calls)


def test_a_recipe_with_too_little_speech_stops_unless_it_is_accepted(checkout: Path) -> None:
    error, calls = call(checkout, "own", *own_data(checkout, 0.01), "--stage", "4", code=2)
    assert "stats.json: 0.6 minutes of training speech are less than --min_minutes 10 (" in error and not calls
    _, calls = call(checkout, "own", *own_data(checkout, 0.01), "--min_minutes", "0")
    assert flag(calls[1], "--min_minutes") == "0" and [one[0] for one in calls][-2:] == ["train", "train"]


def test_own_annotations_are_prepared_checked_and_trained_or_adapt_a_model(checkout: Path) -> None:
    options = own_data(checkout, 1.0)
    _, calls = call(checkout, "own", *options)
    prepare = "prepare elan --lang mdw --unit char --seed 0 --out data-fieldwork-mdw"
    assert calls[0] == [*prepare.split(), "--tier", "utt@*", "--drop_overlaps", "--corpus", "x/fieldwork"]
    assert (calls[1][0], flag(calls[1], "--html")) == ("check", "data-fieldwork-mdw/check.html")
    assert [one[0] for one in calls[2:]] == ["units", "tree", "cmvn", "train", "train"]
    (checkout / "given").mkdir()
    (checkout / "given/final.pt").touch()
    _, calls = call(checkout, "own", *options, "--stage", "4", "--base", f"{checkout}/given")
    [adapted] = calls
    assert flag(adapted, "--model_dir") == "exp-fieldwork-mdw/softmax-from_given"
    assert (flag(adapted, "--checkpoint"), flag(adapted, "--config")) == (
        f"{checkout}/given",
        f"{checkout}/given/train.yaml",
    )
    assert not [one for one in adapted if one.startswith("encoder_conf")], "the size of the given model stays"
    base = ROOT / "conf/paper_cv.yaml"  # of another schedule, with steps that are no settings of the new one
    overrides = adapted[adapted.index("--override_config") + 1 :]
    names = ("optim", "freeze", "sched", "max_", "save", "early", "model_conf")
    given = ["freeze=[encoder]", "max_minutes=5", "early_stopping={}", "model_conf.ctc_only_steps=6000"]
    config = load_config(base, [*given, *(one for one in overrides if one.startswith(names))])
    assert (config.max_minutes, config.early_stopping, config.model_conf.ctc_only_steps) == (None, None, 0)
    assert (config.scheduler, config.optim_conf.lr, config.freeze) == ("warmup_cosine", 1e-3, ())
    assert (config.scheduler_conf.total_steps, config.save_interval) == (4800, 400)
    _, calls = call(checkout, "own", "--folder", f"{checkout}/语料 é", "--stop_stage", "0")
    assert flag(calls[0], "--out") == "data-语料_é"
    for path in (f"{checkout}/given", os.path.relpath(checkout / "given")):  # one folder, two ways to name it
        call(checkout, "own", "--folder", path, "--stop_stage", "0", "--data", f"{checkout}/d")
    for code, expected in ((3, 0), (2, 2), (130, 130)):
        (checkout / "bin" / "wenet-hs").write_text(f'#!/bin/sh\n[ "$1" != check ] || exit {code}\n')
        call(checkout, "own", *options, "--stop_stage", "0", code=expected)
    for other in (("--prepare", "--tier words"), ("--unit", "phone")):
        error, _ = call(checkout, "own", *options, *other, code=2)
        assert "other options (--elan x/fieldwork" in error and f", not {' '.join(other)}; give another" in error
    error, _ = call(checkout, "own", "--elan", "elsewhere", "--stage", "4", code=2)
    assert error.endswith("data-elsewhere/stats.json; run stage 0 first\n")
    error, _ = call(checkout, "own", *options, "--kaldi", "y", code=2)
    assert "give one of --corpus TABLE, --elan, --praat, --kaldi, --folder" in error


def test_every_head_of_the_config_is_a_choice_and_gets_a_tree_if_it_is_built_from_one(checkout: Path) -> None:
    _, calls = call(checkout, "mini", "--head", " ".join(HEADS), "--stage", "4", "--stop_stage", "4")
    tree = "head_conf.tree=data/tree-huffman.json"
    found = {next(one for one in train if one.startswith("head="))[5:]: tree in train for train in calls}
    assert found == {name: issubclass(conf, TreeHeadConf) for name, conf in HEADS.items()}


@pytest.mark.parametrize(
    ("recipe", "options", "expected"),
    [
        ("mini", "--seeds '777 8'", "exp/hsoftmax exp/hsoftmax-seed8 exp/softmax exp/softmax-seed8"),
        ("mini", "--tree brown", "exp/hsoftmax-brown exp/softmax"),
        ("mini", "--weighting per_language", "exp/hsoftmax-per_language exp/softmax"),
        ("mini", "--unit bpe:60", "exp/hsoftmax-bpe_60 exp/softmax-bpe_60"),
        ("mini", "--langs 'es it'", "exp-es_it/hsoftmax exp-es_it/softmax"),
        ("mini", "--data_seed 4 --head softmax", "exp-4/softmax"),
        ("mini", "--config conf/large.yaml --head softmax", "exp/softmax-large"),
        (
            "mini",
            "--base_override max_epoch=2 --unit char --seeds '1 2' --head softmax",
            "exp/base-seed1 exp/base-seed2 exp/softmax-seed1 exp/softmax-seed2",
        ),
        ("commonvoice", "--corpus c --langs 'be cs'", "exp-be_cs/hsoftmax exp-be_cs/softmax"),
    ],
)
def test_each_difference_has_its_folder(checkout: Path, recipe: str, options: str, expected: str) -> None:
    _, calls = call(checkout, recipe, *shlex.split(options), "--stop_stage", "4")
    assert folders(calls) == expected.split()


def test_units_and_trees_of_other_units_do_not_replace_the_first_ones(checkout: Path) -> None:
    _, calls = call(checkout, "mini", "--unit", "bpe:60", "--weighting", "per_language", "--stop_stage", "4")
    units, tree = calls[1], calls[2]
    assert (flag(units, "--kind"), flag(units, "--vocab_size")) == ("bpe", "60")
    assert flag(units, "--out") == flag(tree, "--units") == "data/units-bpe_60.txt"
    assert (flag(tree, "--tokenizer"), flag(tree, "--weighting")) == ("bpe", "per_language")
    assert flag(tree, "--out") == "data/tree-huffman-per_language-bpe_60.json"
    train = next(arguments for arguments in calls if arguments[0] == "train")
    assert {"tokenizer=bpe", "tokenizer_conf.bpe_path=data/bpe-bpe_60.model"} <= set(train)


def test_trees_that_draw_random_numbers_have_one_tree_per_seed(checkout: Path) -> None:
    drawing = [kind for kind, entry in KINDS.items() if "seed" in entry.options]
    for kind in ("huffman", *drawing):
        _, calls = call(checkout, "mini", "--tree", kind, "--head", "hsoftmax", "--seeds", "777 2", "--stop_stage", "4")
        built = [(flag(c, "--out"), flag(c, "--seed") if "--seed" in c else "") for c in calls if c[0] == "tree"]
        own = [(f"data/tree-{kind}-seed2.json", "2")] if kind in drawing else []
        assert built == [(f"data/tree-{kind}.json", ""), *own]
        settings = {flag(c, "--model_dir")[-5:]: c for c in calls if c[0] == "train"}
        assert f"head_conf.tree={built[-1][0]}" in settings["seed2"]


def test_ctc_over_the_tree_and_results_files(checkout: Path) -> None:
    _, calls = call(
        checkout,
        "ucla",
        *["--corpus", "c", "--head", "softmax", "--ctc_head", "hsoftmax", "--tree", "brown", "--results", "R"],
    )
    assert folders(calls) == ["exp/base-brown-ctc_hsoftmax", "exp/softmax-brown-ctc_hsoftmax"]
    base, train = [c for c in calls if c[0] == "train"]
    of_ctc = {"ctc_conf.head=hsoftmax", "ctc_conf.head_conf.tree=data/tree-ctc-brown.json"}
    assert "--checkpoint" not in base and of_ctc <= {*base}, "CTC is trained over the tree from the first step"
    assert flag(train, "--checkpoint") == "exp/base-brown-ctc_hsoftmax" and of_ctc <= {*train}
    built = {flag(c, "--out"): "--blank_share" in c for c in calls if c[0] == "tree"}
    assert built == {"data/tree-brown.json": False, "data/tree-ctc-brown.json": True}
    assert flag(calls[-1], "--results") == "R"


@pytest.fixture
def grids(checkout: Path) -> Path:
    """The checkout with the grids and the settings of their tables, without results."""
    for path in ROOT.glob("examples/*/s0/results/*/table.yaml"):
        (checkout / path.relative_to(ROOT)).parent.mkdir(parents=True)
        shutil.copy(path, checkout / path.relative_to(ROOT))
    for name in (
        "examples/commonvoice/s0/grid.sh",
        "examples/ucla/s0/grid.sh",
        "examples/own/s0/grid.sh",
        "tools/grid.sh",
    ):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "calls.txt").touch()
    return checkout


def run_grid(checkout: Path, recipe: str, *options: str, code: int = 0) -> str:
    """Runs a grid; returns what it printed."""
    command = [checkout / "examples" / recipe / "s0" / "grid.sh", *options]
    environment = os.environ | {"PATH": f"{checkout}/bin:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def trained(checkout: Path) -> list[str]:
    """The folders of the trainings, in the order of the calls."""
    lines = map(shlex.split, (checkout / "calls.txt").read_text("utf-8").splitlines())
    return [flag(line, "--model_dir").partition("s0/")[2] for line in lines if line[0] == "train"]


def test_a_grid_trains_what_has_no_results_and_writes_the_tables(grids: Path) -> None:
    folder = grids / "examples/commonvoice/s0"
    for path in (folder / "simulated-9/stats.json", folder / "results/table5/softmax-mini-all-seed2.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "results/intro.md").touch()
    assert len(run_grid(grids, "commonvoice", "--tables", "table5", "--list", "true").splitlines()) == 2 * 3 - 1
    run_grid(grids, "commonvoice", "--tables", "table5", "--minutes", "0")
    assert not trained(grids), "no training starts after --minutes"
    report = ["report", "--tables", "results/table5", "--markdown", "RESULTS.md", "--intro", "results/intro.md"]
    assert (grids / "calls.txt").read_text("utf-8").splitlines()[-1].split() == report
    run_grid(grids, "commonvoice", "--tables", "table5", "--jobs", "3")
    names = [f"base-mini-seed{seed}" for seed in (1, 2, 3)] + [f"hsoftmax-mini-seed{seed}" for seed in (1, 2, 3)]
    assert {*trained(grids)} == {f"exp-all/{name}" for name in (*names, "softmax-mini-seed1", "softmax-mini-seed3")}
    for name in run_grid(grids, "commonvoice", "--tables", "table5", "--list", "true").split("\n"):
        if name:
            (folder / f"results/{name.split()[0]}.json").touch()
    (grids / "calls.txt").write_text("")
    run_grid(grids, "commonvoice", "--tables", "table5")
    calls = (grids / "calls.txt").read_text("utf-8").splitlines()
    assert [line.split()[0] for line in calls] == ["report"], "a finished table is only written"


def test_a_grid_trains_the_first_parts_of_the_seeds_of_its_table(grids: Path) -> None:
    options = ["--tables", "table3_curves", "--seeds", "3 4", "--systems", "articulatory"]
    run_grid(grids, "ucla", "--corpus", "c", *options)
    found = trained(grids)
    assert found[:2] == ["exp-0.25/base-seed3", "exp-0.5/base-seed3"]
    assert {*found[2:]} == {f"exp-{share}/hsoftmax-articulatory-seed3" for share in (0.25, 0.5)} | {*found[:2]}


def test_known_units_are_decoded_after_the_training(grids: Path) -> None:
    run_grid(grids, "ucla", "--corpus", "c", "--tables", "table3_inventory_placed", "--seeds", "1")
    lines = [shlex.split(line) for line in (grids / "calls.txt").read_text("utf-8").splitlines()]
    assert {line[0] for line in lines} == {"units", "recognize", "score", "report"}
    decoded = {flag(line, "--result_dir").partition("s0/exp/")[2] for line in lines if line[0] == "recognize"}
    assert "softmax-simulated-14-seed1/test-inventory-articulatory" in decoded and len(decoded) == 3 + 5


@pytest.mark.parametrize("recipe", ["ucla", "commonvoice", "own"])
def test_the_systems_of_a_grid_are_those_of_its_tables(grids: Path, recipe: str) -> None:
    cells = [line.split()[0] for line in run_grid(grids, recipe, "--list", "true").splitlines()]
    assert len({*cells}) == len(cells) > 20
    systems: dict[str, set[str]] = {}
    for cell in cells:
        table, _, name = cell.partition("/")
        systems.setdefault(table, set()).add(name.rpartition("-seed")[0])
    for table, names in systems.items():
        spec = yaml.safe_load((ROOT / f"examples/{recipe}/s0/results/{table}/table.yaml").read_text("utf-8"))
        assert names <= {*spec["systems"]}, table
        assert {*spec["systems"]} - names <= {"softmax", "hsoftmax", "hsoftmax-random", "hsoftmax-articulatory"}, table


def test_wrong_options_of_a_grid_are_refused(grids: Path) -> None:
    error = run_grid(grids, "ucla", "--tables", "table3 tabel4", code=2)
    assert "--tables tabel4: there is no " in error
    assert "--list yes: must be true or false" in run_grid(grids, "ucla", "--list", "yes", code=2)
    assert not trained(grids)


@pytest.mark.parametrize("by_name", [False, True, True], ids=["kill", "pkill", "pkill again"])
@pytest.mark.parametrize("part", ["base", "softmax"])
def test_no_training_outlives_a_grid(grids: Path, part: str, by_name: bool) -> None:
    (grids / "bin/wenet-hs").write_text(
        f'#!/bin/sh\ncase "$*" in train*s0/exp/{part}*) echo $$ > "$0.pid"; exec sleep 100;; esac\n'
    )
    script = grids / "examples/ucla/s0/grid.sh"
    command = ["timeout", "60", script, "--corpus", "c", "--tables", "table3", "--seeds", "1"]
    environment = os.environ | {"PATH": f"{grids}/bin:{os.environ['PATH']}"}
    begin, pid = time.monotonic(), grids / "bin/wenet-hs.pid"
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as grid:
        while not pid.exists() or not pid.read_text():
            assert time.monotonic() - begin < 30
            time.sleep(0.05)
        if by_name:  # all shells of the grid at once, and `timeout`, which passes its signal on
            subprocess.run(["pkill", "-f", str(script)], check=True)
        grid.terminate()
    begin = time.monotonic()
    process = Path(f"/proc/{pid.read_text().strip()}/stat")
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":  # or it is a zombie
        assert time.monotonic() - begin < 30
        time.sleep(0.05)


def test_phones_are_scored_by_per(checkout: Path) -> None:
    _, calls = call(checkout, "ucla", "--stage", "6", "--stop_stage", "7", "--head", "softmax", "--modes", "attention")
    assert flag(calls[1], "--metric") == "per"


def test_scores_without_clips_of_implausible_duration(checkout: Path) -> None:
    options = [
        "--data",
        f"{checkout}/d",
        "--stage",
        "7",
        "--stop_stage",
        "7",
        "--head",
        "softmax",
        "--modes",
        "attention",
    ]
    (checkout / "d").mkdir()
    (checkout / "examples/ucla/s0/exp/softmax/test/attention").mkdir(parents=True)
    for named, num_scores in (("", 1), ("abk-1\t6.45\n", 2)):
        (checkout / "d" / "implausible.tsv").write_text(f"key\tduration\n{named}")
        _, calls = call(checkout, "ucla", *options)
        assert ["--exclude" in one for one in calls] == [False, True][:num_scores]


def test_dev_languages_and_the_list_that_is_decoded(checkout: Path) -> None:
    options = [
        "--corpus",
        "c",
        "--dev_langs",
        "wuu cpn",
        "--eval_set",
        "dev",
        "--head",
        "softmax",
        "--modes",
        "attention",
    ]
    _, calls = call(checkout, "ucla", *options)
    prepare, recognize, score, report = calls[0], *calls[-3:]
    assert (flag(prepare, "--dev_langs"), flag(prepare, "--out")) == ("wuu cpn", "data-wuu_cpn")
    assert flag(recognize, "--test_data") == flag(score, "--data_list") == "data-wuu_cpn/dev/data.list"
    assert flag(recognize, "--result_dir") == "exp-wuu_cpn/softmax/dev"
    assert flag(score, "--json") == "exp-wuu_cpn/softmax/dev/attention/score.json"
    assert (flag(report, "--test"), flag(report, "--out")) == ("dev", "exp-wuu_cpn/report-dev.html")


def test_known_units_are_decoded_into_a_folder_of_their_own(checkout: Path) -> None:
    known = ["--inventory", "known.tsv", "--place_unseen", "articulatory"]
    _, calls = call(checkout, "ucla", "--stage", "6", "--head", "class", "--modes", "joint", *known)
    recognize, score, report = calls
    assert flag(recognize, "--inventory") == "known.tsv" and flag(recognize, "--place_unseen") == "articulatory"
    assert flag(recognize, "--result_dir") == "exp/class/test-inventory-articulatory"
    assert flag(score, "--json") == "exp/class/test-inventory-articulatory/joint/score.json"
    assert flag(report, "--test") == "test-inventory-articulatory"
    assert flag(report, "--out") == "exp/report-test-inventory-articulatory.html"


def test_pretraining_on_simulated_words(checkout: Path) -> None:
    """One base per seed, which all its heads start from; lists and statistics are those of the real speech."""
    options = [
        "--corpus",
        "c",
        "--seeds",
        "777 8",
        "--pretrain",
        "14",
        "--exclude_langs",
        "sem el",
        "--stop_stage",
        "8",
    ]
    _, calls = call(checkout, "ucla", *options)
    simulate, units, tree, cmvn = calls[1:5]
    assert simulate[:6] == ["prepare", "synthetic", "--unit", "phone", "--hours", "14"]
    assert (flag(simulate, "--match_list"), flag(simulate, "--exclude_langs")) == ("data/train/data.list", "sem el")
    assert flag(simulate, "--out") == "data/simulated-14-sem_el"
    lists = units[units.index("--data_list") + 1 : units.index("--kind")]
    assert lists == ["data/train/data.list", "data/simulated-14-sem_el/train/data.list"]
    assert flag(units, "--out") == flag(tree, "--units") == "data/units-simulated-14-sem_el.txt"
    assert flag(tree, "--data_list") == flag(cmvn, "--data_list") == "data/train/data.list"
    trainings = {flag(one, "--model_dir"): one for one in calls if one[0] == "train"}
    base, name = "exp/base-simulated-14-sem_el", "simulated-14-sem_el"
    assert sorted(trainings)[:2] == [base, f"{base}-seed8"]
    assert flag(trainings[f"{base}-seed8"], "--train_data") == "data/simulated-14-sem_el/train/data.list"
    settings = trainings[f"{base}-seed8"][trainings[f"{base}-seed8"].index("--override_config") + 1 :]
    assert {"head=softmax", "seed=8", "model_conf.ctc_only_steps=3000"} <= {*settings}
    assert "--checkpoint" not in settings
    for head in ("softmax", "hsoftmax"):
        for end in ("", "-seed8"):
            training = trainings[f"exp/{head}-{name}{end}"]
            assert flag(training, "--checkpoint") == f"{base}{end}"
            assert flag(training, "--train_data") == "data/train/data.list"
            assert f"tokenizer_conf.symbol_table_path=data/units-{name}.txt" in training
    assert f"head_conf.tree=data/tree-huffman-{name}.json" in trainings[f"exp/hsoftmax-{name}"]
    assert flag(calls[-1], "--out") == f"exp/report-{name}.html" and len(trainings) == 6
    error, _ = call(checkout, "ucla", "--pretrain", "2", "--unit", "char", code=2)
    assert "--pretrain 2: the simulated words have phones; use --unit phone" in error
    error, _ = call(checkout, "ucla", "--pretrain", "much", code=2)
    assert "--pretrain much: must be a number of hours" in error
    error, _ = call(checkout, "ucla", "--pretrain", "2", "--base_override", "", code=2)
    assert '--base_override "": --pretrain needs the first part of training' in error
    error, _ = call(checkout, "ucla", "--exclude_langs", "sem", code=2)
    assert "--exclude_langs: has no effect without --pretrain" in error
    assert "unknown option '--pretrain'" in call(checkout, "mini", "--pretrain", "2", code=2)[0]


def test_a_data_folder_of_other_options_is_refused(checkout: Path) -> None:
    options = ["--data", f"{checkout}/d", "--stop_stage", "0"]
    for _ in range(2):  # the same options may be given again
        call(checkout, "mini", *options)
    error, calls = call(checkout, "mini", *options, "--langs", "es it", code=2)
    assert (
        "was prepared with other options (--langs cs es it ky tr uk --hours 2.0 --data_seed 0 ), not --langs es it; "
        in error
    )
    assert calls == []
    assert call(checkout, "mini", "--data", f"{checkout}/d", "--stage", "2", "--hours", "1", code=2)[1] == []


def test_processes_share_the_batch_of_mini_and_heads_train_one_after_the_other(checkout: Path) -> None:
    (checkout / "bin" / "python").write_text('#!/bin/sh\nexec "$(dirname "$0")/wenet-hs" torchrun "$@"\n')
    (checkout / "bin" / "python").chmod(0o755)
    _, calls = call(checkout, "mini", "--nproc", "3", "--stage", "4", "--stop_stage", "4")
    calls = [arguments for arguments in calls if not arguments[1].endswith("progress.py")]
    assert [flag(arguments, "--nproc_per_node") for arguments in calls] == ["3", "3"]
    limit = load_config(ROOT / "conf" / "mini.yaml").dataset_conf.batch_conf.max_frames_in_batch
    assert limit == 1500
    assert all("dataset_conf.batch_conf.max_frames_in_batch=500" in arguments for arguments in calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--head 'softmax hsoftmx'", "--head hsoftmx: must be one of softmax, hsoftmax, class, adaptive"),
        ("--tree brwon", f"--tree brwon: must be one of {', '.join(KINDS)}"),
        ("--modes 'attention beam'", f"--modes beam: must be one of {', '.join(MODES)}"),
        ("--nproc 0", "--nproc 0: must be a whole number from 1 on"),
        ("--eval_set train", "--eval_set train: must be test or dev"),
        ("--jobs x", "--jobs x: must be a whole number from 1 on"),
        ("--seeds '1 b'", "--seeds: b is not a whole number"),
        ("--unit bpe", "--unit bpe: must be char, phone or bpe:N"),
        ("--weighting equal", "--weighting equal: must be pooled or per_language"),
        ("--heads softmax", "unknown option '--heads' (try --help)"),
    ],
)
def test_wrong_options_are_one_line(checkout: Path, options: str, message: str) -> None:
    for recipe in ("mini", "ucla", "commonvoice"):
        error, calls = call(checkout, recipe, *shlex.split(options), code=2)
        assert (calls, error.strip().partition(": ")[2]) == ([], message)


def test_stage_0_that_failed_can_be_repeated_with_other_options(checkout: Path) -> None:
    command = checkout / "bin" / "wenet-hs"
    data = ["--data", str(checkout / "D")]
    works = command.read_text("utf-8")
    command.write_text("#!/usr/bin/env bash\nexit 2\n", "utf-8")
    call(checkout, "mini", "--hours", "3", *data, "--stop_stage", "0", code=2)
    command.write_text(works, "utf-8")
    call(checkout, "mini", "--hours", "2", *data, "--stop_stage", "0")
    error, _ = call(checkout, "mini", "--hours", "3", *data, "--stage", "1", code=2)
    assert "/D was prepared with other options (--langs cs es it ky tr uk --hours 2 --data_seed 0 )" in error


def test_n_best_lists_of_several_seeds_are_combined_and_scored(checkout: Path) -> None:
    script = checkout / "examples/ucla/s0/combine.sh"
    shutil.copy(ROOT / "examples/ucla/s0/combine.sh", script)
    (script.parent / "results").mkdir()
    (checkout / "calls.txt").write_text("")
    environment = os.environ | {"PATH": f"{checkout}/bin:{os.environ['PATH']}"}
    subprocess.run([script, "--seeds", "1 2"], check=True, env=environment, timeout=60)
    calls = [shlex.split(line) for line in (checkout / "calls.txt").read_text("utf-8").splitlines()]
    combine, score = calls[4:6]
    lists = [f"exp/{head}-seed{seed}/test/joint" for head in ("softmax", "hsoftmax") for seed in (1, 2)]
    assert combine[: 2 + len(lists)] == ["combine", "--nbest", *lists] and flag(combine, "--by") == "expected_errors"
    assert flag(score, "--hyp") == flag(combine, "--out") + "/text"
    assert flag(score, "--name") == "softmax hsoftmax: 4 lists of seeds 1 2"
    assert (script.parent / "results/combined.md").read_text("utf-8").count("./combine.sh") == 1
    subprocess.run([script, "--seeds", "1", "--suffix", "-simulated-14"], check=True, env=environment, timeout=60)
    text = (script.parent / "results/combined-simulated-14.md").read_text("utf-8")
    assert text.startswith("# N-best lists of several trainings, combined (real + simulated)\n")
