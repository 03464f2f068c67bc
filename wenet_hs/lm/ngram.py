# SPDX-License-Identifier: Apache-2.0
"""Estimation of n-gram models by modified Kneser-Ney smoothing, and ARPA files of them.

The smoothing is interpolated (Chen & Goodman 1998). For a unit w after a history h, where h' is h
without its first unit:

    p(w | h) = (c(h w) - D(h w)) / c(h) + backoff(h) · p(w | h')
    c(h) = Σ_v c(h v),  backoff(h) = Σ_v D(h v) / c(h)

The adjusted count c is the number of occurrences for n-grams of the highest order and for those
that begin with <s>. For other n-grams it is the number of different units before them. The discount
D depends on the order and on whether c is 1, 2 or more. p(w) is interpolated with the uniform
distribution over all units, <unk> and </s>. <s> is never predicted.

These are the rules of KenLM's `lmplz` without pruning, with two differences. <unk> may be in the
text; it is then a unit like any other. For the discounts of each lower order, `lmplz` takes the
occurrences of one n-gram instead of its adjusted count. This changes the discounts only if there
are few different n-grams.

Dimension key: T units of the text with the boundaries, V units of the model, G n-grams of one
order, C n-grams of the order below, which are the histories.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

BEGIN = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
NUM_SPECIAL = 3
"""How many units of a model are not units of a text: the three above."""
_UNKNOWN_ID = 0
_BEGIN_ID = 1
_END_ID = 2
_REFUSED = frozenset((BEGIN, END, "<UNK>", *"\t\n\v\f\r "))
"""No units: boundaries, KenLM's other name of <unk>, and the white space between the fields of an
ARPA file."""
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""For the adjusted counts 1, 2, and 3 or more, as in `lmplz --discount_fallback`."""
_ZERO = 1e-99
"""Written for a backoff of 0, whose logarithm is -99. A backoff is 0 if all units after a history
have a discount of 0."""
_LINES_AT_ONCE = 100_000
_MAX_KEYS_PER_VALUE = 4
"""A table of keys has at most this many rows per value that is counted in it."""

AnyInts = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UnitText:
    """A text as ids, in which each sentence is between <s> and </s>."""

    units: Sequence[str]
    """The units in the order of their ids: <unk>, <s>, </s>, then the others in the order of the
    text."""
    ids_T: AnyInts

    @property
    def num_sentences(self) -> int:
        """The number of sentences: each has one <s>."""
        return int(np.count_nonzero(self.ids_T == _BEGIN_ID))

    @property
    def num_unknown(self) -> int:
        """How often the text itself has <unk>."""
        return int(np.count_nonzero(self.ids_T == _UNKNOWN_ID))


@dataclass(frozen=True, kw_only=True)
class Ngrams:
    """The n-grams of one order, sorted by history and last unit."""

    histories_G: AnyInts
    """Index of the n-gram without its last unit, among those of the order below."""
    suffixes_G: AnyInts
    """Index of the n-gram without its first unit, among those of the order below."""
    last_units_G: AnyInts
    """Unit id of the last unit."""
    counts_G: AnyInts
    """Occurrences in the text. The unit <s> has 0."""
    has_begin_G: NDArray[np.bool_]
    """Whether the n-gram begins with <s>."""


@dataclass(frozen=True, kw_only=True)
class KneserNeyModel:
    """Probabilities of all n-grams; one item per order in each list."""

    units: Sequence[str]
    orders: list[Ngrams]
    probs: list[Floats]
    """p(last unit | the others) of each n-gram."""
    backoffs: list[Floats]
    """Weight of the lower order after each n-gram: 1 if nothing follows it. The highest order has
    none."""


# ---- the units of a text


def index_units(sentences: Iterable[tuple[str, Sequence[str]]]) -> UnitText:
    """Number the units of sentences in the order in which they appear.

    Args:
        sentences: of each sentence its source, for messages, and its units.
    Raises:
        DataError: a unit cannot be in an ARPA file.
    """
    id_of = {UNKNOWN: _UNKNOWN_ID, BEGIN: _BEGIN_ID, END: _END_ID}
    ids = array("i")
    for source, units in sentences:
        if not _REFUSED.isdisjoint(units):
            unit = next(unit for unit in units if unit in _REFUSED)
            fault = f"{unit!r} cannot be a unit of an n-gram model"
            raise DataError(source, fault, "remove it from the text")
        ids.append(_BEGIN_ID)
        # A unit that is new gets the next id.
        ids.extend(id_of.setdefault(unit, len(id_of)) for unit in units)
        ids.append(_END_ID)
    return UnitText(units=list(id_of), ids_T=np.frombuffer(ids, np.intc))


