# SPDX-License-Identifier: Apache-2.0
"""Each recipe's run.sh from end to end on a minute of made-up audio, with few steps: all files are
written.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from forked_commands import forked_commands
from pretrained_folders import write_folder
from pympi import Eaf
from waiting import is_running, within

from wenet_hs.config.load import config_changes, load_config
from wenet_hs.tree import Tree

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RECIPES = sorted((ROOT / "examples").glob("*/s0/run.sh"))
HEADS = ("softmax", "hsoftmax")
COMPARE_SEARCHES = ROOT / "tests" / "decode" / "compare_searches.py"
MODES = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring")
MODES_OF_OWN = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention_rescoring", "joint")
FEW_STEPS = (
    "scheduler_conf.total_steps=8 scheduler_conf.warmup_steps=2 save_interval=4 encoder_conf.num_blocks=1 "
    "encoder_conf.output_size=32 model_conf.ctc_only_steps=3 model_conf.attention_guide_steps=3"
)


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `wenet-hs` that starts fast. `make mini` runs a recipe with the real one."""
    with forked_commands(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


def run_recipe(
    name: str, *options: str, code: int = 0, bin_dir: Path = BIN
) -> subprocess.CompletedProcess[str]:
    """Run examples/NAME/s0/run.sh with the `wenet-hs` of `bin_dir` on the PATH."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(bin_dir), str(BIN), os.environ["PATH"]]),
    }
    command = [str(ROOT / "examples" / name / "s0" / "run.sh"), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr[-2000:]
    return done


def check_results(folder: Path, output: str, metric: str, names: tuple[str, str] = HEADS) -> None:
    """Both experiments are complete, differ only in the head, and are in the printed table; the
    page exists.
    """
    for head in names:
        for name in (
            "train.yaml",
            "units.txt",
            "global_cmvn",
            "final.pt",
            "metrics.jsonl",
            "test/rtf.json",
        ):
            assert (folder / "exp" / head / name).stat().st_size > 0
        for mode in MODES:
            score = json.loads(
                (folder / "exp" / head / "test" / mode / "score.json").read_text("utf-8")
            )
            assert score["micro"]["N"] > 0
            assert any(line.split()[:2] == [mode, head] for line in output.splitlines()), (
                f"no line for {mode}, {head}"
            )
    assert f"{metric} in %" in output
    one, other = (load_config(folder / "exp" / head / "train.yaml") for head in names)
    assert {key.partition(".")[0] for key, _, _ in config_changes(one, other)} == {
        "head",
        "head_conf",
    }
    assert "<html" in (folder / "exp" / "report.html").read_text("utf-8")


@pytest.mark.recipe
def test_mini(tmp_path: Path, forked: Path) -> None:
    folder = tmp_path / "été 1"
    options = [
        "--langs",
        "es uk",
        "--hours",
        "0.02",
        "--data",
        str(folder / "data"),
        "--exp",
        str(folder / "exp"),
    ]
    done = run_recipe("mini", *options, "--override", FEW_STEPS, bin_dir=forked)
    check_results(folder, done.stdout, "CER")
    assert "simulated" in done.stdout
    for head in HEADS:
        arguments = [folder / "exp" / head, folder / "data" / "test" / "data.list", "4"]
        subprocess.run([sys.executable, COMPARE_SEARCHES, *arguments], check=True, timeout=100)
    run_recipe(
        "mini",
        *options,
        "--override",
        FEW_STEPS,
        "--stage",
        "4",
        "--stop_stage",
        "4",
        bin_dir=forked,
    )
    assert "trained already" in (folder / "exp" / "softmax.log").read_text("utf-8")


@pytest.mark.recipe
def test_mini_on_two_processes(tmp_path: Path, forked: Path) -> None:
    options = [
        "--langs",
        "es uk",
        "--hours",
        "0.02",
        "--data",
        str(tmp_path / "data"),
        "--override",
        FEW_STEPS,
    ]
    options += ["--head", "hsoftmax", "--modes", "ctc_greedy_search attention"]
    two, one = tmp_path / "two" / "hsoftmax", tmp_path / "one" / "hsoftmax"
    run_recipe("mini", *options, "--exp", str(two.parent), "--nproc", "2", bin_dir=forked)
    assert (two.parent / "report.html").stat().st_size > 0
    assert (
        json.loads((two / "test" / "attention" / "score.json").read_text("utf-8"))["micro"]["N"] > 0
    )
    assert json.loads((two / "test" / "rtf.json").read_text("utf-8"))["num_ranks"] == 2
    statistics = (tmp_path / "data" / "global_cmvn").read_bytes()
    run_recipe(
        "mini",
        *options,
        "--exp",
        str(one.parent),
        "--stage",
        "3",
        "--stop_stage",
        "4",
        bin_dir=forked,
    )
    assert (tmp_path / "data" / "global_cmvn").read_bytes() == statistics
    texts = [(folder / "metrics.jsonl").read_text("utf-8") for folder in (one, two)]
    steps = [
        [(record["kind"], record["step"]) for record in map(json.loads, text.splitlines())]
        for text in texts
    ]
    assert steps[0] == steps[1]
    bad = ["--exp", str(tmp_path / "bad"), "--nproc", "2", "--stage", "4", "--stop_stage", "4"]
    failed = run_recipe("mini", *options, *bad, "--override", "optim=sdg", code=2, bin_dir=forked)
    assert "--override_config optim=sdg: optim: must be one of" in failed.stderr


def write_tones(path: Path, num_tones: int) -> None:
    """A clip of as many tones of 0.15 s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = np.arange(2400) / 16000
    tones = [
        0.3 * np.sin(2 * np.pi * (300 + 150 * number) * seconds) for number in range(num_tones)
    ]
    soundfile.write(path, np.concatenate(tones), 16000)


def ucla_corpus(folder: Path) -> list[str]:
    """Four languages of a dozen words; returns the options of a run over them."""
    for lang in ("abk", "deu", "fra", "ita"):
        lines = []
        for number in range(12):
            phones = [("a", "tʃʰ", "ɲ", "ə̃", "k")[(number + step) % 5] for step in range(4)]
            write_tones(folder / "corpus" / lang / "audio" / f"{lang}-{number}.wav", 4)
            lines.append(f"{lang}-{number} {' '.join(phones)}\n")
        (folder / "corpus" / lang / "text.txt").write_text("".join(lines), "utf-8")
    folders = ["--data", str(folder / "data"), "--exp", str(folder / "exp")]
    base = ["--base_steps", "4"]
    blocks = " encoder_conf.num_blocks=2 model_conf.interctc_layer=1"
    return ["--corpus", str(folder / "corpus"), *folders, "--override", FEW_STEPS + blocks, *base]


@pytest.mark.recipe
def test_commands_of_own_data_from_elan_to_a_model_and_back(tmp_path: Path, forked: Path) -> None:
    """Those of docs/own-data.md as they stand there, with fewer steps: three recordings of ten
    minutes, and back.
    """
    project = tmp_path / "été 1"
    own = project / "examples" / "own" / "s0"
    own.mkdir(parents=True)
    (project / "examples" / "mini").symlink_to(ROOT / "examples" / "mini")
    for name in ("conf", "tools", "wenet_hs"):
        (project / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "examples" / "own" / "s0" / "run.sh", own)
    page = (ROOT / "docs" / "own-data.md").read_text("utf-8")
    documented, of_plan, _ = page.partition("$ wenet-hs plan ")  # its output is that of stage 3
    assert of_plan
    [make] = re.findall(r"`(python tools/field_corpus.py [^`]+)`", documented)
    look, train, transcribe = re.findall(r"^\$ (.+)$", documented, re.MULTILINE)
    assert look.startswith("examples/own/s0/run.sh --elan fieldwork") and transcribe.startswith(
        "wenet-hs transcribe"
    )
    few = f'--override "{FEW_STEPS} encoder_conf.num_blocks=2 model_conf.interctc_layer=1"'
    few += " --base_steps 4"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(forked), str(BIN), os.environ["PATH"]]),
    }
    shown = []
    for command in (make, look, f"{train} {few}", f"{transcribe} --mode ctc_greedy_search"):
        call = ["bash", "-c", command]
        done = subprocess.run(
            call,
            cwd=project,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        shown.append(done.stdout)
    facts = re.findall(
        r"^(?:es  .*|faults .*|0\.\d+ hours of training speech: .*)$", documented, re.MULTILINE
    )
    facts = [fact.replace("3000 + 3000 steps", "4 + 3000 steps") for fact in facts]
    assert len(facts) == 3 and all(fact in "".join(shown[1:3]) for fact in facts)
    stats = json.loads((own / "data" / "stats.json").read_text("utf-8"))
    files = sorted((project / "fieldwork").glob("*.eaf"))
    before = {path: Eaf(str(path)) for path in files}
    names = ("utterance@Ana", "utterance@Beto")
    assert stats["num_in"] == sum(
        len(eaf.get_annotation_data_for_tier(name)) for eaf in before.values() for name in names
    )
    assert "<html" in (own / "data" / "check.html").read_text("utf-8")
    assert "<html" in (own / "exp" / "report.html").read_text("utf-8")
    for path, old in before.items():
        new = Eaf(str(project / "transcribed" / path.name))
        for name, (aligned, references, attributes, _) in old.tiers.items():
            same = new.get_annotation_data_for_tier(name) == old.get_annotation_data_for_tier(name)
            assert (
                same
                and new.tiers[name][2] == attributes
                and len(new.tiers[name][0]) == len(aligned)
            ), name
            assert references == new.tiers[name][1] and bool(references) == name.startswith(
                "loudness"
            )
        spans = new.get_annotation_data_for_tier("wenet_hs")
        assert len(spans) > 50 and all(0 <= start < end <= 600_000 for start, end, _ in spans)
        assert (
            new.controlled_vocabularies == old.controlled_vocabularies
            and "loudness" in old.controlled_vocabularies
        )
        media = new.media_descriptors[0]["RELATIVE_MEDIA_URL"]
        assert (project / "transcribed" / media).resolve() == path.with_suffix(".wav")


@pytest.mark.recipe
@pytest.mark.parametrize(
    ("name", "config", "modes"),
    [
        ("whisper", "own", MODES_OF_OWN),
        ("mms", "own", MODES[:2]),
        ("xls-r", "finetune_wav2vec2", MODES[:2]),
    ],
)
def test_own_with_a_pretrained_encoder(
    tmp_path: Path, forked: Path, name: str, config: str, modes: tuple[str, ...]
) -> None:
    """Here without a GPU: frozen with a cache, unless a config of `decoder: none` is given or it
    has adapters.
    """
    is_frozen = name == "whisper"
    encoder, lines = write_folder(tmp_path / "my encoder", name), ["path\tsentence\n"]
    for number in range(40):
        write_tones(tmp_path / f"{number}.wav", 4 + number % 4)
        lines.append(
            f"{number}.wav\t{'abcdefgh'[number % 5 : number % 5 + 3]}{'kilmno'[number % 6]}{number % 10}\n"
        )
    (tmp_path / "my.tsv").write_text("".join(lines))
    folders = [
        "--data",
        str(tmp_path / "été 1"),
        "--exp",
        str(tmp_path / "exp"),
        "--config",
        f"{ROOT}/conf/{config}.yaml",
    ]
    few = "scheduler_conf.total_steps=8 scheduler_conf.warmup_steps=2 save_interval=4"
    few += " encoder_conf.upper.num_blocks=1 model_conf.ctc_only_steps=3" if is_frozen else ""
    options = [
        "--corpus",
        str(tmp_path / "my.tsv"),
        "--encoder",
        str(encoder),
        "--min_minutes",
        "0",
        *folders,
    ]
    done = run_recipe("own", *options, "--override", few, bin_dir=forked)
    for mode in modes:
        score = json.loads((tmp_path / "exp/softmax/test" / mode / "score.json").read_text("utf-8"))
        assert score["micro"]["N"] > 0
    assert len([*(tmp_path / "exp/softmax/test").glob("*/score.json")]) == len(modes)
    assert (
        "expected time of a training: " in done.stdout
        and "<html" in (tmp_path / "exp/report.html").read_text()
    )
    assert len([*(tmp_path / "été 1").glob("encoder_outputs/*.bin")]) == (2 if is_frozen else 0)
    assert (
        not (tmp_path / "été 1/global_cmvn").exists()
        and (tmp_path / "exp/softmax/encoder.json").exists()
    )


@pytest.mark.recipe
def test_ucla(tmp_path: Path, forked: Path) -> None:
    done = run_recipe("ucla", *ucla_corpus(tmp_path), bin_dir=forked)
    check_results(tmp_path, done.stdout, "PER")
    assert "klu" in done.stderr, "the paper's test languages that are absent are named"


@pytest.mark.recipe
def test_ucla_with_other_heads_over_another_tree(tmp_path: Path, forked: Path) -> None:
    options = ucla_corpus(tmp_path)
    done = run_recipe(
        "ucla", *options, "--head", "class adaptive", "--tree", "articulatory", bin_dir=forked
    )
    names = ("class-articulatory", "adaptive-articulatory")
    check_results(tmp_path, done.stdout, "PER", names)
    tree = Tree.load(tmp_path / "data" / "tree-articulatory.json")
    assert (tree.kind, tree.options["tokenizer"]) == ("articulatory", "phone")
    used = (tmp_path / "data" / "tree-articulatory.json").read_bytes()
    assert all((tmp_path / "exp" / name / "tree.json").read_bytes() == used for name in names)
    for stage in ("2", "4"):
        only = ["--head", "hsoftmax", "--tree", "brown", "--stage", stage, "--stop_stage", stage]
        run_recipe("ucla", *options, *only, bin_dir=forked)
    assert Tree.load(tmp_path / "exp" / "hsoftmax-brown" / "tree.json").kind == "brown"


@pytest.mark.recipe
def test_trainings_for_a_gpu_in_their_small_form(tmp_path: Path, forked: Path) -> None:
    """One of three fails: the others have their results, and the table says what is missing."""
    corpus, script = ucla_corpus(tmp_path)[1], ROOT / "benchmarks" / "gpu_trainings.sh"
    command = tmp_path / "bin" / "wenet-hs"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\ncase "$*" in train*exp/softmax*) echo broken; exit 3;; esac\nexec "{forked}/wenet-hs" "$@"\n'
    )
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(BIN), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHON": sys.executable}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = [str(script), *options]
        return subprocess.run(
            line, capture_output=True, text=True, env=environment, timeout=300, check=False
        )

    out = tmp_path / "out"
    done = run("--small", "--corpus", corpus, "--out", str(out))
    assert done.returncode == 1, done.stderr
    trees = {"hsoftmax", "hsoftmax-random"}
    names = {"gpu_trainings.json", "gpu_trainings.md", "data.log", "softmax.log", "results"}
    assert {path.name for path in out.iterdir()} == names | {
        f"{t}.{end}" for t in trees for end in ("rtf.json", "log")
    }
    assert {path.name for path in out.glob("results/*")} == {
        f"{tree}-seed777.json" for tree in trees
    }
    assert "broken" in (out / "softmax.log").read_text("utf-8")
    records = json.loads((out / "gpu_trainings.json").read_text("utf-8"))["trainings"]
    assert [record["result"] for record in records] == [
        "missing: not done in the time, or failed (its log)",
        "ok",
        "ok",
    ]
    assert all(
        set(record["per"]) == {*MODES, "joint"} and record["steps"] for record in records[1:]
    )
    assert done.stdout.count("not measured (small form on the CPU: ") == 3
    assert re.search(
        r"^\| scheduler_conf.warmup_steps \| 25000 \| 2 \|$", done.stdout, re.MULTILINE
    )
    for options, message in (
        (
            ("--out", str(out)),
            "--corpus '': no such folder; give that of the UCLA corpus (try --help)",
        ),
        (("--corpus", corpus), "--out DIR is required (try --help)"),
        (("--head", "x"), "unknown option '--head' (try --help)"),
    ):
        refused = run(*options)
        assert (refused.returncode, refused.stderr) == (2, f"{script}: {message}\n")


