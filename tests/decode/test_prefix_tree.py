# SPDX-License-Identifier: Apache-2.0
"""Hypotheses scored as trees: shared prefixes once, and the same scores however they are cut into trees and batches."""

import pytest
import torch
from small_models import SPECIAL, small_model

from wenet_hs.decode import rescoring
from wenet_hs.decode.rescoring import PrefixTree, score_sequences

SEQUENCES = [
    (0, (3, 4, 5)),
    (0, (3, 4, 6)),
    (0, (3,)),
    (0, ()),
    (1, (7, 7, 7, 7)),
    (2, (SPECIAL.eos, 3)),  # a unit like any other where CTC writes it
    (2, (SPECIAL.eos,)),
    (2, ()),
]


def test_what_begins_alike_is_one_node() -> None:
    tree = PrefixTree(0, SPECIAL)
    for number, (_, ids) in enumerate(SEQUENCES[:4]):
        tree.add(number, ids)
    assert (tree.units, tree.parents, tree.depths) == ([2, 3, 4, 5, 6], [-1, 0, 1, 2, 2], [0, 1, 2, 3, 3])
    assert len(tree.edges) == 4 + 4  # a unit of each node but the root, and four ends
    assert [number for number, _ in tree.paths] == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_nodes", "max_total_nodes"), [(512, 8192), (4, 8), (1, 1), (6, 8192)])
def test_scores_are_those_of_each_sequence_alone(
    max_nodes: int, max_total_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescoring, "MAX_NODES", max_nodes)
    monkeypatch.setattr(rescoring, "MAX_TOTAL_NODES", max_total_nodes)
    model, lengths = small_model(seed=2), torch.tensor([7, 5, 6])
    memory = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))
    found = score_sequences(model.decoder, model.head, (memory, lengths), SEQUENCES, SPECIAL)
    for score, (row, ids) in zip(found, SEQUENCES, strict=True):
        units_in = torch.tensor([(SPECIAL.sos, *ids)])
        with torch.no_grad():
            hidden = model.decoder(memory[[row]], lengths[[row]], units_in, torch.tensor([len(ids) + 1]))
            expected = -float(model.head.nll(hidden, torch.tensor([[*ids, SPECIAL.eos]])).sum())
        assert score == pytest.approx(expected, abs=1e-5)
