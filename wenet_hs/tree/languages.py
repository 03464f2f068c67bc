# SPDX-License-Identifier: Apache-2.0
"""What one tree costs each language of a data list: code lengths against the language's own entropy, in bits a unit.

Dimension key: V units.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.tree.build import unit_frequencies
from wenet_hs.tree.code_length import entropy, probabilities
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

NO_LANGUAGE = "(none)"
ALL = "(all)"
HEADINGS = ("language", "units", "entropy", "own tree", "this tree", "excess")


@dataclass(frozen=True)
class LanguageCost:
    """One language; lengths are means in bits a unit."""

    lang: str
    """The corpus's code; "(none)" where an utterance has none, "(all)" for all utterances together."""
    num_units: int
    """How many units were counted, one end of sentence an utterance among them."""
    entropy: float
    """Of the language's own distribution: no code of it is shorter."""
    own_tree: float
    """The code length of a Huffman tree made for this language alone."""
    code_length: float
    """The code length of the tree that is shown."""

    @property
    def excess(self) -> float:
        """What the tree takes beyond the entropy, ≥ 0."""
        return max(0.0, self.code_length - self.entropy)  # sums of logarithms may end just below zero

    def cells(self) -> tuple[str, ...]:
        """The values as they are shown, in the order of `HEADINGS`."""
        share = f" ({100 * self.excess / self.code_length:.1f} %)" if self.code_length > 0 else ""
        lengths = (self.entropy, self.own_tree, self.code_length)
        return (self.lang, f"{self.num_units:,}", *(f"{bits:.3f}" for bits in lengths), f"{self.excess:.3f}{share}")


def code_lengths(tree: Tree | NaryTree) -> NDArray[np.float64]:
    """(V,) bits of each unit's way: one a binary decision, log2 d for a choice among d children."""
    return tree.code_lengths() if isinstance(tree, NaryTree) else tree.depths().astype(np.float64)


def language_costs(tree: Tree | NaryTree, utterances: Iterable[Utterance], tokenizer: Tokenizer) -> list[LanguageCost]:
    """A row a language in the order of their codes, and one for all utterances where there are more than one language.

    The tokenizer's table has the units of the tree. Raises DataError when there are no utterances.
    """
    by_language: defaultdict[str, list[Utterance]] = defaultdict(list)
    for utterance in utterances:
        by_language[utterance.lang or NO_LANGUAGE].append(utterance)
    counts = {lang: unit_frequencies(spoken, tokenizer) for lang, spoken in sorted(by_language.items())}
    if len(counts) != 1:
        counts[ALL] = np.sum(list(counts.values()), axis=0) if counts else unit_frequencies((), tokenizer)
    lengths = code_lengths(tree)
    return [_cost(lang, counts_V, lengths) for lang, counts_V in counts.items()]


def _cost(lang: str, counts_V: NDArray[np.float64], lengths_V: NDArray[np.float64]) -> LanguageCost:
    own = Tree.huffman(counts_V[counts_V > 0])
    bits = float(probabilities(counts_V) @ lengths_V)
    return LanguageCost(lang, int(counts_V.sum()), entropy(counts_V), own.mean_code_length(), bits)
