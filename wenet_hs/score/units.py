# SPDX-License-Identifier: Apache-2.0
"""Text → the units whose errors are counted, and the line that names every choice made on the way."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

import regex  # type: ignore[import-untyped]

METRICS = ("cer", "wer", "per")
SPACES = ("ignore", "count")
NORMALIZATIONS = ("nfc", "nfc+lower")
UNIT_NAMES = {"cer": "grapheme", "wer": "word", "per": "phone"}

# An unknown unit that a recognizer prints is one symbol, so it costs one error and not five.
_GRAPHEMES = regex.compile(r"<unk>|\X")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How text becomes units. Two error rates compare only if their rules are the same.

    Raises ValueError for a name that is not offered, and for lower-cased phones: X-SAMPA's `s` and `S` are two phones.
    """

    metric: str
    """cer: grapheme clusters; wer: words; per: phones. Words and phones stand between white space and stay whole."""
    spaces: str = "ignore"
    """cer alone: `count` makes a run of white space between words a unit; `ignore`, as WeNet does, leaves it out."""
    normalization: str = "nfc"
    """nfc, or nfc+lower: then also Unicode's default lower case, which knows no language."""

    def __post_init__(self) -> None:
        for value, allowed in (
            (self.metric, METRICS),
            (self.spaces, SPACES),
            (self.normalization, NORMALIZATIONS),
        ):
            if value not in allowed:
                raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
        if self.metric == "per" and self.normalization != "nfc":
            raise ValueError("phones may differ in case alone; score them with the normalization nfc")

    def signature(self, langs: Iterable[str] = ()) -> str:
        """The conditions of a rate in one line: `CER|unit:grapheme|spaces:ignored|norm:nfc|lang:ba,ky|v:0.1.0`."""
        parts = [self.metric.upper(), f"unit:{UNIT_NAMES[self.metric]}"]
        if self.metric == "cer":
            parts.append("spaces:ignored" if self.spaces == "ignore" else "spaces:counted")
        parts += [f"norm:{self.normalization}", f"lang:{','.join(sorted(langs)) or 'unspecified'}"]
        return "|".join([*parts, f"v:{version('wenet_hs')}"])


def split_units(text: str, metric: str, *, spaces: str = "ignore", normalization: str = "nfc") -> list[str]:
    """The units of one transcript, in order; see `Rules` for the arguments.

    A grapheme cluster is Unicode's extended one (a letter with all its marks); a literal `<unk>` is one unit.
    """
    return split_by(text, Rules(metric=metric, spaces=spaces, normalization=normalization))


def split_by(text: str, rules: Rules) -> list[str]:
    """The units of one transcript under `rules`."""
    text = unicodedata.normalize("NFC", text)
    if rules.normalization == "nfc+lower":
        text = unicodedata.normalize("NFC", text.lower())  # "İ".lower() is not NFC before other marks
    words = text.split()
    if rules.metric != "cer":
        return words
    units: list[str] = []
    for word in words:
        if units and rules.spaces == "count":
            units.append(" ")
        units += list(word) if word.isascii() and "<" not in word else _GRAPHEMES.findall(word)
    return units
