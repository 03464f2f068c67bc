# SPDX-License-Identifier: Apache-2.0
"""Recognition with known units: per language a model whose heads are limited to the units of the
language, with a place for units that the model lacks.
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
    """The experiment, and per language its model limited to the units of the language.

    The models are for decoding. Encoder and decoder are shared. A unit that the model lacks cannot
    be recognised, and a warning lists it. With `place_unseen` "articulatory" it is placed beside
    its nearest unit of the model: both get an equal part of the probability that this unit has
    alone. For that, the unit table gets the new units, and so does the decoder's input embedding,
    which is changed in place.

    Args:
        inventories: language → its units.
        place_unseen: one of PLACEMENTS; None: units that the model lacks are not placed.
    Raises: DataError for a language of which the model has no unit; ConfigError if panphon is
        needed and not installed.
    """
    table = experiment.tokenizer.table
    all_units = {unit for units in inventories.values() for unit in units}
    unseen = sorted(unit for unit in all_units if not experiment.tokenizer.ids_of(unit))
    source_of_placed: dict[str, int] = {}
    if place_unseen is not None and unseen:
        source_of_placed = _nearest_units(unseen, table)
    if is_first_rank():
        _report_unseen(unseen, source_of_placed, table)
    experiment = _extend(experiment, source_of_placed)
    # Per unit id, new ones included, the unit of the model whose probability it has or shares.
    source_ids = [*range(len(table)), *source_of_placed.values()]
    models: dict[str | None, AsrModel] = {}
    for lang, units in inventories.items():
        ids = {unit_id for unit in units for unit_id in experiment.tokenizer.ids_of(unit)}
        has_text_unit = not ids <= table.special_ids
        if not has_text_unit:
            names = list_names(list(units), " ")
            raise DataError(
                "--inventory",
                f"the model has no unit of language {lang!r} ({names})",
                "use the inventory of this model's units",
            )
        source_of = {unit_id: source_ids[unit_id] for unit_id in ids}
        models[lang] = experiment.model.restrict(source_of, len(source_ids))
    return experiment, models


def _nearest_units(unseen: Sequence[str], table: UnitTable) -> dict[str, int]:
    """Per unseen unit the id of its nearest unit of the table, by articulatory features.

    Only units that are text count. An unseen unit without features is left out.
    """
    text_ids = [unit_id for unit_id in range(len(table)) if unit_id not in table.special_ids]
    text_units = [table.units[unit_id] for unit_id in text_ids]
    nearest_ids = {}
    for unit, index in zip(unseen, nearest_phones(unseen, text_units), strict=True):
        if index is not None:
            nearest_ids[unit] = text_ids[index]
    return nearest_ids


def _report_unseen(
    unseen: Sequence[str], source_of_placed: Mapping[str, int], table: UnitTable
) -> None:
    """Log which unseen units are placed beside which unit; warn of those that are not placed."""
    if source_of_placed:
        placements = ", ".join(
            f"{unit} beside {table.units[source]}" for unit, source in source_of_placed.items()
        )
        message = "--place_unseen: %d units that the model does not have: %s"
        logger.info(message, len(source_of_placed), placements)
    absent = [unit for unit in unseen if unit not in source_of_placed]
    if absent:
        message = (
            "--inventory: the model does not have %d of its units and cannot recognise them: %s"
        )
        logger.warning(message, len(absent), list_names(absent, " ", most=20))


def _extend(experiment: Experiment, source_of_placed: Mapping[str, int]) -> Experiment:
    """The experiment with new units at the end of its table.

    In each decoder of the model, which is changed in place, a new unit gets the input embedding of
    its source.
    """
    table = experiment.tokenizer.table
    extended_table = UnitTable((*table.units, *source_of_placed), table.special)
    sources = list(source_of_placed.values())
    for module in experiment.model.modules():
        if isinstance(module, TransformerDecoder):
            embedding = cast(nn.Embedding, module.embed[0])  # before the positional encoding
            weight_VD = embedding.weight.detach()
            extended_VD = torch.cat([weight_VD, weight_VD[sources]])
            embedding.weight = nn.Parameter(extended_VD, requires_grad=False)
    return replace(experiment, tokenizer=experiment.tokenizer.with_table(extended_table))
