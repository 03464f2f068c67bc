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

Weighting = Literal["pooled", "per_language"]
_MUCH_UNKNOWN = 0.05
ALL = "(all)"
HEADINGS = ("language", "units", "entropy", "own tree", "this tree", "excess")


def unit_frequencies(
    utterances: Iterable[Utterance], tokenizer: Tokenizer, weighting: Weighting = "pooled"
) -> NDArray[np.float64]:
    """How often the decoder has to predict each unit: the units of the transcripts and one end of
    sentence each.

    Blank and (unless it is the same unit) the start of sentence are never predicted and have
    frequency 0.

    `weighting`: "pooled" counts all languages together; "per_language" sums the relative
    frequencies within each language (the paper's equation 2), so that each language has the same
    weight.
    Returns: (V,) counts, or frequencies that sum to the number of languages.
    Raises DataError: per_language and an utterance without a language; no utterance; a share of
        `MOST_UNKNOWN` of the units is unknown.
    """
    if weighting not in get_args(Weighting):
        raise ValueError(
            f"weighting: must be one of {', '.join(get_args(Weighting))}, got {weighting!r}"
        )
    num_units, eos = len(tokenizer.table), tokenizer.table.special.eos
    counters: defaultdict[str | None, Counter[int]] = defaultdict(Counter)
    for utterance in utterances:
        if weighting == "per_language" and utterance.lang is None:
            where, found = f"utterance {utterance.key!r}", "no language in the data list"
            raise DataError(where, found, "add `lang`, or use --weighting pooled")
        counters[utterance.lang].update([*tokenizer.encode(utterance.txt), eos])
    if not counters:
        raise DataError(
            "data list",
            "no utterances to count units in",
            "run the stage that prepares the data again",
        )
    frequencies, pooled = np.zeros(num_units), np.zeros(num_units)
    for lang in sorted(counters, key=str):  # a fixed order of summation
        ids, counts = (
            list(counters[lang]),
            np.array(list(counters[lang].values()), dtype=np.float64),
        )
        pooled[ids] += counts
        frequencies[ids] += counts / counts.sum()
    unk, total = tokenizer.table.special.unk, pooled.sum()
    num_unknown = 0.0 if unk is None else pooled[unk]
    if num_unknown >= MOST_UNKNOWN * total:
        share = f"{num_unknown:,.0f} of {total:,.0f} units ({num_unknown / total:.0%})"
        to_do = "give the --units that were made from this data and their --tokenizer, or a smaller --min_count"
        raise DataError(f"{share} of the transcripts are not in the unit table", to_do=to_do)
    if num_unknown:
        logger.log(
            logging.WARNING if num_unknown > _MUCH_UNKNOWN * total else logging.INFO,
            "%d of %d units (%.2f %%) are <unk>: in the text, or because they are not in the unit table",
            *(num_unknown, total, 100 * num_unknown / total),
        )
    return pooled if weighting == "pooled" else frequencies


def with_blank_share(
    frequencies: NDArray[np.float64], blank: int, share: float
) -> NDArray[np.float64]:
    """The frequencies (V,) for a tree under CTC, where blank has `share` of the total.

    Raises ConfigError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise ConfigError("--blank_share", f"must be greater than 0 and less than 1, got {share:g}")
    changed = frequencies.copy()
    changed[blank] = 0
    changed[blank] = changed.sum() * share / (1 - share)
    return changed


def unit_sequences(utterances: Iterable[Utterance], tokenizer: Tokenizer) -> list[list[int]]:
    """The unit ids of each transcript, followed by the end of sentence."""
    eos = tokenizer.table.special.eos
    return [[*tokenizer.encode(utterance.txt), eos] for utterance in utterances]


def language_costs(
    tree: Tree | NaryTree, utterances: Iterable[Utterance], tokenizer: Tokenizer
) -> list[tuple[str, ...]]:
    """The table of code lengths by language, in bits per unit: `HEADINGS`, then one row per
    language, sorted by code.

    A row has the number of units with one end of sentence per utterance, the entropy of the
    language (the lower bound of any code), the mean code length of a Huffman tree for this language
    only and of this tree, and the last one's excess over the entropy. The last row counts all
    utterances unless there is exactly one language. The tokenizer's table has the units of the
    tree. Raises DataError when there are no utterances.
    """
    by_language: defaultdict[str, list[Utterance]] = defaultdict(list)
    for utterance in utterances:
        by_language[utterance.lang or "(none)"].append(utterance)
    counts = {
        lang: unit_frequencies(spoken, tokenizer) for lang, spoken in sorted(by_language.items())
    }
    if len(counts) != 1:
        counts[ALL] = (
            np.sum(list(counts.values()), axis=0) if counts else unit_frequencies((), tokenizer)
        )
    rows: list[tuple[str, ...]] = [HEADINGS]
    for lang, counts_V in counts.items():
        own, shown = Tree.huffman(counts_V[counts_V > 0]), replace(tree, frequencies=counts_V)
        length, entropy = shown.mean_code_length(), shown.entropy()
        lengths = (f"{bits:.3f}" for bits in (entropy, own.mean_code_length(), length))
        rows.append((lang, f"{counts_V.sum():,.0f}", *lengths, format_excess(length, entropy)))
    return rows


def format_excess(length: float, entropy: float, unit: str = "") -> str:
    """A code length above the entropy, in bits and as a share of the code length, as text."""
    excess = max(0.0, length - entropy)  # sums of logarithms may end just below zero
    return f"{excess:.3f}{unit}" + (f" ({100 * excess / length:.1f} %)" if length > 0 else "")
