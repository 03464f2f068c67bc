# SPDX-License-Identifier: Apache-2.0
"""Does every training leave the plateau of CTC, and what decides it?

At first CTC learns only how frequent the units and blank are. Its loss stays at the plateau: the
lowest loss of an output that does not depend on the speech. The training records it. A training has
taken off when its validation loss is 0.5 nats per target lower. All losses here are per target: the
labels, and one end of sentence per utterance.

The first table: ten seeds on each data set with the recipe's config, after 20 % of its steps. For a
recipe in two parts these are 20 % of the steps of both parts together, all of them in the first
part. The second: what was varied to find the cause, on the data set that is hardest. Each run is a
folder of WORK; those that are done are kept.

    examples/mini/s0/run.sh --stop_stage 3
    examples/mini/s0/run.sh --stop_stage 3 --langs es --hours 1
    examples/ucla/s0/run.sh --stop_stage 3 --corpus UCLA
    python benchmarks/takeoff.py --mboshi MBOSHI --work takeoff --out benchmarks/notes/takeoff
"""

import argparse
import csv
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any

import soundfile
from matplotlib.figure import Figure
from paired import publish

from wenet_hs.config.load import load_config
from wenet_hs.manifest.data_list import Utterance, write_data_list
from wenet_hs.runs.curves import TAKE_OFF_NATS, read_curves
from wenet_hs.score.tables import markdown_table
from wenet_hs.train.monitor import TAKE_OFF_SHARE

ROOT = Path(__file__).parents[1]
SLOW = (
    "encoder_conf.dropout_rate=0.1",
    "decoder_conf.dropout_rate=0.1",
    "dataset_conf.speed_perturb=true",
)
CAUSES = {
    "lr 2e-3, warm-up 200": "optim_conf.lr=2e-3 scheduler_conf.warmup_steps=200",
    "lr 2e-3, warm-up 200, layer norm": (
        "optim_conf.lr=2e-3 scheduler_conf.warmup_steps=200 encoder_conf.cnn_module_norm=layer_norm"
    ),
    "lr 2e-3, warm-up 1,000": "optim_conf.lr=2e-3 scheduler_conf.warmup_steps=1000",
    "lr 2e-3, warm-up 200, with the decoder from the first step": (
        "optim_conf.lr=2e-3 scheduler_conf.warmup_steps=200 model_conf.ctc_only_steps=0"
    ),
    "lr 2e-3, warm-up 200, β₂ 0.999": "optim_conf.lr=2e-3 scheduler_conf.warmup_steps=200 optim_conf.betas=[0.9,0.999]",
    "lr 1e-3, warm-up 200": "optim_conf.lr=1e-3 scheduler_conf.warmup_steps=200",
    "lr 1e-3, warm-up 1,000": "optim_conf.lr=1e-3 scheduler_conf.warmup_steps=1000",
}
"""Variants of conf/mini.yaml with SLOW and 5,000 steps, on Mboshi."""
CAUSE_STEPS, CAUSE_SEEDS = 800, (1, 2)
MBOSHI_DEV = 60
UCLA_FIRST_STEPS = 1500
"""Of the first part of training, the default of `--base_steps` in examples/ucla/s0/run.sh."""
_FIGURES = "Training loss of each seed. The straight lines are the plateau and 0.5 nats below it."


@dataclass(frozen=True)
class Run:
    """One training, which is stopped after its first validation."""

    name: str
    config: Path
    tokenizer: str
    data: Path
    seed: int
    steps: int
    overrides: tuple[str, ...]


def recipe_runs(args: argparse.Namespace, mboshi: Path) -> Iterator[Run]:
    """Ten seeds on each data set, each to a fifth of its recipe's steps; UCLA's recipe trains in
    two parts.
    """
    first_part = (
        f"model_conf.ctc_only_steps={UCLA_FIRST_STEPS}",
        f"scheduler_conf.total_steps={UCLA_FIRST_STEPS}",
        "scheduler_conf.warmup_steps=400",
    )
    sets = (
        ("mini, simulated, 2 h", "mini", "char", args.mini),
        ("UCLA, real, 0.47 h", "ucla", "phone", args.ucla),
        ("synthetic, simulated, 1 h of es", "mini", "char", args.synthetic),
        ("Mboshi, real, 1 h", "mini", "char", mboshi),
    )
    for seed in range(1, args.seeds + 1):
        for name, config, tokenizer, data in sets:
            path = ROOT / f"conf/{config}.yaml"
            parts = [first_part, ()] if config == "ucla" else [()]
            steps = sum(
                load_config(path, settings).scheduler_conf.total_steps or 0 for settings in parts
            )
            yield Run(name, path, tokenizer, data, seed, round(TAKE_OFF_SHARE * steps), parts[0])


