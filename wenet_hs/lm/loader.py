# SPDX-License-Identifier: Apache-2.0
"""Loads language models: folders of recurrent models, ARPA files, and binary files of KenLM."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.compute.distributed import is_first_rank
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import load_config
from wenet_hs.lm.backoff import (
    ArpaReader,
    KenlmModel,
    NgramModel,
    make_no_unit_error,
    translate_word,
)
from wenet_hs.lm.kenlm_file import is_kenlm_file, read_kenlm_vocabulary
from wenet_hs.lm.language_model import AnyLanguageModel, LanguageModel, TextModel, list_text_units
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


# ---- folders of recurrent models


@dataclass(frozen=True, kw_only=True)
class LmExperiment:
    """A trained language model with its config and tokenizer."""

    config: LmConfig
    tokenizer: Tokenizer
    model: RnnLm
    """In evaluation mode."""
    model_dir: Path


def load_lm(model_dir: Path, *, device: torch.device | str = "cpu") -> LmExperiment:
    """Load the folder of a recurrent language model, which may have been moved.

    Raises CheckpointError, DataError or ConfigError with the file that is missing, damaged or of
    another model.
    """
    config_path = in_folder(model_dir, "train.yaml", made_by=LmConfig.trained_by)
    config = load_config(config_path, (), LmConfig)
    check_files(model_dir, read_run(model_dir))  # raises if a file is not that of the training
    units_path = in_folder(model_dir, "units.txt", made_by=LmConfig.trained_by)
    table, tokenizer = read_units(config, units_path, where=str(config_path))
    model = build_lm(config, table, model_dir)
    weights_path = in_folder(model_dir, "final.pt", made_by=LmConfig.trained_by)
    load_weights(model, read_weights(weights_path), str(weights_path))
    return LmExperiment(
        config=config,
        tokenizer=tokenizer,
        model=model.to(device).eval(),
        model_dir=model_dir,
    )


def build_lm(config: LmConfig, table: UnitTable, folder: Path) -> RnnLm:
    """A recurrent model over the units of `table`, with new weights.

    Models of one seed start with the same input vectors and recurrent layers, whichever head they
    have, because each head draws its weights with a seed of its own.

    Args:
        folder: where the tree of the head is, if the config names one.
    """
    trees = load_trees(config, table, folder)
    conf = config.rnn_conf
    head = build_head(
        config.head_conf,
        conf.hidden_size,
        len(table),
        trees.get("head_conf"),  # None for a head without a tree
        name=config.head,
    )
    return RnnLm(
        head,
        kind=config.rnn,
        embedding_size=conf.embedding_size,
        num_layers=conf.num_layers,
        dropout_rate=conf.dropout_rate,
        sparse_grad=conf.sparse_grad,
    )


# ---- language models of a recogniser


def load_language_model(
    path: Path, tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> AnyLanguageModel:
    """Load a language model for a recogniser.

    The form of `path` decides how it is read:

    - A folder: a recurrent model.
    - A file that begins as KenLM's binary files do: read by KenLM's library.
    - Any other file: an n-gram model in ARPA format.

    A model over the recogniser's units takes part in the searches. A model over other units, such
    as words, rescores n-best lists. A warning of rank 0 names the units that a model of the
    searches does not know.

    Args:
        tokenizer: of the recogniser.
        device: of a recurrent model. Other models compute where their states are.
    Raises:
        DataError: with file and line if a file is damaged; also if the model knows no unit, or is
            a binary file of words without their spelling.
        ConfigError: the file is missing, or KenLM's library is.
        CheckpointError: a folder is not complete.
    """
    if path.is_dir():
        lm = _load_recurrent_model(load_lm(path, device=device), tokenizer)
    else:
        lm = _load_ngram_model(path, tokenizer)
    if isinstance(lm, LanguageModel) and lm.unknown and is_first_rank():
        _warn_of_unknown_units(path, lm, tokenizer)
    return lm


def _warn_of_unknown_units(path: Path, lm: LanguageModel, tokenizer: Tokenizer) -> None:
    """Log a warning with the units that a model does not know; the space is named first."""
    space_first = sorted(lm.unknown, key=lambda unit: unit != SPACE)  # False is before True
    logger.warning(
        "%s: does not know %d of the %d units (%s), which get the probability of <unk>; "
        "build it with the table of this model (`wenet-hs lm ngram --units`), "
        "from text that has these units",
        path,
        len(lm.unknown),
        len(list_text_units(tokenizer.table)),
        list_names(space_first, " "),
    )


def _load_recurrent_model(experiment: LmExperiment, tokenizer: Tokenizer) -> AnyLanguageModel:
    """Adapt a trained model to a recogniser with another unit table or another kind of units.

    With the same kind of units, such as characters, the model takes part in the searches. With
    another kind, it scores the texts of n-best lists, which is logged. If its units are words, text
    without spaces between words is cut into them.

    Raises DataError if the model does not know the units, or has no <unk>.
    """
    path = experiment.model_dir
    lm_tokenizer = experiment.tokenizer
    lm_units = lm_tokenizer.table
    # Words and phones have one class of tokenizers, because both are text between spaces.
    if type(lm_tokenizer) is type(tokenizer):
        return RecurrentModel(
            path, experiment.model, lm_units=lm_units, recogniser_units=tokenizer.table
        )
    if is_first_rank():
        logger.info(
            "%s: tokenizer %s is not that of the recogniser; it rescores n-best lists",
            path,
            experiment.config.tokenizer,
        )
    if lm_units.special.unk is None:
        fault = "has no <unk>, so the model cannot score words of other text"
        raise DataError(path / "units.txt", fault, "train it with a table of `wenet-hs units`")
    if experiment.config.tokenizer == "word":
        lm_tokenizer = SegmentingTokenizer(lm_units)
    lm = RecurrentModel(path, experiment.model, lm_units=lm_units, recogniser_units=lm_units)
    return TextModel(path, lm, lm_tokenizer=lm_tokenizer, recogniser_tokenizer=tokenizer)


def _load_ngram_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    """Read a binary file of KenLM or an ARPA file. Raises ConfigError if there is no file."""
    try:
        is_binary = is_kenlm_file(path)
    except FileNotFoundError as error:
        to_do = "give the folder of `lm train` or an n-gram model in ARPA format"
        raise ConfigError(f"--lm {path}", "no such file", to_do) from error
    return _load_kenlm_model(path, tokenizer) if is_binary else _load_arpa_model(path, tokenizer)


def _load_arpa_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    """Read an ARPA file, and decide whether its words are the recogniser's units.

    If they are, the model takes part in the searches. If not, it is one of words, which scores the
    texts of n-best lists. This is logged. Raises DataError if the file is no ARPA file.
    """
    arpa = ArpaReader(path)
    vocabulary = _VocabularyCounts.of(arpa.words, tokenizer.table)
    if vocabulary.is_over_units(tokenizer):
        return NgramModel(arpa, tokenizer.table)
    _log_model_of_words(path, vocabulary)
    lm_tokenizer = _make_word_tokenizer(arpa.words)
    lm = NgramModel(arpa, lm_tokenizer.table)
    return TextModel(path, lm, lm_tokenizer=lm_tokenizer, recogniser_tokenizer=tokenizer)


def _load_kenlm_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    """Read a binary file of KenLM, and decide whether its words are the recogniser's units.

    If they are, the model takes part in the searches. If not, it is one of words, which scores the
    texts of n-best lists. This is logged.

    Raises DataError if the file is damaged, knows no unit, or is one of words without their
    spelling; ConfigError if KenLM's library is not installed.
    """
    kenlm_vocabulary = read_kenlm_vocabulary(path)
    if kenlm_vocabulary.words is None:
        num_words = kenlm_vocabulary.num_words - NUM_SPECIAL
        return _load_without_spelling(path, num_words, tokenizer)
    words = [translate_word(word) for word in kenlm_vocabulary.words]
    vocabulary = _VocabularyCounts.of(words, tokenizer.table)
    if vocabulary.is_over_units(tokenizer):
        lm = KenlmModel(path, tokenizer.table)
        _refuse_no_known_unit(path, lm, tokenizer)
        return lm
    _log_model_of_words(path, vocabulary)
    lm_tokenizer = _make_word_tokenizer(words)
    lm = KenlmModel(path, lm_tokenizer.table)
    return TextModel(path, lm, lm_tokenizer=lm_tokenizer, recogniser_tokenizer=tokenizer)


def _load_without_spelling(path: Path, num_words: int, tokenizer: Tokenizer) -> KenlmModel:
    """A model over the recogniser's units, from a binary file that does not list its words.

    Such a file only tells whether it knows a given word. So each unit is looked up in it.

    Args:
        num_words: of the file, without <s>, </s> and <unk>.
    Raises:
        DataError: most of its words are no units of the recogniser, or it knows no unit.
    """
    lm = KenlmModel(path, tokenizer.table)
    vocabulary = _VocabularyCounts(
        num_words=num_words,
        num_units=len(lm.known),
        has_pieces=any(SPACE in unit for unit in lm.known),
    )
    if not vocabulary.is_over_units(tokenizer):
        fault = f"a model of words, without their spelling ({vocabulary})"
        to_do = "give the ARPA file, or build it again with build_binary without `-v`"
        raise DataError(path, fault, to_do)
    _refuse_no_known_unit(path, lm, tokenizer)
    return lm


def _refuse_no_known_unit(path: Path, lm: KenlmModel, tokenizer: Tokenizer) -> None:
    """Raise DataError if the model knows none of the recogniser's units."""
    if not lm.known:
        raise make_no_unit_error(path, tokenizer.table)


