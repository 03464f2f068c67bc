# SPDX-License-Identifier: Apache-2.0
"""Begin with the weights of a trained model, whatever its units and heads are, and say what of it is new.

Dimension key: V units, D width, R rows of a parameter.
"""

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wenet_hs.errors import CheckpointError
from wenet_hs.files import write_atomic
from wenet_hs.heads.base import OutputHead
from wenet_hs.interop.weights import load_weights
from wenet_hs.model import AsrModel
from wenet_hs.text.units import UnitTable
from wenet_hs.train.base_model import HEAD_PREFIXES, BaseModel, read_base_model
from wenet_hs.train.mapping import Rows, UnitMap, map_head, match_units

logger = logging.getLogger(__name__)

_EMBEDDING = ".embed.0.weight"
_MOST_LISTED = 20
_ALL_HEADS = tuple(itertools.chain(*HEAD_PREFIXES.values()))
_STATISTICS = ("encoder.global_cmvn.mean", "encoder.global_cmvn.istd")


@dataclass(frozen=True)
class RowCount:
    """How many rows of a parameter are taken from the trained model."""

    taken: int
    rows: int


@dataclass(frozen=True)
class HeadReport:
    """What became of a head."""

    old: str | None
    """Its kind in the trained model; None where neither a train.yaml nor a tree beside the weights tells."""
    new: str
    matched: int = 0
    """Units of a softmax, nodes of a tree, children of classes, choices of the first adaptive softmax."""
    of: int = 0
    is_assumed: bool = False
    """Whether its tree is taken to be the new model's, as none stands beside the weights."""


@dataclass(frozen=True)
class FineTuneReport:
    """What a model took from another one; `fine_tune.json`."""

    checkpoint: str
    unit_table: str | None
    """The trained model's; None where there is none beside it, and its units are taken to be the same."""
    units_kept: int
    units_new: list[str] = field(default_factory=list)
    units_dropped: list[str] = field(default_factory=list)
    heads: dict[str, HeadReport] = field(default_factory=dict)
    """By `head_conf` and `ctc_conf.head_conf`; the right-to-left decoder's is as the first."""
    parameters_taken: int = 0
    """Parameters and buffers taken whole."""
    parameters_in_part: dict[str, RowCount] = field(default_factory=dict)
    parameters_new: list[str] = field(default_factory=list)
    parameters_unused: list[str] = field(default_factory=list)
    """Of the trained model's heads, where nothing of the new model matches them."""

    def write(self, path: Path) -> None:
        """Write it as JSON, the whole file or nothing."""
        write_atomic(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    def log(self) -> None:
        """Say it in a few lines, long lists cut."""
        logger.info("weights from %s; new: %s", self.checkpoint, _listed(self.parameters_new))
        if self.unit_table is None:
            logger.warning("%s: no unit table beside it; its units are taken to be the same", self.checkpoint)
        else:
            units = (self.units_kept, _listed(self.units_new, quoted=True), _listed(self.units_dropped, quoted=True))
            logger.info("units of %s: %d kept; new: %s; dropped: %s", self.unit_table, *units)
        for section, head in self.heads.items():
            old = head.old or "a head that nothing beside it describes"
            logger.info("%s: %s from %s, %d of %d rows matched", section, head.new, old, head.matched, head.of)
            if head.is_assumed:
                logger.warning("%s: no tree of it beside %s; it is taken to be this one", section, self.checkpoint)
        parts = [f"{name} {count.taken} of {count.rows} rows" for name, count in self.parameters_in_part.items()]
        logger.info("parameters: %d taken; in part: %s", self.parameters_taken, _listed(parts))


def take_weights(model: AsrModel, checkpoint: Path, units: UnitTable) -> FineTuneReport:
    """Copy what fits of a trained model: a file, a checkpoint folder, or a model folder, ours or WeNet's.

    The encoder and the decoder's layers must be the same. What belongs to units is matched by their text, and so are
    the nodes of trees, classes and clusters, by the units in them (train/mapping.py); nothing is matched between heads
    of different kinds. What stays new has the values that the model was built with.

    Args:
        model: freshly built, over `units`.

    Raises: CheckpointError, DataError or ConfigError where the weights or the files beside them are damaged, do not
        belong together, or are of another encoder or decoder.
    """
    base = read_base_model(checkpoint)
    unit_map = _match_units(base, units)
    own = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    rows, heads = _head_rows(base, model, unit_map)
    for name in own:
        if name.startswith("decoder.") and name.endswith(_EMBEDDING) and name in base.state:
            rows[name] = Rows(name, unit_map.inputs)
    state, counts = _new_state(own, base.state, rows)
    # Asked before the weights are loaded: `own` may be the model's own memory.
    has_own_statistics = _has_own_statistics(own, base.state)
    load_weights(model, state, str(base.path))
    if has_own_statistics:
        logger.warning(
            "%s: features are normalised with its own statistics, not with those of cmvn_conf.cmvn_file: its encoder "
            "was trained on them",
            base.path,
        )
    used = {taken.name for taken in rows.values()}
    return replace(
        _report(base, units, unit_map, heads, counts),
        parameters_taken=sum(name not in counts or counts[name].taken == counts[name].rows for name in own),
        parameters_unused=[name for name in base.state if name.startswith(_ALL_HEADS) and name not in used],
    )


def _new_state(
    own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], rows: Mapping[str, Rows]
) -> tuple[dict[str, Tensor], dict[str, RowCount]]:
    """All weights of the new model, and how many rows are taken of those that belong to units."""
    state = {name: value for name, value in theirs.items() if not name.startswith(_ALL_HEADS)}
    counts: dict[str, RowCount] = {}
    for name, value in own.items():
        if name in rows:
            state[name], counts[name] = mixed(value, theirs[rows[name].name], rows[name])
        elif name.startswith(_ALL_HEADS):
            state[name], counts[name] = value, RowCount(0, len(value))
    return state, counts


