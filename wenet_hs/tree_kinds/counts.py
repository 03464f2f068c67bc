# SPDX-License-Identifier: Apache-2.0
"""Counts of the units in transcripts, and what a tree costs each language in bits per unit.

Dimension key: V units.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import MOST_UNKNOWN
from wenet_hs.tree.errors import ConfigError, DataError
from wenet_hs.tree.tree import NaryTree, Tree

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Weighting = Literal["pooled", "per_language"]
_MUCH_UNKNOWN = 0.05
"""The share of unknown units above which their number is a warning."""
ALL = "(all)"
"""The name of the row for all languages together."""
HEADINGS = ("language", "units", "entropy", "own tree", "this tree", "excess")
"""The first row of `language_costs`."""


def unit_frequencies(
    utterances: Iterable[Utterance], tokenizer: Tokenizer, weighting: Weighting = "pooled"
) -> Floats:
    """How often each unit occurs in the transcripts, with an end of sentence after each of them.

    The decoder has to predict it so often. Blank is never predicted and has frequency 0. So has the
    start of sentence, unless it is the same unit as the end. The number of unknown units is logged.

    `weighting`: "pooled" counts all languages together; "per_language" sums the relative
    frequencies within each language (the paper's equation 2), so that each language has the same
    weight.
    Returns: (V,) counts, or frequencies that sum to the number of languages.
    Raises DataError: per_language and an utterance without a language; no utterance; the share of
        unknown units is `MOST_UNKNOWN` or more. ValueError: another weighting.
    """
    if weighting not in get_args(Weighting):
        allowed = ", ".join(get_args(Weighting))
        raise ValueError(f"weighting: must be one of {allowed}, got {weighting!r}")
    counts_by_language = _count_by_language(
        utterances, tokenizer, needs_language=weighting == "per_language"
    )
    num_units = len(tokenizer.table)
    pooled = np.zeros(num_units)
    per_language = np.zeros(num_units)
    for lang in sorted(counts_by_language, key=str):  # a fixed order of summation
        counts_V = counts_by_language[lang]
        pooled += counts_V
        per_language += counts_V / counts_V.sum()
    unk = tokenizer.table.special.unk
    if unk is not None:
        _check_number_of_unknown(pooled[unk], pooled.sum())
    return pooled if weighting == "pooled" else per_language


def _count_by_language(
    utterances: Iterable[Utterance], tokenizer: Tokenizer, *, needs_language: bool
) -> dict[str | None, Floats]:
    """The counts (V,) of the units and of one end of sentence per utterance, for each language.

    Utterances without a language have the key None. Raises DataError for the first of them if
    `needs_language`, and if there are no utterances.
    """
    eos = tokenizer.table.special.eos
    counters: defaultdict[str | None, Counter[int]] = defaultdict(Counter)
    for utterance in utterances:
        if needs_language and utterance.lang is None:
            where = f"utterance {utterance.key!r}"
            to_do = "add `lang`, or use --weighting pooled"
            raise DataError(where, "no language in the data list", to_do)
        counters[utterance.lang].update([*tokenizer.encode(utterance.txt), eos])
    if not counters:
        to_do = "run the stage that prepares the data again"
        raise DataError("data list", "no utterances to count units in", to_do)
    counts_by_language = {}
    for lang, counter in counters.items():
        counts_V = np.zeros(len(tokenizer.table))
        counts_V[list(counter)] = list(counter.values())
        counts_by_language[lang] = counts_V
    return counts_by_language


def _check_number_of_unknown(num_unknown: float, total: float) -> None:
    """Log how many of all counted units are <unk>; many are a warning.

    Raises DataError if so many are unknown that the units cannot be those of the data.
    """
    if num_unknown >= MOST_UNKNOWN * total:
        share = f"{num_unknown:,.0f} of {total:,.0f} units ({num_unknown / total:.0%})"
        to_do = (
            "give the --units that were made from this data and their --tokenizer, "
            "or a smaller --min_count"
        )
        raise DataError(f"{share} of the transcripts are not in the unit table", to_do=to_do)
    if num_unknown == 0:
        return
    level = logging.WARNING if num_unknown > _MUCH_UNKNOWN * total else logging.INFO
    text = (
        "%d of %d units (%.2f %%) are <unk>: in the text, or because they are not in the unit table"
    )
    logger.log(level, text, num_unknown, total, 100 * num_unknown / total)


def with_blank_share(frequencies: Floats, blank: int, share: float) -> Floats:
    """The frequencies (V,) for a tree under CTC, where blank has `share` of the total.

    Raises ConfigError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise ConfigError("--blank_share", f"must be greater than 0 and less than 1, got {share:g}")
    changed = frequencies.copy()
    changed[blank] = 0
    # blank = share · (others + blank), solved for blank
    changed[blank] = changed.sum() * share / (1 - share)
    return changed


def unit_sequences(utterances: Iterable[Utterance], tokenizer: Tokenizer) -> list[list[int]]:
    """The unit ids of each transcript, followed by the end of sentence."""
    eos = tokenizer.table.special.eos
    return [[*tokenizer.encode(utterance.txt), eos] for utterance in utterances]


def language_costs(
    tree: Tree | NaryTree, utterances: Iterable[Utterance], tokenizer: Tokenizer
) -> list[tuple[str, ...]]:
    """The table of code lengths by language, in bits per unit, as texts.

    The first row is `HEADINGS`. One row per language follows, sorted by code; `(none)` stands for
    utterances without a language. The last row counts all utterances unless there is exactly one
    language. The tokenizer's table has the units of the tree.

    Raises DataError when there are no utterances.
    """
    by_language: defaultdict[str, list[Utterance]] = defaultdict(list)
    for utterance in utterances:
        by_language[utterance.lang or "(none)"].append(utterance)
    if not by_language:
        unit_frequencies((), tokenizer)  # raises DataError
    counts_by_language = {}
    for lang, utterances_of_lang in sorted(by_language.items()):
        counts_by_language[lang] = unit_frequencies(utterances_of_lang, tokenizer)
    if len(counts_by_language) > 1:
        counts_by_language[ALL] = np.sum(list(counts_by_language.values()), axis=0)
    rows = [_cost_row(tree, lang, counts_V) for lang, counts_V in counts_by_language.items()]
    return [HEADINGS, *rows]


def _cost_row(tree: Tree | NaryTree, name: str, counts_V: Floats) -> tuple[str, ...]:
    """The row of `language_costs` for units with these counts (V,).

    The columns are those of `HEADINGS`. The entropy is the lower bound of any code. "own tree" is
    the mean code length of a Huffman tree that is built from these counts only, "this tree" that of
    `tree`. The excess is what this tree needs above the entropy.
    """
    own_tree = Tree.huffman(counts_V[counts_V > 0])
    tree_with_counts = replace(tree, frequencies=counts_V)
    entropy = tree_with_counts.entropy()
    length = tree_with_counts.mean_code_length()
    return (
        name,
        f"{counts_V.sum():,.0f}",
        f"{entropy:.3f}",
        f"{own_tree.mean_code_length():.3f}",
        f"{length:.3f}",
        format_excess(length, entropy),
    )


def format_excess(length: float, entropy: float, unit: str = "") -> str:
    """How much a mean code length is above the entropy, such as "0.329 bits (14.3 %)".

    The percentage is the excess divided by the code length; it is left out for a length of 0.
    `unit` follows the number, such as " bits".
    """
    excess = max(0.0, length - entropy)  # sums of logarithms may end just below zero
    text = f"{excess:.3f}{unit}"
    return f"{text} ({100 * excess / length:.1f} %)" if length > 0 else text
