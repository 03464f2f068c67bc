# SPDX-License-Identifier: Apache-2.0
"""The table of tree kinds with their options, and `build_tree`, which builds a tree of any kind.

A new kind is one function and its entry in `KINDS` below it: `wenet-hs tree build --help` and the
checks read this table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

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
BINS = "frequency"
"""The value of --by for classes of equal frequency."""
TOP_OF = "top-of"
"""How the value of --by begins for the top of a binary tree: `top-of huffman`."""


@dataclass(frozen=True)
class TreeSource:
    """The inputs of a tree builder."""

    units: Sequence[str]
    frequencies: Floats
    """(V,) as `unit_frequencies` gives them."""
    sequences: Sequence[Sequence[int]] | None = None
    """The unit ids of each transcript, with the end of sentence; required by brown."""
    vectors: NDArray[np.floating[Any]] | None = None
    """(V, F), a row of NaN for a unit without a vector; required by embedding.

    `lm.word2vec.unit_vectors` trains them.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the kind that were given, by name."""

    def tree(self, kind: str, children_of: Callable[[Floats], Ints], **options: Any) -> Tree:
        """The binary tree whose children a function computes, as in `Tree.build`.

        `options` are recorded in the tree.
        """
        return Tree.build(kind, children_of, self.frequencies, self.units, options)


@dataclass(frozen=True)
class KindOption:
    """An option that some kinds use: a flag of `wenet-hs tree build`.

    `help`, `type` and `metavar` are those of argparse.
    """

    help: str
    type: Callable[[str], Any] = int
    metavar: str | tuple[str, ...] = "N"
    limits: Callable[[int], tuple[int, int | None]] | None = None
    """Computes the least and the largest value from the number of units.

    The second is None if there is no largest value. `limits` is None for an option without limits.
    """


@dataclass(frozen=True)
class TreeKind:
    """One way to build a tree."""

    build: Callable[[TreeSource], Tree | NaryTree]
    summary: str
    """Which units are near each other in the tree."""
    options: Mapping[str, KindOption] = field(default_factory=dict)
    required_input: str = ""
    """The field of `TreeSource` that it is built from besides the frequencies; empty: none."""


KINDS: dict[str, TreeKind] = {}
"""All kinds by name, in the order of the help; they are added below."""


def build_tree(
    kind: str, source: TreeSource, record: Mapping[str, Any] | None = None
) -> Tree | NaryTree:
    """Build the tree of one kind over the units.

    The options that the tree records are `record` and those of the kind, as JSON values.

    Raises ConfigError: unknown kind, an option that the kind does not use or a wrong value, a
        package that is missing. ValueError: wrong frequencies, units, vectors or sequences, or none
        although the kind needs them.
    """
    check_kind_options(kind, source.options, len(source.units))
    input_name = required_input(kind, source.options)
    if input_name and getattr(source, input_name) is None:
        binary = binary_kind(kind, source.options)
        raise ValueError(f"kind {binary} is built from {input_name}; give them")
    tree = KINDS[kind].build(source)
    return replace(tree, options={**(record or {}), **tree.options})


def required_input(kind: str, options: Mapping[str, Any]) -> str:
    """The field of `TreeSource` that `build_tree` needs besides the frequencies; empty: none.

    With `--by top-of KIND` it is that of KIND.
    """
    return KINDS[binary_kind(kind, options)].required_input


def check_kind_options(kind: str, options: Mapping[str, Any], num_units: int) -> None:
    """Raise ConfigError for an unknown kind, or options that do not go with it.

    An option may be one that the kind does not use, have a value out of range, or contradict
    another option.
    """
    if kind not in KINDS:
        raise ConfigError("--kind", f"must be one of {', '.join(KINDS)}, got {kind!r}")
    used_options = {**KINDS[kind].options, **KINDS[binary_kind(kind, options)].options}
    for name, value in options.items():
        if name in used_options:
            _check_limits(name, value, used_options[name], num_units)
        elif name == "seed":
            pass  # kinds that are not random ignore it, so a script may give it to all kinds
        else:
            _refuse_unused_option(name, kind)
    _check_sources_of_vectors(options)


def _check_limits(name: str, value: Any, option: KindOption, num_units: int) -> None:
    """Raise ConfigError if the value of an option is below or above its limits."""
    if option.limits is None:
        return
    least, most = option.limits(num_units)
    if value < least:
        allowed = f"at least {least}"
    elif most is not None and value > most:
        allowed = f"at most {most}"
    else:
        return
    raise ConfigError(f"--{name}", f"must be {allowed} with {num_units} units, got {value}")


def _refuse_unused_option(name: str, kind: str) -> NoReturn:
    """Raise ConfigError that names the kinds that use an option, because this kind does not."""
    users = " or ".join(user for user, entry in KINDS.items() if name in entry.options)
    fault = f"--kind {kind} does not use it, {users} does"
    raise ConfigError(f"--{name}", fault, "leave it out")


def _check_sources_of_vectors(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if vectors have two sources, or one and an option of their training."""
    sources = [f"--{name}" for name in ("embeddings", "checkpoint") if name in options]
    if len(sources) == 2:
        where = "--embeddings and --checkpoint"
        raise ConfigError(where, "each gives the vectors", "leave one out")
    for name in ("seed", "save_embeddings"):  # options of the training
        if sources and name in options:
            fault = f"{sources[0]} gives the vectors, so none are trained"
            raise ConfigError(f"--{name}", fault, f"leave --{name} out")


