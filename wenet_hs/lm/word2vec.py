# SPDX-License-Identifier: Apache-2.0
"""word2vec over the output heads: skip-gram and CBOW with a tree or a full softmax (Mikolov et al.

2013).

The order of the updates and the learning rates are gensim's with one thread. gensim reads the
sigmoid from a table of 1,000 values and skips a decision whose score is 6 or more in size. Here
every decision is computed in float32.

Dimension key: V units, D width, N words of the text, S sentences, M words of a job.
"""

import logging
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.tree.errors import ConfigError
from wenet_hs.tree.tree import NaryTree, Tree

logger = logging.getLogger(__name__)

UNIT_DIM, TRAINED_UNITS = 64, 4_000_000
"""Of `unit_vectors`: the width, and how many units it reads in all passes."""
JOB_WORDS = 10_000
"""The most words with one learning rate, as in gensim. A longer sentence is cut."""

Architecture = Literal["skipgram", "cbow"]
Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
SentenceRange = tuple[int, int]
"""The first sentence, and the one after the last."""


@dataclass(frozen=True, kw_only=True)
class Word2VecOptions:
    """The settings of a training.

    The defaults are gensim's, except that no frequent words are left out.
    """

    arch: Architecture = "skipgram"
    """`skipgram` predicts each word from the vector of each word around it, `cbow` from the mean of
    their vectors.
    """
    dim: int = 100
    window: int = 5
    """The most words before and after a word that are used, at least 1."""
    shrink_windows: bool = True
    """Whether the window of each word is drawn from 1 … `window`, so that near words count more."""
    epochs: int = 5
    lr: float = 0.025
    """The learning rate at the start. It falls linearly to `min_lr`."""
    min_lr: float = 0.0001
    sample: float = 0.0
    """Occurrences of words with a larger share of the text are left out at random; 0: none.

    Below 1.
    """
    seed: int = 0
    """At least 0."""


class EncodedText(NamedTuple):
    """The units of a text."""

    ids: NDArray[np.int32]
    """(N,)"""
    starts: Ints
    """(S+1,): where each sentence begins, and N."""
    unknown: Counter[str]
    """The words that are not units and were left out."""

    def count_units(self, num_units: int) -> Ints:
        """(V,) how often each unit occurs."""
        return np.bincount(self.ids, minlength=num_units)


class WordVectors(NamedTuple):
    """The result of a training."""

    vectors: Float32s
    """(V, D), a row of NaN for a unit that does not occur."""
    head: HSoftmaxHead | SoftmaxHead
    """The model: `head.log_probs` of a word's vector is the distribution of the words around it
    (CBOW: of the mean).
    """
    losses: list[float]
    """Nats per prediction in each epoch, each computed before its update.

    Skip-gram predicts the same word several times in a row. So its loss is below that of the
    trained head, and it may rise as the learning rate falls.
    """


def encode_text(sentences: Iterable[str], tokenizer: Tokenizer) -> EncodedText:
    """The units of the sentences.

    A word that is not a unit is left out, as in gensim: its neighbours become adjacent.

    `<unk>` in the text is the unit of this name. `<blank>` and the end of sentence are no words.
    """
    special, id_of, unknown = tokenizer.table.special, cache(tokenizer.table.id_of), Counter[str]()
    ids, starts = array("i"), [0]
    for sentence in sentences:
        for unit in tokenizer.split(sentence):
            unit_id = id_of(unit)
            if unit_id is None or unit_id in (special.blank, special.sos, special.eos):
                unknown[unit] += 1
            else:
                ids.append(unit_id)
        starts += [*range(starts[-1] + JOB_WORDS, len(ids), JOB_WORDS), len(ids)]
    return EncodedText(
        np.array(ids, dtype=np.int32), np.unique(np.array(starts, dtype=np.int64)), unknown
    )


def train_word2vec(
    text: EncodedText,
    num_units: int,
    options: Word2VecOptions,
    *,
    tree: Tree | NaryTree | None = None,
    vectors: Float32s | None = None,
    show_progress: Callable[
        [Sequence[SentenceRange], str], Iterable[SentenceRange]
    ] = lambda jobs, name: jobs,
    level: int = logging.INFO,
) -> WordVectors:
    """Train word vectors and the output vectors of a head, on one thread.

    The same seed gives the same bits.

    Args:
        num_units: V.
        tree: over the V units, for a tree head; None: a softmax head.
        vectors: (V, D) to start from, not changed; default: uniform in ±1/D, as gensim's. Output
            vectors start at 0.
        show_progress: gets the jobs of an epoch and its name, and gives the same jobs one by one.
        level: of the line in the log after each epoch.
    Raises:
        ValueError: the ids, the tree or the vectors do not fit V and D.
        ConfigError: the loss is not finite, or `sample` leaves nothing to predict.
    """
    generator, counts = np.random.default_rng(options.seed), text.count_units(num_units)
    drawn = (2 * generator.random((num_units, options.dim), dtype=np.float32) - 1) / np.float32(
        options.dim
    )
    own = drawn if vectors is None else np.array(vectors, dtype=np.float32, order="C")
    in_tree = num_units if tree is None else tree.num_units
    if (
        own.shape != drawn.shape or not len(counts) == in_tree == num_units
    ):  # the kernel does not check indexes
        raise ValueError(
            f"text, tree, vectors: expected {num_units} units and vectors of {options.dim} numbers"
        )
    head = SoftmaxHead(options.dim, num_units) if tree is None else HSoftmaxHead(options.dim, tree)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    training = _Training(text, options, own, head, generator)
    losses = [training.run_epoch(epoch, show_progress, level) for epoch in range(options.epochs)]
    own[counts == 0] = np.nan
    return WordVectors(own, head, losses)


