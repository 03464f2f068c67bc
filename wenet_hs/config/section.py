# SPDX-License-Identifier: Apache-2.0
"""What every section of an experiment shares: frozen, typed, no unknown key; and the ranges that its numbers keep."""

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


class Section(BaseModel):
    """One section of the YAML file. Whole numbers stand for floats, never booleans or text for numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,  # so that a default that does not fit the user's values is found too
        use_attribute_docstrings=True,
        protected_namespaces=(),  # WeNet's sections are called `model` and `model_conf`
    )


def setting_error(key: str, text: str) -> PydanticCustomError:
    """The fault of a validator that looks at several settings, laid on `key`: dotted, and relative to the section."""
    return PydanticCustomError("setting", "{key}: {text}", {"key": key, "text": text})


def as_chosen(value: Any, kind: object, classes: Mapping[str, type[Section]], *, otherwise: Any) -> Any:
    """A section read by the class that its selector `kind` chose; `otherwise` where the selector itself is wrong."""
    chosen = classes.get(str(kind))
    if chosen is None:
        return otherwise
    if type(value) is chosen:
        return value
    if isinstance(value, Section):  # the default of another choice, or a wrong call
        value = value.model_dump(exclude_unset=True)
    return chosen.model_validate({} if value is None else value)
