# SPDX-License-Identifier: Apache-2.0
"""The flat head against PyTorch's own losses."""

import pytest
import torch
import torch.nn.functional as F

from wenet_hs.heads import SoftmaxHead


def test_is_a_linear_layer_and_a_softmax() -> None:
    torch.manual_seed(0)
    head = SoftmaxHead(4, 9)
    assert {name: tuple(value.shape) for name, value in head.state_dict().items()} == {
        "output.weight": (9, 4),
        "output.bias": (9,),
    }
    hidden, targets = torch.randn(5, 4), torch.randint(9, (5,))
    logits = head.output(hidden)
    torch.testing.assert_close(head.log_probs(hidden), logits.log_softmax(-1))
    torch.testing.assert_close(head.nll(hidden, targets), F.cross_entropy(logits, targets, reduction="none"))


def test_smoothing_is_wenets() -> None:
    # WeNet's q has ε/(V-1) beside the target, PyTorch's ε'/V everywhere: the same q where ε' = ε·V/(V-1).
    torch.manual_seed(0)
    head = SoftmaxHead(4, 9)
    hidden, targets = torch.randn(5, 4), torch.randint(9, (5,))
    entropy = -(0.9 * torch.tensor(0.9).log() + 0.1 * torch.tensor(0.1 / 8).log())
    cross = F.cross_entropy(head.output(hidden), targets, reduction="none", label_smoothing=0.1 * 9 / 8)
    torch.testing.assert_close(head.loss(hidden, targets, 0.1), cross - entropy)


@pytest.mark.parametrize(("dim", "num_units"), [(0, 3), (3, 0)])
def test_sizes_must_be_positive(dim: int, num_units: int) -> None:
    with pytest.raises(ValueError, match=f"head: dim {dim} and num_units {num_units} must be at least 1"):
        SoftmaxHead(dim, num_units)