# ---- probabilities


def estimate(text: UnitText, order: int, *, fallback: bool = False) -> KneserNeyModel:
    """Estimate an n-gram model by interpolated modified Kneser-Ney smoothing.

    From 1-grams to the longest n-grams, with adjusted counts c and discounts D:
    p(w | h) = (c(h w) - D(h w)) / c(h) + backoff(h) · p(w | h without its first unit), where c(h)
    is the sum of c(h v) over all units v, and backoff(h) that of D(h v) / c(h).

    Arrays _G have a value per n-gram of the current length, arrays _C one per history.

    Args:
        order: of the longest n-grams, at least 1.
        fallback: whether discounts that cannot be estimated become `FALLBACK_DISCOUNTS`.
    Raises:
        ConfigError: every sentence is too short for `order`.
        DataError: discounts cannot be estimated, without `fallback`.
    """
    orders = count_ngrams(text, order)
    probs: list[Floats] = []
    backoffs: list[Floats] = []
    num_predicted_units = len(text.units) - 1  # all but <s>
    shorter_probs_C = np.array([1 / num_predicted_units])  # of the order 0: uniform
    for length, (ngrams, counts_G) in enumerate(
        zip(orders, _adjust_counts(orders), strict=True), start=1
    ):
        histories_G = ngrams.histories_G
        num_histories = len(shorter_probs_C)
        discount_of_count = _choose_discounts(counts_G, length, fallback=fallback)
        discounts_G = discount_of_count[counts_G.clip(max=3)]
        totals_C = np.bincount(histories_G, counts_G, num_histories)
        discounted_C = np.bincount(histories_G, discounts_G, num_histories)
        backoffs_C = np.ones(num_histories)  # 1 after a history that nothing follows
        np.divide(discounted_C, totals_C, out=backoffs_C, where=totals_C > 0)
        if length > 1:  # the empty history of 1-grams has no line in an ARPA file
            backoffs.append(backoffs_C)
        lower_G = backoffs_C[histories_G] * shorter_probs_C[ngrams.suffixes_G]
        probs_G = (counts_G - discounts_G) / totals_C[histories_G] + lower_G
        probs.append(probs_G)
        shorter_probs_C = probs_G
    probs[0][_BEGIN_ID] = 1.0  # as in the files of lmplz
    return KneserNeyModel(units=text.units, orders=orders, probs=probs, backoffs=backoffs)


def _adjust_counts(orders: Sequence[Ngrams]) -> Iterator[AnyInts]:
    """The adjusted counts of all n-grams, (G,) per order.

    For the highest order, and n-grams that begin with <s>, they are the occurrences. For others
    they are the number of different units before the n-gram.
    """
    for ngrams, longer in zip(orders[:-1], orders[1:], strict=True):
        num_before_G = np.bincount(longer.suffixes_G, minlength=len(ngrams.counts_G))
        yield np.where(ngrams.has_begin_G, ngrams.counts_G, num_before_G)
    yield orders[-1].counts_G


def _choose_discounts(counts_G: AnyInts, length: int, *, fallback: bool) -> Floats:
    """(4,) the discount of the adjusted counts 0, 1, 2, and 3 or more. Logs the last three.

    They are estimated from the adjusted counts of all n-grams of one length. If that fails, they
    are `FALLBACK_DISCOUNTS` with `fallback`; without it, DataError is raised.
    """
    discounts_or_fault = _estimate_discounts(counts_G, length)
    if not isinstance(discounts_or_fault, str):
        discounts = discounts_or_fault
        note = ""
    elif fallback:
        discounts = np.array([0.0, *FALLBACK_DISCOUNTS])
        note = " (fallback)"
    else:
        fault = f"the discounts cannot be estimated ({discounts_or_fault})"
        to_do = "give --discount_fallback or more text"
        raise DataError(f"{length}-grams", fault, to_do)
    logger.info(
        "%d-grams: %d | discounts %s%s",
        length,
        len(counts_G),
        " ".join(f"{discount:.3g}" for discount in discounts[1:]),
        note,
    )
    return discounts