def binary_kind(kind: str, options: Mapping[str, Any]) -> str:
    """KIND of `--by top-of KIND`, which is the kind of the tree that is built first.

    It is `kind` itself for all other kinds and options, such as classes by frequency.
    Raises ConfigError if `--by` is neither of `frequency` and `top-of` with a binary kind.
    """
    by = options.get("by", BINS)
    if kind != CLASSES or by == BINS:
        return kind
    top_of, _, inner_kind = str(by).partition(" ")
    binary_kinds = [name for name in KINDS if name != CLASSES]
    if top_of != TOP_OF or inner_kind not in binary_kinds:
        expected = f"{BINS}, or {TOP_OF} and one of {', '.join(binary_kinds)}"
        raise ConfigError("--by", f"must be {expected}, got {by!r}")
    return inner_kind


# ---- the kinds, in the order of the help

_SEED = KindOption(
    help="random, permuted, and embedding if it trains: seed; other kinds ignore it (default: 0)",
    limits=lambda _: (0, None),
)


def _huffman(source: TreeSource) -> Tree:
    return Tree.huffman(source.frequencies, source.units, source.options.get("max_depth"))


KINDS["huffman"] = TreeKind(
    build=_huffman,
    summary="their frequencies are similar; shortest mean code",
    options={
        "max_depth": KindOption(
            help="huffman: no code is longer than N bits",
            limits=lambda num_units: (least_depth(num_units), None),
        )
    },
)


def _fano(source: TreeSource) -> Tree:
    return Tree.fano(source.frequencies, source.units)


KINDS["fano"] = TreeKind(build=_fano, summary="the same, split from the top")


def _balanced(source: TreeSource) -> Tree:
    return Tree.balanced(source.frequencies, source.units)


KINDS["balanced"] = TreeKind(build=_balanced, summary="their ids are near")


def _alphabetical(source: TreeSource) -> Tree:
    """The balanced tree over the units in alphabetical order."""
    return source.tree(
        "alphabetical", lambda _: balanced_children(alphabetical_order(source.units))
    )


KINDS["alphabetical"] = TreeKind(build=_alphabetical, summary="they sort together")


def _random(source: TreeSource) -> Tree:
    return Tree.random(source.frequencies, source.units, source.options.get("seed", 0))


KINDS["random"] = TreeKind(build=_random, summary="chance", options={"seed": _SEED})


def _permuted(source: TreeSource) -> Tree:
    """Huffman's tree, in which the units that occur have exchanged their leaves at random.

    Units that never occur keep their leaves.
    """
    seed = source.options.get("seed", 0)
    occurring = np.flatnonzero(source.frequencies)
    order = np.arange(len(source.units))
    order[occurring] = occurring[random_order(len(occurring), seed)]
    # Unit i gets the leaf that Huffman's tree has for unit order[i].
    return source.tree("permuted", lambda weights: huffman_children(weights[order]), seed=seed)


