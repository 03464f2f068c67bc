# SPDX-License-Identifier: Apache-2.0
"""Writes a config as YAML in which a comment explains each setting."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined, to_jsonable_python

from wenet_hs.config.load import override_key
from wenet_hs.config.schema import ExperimentConfig, defaults_of_kinds
from wenet_hs.config.section import Section
from wenet_hs.config.setting_texts import Schema, describe_meaning, named_values
from wenet_hs.config.yaml_file import dump_value

WIDTH = 100
"""Columns of a line. A value that does not fit is not divided."""
NO_DEFAULT = PydanticUndefined
"""The default of a required setting."""


@dataclass(frozen=True, kw_only=True)
class SettingSource:
    """Who decided some settings of a config."""

    name: str
    """As it is written after a value, such as `size tiny`."""
    overrides: Sequence[str]
    """The settings, as `key=value`."""


def comment_lines(text: str, indent: str = "", *, later: str = "") -> list[str]:
    """The text as lines of a comment. `later`: an indent of all lines but the first."""
    prefix = f"{indent}# "
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix + later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_commented(
    config: ExperimentConfig,
    *,
    written_in: str,
    sources: Sequence[SettingSource] = (),
) -> str:
    """The text of a YAML file with every setting of the config.

    Above each setting is its meaning. After a value that is not the default is who decided it, and
    the default. `load_config` reads the file as an equal config.

    Args:
        written_in: the name of the YAML that has all settings that are not in `sources`.
        sources: who changed settings of that YAML; a later one replaces values of an earlier one.
    """
    writer = _Writer(
        written_in=written_in,
        sources=sources,
        kind_defaults=defaults_of_kinds(config),
    )
    skipped = set[str]()
    if config.decoder == "none":
        skipped.add("decoder_conf")  # only its default is accepted
    return "\n".join(writer.section_lines(config, (), skipped)) + "\n"


@dataclass(frozen=True, kw_only=True)
class _Writer:
    written_in: str
    sources: Sequence[SettingSource]
    kind_defaults: dict[str, Any]

    def section_lines(
        self,
        section: Section,
        parents: tuple[str, ...],
        skipped: set[str],
    ) -> Iterator[str]:
        """The lines of all settings of a section. An empty line is before each one at the top."""
        properties = type(section).model_json_schema()["properties"]
        for name in type(section).model_fields:
            if name in skipped:
                continue
            if not parents:
                yield ""
            yield from self._setting_lines(section, (*parents, name), properties[name])

    def _setting_lines(
        self,
        section: Section,
        location: tuple[str, ...],
        schema: Schema,
    ) -> Iterator[str]:
        name = location[-1]
        indent = "  " * (len(location) - 1)
        value = getattr(section, name)
        yield from comment_lines(_meaning(schema, value), indent)
        remark = self._remark(section, location)
        if isinstance(value, Section) and type(value).model_fields:
            yield from _with_remark(f"{indent}{name}:", remark, indent)
            yield from self.section_lines(value, location, set())
            return
        text = dump_value(to_jsonable_python(value))
        yield from _with_remark(f"{indent}{name}: {text}", remark, indent)

    def _remark(self, section: Section, location: tuple[str, ...]) -> str:
        """Who decided a setting, and its default; empty if it is a default that nobody decided."""
        value = getattr(section, location[-1])
        default = self._default(section, location)
        if isinstance(value, Section) and default is not None:
            return ""  # its settings have their own
        source = self._source(".".join(location), is_section=isinstance(value, Section))
        if value == default:
            return "" if source is None else f"by {source}; also the default"
        by = f"by {source or self.written_in}"
        if default is NO_DEFAULT:
            return by
        return f"{by}; default: {dump_value(to_jsonable_python(default))}"

    def _default(self, section: Section, location: tuple[str, ...]) -> Any:
        """The default of a setting in a config of these kinds; NO_DEFAULT if it has none."""
        key = ".".join(location)
        if key in self.kind_defaults:
            return self.kind_defaults[key]
        info = type(section).model_fields[location[-1]]
        return info.get_default(call_default_factory=True)

    def _source(self, key: str, *, is_section: bool) -> str | None:
        """The last source that has this setting, or a section around it, or a setting inside it."""
        for source in reversed(self.sources):
            for changed in map(override_key, source.overrides):
                is_inside = is_section and f"{changed}.".startswith(f"{key}.")
                if is_inside or f"{key}.".startswith(f"{changed}."):
                    return source.name
        return None


def _meaning(schema: Schema, value: object) -> str:
    """What a setting means, with its named values if the text has not all of them."""
    meaning = describe_meaning(schema)
    if not meaning and isinstance(value, Section):
        meaning = describe_meaning(type(value).model_json_schema())
    names = named_values(schema)
    if all(name in meaning for name in names):
        return meaning
    return f"{meaning} Values: {', '.join(names)}."


def _with_remark(line: str, remark: str, indent: str) -> Iterator[str]:
    """The line with its remark after it, or above it where both do not fit."""
    if not remark:
        yield line
    elif len(line) + len(remark) + len("  # ") <= WIDTH:
        yield f"{line}  # {remark}"
    else:
        yield from comment_lines(f"({remark})", indent)
        yield line
