# SPDX-License-Identifier: Apache-2.0
"""The table of utterances, the filters of `filter_conf`, and sampling of languages and lists.

Sampling is a pure function of the seed and the epoch. A group is a language of a list, or a whole
list if languages are not balanced. The quota of a group is its number of draws per epoch. The group
is put into a random order, and after the end of this order into another one. Each epoch goes on
where the one before ended, so every utterance is used before one is used again.

A draw is an item: the number i + N * copy for utterance i of N. Copies in one epoch are augmented
differently.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import FilterConf, SamplingConf
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Indices = NDArray[np.int64]
FRAMES_PER_SECOND = 100
"""filter_conf counts frames of 10 ms for any frame shift, like WeNet."""
_STREAM = 0x5A3D
"""Separates these random numbers from those of the batch plan, whose seed is [seed, epoch]."""
_BLOCK_ROWS = 1 << 16
"""Utterances that exist as Python objects at the same time while a table is made."""
_NO_LANG = -1
"""Instead of a position in `UtteranceTable.lang_names`: no language is stated or balanced."""
_TEXT = np.dtypes.StringDType(na_object=None)
"""UTF-8, which needs about the length of the text plus 16 bytes per row."""
_NUMBER = np.dtype(np.float64)
"""NaN: the list does not state the number."""
_COLUMNS: dict[str, np.dtype[Any]] = {
    "key": _TEXT,
    "wav": _TEXT,
    "txt": _TEXT,
    "speaker": _TEXT,
    "duration": _NUMBER,
    "start": _NUMBER,
    "end": _NUMBER,
    "channel": _NUMBER,
}
"""Field of an utterance → type of its column."""


class UtteranceTable(Sequence[Utterance]):
    """The utterances of one or more lists, in order; a row becomes an `Utterance` when it is read.

    Worker processes share the columns without copies.
    """

    columns: dict[str, NDArray[Any]]
    """Field of an utterance → its values (N,); the fields of _COLUMNS."""
    langs: NDArray[np.int32]
    """(N,) positions in `lang_names`; -1 where the list does not state the language."""
    lang_names: tuple[str, ...]
    """All languages, in the order of their first utterances."""
    list_starts: tuple[int, ...]
    """The first row of each list."""
    digest: str
    """SHA-256 of everything the lists state about the utterances, except where the audio is."""

    def __init__(
        self, utterances: Iterable[Utterance], list_starts: tuple[int, ...] = (0,)
    ) -> None:
        """Read the utterances in blocks, so that few of them are Python objects at the same time.

        `list_starts`: the position of the first utterance of each list.
        """
        lang_numbers: dict[str | None, int] = {None: _NO_LANG}
        blocks: list[dict[str, NDArray[Any]]] = []
        digest = hashlib.sha256()
        remaining = iter(utterances)
        while True:
            block = list(islice(remaining, _BLOCK_ROWS))
            if not block and blocks:  # without utterances there is one empty block
                break
            facts = "\n".join(map(_facts_for_digest, block))
            separator = "\n" if blocks else ""  # the digest does not depend on the blocks
            digest.update((separator + facts).encode())
            blocks.append(_make_columns(block, lang_numbers))
        self.columns = {
            name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]
        }
        self.langs = self.columns.pop("lang")
        self.lang_names = tuple(name for name in lang_numbers if name is not None)
        self.list_starts = list_starts
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.langs)

    def __getitem__(self, number: int) -> Utterance:  # type: ignore[override]  # no slices
        """The utterance of a row, from 0."""
        values = {name: column[number] for name, column in self.columns.items()}
        channel = _number_or_none(values["channel"])
        lang_number = int(self.langs[number])
        return Utterance(
            key=values["key"],
            wav=values["wav"],
            txt=values["txt"],
            lang=None if lang_number == _NO_LANG else self.lang_names[lang_number],
            speaker=values["speaker"],
            duration=_number_or_none(values["duration"]),
            start=_number_or_none(values["start"]),
            end=_number_or_none(values["end"]),
            channel=None if channel is None else int(channel),
        )


def _make_columns(
    utterances: Sequence[Utterance], lang_numbers: dict[str | None, int]
) -> dict[str, NDArray[Any]]:
    """The columns of some utterances (N,), by the names of the fields.

    The column "lang" has the numbers of `lang_numbers`; a new language gets the next number there.
    """
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in _COLUMNS.items():
        columns[name] = np.array([getattr(utterance, name) for utterance in utterances], dtype)
    langs = []
    for utterance in utterances:
        next_number = len(lang_numbers) - 1  # the key None is no language
        langs.append(lang_numbers.setdefault(utterance.lang, next_number))
    columns["lang"] = np.array(langs, np.int32)
    return columns


def _number_or_none(value: np.float64) -> float | None:
    """A number of a column; None for NaN: the list does not state it."""
    return None if np.isnan(value) else float(value)


def _facts_for_digest(utterance: Utterance) -> str:
    """What a list states about an utterance, for the digest of the table.

    A missing duration, start or end is `None` in it; a missing channel adds nothing.
    """
    facts = [utterance.key, utterance.txt, utterance.duration, utterance.start, utterance.end]
    if utterance.channel is not None:
        facts.append(utterance.channel)
    return "\t".join(map(str, facts))


# ---- Filters


def ctc_frames_needed(ids: Sequence[int]) -> int:
    """The fewest encoder frames with which CTC can align a label.

    It needs one frame per unit, and one for a blank between two equal neighbours.
    """
    # Each id is compared with the next one, without a loop in Python: lists have millions of them.
    following_ids = islice(ids, 1, None)
    num_repeated: int = sum(map(eq, ids, following_ids))
    return len(ids) + num_repeated


def reason_to_reject(
    ids: Sequence[int], duration_s: float, num_encoder_frames: int, conf: FilterConf
) -> str | None:
    """The first reason why an utterance is not used in training; None: it is used.

    Args:
        ids: the unit ids of the transcript.
        num_encoder_frames: of this utterance; see `ctc_frames_needed`.
        conf: WeNet's limits; lengths in frames of 10 ms, ratios in units per frame.
    """
    if not ids:
        return "empty transcript"
    num_units = len(ids)
    num_frames = duration_s * FRAMES_PER_SECOND
    if num_frames < conf.min_length:
        limit = f"filter_conf.min_length is {conf.min_length} frames of 10 ms"
        return f"too short: {duration_s:.3f} s, {limit}"
    if num_frames > conf.max_length:
        limit = f"filter_conf.max_length is {conf.max_length} frames of 10 ms"
        return f"too long: {duration_s:.1f} s, {limit}"
    if num_units < conf.token_min_length:
        limit = f"filter_conf.token_min_length is {conf.token_min_length}"
        return f"too few units: {num_units}, {limit}"
    if num_units > conf.token_max_length:
        limit = f"filter_conf.token_max_length is {conf.token_max_length}"
        return f"too many units: {num_units}, {limit}"
    num_needed = ctc_frames_needed(ids)
    if num_encoder_frames < num_needed:
        needs = f"{num_encoder_frames} encoder frames, CTC needs {num_needed}"
        return f"fewer frames than labels: {needs}"
    ratio = num_units / num_frames if num_frames else 0.0  # without audio: too few units
    if ratio < conf.min_output_input_ratio:
        limit = f"at least {conf.min_output_input_ratio:g} wanted"
        return f"too few units for its length: {ratio:.4f} per frame, {limit}"
    if ratio > conf.max_output_input_ratio:
        limit = f"at most {conf.max_output_input_ratio:g} wanted"
        return f"too many units for its length: {ratio:.4f} per frame, {limit}"
    return None


# ---- Balanced sampling


class Sampler:
    """Draws the items of each epoch."""

    def __init__(self, groups: Indices, quotas: Indices, *, seed: int) -> None:
        """groups: (N,) the group of each utterance, from 0.  quotas: (G,) draws per epoch."""
        by_group = np.argsort(groups, kind="stable")  # the utterances of group 0, then of 1, …
        group_numbers = np.arange(len(quotas) + 1)
        bounds = np.searchsorted(groups[by_group], group_numbers)  # where each group begins
        self._members = [by_group[begin:end] for begin, end in pairwise(bounds)]
        self._quotas = quotas
        self._num_utterances = len(groups)
        self._seed = seed

    def items(self, epoch: int) -> Indices:
        """The items of an epoch, ascending: (sum of the quotas,)."""
        drawn = [self._draw(group, epoch) for group in range(len(self._members))]
        return np.sort(np.concatenate(drawn))

    def _draw(self, group: int, epoch: int) -> Indices:
        """The items of a group in an epoch: (quota,).

        The draws of all epochs are one sequence. It consists of cycles, each of which has every
        member of the group once, in a random order. An epoch takes the next part of the sequence.
        In its first cycle the items are the utterances themselves, in the next one their copy 1,
        and so on: utterance + copy * number of utterances.
        """
        members = self._members[group]
        cycle_size = len(members)
        quota = int(self._quotas[group])
        epoch_begin = epoch * quota
        epoch_end = epoch_begin + quota
        first_cycle = epoch_begin // cycle_size
        last_cycle = (epoch_end - 1) // cycle_size
        parts = []
        for cycle in range(first_cycle, last_cycle + 1):
            cycle_begin = cycle * cycle_size
            # The part of the cycle that the epoch takes, by positions in the cycle.
            begin = max(epoch_begin - cycle_begin, 0)
            end = min(epoch_end - cycle_begin, cycle_size)
            drawn = members
            if end - begin < cycle_size:  # of a whole cycle the order does not matter
                generator = np.random.default_rng([self._seed, _STREAM, group, cycle])
                order = generator.permutation(cycle_size)
                drawn = members[order[begin:end]]
            copy = cycle - first_cycle
            parts.append(drawn + self._num_utterances * copy)
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class _SamplingGroups:
    """The groups of N utterances, G in number, by list and language."""

    of_utterances: Indices
    """(N,) the group of each utterance."""
    lists: Indices
    """(G,) the list of each group, from 0."""
    langs: Indices
    """(G,) the language of each group, a position in `lang_names`; -1: all languages."""
    sizes: Indices
    """(G,) utterances."""
    seconds: NDArray[np.float64]
    """(G,) seconds of speech."""


def make_sampler(
    conf: SamplingConf,
    table: UtteranceTable,
    rows: Indices,
    seconds: NDArray[np.float64],
    *,
    seed: int,
) -> Sampler:
    """A sampler of some utterances of a table. The log states the hours that an epoch draws.

    Args:
        rows: (N,) the rows of these utterances in the table.
        seconds: (N,) their lengths.
    Raises: DataError if languages are balanced and an utterance has none; ConfigError if there is
        not one weight per list.
    """
    num_lists = len(table.list_starts)
    if conf.weights is not None and len(conf.weights) != num_lists:
        found = f"{len(conf.weights)} weights for {num_lists} lists in --train_data"
        raise ConfigError("dataset_conf.sampling.weights", found, "give one per list")
    balances_langs = conf.temperature != 1.0
    num_without_lang = int((table.langs[rows] == _NO_LANG).sum())
    if balances_langs and num_without_lang:
        found = f"by lang, but {num_without_lang} utterances have no 'lang' in their data list"
        raise DataError("dataset_conf.sampling", found, "add it, or set temperature: 1")
    groups = _find_groups(table, rows, seconds, by_lang=balances_langs)
    quotas = _find_quotas(groups, conf)
    _log_sampling(table, groups, quotas)
    return Sampler(groups.of_utterances, quotas, seed=seed)


def _find_groups(
    table: UtteranceTable, rows: Indices, seconds: NDArray[np.float64], *, by_lang: bool
) -> _SamplingGroups:
    """The groups of the rows (N,): their lists, each divided into its languages if `by_lang`."""
    # The list of a row is the last one that begins at the row or before it.
    num_begun = np.searchsorted(np.asarray(table.list_starts), rows, side="right")
    lists = num_begun - 1
    langs = table.langs[rows] if by_lang else np.full(len(rows), _NO_LANG)
    # One number per pair of list and language; + 1 since _NO_LANG is -1.
    num_lang_numbers = len(table.lang_names) + 1
    labels = lists * num_lang_numbers + (langs + 1)
    group_labels, of_utterances = np.unique(labels, return_inverse=True)
    group_lists, lang_numbers = np.divmod(group_labels, num_lang_numbers)
    return _SamplingGroups(
        of_utterances=of_utterances,
        lists=group_lists,
        langs=lang_numbers - 1,
        sizes=np.bincount(of_utterances),
        seconds=np.bincount(of_utterances, weights=seconds).astype(np.float64),
    )


def _find_quotas(groups: _SamplingGroups, conf: SamplingConf) -> Indices:
    """Draws per epoch of each group (G,), at least one.

    An epoch has as many seconds of speech as all groups. The lists have the shares of `weights`, or
    else their own shares. In a list the share of a language is p ∝ seconds^(1 / temperature).
    """
    seconds = groups.seconds
    total_s = seconds.sum()
    quotas = groups.sizes.copy()
    used_lists = np.unique(groups.lists)
    for number in used_lists:
        in_list = groups.lists == number
        list_share = seconds[in_list].sum() / total_s
        if conf.weights is not None:
            # A list of which no utterance is used is not counted.
            used_weights = [conf.weights[used] for used in used_lists]
            list_share = conf.weights[number] / sum(used_weights)
        # Shares do not change by the division, which keeps the power from overflowing.
        relative_s = seconds[in_list] / seconds[in_list].max()
        flattened = relative_s ** (1.0 / conf.temperature)
        wanted_s = total_s * list_share * flattened / flattened.sum()
        num_draws = groups.sizes[in_list] * wanted_s / seconds[in_list]
        quotas[in_list] = np.maximum(1, np.rint(num_draws))
    return quotas


def _log_sampling(table: UtteranceTable, groups: _SamplingGroups, quotas: Indices) -> None:
    """Log how many utterances an epoch draws, and the hours of each group before and after."""
    has_several_lists = len(table.list_starts) > 1
    summary = []
    for list_number, lang, seconds, draws_per_utterance in zip(
        groups.lists, groups.langs, groups.seconds, quotas / groups.sizes, strict=True
    ):
        names = []
        if has_several_lists or lang == _NO_LANG:
            names.append(f"list {list_number + 1}")
        if lang != _NO_LANG:
            names.append(table.lang_names[lang])
        drawn_s = seconds * draws_per_utterance
        hours = f"{seconds / 3600:.2f} -> {drawn_s / 3600:.2f} h"
        summary.append(f"{' '.join(names)} {hours}")
    times = f"{quotas.sum()} times from {len(groups.of_utterances)} utterances"
    logger.info("sampling: an epoch draws %s: %s", times, ", ".join(summary))
