# SPDX-License-Identifier: Apache-2.0
"""The config of a training: by `--config`, `--base` and `--encoder`, and by the machine."""

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
"""For an encoder of any kind that is not trained: its outputs are computed once."""
MMS_CONFIG = "finetune_mms.yaml"
"""For an encoder with language adapters."""
WAVEFORM_CONFIG = "finetune_wav2vec2.yaml"
"""For a trained encoder whose kind is not in CONFIG_BY_KIND; its input is the waveform."""
CONFIG_BY_KIND = {"whisper": FROZEN_CONFIG, "wav2vec2-bert": "finetune_w2vbert.yaml"}
"""Kind of a pretrained encoder → its config on a machine with a GPU."""

NAMED_BY_USER = "named by --config"
"""The reason of a choice that the user has made."""
WeightsOrigin = Literal["random weights", "trained model", "pretrained encoder"]
"""From what a training starts."""


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """The config that a training begins with."""

    path: Path
    """The YAML."""
    file_settings: Settings
    """The content of the YAML, so that it is read only once."""
    settings: tuple[str, ...] = ()
    """The settings that follow from a pretrained encoder, as `key=value`; empty without one."""
    start: WeightsOrigin
    reason: str
    """Why this YAML, such as `named by --config` or `the config of the model of --base`."""


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

    With `base` it is the train.yaml of that model. With `encoder`, if `config` is the default, it
    is the config for this encoder on this machine. Otherwise it is `config`.

    Args:
        config: the YAML that `--config` names; conf/own.yaml is its default in recipes.
        base: folder of a trained model from which the training starts; None: there is none.
        encoder: folder of a pretrained encoder; None: there is none.
        size: as `--size` names it.
        outputs: folder for the outputs of a frozen encoder; None: the one of the config.
        chosen_before: the name of the config that was chosen for this encoder before, perhaps on
            another machine. It is chosen again. None: none was chosen.
    Raises: ConfigError if the options exclude each other, the folder of `base` has no model, the
        YAML cannot be read, or it has no pretrained encoder; ConfigError or CheckpointError if the
        folder of `encoder` cannot be read.
    """
    _refuse_conflicts(config, base, encoder, size)
    if base is not None:
        return _choose_for_base(base)
    if encoder is not None:
        return _choose_for_encoder(config, encoder, outputs, chosen_before)
    return _choose_for_random_weights(config)


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
    """Raise ConfigError for options that exclude each other.

    `--base` has a config itself, and excludes another `--config`. `--encoder` decides about the
    first weights and the size, and excludes `--base` and `--size`.
    """
    if base is not None and not is_own(config):
        fault = "--base has the settings"
        raise ConfigError(f"--config {config}", fault, "change them with --override")
    if encoder is not None and (base is not None or size != AUTO):
        fault = "has a config of its own"
        raise ConfigError(f"--encoder {encoder}", fault, "leave out --base and --size")


def _choose_for_random_weights(config: Path) -> ConfigChoice:
    """The config that `--config` names, which is conf/own.yaml by default."""
    reason = NAMED_BY_USER
    if is_own(config):
        reason = "the config of models that are trained from random weights"
    return ConfigChoice(
        path=config,
        file_settings=read_yaml(config),
        start="random weights",
        reason=reason,
    )


def _choose_for_base(base: Path) -> ConfigChoice:
    """The config of a trained model. Raises ConfigError if the folder has none."""
    check_base(base)
    path = resolve_model(base) / "train.yaml"
    return ConfigChoice(
        path=path,
        file_settings=read_yaml(path),
        start="trained model",
        reason="the config of the model of --base",
    )


def _choose_for_encoder(
    config: Path,
    encoder: Path,
    outputs: Path | None,
    chosen_before: str | None,
) -> ConfigChoice:
    """The config for a pretrained encoder, with the settings that follow from the encoder.

    It is the YAML that `--config` names, if that is not the default; otherwise the one that was
    chosen before, if any; otherwise the one for the kind of encoder and this machine.

    Raises ConfigError or CheckpointError if the folder of the encoder cannot be read, ConfigError
    if the YAML cannot be read or has no pretrained encoder.
    """
    description = read_description(encoder)
    weight_files(encoder)  # raises now if there are none, and not after the lists are made
    if not is_own(config):
        path = config
        reason = NAMED_BY_USER
    elif chosen_before is not None:
        path = conf_file(chosen_before)
        reason = "the config that was chosen for this encoder before"
    else:
        path = conf_file(_config_on_this_machine(description))
        reason = _reason_on_this_machine(description)
    file_settings = read_yaml(path)
    settings = _settings_of_encoder(file_settings, path, encoder, outputs, description)
    return ConfigChoice(
        path=path,
        file_settings=file_settings,
        settings=settings,
        start="pretrained encoder",
        reason=reason,
    )


def _config_on_this_machine(description: EncoderDescription) -> str:
    """The name of the config for an encoder: whether it is trained depends on the GPU."""
    if description.has_language_adapters:
        # Not the config of a frozen encoder: new adapters in it would stay random.
        return MMS_CONFIG
    if not torch.cuda.is_available():
        return FROZEN_CONFIG
    return CONFIG_BY_KIND.get(description.kind, WAVEFORM_CONFIG)


def _reason_on_this_machine(description: EncoderDescription) -> str:
    """Why `_config_on_this_machine` returns its config."""
    if description.has_language_adapters:
        return "the config of encoders with language adapters (MMS), on any machine"
    if not torch.cuda.is_available():
        return "the config of encoders that are not trained, as there is no GPU here"
    return f"the config of encoders of the kind {description.kind}, as there is a GPU here"


def _settings_of_encoder(
    file_settings: Settings,
    path: Path,
    encoder: Path,
    outputs: Path | None,
    description: EncoderDescription,
) -> tuple[str, ...]:
    """The settings of a config that follow from the folder of the encoder, as `key=value`.

    They are the folder, the folder of its outputs if the config keeps them, and a new language
    adapter if the encoder has language adapters and the config names none.

    Args:
        file_settings: the content of the config.
        path: the file of the config, for errors.
        encoder: the folder of the encoder.
        outputs: folder for the outputs of a frozen encoder; None: the one of the config.
        description: of the encoder.
    Raises: ConfigError if the config has no pretrained encoder.
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
    return tuple(settings)
