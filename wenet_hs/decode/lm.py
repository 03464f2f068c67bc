# SPDX-License-Identifier: Apache-2.0
"""Loads the language models of `--lm`, and recurrent ones for the searches and for n-best lists.

Dimension key: M hypotheses, K candidates per hypothesis, S values of the network's state, V units of the recogniser.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.decode.language_model import AnyLanguageModel, LanguageModel, TextModel
from wenet_hs.decode.ngram import KENLM_MAGIC, KenlmModel, NgramModel
from wenet_hs.distributed import is_first_rank
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.lm.build import LmExperiment, load_lm
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.text.units import SPACE

logger = logging.getLogger(__name__)


def load_language_model(path: Path, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> AnyLanguageModel:
    """Load the folder of a recurrent model, an ARPA file, or a binary file of KenLM if kenlm is installed.

    A recurrent model over the same kind of units takes part in the searches. One over others, such as words, rescores
    the n-best lists. The words of an n-gram model are units. A warning of rank 0 names the units that a model of the
    searches does not know: they are its `<unk>`, or avoided.

    Args:
        tokenizer: of the recogniser.
    Raises: DataError naming file and line if a file is damaged or knows no unit; ConfigError if it is missing, or kenlm
        is; CheckpointError if a folder is not complete.
    """
    if path.is_dir():
        experiment = load_lm(path, device=device)
        if type(experiment.tokenizer) is not type(tokenizer):  # words and phones are both text between spaces
            if is_first_rank():
                kind = experiment.config.tokenizer
                logger.info("%s: tokenizer %s is not that of the recogniser; it rescores n-best lists", path, kind)
            return RecurrentTextModel(experiment, tokenizer)
        lm: LanguageModel = RecurrentLm(experiment, tokenizer)
    else:
        lm = _load_ngram_model(path, tokenizer)
    if lm.unknown and is_first_rank():
        named = list_names(sorted(lm.unknown, key=lambda unit: unit != SPACE), " ")
        logger.warning(
            "%s: does not know %d of the %d units (%s), so the searches avoid them; build it from text that is split "
            "into this model's units",
            *(path, len(lm.unknown), len(tokenizer.table) - len(tokenizer.table.special_ids), named),
        )
    return lm


def _load_ngram_model(path: Path, tokenizer: Tokenizer) -> LanguageModel:
    try:
        with path.open("rb") as file:
            is_binary = file.read(len(KENLM_MAGIC)) == KENLM_MAGIC
    except FileNotFoundError as error:
        what = f"--lm {path}: no such file; give the folder of `lm train` or an n-gram model in ARPA format"
        raise ConfigError(what) from error
    return KenlmModel(path, tokenizer.table) if is_binary else NgramModel(path, tokenizer.table)


def _text_units(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    table = tokenizer.table
    return [(index, unit) for index, unit in enumerate(table.units) if index not in table.special_ids]


class RecurrentLm(LanguageModel):
    """A recurrent model over the recogniser's units, which are found in its table by their symbols.

    A state is the state of the network (S values) and the log-probability of each unit of the recogniser (V values).
    So each hypothesis passes through network and head once.
    """

    def __init__(self, experiment: LmExperiment, tokenizer: Tokenizer) -> None:
        """Raises DataError if the model knows none of the units."""
        self._model, table, own = experiment.model, tokenizer.table, experiment.tokenizer.table
        found = {index: own.id_of(unit) for index, unit in _text_units(tokenizer)}
        self.unknown = [table.units[index] for index, unit_id in found.items() if unit_id is None]
        if len(self.unknown) == len(found) or own.special.unk is None:
            what = f"{experiment.model_dir}: knows none of the {len(found)} units of the recogniser, or has no <unk>"
            raise DataError(f"{what}; train it with units.txt of the recogniser")
        ids = [own.special.unk if (unit_id := found.get(index)) is None else unit_id for index in range(len(table))]
        ids[table.special.eos] = own.special.eos
        self._device = self._model.embedding.weight.device
        self._ids_V, self._sos = torch.tensor(ids, device=self._device), own.special.sos
        self._size = self._model.start(1).size(1)

    @torch.no_grad()
    def start(self, count: int) -> Tensor:
        sos = torch.tensor([self._sos], device=self._device)
        return self._step(self._model.start(1), sos).expand(count, -1)

    def score(self, states: Tensor, ids: Tensor) -> Tensor:
        return states[:, self._size :].gather(1, ids.to(states.device)).to(ids.device)

    @torch.no_grad()
    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        units = self._ids_V[ids.to(self._device)]
        return self._step(states[:, : self._size].to(self._device), units).to(states.device)

    def _step(self, states_MS: Tensor, units_M: Tensor) -> Tensor:
        _, after_MS = self._model(units_M[:, None], states_MS)
        log_probs = self._model.head.log_probs(self._model.head_input(after_MS))
        return torch.cat([after_MS, log_probs.index_select(1, self._ids_V)], dim=1)


class RecurrentTextModel(TextModel):
    """A recurrent model over other units than the recogniser's: it reads the text of a hypothesis."""

    def __init__(self, experiment: LmExperiment, tokenizer: Tokenizer) -> None:
        self._experiment, self._tokenizer = experiment, tokenizer

    @torch.no_grad()
    def score_texts(self, texts: Sequence[Sequence[int]]) -> list[float]:
        model, own = self._experiment.model, self._experiment.tokenizer
        device, special = model.embedding.weight.device, own.table.special
        units = [[special.sos, *own.encode(self._tokenizer.decode(ids)), special.eos] for ids in texts]
        rows = [torch.tensor(one, device=device) for one in units]
        inputs_ML = pad_sequence([row[:-1] for row in rows], batch_first=True)
        targets_ML = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-1)
        hidden_MLD, _ = model(inputs_ML, model.start(len(rows)))
        is_target_ML = targets_ML >= 0
        nll_ML = torch.zeros(targets_ML.shape, dtype=torch.float64, device=device)
        nll_ML[is_target_ML] = model.head.nll(hidden_MLD[is_target_ML], targets_ML[is_target_ML]).double()
        return [-cost for cost in nll_ML.sum(1).tolist()]