@pytest.mark.recipe
def test_commonvoice(tmp_path: Path, forked: Path) -> None:
    header = (
        "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale\tsegment\n"
    )
    for lang in ("ca", "tr"):
        rows = [header]
        for number in range(60):
            name = f"common_voice_{lang}_{number}.mp3"
            write_tones(tmp_path / "corpus" / lang / "clips" / name, 4 + number % 4)
            sentence = "abcd efgh"[: 2 + number % 7] + "kilmno"[number % 6]
            rows.append(f"speaker{number // 4}\t{name}\t{sentence}\t2\t0\t\t\t\t{lang}\t\n")
        (tmp_path / "corpus" / lang / "validated.tsv").write_text("".join(rows), "utf-8")
    folders = ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    small = f"{FEW_STEPS} scheduler=warmup_cosine encoder_conf.linear_units=32 decoder_conf.linear_units=32"
    small += " decoder_conf.num_blocks=1 accum_grad=1 num_workers=1"
    corpus = [
        "--corpus",
        str(tmp_path / "corpus"),
        "--langs",
        "ca tr",
        "--ratio",
        "0.9",
        "--shards",
        "30",
    ]
    done = run_recipe("commonvoice", *corpus, *folders, "--override", small, bin_dir=forked)
    check_results(tmp_path, done.stdout, "CER")
    log = (tmp_path / "exp" / "softmax.log").read_text("utf-8")
    resources = next(line for line in log.splitlines() if "resources: " in line).partition(
        " INFO "
    )[2]
    assert f"exp/softmax: {resources}" in done.stdout
    weights = (tmp_path / "exp" / "softmax" / "final.pt").read_bytes()
    options = [
        *folders,
        "--override",
        small,
        "--shards",
        "",
        "--head",
        "softmax",
        "--stage",
        "4",
        "--stop_stage",
        "5",
    ]
    options[3] = str(tmp_path / "clips")
    run_recipe("commonvoice", *corpus, *options, bin_dir=forked)
    assert (tmp_path / "clips" / "softmax" / "final.pt").read_bytes() == weights, (
        "tars train the model of the clips"
    )


