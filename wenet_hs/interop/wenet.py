# SPDX-License-Identifier: Apache-2.0
"""Loads a WeNet model: `train.yaml` and `final.pt` → AsrModel with the same outputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.build import build_model, state_cmvn
from wenet_hs.model.checkpoint import load_weights
from wenet_hs.model.foreign_weights import read_model_weights, require_num_units, translate_weights
from wenet_hs.text.units import BLANK, EOS, SOS, UNK, SpecialIds
from wenet_hs.tree.errors import CheckpointError


def load_wenet_model(
    train_yaml: Path | str,
    final_pt: Path | str | Mapping[str, Tensor],
    overrides: Sequence[str] = (),
) -> AsrModel:
    """Loads a WeNet model for decoding (in evaluation mode, on the CPU).

    Args:
        train_yaml: WeNet's config, old or new.
        final_pt: WeNet's weights: a file, or the state_dict itself. With the original tree head
            they contain its tree; the config has `head: hsoftmax`.
        overrides: as in load_config; models before 2022-01-11 need `norm_eps=1e-12` in encoder_conf
            and decoder_conf.

    Raises ConfigError, or CheckpointError if the weights are damaged or do not fit the config.
    """
    config = load_config(train_yaml, overrides)
    if isinstance(final_pt, Mapping):
        weights = translate_weights(final_pt, "state_dict")
    else:
        weights = read_model_weights(final_pt)
    num_units = require_num_units(weights.state, weights.where)
    special = _find_special_ids(config, num_units)
    if max(special.blank, special.sos, special.eos) >= num_units:
        raise CheckpointError(
            weights.where,
            f"{num_units} units, but {train_yaml} has special ids {special}",
            "use the train.yaml with which these weights were trained",
        )
    model = build_model(
        config,
        num_units,
        special,
        tree=weights.original_tree,
        cmvn=state_cmvn(weights.state, config),
    )
    load_weights(model, weights.state, weights.where)
    return model.eval()


load_model = load_wenet_model
"""The name that scripts import; `wenet_hs.load_model` loads a folder for recognition."""


def _find_special_ids(config: ExperimentConfig, num_units: int) -> SpecialIds:
    """The ids of the special units, as `special_tokens` of the config states them.

    Where it does not, they follow WeNet's old convention: the last unit is <sos/eos>, the blank is
    `ctc_blank_id` or 0, and there is no <unk>.
    """
    stated_ids = config.tokenizer_conf.special_tokens or {}
    ids = {str(name): unit_id for name, unit_id in stated_ids.items()}
    last_unit = num_units - 1
    return SpecialIds(
        blank=ids.get(BLANK, config.ctc_conf.ctc_blank_id or 0),
        unk=ids.get(UNK),
        sos=ids.get(SOS, last_unit),
        eos=ids.get(EOS, last_unit),
    )
