# SPDX-License-Identifier: Apache-2.0
"""Reads and writes configs: YAML file and overrides → a TrainingConfig, or one ConfigError that lists the faults.

YAML is read by the scalar rules of version 1.2: `no`, `on` and `yes` are text, `1e-3` is a number, `010` is ten.
Duplicate keys and tags are faults. No object is ever built from a tag.
"""

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, overload

import yaml
from pydantic import ValidationError

from wenet_hs.config.dataset import Section
from wenet_hs.config.heads import REMOVED
from wenet_hs.config.schema import ExperimentConfig, TrainingConfig
from wenet_hs.config.wenet_keys import IGNORED_KEYS, ONLY_VALUES, RENAMED_KEYS, Scalar
from wenet_hs.errors import ConfigError
from wenet_hs.files import one_field, write_atomic

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=TrainingConfig)
Location = tuple[str | int, ...]
"""The keys and list indices that lead to a setting."""
MAX_BYTES = 200_000
"""Size of a config file."""
MAX_DEPTH = 20
"""Sections and lists inside each other; the schema has three."""
MAX_VALUES = 10_000
"""Values in a config file; a value counts each time an alias repeats it."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,400}|[0-9]{1,400}(\.[0-9]{0,400})?)([eE][-+]?[0-9]{1,4})?")
_CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_OVERRIDE = re.compile(r"\s*([^\s=]+)(?:\s*=\s*|\s+)(.*)", re.DOTALL)


_MODELS = {"encoder": "recogniser", "rnn": "language model"}
"""A section that only one kind of config has → what it describes."""


class Place(NamedTuple):
    """Where a setting is: a file and a line, or an override."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        """`file:line`, or the override as the user wrote it."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass
class Settings:
    """The values of a config, the place of each value, and the faults found so far."""

    values: Any
    places: dict[Location, Place]
    faults: list[tuple[Place, str]] = field(default_factory=list)

    def place_of(self, location: Location) -> Place:
        """The place of a setting. If it is absent: of the setting that selects its section, else of its section."""
        known = max(end for end in range(len(location) + 1) if location[:end] in self.places)
        selector = (*location[:known], *(str(key).removesuffix("_conf") for key in location[known : known + 1]))
        return self.places.get(selector, self.places[location[:known]])

    def place_of_mark(self, mark: Any) -> Place:
        """The place of a mark of PyYAML; all of an override is one place."""
        whole = self.places[()]
        return whole if mark is None or whole.line is None else whole._replace(line=mark.line + 1)

    def read_node(self, node: Any, location: Location, place: Place) -> Any:
        """The plain value of PyYAML's node; adds its places and faults.

        Raises ConfigError above the limits on depth and number of values.
        """
        self.places[location] = place
        if len(self.places) > MAX_VALUES:
            raise ConfigError(place, f"more than {MAX_VALUES} values, counting what aliases repeat")
        if len(location) > MAX_DEPTH:
            raise ConfigError(place, _TOO_DEEP)
        if node.tag is not None:
            self.faults.append((place, f"tag {node.tag!r} is not supported; remove it"))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.read_node(item, (*location, i), self.place_of_mark(item.start_mark)) for i, item in items]
        if isinstance(node, yaml.ScalarNode):
            if any("\ud800" <= character <= "\udfff" for character in node.value):
                raise ConfigError(place, "half of a surrogate pair is not text", "remove it")
            return resolve_scalar(node.value) if node.style is None else str(node.value)
        section: dict[str, Any] = {}
        for key, value in node.value:
            place = self.place_of_mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(place, "a key must be one word, found a list or a section", "write `key: value`")
            if key.value in section:
                first = self.places[*location, key.value]
                self.faults.append((place, f"{key.value}: duplicate of the key at {first}; keep one"))
            else:
                section[key.value] = self.read_node(value, (*location, key.value), place)
        return section


# ---- reading and writing configs


