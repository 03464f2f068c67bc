# SPDX-License-Identifier: Apache-2.0
"""Compare the batched searches of a trained model with plain ones, in batches of 1, of 3 and of all
utterances.

Example: python tests/decode/compare_searches.py examples/mini/s0/exp/hsoftmax examples/mini/s0/data/test/data.list 12

The shortest utterances of the list are decoded, here 12, also by plain_search.py and by the prefix
search in plain Python of decode/ctc_search.py. Scores and units of the whole n-best must be equal,
otherwise the exit code is 1.
"""

import sys
from pathlib import Path

import torch
from plain_search import Scored, assert_same_nbest, finished_list, wenet_search
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.data.features import utterance_features
from wenet_hs.decode import DecodeOptions, decode
from wenet_hs.decode.ctc_search import prefix_beam_search_with_lm
from wenet_hs.manifest.data_list import read_data_list
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.experiment import load_experiment

OPTIONS = DecodeOptions(beam_size=4, ctc_weight=0.3)


def main(model_dir: str, test_data: str, count: str) -> None:
    """Print one line per mode. Raise AssertionError at the first difference."""
    torch.set_num_threads(1)
    experiment = load_experiment(model_dir)
    shortest = sorted(read_data_list(Path(test_data)), key=lambda one: one.duration or 0.0)[
        : int(count)
    ]
    features = [utterance_features(one, experiment.frontend) for one in shortest]
    for mode in ("attention", "joint", "ctc_prefix_beam_search"):
        expected = [plain(experiment.model, one, mode) for one in features]
        for size in (1, 3, len(features)):
            for first in range(0, len(features), size):
                batch = features[first : first + size]
                padded, lengths = (
                    pad_sequence(batch, batch_first=True),
                    torch.tensor([len(one) for one in batch]),
                )
                found = decode(experiment.model, padded, lengths, [mode], OPTIONS)[mode]
                for nbest, expected_nbest in zip(found, expected[first:], strict=False):
                    assert_same_nbest(nbest, expected_nbest)
        sys.stdout.write(f"{model_dir}: {mode}: {len(features)} utterances, no difference\n")


@torch.no_grad()
def plain(model: AsrModel, features: Tensor, mode: str) -> Scored:
    """The n-best of an utterance."""
    memory = model.encode(features[None], torch.tensor([len(features)]))
    if mode == "attention":
        return wenet_search(model, memory, OPTIONS)
    if mode == "joint":
        return finished_list(model, memory, OPTIONS, OPTIONS.ctc_weight)
    best, (blank, eos) = (
        model.ctc.head.topk(memory[0], OPTIONS.beam_size),
        (model.ctc.blank, model.special.eos),
    )
    _, (nbest,) = prefix_beam_search_with_lm(
        *best, memory[1], blank=blank, eos=eos, options=OPTIONS, lm=None
    )
    return [(prefix.ids, prefix.score) for prefix in nbest]


if __name__ == "__main__":
    main(*sys.argv[1:])
