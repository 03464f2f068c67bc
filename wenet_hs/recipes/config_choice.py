# SPDX-License-Identifier: Apache-2.0
"""The config of a training: by `--config`, `--base` and `--encoder`, and by the machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import make_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import Settings, read_yaml
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.model.encoders.description import EncoderDescription, read_description
from wenet_hs.model.encoders.weights import weight_files
from wenet_hs.model.packed import resolve_model
from wenet_hs.recipes.conf_files import OWN, conf_file, shipped_name
from wenet_hs.recipes.sizes import AUTO
from wenet_hs.tree.errors import ConfigError

FROZEN_CONFIG = "finetune_whisper.yaml"
"""Of an encoder that is not trained, of any kind: its outputs are computed once."""
MMS_CONFIG = "finetune_mms.yaml"
WAVEFORM_CONFIG = "finetune_wav2vec2.yaml"
CONFIG_BY_KIND = {"whisper": FROZEN_CONFIG, "wav2vec2-bert": "finetune_w2vbert.yaml"}
"""Kind of a trained encoder → its config; WAVEFORM_CONFIG is that of the others."""

WeightsOrigin = Literal["random weights", "trained model", "pretrained encoder"]
"""What the first weights of a training are."""


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """The config that a training begins with."""

    path: Path
    """The YAML."""
    file_settings: Settings
    """What the YAML has. It is read once."""
    settings: tuple[str, ...] = ()
    """The settings that follow from the encoder, as `key=value`."""
    start: WeightsOrigin
    reason: str
    """Why this YAML, as a part of a sentence."""


def choose_config(
    config: Path,
    *,
    base: Path | None = None,
    encoder: Path | None = None,
    size: str = AUTO,
    outputs: Path | None = None,
    chosen_before: str | None = None,
) -> ConfigChoice:
    """The config of a training.

    With `base` it is the train.yaml of that model. With `encoder` and conf/own.yaml it is the
    config for the kind of encoder on this machine. Otherwise it is `config`.

    Args:
        config: the YAML that `--config` names; conf/own.yaml is its default in recipes.
        base: folder of a trained model whose layers stay.
        encoder: folder of a pretrained encoder.
        size: as `--size` names it.
        outputs: folder for the outputs of a frozen encoder; None: the one of the config.
        chosen_before: the name of the config that was chosen for this encoder before, maybe by
            another machine.
    Raises: ConfigError if the options exclude each other, the folder of `base` has no model, the
        YAML cannot be read, or it has no pretrained encoder; ConfigError or CheckpointError if the
        folder of `encoder` cannot be read.
    """
    _refuse_conflicts(config, base, encoder, size)
    if base is not None:
        return _choose_for_base(base)
    if encoder is not None:
        return _choose_for_encoder(config, encoder, outputs, chosen_before)
    reason = "of models that are trained from random weights"
    if not is_own(config):
        reason = "named by --config"
    return ConfigChoice(
        path=config,
        file_settings=read_yaml(config),
        start="random weights",
        reason=reason,
    )


def is_own(config: Path) -> bool:
    """Whether a path is that of conf/own.yaml, the default of `--config`, or an equal copy of it.

    The run.sh of a checkout names its own copy, also where wenet_hs is installed elsewhere.
    """
    return shipped_name(config) == OWN


def check_base(base: Path) -> None:
    """Raise ConfigError if the folder has no weights of a trained model."""
    if not weights_path(resolve_model(base)).is_file():
        raise ConfigError(base, "contains no final.pt", "give the folder of a trained model")


def _refuse_conflicts(config: Path, base: Path | None, encoder: Path | None, size: str) -> None:
    if base is not None and not is_own(config):
        found = "--base has the settings"
        raise ConfigError(f"--config {config}", found, "change them with --override")
    if encoder is not None and (base is not None or size != AUTO):
        found = "has a config of its own"
        raise ConfigError(f"--encoder {encoder}", found, "leave out --base and --size")


def _choose_for_base(base: Path) -> ConfigChoice:
    check_base(base)
    path = resolve_model(base) / "train.yaml"
    return ConfigChoice(
        path=path,
        file_settings=read_yaml(path),
        start="trained model",
        reason="of the model of --base",
    )


def _choose_for_encoder(
    config: Path,
    encoder: Path,
    outputs: Path | None,
    chosen_before: str | None,
) -> ConfigChoice:
    description = read_description(encoder)
    weight_files(encoder)  # raises now, not after the lists are made
    path = config
    reason = "named by --config"
    if is_own(config) and chosen_before is not None:
        path = conf_file(chosen_before)
        reason = "that was chosen for this encoder before"
    elif is_own(config):
        path = conf_file(_config_on_this_machine(description))
        reason = _reason_on_this_machine(description)
    file_settings = read_yaml(path)
    settings = _settings_of_encoder(file_settings, path, encoder, outputs, description)
    return ConfigChoice(
        path=path,
        file_settings=file_settings,
        settings=tuple(settings),
        start="pretrained encoder",
        reason=reason,
    )


def _config_on_this_machine(description: EncoderDescription) -> str:
    if description.has_language_adapters:  # new adapters in a frozen encoder would be noise
        return MMS_CONFIG
    if not torch.cuda.is_available():
        return FROZEN_CONFIG
    return CONFIG_BY_KIND.get(description.kind, WAVEFORM_CONFIG)


def _reason_on_this_machine(description: EncoderDescription) -> str:
    if description.has_language_adapters:
        return "of encoders with language adapters (MMS), on any machine"
    if not torch.cuda.is_available():
        return "of encoders that are not trained, as there is no GPU here"
    return f"of encoders of the kind {description.kind}, as there is a GPU here"


def _settings_of_encoder(
    file_settings: Settings,
    path: Path,
    encoder: Path,
    outputs: Path | None,
    description: EncoderDescription,
) -> Sequence[str]:
    """The settings of a config that follow from the folder of the encoder.

    `path`: the file of the config, for errors.
    Raises ConfigError if the config has no pretrained encoder.
    """
    config = make_config(file_settings, (), ExperimentConfig)
    if not isinstance(config.encoder_conf, PretrainedConf):
        to_do = "give a YAML with encoder: pretrained, or no --encoder"
        raise ConfigError(path, f"encoder: {config.encoder}", to_do)
    settings = [f"encoder_conf.path={encoder}"]
    if config.encoder_conf.cache is not None and outputs is not None:
        settings.append(f"encoder_conf.cache={outputs}")
    if description.has_language_adapters and config.encoder_conf.adapter is None:
        settings.append("encoder_conf.adapter=new")
    return settings
