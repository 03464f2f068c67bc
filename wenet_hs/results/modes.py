# SPDX-License-Identifier: Apache-2.0
"""The order of decoding modes in results, and the mode that is shown."""

from collections.abc import Collection, Iterable

from wenet_hs.model.modes import DEFAULT_MODE, MODES


def sort_modes(modes: Iterable[str]) -> list[str]:
    """Decoding modes in the order of `MODES`, then others by name."""
    order = list(MODES)
    return sorted(modes, key=lambda mode: (order.index(mode) if mode in order else len(order), mode))


def usual_mode(modes: Collection[str]) -> str:
    """The default decoding mode if it is there, or the last one in the order of `sort_modes`."""
    return DEFAULT_MODE if DEFAULT_MODE in modes else sort_modes(modes)[-1]