@pytest.mark.recipe
def test_wikitext(tmp_path: Path, forked: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = "\n".join(" ".join(words[first : first + 4]) for first in range(7))
    for name, repeats in (("train", 30), ("valid", 3), ("test", 4)):
        (tmp_path / f"wiki.{name}.txt").write_text((lines + "\n") * repeats, "utf-8")
    folders = [
        part for name in ("data", "exp", "results") for part in (f"--{name}", str(tmp_path / name))
    ]
    small = (
        "max_epoch=2 scheduler_conf.warmup_steps=5 rnn_conf.hidden_size=16 text_conf.batch_size=2"
    )
    systems = "hsoftmax-brown hsoftmax-embedding nce softmax"
    options = [
        "--corpus",
        str(tmp_path),
        "--systems",
        systems,
        *folders,
        "--override",
        f"{small} optim_conf.lr=0.02",
    ]
    run_recipe("wikitext", *options, bin_dir=forked)
    for system in systems.split():
        found = json.loads((tmp_path / f"results/{system}-seed777.json").read_text("utf-8"))
        assert 1 < found["scores"]["test perplexity"] < 13, "a uniform model has 13"
        assert found["steps"] == 22
    table = (tmp_path / "exp/RESULTS.md").read_text("utf-8")
    assert "## results\n" in table and "| hsoftmax-brown" in table and "wiki.train.txt" in table
    again = run_recipe("wikitext", *options, "--stage", "2", "--systems", "nce", bin_dir=forked)
    assert "trained already" in again.stdout + (tmp_path / "exp/nce-seed777.log").read_text("utf-8")
    run_recipe("wikitext", *options, "--systems", "tree", code=2, bin_dir=forked)
    run_recipe("wikitext", "--corpus", str(tmp_path / "none"), code=2, bin_dir=forked)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parts[-3])