def _estimate_discounts(counts_G: AnyInts, length: int) -> Floats | str:
    """(4,) the estimated discounts, or, as a `str`, why they cannot be estimated.

    D(0) = 0 and D(n) = n - (n + 1) · num_1 / (num_1 + 2 · num_2) · num_(n+1) / num_n, where num_n
    is the number of n-grams with the adjusted count n (equation 26 of Chen & Goodman). They cannot
    be estimated if num_1, num_2 or num_3 is 0, or if a discount is negative.

    `length`: of the n-grams, for the message.
    """
    # num_with_count[n] is num_n. Counts above 5 are counted as 5: only those up to 4 are used.
    num_with_count = np.bincount(counts_G.clip(max=5), minlength=5).tolist()
    for n in (1, 2, 3):
        if num_with_count[n] == 0:
            return f"no {length}-gram has the adjusted count {n}"
    discounts = np.zeros(4)
    num_1 = num_with_count[1]
    total = num_1 + 2 * num_with_count[2]
    for n in (1, 2, 3):
        num_n = num_with_count[n]
        num_next = num_with_count[n + 1]
        # One fraction of integers, because D(n) = 0 is not rare, and rounding could make it < 0.
        discounts[n] = (n * total * num_n - (n + 1) * num_1 * num_next) / (total * num_n)
    for n in (1, 2, 3):
        if discounts[n] < 0:
            return f"D{n} is {discounts[n]:.2f}, below 0"
    return discounts


# ---- counts


@dataclass(frozen=True, kw_only=True)
class _NgramsInText:
    """The n-grams of one order and where they are in the text."""

    ngrams: Ngrams
    indices_T: AnyInts
    """Index of the n-gram that begins at each position; -1 if its sentence ends too soon."""


def count_ngrams(text: UnitText, order: int) -> list[Ngrams]:
    """The n-grams of the orders 1 to `order`. None has more than one <s> or spans two sentences.

    Raises ConfigError if every sentence is too short for `order`.
    """
    _refuse_long_order(text, order)
    num_units = len(text.units)
    counts_V = np.bincount(text.ids_T, minlength=num_units)
    counts_V[_BEGIN_ID] = 0  # never predicted
    unit_ids_V = np.arange(num_units, dtype=np.int32)
    empty_V = np.zeros_like(unit_ids_V)  # the index of the only n-gram of order 0
    unigrams = Ngrams(
        histories_G=empty_V,
        suffixes_G=empty_V,
        last_units_G=unit_ids_V,
        counts_G=counts_V,
        has_begin_G=unit_ids_V == _BEGIN_ID,
    )
    longest = _NgramsInText(ngrams=unigrams, indices_T=text.ids_T)
    orders = [unigrams]
    for length in range(2, order + 1):
        longest = _extend(text, longest, length)
        orders.append(longest.ngrams)
    return orders


def _refuse_long_order(text: UnitText, order: int) -> None:
    """Raise ConfigError if no sentence has `order` units, with <s> and </s>."""
    begins = np.flatnonzero(text.ids_T == _BEGIN_ID)
    lengths = np.diff(begins, append=len(text.ids_T))
    longest = int(lengths.max())
    if order > longest:
        fault = f"the longest sentence has {longest} units with <s> and </s>"
        raise ConfigError(f"--order {order}", fault, f"use {longest} or less")


def _extend(text: UnitText, shorter: _NgramsInText, length: int) -> _NgramsInText:
    """The n-grams of `length` units: each n-gram of one unit less, and the unit after it.

    A shorter n-gram that ends with </s> has no longer one. Arrays _T have a value per position of
    the text, at which an n-gram begins; arrays _G have one per different n-gram.
    """
    num_positions = len(text.ids_T) - length + 1  # where `length` units fit into the text
    shorter_T = shorter.indices_T[:num_positions]
    last_of_shorter_T = text.ids_T[length - 2 : -1]  # (the same positions) + length - 2
    # An index of -1 means that the sentence ends too soon for the shorter n-gram.
    is_begin_of_longer_T = (shorter_T >= 0) & (last_of_shorter_T != _END_ID)
    positions = np.flatnonzero(is_begin_of_longer_T)

    # One number per n-gram, from its history (the shorter one) and its last unit, in 64 bits.
    num_units = np.int64(len(text.units))
    keys = shorter_T[positions] * num_units + text.ids_T[positions + length - 1]
    num_keys = len(shorter.ngrams.counts_G) * len(text.units)
    distinct = _find_distinct(keys, num_keys)
    histories_G, last_units_G = np.divmod(distinct.keys_G, num_units)
    histories_G = histories_G.astype(np.int32)

    # One position of each n-gram, whichever: all others write to the same place.
    position_G = np.empty(len(distinct.keys_G), np.int64)
    position_G[distinct.indices] = positions
    longer_T = np.full(len(text.ids_T), -1, np.int32)
    longer_T[positions] = distinct.indices
    ngrams = Ngrams(
        histories_G=histories_G,
        suffixes_G=shorter.indices_T[position_G + 1],
        last_units_G=last_units_G.astype(np.int32),
        counts_G=distinct.counts_G,
        has_begin_G=shorter.ngrams.has_begin_G[histories_G],
    )
    return _NgramsInText(ngrams=ngrams, indices_T=longer_T)


