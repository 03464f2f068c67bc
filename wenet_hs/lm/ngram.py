# SPDX-License-Identifier: Apache-2.0
"""N-gram models with interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998), written as
ARPA files.

For a unit w after a history h, where h' is h without its first unit:

    p(w | h) = (c(h w) - D(h w)) / c(h) + backoff(h) · p(w | h')
    c(h) = Σ_v c(h v),  backoff(h) = Σ_v D(h v) / c(h)

The adjusted count c is the number of occurrences for n-grams of the highest order and for those
that begin with <s>. For other n-grams it is the number of different units before them. The discount
D depends on the order and on whether c is 1, 2 or more. p(w) is interpolated with the uniform
distribution over all units, <unk> and </s>. <s> is never predicted. These are the rules of KenLM's
`lmplz` without pruning, with two differences. <unk> may be in the text; it is then a unit like any
other. For the discounts of each lower order, `lmplz` takes the occurrences of one n-gram instead of
its adjusted count. This changes the discounts only if there are few different n-grams.

Dimension key: T units of the text with the boundaries, V units of the model, N units of one n-gram;
G n-grams of one order, C those of the order below, which are the histories.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
NUM_SPECIAL = 3
_UNKNOWN_ID, _BEGIN_ID, _END_ID = range(NUM_SPECIAL)
_REFUSED = frozenset((BEGIN, END, "<UNK>", *"\t\n\v\f\r "))
"""Boundaries, KenLM's other name of <unk>, and the white space that separates the fields of an ARPA
file.
"""
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
_ZERO = 1e-99
"""An ARPA file has the logarithm -99 for 0: the backoff if all units after a history have a
discount of 0.
"""
_LINES_AT_ONCE = 100_000

AnyInts = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UnitText:
    """A text as ids, in which each sentence is between <s> and </s>."""

    units: Sequence[str]
    """The units in the order of their ids: <unk>, <s>, </s>, then the others in the order of the
    text.
    """
    ids_T: AnyInts

    @property
    def num_sentences(self) -> int:
        return int(np.count_nonzero(self.ids_T == _BEGIN_ID))

    @property
    def num_unknown(self) -> int:
        """How often the text itself has <unk>."""
        return int(np.count_nonzero(self.ids_T == _UNKNOWN_ID))


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one order, sorted by history and last unit."""

    histories_G: AnyInts
    """Index of the n-gram without its last unit, among those of the order below."""
    suffixes_G: AnyInts
    """Index of the n-gram without its first unit."""
    last_units_G: AnyInts
    counts_G: AnyInts
    """Occurrences in the text. The unit <s> has 0."""
    has_begin_G: NDArray[np.bool_]
    """Whether the n-gram begins with <s>."""


@dataclass(frozen=True)
class KneserNeyModel:
    """Probabilities of all n-grams; one item per order in each list."""

    units: Sequence[str]
    orders: list[Ngrams]
    probs: list[Floats]
    backoffs: list[Floats]
    """Weight of the lower order after each n-gram: 1 if nothing follows it."""


def index_units(sentences: Iterable[tuple[str, Sequence[str]]]) -> UnitText:
    """Number the units of sentences.

    Each sentence is given as its source, for messages, and its units.

    Raises DataError if a unit cannot be in an ARPA file.
    """
    id_of = {UNKNOWN: _UNKNOWN_ID, BEGIN: _BEGIN_ID, END: _END_ID}
    ids = array("i")
    for source, units in sentences:
        if not _REFUSED.isdisjoint(units):
            unit = next(unit for unit in units if unit in _REFUSED)
            raise DataError(
                source, f"{unit!r} cannot be a unit of an n-gram model", "remove it from the text"
            )
        ids.append(_BEGIN_ID)
        ids.extend(id_of.setdefault(unit, len(id_of)) for unit in units)
        ids.append(_END_ID)
    return UnitText(list(id_of), np.frombuffer(ids, np.intc))


# ---- counts