KINDS["permuted"] = TreeKind(
    build=_permuted,
    summary="chance; Huffman's shape with permuted units, a control",
    options={"seed": _SEED},
)


def _brown(source: TreeSource) -> Tree:
    """Brown's tree of the transcripts, each with the end of sentence before and after it.

    The end of sentence before the first unit belongs to the sentence before. Without it, nothing
    would follow an end of sentence. Then its merges would lose nothing, and it would get a long
    code (UCLA's phones: 9 bits instead of 2).
    """
    # The last unit of a sequence is the end of sentence.
    sequences = [[*sequence[-1:], *sequence] for sequence in source.sequences or ()]
    return Tree.brown(sequences, source.frequencies, source.units)


KINDS["brown"] = TreeKind(
    build=_brown,
    summary="they have the same neighbours in the transcripts",
    required_input="sequences",
)


def _embedding(source: TreeSource) -> Tree:
    """Ward's clustering of the directions of the vectors.

    The options are recorded, paths as texts, because they become JSON.
    """
    vectors = source.vectors
    assert vectors is not None  # `build_tree` checks it
    recorded = {}
    for name, value in source.options.items():
        recorded[name] = str(value) if isinstance(value, Path) else value
    return source.tree(
        "embedding", lambda weights: ward_children(vectors, weights, cosine=True), **recorded
    )


KINDS["embedding"] = TreeKind(
    build=_embedding,
    summary="their embeddings are similar",
    options={
        "seed": _SEED,
        "embeddings": KindOption(
            help="embedding: file of vectors in word2vec's text form (default: skip-gram with "
            "hierarchical softmax is trained on the transcripts)",
            type=Path,
            metavar="FILE",
        ),
        "checkpoint": KindOption(
            help="embedding: use the output rows of this trained softmax model, ours or WeNet's",
            type=Path,
            metavar="MODEL_DIR_OR_PT",
        ),
        "save_embeddings": KindOption(
            help="embedding: write the trained vectors into this file, in word2vec's text format "
            "for --embeddings",
            type=Path,
            metavar="FILE",
        ),
    },
    required_input="vectors",
)


def _articulatory(source: TreeSource) -> Tree:
    """Ward's clustering of the articulatory features; units that are not phones are logged."""
    vectors = articulatory_vectors(source.units)
    log_without_vector(vectors, source.units, "are not phones in IPA")
    return source.tree("articulatory", lambda weights: ward_children(vectors, weights))


KINDS["articulatory"] = TreeKind(
    build=_articulatory, summary="they are pronounced alike (phones in IPA)"
)


def _classes(source: TreeSource) -> NaryTree:
    """Bins of units, or the top of the binary tree that `by` names.

    The binary tree is built with the other options.
    """
    options = dict(source.options)
    by = options.pop("by", BINS)
    num_classes = options.pop("num_classes", None)
    if by == BINS:
        tree = NaryTree.frequency_bins(source.frequencies, num_classes, units=source.units)
    else:
        inner_kind = KINDS[binary_kind(CLASSES, source.options)]
        binary_tree = inner_kind.build(replace(source, options=options))
        assert isinstance(binary_tree, Tree)  # `binary_kind` never names `classes`
        tree = NaryTree.from_binary(binary_tree, num_classes)
    return replace(tree, options={"by": by, **tree.options})


KINDS["classes"] = TreeKind(
    build=_classes,
    summary="bins of equal frequency, or the top of a binary tree",
    options={
        "num_classes": KindOption(
            help="classes: children of the root (default: √V)",
            metavar="C",
            limits=lambda num_units: (2, num_units),
        ),
        "by": KindOption(
            help="classes: bins of equal frequency, or the top of a binary tree of KIND "
            "(default: frequency)",
            type=str,
            metavar=("frequency|top-of", "KIND"),
        ),
    },
)
