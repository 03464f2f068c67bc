# SPDX-License-Identifier: Apache-2.0
"""Made-up experiment folders, complete and hand-checkable."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile

from wenet_hs.runs.record import RunRecord, Start, write_run
from wenet_hs.score import Report, Rules, report_to_json, score
from wenet_hs.tree import Tree

REF = {"ca1": "bon dia", "ca2": "adéu", "ky1": "салам дүйнө", "ky2": "кыргыз"}
LANGS = {key: key[:2] for key in REF}
GOOD = REF | {"ca1": "bon die"}
BAD = {"ca1": "on di", "ca2": "adeu", "ky1": "салам дуйно"}

TRAIN_YAML = """# Every setting of this experiment, as it was run.
encoder: conformer
encoder_conf: {{num_blocks: 4}}
seed: 777
head: {head}
head_conf: {conf}
"""


def write_data(folder: Path, **marks: object) -> Path:
    """What `prepare` leaves: stats.json, and the test list with a clip of half a second for each
    key.
    """
    (folder / "test").mkdir(parents=True)
    (folder / "train").mkdir()
    clips = []
    for number, key in enumerate(REF):
        wav = folder / f"{key}.wav"
        soundfile.write(
            wav, 0.1 * np.sin(2 * np.pi * (200 + 50 * number) * np.arange(8000) / 16000), 16000
        )
        facts = {
            "key": key,
            "wav": str(wav),
            "txt": REF[key],
            "lang": key[:2],
            "duration": 0.5,
            "speaker": key,
        }
        clips.append(facts)
    _write_lines(folder / "test/data.list", clips)
    counts = {
        "utterances": {"train": 10, "dev": 1, "test": 2},
        "hours": {"train": 1.5, "dev": 0.1, "test": 0.2},
    }
    langs = {"ca": {**counts, "hours_before": 9.0, "lambda": 0.25}, "ky": counts}
    stats = {"corpus": "commonvoice", "langs": langs, "total": counts, **marks}
    (folder / "stats.json").write_text(json.dumps(stats))
    return folder / "stats.json"


def write_experiment(
    folder: Path, *, head: str = "hsoftmax", attention: dict[str, str] = GOOD
) -> Path:
    """Write an experiment folder with everything in it; a softmax head has no tree."""
    folder.mkdir(parents=True)
    conf = "{tree: tree.json}" if head == "hsoftmax" else "{bias: true}"
    (folder / "train.yaml").write_text(TRAIN_YAML.format(head=head, conf=conf))
    start = Start(
        command=("wenet-hs", "train", "--model_dir", f"exp/{head}"),
        packages={"torch": "2.11.0"},
        commit="1a2b3c4",
    )
    write_run(folder, RunRecord(starts=(start,), files={"units.txt": "0123abcd"}))
    records = [
        {"kind": kind, "step": 10 * step, "epoch": step, "loss": 40 / step, "loss_att": 30 / step, "loss_ctc": 9 / step,
         "plateau_ctc": 3.0, "accuracy": step / 10, "bits_per_unit": 4 / step, "lr": 1e-3 * step,
         "seconds": 60.0 * step}
        for step in range(1, 6)
        for kind in ("train", "valid")
    ]  # fmt: skip
    _write_lines(folder / "metrics.jsonl", records)
    if head == "hsoftmax":
        Tree.huffman([0, 0, 3, 5, 7], ["<blank>", "<unk>", "a", "<", "&"]).save(
            folder / "tree.json"
        )
    for mode, hypothesis in {"attention": attention, "ctc_greedy_search": BAD}.items():
        (folder / "test" / mode).mkdir(parents=True)
        report = score(REF, hypothesis, rules=Rules(metric="cer"), langs=LANGS, num_resamples=50)
        write_report(folder, report, mode)
    speeds = {
        "attention": {"wall_seconds": 25.0, "rtf": 0.25, "sum_rtf_by_lang": {"ca": 0.3, "ky": 0.2}}
    }
    conditions = {
        "device": "cpu",
        "num_threads": 2,
        "beam_size": 10,
        "finished_list": True,
        "nbest": None,
    }
    rtf = {"audio_seconds": 100.0, "seconds": {"encoder": 9.0}, "modes": speeds, **conditions}
    (folder / "test/rtf.json").write_text(
        json.dumps({**rtf, "lm": {"units.arpa": "0ab1"}, "model": {}})
    )
    _write_lines(
        folder / "test/attention/hyps.jsonl", [{"key": key, "confidence": 0.5} for key in REF]
    )
    return folder


def write_report(folder: Path, report: Report, *modes: str) -> None:
    """Replace the scoring of these modes, or of all."""
    for mode in modes or [path.parent.name for path in folder.glob("test/*/score.json")]:
        (folder / "test" / mode / "score.json").write_text(report_to_json(report), "utf-8")


def replace_text(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def _write_lines(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
