# SPDX-License-Identifier: Apache-2.0
"""The table of decoding modes: which branches of a model each mode uses, and facts about it.

The searches of the modes are in `decode/modes.py`. Flags, help texts, timing, reports and cards
read this table.
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
    """The stages whose results its search reads: CTC_STAGE, PREFIX_STAGE. The time table lists them
    beside the encoder and the search itself.

    A search that reads the result of a stage which is not listed here fails (`EncodedBatch`).
    """
    is_recommended: bool = False
    """Whether `--modes auto` selects it; without an effect in a mode of a package."""
    is_greedy: bool = False
    """Whether it returns one hypothesis and uses no language model."""
    length_options: frozenset[str] = frozenset()
    """The options of LENGTH_OPTIONS that it reads."""
    favours_short_texts: bool = False
    """Whether it returns texts that are too short with finished_list and no length_penalty."""
    max_ctc_weight: float = math.inf
    """The largest ctc_weight that it accepts; inf: no limit."""


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
"""From the simplest to the most exact. Results and messages have this order too.

For a model that does not support DEFAULT_MODE, the last supported mode is used (`usual_mode`).
"""
AUTO_MODES = "auto"
"""The value of `--modes` that selects the recommended modes of a model."""
DEFAULT_MODE = "attention_rescoring"
"""The mode that is used by default; it needs CTC and a decoder (see `usual_mode`)."""


def find_mode(name: str) -> Mode:
    """Returns a mode of the table, or the mode that an installed package declares.

    The package is imported for this. A warning names each package that declares a name of ours.

    Raises ValueError for an unknown name, ConfigError if what the package declares is no mode or
    uses branches that no model has.
    """
    if not is_known_name("mode", MODES, name):
        raise ValueError(f"mode {name!r}: must be one of {', '.join(known_names('mode', MODES))}")
    if name in MODES:
        return MODES[name]
    mode = load_extension("mode", name)
    if not isinstance(mode, Mode):
        raise wrong_object("mode", name, "is no wenet_hs.decode.modes.SearchMode")
    all_branches = get_args(Branch)
    if not isinstance(mode.branches, frozenset) or not mode.branches <= set(all_branches):
        fault = f"its branches are {mode.branches!r}, not a frozenset of {', '.join(all_branches)}"
        raise wrong_object("mode", name, fault)
    return mode


def modes_with(branches: Set[Branch]) -> list[str]:
    """The names of our modes that use no other branches than these, in the order of MODES."""
    return [name for name, mode in MODES.items() if mode.branches <= branches]


def modes_reading(option: str) -> list[str]:
    """The names of our modes that read this option; it is one of LENGTH_OPTIONS."""
    return [name for name, mode in MODES.items() if option in mode.length_options]


def greedy_modes() -> list[str]:
    """The names of our modes that return one hypothesis and use no language model."""
    return [name for name, mode in MODES.items() if mode.is_greedy]


def beam_search_instead(mode: Mode) -> str:
    """The name of our first mode with several hypotheses that uses only branches of this mode."""
    return next(name for name in modes_with(mode.branches) if not MODES[name].is_greedy)


def branches_of(*, has_decoder: bool) -> frozenset[Branch]:
    """The branches of a model, trained or not: each model has CTC, some have a decoder."""
    return frozenset({"ctc", "decoder"} if has_decoder else {"ctc"})


def trained_branches(branches: Set[Branch], ctc_weight: float) -> frozenset[Branch]:
    """The branches whose loss has a weight above 0 in training.

    The weight of the CTC loss is `ctc_weight`, from 0 to 1; the decoder's loss has the rest.
    """
    loss_weights: dict[Branch, float] = {"ctc": ctc_weight, "decoder": 1 - ctc_weight}
    return frozenset(branch for branch in branches if loss_weights[branch] > 0)


def recommended_modes(modes: Sequence[str]) -> list[str]:
    """The recommended modes among some names of MODES, which are in the order of that table.

    If none of them is recommended, the list has the last one, which is the most exact. This is so
    for a model without CTC: modes that use only the decoder are less exact than those with CTC, and
    none of them is recommended. The list is empty if `modes` is.
    """
    recommended = [name for name in modes if MODES[name].is_recommended]
    return recommended or list(modes[-1:])


def usual_mode(modes: Sequence[str]) -> str:
    """The mode to use or to show if the user chose none: DEFAULT_MODE, or else the last one.

    `modes` has at least one name, in the order of MODES.
    """
    return DEFAULT_MODE if DEFAULT_MODE in modes else modes[-1]
