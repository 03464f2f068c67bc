# SPDX-License-Identifier: Apache-2.0
"""The meaning and the values of settings as text, for docs/settings.md and for plans.

They are made from the JSON schema that pydantic writes of a section.
"""

from typing import Any

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "null": "null",
}
"""Type of JSON → its name."""
BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "from",
    "exclusiveMaximum": "below",
    "maximum": "to",
}
"""Bound of a number in a JSON schema → the word before its value."""
Schema = dict[str, Any]
"""The JSON schema of a setting or section, as pydantic writes it."""


def describe_meaning(schema: Schema) -> str:
    """The meaning of a setting or section on one line; empty if it has none of its own."""
    return " ".join(schema.get("description", "").split())


def named_values(schema: Schema) -> list[str]:
    """The names that are the only values of a setting, besides null.

    Empty for a setting that has one name only, or other values, such as numbers or text.
    """
    alternatives = schema.get("anyOf", [schema])
    types = [kind for kind in alternatives if kind.get("type") != "null"]
    if len(types) != 1:
        return []
    return [str(value) for value in types[0].get("enum", [])]


def describe_values(schema: Schema) -> str:
    """The values that a setting may have, as text.

    Examples: "whole number above 0" for a number, "a section", "name: number" for a dictionary,
    "list of: number" for a list, "2 of: number" for one with two values. The names that a setting
    accepts are listed in backticks. Alternatives are joined: "text, or null".

    `schema`: the JSON schema of the setting, as pydantic writes it.
    """
    if "anyOf" in schema:
        alternatives = [describe_values(kind) for kind in schema["anyOf"]]
        return ", or ".join(dict.fromkeys(alternatives))
    if "$ref" in schema:
        return "a section"
    if "enum" in schema or "const" in schema:
        names = schema["enum"] if "enum" in schema else [schema["const"]]
        return ", ".join(f"`{name}`" for name in names)
    if schema["type"] == "object":
        return f"name: {describe_values(schema['additionalProperties'])}"
    if schema["type"] == "array":
        items = schema.get("prefixItems")  # of a list with a fixed number of values
        if items:
            return f"{len(items)} of: {describe_values(items[0])}"
        return f"list of: {describe_values(schema['items'])}"
    return _describe_scalar(schema)


def _describe_scalar(schema: Schema) -> str:
    """The values of a number, text or boolean: `number from 0 and below 1`, `true, false`."""
    bounds = [f" {word} {schema[name]:g}" for name, word in BOUNDS.items() if name in schema]
    suffix = ", even" if schema.get("multipleOf") == 2 else ""
    return TYPES[schema["type"]] + " and".join(bounds) + suffix
