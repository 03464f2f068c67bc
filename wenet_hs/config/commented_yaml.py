# SPDX-License-Identifier: Apache-2.0
"""Writing of a config as YAML in which a comment explains each setting."""

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
    """The text as lines of a comment, at most 100 columns wide where its words allow it.

    `indent`: before the `#` of each line. `later`: after the `# ` of all lines but the first.
    """
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

    Above each setting is its meaning. A value that is not the default, or that a source has set, is
    followed by who decided it and by the default. `load_config` reads the file as an equal config.

    Args:
        written_in: the name of the YAML that has all settings that are not in `sources`.
        sources: who changed settings of that YAML; a later one replaces values of an earlier one.
    """
    writer = _Writer(
        written_in=written_in,
        sources=sources,
        kind_defaults=defaults_of_kinds(config),
    )
    # Without a decoder only the default of its section is accepted.
    skipped = {"decoder_conf"} if config.decoder == "none" else set[str]()
    lines = writer.section_lines(config, parents=(), skipped=skipped)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Writes the settings of a config, each with its meaning and who decided it."""

    written_in: str
    """The name of the YAML that has all settings that are not in `sources`."""
    sources: Sequence[SettingSource]
    kind_defaults: dict[str, Any]
    """Defaults by dotted key that replace those of the classes of the sections."""

    def section_lines(
        self,
        section: Section,
        parents: tuple[str, ...],
        skipped: set[str],
    ) -> Iterator[str]:
        """The lines of all settings of a section but those in `skipped`.

        `parents`: the names of the sections around it, which decide the indent. A setting at the
        top, which has no parents, has an empty line before it.
        """
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
        """The lines of one setting: its meaning, then its value or the settings in it.

        `location`: its name after those of the sections around it. `schema`: its JSON schema.
        """
        name = location[-1]
        indent = "  " * (len(location) - 1)
        value = getattr(section, name)
        yield from comment_lines(_meaning(schema, value), indent)
        remark = self._remark(section, location)
        if isinstance(value, Section) and type(value).model_fields:
            yield from _with_remark(f"{indent}{name}:", remark, indent)
            yield from self.section_lines(value, parents=location, skipped=set())
            return
        text = dump_value(to_jsonable_python(value))
        yield from _with_remark(f"{indent}{name}: {text}", remark, indent)

    def _remark(self, section: Section, location: tuple[str, ...]) -> str:
        """Who decided a setting, and its default, as the text of a comment.

        Empty if the setting has its default and no source has set it. A section has no remark, as
        its settings have remarks of their own, unless it is null by default.
        """
        value = getattr(section, location[-1])
        default = self._default(section, location)
        is_section = isinstance(value, Section)
        if is_section and default is not None:
            return ""
        source = self._source(".".join(location), is_section=is_section)
        if value == default:
            return "" if source is None else f"by {source}; also the default"
        decision = f"by {source or self.written_in}"
        if default is NO_DEFAULT:
            return decision
        return f"{decision}; default: {dump_value(to_jsonable_python(default))}"

    def _default(self, section: Section, location: tuple[str, ...]) -> Any:
        """The default of a setting in this config; NO_DEFAULT if it is required."""
        key = ".".join(location)
        if key in self.kind_defaults:
            return self.kind_defaults[key]
        info = type(section).model_fields[location[-1]]
        return info.get_default(call_default_factory=True)

    def _source(self, key: str, *, is_section: bool) -> str | None:
        """The name of the last source that has set this setting; None if no source has.

        A source has also set it by a section around it, or, for a section, by a setting inside.
        """
        for source in reversed(self.sources):
            for override in source.overrides:
                changed_key = override_key(override)
                # With a dot at its end, `optim` is not taken for the beginning of `optim_conf`.
                is_same_or_around = f"{key}.".startswith(f"{changed_key}.")
                is_inside = is_section and f"{changed_key}.".startswith(f"{key}.")
                if is_same_or_around or is_inside:
                    return source.name
        return None


def _meaning(schema: Schema, value: object) -> str:
    """What a setting means, on one line; its named values are added if the text lacks one.

    A section that has no text of its own has the meaning of its class.
    """
    meaning = describe_meaning(schema)
    if not meaning and isinstance(value, Section):
        meaning = describe_meaning(type(value).model_json_schema())
    names = named_values(schema)
    if all(name in meaning for name in names):
        return meaning
    return f"{meaning} Values: {', '.join(names)}."


def _with_remark(line: str, remark: str, indent: str) -> Iterator[str]:
    """A line with its remark after it, or above it with this indent where both do not fit."""
    if not remark:
        yield line
        return
    line_with_remark = f"{line}  # {remark}"
    if len(line_with_remark) <= WIDTH:
        yield line_with_remark
    else:
        yield from comment_lines(f"({remark})", indent)
        yield line
