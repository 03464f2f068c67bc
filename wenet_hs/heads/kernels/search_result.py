# SPDX-License-Identifier: Apache-2.0
"""What a search for the k best units returns, and when it gives a row up.

Dimension key: N rows, K best units, G rows given up.
"""

from typing import NamedTuple

from torch import Tensor


class SearchResult(NamedTuple):
    """The k best units of each row."""

    log_probs: Tensor
    """(N, K)"""
    unit_ids: Tensor
    """(N, K) int64."""
    given_up: Tensor | None
    """(G,) the rows that were given up, whose results have no meaning; None or empty if there are
    none.
    """


class OpenLimits(NamedTuple):
    """How many nodes the search of a row may open before it is given up.

    To open a node is to compute the costs of its children.
    """

    in_all: int
    before_first_leaf: int
    """Nodes that may be opened as long as no leaf is found."""