@overload
def load_config(path: Path | str, overrides: Sequence[str] = ()) -> ExperimentConfig: ...
@overload
def load_config(path: Path | str, overrides: Sequence[str], kind: type[Config]) -> Config: ...
def load_config(
    path: Path | str, overrides: Sequence[str] = (), kind: type[TrainingConfig] = ExperimentConfig
) -> TrainingConfig:
    """Reads the config of a training. WeNet's YAML files load too; one warning lists settings that have no effect.

    Args:
        path: the YAML file.
        overrides: `section.key=value` (or WeNet's `section.key value`); later ones win. The value is in YAML; a setting
            whose type is text takes the characters as they are written, except `null`.
        kind: of a recogniser, or `LmConfig`.

    Raises ConfigError with one line per fault: `file:line: dotted.key: …`, or the override instead of the file.
    Settings that conflict with each other are faults once all their sections are valid.
    """
    settings = read_yaml(path)
    own, other = ("encoder", "rnn") if kind is ExperimentConfig else ("rnn", "encoder")
    if other in settings.values:
        found = f"`{other}` is a setting of a {_MODELS[other]}"
        raise ConfigError(path, found, f"give the file or folder of a {_MODELS[own]}")
    for override in overrides:
        _apply_override(settings, override, kind)
    removed = _drop_removed_settings(settings)
    ignored = _translate_wenet_keys(settings) if kind is ExperimentConfig else {}
    try:
        config = kind.model_validate(settings.values)
    except ValidationError as error:
        faults = (fault for item in error.errors(include_url=False) for fault in _schema_faults(item, kind))
        for location, text in faults:
            parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
            settings.faults.append((settings.place_of(location), f"{''.join(parts).removeprefix('.')}: {text}"))
    if settings.faults:
        in_order = sorted(settings.faults, key=lambda fault: (fault[0].line is None, fault[0].line or 0))
        raise ConfigError("\n".join(dict.fromkeys(one_field(f"{place}: {text}") for place, text in in_order)))
    if ignored:
        listed = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in ignored.items())
        logger.warning("%s: settings of WeNet without effect here: %s", path, listed)
    if removed:
        logger.info("%s: settings that no longer exist, and change no result: %s", path, ", ".join(removed))
    return config


def dump_config(config: TrainingConfig, path: Path | str, provenance: Mapping[str, str] | None = None) -> None:
    """Writes every setting, so that `load_config` gives an equal config; `provenance` replaces the config's own."""
    if provenance:  # a command line may contain bytes that are not UTF-8
        escaped = {key: text.encode("utf-8", "backslashreplace").decode("utf-8") for key, text in provenance.items()}
        config = config.model_copy(update={"provenance": escaped})
    settings = config.model_dump(mode="json")
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    write_atomic(path, f"# Every setting of this experiment, as it was run.\n{text}")


class _Dumper(yaml.SafeDumper):
    """Quotes text that `read_yaml` would take for something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and isinstance(resolve_scalar(text), str)  # other styles change U+0085
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)


def config_changes(old: TrainingConfig, new: TrainingConfig) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of each setting that differs, except provenance; None for an absent one."""
    before, after = (flatten(config.model_dump(mode="json", exclude={"provenance"})) for config in (old, new))
    changes = ((key, before.get(key), after.get(key)) for key in before | after)
    return [change for change in changes if change[1] != change[2]]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dictionary with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# ---- YAML


