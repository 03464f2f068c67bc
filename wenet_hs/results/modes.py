# SPDX-License-Identifier: Apache-2.0
"""The order of decoding modes in results."""

from collections.abc import Iterable, Sequence

from wenet_hs.model.modes import DEFAULT_MODE, MODES


def sort_modes(modes: Iterable[str]) -> list[str]:
    """Decoding modes in the order of `MODES`, and then all others by name."""
    order = list(MODES)
    return sorted(modes, key=lambda mode: _sort_key(mode, order))


def default_modes_first(modes: Iterable[str]) -> list[str]:
    """Decoding modes in the order in which one of them is chosen to be shown.

    The default mode is first. The others are in the opposite order of `MODES`, and modes that are
    not among these come last, by name.
    """
    order = [DEFAULT_MODE, *reversed(MODES)]
    return sorted(modes, key=lambda mode: _sort_key(mode, order))


def _sort_key(mode: str, order: Sequence[str]) -> tuple[int, str]:
    """The position of a mode in `order`, where unknown modes come last, and its name."""
    position = order.index(mode) if mode in order else len(order)
    return position, mode
