#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first hypothesis of Liu et al.

(2023) in Markdown: do neighbouring languages have similar frequencies of letters?

Example: python hypothesis.py sentences                                   a folder with LANG.txt, one sentence per line
         python hypothesis.py data-romance/train/data.list data-slavic/train/data.list     data lists of stage 0
         python hypothesis.py sentences --families "Turkic: tr uz" "Romance: es it"        other languages

Letters are the alphabetic characters of the normalised transcripts. No audio is read.   Dimension key: V letters.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from wenet_hs.manifest.data_list import Utterance, read_data_list, read_sentences
from wenet_hs.score.tables import markdown_table
from wenet_hs.text.normalize import normalize
from wenet_hs.tree import Tree
from wenet_hs.tree.errors import ConfigError, DataError, WenetHsError

FAMILIES = ("Romance: ca es fr it pt", "Slavic: be cs pl ru uk", "Turkic: ba ky tr tt uz")
Counts = Mapping[str, Counter[str]]
"""Of each language: how often each of its letters occurs."""
Pair = tuple[str, str]
TREES = (
    "own tree",
    "its family's tree",
    "tree of the others of its family",
    "another family's tree",
)
PAIRS = ("all within a family", "all across families")
NUM_RESAMPLES = 10_000


def read_families(texts: Sequence[str]) -> dict[str, str]:
    """Language → family, of "Turkic: tr uz".

    Raises ConfigError: no colon, a language twice, one language or family.
    """
    families: dict[str, str] = {}
    for text in texts:
        name, colon, langs = text.partition(":")
        if not colon or len(langs.split()) < 2:
            raise ConfigError(
                f"--families {text!r}",
                "not a family",
                'write "Turkic: tr uz", at least two languages',
            )
        for lang in langs.split():
            if lang in families:
                raise ConfigError(
                    f"--families {text!r}",
                    f"{lang} is there twice",
                    "give each language one family",
                )
            families[lang] = name.strip()
    if len({*families.values()}) < 2:
        raise ConfigError("--families", "one family", "give at least two, each in quotation marks")
    return families


def count_letters(sources: Sequence[Path], langs: Sequence[str]) -> dict[str, Counter[str]]:
    """The letters of each language in folders with LANG.txt, or in data lists.

    Raises DataError if one has none.
    """
    counts: dict[str, Counter[str]] = {lang: Counter() for lang in langs}
    for source in sources:
        if source.is_dir():
            utterances = [
                sentence
                for lang in langs
                for sentence in _read_language(source / f"{lang}.txt", lang)
            ]
        else:
            utterances = read_data_list(source)
        for utterance in utterances:
            if utterance.lang in counts:
                counts[utterance.lang].update(
                    filter(str.isalpha, normalize(utterance.txt, utterance.lang))
                )
    for lang, counted in counts.items():
        if not counted:
            names = ", ".join(map(str, sources))
            raise DataError(
                names, f"no letters of {lang}", "add its transcripts, or leave it out of --families"
            )
    return counts


def _read_language(path: Path, lang: str) -> list[Utterance]:
    return [Utterance(key=one.key, wav="", txt=one.txt, lang=lang) for one in read_sentences(path)]


def compare_pairs(counts: Counts, min_shared: int) -> dict[Pair, tuple[float, float]]:
    """Of each pair with at least `min_shared` common letters, over these letters only: Spearman's
    rank correlation of the counts, and the additional bits per letter under the other language's
    Huffman tree (mean of both directions).
    """
    found = {}
    for pair in combinations(counts, 2):
        shared = sorted(counts[pair[0]].keys() & counts[pair[1]].keys())
        if len(shared) < min_shared:
            continue
        a, b = (relative_frequencies(counts, [lang], shared) for lang in pair)
        extra = code_length(a, b) + code_length(b, a) - code_length(a, a) - code_length(b, b)
        found[pair] = float(spearmanr(a, b).statistic), extra / 2
    return found


def relative_frequencies(
    counts: Counts, langs: Sequence[str], letters: Sequence[str]
) -> np.ndarray:
    """(V,) the relative frequencies of the letters, each language with the same weight."""
    counted = [
        np.array([counts[lang][letter] for letter in letters], dtype=np.float64) for lang in langs
    ]
    return np.mean([of_lang / of_lang.sum() for of_lang in counted], axis=0)


def code_length(p: np.ndarray, of_tree: np.ndarray) -> float:
    """Bits per letter of frequencies (V,) under the Huffman tree of others (V,)."""
    return float(p @ Tree.huffman(of_tree).code_lengths())


