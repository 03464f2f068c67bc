# SPDX-License-Identifier: Apache-2.0
"""Loads language models: folders of recurrent ones, n-gram models from ARPA files, and KenLM's
binary files.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.compute.distributed import is_first_rank
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import load_config
from wenet_hs.lm.backoff import OTHER_NAMES, ArpaReader, KenlmModel, NgramModel, make_no_unit_error
from wenet_hs.lm.kenlm_file import is_kenlm_file, read_kenlm_vocabulary
from wenet_hs.lm.language_model import AnyLanguageModel, LanguageModel, TextModel, text_units
from wenet_hs.lm.ngram import BEGIN, END, NUM_SPECIAL, UNKNOWN
from wenet_hs.lm.recurrent import RecurrentModel, RnnLm
from wenet_hs.model.build import build_head
from wenet_hs.model.checkpoint import load_weights, read_weights
from wenet_hs.model.experiment import check_files, in_folder, load_trees, read_units
from wenet_hs.runs.record import read_run
from wenet_hs.text.tokenizer import PhoneTokenizer, SegmentingTokenizer, Tokenizer
from wenet_hs.text.units import SPACE, UnitTable
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LmExperiment:
    """A trained language model with its config and tokenizer."""

    config: LmConfig
    tokenizer: Tokenizer
    model: RnnLm
    """In evaluation mode."""
    model_dir: Path


def load_lm(model_dir: Path, *, device: torch.device | str = "cpu") -> LmExperiment:
    """Load the folder of a language model. It may have been moved.

    Raises CheckpointError, DataError or ConfigError with the file that is missing, damaged or of
        another model.
    """
    path = in_folder(model_dir, "train.yaml", made_by=LmConfig.trained_by)
    config = load_config(path, (), LmConfig)
    check_files(model_dir, read_run(model_dir))
    units = in_folder(model_dir, "units.txt", made_by=LmConfig.trained_by)
    table, tokenizer = read_units(config, units, where=str(path))
    model = build_lm(config, table, model_dir)
    weights = in_folder(model_dir, "final.pt", made_by=LmConfig.trained_by)
    load_weights(model, read_weights(weights), str(weights))
    return LmExperiment(config, tokenizer, model.to(device).eval(), model_dir)


def build_lm(config: LmConfig, table: UnitTable, folder: Path) -> RnnLm:
    """A model with new weights over the units of `table`, with the tree that the config names, from
    `folder`.

    All heads of one seed start with the same input vectors and recurrent layers.
    """
    tree = load_trees(config, table, folder).get("head_conf")
    conf = config.rnn_conf
    head = build_head(config.head_conf, conf.hidden_size, len(table), tree, name=config.head)
    return RnnLm(
        head,
        kind=config.rnn,
        embedding_size=conf.embedding_size,
        num_layers=conf.num_layers,
        dropout_rate=conf.dropout_rate,
        sparse_grad=conf.sparse_grad,
    )


def load_language_model(
    path: Path, tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> AnyLanguageModel:
    """Load the folder of a recurrent model, an ARPA file, or a binary file of KenLM if kenlm is
    installed.

    A model over the recogniser's units takes part in the searches. One over others, such as words,
    rescores the n-best lists: a recurrent model with another kind of units, and an n-gram model
    most of whose words are no units. A warning of rank 0 names the units that a model of the
    searches does not know.

    `tokenizer`: of the recogniser.
    Raises: DataError naming file and line if a file is damaged, knows no unit, or is a binary file
        of words without their spelling; ConfigError if it is missing, or kenlm is; CheckpointError
        if a folder is not complete.
    """
    if path.is_dir():
        lm = _load_recurrent_model(load_lm(path, device=device), tokenizer)
    else:
        lm = _load_ngram_model(path, tokenizer)
    if isinstance(lm, LanguageModel) and lm.unknown and is_first_rank():
        named = list_names(sorted(lm.unknown, key=lambda unit: unit != SPACE), " ")
        logger.warning(
            "%s: does not know %d of the %d units (%s), which get the probability of <unk>; build it with the table of "
            "this model (`wenet-hs lm ngram --units`), from text that has these units",
            *(path, len(lm.unknown), len(text_units(tokenizer.table)), named),
        )
    return lm


def _load_recurrent_model(experiment: LmExperiment, tokenizer: Tokenizer) -> AnyLanguageModel:
    path, model, own = experiment.model_dir, experiment.model, experiment.tokenizer
    if type(own) is type(tokenizer):  # words and phones are both text between spaces
        return RecurrentModel(path, model, own.table, tokenizer.table)
    if is_first_rank():
        kind = experiment.config.tokenizer
        logger.info(
            "%s: tokenizer %s is not that of the recogniser; it rescores n-best lists", path, kind
        )
    if own.table.special.unk is None:
        found = "has no <unk>, so the model cannot score words of other text"
        raise DataError(path / "units.txt", found, "train it with a table of `wenet-hs units`")
    own = SegmentingTokenizer(own.table) if experiment.config.tokenizer == "word" else own
    return TextModel(path, RecurrentModel(path, model, own.table, own.table), own, tokenizer)


def _load_ngram_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    try:
        is_binary = is_kenlm_file(path)
    except FileNotFoundError as error:
        to_do = "give the folder of `lm train` or an n-gram model in ARPA format"
        raise ConfigError(f"--lm {path}", "no such file", to_do) from error
    return _load_kenlm_model(path, tokenizer) if is_binary else _load_arpa_model(path, tokenizer)


def _load_arpa_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    arpa = ArpaReader(path)
    counts = _WordCounts.of(arpa.words, tokenizer.table)
    if counts.are_over_units(tokenizer):
        return NgramModel(arpa, tokenizer.table)
    _log_model_of_words(path, counts)
    words = SegmentingTokenizer(UnitTable.from_units(_without_boundaries(arpa.words)))
    return TextModel(path, NgramModel(arpa, words.table), words, tokenizer)


def _load_kenlm_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    """A binary file of words becomes a model of words, as an ARPA file does.

    Raises DataError if such a file does not include the spelling of its words, and what
    `read_kenlm_vocabulary` and `KenlmModel` raise.
    """
    vocabulary = read_kenlm_vocabulary(path)
    if vocabulary.words is None:
        return _load_without_spelling(path, vocabulary.num_words - NUM_SPECIAL, tokenizer)
    words = [OTHER_NAMES.get(word, word) for word in vocabulary.words]
    counts = _WordCounts.of(words, tokenizer.table)
    if counts.are_over_units(tokenizer):
        return _check_known_units(path, KenlmModel(path, tokenizer.table), tokenizer)
    _log_model_of_words(path, counts)
    own = SegmentingTokenizer(UnitTable.from_units(_without_boundaries(words)))
    return TextModel(path, KenlmModel(path, own.table), own, tokenizer)


def _load_without_spelling(path: Path, num_words: int, tokenizer: Tokenizer) -> KenlmModel:
    """A binary file over the recogniser's units that tells only whether it knows a word.

    `num_words`: without boundaries and <unk>. Raises DataError if it is one of words.
    """
    model = KenlmModel(path, tokenizer.table)
    has_pieces = any(SPACE in unit for unit in model.known)
    counts = _WordCounts(num_words, len(model.known), has_pieces)
    if not counts.are_over_units(tokenizer):
        found = f"a model of words, without their spelling ({counts})"
        to_do = "give the ARPA file, or build it again with build_binary without `-v`"
        raise DataError(path, found, to_do)
    return _check_known_units(path, model, tokenizer)


def _check_known_units(path: Path, model: KenlmModel, tokenizer: Tokenizer) -> KenlmModel:
    """The model. Raises DataError if it knows no unit."""
    if not model.known:
        raise make_no_unit_error(path, tokenizer.table)
    return model


@dataclass(frozen=True)
class _WordCounts:
    """What tells a model over the recogniser's units from one of words."""

    num_words: int
    """Without boundaries and <unk>."""
    num_units: int
    """How many of the words are units of the recogniser."""
    has_pieces: bool
    """Whether a word has the sign of a space, as units of characters and pieces do, at its begin or
    end.
    """

    @classmethod
    def of(cls, words: Iterable[str], table: UnitTable) -> "_WordCounts":
        ordinary = _without_boundaries(words)
        num_units = sum(table.id_of(word) is not None for word in ordinary)
        return cls(len(ordinary), num_units, any(SPACE in word for word in ordinary))

    def are_over_units(self, tokenizer: Tokenizer) -> bool:
        """A model of words has no piece and fewer than half of its words are units.

        Phones are never read as words: they are no text of which a word could be made.
        """
        has_most_words = 2 * self.num_units >= self.num_words
        return isinstance(tokenizer, PhoneTokenizer) or self.has_pieces or has_most_words

    def __str__(self) -> str:
        return f"{self.num_units} of its {self.num_words} words are units of the recogniser"


def _without_boundaries(words: Iterable[str]) -> list[str]:
    return [word for word in words if word not in (BEGIN, END, UNKNOWN)]


def _log_model_of_words(path: Path, counts: _WordCounts) -> None:
    if is_first_rank():
        logger.info("%s: %s; it rescores n-best lists as a model of words", path, counts)
