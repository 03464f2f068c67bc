# SPDX-License-Identifier: Apache-2.0
"""The base class of all config sections, and the types of numbers in them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """One section of the YAML file; an empty one has its defaults.

    A whole number is accepted for a float; text and booleans never for a number.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,  # a default may not fit the user's other values
        use_attribute_docstrings=True,
        protected_namespaces=(),  # WeNet has a section `model_conf`
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The dotted key of each setting that does not fit the other ones, and what to do."""
        yield from ()

    @model_validator(mode="before")
    @classmethod
    def _use_defaults_if_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        conflicts = list(self.conflicts())
        if conflicts:
            text = "\n".join(f"{key}: {what_to_do}" for key, what_to_do in conflicts)
            # "{text}" is not an f-string: pydantic fills it in from the dictionary.
            raise PydanticCustomError("conflicts", "{text}", {"text": text, "conflicts": conflicts})
        return self


def read_section(value: Any, kind: object, classes: Mapping[str, type[Section]]) -> Any:
    """A section whose class is selected by the setting `kind` beside it; the first class if that is
    wrong.
    """
    selected = classes.get(str(kind))
    if selected is None:
        return next(iter(classes.values()))()
    if isinstance(value, Section) and type(value) is not selected:  # the default of another kind
        value = value.model_dump(exclude_unset=True)
    return selected.model_validate(value)
