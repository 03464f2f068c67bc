# SPDX-License-Identifier: Apache-2.0
"""YAML file → ExperimentConfig, or one ConfigError with a line for every fault; and back to the resolved train.yaml."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from wenet_hs.config.faults import faults_of
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.wenet_keys import translate_wenet_config
from wenet_hs.config.yaml_source import Fault, Node, Place, one_line, parse_yaml, read_yaml, resolve_scalar
from wenet_hs.errors import ConfigError
from wenet_hs.files import write_atomic

logger = logging.getLogger(__name__)

_NONE: Mapping[str, str] = MappingProxyType({})
_OVERRIDE = re.compile(r"\s*([^\s=]+)(?:\s*=\s*|\s+)(.*)", re.DOTALL)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read an experiment; WeNet's YAML files load too, what has no effect here is named in one warning.

    Args:
        path: the YAML file.
        overrides: `section.key=value` (or WeNet's `section.key value`), the value in YAML; later ones win.

    Raises ConfigError with a line for each fault: `file:line: dotted.key: …`, or the override in place of the file.
    """
    root, faults = read_yaml(path)
    for override in overrides:
        root = _overridden(root, override, faults)
    root, refused, idle = translate_wenet_config(root)
    faults += refused
    try:
        config = ExperimentConfig.model_validate(root.plain())
    except ValidationError as error:
        faults += faults_of(error, root)
    if faults:
        lines = dict.fromkeys(str(fault) for fault in sorted(faults, key=_reading_order))
        raise ConfigError("\n".join(lines))
    if idle:
        named = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in idle.items())
        logger.warning("%s: settings of WeNet without effect here: %s", path, named)
    return config


def dump_config(config: ExperimentConfig, path: Path | str, provenance: Mapping[str, str] = _NONE) -> None:
    """Write every setting, so that `load_config` gives an equal config; `provenance` replaces the config's own."""
    if provenance:  # a command line may hold bytes that are not UTF-8
        escaped = {key: text.encode("utf-8", "backslashreplace").decode("utf-8") for key, text in provenance.items()}
        config = config.model_copy(update={"provenance": escaped})
    settings = config.model_dump(mode="json")
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    write_atomic(path, f"# Every setting of this experiment, as it was run.\n{text}")


def config_changes(old: ExperimentConfig, new: ExperimentConfig) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of each setting that differs, None where there is none; no provenance."""
    before = dict(_flat(old.model_dump(mode="json", exclude={"provenance"})))
    after = dict(_flat(new.model_dump(mode="json", exclude={"provenance"})))
    pairs = ((key, before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after]))
    return [(key, was, is_now) for key, was, is_now in pairs if was != is_now]


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _reading_order(fault: Fault) -> tuple[bool, int]:
    return (fault.place.line is None, fault.place.line or 0)


def _overridden(root: Node, override: str, faults: list[Fault]) -> Node:
    """The root with one override applied, or as it was with one more fault."""
    place = Place(one_line(f"--override_config {override}"))
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        faults.append(Fault(place, "no value; write it as section.key=value"))
        return root
    try:
        value, more = parse_yaml(match[2], place)
    except ConfigError as error:
        faults.append(Fault(place, str(error).removeprefix(f"{place}: ")))
        return root
    faults += more
    keys = match[1].split(".")
    changed = _with_value(root, keys, Node(value.value, place))
    if changed is None:
        faults.append(Fault(place, f"{match[1]}: no section holds this key; write it as section.key=value"))
    return changed or root


def _with_value(section: Node, keys: Sequence[str], value: Node) -> Node | None:
    """The section with the value under `keys`; None if a value stands where a section must be."""
    if not keys:
        return value
    inside = {} if section.value is None else section.value
    if not isinstance(inside, dict):
        return None
    inner = inside.get(keys[0], Node(None, value.place))
    changed = _with_value(inner, keys[1:], value)
    return None if changed is None else Node({**inside, keys[0]: changed}, section.place)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that our reader would take for something else, and repeats values instead of aliasing them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and isinstance(resolve_scalar(text), str)  # other styles change U+0085 and its kin
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)