def _match_units(base: BaseModel, units: UnitTable) -> UnitMap:
    if base.table is not None:
        return match_units(base.table, units)
    if base.num_units != len(units):
        raise CheckpointError(
            f"{base.path}: made for {base.num_units} units, here are {len(units)}, and its unit table is not beside "
            f"it; put its units.txt into {base.home}"
        )
    own = np.arange(len(units))
    return UnitMap(own, own)


def _head_rows(base: BaseModel, model: AsrModel, unit_map: UnitMap) -> tuple[dict[str, Rows], dict[str, HeadReport]]:
    """The rows of all parameters of heads, by their full names, and what became of each head."""
    same_units = unit_map.is_identity and base.num_units == model.num_units
    rows: dict[str, Rows] = {}
    reports = {}
    for section, prefixes in HEAD_PREFIXES.items():
        new = model.head if section == "head_conf" else model.ctc.head
        old = base.head(section, new, same_units=same_units)
        found = {} if old is None else map_head(old, new, unit_map.outputs)
        for prefix in prefixes:
            has_it = prefix != "right_head." or model.right_head is not None
            for name, taken in found.items() if has_it else ():
                if prefix + taken.name in base.state:
                    rows[prefix + name] = taken._replace(name=prefix + taken.name)
        reports[section] = _head_report(old, new, found)
    return rows, reports


def _head_report(old: OutputHead | None, new: OutputHead, found: Mapping[str, Rows]) -> HeadReport:
    kind = None if old is None else type(old).__name__
    names = [name for name, _ in new.named_parameters()]
    if not names:
        return HeadReport(kind, type(new).__name__)
    matched = int((found[names[0]].source >= 0).sum()) if names[0] in found else 0
    return HeadReport(kind, type(new).__name__, matched, len(new.get_parameter(names[0])), is_assumed=old is new)


def mixed(own: Tensor, theirs: Tensor, rows: Rows) -> tuple[Tensor, RowCount]:
    """The rows of `theirs` where they are matched, those of `own` elsewhere: (R, …) in the dtype of `own`.

    Where the other dimensions differ, `theirs` as it is: load_weights will name it.
    """
    if own.shape[1:] != theirs.shape[1:]:
        return theirs, RowCount(0, len(own))
    source = torch.from_numpy(rows.source)
    is_taken = source >= 0
    taken = theirs[source[is_taken]].to(own.dtype)
    if rows.is_flipped is not None:
        is_flipped = torch.from_numpy(rows.is_flipped)[is_taken]
        taken = torch.where(is_flipped.view(-1, *[1] * (own.dim() - 1)), -taken, taken)
    result = own.clone()
    result[is_taken] = taken
    return result, RowCount(int(is_taken.sum()), len(own))


def _has_own_statistics(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    """Whether the trained model normalises features otherwise than this one was built to."""
    both = [name for name in _STATISTICS if name in own and name in theirs and own[name].shape == theirs[name].shape]
    return any(not torch.allclose(own[name], theirs[name].to(own[name].dtype), rtol=1e-4, atol=1e-5) for name in both)


def _report(
    base: BaseModel,
    units: UnitTable,
    unit_map: UnitMap,
    heads: dict[str, HeadReport],
    counts: Mapping[str, RowCount],
) -> FineTuneReport:
    """`counts`: rows of the embedding and of the heads."""
    is_kept = (unit_map.inputs >= 0) | (unit_map.outputs >= 0)
    kept_ids = {*unit_map.inputs.tolist(), *unit_map.outputs.tolist()}
    old_units = units.units if base.table is None else base.table.units
    return FineTuneReport(
        checkpoint=str(base.path),
        unit_table=None if base.table_path is None else str(base.table_path),
        units_kept=int(is_kept.sum()),
        units_new=[unit for unit, kept in zip(units.units, is_kept, strict=True) if not kept],
        units_dropped=[unit for unit_id, unit in enumerate(old_units) if unit_id not in kept_ids],
        heads=heads,
        parameters_in_part={name: count for name, count in counts.items() if 0 < count.taken < count.rows},
        parameters_new=[name for name, count in counts.items() if count.taken == 0 < count.rows],
    )


def _listed(names: Sequence[str], *, quoted: bool = False) -> str:
    shown = [repr(name) if quoted else name for name in names[:_MOST_LISTED]]
    more = [f"and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
    return ", ".join([*shown, *more]) or "none"