def count_ngrams(text: UnitText, order: int) -> list[Ngrams]:
    """The n-grams of the orders 1 to `order`. None has more than one <s> or spans two sentences.

    Raises ConfigError if every sentence is too short for `order`.
    """
    ids_T, num_units = text.ids_T, len(text.units)
    longest = int(np.diff(np.flatnonzero(ids_T == _BEGIN_ID), append=len(ids_T)).max())
    if order > longest:
        found = f"the longest sentence has {longest} units with <s> and </s>"
        raise ConfigError(f"--order {order}", found, f"use {longest} or less")
    counts = np.bincount(ids_T, minlength=num_units)
    counts[_BEGIN_ID] = 0  # never predicted
    of_unit = np.arange(num_units, dtype=np.int32)
    orders = [
        Ngrams(
            np.zeros_like(of_unit), np.zeros_like(of_unit), of_unit, counts, of_unit == _BEGIN_ID
        )
    ]
    ngrams_T = ids_T
    for length in range(2, order + 1):
        longer, ngrams_T = _extend(text, orders[-1], ngrams_T, length)
        orders.append(longer)
    return orders


def _extend(
    text: UnitText, shorter: Ngrams, shorter_T: AnyInts, length: int
) -> tuple[Ngrams, AnyInts]:
    """The n-grams with one more unit, and their index at each position of the text.

    Args:
        shorter_T: (T,) the index of the shorter n-gram that begins at each position; -1 if its
            sentence ends too soon.
    """
    ids_T, num_units = text.ids_T, np.int64(len(text.units))
    num_positions = len(ids_T) - length + 1
    has_next = (shorter_T[:num_positions] >= 0) & (ids_T[length - 2 : -1] != _END_ID)
    positions = np.flatnonzero(has_next)
    keys = shorter_T[positions] * num_units + ids_T[positions + length - 1]
    keys_G, indices, counts_G = _unique(keys, len(shorter.counts_G) * len(text.units))
    position_G = np.empty(len(keys_G), np.int64)
    position_G[indices] = positions  # any one of its positions
    histories_G, last_units_G = (part.astype(np.int32) for part in np.divmod(keys_G, num_units))
    longer_T = np.full(len(ids_T), -1, np.int32)
    longer_T[positions] = indices
    suffixes_G = shorter_T[position_G + 1]
    return Ngrams(
        histories_G, suffixes_G, last_units_G, counts_G, shorter.has_begin_G[histories_G]
    ), longer_T


def _unique(keys: AnyInts, num_keys: int) -> tuple[AnyInts, AnyInts, AnyInts]:
    """The different keys in ascending order, the index of each key in them, and their counts.

    Keys are < num_keys.
    """
    if num_keys > 4 * len(keys):
        return np.unique(keys, return_inverse=True, return_counts=True)
    counts = np.bincount(
        keys, minlength=num_keys
    )  # with few units this is several times faster than sorting
    keys_G = np.flatnonzero(counts)
    index_of = np.empty(num_keys, np.int32)
    index_of[keys_G] = np.arange(len(keys_G))
    return keys_G, index_of[keys], counts[keys_G]


def _adjusted_counts(orders: Sequence[Ngrams]) -> Iterator[AnyInts]:
    """c of all n-grams, per order."""
    for ngrams, longer in zip(orders, orders[1:], strict=False):
        num_before_G = np.bincount(longer.suffixes_G, minlength=len(ngrams.counts_G))
        yield np.where(ngrams.has_begin_G, ngrams.counts_G, num_before_G)
    yield orders[-1].counts_G


# ---- probabilities


def estimate(text: UnitText, order: int, *, fallback: bool = False) -> KneserNeyModel:
    """The model of a text.

    With `fallback`, discounts that cannot be estimated are `FALLBACK_DISCOUNTS`.

    Raises: ConfigError if every sentence is too short for `order`; DataError if discounts cannot be
        estimated.
    """
    orders = count_ngrams(text, order)
    model = KneserNeyModel(text.units, orders, [], [])
    shorter_probs_C = np.array([1 / (len(text.units) - 1)])  # uniform over all units but <s>
    for length, (ngrams, counts_G) in enumerate(
        zip(orders, _adjusted_counts(orders), strict=True), start=1
    ):
        discounts_G = _discounts(counts_G, length, fallback=fallback)[counts_G.clip(max=3)]
        histories_G, num_histories = ngrams.histories_G, len(shorter_probs_C)
        totals_C = np.bincount(histories_G, counts_G, num_histories)
        backoffs_C = np.ones(num_histories)
        discounted_C = np.bincount(histories_G, discounts_G, num_histories)
        np.divide(discounted_C, totals_C, out=backoffs_C, where=totals_C > 0)
        if length > 1:
            model.backoffs.append(backoffs_C)
        lower_G = backoffs_C[histories_G] * shorter_probs_C[ngrams.suffixes_G]
        shorter_probs_C = (counts_G - discounts_G) / totals_C[histories_G] + lower_G
        model.probs.append(shorter_probs_C)
    model.probs[0][_BEGIN_ID] = 1.0  # as in the files of lmplz
    return model