def read_yaml(path: Path | str) -> Settings:
    """The settings of a YAML file; duplicate keys and tags are in its faults.

    Raises ConfigError if the file is missing, too large, not UTF-8, not YAML, or not a section.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(path, f"cannot be read ({error.strerror})", "check the path of the config") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}:1", f"{len(content)} bytes", f"a config has at most {MAX_BYTES}: check the path")
    try:
        settings = parse_yaml(content.decode("utf-8-sig"), Place(str(path), 1))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        to_do = "check that it is a YAML file, and save it as UTF-8"
        raise ConfigError(f"{path}:{line}", "not UTF-8", to_do) from error
    if not isinstance(settings.values, dict):
        found = "nothing" if settings.values is None else describe(settings.values)
        raise ConfigError(settings.places[()], f"a config has lines of `key: value`, found {found}", "check the path")
    return settings


def parse_yaml(text: str, place: Place) -> Settings:
    """Reads one YAML document. `place`: line 1 of its file, or for a short text the flag that has it, without a line.

    Raises ConfigError on a syntax error.
    """
    settings = Settings(None, {(): place})
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = (error.problem or error.context or "syntax error").replace("\n", " ").removeprefix("but ")
        advice = next((f"; {what_to_do}" for part, what_to_do in _ADVICE.items() if part in problem), "")
        where = settings.place_of_mark(error.problem_mark or error.context_mark)
        raise ConfigError(where, f"not YAML: {problem}{advice}") from error
    except yaml.reader.ReaderError as error:
        where = place._replace(line=place.line and text.count("\n", 0, error.position) + 1)
        raise ConfigError(
            where, f"not YAML: character U+{ord(text[error.position]):04X} is not allowed", "remove it"
        ) from error
    except RecursionError as error:
        raise ConfigError(place, _TOO_DEEP) from error
    except (ValueError, OverflowError, yaml.YAMLError) as error:  # e.g. of "\UFFFFFFFF"
        raise ConfigError(place, f"not YAML: {' '.join(str(error).split())}") from error
    if root is not None:
        settings.values = settings.read_node(root, (), settings.place_of_mark(root.start_mark))
    return settings


_TOO_DEEP = f"more than {MAX_DEPTH} sections or lists inside each other"
_ADVICE = {
    "'\\t'": "indent with spaces",
    "mapping values are not allowed": "quote a text with `: ` in it, or check the indentation",
    "another document": "keep one document",
}
"""Part of PyYAML's message → what to do."""


class _Loader(yaml.SafeLoader):
    """Gives nodes only the tags that are written in the file, None elsewhere. No object is built."""

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        return None


def resolve_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar in YAML 1.2's core schema; octal and hexadecimal, `.inf` and `.nan` are text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


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
        is_null = _CONSTANTS.get(match[2], match[2]) is None
        new = Settings(match[2], {(): place}) if is_text and not is_null else parse_yaml(match[2], place)
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
            settings.faults.append((place, f"{match[1]}: {name} is not a section; write it as section.key=value"))
            return
    section[location[-1]] = new.values
    kept = {known: at for known, at in settings.places.items() if known[: len(location)] != location}
    settings.places = kept | {(*location, *inner): place for inner in new.places}
    settings.faults += new.faults


def _drop_removed_settings(settings: Settings) -> list[str]:
    """Removes the settings of heads that no longer exist; their dotted names."""
    dropped = []
    for names in (("head_conf",), ("ctc_conf", "head_conf")):
        section = _section(settings.values, *names)
        dropped += [".".join((*names, key)) for key in REMOVED if section.pop(key, None) is not None]
    return dropped


# ---- WeNet's settings


