# SPDX-License-Identifier: Apache-2.0
"""Which utterances an epoch draws when languages or lists are balanced: a pure function of the seed and the epoch.

A group is a language of a list (a list, where languages stay as they are). It has a quota of draws an epoch, such that
its speech is its share of all speech. Its members are lined up in one random order after another without end, and each
epoch takes the next quota of them: every utterance is heard before any is heard again, within an epoch and over epochs.

A draw is the number i + N * copy of a virtual item: the copy tells apart what one epoch hears several times, so that
each has its own augmentation. With temperature 1 and no weights every quota is the group's size: the plain epoch.
"""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import SamplingConf
from wenet_hs.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Indices = NDArray[np.int64]
_STREAM = 0x5A3D  # parts these random numbers from those of the batches, which [seed, epoch] start


class Sampler:
    """Draws for each epoch."""

    def __init__(self, groups: Indices, seconds: NDArray[np.float64], quotas: Indices, *, seed: int) -> None:
        """groups: (N,) the group of each item.  seconds: (N,) of each item.  quotas: (G,) draws an epoch."""
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(len(quotas) + 1))
        self._members = [order[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
        self._quotas, self._num_items, self._seed = quotas, len(groups), seed
        self._seconds = seconds

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

    def summary(self, names: Sequence[str]) -> str:
        """One line: the speech of each group in the lists and in an epoch. names: of the groups."""
        hours = [float(self._seconds[members].sum()) / 3600 for members in self._members]
        drawn = [hours[g] * int(self._quotas[g]) / len(self._members[g]) for g in range(len(hours))]
        groups = ", ".join(
            f"{name} {was:.2f} -> {now:.2f} h" for name, was, now in zip(names, hours, drawn, strict=True)
        )
        return f"an epoch draws {self._quotas.sum()} times from {self._num_items} utterances: {groups}"


def make_sampler(
    conf: SamplingConf,
    langs: NDArray[np.int32],
    lists: NDArray[np.int32],
    seconds: NDArray[np.float64],
    *,
    lang_names: Sequence[str],
    num_lists: int,
    seed: int,
) -> Sampler:
    """A sampler over items of these languages, lists and seconds; all arrays: (N,). Says in the log what it draws.

    Raises: DataError where languages are balanced and an item has none; ConfigError where the weights are not as many
        as the lists.
    """
    if conf.weights is not None and len(conf.weights) != num_lists:
        raise ConfigError(
            f"dataset_conf.sampling.weights: {len(conf.weights)} of them for {num_lists} lists in --train_data; "
            "give one a list"
        )
    balances = conf.temperature != 1.0
    if balances and langs.min() < 0:
        raise DataError(
            f"dataset_conf.sampling: by lang, but {int((langs < 0).sum())} utterances have no 'lang' in their data "
            "list; add it, or set temperature: 1"
        )
    labels = lists.astype(np.int64) * (len(lang_names) + 1) + (langs + 1 if balances else 0)
    present, groups = np.unique(labels, return_inverse=True)
    list_of, lang_of = np.divmod(present, len(lang_names) + 1)
    sizes = np.bincount(groups)
    total_s = np.bincount(groups, weights=seconds).astype(np.float64)
    quotas = _quotas(sizes, total_s, list_of, conf)
    sampler = Sampler(groups, seconds, quotas, seed=seed)
    names = [
        _name(int(number), int(lang), lang_names, num_lists) for number, lang in zip(list_of, lang_of, strict=True)
    ]
    logger.info("sampling: %s", sampler.summary(names))
    return sampler


def _quotas(sizes: Indices, seconds: NDArray[np.float64], list_of: Indices, conf: SamplingConf) -> Indices:
    """Draws an epoch of each group, at least one. sizes, seconds, list_of: (G,) items, speech and list of each."""
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


def _name(number: int, lang: int, lang_names: Sequence[str], num_lists: int) -> str:
    words = ([f"list {number + 1}"] if num_lists > 1 or lang == 0 else []) + ([lang_names[lang - 1]] if lang else [])
    return " ".join(words)
