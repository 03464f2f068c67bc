# SPDX-License-Identifier: Apache-2.0
"""Seconds of audio that one core prepares per second, from clips to features, with the settings of
a config.

The clips are made up: noise of 1 to 10 s at 48 kHz, in mp3 (wav where libsndfile writes no mp3).
`worker`: decoding, resampling, speed, features with dither, masks; `device`: the same without
features, which the device of the model computes, and without dither. Processor time of one thread,
the median over the rounds. Core-hours are those of `--hours` in each epoch of the config.

Example: python benchmarks/features.py --threads 1 --out benchmarks/notes/features_cpu
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from paired import body_of, make_parser, number, publish
from release import write_clips

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.config.load import load_config
from wenet_hs.data.dataset import SpeechDataset
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.score.tables import markdown_table
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

CONFIG = Path(__file__).parents[1] / "conf" / "paper_cv.yaml"


def make_dataset(utterances: list[Utterance], conf: DatasetConf) -> SpeechDataset:
    """A training set whose encoder keeps a quarter of the frames."""
    tokenizer = make_tokenizer("char", UnitTable.from_units("ab"))
    return SpeechDataset(
        utterances, tokenizer, conf, training=True, seed=0, output_length=lambda frames: frames // 4
    )


def audio_per_second(dataset: SpeechDataset, rounds: int) -> float:
    """Seconds of audio per second of processor time."""
    speeds = []
    for epoch in range(rounds + 1):  # the first one is not counted
        began = time.process_time()
        for item in range(len(dataset)):
            dataset.make_example(item, epoch)
        speeds.append(dataset.durations.sum() / (time.process_time() - began))
    return statistics.median(speeds[1:])


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--config",
        type=Path,
        default=CONFIG,
        help="YAML of the experiment (default: paper_cv.yaml)",
    )
    parser.add_argument(
        "--clips", type=int, default=200, help="clips per round (default: %(default)s)"
    )
    parser.add_argument(
        "--hours", type=float, default=450.0, help="hours of an epoch (default: %(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = load_config(args.config)
    on_worker = config.dataset_conf
    no_dither = on_worker.fbank_conf.model_copy(update={"dither": 0.0})
    on_device = on_worker.model_copy(update={"features_on": "device", "fbank_conf": no_dither})
    with tempfile.TemporaryDirectory() as folder:
        clips = write_clips(Path(folder) / "clips", args.clips)
        utterances = [
            Utterance(key=f"u{i}", wav=str(path), txt="ab", duration=seconds)
            for i, (path, seconds) in enumerate(clips)
        ]
        speeds = {
            name: audio_per_second(make_dataset(utterances, conf), args.rounds)
            for name, conf in (("worker", on_worker), ("device", on_device))
        }
    core_hours = {name: args.hours * config.max_epoch / speed for name, speed in speeds.items()}
    columns = [
        "features_on",
        "audio s per core-second",
        f"core-hours, {args.hours:g} h × {config.max_epoch} epochs",
    ]
    rows = [[name, number(speed), number(core_hours[name])] for name, speed in speeds.items()]
    text = f"{body_of(__doc__)}\n\n{markdown_table(columns, rows)}"
    facts = {"audio_seconds_per_second": speeds, "core_hours": core_hours}
    publish("From clips to features", text, facts, device="cpu", out=args.out)


if __name__ == "__main__":
    main()
