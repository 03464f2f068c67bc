# SPDX-License-Identifier: Apache-2.0
"""Compare the batched searches of a trained model with plain searches, for several batch sizes.

Example: python tests/decode/compare_searches.py --model_dir examples/mini/s0/exp/hsoftmax \\
             --test_data examples/mini/s0/data/test/data.list --utterances 12

The shortest utterances of the list are decoded in batches of 1, of 3 and of all. The plain searches decode one
utterance without cache, batch or early stop (plain_search.py, and the prefix search in plain Python of decode/ctc.py):
attention by WeNet's rules, joint with CTC, and CTC prefix search. Scores and units of the whole n-best must be equal;
the order of two equal scores may differ. Prints one line per mode; the exit code is 1 if one differs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from plain_search import Scored, assert_same_nbest, finished_list, wenet_search
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.build import load_experiment
from wenet_hs.data.features import utterance_features
from wenet_hs.decode import DecodeOptions, decode
from wenet_hs.decode.ctc import prefix_beam_search_with_lm
from wenet_hs.manifest import read_data_list
from wenet_hs.model import AsrModel

MODES = ("attention", "joint", "ctc_prefix_beam_search")


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per mode. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_dir", type=Path, required=True)
    parser.add_argument("--test_data", type=Path, required=True)
    parser.add_argument("--utterances", type=int, default=12, help="the shortest ones (default: %(default)s)")
    parser.add_argument("--beam_size", type=int, default=4)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    experiment = load_experiment(args.model_dir)
    shortest = sorted(read_data_list(args.test_data), key=lambda one: one.duration or 0.0)[: args.utterances]
    features = [utterance_features(one, experiment.config.dataset_conf) for one in shortest]
    options = DecodeOptions(beam_size=args.beam_size, ctc_weight=0.3)
    differences = [compare(experiment.model, features, mode, options) for mode in MODES]
    for mode, found in zip(MODES, differences, strict=True):
        sys.stdout.write(f"{args.model_dir.name}: {mode}: {len(features)} utterances, {found or 'no difference'}\n")
    return 1 if any(differences) else 0


def compare(model: AsrModel, features: list[Tensor], mode: str, options: DecodeOptions) -> str:
    """The first difference; empty if there is none."""
    expected = [plain(model, one, mode, options) for one in features]
    for size in (1, 3, len(features)):
        for first in range(0, len(features), size):
            batch = features[first : first + size]
            lengths = torch.tensor([len(one) for one in batch])
            found = decode(model, pad_sequence(batch, batch_first=True), lengths, [mode], options)[mode]
            for place, nbest in enumerate(found):
                try:
                    assert_same_nbest(nbest, expected[first + place])
                except AssertionError as error:
                    return f"utterance {first + place} in a batch of {size}: {error}"
    return ""


@torch.no_grad()
def plain(model: AsrModel, features: Tensor, mode: str, options: DecodeOptions) -> Scored:
    """The n-best of an utterance."""
    memory = model.encode(features[None], torch.tensor([len(features)]))
    if mode == "attention":
        return wenet_search(model, memory, options)
    if mode == "joint":
        return finished_list(model, memory, options, options.ctc_weight)
    best = model.ctc.topk(memory[0], min(options.beam_size, model.num_units))
    special = (model.ctc.blank, model.special.eos)
    _, (nbest,) = prefix_beam_search_with_lm(
        *best, memory[1], blank=special[0], eos=special[1], options=options, lm=None
    )
    return [(prefix.ids, prefix.score) for prefix in nbest]


if __name__ == "__main__":
    sys.exit(main())
