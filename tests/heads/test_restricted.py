# SPDX-License-Identifier: Apache-2.0
"""Heads limited to some units, against the distribution over all units renormalised by its
definition.

Dimension key: N rows, V units.
"""

import math

import pytest
import torch
from test_heads_contract import HEADS, assert_are_best, make_head, rows
from torch import Tensor

from wenet_hs.heads import OutputHead
from wenet_hs.heads.restricted import restrict_head

KEPT = [12, 13, 14, 17, 24, 33, 34, 38, 39]


def by_definition(head: OutputHead, hidden: Tensor, kept: list[int]) -> Tensor:
    """(N, V) in float64: renormalised over the units that are left."""
    log_probs = head.double().log_probs(hidden.double()).detach()
    head.float()
    found = torch.full_like(log_probs, -math.inf)
    found[:, kept] = log_probs[:, kept].log_softmax(-1)
    return found


@pytest.mark.parametrize("kind", HEADS)
def test_it_is_the_renormalised_distribution(kind: str) -> None:
    head = make_head(kind, 40)
    hidden, _ = rows(head)
    expected = by_definition(head, hidden, KEPT).float()
    restricted = restrict_head(head, dict(zip(KEPT, KEPT, strict=True)))
    found = restricted.log_probs(hidden)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)
    for k in (1, 4, 40):  # at most the units that are left
        values, ids = restricted.topk(hidden, k)
        assert values.shape == ids.shape == (6, min(k, len(KEPT)))
        assert_are_best(expected, values, ids)
    targets = torch.tensor([KEPT[row] for row in range(6)])
    torch.testing.assert_close(
        restricted.nll(hidden, targets), -expected.gather(1, targets[:, None])[:, 0]
    )
    assert restricted.nll(hidden[:1], torch.tensor([1])).isposinf().all()
    labels = restricted.label_log_probs(hidden[None], targets[None, :3])
    torch.testing.assert_close(labels[0], expected[:, targets[:3]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_all_units_change_nothing(kind: str) -> None:
    head = make_head(kind, 40)
    hidden, targets = rows(head)
    restricted = restrict_head(head, {unit: unit for unit in range(40)})
    tolerance = {"atol": 2e-6, "rtol": 0} if kind == "adaptive" else {"atol": 0, "rtol": 0}
    torch.testing.assert_close(restricted.log_probs(hidden), head.log_probs(hidden), **tolerance)
    for found, expected in zip(restricted.topk(hidden, 9), head.topk(hidden, 9), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_new_units_share_the_probability_of_their_source(kind: str) -> None:
    head = make_head(kind, 40)
    hidden, _ = rows(head)
    # 40 and 41 are beside 7; 42 is beside 20, which is not left itself.
    restricted = restrict_head(head, {0: 0, 7: 7, 29: 29, 40: 7, 41: 7, 42: 20}, 43)
    expected = by_definition(head, hidden, [0, 7, 20, 29]).float()
    found = restricted.log_probs(hidden)
    assert found.shape == (6, 43)
    for unit, source, share in (
        (0, 0, 1),
        (29, 29, 1),
        (42, 20, 1),
        (7, 7, 3),
        (40, 7, 3),
        (41, 7, 3),
    ):
        torch.testing.assert_close(
            found[:, unit], expected[:, source] - math.log(share), atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(6), atol=1e-6, rtol=0)
    assert_are_best(found, *restricted.topk(hidden, 6))