def test_run_sh_prints_its_options(recipe: Path) -> None:
    text = run_recipe(recipe.parts[-3], "--help").stdout
    assert "./run.sh" in text and "--corpus" in text or "--langs" in text
    name = recipe.parts[-3]
    if name != "wikitext":
        assert (
            "--tree huffman" in text
            and ("--head softmax" if name == "own" else '--head "softmax hsoftmax"') in text
        )


@pytest.mark.parametrize(("name", "failing"), [("mini", "class"), ("ucla", "base-seed2")])
def test_no_training_outlives_the_script(
    name: str, failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two trainings fails: its last lines are shown, and the other one is ended."""
    command = tmp_path / "bin" / "wenet-hs"
    command.parent.mkdir()
    command.write_text(
        "#!/bin/sh\ncase $1 in *-options) exit 0;; esac\n"
        'case "$*" in *$FAILING*) until [ -s "$OUT" ]; do sleep 0.1; done; echo "it failed"; exit 2;; esac\n'
        'echo $$ > "$OUT"; exec sleep 30\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("OUT", f"{tmp_path}/pid")
    monkeypatch.setenv("FAILING", f"exp/{failing}")
    options = [
        "--stage",
        "4",
        "--stop_stage",
        "4",
        "--head",
        "softmax class",
        "--exp",
        f"{tmp_path}/exp",
    ]
    options += ["--seeds", "1 2"] if name == "ucla" else []
    begin = time.monotonic()
    done = run_recipe(name, *options, code=2, bin_dir=command.parent)
    assert done.stderr.splitlines()[-2:] == [f"==> {tmp_path}/exp/{failing}.log <==", "it failed"]
    assert time.monotonic() - begin < 20  # the script did not wait for the other training
    assert within(25, lambda: not is_running((tmp_path / "pid").read_text().strip()))
