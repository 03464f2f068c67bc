# SPDX-License-Identifier: Apache-2.0
"""The order of decoding modes in results."""

from collections.abc import Iterable, Sequence

from wenet_hs.model.modes import DEFAULT_MODE, MODES


def sort_modes(modes: Iterable[str]) -> list[str]:
    """Decoding modes in the order of `MODES`, then others by name."""
    order = list(MODES)
    return sorted(modes, key=lambda mode: _sort_key(mode, order))


def default_modes_first(modes: Iterable[str]) -> list[str]:
    """The default decoding mode, the other modes in the opposite order of `MODES`, then others by
    name."""
    order = [DEFAULT_MODE, *reversed(MODES)]
    return sorted(modes, key=lambda mode: _sort_key(mode, order))


def _sort_key(mode: str, order: Sequence[str]) -> tuple[int, str]:
    """The position of a mode in `order`, where unknown modes come last, and its name."""
    position = order.index(mode) if mode in order else len(order)
    return position, mode
