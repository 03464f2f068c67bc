# SPDX-License-Identifier: Apache-2.0
"""word2vec over the output heads: skip-gram and CBOW with a tree or a full softmax.

The models are those of Mikolov et al. (2013). The order of the updates and the learning rates are
gensim's with one thread. gensim reads the sigmoid from a table of 1,000 values and skips a decision
whose score is 6 or more in size. Here every decision is computed in float32.

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

UNIT_DIM = 64
"""The width of `unit_vectors`."""
TRAINED_UNITS = 4_000_000
"""How many units `unit_vectors` reads in all passes."""
JOB_WORDS = 10_000
"""The most words with one learning rate, as in gensim. A longer sentence is cut."""

Architecture = Literal["skipgram", "cbow"]
Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]


class SentenceRange(NamedTuple):
    """Sentences of a text that follow each other."""

    first: int
    end: int
    """The one after the last."""


ProgressDisplay = Callable[[Sequence[SentenceRange], str], Iterable[SentenceRange]]
"""Gets the jobs of an epoch and its name, and gives the same jobs one by one."""


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
    """The units of sentences, without empty sentences. One longer than a job is cut into several.

    A word that is not a unit is left out, as in gensim: its neighbours become adjacent.

    `<unk>` in the text is the unit of this name. `<blank>` and the end of sentence are no words.
    """
    special = tokenizer.table.special
    no_words = (special.blank, special.sos, special.eos)
    id_of = cache(tokenizer.table.id_of)
    unknown = Counter[str]()
    ids = array("i")
    starts = [0]
    for sentence in sentences:
        for unit in tokenizer.split(sentence):
            unit_id = id_of(unit)
            if unit_id is None or unit_id in no_words:
                unknown[unit] += 1
            else:
                ids.append(unit_id)
        # A sentence that is longer than a job goes on as a new one after every JOB_WORDS units.
        cuts = range(starts[-1] + JOB_WORDS, len(ids), JOB_WORDS)
        starts.extend(cuts)
        starts.append(len(ids))
    return EncodedText(
        ids=np.array(ids, dtype=np.int32),
        starts=np.unique(np.array(starts, dtype=np.int64)),  # an empty sentence repeats a start
        unknown=unknown,
    )


def _show_no_progress(jobs: Sequence[SentenceRange], name: str) -> Iterable[SentenceRange]:
    """The jobs as they are."""
    return jobs


def train_word2vec(
    text: EncodedText,
    num_units: int,
    options: Word2VecOptions,
    *,
    tree: Tree | NaryTree | None = None,
    vectors: Float32s | None = None,
    show_progress: ProgressDisplay = _show_no_progress,
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
    generator = np.random.default_rng(options.seed)
    # Drawn even if `vectors` are given, so that one seed gives the same windows with and without.
    uniform_VD = generator.random((num_units, options.dim), dtype=np.float32)
    first_VD = (2 * uniform_VD - 1) / np.float32(options.dim)
    if vectors is not None:
        first_VD = np.array(vectors, dtype=np.float32, order="C")
    counts_V = text.count_units(num_units)
    tree_size = num_units if tree is None else tree.num_units
    # These checks are needed, because the kernel does not check indexes. An id that is not below V
    # makes counts_V longer than V.
    do_ids_fit = len(counts_V) == num_units
    does_tree_fit = tree_size == num_units
    do_vectors_fit = first_VD.shape == uniform_VD.shape
    if not (do_ids_fit and does_tree_fit and do_vectors_fit):
        raise ValueError(
            f"text, tree, vectors: expected {num_units} units and vectors of {options.dim} numbers"
        )
    head = SoftmaxHead(options.dim, num_units) if tree is None else HSoftmaxHead(options.dim, tree)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    trainer = _Trainer(
        text=text, options=options, vectors_VD=first_VD, head=head, generator=generator
    )
    losses = [trainer.run_epoch(epoch, show_progress, level) for epoch in range(options.epochs)]
    trained_VD = trainer.vectors_VD
    trained_VD[counts_V == 0] = np.nan
    return WordVectors(vectors=trained_VD, head=head, losses=losses)


def unit_vectors(sequences: Sequence[Sequence[int]], num_units: int, seed: int) -> Float32s:
    """Skip-gram vectors for a tree of kind `embedding`.

    The settings are for hundreds of units in thousands of utterances.

    Args:
        sequences: unit ids of each transcript. They are read until four million units have been, in
            5 to 100 passes.
        seed: ≥ 0.
    Returns: (V, 64); NaN in the rows of units that never occur, zero if only one unit occurs.
    """
    starts = np.cumsum([0, *map(len, sequences)])
    ids = np.fromiter(chain.from_iterable(sequences), np.int32, count=starts[-1])
    text = EncodedText(ids=ids, starts=starts, unknown=Counter())
    counts_V = text.count_units(num_units)
    if np.count_nonzero(counts_V) < 2:  # nothing to predict
        vectors_VD = np.full((num_units, UNIT_DIM), np.nan, np.float32)
        vectors_VD[counts_V > 0] = 0
        return vectors_VD
    passes_of_all_units = math.ceil(TRAINED_UNITS / len(text.ids))
    options = Word2VecOptions(
        dim=UNIT_DIM,
        window=3,  # about a syllable
        epochs=min(max(passes_of_all_units, 5), 100),
        seed=seed,
    )
    tree = Tree.huffman(counts_V.astype(np.float64))
    return train_word2vec(text, num_units, options, tree=tree, level=logging.DEBUG).vectors


# ---- training in jobs


def split_jobs(starts: Ints) -> list[SentenceRange]:
    """Ranges of whole sentences that have at most `JOB_WORDS` words together.

    A sentence that is longer has a job of its own. `starts`: as in `EncodedText`.
    """
    begins = starts.tolist()
    num_sentences = len(begins) - 1
    jobs: list[SentenceRange] = []
    first = 0
    for sentence in range(num_sentences):
        num_words = begins[sentence + 1] - begins[first]  # of the job with this sentence
        has_earlier_sentences = sentence > first
        if num_words > JOB_WORDS and has_earlier_sentences:
            jobs.append(SentenceRange(first, sentence))
            first = sentence
    jobs.append(SentenceRange(first, num_sentences))
    return jobs


class _Words(NamedTuple):
    """The words of a job."""

    ids: NDArray[np.int32]
    """(M,)"""
    starts: Ints
    """Where each sentence begins, and M."""
    reaches: Ints
    """(M,) how many words before and after each word are used."""


class _Loss(NamedTuple):
    """The cost of some predictions."""

    nats: float
    """The sum."""
    num_predictions: int


class _Trainer:
    """Runs epochs. It updates the vectors and the head in place, and draws words and windows."""

    def __init__(
        self,
        *,
        text: EncodedText,
        options: Word2VecOptions,
        vectors_VD: Float32s,
        head: HSoftmaxHead | SoftmaxHead,
        generator: np.random.Generator,
    ) -> None:
        """Cut the text into jobs. With `sample`, compare the share of each unit with it.

        Args:
            vectors_VD: to start from; they are changed.
            head: changed too.
            generator: draws windows, and the words that `sample` leaves out.
        """
        self.text = text
        self.options = options
        self.vectors_VD = vectors_VD
        self.head = head
        self.generator = generator
        self.jobs = split_jobs(text.starts)
        self.excess_V: NDArray[np.float64] | None = None
        """How many times the share of each unit in the text is `sample`; None: no word is left
        out."""
        if options.sample > 0:
            counts_V = text.count_units(len(vectors_VD))
            self.excess_V = counts_V / (options.sample * counts_V.sum())

    def run_epoch(self, epoch: int, show_progress: ProgressDisplay, level: int) -> float:
        """One pass over the text, `epoch` from 0. Returns the nats per prediction.

        Logs them with the speed. Raises ConfigError if nothing is left to predict, or the loss is
        not finite.
        """
        name = f"epoch {epoch + 1}/{self.options.epochs}"
        start = time.monotonic()
        nats = 0.0
        num_predictions = 0
        for job in show_progress(self.jobs, name):
            words = self.draw_words(job)
            loss = self.update(words, self._learning_rate(epoch, job))
            nats += loss.nats
            num_predictions += loss.num_predictions
        if num_predictions == 0:
            sample = f"--sample {self.options.sample:g}"
            raise ConfigError(sample, f"nothing is left to predict in {name}", "use a larger value")
        if not math.isfinite(nats):
            lr = f"--lr {self.options.lr:g}"
            to_do = "use a smaller learning rate"
            raise ConfigError(lr, f"the loss is not finite in {name}", to_do)
        logger.log(
            level,
            "%s | %.4f nats per prediction | %d predictions | %.0f words/s",
            name,
            nats / num_predictions,
            num_predictions,
            len(self.text.ids) / (time.monotonic() - start),
        )
        return nats / num_predictions

    def _learning_rate(self, epoch: int, job: SentenceRange) -> float:
        """`lr` at the first job of the first epoch. It falls with the sentences to `min_lr`."""
        options = self.options
        num_sentences = self.jobs[-1].end
        progress = (epoch + job.first / num_sentences) / options.epochs
        return options.lr - (options.lr - options.min_lr) * progress

    def draw_words(self, job: SentenceRange) -> _Words:
        """The words of a job that are used, with their windows.

        With `sample`, frequent words are left out at random. With `shrink_windows`, the window of
        each word is drawn.
        """
        starts = self.text.starts[job.first : job.end + 1]
        ids = self.text.ids[starts[0] : starts[-1]]
        starts = starts - starts[0]
        if self.excess_V is not None:
            # The program word2vec and gensim keep a word with this probability, or surely if it is
            # above 1. In the paper of word2vec it is √(1/excess).
            excess_M = self.excess_V[ids]
            probs_M = (np.sqrt(excess_M) + 1) / excess_M
            is_kept_M = self.generator.random(len(ids)) < probs_M
            num_kept_before = np.append(0, np.cumsum(is_kept_M))
            ids = ids[is_kept_M]
            starts = num_kept_before[starts]
        window = self.options.window
        if self.options.shrink_windows:
            reaches = self.generator.integers(1, window + 1, len(ids))
        else:
            reaches = np.full(len(ids), window)
        return _Words(ids=ids, starts=starts, reaches=reaches)

    def update(self, words: _Words, rate: float) -> _Loss:
        """Predict the words of a job one after the other, with an update after each prediction.

        Changes the vectors of the words, and in the head those of the inner nodes (a tree) or of
        the units (a softmax). `rate`: the learning rate.
        """
        from wenet_hs.lm.word2vec_numba import train_job

        if isinstance(self.head, HSoftmaxHead):
            weight = self.head.inner_vector.weight
            up = self.head.edges.numpy()
        else:
            weight = self.head.output.weight
            up = np.empty(0, np.int32)  # no tree
        is_cbow = self.options.arch == "cbow"
        nats, num_predictions = train_job(
            words.ids,
            words.starts,
            words.reaches,
            self.vectors_VD,
            weight.detach().numpy(),
            up,
            np.float32(rate),
            is_cbow,
        )
        return _Loss(nats=float(nats), num_predictions=int(num_predictions))
