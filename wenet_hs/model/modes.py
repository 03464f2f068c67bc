# SPDX-License-Identifier: Apache-2.0
"""The table of decoding modes: what each needs of a model, and facts about it. Their searches are in `decode/modes.py`.

Flags, help texts, timing, reports and cards read this table.
"""

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from wenet_hs.base.extensions import is_known_name, known_names, load_extension, wrong_object

Branch = Literal["ctc", "decoder"]
"""A part of a model that turns the output of the encoder into units."""
CTC_STAGE = "ctc"
"""The stage of the best units of each frame."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A decoding mode."""

    help: str
    """For `--help`."""
    branches: frozenset[Branch]
    """The branches of a model that it uses."""
    stages: tuple[str, ...] = ()
    """The stages of the time table that it needs besides the encoder and its own search."""
    is_recommended: bool = False
    """Whether `--modes auto` has it."""
    is_greedy: bool = False
    """It returns one hypothesis and uses no language model."""
    has_length_options: bool = False
    """It reads finished_list, length_penalty, max_len_ratio or min_len_ratio."""
    favours_short_texts: bool = False
    """With finished_list, it returns texts that are too short unless a length_penalty is set."""
    max_ctc_weight: float = math.inf


MODES = {
    "ctc_greedy_search": Mode(
        help="best CTC unit per frame, fastest",
        branches=frozenset({"ctc"}),
        stages=(CTC_STAGE,),
        is_recommended=True,
        is_greedy=True,
    ),
    "ctc_prefix_beam_search": Mode(
        help="CTC, summed over alignments",
        branches=frozenset({"ctc"}),
        stages=(CTC_STAGE,),
        is_recommended=True,
    ),
    "attention": Mode(
        help="attention decoder only, WeNet's rules",
        branches=frozenset({"decoder"}),
        has_length_options=True,
        favours_short_texts=True,
    ),
    "attention_rescoring": Mode(
        help="n-best of ctc_prefix_beam_search, rescored by the decoder",
        branches=frozenset({"ctc", "decoder"}),
        stages=(CTC_STAGE, "ctc_prefix_beam_search"),
        is_recommended=True,
    ),
    "joint": Mode(
        help="decoder and CTC in one pass",
        branches=frozenset({"ctc", "decoder"}),
        is_recommended=True,
        has_length_options=True,
        max_ctc_weight=1.0,
    ),
}
"""From simple to exact: a model without the default mode has the last one that it supports (`usual_mode`).

Results and messages have this order too.
"""
AUTO_MODES = "auto"
"""What `--modes` has for the recommended modes of a model."""
DEFAULT_MODE = "attention_rescoring"
"""Of a model with CTC and a decoder; see `usual_mode`."""


def find_mode(name: str) -> Mode:
    """A mode of the table, or of an installed package, which is then imported.

    Raises ValueError for an unknown name, ConfigError if what the package declares is no mode.
    """
    if not is_known_name("mode", MODES, name):
        raise ValueError(f"mode {name!r}: must be one of {', '.join(known_names('mode', MODES))}")
    if name in MODES:
        return MODES[name]
    mode = load_extension("mode", name)
    if not isinstance(mode, Mode):
        raise wrong_object("mode", name, "is no wenet_hs.decode.modes.SearchMode")
    return mode


def modes_with(branches: Set[Branch]) -> list[str]:
    """Our modes that use only these branches."""
    return [name for name, mode in MODES.items() if mode.branches <= branches]


def recommended_modes(modes: Collection[str]) -> list[str]:
    """Those of the modes that are recommended; all of them if none is.

    Without CTC the decoder is less exact than with it. A model without CTC has only this mode.
    """
    return [name for name in modes if MODES[name].is_recommended] or [*modes]


def usual_mode(modes: Sequence[str]) -> str:
    """The mode to use or to show if none is asked for: DEFAULT_MODE if it is there, or the last one."""
    return DEFAULT_MODE if DEFAULT_MODE in modes else modes[-1]
