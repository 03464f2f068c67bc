# SPDX-License-Identifier: Apache-2.0
"""Recognition with known units: per language a model with limited heads, and a place for units that
the model lacks.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from wenet_hs.compute.distributed import is_first_rank
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.experiment import Experiment
from wenet_hs.nn.transformer import TransformerDecoder
from wenet_hs.text.articulatory import nearest_phones
from wenet_hs.text.inventory import Inventories
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

PLACEMENTS = ("articulatory",)
"""How a unit that the model lacks can be placed."""


def limit_to_inventories(
    experiment: Experiment, inventories: Inventories, *, place_unseen: str | None = None
) -> tuple[Experiment, dict[str | None, AsrModel]]:
    """The experiment, and per language its model limited to the units of the language, for
    decoding.

    Encoder and decoder are shared. A unit that the model lacks cannot be recognised, and a warning
    lists it. With `place_unseen` "articulatory" it is placed beside its nearest unit of the model,
    as a sibling of that leaf with which it shares the probability equally; the unit table and the
    decoder's input embedding are extended (in place).

    Raises DataError for a language whose units the model lacks; ConfigError if panphon is needed
        and not installed.
    """
    table = experiment.tokenizer.table
    all_units = {unit for units in inventories.values() for unit in units}
    unseen = sorted(unit for unit in all_units if not experiment.tokenizer.ids_of(unit))
    text_ids = [unit_id for unit_id in range(len(table)) if unit_id not in table.special_ids]
    placed: dict[str, int] = {}
    if place_unseen is not None and unseen:
        nearest = nearest_phones(unseen, [table.units[unit_id] for unit_id in text_ids])
        placed = {
            unit: text_ids[index]
            for unit, index in zip(unseen, nearest, strict=True)
            if index is not None
        }
    if is_first_rank():
        _report_unseen(unseen, {unit: table.units[source] for unit, source in placed.items()})
    experiment = _extend(experiment, placed)
    sources = [*range(len(table)), *placed.values()]
    models: dict[str | None, AsrModel] = {}
    for lang, units in inventories.items():
        ids = {unit_id for unit in units for unit_id in experiment.tokenizer.ids_of(unit)}
        if ids <= table.special_ids:
            found = f"the model has no unit of language {lang!r} ({list_names(list(units), ' ')})"
            raise DataError("--inventory", found, "use the inventory of this model's units")
        source_of = {unit_id: sources[unit_id] for unit_id in ids}
        models[lang] = experiment.model.restrict(source_of, len(sources))
    return experiment, models


def _report_unseen(unseen: Sequence[str], placed: Mapping[str, str]) -> None:
    absent = [unit for unit in unseen if unit not in placed]
    if placed:
        pairs = [f"{unit} beside {source}" for unit, source in placed.items()]
        logger.info(
            "--place_unseen: %d units that the model does not have: %s",
            len(pairs),
            ", ".join(pairs),
        )
    if absent:
        what = "--inventory: the model does not have %d of its units and cannot recognise them: %s"
        logger.warning(what, len(absent), list_names(absent, " ", most=20))


def _extend(experiment: Experiment, placed: Mapping[str, int]) -> Experiment:
    """The experiment with new units at the end of its table; each has the decoder's input embedding
    of its source.
    """
    table = experiment.tokenizer.table
    tokenizer = experiment.tokenizer.with_table(UnitTable((*table.units, *placed), table.special))
    for decoder in experiment.model.modules():
        if isinstance(decoder, TransformerDecoder):
            embedding = cast(nn.Embedding, decoder.embed[0])
            weight_VD = embedding.weight.detach()
            embedding.weight = nn.Parameter(
                torch.cat([weight_VD, weight_VD[list(placed.values())]]), False
            )
    return replace(experiment, tokenizer=tokenizer)
