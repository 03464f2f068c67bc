# SPDX-License-Identifier: Apache-2.0
"""Each run.sh with a `wenet-hs` that only records its arguments: stages, names of folders, options
that are refused.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_commands import forked_commands
from stub_commands import RECIPES

from wenet_hs.bin import check_options
from wenet_hs.bin.main import run_command
from wenet_hs.config.heads import HEADS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the recipes, and a bin/wenet-hs that appends its arguments to calls.txt."""
    for name in (*(f"examples/{name}/s0/run.sh" for name in RECIPES), "tools/recipe.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    # One write per call: trainings run side by side.
    answer = 'case $1 in heads-without-tree) [[ " $* " != *" softmax "* ]] || echo softmax ;; esac'
    set_command(
        tmp_path, f'line=$(printf "%q " "$@"); echo "$line" >> {tmp_path}/calls.txt\n{answer}'
    )
    return tmp_path


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `wenet-hs` that starts fast."""
    with forked_commands(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.fixture
def checked(checkout: Path, forked: Path) -> Path:
    """The same checkout; its `wenet-hs` checks and keeps options, and records other commands."""
    set_checked_command(
        checkout, forked, f'line=$(printf "%q " "$@"); echo "$line" >> {checkout}/calls.txt'
    )
    return checkout


def set_checked_command(checkout: Path, forked: Path, script: str) -> None:
    """A `wenet-hs` whose commands about options are the real ones; the others run `script`."""
    names = "check-options | heads-without-tree | keep-options"
    set_command(checkout, f'case $1 in {names}) exec {forked}/wenet-hs "$@" ;; esac\n{script}')


def set_command(checkout: Path, script: str) -> None:
    command = checkout / "bin" / "wenet-hs"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/usr/bin/env bash\n{script}\n", "utf-8")
    command.chmod(0o755)


def call(checkout: Path, recipe: str, *options: str, code: int = 0) -> tuple[str, list[list[str]]]:
    """Runs a recipe; returns its stderr and the arguments of each `wenet-hs` call of a stage."""
    (checkout / "calls.txt").write_text("")
    script = checkout / "examples" / recipe / "s0" / "run.sh"
    folders = (checkout / "bin", Path(sys.executable).parent, os.environ["PATH"])
    environment = os.environ | {"PATH": ":".join(map(str, folders))}
    done = subprocess.run(
        [script, *options], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    lines = (
        (checkout / "calls.txt").read_text("utf-8").replace(f"{script.parent}/", "").splitlines()
    )
    not_of_a_stage = ("check-options", "heads-without-tree", "keep-options", "progress")
    return done.stderr, [
        words for words in map(shlex.split, lines) if words[0] not in not_of_a_stage
    ]


def flag(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def folders(calls: list[list[str]]) -> list[str]:
    return sorted(flag(arguments, "--model_dir") for arguments in calls if arguments[0] == "train")


def test_stages_of_mini_in_order_and_heads_that_differ_in_one_option(checkout: Path) -> None:
    _, calls = call(checkout, "mini", "--results", "R")
    names = [
        "prepare",
        "units",
        "tree",
        "cmvn",
        "train",
        "train",
        *2 * ["average", "recognize", "score"],
        "report",
    ]
    assert [arguments[0] for arguments in calls] == names
    trained = {
        flag(arguments, "--model_dir"): arguments for arguments in calls if arguments[0] == "train"
    }
    assert {*trained["exp/hsoftmax"]} ^ {*trained["exp/softmax"]} == {
        "softmax",
        "hsoftmax",
        "exp/softmax",
        "exp/hsoftmax",
    }
    words = "--train_data data/train/data.list --cv_data data/dev/data.list --cmvn data/global_cmvn --seed 777"
    words += " --tree data/tree-huffman.json --units data/units.txt --tokenizer char"
    assert {*words.split()} <= {*trained["exp/softmax"]}
    report = "report --exp=exp/softmax --exp=exp/hsoftmax --stats data/stats.json --data_list data/test/data.list"
    assert calls[-1] == f"{report} --test test --out exp/report.html --results R".split()


@pytest.mark.parametrize(
    ("recipe", "options", "expected"),
    [
        (
            "mini",
            "--seeds '777 8'",
            "exp/hsoftmax exp/hsoftmax-seed8 exp/softmax exp/softmax-seed8",
        ),
        ("mini", "--tree brown", "exp/hsoftmax-brown exp/softmax"),
        ("mini", "--tree x/tree-mine.json --seeds 8", "exp/hsoftmax-mine-seed8 exp/softmax-seed8"),
        ("mini", "--tree mine/trees/mine.json --head class", "exp/class-mine"),
        ("mini", "--head '' --exp E", ""),
        (
            "ucla",
            "--corpus c --seeds '1 2' --head class",
            "exp/base-seed1 exp/base-seed2 exp/class-seed1 exp/class-seed2",
        ),
        ("ucla", "--corpus c --base_steps 0 --head class", "exp/class"),
        ("commonvoice", "--corpus c", "exp/hsoftmax exp/softmax"),
        ("commonvoice", "--corpus c --base_steps 9 --head '' --seeds 3", "exp/base-seed3"),
    ],
)
def test_names_of_experiments(checkout: Path, recipe: str, options: str, expected: str) -> None:
    _, calls = call(checkout, recipe, *shlex.split(options), "--stop_stage", "4")
    assert folders(calls) == expected.split()
    shutil.rmtree("E", ignore_errors=True)


def test_options_are_set_at_the_top_of_the_file_and_never_by_the_environment(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("unit", "phone")
    script = checkout / "examples/mini/s0/run.sh"
    lines = script.read_text("utf-8").replace(
        "\nread_options", '\ntree=brown seeds="1 2" nproc=1\nread_options'
    )
    script.write_text(lines, "utf-8")
    _, calls = call(checkout, "mini", "--stop_stage", "4", "--head", "class")
    assert folders(calls) == ["exp/class-brown-seed1", "exp/class-brown-seed2"]
    assert flag(calls[1], "--kind") == "char"


@pytest.mark.parametrize("recipe", RECIPES)
def test_help_lists_each_option_with_its_meaning(checkout: Path, recipe: str) -> None:
    script = checkout / "examples" / recipe / "s0" / "run.sh"
    listed = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    options = [line for line in listed.splitlines() if line.startswith("  --")]
    names = [line.split()[0] for line in options]
    assert {"--stage", "--seeds", "--config", "--data", "--exp"} <= {*names} and len(names) == len(
        {*names}
    )
    for line in script.read_text("utf-8").partition("read_options")[0].splitlines():
        if line.startswith("option "):
            assert f"--{line.split()[1]}" in names


def test_a_new_log_keeps_the_one_before(checkout: Path) -> None:
    for text in ("first", "second"):
        set_command(checkout, f"[ $1 != train ] || echo {text}")
        call(checkout, "mini", "--stop_stage", "4", "--head", "class")
    exp = checkout / "examples/mini/s0/exp"
    assert [(exp / name).read_text() for name in ("class.log.old", "class.log")] == [
        "first\n",
        "second\n",
    ]


def test_a_tree_of_each_seed_is_built_and_a_file_is_used_as_it_is(checkout: Path) -> None:
    _, calls = call(
        checkout,
        "mini",
        "--tree",
        "random",
        "--head",
        "hsoftmax",
        "--seeds",
        "777 2",
        "--stop_stage",
        "4",
    )
    built = {flag(one, "--seed"): flag(one, "--out") for one in calls if one[0] == "tree"}
    assert built == {"777": "data/tree-random.json", "2": "data/tree-random-seed2.json"}
    assert {flag(one, "--seed"): flag(one, "--tree") for one in calls if one[0] == "train"} == built
    mine = checkout / "tree-mine #1: [é].json"
    mine.touch()
    _, calls = call(
        checkout,
        "mini",
        "--tree",
        str(mine),
        "--stage",
        "2",
        "--stop_stage",
        "4",
        "--head",
        "class",
    )
    assert [one[0] for one in calls] == ["cmvn", "train"] and flag(calls[1], "--tree") == str(mine)


def test_word_pieces_have_a_model_in_every_command(checkout: Path) -> None:
    _, calls = call(checkout, "mini", "--unit", "bpe:60", "--head", "hsoftmax", "--stop_stage", "4")
    _, units, tree, _, train = calls
    assert (flag(units, "--kind"), flag(units, "--vocab_size")) == ("bpe", "60")
    assert flag(tree, "--tokenizer") == flag(train, "--tokenizer") == "bpe"
    assert {flag(one, "--bpe_model") for one in (units, tree, train)} == {"data/bpe.model"}


def test_folders_made_with_other_options_are_refused_by_the_flag(
    checked: Path,
    forked: Path,
) -> None:
    for _ in range(2):  # the same options may be given again
        call(checked, "mini", "--stop_stage", "4")
    folder = checked / "examples/mini/s0"
    error, calls = call(checked, "mini", "--langs", "es it", code=2)
    made = f"{folder}/data was made with --langs cs es it ky tr uk"
    remedy = "repeat this, give another --data, or remove the folder\n"
    assert error == f"{folder}/run.sh: --langs es it: {made}; {remedy}" and not calls
    for option, other in (
        ("--unit", "phone"),
        ("--config", "conf/ucla.yaml"),
        ("--hours", "1"),
        ("--data", "d"),
    ):
        error, calls = call(checked, "mini", option, other, "--stage", "4", code=2)
        assert f"{option} " in error and "was made with" in error and not calls
    shutil.rmtree(folder / "data")  # to prepare it again
    call(checked, "mini", "--stop_stage", "4")


def test_a_folder_has_no_options_before_its_stage_is_done(checked: Path, forked: Path) -> None:
    data = ["--data", str(checked / "D"), "--exp", str(checked / "E")]
    set_checked_command(checked, forked, "exit 2")
    call(checked, "mini", "--hours", "3", *data, code=2)
    set_checked_command(checked, forked, "exit 0")
    call(checked, "mini", "--hours", "2", *data, "--stop_stage", "0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nproc 0", "--nproc 0: must be a whole number from 1 on"),
        ("--eval_set train", "--eval_set train: must be test or dev"),
        ("--seeds ''", "--seeds: give at least one seed"),
        ("--jobs x", "--jobs x: must be a whole number from 1 on"),
        ("--average_num x", "--average_num x: must be a whole number from 1 on"),
        ("--stage 9", "--stage 9: must be from 0 to 8"),
        ("--stage 4 --stop_stage 3", "--stop_stage 3: must be a stage from 4 on"),
        ("--heads softmax", "unknown option '--heads' (try --help)"),
        ("--unit=phone", "write '--unit phone' instead of '--unit=phone'"),
        ("phone", "expected --name value, got 'phone' (try --help)"),
        ("--data.seed 1", "expected --name value, got '--data.seed' (try --help)"),
        ("--unit", "option '--unit' needs a value"),
    ],
)
def test_wrong_options_are_one_line(checked: Path, options: str, message: str) -> None:
    for recipe in ("mini", "own"):
        error, calls = call(checked, recipe, *shlex.split(options), code=2)
        assert (calls, error.strip().partition(": ")[2]) == ([], message)


def test_a_number_of_steps_is_not_evaluated(checked: Path) -> None:
    evil = f"experiments[$(touch {checked}/evil; echo 0)]"
    error, calls = call(checked, "own", "--corpus", "c", "--base_steps", evil, code=2)
    assert calls == [] and error.strip().endswith(f"--base_steps {evil}: must be a whole number")
    assert not (checked / "evil").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--head softmax hsoftmx", f"--head hsoftmx: must be one of {', '.join(HEADS)}"),
        ("--tree brwon", "--tree brwon: must be the path of a tree.json, or one of huffman, "),
        ("--tree none.json", "none.json: cannot be read"),
        ("--modes attention beam", "--modes beam: must be one of ctc_greedy_search, "),
        ("--seeds 1 b", "--seeds b: must be a whole number from 0 on"),
        ("--unit bpe", "--unit bpe: must be char, phone or bpe:N"),
        ("--checkpoint none", "none: contains no final.pt; "),
        ("--ctc_head hsoftmax --ctc_tree huffman", "huffman: cannot be read"),
        ("--inventory none.tsv", "none.tsv: "),
        ("--place_unseen near", "--place_unseen near: must be one of articulatory"),
        ("--place_unseen articulatory", "--place_unseen: has no effect without --inventory; "),
        (
            "--head hsoftmax --override_config head_conf.bais=true",
            "head_conf.bais: unknown key; did you mean `bias`?",
        ),
        (
            "--override_config model_conf.ctc_only_steps=many",
            "model_conf.ctc_only_steps: must be a whole number",
        ),
    ],
)
def test_names_and_settings_are_checked_before_the_first_stage(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--config", str(ROOT / "conf/mini.yaml"), *options.split()]
    assert run_command(check_options, line) == 2
    assert message in capsys.readouterr().err
    good = "--head softmax class --tree brown --modes joint --seeds 1 2 --unit bpe:60 --override_config seed=3"
    assert run_command(check_options, [*line[:2], *good.split()]) == 0
    assert (
        run_command(
            check_options, ["--config", str(ROOT / "conf/wikitext.yaml"), "--head", "hsoftmax"]
        )
        == 0
    )


def test_an_older_bash_is_refused(checkout: Path) -> None:
    script = checkout / "tools/recipe.sh"
    text = script.read_text("utf-8")
    assert "< 404)" in text
    script.write_text(
        text.replace("< 404)", "< 100000)"), "utf-8"
    )  # the bash of these tests is too old
    error, calls = call(checkout, "mini", code=2)
    folder = checkout / "examples/mini/s0"
    line = "recipes need bash 4.4 or newer; on macOS run 'brew install bash', and begin with: bash"
    assert (error, calls) == (f"{folder}/run.sh: {line} {folder}/run.sh\n", [])


def test_settings_on_several_lines_are_all_passed_on(checkout: Path) -> None:
    _, calls = call(
        checkout, "mini", "--override", "seed=3 log_interval=7\n max_epoch=5\n", "--head", "softmax"
    )
    trainings = [one for one in calls if one[0] == "train"]
    assert trainings and all(
        {"seed=3", "log_interval=7", "max_epoch=5"} <= {*one} for one in trainings
    )


def test_no_stage_begins_if_the_options_are_refused(checkout: Path) -> None:
    set_command(checkout, f'[ $1 != check-options ] || exit 2; echo "$@" >> {checkout}/calls.txt')
    for recipe in RECIPES:
        (checkout / "text").mkdir(exist_ok=True)
        for name in ("train", "valid", "test"):
            (checkout / "text" / f"{name}.txt").touch()
        assert not call(
            checkout,
            recipe,
            *(["--corpus", f"{checkout}/text"] if recipe != "mini" else []),
            code=2,
        )[1]


# ---- examples/commonvoice


@pytest.mark.slow
def test_training_reads_tars_if_asked_and_all_other_stages_the_lists(checkout: Path) -> None:
    _, calls = call(
        checkout, "commonvoice", "--corpus", "c", "--stop_stage", "4", "--head", "class"
    )
    assert "shards" not in [one[0] for one in calls] and "--data_type" not in calls[-1]
    options = ["--corpus", "c", "--shards", "500", "--head", "class"]
    error, calls = call(checkout, "commonvoice", *options, "--stage", "4", code=2)
    assert error.endswith("s0/data/train/shards; run stage 0 with it\n") and not calls
    _, calls = call(checkout, "commonvoice", *options, "--stop_stage", "0")
    assert [one[0] for one in calls] == ["prepare", "shards", "shards"]
    for one, name in zip(calls[1:], ("train", "dev"), strict=True):
        expected = (
            f"--data_list data/{name}/data.list --num_utts_per_shard 500 --out data/{name}/shards"
        )
        assert one[1:] == expected.split()
    tars = checkout / "examples/commonvoice/s0/data/train/shards"
    tars.mkdir(parents=True)
    (tars / "data.list").touch()
    _, (cmvn, train, *_, report) = call(checkout, "commonvoice", *options, "--stage", "3")
    assert (flag(train, "--train_data"), flag(train, "--cv_data"), flag(train, "--data_type")) == (
        *("data/train/shards/data.list", "data/dev/shards/data.list", "shard"),
    )
    assert (flag(cmvn, "--data_list"), flag(report, "--data_list")) == (
        "data/train/data.list",
        "data/test/data.list",
    )


def test_a_number_of_shards_is_checked(checked: Path) -> None:
    error, _ = call(checked, "commonvoice", "--corpus", "c", "--shards", "0", code=2)
    assert "--shards 0: must be a whole number from 1 on, or empty" in error


# ---- examples/ucla


@pytest.mark.slow
def test_pretraining_on_simulated_words(checkout: Path) -> None:
    """One base per seed, which all its heads start from; lists and statistics are those of the real
    speech.
    """
    options = [
        "--corpus",
        "c",
        "--seeds",
        "777 8",
        "--pretrain",
        "14",
        "--base_steps",
        "3000",
        "--stop_stage",
        "4",
    ]
    _, (_, simulate, units, tree, _, cmvn, *trainings) = call(checkout, "ucla", *options)
    assert simulate[:6] == ["prepare", "synthetic", "--unit", "phone", "--hours", "14"]
    assert (flag(simulate, "--match_list"), flag(simulate, "--out")) == (
        "data/train/data.list",
        "data/simulated",
    )
    lists = units[units.index("--data_list") + 1 : units.index("--kind")]
    assert lists == ["data/train/data.list", "data/simulated/train/data.list"]
    assert flag(tree, "--data_list") == flag(cmvn, "--data_list") == "data/train/data.list"
    for one in trainings:
        name, _, seed = flag(one, "--model_dir").partition("-seed")
        is_first = name == "exp/base"
        assert (
            flag(one, "--train_data")
            == ("data/simulated" if is_first else "data") + "/train/data.list"
        )
        assert ("model_conf.ctc_only_steps=3000" in one) == is_first != ("--checkpoint" in one)
        assert is_first or flag(one, "--checkpoint") == f"exp/base{seed and '-seed'}{seed}"
    assert len(trainings) == 6
    for wrong in (["--unit", "char"], ["--base_steps", "0"]):
        assert (
            "--pretrain 14: needs"
            in call(checkout, "ucla", *options, *wrong, "--exp", "x", "--data", "y", code=2)[0]
        )


def test_ctc_over_a_tree_and_decoding_with_known_units(checkout: Path) -> None:
    known = ["--inventory", "known.tsv", "--place_unseen", "articulatory", "--modes", "joint"]
    options = [
        "--corpus",
        "c",
        "--stage",
        "4",
        "--head",
        "hsoftmax",
        "--ctc_tree",
        "ctc.json",
        *known,
    ]
    _, (base, train, _, recognize, score, report) = call(checkout, "ucla", *options)
    for one in (base, train):
        assert (flag(one, "--ctc_head"), flag(one, "--ctc_tree")) == ("hsoftmax", "ctc.json")
    assert (flag(recognize, "--inventory"), flag(recognize, "--place_unseen")) == (
        "known.tsv",
        "articulatory",
    )
    decoded = "exp/hsoftmax/test-inventory-articulatory"
    assert (
        flag(recognize, "--result_dir") == flag(score, "--hyp") == decoded
        and flag(score, "--metric") == "per"
    )
    assert flag(report, "--test") == "test-inventory-articulatory"


# ---- examples/own


def own_data(checkout: Path, hours: float) -> list[str]:
    """Options of examples/own whose lists have these hours of training speech."""
    data = checkout / "examples/own/s0/data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "stats.json").write_text(json.dumps({"total": {"hours": {"train": hours}}}))
    prepare = "--tier 'utt @*' --drop_overlaps"
    return ["--elan", "x/fieldwork", "--lang", "mdw", "--prepare", prepare, "--stop_stage", "4"]


def test_own_lists_of_other_options_are_refused(checked: Path) -> None:
    options = [*own_data(checked, 1.0), "--stop_stage", "0"]
    call(checked, "own", *options)
    for other in (
        ("--prepare", "--tier words"),
        ("--unit", "phone"),
        ("--elan", str(checked / "y")),
    ):
        error, _ = call(checked, "own", *options, *other, code=2)
        assert f"{' '.join(other)}: " in error and "/data was made with" in error
    new = ["--data", f"{checked}/d", "--exp", f"{checked}/e"]
    error, _ = call(checked, "own", *options, "--kaldi", "y", *new, code=2)
    assert "give one of --corpus TABLE, --elan, --praat, --kaldi, --folder" in error
    error, _ = call(checked, "own", "--elan", "x", "--prepare", "--tier 'utt", *new, code=2)
    assert "--prepare --tier 'utt: a quote has no end" in error
    error, _ = call(checked, "own", *options, "--size", "adapted", "--exp", f"{checked}/y", code=2)
    assert "--size adapted: must be tiny, small, medium, large or auto" in error


@pytest.mark.parametrize(("code", "expected"), [(3, 0), (2, 2), (130, 130)])
def test_faults_that_the_check_of_own_lists_leaves_out_do_not_end_it(
    checkout: Path,
    code: int,
    expected: int,
) -> None:
    options = own_data(checkout, 1.0)
    set_command(checkout, f"[ $1 != check ] || exit {code}")
    call(checkout, "own", *options, "--stop_stage", "0", code=expected)


# ---- examples/wikitext


def test_texts_of_wikitext_must_exist_and_a_new_model_is_scored_again(checkout: Path) -> None:
    text = checkout / "text"
    text.mkdir()
    for name in ("valid.txt", "test.txt"):
        (text / name).touch()
    options = ["--corpus", str(text), "--systems", "softmax"]
    error, calls = call(checkout, "wikitext", *options, code=2)
    assert (
        f"--corpus '{text}': 0 files with 'train' in their name; expected one" in error
        and not calls
    )
    (text / "train.txt").touch()
    folder = checkout / "examples/wikitext/s0/exp/softmax-seed777"
    folder.mkdir(parents=True)
    for number, name in enumerate(("valid.json", "final.pt", "test.json")):
        (folder / name).touch()
        os.utime(folder / name, (number, number))
    _, calls = call(checkout, "wikitext", *options, "--stage", "3", "--stop_stage", "3")
    assert [flag(one, "--json") for one in calls if one[0] == "lm"] == [
        "exp/softmax-seed777/valid.json"
    ]