def unit_vectors(sequences: Sequence[Sequence[int]], num_units: int, seed: int) -> Float32s:
    """Skip-gram vectors for a tree of kind `embedding`, with settings for hundreds of units in
    thousands of utterances.

    Args:
        sequences: unit ids of each transcript. They are read until four million units have been, in
            5 to 100 passes.
        seed: ≥ 0.
    Returns: (V, 64); NaN in the rows of units that never occur, zero if only one unit occurs.
    """
    starts = np.cumsum([0, *map(len, sequences)])
    text = EncodedText(
        np.fromiter(chain.from_iterable(sequences), np.int32, starts[-1]), starts, Counter()
    )
    counts = text.count_units(num_units)
    if np.count_nonzero(counts) < 2:  # nothing to predict
        return np.where(
            counts[:, None] > 0, np.float32(0), np.full((num_units, UNIT_DIM), np.nan, np.float32)
        )
    epochs = min(max(math.ceil(TRAINED_UNITS / len(text.ids)), 5), 100)
    options = Word2VecOptions(
        dim=UNIT_DIM, window=3, epochs=epochs, seed=seed
    )  # a window of about a syllable
    tree = Tree.huffman(counts.astype(np.float64))
    return train_word2vec(text, num_units, options, tree=tree, level=logging.DEBUG).vectors


class _Words(NamedTuple):
    """The words of a job."""

    ids: NDArray[np.int32]
    """(M,)"""
    starts: Ints
    """Where each sentence begins, and M."""
    reaches: Ints
    """(M,) how many words before and after each word are used."""


class _Training:
    """The vectors and the head, which are updated in place, and the random draws."""

    def __init__(
        self,
        text: EncodedText,
        options: Word2VecOptions,
        vectors_VD: Float32s,
        head: HSoftmaxHead | SoftmaxHead,
        generator: np.random.Generator,
    ) -> None:
        self.text, self.options, self.generator = text, options, generator
        self.vectors_VD, self.head, self.jobs = vectors_VD, head, split_jobs(text.starts)
        counts = text.count_units(len(vectors_VD))
        self.excess_V = counts / (options.sample * counts.sum()) if options.sample else None

    def run_epoch(
        self,
        epoch: int,
        show_progress: Callable[[Sequence[SentenceRange], str], Iterable[SentenceRange]],
        level: int,
    ) -> float:
        """One pass over the text. Returns the nats per prediction."""
        options, name, start = (
            self.options,
            f"epoch {epoch + 1}/{self.options.epochs}",
            time.monotonic(),
        )
        nats, num_predictions = 0.0, 0
        for job in show_progress(self.jobs, name):
            progress = (epoch + job[0] / self.jobs[-1][1]) / options.epochs
            found = self.update(
                self.draw_words(job), options.lr - (options.lr - options.min_lr) * progress
            )
            nats, num_predictions = nats + found[0], num_predictions + found[1]
        if not num_predictions:
            to_do = "use a larger value"
            raise ConfigError(
                f"--sample {options.sample:g}", f"nothing is left to predict in {name}", to_do
            )
        if not math.isfinite(nats):
            to_do = "use a smaller learning rate"
            raise ConfigError(f"--lr {options.lr:g}", f"the loss is not finite in {name}", to_do)
        speed = len(self.text.ids) / (time.monotonic() - start)
        facts = (name, nats / num_predictions, num_predictions, speed)
        logger.log(level, "%s | %.4f nats per prediction | %d predictions | %.0f words/s", *facts)
        return nats / num_predictions

    def draw_words(self, job: SentenceRange) -> _Words:
        """The words of a job that are used, with their windows."""
        starts = self.text.starts[job[0] : job[1] + 1]
        ids, starts = self.text.ids[starts[0] : starts[-1]], starts - starts[0]
        if self.excess_V is not None:  # gensim's and word2vec's rule; their paper has √(1/excess)
            excess = self.excess_V[ids]
            is_kept = self.generator.random(len(ids)) < (np.sqrt(excess) + 1) / excess
            ids, starts = ids[is_kept], np.append(0, np.cumsum(is_kept))[starts]
        window = self.options.window
        if self.options.shrink_windows:
            return _Words(ids, starts, self.generator.integers(1, window + 1, len(ids)))
        return _Words(ids, starts, np.full(len(ids), window))

    def update(self, words: _Words, rate: float) -> tuple[float, int]:
        """The updates of a job. Returns the nats of all predictions, and their number."""
        from wenet_hs.lm.word2vec_numba import train_job

        if isinstance(self.head, HSoftmaxHead):
            weight, up = self.head.inner_vector.weight, self.head.edges.numpy()
        else:
            weight, up = self.head.output.weight, np.empty(0, np.int32)
        is_cbow = self.options.arch == "cbow"
        nats, num = train_job(
            *words, self.vectors_VD, weight.detach().numpy(), up, np.float32(rate), is_cbow
        )
        return float(nats), int(num)


def split_jobs(starts: Ints) -> list[SentenceRange]:
    """As many whole sentences each as have at most `JOB_WORDS` words together."""
    jobs, first, ends = list[SentenceRange](), 0, starts.tolist()
    for sentence in range(len(ends) - 1):
        if ends[sentence + 1] - ends[first] > JOB_WORDS and sentence > first:
            jobs.append((first, sentence))
            first = sentence
    return [*jobs, (first, len(ends) - 1)]
