# SPDX-License-Identifier: Apache-2.0
"""From a data list to a tree: how often each unit is to be predicted, and the tree of any kind that this gives.

Dimension key: V units.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.tree.limit import least_depth
from wenet_hs.tree.nary import KIND as CLASSES
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

logger = logging.getLogger(__name__)

KINDS = ("huffman", "fano", "balanced", "alphabetical", "random", "brown", "embedding", "articulatory", CLASSES)
WEIGHTINGS = ("pooled", "per_language")
MOST_UNKNOWN = 0.2
"""A share of unknown units above which transcripts and unit table do not belong together."""
BINS, TOP_OF = "frequency", "top-of"
_USES: dict[str, tuple[str, ...]] = {
    "huffman": ("max_depth",),
    "random": ("seed",),
    "embedding": ("seed", "embeddings", "checkpoint"),
    CLASSES: ("num_classes", "by"),
}


@dataclass(frozen=True)
class BuildOptions:
    """What shapes a tree besides the counts, each for some kinds alone; None leaves it to the kind."""

    max_depth: int | None = None
    """huffman: edges to the deepest leaf, at most."""
    seed: int | None = None
    """random, and embedding where the vectors are trained: ≥ 0, default 0."""
    embeddings: Path | None = None
    """embedding: the file that the vectors were read from, word2vec's text or .npz or .npy."""
    checkpoint: Path | None = None
    """embedding: the trained softmax model, its folder or its .pt, whose output rows are the vectors."""
    num_classes: int | None = None
    """classes: how many children the root has, default √V."""
    by: str | None = None
    """classes: "frequency" (bins, the default), or "top-of KIND", the top of a binary tree of that kind."""

    def given(self) -> dict[str, Any]:
        """Those that are not None, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(v) if isinstance(v, Path) else v for name, v in values.items() if v is not None}


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
    counters: defaultdict[str | None, Counter[int]] = defaultdict(Counter)  # no array of V for each utterance
    for utterance in utterances:
        if weighting == "per_language" and utterance.lang is None:
            raise DataError(
                f"utterance {utterance.key!r}: no language in the data list; add `lang`, or use --weighting pooled"
            )
        counters[utterance.lang].update([*tokenizer.encode(utterance.txt), eos])
    if not counters:
        raise DataError("data list: no utterances to count units in; run the stage that prepares the data again")
    frequencies, pooled = np.zeros(num_units), np.zeros(num_units)
    for lang in sorted(counters, key=str):  # a fixed order of summation
        ids, counts = list(counters[lang]), np.array(list(counters[lang].values()), dtype=np.float64)
        pooled[ids] += counts
        frequencies[ids] += counts / counts.sum()
    _warn_of_unknown(pooled, tokenizer)
    return pooled if weighting == "pooled" else frequencies


def _warn_of_unknown(counts: NDArray[np.float64], tokenizer: Tokenizer) -> None:
    unk = tokenizer.table.special.unk
    if unk is not None and counts[unk]:
        share = counts[unk] / counts.sum()
        if share > MOST_UNKNOWN:
            raise DataError(
                f"{counts[unk]:,.0f} of {counts.sum():,.0f} units ({share:.0%}) of the transcripts are not in the unit "
                "table; give the --units that were made from this data and their --tokenizer"
            )
        logger.warning(
            "%d of %d units (%.2f %%) are not in the unit table and count as <unk>; if that is much, "
            "units.txt or --tokenizer belongs to other data",
            counts[unk], counts.sum(), 100 * share,
        )  # fmt: skip


def with_blank_share(frequencies: NDArray[np.float64], blank: int, share: float) -> NDArray[np.float64]:
    """The frequencies (V,) of a tree for CTC, where blank has `share` of all mass: there it is the most frequent unit.

    Raises ConfigError when the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ConfigError(f"--blank_share: must be between 0 and 1 and neither of them, got {share:g}")
    changed = frequencies.copy()
    changed[blank] = 0
    changed[blank] = changed.sum() * share / (1 - share)
    return changed


def unit_sequences(utterances: Iterable[Utterance], tokenizer: Tokenizer, *, begin: bool = False) -> list[list[int]]:
    """The unit ids of each transcript with the end of sentence last: what bigrams and embeddings are learnt from.

    Args:
        begin: the end stands in front as well, as that of the sentence before. Brown's clustering is to have it so:
            without it the end is followed by nothing, merges with any unit at no loss, and gets a long code (UCLA's
            phones: 9 bits instead of 2, and 6.8 instead of 5.7 bits a phone).
    """
    eos = tokenizer.table.special.eos
    return [[*([eos] * begin), *tokenizer.encode(utterance.txt), eos] for utterance in utterances]


def needs_sequences(kind: str, options: BuildOptions) -> bool:
    """Whether `build_tree` of this kind reads transcripts: brown, and embedding without vectors from elsewhere."""
    kind = binary_kind(kind, options)
    return kind == "brown" or (kind == "embedding" and not _vector_source(options))


def _vector_source(options: BuildOptions) -> list[str]:
    return [f"--{name}" for name in ("embeddings", "checkpoint") if name in options.given()]