def _translate_wenet_keys(settings: Settings) -> dict[str, list[str]]:
    """Removes WeNet's other keys from the settings, and converts what the schema has in another form.

    Adds a fault per unsupported value. Returns the ignored keys, grouped by the reason.
    """
    values, ignored = settings.values, dict[str, list[str]]()
    if values.get("cmvn_file") is not None and "cmvn_conf" not in values:  # outside of any section before 2023-12
        values |= {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": values.pop("cmvn_file")}}
        new = (("cmvn",), ("cmvn_conf",), ("cmvn_conf", "cmvn_file"))
        settings.places |= dict.fromkeys(new, settings.places[("cmvn_file",)])
    conf = _section(values, "tokenizer_conf")  # WeNet splits characters at spaces for phones, and joins with a space
    if values.get("tokenizer", "char") == "char" and conf.get("split_with_space") is True:
        values["tokenizer"] = "phone"
    if values.get("tokenizer") == "phone":
        conf.pop("split_with_space", None)
        if conf.get("connect_symbol") == " ":
            del conf["connect_symbol"]
    for dotted in (*IGNORED_KEYS, *ONLY_VALUES):
        *names, key = dotted.split(".")
        section = _section(values, *names)
        if key not in section:
            continue
        value = section.pop(key)
        if dotted in IGNORED_KEYS:
            ignored.setdefault(IGNORED_KEYS[dotted], []).append(dotted)
            continue
        accepted, reason = ONLY_VALUES[dotted]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted):
            what_to_do = "remove it" if accepted[0] is None else f"remove it or set {describe(accepted[0])}"
            text = f"{dotted}: {describe(value)} is not supported ({reason}); {what_to_do}"
            settings.faults.append((settings.place_of((*names, key)), text))
    return ignored


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
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""Kind of pydantic's error → what the value must be, in the words of YAML."""


def _schema_faults(item: Any, kind_of_config: type[TrainingConfig]) -> Iterator[tuple[Location, str]]:
    """The faults in one error of pydantic: where, what is expected and what was found."""
    kind, location, context, value = item["type"], item["loc"], item.get("ctx", {}), item["input"]
    if location and location[-1] == "[key]":  # a dict whose keys are a closed set
        kind, location = "extra_forbidden", location[:-1]
    match kind:
        case "conflicts":
            yield from (((*location, *key.split(".")), text) for key, text in context["conflicts"])
        case "extra_forbidden":
            yield (
                location,
                _unknown_key(kind_of_config, location, re.findall(r"'([^']*)'", context.get("expected", ""))),
            )
        case "missing":
            is_tree = location[-2:] == ("head_conf", "tree")
            yield location, "missing; make one with `wenet-hs tree build`" if is_tree else "missing"
        case "literal_error":
            choices = ", ".join(re.findall(r"'([^']*)'", context["expected"]))
            yield location, f"must be one of {choices}, got {describe(value)}"
        case "too_long":
            yield location, f"must have {context['max_length']} values, got {context['actual_length']}"
        case _:
            expected = _EXPECTED.get(kind, item["msg"].replace("Input should be", "must be"))
            plain = expected.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
            yield location, f"{plain}, got {describe(value)}"


def describe(value: object) -> str:
    """A value as it appears in messages: short, and as YAML writes it."""
    if isinstance(value, dict | list | tuple):
        return "a section" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_key(config: type[TrainingConfig], location: Location, names: Sequence[str]) -> str:
    """The message for an unknown key. It names the same key of another section, else a similar one of this section."""
    *section, name = map(str, location)
    keys = [*schema_keys(config), *(tuple(dotted.split(".")) for dotted in (*IGNORED_KEYS, *ONLY_VALUES))]
    own = {*names, *(key[-1] for key in keys if list(key[:-1]) == section)}
    if name in own:
        return f"not a key of this {section[-1].removesuffix('_conf')}; remove it"
    near = [RENAMED_KEYS[name]] if name in RENAMED_KEYS else [".".join(key) for key in keys if key[-1] == name]
    near = near or difflib.get_close_matches(name, sorted(own), n=1)
    return f"unknown key; did you mean `{near[0]}`?" if near else "unknown key; remove it"


def schema_keys(section: type[Section]) -> Iterator[tuple[str, ...]]:
    """Every key of a section and of the sections in it."""
    return (key for key, _ in _schema_settings(section))


def _schema_settings(section: type[Section]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a section and of the sections in it, with its type; a key of several heads occurs once for each."""
    for name, info in section.model_fields.items():
        yield (name,), info.annotation
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from (((name, *key), inner) for key, inner in _schema_settings(kind))