def compare_trees(counts: Counts, families: Mapping[str, str], lang: str) -> list[float]:
    """Bits per letter of a language under each of `TREES`, and the share of its letters that the
    last one's have.

    Each tree is over the letters of all languages, as the tree of one model is: a letter that the
    tree's languages do not have is far from its root. Of several other families the mean is taken.
    """
    letters = sorted(set().union(*counts.values()))
    p = relative_frequencies(counts, [lang], letters)
    members = {
        name: [other for other in families if families[other] == name] for name in families.values()
    }
    family = members.pop(families[lang])
    groups = [
        [[lang]],
        [family],
        [[other for other in family if other != lang]],
        [*members.values()],
    ]
    frequencies = [
        [relative_frequencies(counts, langs, letters) for langs in group] for group in groups
    ]
    bits = [float(np.mean([code_length(p, of_tree) for of_tree in group])) for group in frequencies]
    return [*bits, float(np.mean([p[of_tree > 0].sum() for of_tree in frequencies[-1]]))]


def interval(values: Sequence[float], generator: np.random.Generator) -> str:
    """The mean of the values and the 95 % interval of a bootstrap over them."""
    means = generator.choice(np.array(values), size=(NUM_RESAMPLES, len(values))).mean(axis=1)
    return "{:.3f} [{:.3f}, {:.3f}]".format(np.mean(values), *np.percentile(means, (2.5, 97.5)))


def permutation_test(
    values: Mapping[Pair, float], families: Mapping[str, str], generator: np.random.Generator
) -> tuple[float, float]:
    """The mean within families minus the mean across, and how often permuted families give as large
    a difference.

    The permutation is over languages, because the pairs of one language are not independent.
    """
    langs = list(families)
    first, second = np.array([[langs.index(lang) for lang in pair] for pair in values]).T
    of_pairs = np.array([*values.values()])
    labels = np.unique([*families.values()], return_inverse=True)[1]
    differences = []
    for labels_of_langs in (labels, *(generator.permutation(labels) for _ in range(NUM_RESAMPLES))):
        within = labels_of_langs[first] == labels_of_langs[second]
        both = within.any() and not within.all()
        differences.append(of_pairs[within].mean() - of_pairs[~within].mean() if both else 0.0)
    return differences[0], float(np.mean(np.abs(differences) >= abs(differences[0])))


def format_pairs(
    found: Mapping[Pair, tuple[float, float]],
    families: Mapping[str, str],
    generator: np.random.Generator,
) -> str:
    """A row per family, one for all pairs within families and one for those across; the differences
    of the last two.
    """
    groups: dict[str, list[tuple[float, float]]] = {
        name: [] for name in [*families.values(), *PAIRS]
    }
    for (a, b), values in found.items():
        for name in [families[a], PAIRS[0]] if families[a] == families[b] else PAIRS[1:]:
            groups[name].append(values)
    rows = [
        [
            name,
            str(len(group)),
            *(interval(column, generator) for column in zip(*group, strict=True)),
        ]
        for name, group in groups.items()
        if group
    ]
    header = [
        "pairs of languages",
        "pairs",
        "Spearman, mean [95 %]",
        "additional bits per letter, mean [95 %]",
    ]
    lines = [markdown_table(header, rows), ""]
    if groups[PAIRS[0]] and groups[PAIRS[1]]:
        for column, name in enumerate(("Spearman", "additional bits per letter")):
            values = {pair: both[column] for pair, both in found.items()}
            difference, p = permutation_test(values, families, generator)
            lines.append(
                f"- {name}, within minus across: {difference:+.3f}; p of permuted families {p:.4f}."
            )
    return "\n".join(lines)


def format_trees(counts: Counts, families: Mapping[str, str]) -> str:
    """A row per language, and the mean."""
    found = {lang: compare_trees(counts, families, lang) for lang in counts}
    rows = [
        [lang, f"{counts[lang].total():,}", str(len(counts[lang])), *_cells(of)]
        for lang, of in found.items()
    ]
    mean = _cells([float(np.mean(column)) for column in zip(*found.values(), strict=True)])
    header = [
        "language",
        "letters",
        "different letters",
        *TREES,
        "its letters that another family has, %",
    ]
    return markdown_table(header, [*rows, ["mean", "", "", *mean]])


def _cells(values: Sequence[float]) -> list[str]:
    return [*(f"{bits:.3f}" for bits in values[:-1]), f"{100 * values[-1]:.1f}"]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, nargs="+", help="a folder with LANG.txt, or data lists"
    )
    parser.add_argument(
        "--families",
        nargs="+",
        default=FAMILIES,
        help='"NAME: LANG LANG …" (default: the paper\'s)',
    )
    parser.add_argument(
        "--min_shared", type=int, default=10, help="letters that a pair must share (default: 10)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of bootstrap and permutations (default: 1)"
    )
    args = parser.parse_args()
    try:
        families = read_families(args.families)
        counts = count_letters(args.source, list(families))
    except WenetHsError as error:
        sys.exit(str(error))
    found = compare_pairs(counts, max(2, args.min_shared))
    print(
        f"{format_pairs(found, families, np.random.default_rng(args.seed))}\n\n{format_trees(counts, families)}"
    )


if __name__ == "__main__":
    main()
