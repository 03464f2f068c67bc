# SPDX-License-Identifier: Apache-2.0
"""Reads and writes configs: YAML file and overrides → a TrainingConfig, or one ConfigError that
lists the faults.
"""

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, overload

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
from wenet_hs.config.section import Section
from wenet_hs.config.wenet_keys import (
    IGNORED_KEYS,
    KINDS_OF_MODELS,
    OF_TRAINING_ONLY,
    ONLY_VALUES,
    RENAMED_KEYS,
    Scalar,
)
from wenet_hs.config.yaml_file import (
    CONSTANTS,
    Location,
    Place,
    Settings,
    describe,
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


_MODELS = {"encoder": "recogniser", "rnn": "language model"}
"""A section that only one kind of config has → what it describes."""


# ---- reading and writing configs


def is_language_model(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a YAML file are those of a language model."""
    return "rnn" in settings


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
    """Reads the config of a training.

    WeNet's YAML files load too; one warning lists settings that have no effect.

    Args:
        path: the YAML file.
        overrides: `section.key=value` (or WeNet's `section.key value`); later ones win. The value
            is in YAML; a setting whose type is text takes the characters as they are written,
            except `null`.
        kind: of a recogniser, or `LmConfig`.
        is_for_training: False for the train.yaml of a trained model: WeNet's settings that only a
            training uses are dropped without a word.

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

    For the arguments and errors see `load_config`.
    """
    settings = file_settings.copy()
    path = settings.places[()].source
    own, other = ("encoder", "rnn") if kind is ExperimentConfig else ("rnn", "encoder")
    if other in settings.values:
        found = f"`{other}` is a setting of a {_MODELS[other]}"
        raise ConfigError(path, found, f"give the file or folder of a {_MODELS[own]}")
    needed = _pop_extensions(settings)
    for override in overrides:
        _apply_override(settings, override, kind)
    check_installed(path, needed, settings.values)
    ignored = (
        _translate_wenet_keys(settings, is_for_training=is_for_training)
        if kind is ExperimentConfig
        else {}
    )
    config = _validate(settings, kind)
    if ignored and is_for_training:
        listed = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in ignored.items())
        logger.warning("%s: settings of WeNet without effect here: %s", path, listed)
    return config


def _pop_extensions(settings: Settings) -> tuple[NeededExtension, ...]:
    """Remove the list of packages from the settings.

    Raises ConfigError with a line per fault in it.
    """
    if EXTENSIONS not in settings.values:
        return ()
    listed = {EXTENSIONS: settings.values.pop(EXTENSIONS)}
    return _validate(Settings(listed, settings.places), NeededExtensions).extensions


def dump_config(config: TrainingConfig, path: Path | str) -> None:
    """Writes every setting, so that `load_config` gives an equal config, and the packages that it
    needs for that.
    """
    settings = config.model_dump(mode="json")
    extensions = describe_extensions(config.extensions())
    if extensions:
        settings = {EXTENSIONS: extensions, **settings}
    write_atomic(path, f"# Every setting of this experiment, as it was run.\n{dump_yaml(settings)}")


def config_changes(old: TrainingConfig, new: TrainingConfig) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of each setting that differs; None for an absent one."""
    before = flatten(old.model_dump(mode="json"))
    after = flatten(new.model_dump(mode="json"))
    changes = ((key, before.get(key), after.get(key)) for key in before | after)
    return [change for change in changes if change[1] != change[2]]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dictionary with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat


def load_section(path: Path | str, kind: type[AnySection]) -> AnySection:
    """Reads a YAML file by the same rules that is no config, such as a table of sizes.

    Raises ConfigError with one line per fault: `file:line: dotted.key: …`.
    """
    return _validate(read_yaml(path), kind)


def written_setting(file_settings: Settings, overrides: Sequence[str], name: str) -> Any:
    """A setting at the top of a YAML file that is read already, or of the last override that has
    it.

    Nothing is checked. None: absent.
    """
    value = file_settings.values.get(name)
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is not None and match[1] == name:
            value = match[2].strip()
    return value


def override_key(override: str) -> str | None:
    """The dotted key of an override, such as `optim_conf.lr`; None if the override is malformed."""
    match = _OVERRIDE.fullmatch(override)
    return None if match is None else match[1]


def _validate(settings: Settings, kind: type[AnySection]) -> AnySection:
    """The settings as a section; adds what is wrong to the faults of the settings.

    Raises ConfigError with one line per fault: by line those of the file, then those of overrides.
    """
    section = None
    try:
        section = kind.model_validate(settings.values)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            for location, text in _schema_faults(item, kind):
                fault = f"{_dotted(location)}: {text}"
                settings.faults.append((settings.place_of(location), fault))
    if settings.faults or section is None:
        in_order = sorted(settings.faults, key=_by_line)
        lines = [one_field(f"{place}: {text}") for place, text in in_order]
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    return section


def _dotted(location: Location) -> str:
    """The keys and indices of a setting as one text: `batch_conf.sizes[2]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _by_line(fault: tuple[Place, str]) -> tuple[bool, int]:
    """The key that sorts faults by their line; those of overrides, which have none, are last."""
    line = fault[0].line
    return line is None, line or 0


def _apply_override(settings: Settings, override: str, kind: type[TrainingConfig]) -> None:
    """Changes the settings by one override, or adds a fault."""
    place = Place(one_field(f"--override_config {override}"))
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        settings.faults.append((place, "no value; write it as section.key=value"))
        return
    location = tuple(match[1].split("."))
    is_text = dict(_schema_settings(kind)).get(location) in (str, str | None)
    try:  # a path may contain `#`, `: ` and `[`
        is_null = CONSTANTS.get(match[2], match[2]) is None
        new = (
            Settings(match[2], {(): place})
            if is_text and not is_null
            else parse_yaml(match[2], place)
        )
    except ConfigError as error:
        settings.faults.append((place, str(error).removeprefix(f"{place}: ")))
        return
    section = settings.values
    for end, name in enumerate(location[:-1], start=1):
        if section.get(name) is None:
            section[name] = {}
            settings.places.setdefault(location[:end], place)
        section = section[name]
        if not isinstance(section, dict):
            settings.faults.append(
                (place, f"{match[1]}: {name} is not a section; write it as section.key=value")
            )
            return
    section[location[-1]] = new.values
    kept = {
        known: at for known, at in settings.places.items() if known[: len(location)] != location
    }
    settings.places = kept | {(*location, *inner): place for inner in new.places}
    settings.faults += new.faults


# ---- WeNet's settings


def _translate_wenet_keys(settings: Settings, *, is_for_training: bool) -> dict[str, list[str]]:
    """Removes WeNet's other keys from the settings, and converts what the schema has in another
    form.

    Adds a fault per unsupported value. Returns the ignored keys, grouped by the reason.
    """
    values, ignored = settings.values, dict[str, list[str]]()
    if (
        values.get("cmvn_file") is not None and "cmvn_conf" not in values
    ):  # outside of any section before 2023-12
        values |= {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": values.pop("cmvn_file")}}
        new = (("cmvn",), ("cmvn_conf",), ("cmvn_conf", "cmvn_file"))
        settings.places |= dict.fromkeys(new, settings.places[("cmvn_file",)])
    conf = _section(
        values, "tokenizer_conf"
    )  # WeNet splits characters at spaces for phones, and joins with a space
    if values.get("tokenizer", "char") == "char" and conf.get("split_with_space") is True:
        values["tokenizer"] = "phone"
    if values.get("tokenizer") == "phone":
        conf.pop("split_with_space", None)
        if conf.get("connect_symbol") == " ":
            del conf["connect_symbol"]
    conf = _section(
        values, "optim_conf"
    )  # WeNet's list of rates: of each module, then of all other parameters
    parts, rates = conf.get("modules"), conf.get("lr")
    if isinstance(parts, list) and isinstance(rates, list) and len(rates) == len(parts) + 1:
        conf |= {"lr": rates[-1], "lr_of": dict(zip(conf.pop("modules"), rates, strict=False))}
    for dotted in (*IGNORED_KEYS, *ONLY_VALUES):
        *names, key = dotted.split(".")
        section = _section(values, *names)
        if key not in section:
            continue
        value = section.pop(key)
        if dotted in IGNORED_KEYS:
            ignored.setdefault(IGNORED_KEYS[dotted], []).append(dotted)
            continue
        if dotted in OF_TRAINING_ONLY and not is_for_training:
            continue
        accepted, reason = ONLY_VALUES[dotted]
        if not any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted
        ):
            what_to_do = _what_to_do_without(dotted, accepted)
            text = f"{dotted}: {describe(value)} is not supported ({reason}); {what_to_do}"
            settings.faults.append((settings.place_of((*names, key)), text))
    return ignored


def _what_to_do_without(dotted: str, accepted: Sequence[Scalar]) -> str:
    """What to do about an unsupported value of a setting of WeNet.

    `accepted`: the values that are supported.
    """
    if dotted in KINDS_OF_MODELS:
        return "a model of this kind cannot be read"
    if accepted[0] is None:
        return "remove it"
    return f"remove it or set {describe(accepted[0])}"


def _section(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """The section of these names, or an empty one where there is none."""
    section: Any = values
    for name in names:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


# ---- pydantic's errors as faults

_EXPECTED = {
    "bool_type": "must be true or false",
    "dict_type": "must be a section of `key: value` lines",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "model_type": "must be a section of `key: value` lines",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be of letters, digits and . _ + ! -",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""Kind of pydantic's error → what the value must be, in the words of YAML."""


def _schema_faults(item: Any, kind_of_config: type[Section]) -> Iterator[tuple[Location, str]]:
    """The faults in one error of pydantic: where, what is expected and what was found."""
    kind, location, context, value = item["type"], item["loc"], item.get("ctx", {}), item["input"]
    if location and location[-1] == "[key]":  # a dict whose keys are a closed set
        kind, location = "extra_forbidden", location[:-1]
    or_count = ""
    # A setting that is a name or a number has an error for each of its types; the one about the
    # names is shown.
    if location and str(location[-1]).startswith("constrained-int"):
        return
    if location and str(location[-1]).startswith("literal["):
        location, or_count = location[:-1], " or a whole number above 0"
    match kind:
        case "conflicts":
            yield from (((*location, *key.split(".")), text) for key, text in context["conflicts"])
        case "extra_forbidden":
            yield (
                location,
                _unknown_key(
                    kind_of_config, location, re.findall(r"'([^']*)'", context.get("expected", ""))
                ),
            )
        case "missing":
            is_tree = location[-2:] == ("head_conf", "tree")
            yield location, "missing; make one with `wenet-hs tree build`" if is_tree else "missing"
        case "literal_error":
            choices = ", ".join(re.findall(r"'([^']*)'", context["expected"]))
            yield location, f"must be one of {choices}{or_count}, got {describe(value)}"
        case "too_long":
            yield (
                location,
                f"must have {context['max_length']} values, got {context['actual_length']}",
            )
        case _:
            expected = _EXPECTED.get(kind, item["msg"].replace("Input should be", "must be"))
            plain = expected.replace("greater than or equal to", "at least").replace(
                "less than or equal to", "at most"
            )
            yield location, f"{plain}, got {describe(value)}"


def _unknown_key(config: type[Section], location: Location, names: Sequence[str]) -> str:
    """The message for an unknown key.

    It names the same key of another section, else a similar one of this section.
    """
    *section, name = map(str, location)
    keys = [
        *schema_keys(config),
        *(tuple(dotted.split(".")) for dotted in (*IGNORED_KEYS, *ONLY_VALUES)),
    ]
    own = {*names, *(key[-1] for key in keys if list(key[:-1]) == section)}
    if name in own:
        return f"not a key of this {section[-1].removesuffix('_conf')}; remove it"
    near = (
        [RENAMED_KEYS[name]]
        if name in RENAMED_KEYS
        else [".".join(key) for key in keys if key[-1] == name]
    )
    near = near or difflib.get_close_matches(name, sorted(own), n=1)
    return f"unknown key; did you mean `{near[0]}`?" if near else "unknown key; remove it"


def schema_keys(section: type[Section]) -> Iterator[tuple[str, ...]]:
    """Every key of a section and of the sections in it."""
    return (key for key, _ in _schema_settings(section))


def _schema_settings(section: type[Section]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a section and of the sections in it, with its type; a key of several heads
    occurs once for each.
    """
    for name, info in section.model_fields.items():
        yield (name,), info.annotation
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from (((name, *key), inner) for key, inner in _schema_settings(kind))
