# SPDX-License-Identifier: Apache-2.0
"""From a data list to a tree: how often each unit is to be predicted, and the tree that these numbers give.

Dimension key: V units.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenize import Tokenizer
from wenet_hs.tree.tree import Tree

logger = logging.getLogger(__name__)

KINDS = ("huffman",)
WEIGHTINGS = ("pooled", "per_language")


def unit_frequencies(
    utterances: Iterable[Utterance], tokenizer: Tokenizer, weighting: str = "pooled"
) -> NDArray[np.float64]:
    """How often the decoder has to predict each unit: the units of the transcripts and one end of sentence each.

    Blank and (where it is not the same unit) the begin of sentence are never predicted and have 0.

    Args:
        weighting: "pooled" counts all languages together; "per_language" sums the relative frequencies within each
            language (the paper's equation 2), so that each language has the same weight.
    Returns:
        (V,) counts, or frequencies that sum to the number of languages.
    Raises:
        ConfigError: no such weighting. DataError: per_language and an utterance without a language, or no utterance.
    """
    if weighting not in WEIGHTINGS:
        raise ConfigError(f"--weighting: must be one of {', '.join(WEIGHTINGS)}, got {weighting!r}")
    num_units, eos = len(tokenizer.table), tokenizer.table.special.eos
    counts: defaultdict[str | None, NDArray[np.int64]] = defaultdict(lambda: np.zeros(num_units, dtype=np.int64))
    for utterance in utterances:
        if weighting == "per_language" and utterance.lang is None:
            raise DataError(
                f"utterance {utterance.key!r}: no language in the data list; add `lang`, or use --weighting pooled"
            )
        ids = [*tokenizer.encode(utterance.txt), eos]
        counts[utterance.lang] += np.bincount(ids, minlength=num_units)
    if not counts:
        raise DataError("data list: no utterances to count units in; run the stage that prepares the data again")
    _warn_of_unknown(sum(counts.values()), tokenizer)
    by_language = [counts[lang].astype(np.float64) for lang in sorted(counts, key=str)]  # a fixed order of summation
    if weighting == "per_language":
        by_language = [count / count.sum() for count in by_language]
    return np.asarray(np.sum(by_language, axis=0))


def _warn_of_unknown(counts: Any, tokenizer: Tokenizer) -> None:
    unk = tokenizer.table.special.unk
    if unk is not None and counts[unk]:
        share = counts[unk] / counts.sum()
        logger.warning(
            "%d of %d units (%.2f %%) are not in the unit table and count as <unk>; if that is much, "
            "units.txt or --tokenizer belongs to other data",
            counts[unk], counts.sum(), 100 * share,
        )  # fmt: skip


def build_tree(
    kind: str,
    units: Sequence[str],
    frequencies: NDArray[np.float64],
    *,
    options: Mapping[str, Any] | None = None,
) -> Tree:
    """The tree of one kind over these units. Raises ConfigError when there is no such kind."""
    match kind:
        case "huffman":
            return Tree.huffman(frequencies, units, options)
    raise ConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {kind!r}")
