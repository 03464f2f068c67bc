# SPDX-License-Identifier: Apache-2.0
"""Table 6 of Liu et al.

(2023) with trained models: is recognition with a tree faster than with a softmax?

The models take turns on the same utterances, language by language: from features to hypotheses,
beam 10, batches of 16. Features are computed beforehand, as both heads need the same. A real-time
factor (RTF) is seconds per second of speech, the median over the rounds. "Tokens" is the mean
number of units of a reference.

Example: python benchmarks/table6.py --model_dir exp/softmax --model_dir exp/hsoftmax --data_list data/test/data.list \\
    --threads 1 --title "UCLA" --out benchmarks/notes/table6_ucla
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median

import torch
from paired import Facts, Side, alternate, body_of, make_parser, publish, ratios
from torch import Tensor

from wenet_hs.data.features import utterance_features
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import decode, pad_features
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.score.tables import markdown_table

MODES = ("attention", "joint", "attention_rescoring")
BATCH = 16
PAPER = (
    "The paper's Table 6 (GPU; not this speech, not paired): RTF for tr, pl, ru with softmax 0.022, 0.023, 0.026, with "
    "H-Softmax 0.018, 0.018, 0.020."
)


def batches_of(
    utterances: Sequence[Utterance], experiment: Experiment
) -> list[tuple[Tensor, Tensor]]:
    """Padded features and lengths, shortest first."""
    features = sorted(
        (utterance_features(utterance, experiment.frontend) for utterance in utterances), key=len
    )
    return [
        pad_features(experiment.model, features[start : start + BATCH])
        for start in range(0, len(features), BATCH)
    ]


def side_of(model: AsrModel, batches: Sequence[tuple[Tensor, Tensor]], mode: str) -> Side:
    """Features → hypotheses of all batches."""
    return lambda: [decode(model, *batch, [mode], DecodeOptions(beam_size=10)) for batch in batches]


def main() -> None:
    """Measure and publish."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--model_dir",
        type=Path,
        action="append",
        required=True,
        help="trained model; the first is the baseline",
    )
    parser.add_argument(
        "--data_list", type=Path, required=True, help="utterances with their languages"
    )
    parser.add_argument("--title", required=True, help="what the speech is, for the heading")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    experiments: dict[str, Experiment] = {
        path.name: load_experiment(path, device=torch.device(args.device))
        for path in args.model_dir
    }
    if len(experiments) < len(args.model_dir):
        parser.error(
            "--model_dir: the folders need different names, which are the names in the table"
        )
    first = next(iter(experiments.values()))
    by_lang: dict[str, list[Utterance]] = {}
    for utterance in read_data_list(args.data_list):
        by_lang.setdefault(utterance.lang or "", []).append(utterance)
    baseline, *others = experiments
    header = ["mode", "language", "tokens", *(f"{name}, RTF" for name in experiments)]
    rows, records = list[list[str]](), list[Facts]()
    for mode, (lang, utterances) in product(MODES, sorted(by_lang.items())):
        batches = batches_of(utterances, first)
        speech_s = sum(float(lengths.sum()) for _, lengths in batches) * first.frontend.frame_s
        tokens = fmean(len(first.tokenizer.split(utterance.txt)) for utterance in utterances)
        times = alternate(
            {name: side_of(one.model, batches, mode) for name, one in experiments.items()},
            args.rounds,
            device=args.device,
        )
        rtf, faster = (
            {name: median(of) / speech_s for name, of in times.items()},
            ratios(times, baseline),
        )
        records.append({"mode": mode, "lang": lang, "tokens": tokens, "rtf": rtf, "faster": faster})
        rows.append([mode, lang, f"{tokens:.1f}", *(f"{rtf[name]:.4f}" for name in experiments)])
        rows[-1] += [f"{faster[name]:.2f}×" for name in others]
        print(rows[-1], flush=True)
    table = markdown_table([*header, *(f"{name}, faster by" for name in others)], rows)
    text = f"{body_of(__doc__)}\n\n{table}\n\n{PAPER}"
    publish(f"Table 6: {args.title}", text, {"records": records}, device=args.device, out=args.out)


if __name__ == "__main__":
    main()
