# SPDX-License-Identifier: Apache-2.0
"""The table of decoding modes: what each needs of a model, and facts about it.

Their searches are in `decode/modes.py`.

Flags, help texts, timing, reports and cards read this table.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal, get_args

from wenet_hs.base.extensions import is_known_name, known_names, load_extension, wrong_object

Branch = Literal["ctc", "decoder"]
"""A part of a model that turns the output of the encoder into units."""
CTC_STAGE = "ctc"
"""The stage of the best CTC units of each frame."""
PREFIX_STAGE = "ctc_prefix_beam_search"
"""The stage of the CTC prefix search, which needs CTC_STAGE."""
LENGTH_OPTIONS = frozenset({"finished_list", "length_penalty", "max_len_ratio", "min_len_ratio"})
"""The options of `DecodeOptions` about the length of a hypothesis, which some modes do not read."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A decoding mode."""

    help: str
    """For `--help`."""
    branches: frozenset[Branch]
    """The branches of a model that it uses."""
    stages: tuple[str, ...] = ()
    """The stages of the time table that its search reads besides the encoder and itself: CTC_STAGE,
    PREFIX_STAGE.

    A search that reads the result of a stage which is not listed here fails (`EncodedBatch`).
    """
    is_recommended: bool = False
    """Whether `--modes auto` has it; without an effect in a mode of a package."""
    is_greedy: bool = False
    """It returns one hypothesis and uses no language model."""
    length_options: frozenset[str] = frozenset()
    """Those of LENGTH_OPTIONS that it reads."""
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
        length_options=LENGTH_OPTIONS,
        favours_short_texts=True,
    ),
    "attention_rescoring": Mode(
        help="n-best of ctc_prefix_beam_search, rescored by the decoder",
        branches=frozenset({"ctc", "decoder"}),
        stages=(CTC_STAGE, PREFIX_STAGE),
        is_recommended=True,
    ),
    "joint": Mode(
        help="decoder and CTC in one pass",
        branches=frozenset({"ctc", "decoder"}),
        is_recommended=True,
        length_options=LENGTH_OPTIONS,
        max_ctc_weight=1.0,
    ),
}
"""From simple to exact: a model without the default mode has the last one that it supports
(`usual_mode`).

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
    if not isinstance(mode.branches, frozenset) or not mode.branches <= set(get_args(Branch)):
        found = (
            f"its branches are {mode.branches!r}, not a frozenset of {', '.join(get_args(Branch))}"
        )
        raise wrong_object("mode", name, found)
    return mode


def modes_with(branches: Set[Branch]) -> list[str]:
    """Our modes that use only these branches."""
    return [name for name, mode in MODES.items() if mode.branches <= branches]


def modes_reading(option: str) -> list[str]:
    """Our modes that read one of LENGTH_OPTIONS."""
    return [name for name, mode in MODES.items() if option in mode.length_options]


def greedy_modes() -> list[str]:
    """Our modes with one hypothesis and no language model."""
    return [name for name, mode in MODES.items() if mode.is_greedy]


def beam_search_instead(mode: Mode) -> str:
    """Our first mode with several hypotheses that needs no branch which this mode does not need."""
    return next(name for name in modes_with(mode.branches) if not MODES[name].is_greedy)


def branches_of(*, has_decoder: bool) -> frozenset[Branch]:
    """The branches of a model, trained or not: each has a CTC layer."""
    return frozenset({"ctc", "decoder"} if has_decoder else {"ctc"})


def trained_branches(branches: Set[Branch], ctc_weight: float) -> frozenset[Branch]:
    """The branches of a model whose loss has a weight: that of CTC, and the rest for the decoder."""
    loss_weights: dict[Branch, float] = {"ctc": ctc_weight, "decoder": 1 - ctc_weight}
    return frozenset(branch for branch in branches if loss_weights[branch] > 0)


def recommended_modes(modes: Sequence[str]) -> list[str]:
    """Those of our modes that are recommended; if none is, the last one, which is the most exact.

    None is recommended for a model without CTC: modes of the decoder alone are less exact than
    those with CTC.
    """
    recommended = [name for name in modes if MODES[name].is_recommended]
    return recommended or list(modes[-1:])


def usual_mode(modes: Sequence[str]) -> str:
    """The mode to use or to show if none is asked for: DEFAULT_MODE if it is there, or the last
    one.
    """
    return DEFAULT_MODE if DEFAULT_MODE in modes else modes[-1]