class _DistinctKeys(NamedTuple):
    """The different values in an array of keys, as `np.unique` gives them."""

    keys_G: AnyInts
    """In ascending order."""
    indices: AnyInts
    """Of each key of the array, its index in `keys_G`."""
    counts_G: AnyInts
    """How often each is in the array."""


def _find_distinct(keys: AnyInts, num_keys: int) -> _DistinctKeys:
    """The different keys in an array of integers from 0 to `num_keys` - 1.

    If few keys are possible, they are counted in a table, which is several times faster than
    sorting. Otherwise the table would be large and almost empty.
    """
    if num_keys > _MAX_KEYS_PER_VALUE * len(keys):
        return _DistinctKeys(*np.unique(keys, return_inverse=True, return_counts=True))
    counts = np.bincount(keys, minlength=num_keys)
    keys_G = np.flatnonzero(counts)
    index_of_key = np.empty(num_keys, np.int32)
    index_of_key[keys_G] = np.arange(len(keys_G))
    return _DistinctKeys(keys_G, index_of_key[keys], counts[keys_G])


# ---- ARPA files


def write_arpa(path: Path, model: KneserNeyModel) -> None:
    """Write a model as an ARPA file, whose logarithms have the base 10.

    It appears under its name only when it is complete. Raises OSError as `open_atomic` does.
    """
    with open_atomic(path) as file:
        file.write(b"\\data\\\n")
        for length, probs_G in enumerate(model.probs, start=1):
            file.write(f"ngram {length}={len(probs_G)}\n".encode())
        for length, probs_G in enumerate(model.probs, start=1):
            file.write(f"\n\\{length}-grams:\n".encode())
            for begin in range(0, len(probs_G), _LINES_AT_ONCE):
                indices = np.arange(begin, min(begin + _LINES_AT_ONCE, len(probs_G)))
                file.write("".join(_arpa_lines(model, length, indices)).encode())
        file.write(b"\n\\end\\\n")


def _arpa_lines(model: KneserNeyModel, length: int, indices: AnyInts) -> Iterator[str]:
    """The lines of some n-grams of one length: log10 probability, units, log10 backoff.

    The highest order has no backoff. `indices`: of the n-grams, among those of their length.
    """
    texts = _ngram_texts(model, length, indices)
    # A probability is a sum, which rounding may make larger than 1.
    log_probs = np.log10(model.probs[length - 1][indices]).clip(max=0).tolist()
    if length == len(model.orders):
        for log_prob, text in zip(log_probs, texts, strict=True):
            yield f"{log_prob:.7g}\t{text}\n"
        return
    # A backoff of 0 is written as the logarithm -99.
    log_backoffs = np.log10(model.backoffs[length - 1][indices].clip(min=_ZERO)).tolist()
    for log_prob, text, log_backoff in zip(log_probs, texts, log_backoffs, strict=True):
        yield f"{log_prob:.7g}\t{text}\t{log_backoff:.7g}\n"


def _ngram_texts(model: KneserNeyModel, length: int, indices: AnyInts) -> Iterator[str]:
    """The units of some n-grams of one length, with spaces between them.

    They are collected from the last unit to the first, by following the histories.
    """
    columns = []  # the last unit of each n-gram, then the unit before it, and so on
    for ngrams in reversed(model.orders[:length]):
        unit_ids = ngrams.last_units_G[indices].tolist()
        columns.append([model.units[unit_id] for unit_id in unit_ids])
        indices = ngrams.histories_G[indices]
    return map(" ".join, zip(*reversed(columns), strict=True))
