# SPDX-License-Identifier: Apache-2.0
"""Utterances of data lists as a table, the filters of `filter_conf`, and balanced sampling of
languages and lists.

Sampling is a pure function of the seed and the epoch. A group is a language of a list, or a list
where languages are not balanced. Its quota is its number of draws per epoch. Each epoch takes the
next quota from one random order of the group after another, so every utterance is used before one
is used again.

A draw is the number i + N * copy of a virtual item of utterance i: copies in one epoch are
augmented differently.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import FilterConf, SamplingConf
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Indices = NDArray[np.int64]
FRAMES_PER_SECOND = 100  # filter_conf counts frames of 10 ms for any frame shift, like WeNet
_STREAM = 0x5A3D  # separates these random numbers from those of the batch plan, which begin with [seed, epoch]
_BLOCK_ROWS = 1 << 16
_TEXT = np.dtypes.StringDType(
    na_object=None
)  # UTF-8, about the length of the text plus 16 bytes per row
_NUMBERS = ("duration", "start", "end")
_COLUMNS = {"key": _TEXT, "wav": _TEXT, "txt": _TEXT, "speaker": _TEXT} | dict.fromkeys(
    (*_NUMBERS, "channel"), np.dtype(np.float64)
)


class UtteranceTable(Sequence[Utterance]):
    """The utterances of one or more lists, in order; a row becomes an `Utterance` when it is read.

    Worker processes share the columns without copies.

    Attributes:
        columns: (N,) each, by the names of an utterance's fields; NaN for a number that the list
        does not state. langs: (N,) positions in `lang_names`; -1 where the list does not state the
        language. list_starts: the first row of each list. digest: SHA-256 of everything the lists
        state about the utterances, except where the audio is.
    """

    def __init__(
        self, utterances: Iterable[Utterance], list_starts: tuple[int, ...] = (0,)
    ) -> None:
        """Read the utterances in blocks, so that most of them never exist as Python objects at the
        same time.
        """
        langs: dict[str | None, int] = {None: -1}
        blocks: list[dict[str, NDArray[Any]]] = []
        digest = hashlib.sha256()
        remaining = iter(utterances)
        while (block := list(islice(remaining, _BLOCK_ROWS))) or not blocks:
            facts = "\n".join(map(_facts, block))
            digest.update(("\n" + facts if blocks else facts).encode())
            columns = {
                name: np.array([getattr(u, name) for u in block], dtype)
                for name, dtype in _COLUMNS.items()
            }
            columns["lang"] = np.array(
                [langs.setdefault(u.lang, len(langs) - 1) for u in block], np.int32
            )
            blocks.append(columns)
        self.columns = {
            name: np.concatenate([block[name] for block in blocks]) for name in (*_COLUMNS, "lang")
        }
        self.langs = self.columns.pop("lang")
        self.lang_names = tuple(name for name in langs if name is not None)
        self.list_starts, self.digest = list_starts, digest.hexdigest()

    def __len__(self) -> int:
        return len(self.langs)

    def __getitem__(self, number: int) -> Utterance:  # type: ignore[override]  # no slices
        values = {name: column[number] for name, column in self.columns.items()}
        for name in (*_NUMBERS, "channel"):
            values[name] = None if np.isnan(values[name]) else float(values[name])
        values["channel"] = None if values["channel"] is None else int(values["channel"])
        lang = int(self.langs[number])
        return Utterance(**values, lang=None if lang < 0 else self.lang_names[lang])


def _facts(u: Utterance) -> str:
    """What a list states about an utterance, for its digest."""
    channel = "" if u.channel is None else f"\t{u.channel}"
    return f"{u.key}\t{u.txt}\t{u.duration}\t{u.start}\t{u.end}{channel}"


# Filters


def ctc_frames_needed(ids: Sequence[int]) -> int:
    """The fewest encoder frames that CTC can align with a label: one per unit, and a blank between
    equal neighbours.
    """
    num_repeated: int = sum(map(eq, ids, islice(ids, 1, None)))
    return len(ids) + num_repeated


def reason_to_reject(
    ids: Sequence[int], duration_s: float, num_encoder_frames: int, conf: FilterConf
) -> str | None:
    """The reason why an utterance is not used in training, or None.

    Args:
        ids: the transcript's unit ids.
        num_encoder_frames: of this utterance; CTC needs one per unit and one per repetition.
        conf: WeNet's limits; lengths in frames of 10 ms, ratios in units per frame.
    """
    frames = duration_s * FRAMES_PER_SECOND
    ratio = len(ids) / frames if frames else 0.0
    if not ids:
        return "empty transcript"
    if frames < conf.min_length:
        return f"too short: {duration_s:.3f} s, filter_conf.min_length is {conf.min_length} frames of 10 ms"
    if frames > conf.max_length:
        return f"too long: {duration_s:.1f} s, filter_conf.max_length is {conf.max_length} frames of 10 ms"
    if len(ids) < conf.token_min_length:
        return f"too few units: {len(ids)}, filter_conf.token_min_length is {conf.token_min_length}"
    if len(ids) > conf.token_max_length:
        return (
            f"too many units: {len(ids)}, filter_conf.token_max_length is {conf.token_max_length}"
        )
    if num_encoder_frames < max(1, ctc_frames_needed(ids)):
        return f"fewer frames than labels: {num_encoder_frames} encoder frames, CTC needs {ctc_frames_needed(ids)}"
    if ratio < conf.min_output_input_ratio:
        return f"too few units for its length: {ratio:.4f} per frame, at least {conf.min_output_input_ratio:g} wanted"
    if ratio > conf.max_output_input_ratio:
        return f"too many units for its length: {ratio:.4f} per frame, at most {conf.max_output_input_ratio:g} wanted"
    return None


# Balanced sampling


class Sampler:
    """The items of each epoch."""

    def __init__(self, groups: Indices, quotas: Indices, *, seed: int) -> None:
        """groups: (N,) the group of each item.  quotas: (G,) draws per epoch."""
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(len(quotas) + 1))
        self._members = [order[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
        self._quotas, self._num_items, self._seed = quotas, len(groups), seed

    def items(self, epoch: int) -> Indices:
        """The virtual items of an epoch, ascending. Returns: (sum of the quotas,)."""
        drawn = [self._draw(group, epoch) for group in range(len(self._members))]
        return np.sort(np.concatenate(drawn))

    def _draw(self, group: int, epoch: int) -> Indices:
        members, quota = self._members[group], int(self._quotas[group])
        size, begin = len(members), epoch * quota
        first_cycle = begin // size
        parts = []
        for cycle in range(first_cycle, -(-(begin + quota) // size)):
            low, high = max(begin - cycle * size, 0), min(begin + quota - cycle * size, size)
            chosen = members
            if high - low < size:
                generator = np.random.default_rng([self._seed, _STREAM, group, cycle])
                chosen = members[generator.permutation(size)[low:high]]
            parts.append(chosen + self._num_items * (cycle - first_cycle))
        return np.concatenate(parts)


def make_sampler(
    conf: SamplingConf,
    table: UtteranceTable,
    rows: Indices,
    seconds: NDArray[np.float64],
    *,
    seed: int,
) -> Sampler:
    """A sampler of the rows (N,) of a table with these seconds (N,).

    The log states the hours that an epoch draws.

    Raises: DataError where languages are balanced and an utterance has none; ConfigError where the
        number of weights is not the number of lists.
    """
    num_lists, num_langs = len(table.list_starts), len(table.lang_names)
    if conf.weights is not None and len(conf.weights) != num_lists:
        found = f"{len(conf.weights)} weights for {num_lists} lists in --train_data"
        raise ConfigError("dataset_conf.sampling.weights", found, "give one per list")
    langs, balances_langs = table.langs[rows], conf.temperature != 1.0
    if balances_langs and langs.min() < 0:
        found = (
            f"by lang, but {int((langs < 0).sum())} utterances have no 'lang' in their data list"
        )
        raise DataError("dataset_conf.sampling", found, "add it, or set temperature: 1")
    lists = np.searchsorted(np.asarray(table.list_starts), rows, side="right") - 1
    labels = lists * (num_langs + 1) + (langs + 1 if balances_langs else 0)
    present, groups = np.unique(labels, return_inverse=True)
    list_of, lang_of = np.divmod(present, num_langs + 1)
    sizes, total_s = np.bincount(groups), np.bincount(groups, weights=seconds).astype(np.float64)
    quotas = _quotas(sizes, total_s, list_of, conf)
    summary = []
    for number, lang, was_s, share in zip(list_of, lang_of, total_s, quotas / sizes, strict=True):
        list_name = f"list {number + 1}" if num_lists > 1 or lang == 0 else ""
        name = f"{list_name} {table.lang_names[lang - 1] if lang else ''}".strip()
        summary.append(f"{name} {was_s / 3600:.2f} -> {was_s * share / 3600:.2f} h")
    times = f"{quotas.sum()} times from {len(rows)} utterances"
    logger.info("sampling: an epoch draws %s: %s", times, ", ".join(summary))
    return Sampler(groups, quotas, seed=seed)


def _quotas(
    sizes: Indices, seconds: NDArray[np.float64], list_of: Indices, conf: SamplingConf
) -> Indices:
    """Draws per epoch of each group, at least one. sizes, seconds, list_of: (G,) items, speech and
    list of each.
    """
    total = seconds.sum()
    quotas = sizes.copy()
    for number in np.unique(list_of):
        inside = list_of == number
        share = seconds[inside].sum() / total
        if conf.weights is not None:
            present = [conf.weights[i] for i in np.unique(list_of)]
            share = conf.weights[number] / sum(present)
        flattened = (seconds[inside] / seconds[inside].max()) ** (1.0 / conf.temperature)
        wanted_s = total * share * flattened / flattened.sum()
        quotas[inside] = np.maximum(1, np.rint(sizes[inside] * wanted_s / seconds[inside]))
    return quotas
