# SPDX-License-Identifier: Apache-2.0
"""Loads language models: folders of recurrent ones, n-gram models from ARPA files, and KenLM's binary files."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.build import build_head
from wenet_hs.checkpoint import load_weights, read_weights
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import load_config
from wenet_hs.distributed import is_first_rank
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.experiment import check_files, in_folder, load_trees, read_units
from wenet_hs.lm.backoff import ArpaReader, KenlmModel, NgramModel
from wenet_hs.lm.language_model import AnyLanguageModel, LanguageModel, TextModel, text_units
from wenet_hs.lm.ngram import BEGIN, END, UNKNOWN
from wenet_hs.lm.recurrent import RecurrentModel, RnnLm
from wenet_hs.text.tokenizer import PhoneTokenizer, SegmentingTokenizer, Tokenizer
from wenet_hs.text.units import SPACE, UnitTable

logger = logging.getLogger(__name__)

_KENLM_MAGIC = b"mmap lm http://kheafield.com/code"


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

    Raises CheckpointError, DataError or ConfigError with the file that is missing, damaged or of another model.
    """
    path = in_folder(model_dir, "train.yaml", made_by=LmConfig.trained_by)
    config = load_config(path, (), LmConfig)
    check_files(model_dir, config)
    units = in_folder(model_dir, "units.txt", made_by=LmConfig.trained_by)
    table, tokenizer = read_units(config, units, where=str(path))
    model = build_lm(config, table, model_dir)
    weights = in_folder(model_dir, "final.pt", made_by=LmConfig.trained_by)
    load_weights(model, read_weights(weights), str(weights))
    return LmExperiment(config, tokenizer, model.to(device).eval(), model_dir)


def build_lm(config: LmConfig, table: UnitTable, folder: Path) -> RnnLm:
    """A model with new weights over the units of `table`, with the tree that the config names, from `folder`.

    All heads of one seed start with the same input vectors and recurrent layers.
    """
    tree = load_trees(config, table, folder).get("head_conf")
    conf = config.rnn_conf
    head = build_head(config.head_conf, conf.hidden_size, len(table), tree)
    return RnnLm(
        head,
        kind=config.rnn,
        embedding_size=conf.embedding_size,
        num_layers=conf.num_layers,
        dropout_rate=conf.dropout_rate,
        sparse_grad=conf.sparse_grad,
    )


def load_language_model(path: Path, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> AnyLanguageModel:
    """Load the folder of a recurrent model, an ARPA file, or a binary file of KenLM if kenlm is installed.

    A model over the recogniser's units takes part in the searches. One over others, such as words, rescores the n-best
    lists: a recurrent model with another kind of units, and an ARPA file most of whose words are no units. A warning of
    rank 0 names the units that a model of the searches does not know.

    `tokenizer`: of the recogniser.
    Raises: DataError naming file and line if a file is damaged or knows no unit; ConfigError if it is missing, or kenlm
        is; CheckpointError if a folder is not complete.
    """
    if path.is_dir():
        lm = _load_recurrent_model(load_lm(path, device=device), tokenizer)
    else:
        lm = _load_ngram_model(path, tokenizer)
    if isinstance(lm, LanguageModel) and lm.unknown and is_first_rank():
        named = list_names(sorted(lm.unknown, key=lambda unit: unit != SPACE), " ")
        logger.warning(
            "%s: does not know %d of the %d units (%s), which get the probability of <unk>; build it from text that is "
            "split into this model's units (`wenet-hs lm ngram --units`)",
            *(path, len(lm.unknown), len(text_units(tokenizer.table)), named),
        )
    return lm


def _load_recurrent_model(experiment: LmExperiment, tokenizer: Tokenizer) -> AnyLanguageModel:
    path, model, own = experiment.model_dir, experiment.model, experiment.tokenizer
    if type(own) is type(tokenizer):  # words and phones are both text between spaces
        return RecurrentModel(path, model, own.table, tokenizer.table)
    if is_first_rank():
        kind = experiment.config.tokenizer
        logger.info("%s: tokenizer %s is not that of the recogniser; it rescores n-best lists", path, kind)
    if own.table.special.unk is None:
        found = "has no <unk>, so the model cannot score words of other text"
        raise DataError(path / "units.txt", found, "train it with a table of `wenet-hs units`")
    own = SegmentingTokenizer(own.table) if experiment.config.tokenizer == "word" else own
    return TextModel(path, RecurrentModel(path, model, own.table, own.table), own, tokenizer)


def _load_ngram_model(path: Path, tokenizer: Tokenizer) -> AnyLanguageModel:
    try:
        with path.open("rb") as file:
            is_binary = file.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC
    except FileNotFoundError as error:
        to_do = "give the folder of `lm train` or an n-gram model in ARPA format"
        raise ConfigError(f"--lm {path}", "no such file", to_do) from error
    if is_binary:
        return KenlmModel(path, tokenizer.table)
    arpa = ArpaReader(path)
    words = [word for word in arpa.words if word not in (BEGIN, END, UNKNOWN)]
    num_units = sum(tokenizer.table.id_of(word) is not None for word in words)
    has_pieces = any(word.startswith(SPACE) for word in words)  # characters and pieces have the space as a unit
    if isinstance(tokenizer, PhoneTokenizer) or has_pieces or 2 * num_units >= len(words):
        return NgramModel(arpa, tokenizer.table)
    if is_first_rank():
        message = "%s: %d of its %d words are units of the recogniser; it rescores n-best lists as a model of words"
        logger.info(message, path, num_units, len(words))
    own = SegmentingTokenizer(UnitTable.from_units(words))
    return TextModel(path, NgramModel(arpa, own.table), own, tokenizer)