def cause_runs(mboshi: Path) -> Iterator[Run]:
    """Each variant with each of CAUSE_SEEDS."""
    for seed in CAUSE_SEEDS:
        for name, overrides in CAUSES.items():
            settings = (*SLOW, "scheduler_conf.total_steps=5000", *overrides.split())
            yield Run(name, ROOT / "conf/mini.yaml", "char", mboshi, seed, CAUSE_STEPS, settings)


def write_mboshi(corpus: Path, folder: Path) -> None:
    """Write lists, units and statistics of the corpus; MBOSHI_DEV random utterances are for
    validation.
    """
    with (corpus / "mboshi.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(rows)
    for name, of in (("dev", rows[:MBOSHI_DEV]), ("train", rows[MBOSHI_DEV:])):
        clips = [read_clip(corpus / "audio" / row["path"], row) for row in of]
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_data_list(folder / name / "data.list", sorted(clips, key=lambda clip: clip.key))
    train = str(folder / "train/data.list")
    units = ("units", "--data_list", train, "--kind", "char", "--out", str(folder / "units.txt"))
    statistics = ("cmvn", "--data_list", train, "--config", str(ROOT / "conf/mini.yaml"))
    for command in (units, (*statistics, "--out", str(folder / "global_cmvn"))):
        subprocess.run(["wenet-hs", *command], check=True, stdout=subprocess.DEVNULL)


def read_clip(path: Path, row: Mapping[str, str]) -> Utterance:
    """The utterance of a row of the corpus's table."""
    duration = round(soundfile.info(path).duration, 3)
    txt = " ".join(row["sentence"].split())
    return Utterance(
        key=path.stem, wav=str(path), txt=txt, lang="mdw", speaker=row["speaker"], duration=duration
    )


def train(run: Run, work: Path) -> None:
    """Train a run to its first validation with one thread, if it has none."""
    folder = folder_of(run, work)
    if read_validation(folder) is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log.txt").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command_of(run, folder), stdout=log, stderr=log, env=environment)
    while read_validation(folder) is None and process.poll() is None:
        time.sleep(1)
    process.terminate()
    process.wait()
    validation = read_validation(folder)
    if validation is None:
        raise RuntimeError(f"{folder}: ended without a validation; see log.txt")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    print(folder.name, f"{validation['loss_ctc']:.2f}", flush=True)


def folder_of(run: Run, work: Path) -> Path:
    """The model folder of a run."""
    name = "".join(
        letter if letter.isalnum() or letter == "." else "_"
        for letter in f"{run.name} seed{run.seed}"
    )
    return work / name


def command_of(run: Run, folder: Path) -> list[str]:
    """The training command; it validates at `steps` for the first time."""
    lists = [
        "--train_data",
        f"{run.data}/train/data.list",
        "--cv_data",
        f"{run.data}/dev/data.list",
    ]
    settings = [
        f"tokenizer={run.tokenizer}",
        f"tokenizer_conf.symbol_table_path={run.data}/units.txt",
    ]
    settings += [
        f"cmvn_conf.cmvn_file={run.data}/global_cmvn",
        f"seed={run.seed}",
        f"save_interval={run.steps}",
    ]
    options = ["--config", str(run.config), *lists, "--model_dir", str(folder)]
    return [
        "wenet-hs",
        "train",
        *options,
        "--override_config",
        *settings,
        "log_interval=20",
        *run.overrides,
    ]


def read_validation(folder: Path) -> dict[str, float] | None:
    """The first validation of a run; None without one, and if its plateau is per label (earlier
    versions).
    """
    found = read_curves(folder / "metrics.jsonl").get("valid", [])
    return found[0] if found and "plateau_ctc" in found[0] else None


def group_runs(
    runs: Sequence[Run], work: Path
) -> Iterator[tuple[str, list[Run], list[dict[str, float]]]]:
    """The runs of each name, and their validations."""
    for name in dict.fromkeys(run.name for run in runs):
        of_name = [run for run in runs if run.name == name]
        yield name, of_name, [read_validation(folder_of(run, work)) or {} for run in of_name]


def tabulate(runs: Sequence[Run], work: Path) -> tuple[str, list[dict[str, Any]]]:
    """The table of the runs, one row per name, and its facts."""
    rows, facts = [], []
    for name, of_name, validations in group_runs(runs, work):
        plateau, losses = validations[0]["plateau_ctc"], [of["loss_ctc"] for of in validations]
        num_off = sum(loss <= plateau - TAKE_OFF_NATS for loss in losses)
        each = " ".join(f"{loss:.2f}" for loss in losses)
        cells = [
            f"{of_name[0].steps:,}",
            f"{plateau:.2f}",
            f"{fmean(losses):.2f}",
            f"{max(losses):.2f}",
        ]
        rows.append([name, *cells, f"**{num_off} of {len(losses)}**", each])
        facts.append(
            {"name": name, "steps": of_name[0].steps, "plateau": plateau, "losses": losses}
        )
    header = [
        "training",
        "steps",
        "plateau",
        "mean",
        "highest",
        "taken off",
        "validation CTC loss of each seed",
    ]
    return markdown_table(header, rows), facts


def draw_curves(runs: Sequence[Run], work: Path, out: Path) -> list[str]:
    """One SVG per data set: the training CTC loss of each seed above the steps.

    Returns Markdown images.

    What is more than a nat above the plateau is left out, so that the plateau can be seen.
    """
    images = []
    for number, (name, of_name, validations) in enumerate(group_runs(runs, work), start=1):
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        axes, plateau = figure.subplots(), validations[0]["plateau_ctc"]
        for run in of_name:
            records = read_curves(folder_of(run, work) / "metrics.jsonl")["train"]
            shown = [one for one in records if one["loss_ctc"] < plateau + 1]
            axes.plot([one["step"] for one in shown], [one["loss_ctc"] for one in shown])
        for level in (plateau, plateau - TAKE_OFF_NATS):
            axes.axhline(level, color="grey", linewidth=1)
        axes.set(title=name, xlabel="steps", ylabel="CTC loss, nats per target")
        path = out.with_name(f"{out.name}_{number}.svg")
        figure.savefig(path, metadata={"Date": None})
        images.append(f"![CTC loss of each seed: {name}]({path.name})")
    return images


def main() -> None:
    """Train what is missing, and publish the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name, folder in (
        ("mini", "mini/s0/data"),
        ("synthetic", "mini/s0/data-es-1"),
        ("ucla", "ucla/s0/data"),
    ):
        add(
            f"--{name}",
            type=Path,
            default=ROOT / "examples" / folder,
            help="data folder of the recipe",
        )
    add("--mboshi", type=Path, required=True, help="folder with mboshi.tsv and audio/")
    add("--work", type=Path, required=True, help="folder for the trainings")
    add("--seeds", type=int, default=10)
    add("--jobs", type=int, default=2, help="trainings at a time")
    add("--out", type=Path, help="write OUT.md, OUT.json and OUT_*.svg")
    args = parser.parse_args()
    mboshi = args.work.resolve() / "mboshi"
    if not (mboshi / "global_cmvn").exists():
        write_mboshi(args.mboshi.resolve(), mboshi)
    recipes, causes = list(recipe_runs(args, mboshi)), list(cause_runs(mboshi))
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, [*causes, *recipes], repeat(args.work)))
    (recipe_table, recipe_facts), (cause_table, cause_facts) = (
        tabulate(of, args.work) for of in (recipes, causes)
    )
    images = draw_curves(recipes, args.work, args.out) if args.out else []
    text = "\n\n".join(
        [
            recipe_table,
            _FIGURES,
            *images,
            "What decides it, on Mboshi with speed perturbation and dropout 0.1:",
            cause_table,
        ]
    )
    title = "Take-off of CTC: validation loss in nats per target after a fifth of the steps"
    publish(
        title, text, {"recipes": recipe_facts, "causes": cause_facts}, device="cpu", out=args.out
    )


if __name__ == "__main__":
    main()
