# SPDX-License-Identifier: Apache-2.0
"""The settings of the searches as flags: the same for a list and for single files."""

import argparse
from dataclasses import fields
from pathlib import Path

from wenet_hs.decode import DecodeOptions
from wenet_hs.errors import ConfigError


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of the searches."""
    add, default = parser.add_argument, DecodeOptions()
    add("--beam_size", type=int, default=default.beam_size, help=f"hypotheses kept (default: {default.beam_size})")
    add(
        "--ctc_weight",
        type=float,
        default=default.ctc_weight,
        help="attention_rescoring: weight of the CTC score beside the decoder's; joint: CTC's share of the score, from "
        f"0 to 1 (default: {default.ctc_weight})",
    )
    add(
        "--length_penalty",
        type=float,
        default=default.length_penalty,
        help="attention, joint: divide the score by (number of units) ** length_penalty, which helps long texts "
        "(default: 0)",
    )
    add(
        "--reverse_weight",
        type=float,
        default=default.reverse_weight,
        help="attention_rescoring: share of the right-to-left decoder of a bitransformer (default: 0)",
    )
    add("--nbest", type=int, help="hypotheses written, at most beam_size (default: all that a mode has)")
    add(
        "--finished_list",
        action="store_true",
        help="attention: ended hypotheses leave the beam for a list, as in joint; needs --length_penalty, about 1, or "
        "short texts win (default: they hold their place)",
    )
    add("--max_len_ratio", type=float, default=1.0, help="attention, joint: most units an encoder frame (default: 1)")
    add("--min_len_ratio", type=float, default=0.0, help="attention, joint: fewest units an encoder frame (default: 0)")
    add("--lm", type=Path, metavar="FILE.arpa", help="n-gram language model over units, for all modes but greedy")
    add("--lm_weight", type=float, default=0.0, help="of the language model's log-probability (needed with --lm)")
    add("--length_bonus", type=float, default=0.0, help="added for each unit, beside a language model (default: 0)")


def search_options(args: argparse.Namespace) -> DecodeOptions:
    """The settings of the searches. Raises ConfigError on a value out of range."""
    try:
        return DecodeOptions(**{option.name: getattr(args, option.name) for option in fields(DecodeOptions)})
    except ValueError as error:
        raise ConfigError(f"--{error}") from error
