# SPDX-License-Identifier: Apache-2.0
"""Translation of WeNet's settings into those of the schema.

`wenet_keys` has the tables of keys that are ignored, or that must have a certain value.
"""

from typing import Any

from wenet_hs.config.wenet_keys import (
    IGNORED_KEYS,
    KINDS_OF_MODELS,
    OF_TRAINING_ONLY,
    ONLY_VALUES,
    OnlyValues,
    Scalar,
)
from wenet_hs.config.yaml_file import Settings, describe


def translate_wenet_keys(settings: Settings, *, is_for_training: bool) -> dict[str, list[str]]:
    """Change the settings of a YAML file so that the schema can read them if it is one of WeNet.

    Settings that the schema has in another form are converted, and WeNet's other settings are
    removed. A fault is added for each of them with a value that is not supported.
    `is_for_training`: False for a trained model, for which settings of training may have any value.
    Returns the keys that were removed because they have no effect, by the reason.
    """
    _move_cmvn_file(settings)
    _translate_phones(settings.values)
    _translate_learning_rates(settings.values)
    ignored = _remove_ignored_keys(settings.values)
    _remove_only_values(settings, is_for_training=is_for_training)
    return ignored


def _move_cmvn_file(settings: Settings) -> None:
    """Move `cmvn_file` into the section `cmvn_conf`; before 2023-12 WeNet had it outside."""
    values = settings.values
    if values.get("cmvn_file") is None or "cmvn_conf" in values:
        return
    values["cmvn"] = "global_cmvn"
    values["cmvn_conf"] = {"cmvn_file": values.pop("cmvn_file")}
    place = settings.places[("cmvn_file",)]
    for location in (("cmvn",), ("cmvn_conf",), ("cmvn_conf", "cmvn_file")):
        settings.places[location] = place


def _translate_phones(values: dict[str, Any]) -> None:
    """Set `tokenizer: phone` where WeNet has characters that are split at spaces.

    The settings of WeNet that `tokenizer: phone` implies are removed: `split_with_space`, and
    `connect_symbol` if it is a space.
    """
    conf = _section(values, "tokenizer_conf")
    has_characters = values.get("tokenizer", "char") == "char"
    if has_characters and conf.get("split_with_space") is True:
        values["tokenizer"] = "phone"
    if values.get("tokenizer") == "phone":
        conf.pop("split_with_space", None)
        if conf.get("connect_symbol") == " ":
            del conf["connect_symbol"]


def _translate_learning_rates(values: dict[str, Any]) -> None:
    """Convert WeNet's list of learning rates: of each of `modules`, then of all other parameters.

    `modules: [a, b]` and `lr: [1, 2, 3]` become `lr: 3` and `lr_of: {a: 1, b: 2}`. Anything else,
    such as another number of rates, stays as it is: later checks refuse it.
    """
    conf = _section(values, "optim_conf")
    modules = conf.get("modules")
    rates = conf.get("lr")
    if not (isinstance(modules, list) and isinstance(rates, list)):
        return
    if len(rates) == len(modules) + 1:
        *rates_of_modules, rate_of_others = rates
        del conf["modules"]
        conf["lr"] = rate_of_others
        conf["lr_of"] = dict(zip(modules, rates_of_modules, strict=True))


def _remove_ignored_keys(values: dict[str, Any]) -> dict[str, list[str]]:
    """Remove the IGNORED_KEYS from the settings; returns those that were there, by the reason."""
    removed: dict[str, list[str]] = {}
    for dotted, reason in IGNORED_KEYS.items():
        *section_names, key = dotted.split(".")
        section = _section(values, *section_names)
        if key in section:
            del section[key]
            removed.setdefault(reason, []).append(dotted)
    return removed


def _remove_only_values(settings: Settings, *, is_for_training: bool) -> None:
    """Remove the keys of ONLY_VALUES, and add a fault for each with an unsupported value.

    For a trained model the settings of OF_TRAINING_ONLY may have any value.
    """
    for dotted, only_values in ONLY_VALUES.items():
        *section_names, key = dotted.split(".")
        section = _section(settings.values, *section_names)
        if key not in section:
            continue
        value = section.pop(key)
        is_used = is_for_training or dotted not in OF_TRAINING_ONLY
        if is_used and not _is_accepted(value, only_values.accepted):
            found = f"{describe(value)} is not supported ({only_values.reason})"
            fault = f"{dotted}: {found}; {_what_to_do_without(dotted, only_values)}"
            settings.faults.append((settings.place_of((*section_names, key)), fault))


def _is_accepted(value: Any, accepted: tuple[Scalar, ...]) -> bool:
    """Whether a value is one of the accepted ones; true is not 1, as Python would have it."""
    return any(
        value == supported and isinstance(value, bool) == isinstance(supported, bool)
        for supported in accepted
    )


def _what_to_do_without(dotted: str, only_values: OnlyValues) -> str:
    """What to do about a setting of WeNet with a value that is not supported, for a message."""
    if dotted in KINDS_OF_MODELS:
        return "a model of this kind cannot be read"
    supported = only_values.accepted[0]
    if supported is None:
        return "remove it"
    return f"remove it or set {describe(supported)}"


def _section(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """The section that these names lead to, which can be changed; a new empty one if there is none.

    Without names: all settings.
    """
    section: Any = values
    for name in names:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}
