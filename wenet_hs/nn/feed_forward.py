# SPDX-License-Identifier: Apache-2.0
"""The feed-forward module and the activations a configuration may name.   Dimension key: B batch, T time, D width."""

from torch import Tensor, nn

from wenet_hs.nn.dropout import Dropout
from wenet_hs.nn.linear import Linear

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
}


def make_activation(name: str) -> nn.Module:
    """The activation of WeNet's name; ValueError lists the names there are."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


class FeedForward(nn.Module):
    """Two linear layers, applied to each position alone."""

    def __init__(self, size: int, hidden_size: int, *, dropout_rate: float, activation: str) -> None:
        super().__init__()
        self.w_1 = Linear(size, hidden_size)
        self.activation = make_activation(activation)
        self.dropout = Dropout(dropout_rate)
        self.w_2 = Linear(hidden_size, size)

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """x (…, D) → (…, D), added to `plus` if it is given."""
        out: Tensor = self.w_2(self.dropout(self.w_1(x, self.activation)), plus=plus)
        return out
