# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of configs: YAML file and overrides → a TrainingConfig.

Whatever is wrong is one ConfigError, which lists all faults.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from pydantic import ValidationError

from wenet_hs.base.files import one_field
from wenet_hs.config.extensions import (
    EXTENSIONS,
    NeededExtension,
    NeededExtensions,
    check_installed,
    describe_extensions,
)
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.config.schema_faults import schema_faults
from wenet_hs.config.section import Section, schema_settings
from wenet_hs.config.wenet_translation import translate_wenet_keys
from wenet_hs.config.yaml_file import (
    CONSTANTS,
    Location,
    Place,
    Settings,
    dump_yaml,
    parse_yaml,
    read_yaml,
)
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=TrainingConfig)
AnySection = TypeVar("AnySection", bound=Section)
_OVERRIDE = re.compile(r"\s*([^\s=]+)(?:\s*=\s*|\s+)(.*)", re.DOTALL)
"""`section.key=value` or `section.key value`: the groups are the key and the value."""


class SettingChange(NamedTuple):
    """A setting that differs between two configs."""

    key: str
    """With dots, such as `optim_conf.lr`."""
    old: Any
    """None also if the old config does not have the setting."""
    new: Any
    """None also if the new config does not have the setting."""


# ---- reading


@overload
def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, is_for_training: bool = True
) -> ExperimentConfig: ...
@overload
def load_config(path: Path | str, overrides: Sequence[str], kind: type[Config]) -> Config: ...
def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    kind: type[TrainingConfig] = ExperimentConfig,
    *,
    is_for_training: bool = True,
) -> TrainingConfig:
    """Read the config of a training.

    WeNet's YAML files load too; one warning lists settings that have no effect.

    Args:
        path: the YAML file.
        overrides: `section.key=value` (or WeNet's `section.key value`); later ones win. The value
            is in YAML; a setting whose type is text takes the characters as they are written,
            except `null`.
        kind: the class of the config: that of a recogniser, or `LmConfig`.
        is_for_training: False for the train.yaml of a trained model: WeNet's settings that only a
            training uses are dropped without a warning or a fault.

    Raises ConfigError with one line per fault: `file:line: dotted.key: …`, or the override instead
    of the file. Settings that conflict with each other are faults once all their sections are
    valid. If the file lists names of packages that are not installed, there is one line for each of
    them instead.
    """
    return make_config(read_yaml(path), overrides, kind, is_for_training=is_for_training)


def make_config(
    file_settings: Settings,
    overrides: Sequence[str],
    kind: type[Config],
    *,
    is_for_training: bool = True,
) -> Config:
    """The config of a YAML file that is read already. `file_settings` stays as it is.

    The overrides are applied, WeNet's settings are translated for a recogniser, and all is checked.
    One warning lists WeNet's settings that have no effect, unless `is_for_training` is False.
    `load_config` describes the arguments.

    Raises ConfigError with one line per fault. If the file is of the other kind of model, or needs
    packages that are not installed, it raises a ConfigError about that instead.
    """
    settings = file_settings.copy()
    path = settings.places[()].source
    _check_kind(path, settings.values, kind)
    needed_extensions = _pop_extensions(settings)
    for override in overrides:
        _apply_override(settings, override, kind)
    check_installed(path, needed_extensions, settings.values)
    ignored_keys: dict[str, list[str]] = {}
    if kind is ExperimentConfig:
        ignored_keys = translate_wenet_keys(settings, is_for_training=is_for_training)
    config = _validate(settings, kind)
    if ignored_keys and is_for_training:
        groups = [f"{', '.join(keys)} ({reason})" for reason, keys in ignored_keys.items()]
        logger.warning("%s: settings of WeNet without effect here: %s", path, "; ".join(groups))
    return config


