# SPDX-License-Identifier: Apache-2.0
"""Made-up experiment folders, complete and hand-checkable."""

import json
from pathlib import Path

import numpy as np
import soundfile

from wenet_hs.score import Rules, report_to_json, score

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
provenance:
  command: wenet-hs train --model_dir exp/{head}
  git: 1a2b3c4
  "sha256 of units.txt": 0123abcd
  torch: 2.11.0
"""


def write_data(folder: Path, **marks: object) -> Path:
    """What `prepare` leaves: stats.json, and the test list with a clip of half a second for each key."""
    (folder / "test").mkdir(parents=True)
    (folder / "train").mkdir()
    lines = []
    for number, key in enumerate(REF):
        wav = folder / f"{key}.wav"
        soundfile.write(wav, 0.1 * np.sin(2 * np.pi * (200 + 50 * number) * np.arange(8000) / 16000), 16000)
        facts = {"key": key, "wav": str(wav), "txt": REF[key], "lang": key[:2], "duration": 0.5, "speaker": key}
        lines.append(json.dumps(facts) + "\n")
    (folder / "test/data.list").write_text("".join(lines), "utf-8")
    counts = {"utterances": {"train": 10, "dev": 1, "test": 2}, "hours": {"train": 1.5, "dev": 0.1, "test": 0.2}}
    langs = {"ca": {**counts, "hours_before": 9.0, "lambda": 0.25}, "ky": counts}
    stats = {"corpus": "commonvoice", "langs": langs, "total": counts, **marks}
    (folder / "stats.json").write_text(json.dumps(stats))
    return folder / "stats.json"


def write_scores(folder: Path, modes: dict[str, dict[str, str]]) -> None:
    for mode, hypothesis in modes.items():
        report = score(REF, hypothesis, rules=Rules(metric="cer"), langs=LANGS, num_resamples=50)
        (folder / mode).mkdir(parents=True)
        (folder / mode / "score.json").write_text(report_to_json(report), "utf-8")


def write_metrics(path: Path, steps: int = 5) -> None:
    records = [
        {"kind": kind, "step": 10 * step, "epoch": step, "loss": 40 / step, "loss_att": 30 / step, "loss_ctc": 9 / step,
         "accuracy": step / 10, "bits_per_unit": 4 / step, "lr": 1e-3 * step, "seconds": 60.0 * step}
        for step in range(1, steps + 1)
        for kind in ("train", "valid")
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
