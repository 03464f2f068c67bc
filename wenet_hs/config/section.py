# SPDX-License-Identifier: Apache-2.0
"""The base class of all config sections, their keys, and the types of numbers in them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class _FreeOnResumeMark:
    """The mark of a field of type `FreeOnResume[...]`."""


_Setting = TypeVar("_Setting")
FreeOnResume = Annotated[_Setting, _FreeOnResumeMark()]
"""The type of a setting that a resumed training may change: it does not change what a step computes.

Example: `log_interval: FreeOnResume[Count] = 10`.
"""
Conflict = tuple[str, str]
"""A setting that does not fit the other ones: its dotted key, and what to do about it."""


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

    def conflicts(self) -> Iterator[Conflict]:
        """The settings of this section, and of those in it, that do not fit each other.

        Each setting is valid by itself. A class with such settings overrides this.
        """
        yield from ()

    @model_validator(mode="before")
    @classmethod
    def _use_defaults_if_empty(cls, value: Any) -> Any:
        """An empty section of a YAML file is null there; it has all defaults."""
        return {} if value is None else value

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        """Raise the `conflicts` of a section, whose settings are valid, as one error of pydantic.

        Its context has them as a list too, for `schema_faults`.
        """
        conflicts = list(self.conflicts())
        if conflicts:
            text = "\n".join(f"{key}: {what_to_do}" for key, what_to_do in conflicts)
            # "{text}" is not an f-string: pydantic fills it in from the dictionary.
            raise PydanticCustomError("conflicts", "{text}", {"text": text, "conflicts": conflicts})
        return self


def read_section(value: Any, kind: object, classes: Mapping[str, type[Section]]) -> Any:
    """A section whose class in `classes` is selected by `kind`, the value of a setting beside it.

    `value`: what the file has for the section, or the default of the field, which may be a section
    of another class. The settings that were set in such a section are read by the selected class.

    A `kind` that is not in `classes` is a fault of that setting, not of this one: then the section
    has the defaults of the first class. Raises ValidationError if `value` does not fit the class.
    """
    selected = classes.get(str(kind))
    if selected is None:
        first_class = next(iter(classes.values()))
        return first_class()
    if isinstance(value, Section) and type(value) is not selected:
        value = value.model_dump(exclude_unset=True)
    return selected.model_validate(value)


def settings_free_on_resume(section: Section) -> set[str]:
    """The settings of a section, and of those in it, whose type is `FreeOnResume`, by dotted key."""
    free = set[str]()
    for name, info in type(section).model_fields.items():
        if _FreeOnResumeMark() in info.metadata:
            free.add(name)
        value = getattr(section, name)
        if isinstance(value, Section):
            free |= {f"{name}.{key}" for key in settings_free_on_resume(value)}
    return free


def schema_keys(section: type[Section]) -> Iterator[tuple[str, ...]]:
    """Every key of a section and of the sections in it, such as `("optim_conf", "lr")`."""
    return (key for key, _ in schema_settings(section))


def schema_settings(section: type[Section]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a section and of the sections in it, with its type.

    A key that several classes of a section have, such as the `head_conf` of several heads, occurs
    once for each.
    """
    for name, info in section.model_fields.items():
        yield (name,), info.annotation
        # The type is a section, or a union that may have sections in it.
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                for inner_key, inner_type in schema_settings(kind):
                    yield (name, *inner_key), inner_type
