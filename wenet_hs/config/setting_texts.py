# SPDX-License-Identifier: Apache-2.0
"""The meaning and the values of settings as text, for docs/settings.md and for plans."""

from typing import Any

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "null": "null",
}
BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "from",
    "exclusiveMaximum": "below",
    "maximum": "to",
}
Schema = dict[str, Any]
"""The JSON schema of a setting or section, as pydantic writes it."""


def describe_meaning(schema: Schema) -> str:
    """The meaning of a setting or section on one line; empty if it has none of its own."""
    return " ".join(schema.get("description", "").split())


def named_values(schema: Schema) -> list[str]:
    """The names that are the only values of a setting, besides null; empty for other settings."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    if len(kinds) != 1:
        return []
    return [str(value) for value in kinds[0].get("enum", [])]


def describe_values(schema: Schema) -> str:
    """The values of a setting, from its JSON schema."""
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(map(describe_values, schema["anyOf"])))
    if "$ref" in schema:
        return "a section"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "object":
        return f"name: {describe_values(schema['additionalProperties'])}"
    if schema["type"] == "array":
        items = schema.get("prefixItems")
        if items:
            return f"{len(items)} of: {describe_values(items[0])}"
        return f"list of: {describe_values(schema['items'])}"
    bounds = [f" {word} {schema[name]:g}" for name, word in BOUNDS.items() if name in schema]
    even = ", even" if schema.get("multipleOf") == 2 else ""
    return TYPES[schema["type"]] + " and".join(bounds) + even