# ---- words or units


@dataclass(frozen=True, kw_only=True)
class _VocabularyCounts:
    """What tells an n-gram model over the recogniser's units from one of words."""

    num_words: int
    """Without <s>, </s> and <unk>."""
    num_units: int
    """How many of the words are units of the recogniser."""
    has_pieces: bool
    """Whether a word contains `▁`, the sign of a space, as units of characters and pieces do."""

    @classmethod
    def of(cls, words: Iterable[str], table: UnitTable) -> "_VocabularyCounts":
        """Count the words of a model. `table`: the units of the recogniser."""
        ordinary_words = _without_special(words)
        return cls(
            num_words=len(ordinary_words),
            num_units=sum(table.id_of(word) is not None for word in ordinary_words),
            has_pieces=any(SPACE in word for word in ordinary_words),
        )

    def is_over_units(self, tokenizer: Tokenizer) -> bool:
        """Whether the words of the model are the recogniser's units, not words of a language.

        They are if one of these holds:

        - the recogniser has phones, which are no text from which words could be made;
        - a word contains `▁`, which no ordinary word does;
        - at least half of the words are units.
        """
        are_phones = isinstance(tokenizer, PhoneTokenizer)
        are_mostly_units = 2 * self.num_units >= self.num_words
        return are_phones or self.has_pieces or are_mostly_units

    def __str__(self) -> str:
        """For messages."""
        return f"{self.num_units} of its {self.num_words} words are units of the recogniser"


def _without_special(words: Iterable[str]) -> list[str]:
    """The words without <s>, </s> and <unk>."""
    return [word for word in words if word not in (BEGIN, END, UNKNOWN)]


def _make_word_tokenizer(words: Iterable[str]) -> SegmentingTokenizer:
    """A tokenizer of the words of a model, also for text without spaces between them."""
    return SegmentingTokenizer(UnitTable.from_units(_without_special(words)))


def _log_model_of_words(path: Path, vocabulary: _VocabularyCounts) -> None:
    """Log, on rank 0, that a model is one of words and what follows from it."""
    if is_first_rank():
        logger.info("%s: %s; it rescores n-best lists as a model of words", path, vocabulary)
