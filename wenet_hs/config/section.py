# SPDX-License-Identifier: Apache-2.0
"""The base class of all config sections, the types of their numbers, and how values appear in messages."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

Scalar = str | int | float | bool | None
Location = tuple[str | int, ...]
"""The keys and list indices that lead to a setting."""


class Section(BaseModel):
    """One section of the YAML file. A whole number is accepted for a float; text and booleans never for a number."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,  # a default may not fit the user's other values
        use_attribute_docstrings=True,
        protected_namespaces=(),  # WeNet has a section `model_conf`
    )


def setting_error(key: str, text: str) -> PydanticCustomError:
    """The error of a validator that compares several settings; `key`: dotted, relative to the section."""
    return PydanticCustomError("setting", "{key}: {text}", {"key": key, "text": text})


def as_selected(value: Any, kind: object, classes: Mapping[str, type[Section]], *, default: Any) -> Any:
    """A section, read by the class that its selector `kind` chooses; `default` if the selector itself is wrong."""
    selected = classes.get(str(kind))
    if selected is None:
        return default
    if type(value) is selected:
        return value
    if isinstance(value, Section):  # the default of another choice
        value = value.model_dump(exclude_unset=True)
    return selected.model_validate({} if value is None else value)


def describe(value: object) -> str:
    """A value as it appears in messages: short, and as YAML writes it."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
