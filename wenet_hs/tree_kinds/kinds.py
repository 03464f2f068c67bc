# SPDX-License-Identifier: Apache-2.0
"""The table of tree kinds with their options, and `build_tree`, which builds a tree of any kind.

A new kind is one function and one entry in `KINDS`: `wenet-hs tree build --help` and the checks
read this table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.text.articulatory import articulatory_vectors
from wenet_hs.tree.errors import ConfigError
from wenet_hs.tree.huffman import (
    alphabetical_order,
    balanced_children,
    huffman_children,
    least_depth,
    random_order,
)
from wenet_hs.tree.tree import CLASSES, NaryTree, Tree
from wenet_hs.tree_kinds.embedding import log_without_vector, ward_children

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BINS, TOP_OF = "frequency", "top-of"


@dataclass(frozen=True)
class TreeSource:
    """The inputs of a tree builder."""

    units: Sequence[str]
    frequencies: Floats
    """(V,) as `unit_frequencies` gives them."""
    sequences: Sequence[Sequence[int]] | None = None
    """The unit ids of each transcript, with the end of sentence; required by brown."""
    vectors: NDArray[np.floating[Any]] | None = None
    """(V, F), a row of NaN for a unit without one; required by embedding (trained:
    `lm.word2vec.unit_vectors`).
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the kind that were given, by name."""

    def tree(self, kind: str, children_of: Callable[[Floats], Ints], **options: Any) -> Tree:
        """The binary tree whose children (V-1, 2) a function computes from the checked frequencies."""
        return Tree.build(kind, children_of, self.frequencies, self.units, options)


@dataclass(frozen=True)
class KindOption:
    """An option that some kinds use: a flag of `wenet-hs tree build`."""

    help: str
    type: Callable[[str], Any] = int
    metavar: str | tuple[str, ...] = "N"
    limits: Callable[[int], tuple[int, int | None]] | None = None
    """From the number of units to the least and the largest value."""


@dataclass(frozen=True)
class TreeKind:
    """One way to build a tree."""

    build: Callable[[TreeSource], Tree | NaryTree]
    summary: str
    """Which units are near each other in the tree."""
    options: Mapping[str, KindOption] = field(default_factory=dict)
    needs: str = ""
    """The field of the source that it is built from besides the frequencies."""


def build_tree(
    kind: str, source: TreeSource, record: Mapping[str, Any] | None = None
) -> Tree | NaryTree:
    """Build the tree of one kind over the units; its options are `record` and those of the kind, as
    JSON values.

    Raises ConfigError: unknown kind, an option that the kind does not use or a wrong value, a
        package that is missing. ValueError: wrong frequencies, units, vectors or sequences, or none
        although the kind needs them.
    """
    check_kind_options(kind, source.options, len(source.units))
    binary = binary_kind(kind, source.options)
    if KINDS[binary].needs and getattr(source, KINDS[binary].needs) is None:
        raise ValueError(f"kind {binary} is built from {KINDS[binary].needs}; give them")
    tree = KINDS[kind].build(source)
    return replace(tree, options={**(record or {}), **tree.options})


def needs(kind: str, options: Mapping[str, Any]) -> str:
    """The field of the source that `build_tree` with these options needs besides the frequencies;
    empty: none.
    """
    return KINDS[binary_kind(kind, options)].needs


def check_kind_options(kind: str, options: Mapping[str, Any], num_units: int) -> None:
    """Raise ConfigError for an unknown kind, an option that it does not use, or a value out of
    range.
    """
    if kind not in KINDS:
        raise ConfigError("--kind", f"must be one of {', '.join(KINDS)}, got {kind!r}")
    used = {**KINDS[kind].options, **KINDS[binary_kind(kind, options)].options}
    for name, value in options.items():
        if (
            name == "seed" and name not in used
        ):  # so that a script need not know which kinds are random
            continue
        if name not in used:
            users = " or ".join(user for user, entry in KINDS.items() if name in entry.options)
            raise ConfigError(
                f"--{name}", f"--kind {kind} does not use it, {users} does", "leave it out"
            )
        limits = used[name].limits
        least, most = limits(num_units) if limits else (value, None)
        if value < least or (most is not None and value > most):
            allowed = f"at least {least}" if value < least else f"at most {most}"
            raise ConfigError(f"--{name}", f"must be {allowed} with {num_units} units, got {value}")
    sources = [f"--{name}" for name in ("embeddings", "checkpoint") if name in options]
    if len(sources) == 2:
        raise ConfigError(
            "--embeddings and --checkpoint", "each gives the vectors", "leave one out"
        )
    for name in ("seed", "save_embeddings"):
        if sources and name in options:
            found = f"{sources[0]} gives the vectors, so none are trained"
            raise ConfigError(f"--{name}", found, f"leave --{name} out")


def binary_kind(kind: str, options: Mapping[str, Any]) -> str:
    """The kind of the binary tree that is built first: that of `--by top-of KIND`, or the kind
    itself.
    """
    by = options.get("by", BINS)
    if kind != CLASSES or by == BINS:
        return kind
    top_of, _, inner = str(by).partition(" ")
    if top_of != TOP_OF or inner not in KINDS or inner == CLASSES:
        kinds = ", ".join(name for name in KINDS if name != CLASSES)
        raise ConfigError("--by", f"must be {BINS}, or {TOP_OF} and one of {kinds}, got {by!r}")
    return inner


# ---- the kinds that need more than one call


def _brown(source: TreeSource) -> Tree:
    # The end of sentence also precedes each transcript, as that of the sentence before. Otherwise
    # nothing follows it, its merges lose nothing, and it gets a long code (UCLA's phones: 9 bits
    # instead of 2).
    sequences = [[*sequence[-1:], *sequence] for sequence in source.sequences or ()]
    return Tree.brown(sequences, source.frequencies, source.units)


def _permuted(source: TreeSource) -> Tree:
    """Huffman's tree with the units that occur at random leaves of theirs."""
    seed = source.options.get("seed", 0)
    order, occurring = np.arange(len(source.units)), np.flatnonzero(source.frequencies)
    order[occurring] = occurring[random_order(len(occurring), seed)]
    return source.tree("permuted", lambda f: huffman_children(f[order]), seed=seed)