def is_language_model(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a YAML file are those of a language model."""
    return "rnn" in settings


def _check_kind(path: str, settings: Mapping[str, Any], kind: type[TrainingConfig]) -> None:
    """Raise ConfigError if the settings are those of the other kind of model.

    A recogniser has the setting `encoder`, a language model `rnn`, neither has both.
    """
    if kind is ExperimentConfig and "rnn" in settings:
        found = "`rnn` is a setting of a language model"
        raise ConfigError(path, found, "give the file or folder of a recogniser")
    if kind is not ExperimentConfig and "encoder" in settings:
        found = "`encoder` is a setting of a recogniser"
        raise ConfigError(path, found, "give the file or folder of a language model")


def _pop_extensions(settings: Settings) -> tuple[NeededExtension, ...]:
    """Remove the list of extensions that a config needs from its settings, and return it.

    Empty if there is no list. Raises ConfigError with a line per fault in it.
    """
    if EXTENSIONS not in settings.values:
        return ()
    entries = settings.values.pop(EXTENSIONS)
    list_settings = Settings({EXTENSIONS: entries}, settings.places)
    return _validate(list_settings, NeededExtensions).extensions


def load_section(path: Path | str, kind: type[AnySection]) -> AnySection:
    """Read a YAML file that is no config, such as a table of sizes, by the same rules.

    Raises ConfigError with one line per fault: `file:line: dotted.key: …`.
    """
    return _validate(read_yaml(path), kind)


def _validate(settings: Settings, kind: type[AnySection]) -> AnySection:
    """The section of a class that has these settings.

    Raises ConfigError with one line per fault: by line those of the file, then those of overrides.
    These are the faults that `settings` has already, and those that the class finds; the latter are
    added to `settings`.
    """
    section = None
    try:
        section = kind.model_validate(settings.values)
    except ValidationError as error:
        for location, text in schema_faults(error, kind):
            fault = f"{_dotted(location)}: {text}"
            settings.faults.append((settings.place_of(location), fault))
    if section is None or settings.faults:
        raise _faults_error(settings.faults)
    return section


def _faults_error(faults: Iterable[tuple[Place, str]]) -> ConfigError:
    """The error that lists faults, each once, in the order of their lines."""
    lines = [one_field(f"{place}: {text}") for place, text in sorted(faults, key=_by_line)]
    return ConfigError("\n".join(dict.fromkeys(lines)))


def _by_line(fault: tuple[Place, str]) -> tuple[bool, int]:
    """The key that sorts faults by their line; those of overrides, which have none, are last."""
    place, _ = fault
    if place.line is None:
        return True, 0
    return False, place.line


def _dotted(location: Location) -> str:
    """The keys and indices of a setting as one text: `batch_conf.sizes[2]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


# ---- overrides


def override_key(override: str) -> str | None:
    """The dotted key of an override, such as `optim_conf.lr`; None if the override is malformed."""
    match = _OVERRIDE.fullmatch(override)
    return None if match is None else match[1]


def written_setting(file_settings: Settings, overrides: Sequence[str], name: str) -> Any:
    """A setting outside of all sections, as the last override has it, else the YAML file.

    The value of an override is its text. Nothing is checked. None if it is absent.
    """
    value = file_settings.values.get(name)
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is not None and match[1] == name:
            value = match[2].strip()
    return value


def _apply_override(settings: Settings, override: str, kind: type[TrainingConfig]) -> None:
    """Change the settings by one override. If it is wrong, add a fault instead.

    `kind`: the class of the config, by which settings whose type is text are known.
    """
    place = Place(one_field(f"--override_config {override}"))
    try:
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            raise ConfigError(place, "no value", "write it as section.key=value")
        key, text = match.groups()
        location = tuple(key.split("."))
        value = _parse_value(text, place, is_text=_is_text(kind, location))
        _set_value(settings, location, value)
    except ConfigError as error:
        fault = str(error).removeprefix(f"{place}: ")
        settings.faults.append((place, fault))


def _is_text(kind: type[TrainingConfig], location: tuple[str, ...]) -> bool:
    """Whether the type of a setting is text, or text and null."""
    types = dict(schema_settings(kind))
    return types.get(location) in (str, str | None)


def _parse_value(text: str, place: Place, *, is_text: bool) -> Settings:
    """The value of an override, with `place` as the place of all that is in it.

    The text is read as YAML. But the value of a setting whose type is text (`is_text`) is the text
    as it is, except null: a path may contain `#`, `: ` and `[`.

    Raises ConfigError if the text is not YAML.
    """
    is_null = text in CONSTANTS and CONSTANTS[text] is None
    if is_text and not is_null:
        return Settings(text, {(): place})
    return parse_yaml(text, place)


def _set_value(settings: Settings, location: tuple[str, ...], value: Settings) -> None:
    """Set one setting to the value of an override, with its places and its faults.

    Sections on the way that are absent or null are made.
    Raises ConfigError if something on the way is not a section.
    """
    place = value.places[()]
    section = settings.values
    for depth, name in enumerate(location[:-1], start=1):
        if section.get(name) is None:
            section[name] = {}
            settings.places.setdefault(location[:depth], place)
        section = section[name]
        if not isinstance(section, dict):
            found = f"{'.'.join(location)}: {name} is not a section"
            raise ConfigError(place, found, "write it as section.key=value")
    section[location[-1]] = value.values
    # The places inside of the old value are not valid any more.
    places: dict[Location, Place] = {}
    for other_location, other_place in settings.places.items():
        is_in_old_value = other_location[: len(location)] == location
        if not is_in_old_value:
            places[other_location] = other_place
    for inner_location in value.places:
        places[*location, *inner_location] = place
    settings.places = places
    settings.faults += value.faults


# ---- writing and comparing


def dump_config(config: TrainingConfig, path: Path | str) -> None:
    """Write every setting of a config to a YAML file, which `load_config` reads as an equal config.

    The file also lists the packages that it needs for that.
    """
    settings = config.model_dump(mode="json")
    extensions = describe_extensions(config.extensions())
    if extensions:
        settings = {EXTENSIONS: extensions, **settings}
    write_atomic(path, f"# Every setting of this experiment, as it was run.\n{dump_yaml(settings)}")


def config_changes(old: TrainingConfig, new: TrainingConfig) -> list[SettingChange]:
    """Each setting that differs: those of the old config in their order, then new ones."""
    old_values = flatten(old.model_dump(mode="json"))
    new_values = flatten(new.model_dump(mode="json"))
    changes = []
    for key in old_values | new_values:
        change = SettingChange(key, old=old_values.get(key), new=new_values.get(key))
        if change.old != change.new:
            changes.append(change)
    return changes


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dictionary with dotted keys, which begin with `prefix`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
