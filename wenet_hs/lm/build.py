# SPDX-License-Identifier: Apache-2.0
"""Builds language models from configs and loads their experiment folders."""

from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.build import build_head
from wenet_hs.checkpoint import load_weights, read_weights
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import load_config
from wenet_hs.experiment import check_files, in_folder, load_trees, read_units
from wenet_hs.lm.model import RnnLm
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import UnitTable


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