def _embedding(source: TreeSource) -> Tree:
    options = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in source.options.items()
    }
    vectors = source.vectors
    assert vectors is not None  # `build_tree` checks it
    return source.tree("embedding", lambda f: ward_children(vectors, f, cosine=True), **options)


def _articulatory(source: TreeSource) -> Tree:
    vectors = articulatory_vectors(source.units)
    log_without_vector(vectors, source.units, "are not phones in IPA")
    return source.tree("articulatory", lambda f: ward_children(vectors, f))


def _classes(source: TreeSource) -> NaryTree:
    """Bins of units, or the top of the binary tree that `by` names, built with the other options."""
    inner = dict(source.options)
    by, num_classes = inner.pop("by", BINS), inner.pop("num_classes", None)
    if by == BINS:
        tree = NaryTree.frequency_bins(source.frequencies, num_classes, units=source.units)
    else:
        binary = KINDS[binary_kind(CLASSES, source.options)].build(replace(source, options=inner))
        assert isinstance(binary, Tree)  # `binary_kind` never names `classes`
        tree = NaryTree.from_binary(binary, num_classes)
    return replace(tree, options={"by": by, **tree.options})


_SEED = KindOption(
    "random, permuted, and embedding if it trains: seed; other kinds ignore it (default: 0)",
    limits=lambda _: (0, None),
)
_EMBEDDING_OPTIONS = {
    "seed": _SEED,
    "embeddings": KindOption(
        "embedding: file of vectors in word2vec's text form (default: skip-gram with hierarchical softmax is "
        "trained on the transcripts)",
        Path,
        "FILE",
    ),
    "checkpoint": KindOption(
        "embedding: use the output rows of this trained softmax model, ours or WeNet's",
        Path,
        "MODEL_DIR_OR_PT",
    ),
    "save_embeddings": KindOption(
        "embedding: write the trained vectors into this file, in word2vec's text format for --embeddings",
        Path,
        "FILE",
    ),
}
_CLASSES_OPTIONS = {
    "num_classes": KindOption(
        "classes: children of the root (default: √V)", metavar="C", limits=lambda v: (2, v)
    ),
    "by": KindOption(
        "classes: bins of equal frequency, or the top of a binary tree of KIND (default: frequency)",
        str,
        ("frequency|top-of", "KIND"),
    ),
}
KINDS: dict[str, TreeKind] = {
    "huffman": TreeKind(
        lambda s: Tree.huffman(s.frequencies, s.units, s.options.get("max_depth")),
        "their frequencies are similar; shortest mean code",
        {
            "max_depth": KindOption(
                "huffman: no code is longer than N bits", limits=lambda v: (least_depth(v), None)
            )
        },
    ),
    "fano": TreeKind(lambda s: Tree.fano(s.frequencies, s.units), "the same, split from the top"),
    "balanced": TreeKind(lambda s: Tree.balanced(s.frequencies, s.units), "their ids are near"),
    "alphabetical": TreeKind(
        lambda s: s.tree("alphabetical", lambda _: balanced_children(alphabetical_order(s.units))),
        "they sort together",
    ),
    "random": TreeKind(
        lambda s: Tree.random(s.frequencies, s.units, s.options.get("seed", 0)),
        "chance",
        {"seed": _SEED},
    ),
    "permuted": TreeKind(
        _permuted, "chance; Huffman's shape with permuted units, a control", {"seed": _SEED}
    ),
    "brown": TreeKind(
        _brown, "they have the same neighbours in the transcripts", needs="sequences"
    ),
    "embedding": TreeKind(
        _embedding,
        "their embeddings are similar",
        _EMBEDDING_OPTIONS,
        needs="vectors",
    ),
    "articulatory": TreeKind(_articulatory, "they are pronounced alike (phones in IPA)"),
    "classes": TreeKind(
        _classes,
        "bins of equal frequency, or the top of a binary tree",
        _CLASSES_OPTIONS,
    ),
}