def _discounts(counts_G: AnyInts, length: int, *, fallback: bool) -> Floats:
    """D for the adjusted counts 0, 1, 2 and above: (4,). Equation 26 of Chen & Goodman."""
    num = np.bincount(counts_G.clip(max=5), minlength=5).tolist()
    missing = [count for count in (1, 2, 3) if not num[count]]
    if missing:
        fault = f"no {length}-gram has the adjusted count {missing[0]}"
    else:
        total = num[1] + 2 * num[2]
        discounts = np.zeros(4)
        for n in (
            1,
            2,
            3,
        ):  # n - (n + 1) · num_1 / total · num_(n+1) / num_n; integers, because 0 is not rare
            discounts[n] = (n * total * num[n] - (n + 1) * num[1] * num[n + 1]) / (total * num[n])
        wrong = np.flatnonzero(discounts < 0)
        fault = f"D{wrong[0]} is {discounts[wrong[0]]:.2f}, below 0" if len(wrong) else ""
    if fault and not fallback:
        found = f"the discounts cannot be estimated ({fault})"
        raise DataError(f"{length}-grams", found, "give --discount_fallback or more text")
    if fault:
        discounts = np.array([0.0, *FALLBACK_DISCOUNTS])
    shown = " ".join(f"{discount:.3g}" for discount in discounts[1:])
    logger.info(
        "%d-grams: %d | discounts %s%s",
        length,
        len(counts_G),
        shown,
        " (fallback)" if fault else "",
    )
    return discounts


# ---- ARPA files


def write_arpa(path: Path, model: KneserNeyModel) -> None:
    """Write a model, with logarithms to the base 10."""
    with open_atomic(path) as file:
        sizes = (
            f"ngram {length}={len(probs_G)}" for length, probs_G in enumerate(model.probs, start=1)
        )
        file.write("\n".join(("\\data\\", *sizes, "")).encode())
        for length, probs_G in enumerate(model.probs, start=1):
            file.write(f"\n\\{length}-grams:\n".encode())
            for begin in range(0, len(probs_G), _LINES_AT_ONCE):
                indices = np.arange(begin, min(begin + _LINES_AT_ONCE, len(probs_G)))
                file.write("".join(_arpa_lines(model, length, indices)).encode())
        file.write(b"\n\\end\\\n")


def _arpa_lines(model: KneserNeyModel, length: int, indices: AnyInts) -> Iterator[str]:
    """`log10 probability, units, log10 backoff` of some n-grams; the highest order has no backoff."""
    columns_N, histories = [], indices
    for ngrams in reversed(model.orders[:length]):
        columns_N.append([model.units[unit] for unit in ngrams.last_units_G[histories].tolist()])
        histories = ngrams.histories_G[histories]
    names = map(" ".join, zip(*reversed(columns_N), strict=True))
    log_probs = (
        np.log10(model.probs[length - 1][indices]).clip(max=0).tolist()
    )  # a sum may be just above 1
    if length == len(model.orders):
        return (
            f"{log_prob:.7g}\t{name}\n" for log_prob, name in zip(log_probs, names, strict=True)
        )
    log_backoffs = np.log10(model.backoffs[length - 1][indices].clip(min=_ZERO)).tolist()
    fields = zip(log_probs, names, log_backoffs, strict=True)
    return (
        f"{log_prob:.7g}\t{name}\t{log_backoff:.7g}\n" for log_prob, name, log_backoff in fields
    )