def build_tree(
    kind: str,
    units: Sequence[str],
    frequencies: NDArray[np.float64],
    *,
    sequences: Sequence[Sequence[int]] | None = None,
    vectors: NDArray[np.floating[Any]] | None = None,
    options: BuildOptions | None = None,
    record: Mapping[str, Any] | None = None,
) -> Tree | NaryTree:
    """The tree of one kind over these units: the one place that knows all kinds.

    Args:
        frequencies: (V,) as `unit_frequencies` gives them.
        sequences: unit ids, a transcript each, where `needs_sequences`.
        vectors: (V, F), a row of NaN for a unit without one; for embedding, in the place of training on `sequences`.
        options: what shapes the tree. It stands in the tree's options, as does `record`, whatever else is to be known.
    Raises:
        ConfigError: no such kind, an option that it does not use or that makes no sense, or a package that is missing.
        ValueError: wrong frequencies, units, vectors or sequences, or none where the kind is built from them.
    """
    options = options or BuildOptions()
    check_options(kind, options, len(units))
    source = _Source(units, frequencies, sequences, vectors)
    if kind != CLASSES:
        return _binary_tree(kind, source, options, record or {})
    record = {**(record or {}), "by": options.by or BINS}
    inner = binary_kind(kind, options)
    if inner == CLASSES:
        tree = NaryTree.frequency_bins(frequencies, options.num_classes, units=units)
        return replace(tree, options={**record, **tree.options})
    binary = _binary_tree(inner, source, replace(options, by=None, num_classes=None), record)
    return NaryTree.from_binary(binary, options.num_classes)


class _Source(NamedTuple):
    """What `build_tree` builds from."""

    units: Sequence[str]
    frequencies: NDArray[np.float64]
    sequences: Sequence[Sequence[int]] | None
    vectors: NDArray[np.floating[Any]] | None


def _binary_tree(kind: str, source: _Source, options: BuildOptions, record: Mapping[str, Any]) -> Tree:
    units, frequencies = source.units, source.frequencies
    kept = {**record, **options.given()}
    match kind:
        case "huffman":
            return Tree.huffman(frequencies, units, kept, options.max_depth)
        case "fano":
            return Tree.fano(frequencies, units, kept)
        case "balanced":
            return Tree.balanced(frequencies, units, kept)
        case "alphabetical":
            return Tree.alphabetical(frequencies, units, kept)
        case "random":
            return Tree.random(frequencies, units, kept, options.seed or 0)
        case "brown":
            return Tree.brown(_transcripts(kind, source), frequencies, units, kept)
        case "articulatory":
            return Tree.articulatory(units, frequencies, kept)
    if source.vectors is not None:
        return Tree.embedding(source.vectors, frequencies, units, kept)
    if _vector_source(options):
        raise ValueError(f"vectors: {_vector_source(options)[0]} is set, so they must be given")
    from wenet_hs.tree.embedding import skip_gram_vectors

    kept["seed"] = options.seed or 0
    vectors = skip_gram_vectors(_transcripts(kind, source), len(units), seed=kept["seed"])
    return Tree.embedding(vectors, frequencies, units, kept)


def _transcripts(kind: str, source: _Source) -> Sequence[Sequence[int]]:
    if source.sequences is None:
        raise ValueError(f"sequences: kind {kind} is built from transcripts")
    return source.sequences


def check_options(kind: str, options: BuildOptions, num_units: int) -> None:
    """Raise ConfigError on a kind that does not exist, an option that it does not use, or a value out of range."""
    if kind not in KINDS:
        raise ConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    used = {*_USES.get(kind, ()), *_USES.get(binary_kind(kind, options), ())}
    for name in options.given():
        if name not in used:
            users = " or ".join(user for user, names in _USES.items() if name in names)
            raise ConfigError(f"--{name}: --kind {kind} does not use it, {users} does; leave it out")
    sources = _vector_source(options)
    if len(sources) == 2:
        raise ConfigError("--embeddings and --checkpoint: each gives the vectors; leave one out")
    if sources and options.seed is not None:
        raise ConfigError(f"--seed: {sources[0]} gives the vectors, so none are trained; leave --seed out")
    if options.max_depth is not None and options.max_depth < least_depth(num_units):
        raise ConfigError(
            f"--max_depth: {options.max_depth} is too small for {num_units} units; "
            f"use at least {least_depth(num_units)}"
        )
    for name, least in (("seed", 0), ("num_classes", 2)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name}: must be at least {least}, got {value}")
    if (options.num_classes or 0) > num_units:
        raise ConfigError(f"--num_classes: {options.num_classes} classes, but there are {num_units} units; use fewer")


def binary_kind(kind: str, options: BuildOptions) -> str:
    """The kind of the binary tree that is built: that of `--by top-of KIND`, or the kind itself."""
    if kind != CLASSES or options.by in (None, BINS):
        return kind
    top_of, _, inner = str(options.by).partition(" ")
    if top_of != TOP_OF or inner not in KINDS or inner == CLASSES:
        kinds = ", ".join(name for name in KINDS if name != CLASSES)
        raise ConfigError(f"--by: must be {BINS}, or {TOP_OF} and one of {kinds}, got {options.by!r}")
    return inner
