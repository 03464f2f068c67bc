# SPDX-License-Identifier: Apache-2.0
"""Annotation files of ELAN (.eaf) and Praat (.TextGrid): read and checked, whatever their version and encoding."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from wenet_hs.errors import DataError, one_line


def is_annotation(path: Path) -> bool:
    """Whether the path names an ELAN or TextGrid file."""
    return path.suffix.lower() in (".eaf", ".textgrid")


def read_eaf(path: Path) -> ElementTree.Element:
    """The document of an ELAN file of format 2 or 3. Raises DataError."""
    remedy = "open it in ELAN and save it again"
    try:
        document = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: not XML ({error}); {remedy}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if document.tag != "ANNOTATION_DOCUMENT" or document.find("HEADER") is None or document.find("TIME_ORDER") is None:
        raise DataError(f"{path}: not an ELAN file (<{document.tag}>); {remedy}")
    version = document.get("FORMAT") or document.get("VERSION") or "?"
    if version.partition(".")[0] not in ("2", "3"):
        raise DataError(f"{path}: EAF format {version}; only 2 and 3 can be read, save it as EAF 3.0 in ELAN")
    return document


@dataclass(frozen=True)
class GridTier:
    """A tier of a TextGrid."""

    name: str
    is_interval: bool
    spans: Sequence[tuple[float, float, str]]
    """Begin and end in seconds, and text; of a point both times are equal."""


@dataclass(frozen=True)
class Grid:
    """A TextGrid: its times in seconds, and its tiers in order."""

    start: float
    end: float
    tiers: Sequence[GridTier]


_GRID_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<exists>|<absent>|(?<!\S)-?\d\S*(?!\S)')
"""What is not a comment, by Praat's own rule: quoted strings, flags, and numbers with white space around them."""


def read_textgrid(path: Path) -> tuple[str, Grid]:
    """A TextGrid, long or short, UTF-8 or UTF-16: its characters, and what they mean.

    Every interval and point that the file declares is there. Raises DataError if one is missing.
    """
    remedy = "save it as text file in Praat"
    try:
        data = path.read_bytes()
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        return text, _parse_grid(text)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: neither UTF-8 nor UTF-16; save it again in Praat") from error
    except StopIteration as error:
        raise DataError(f"{path}: cut off, or not a TextGrid; restore the file, or {remedy}") from error
    except ValueError as error:
        raise DataError(f"{path}: not a TextGrid ({one_line(error)}); {remedy}") from error


def _parse_grid(text: str) -> Grid:
    """Raises StopIteration at the end of a file that is cut off, ValueError for other content."""
    if '"TextGrid"' not in text:
        raise ValueError('no "TextGrid" in it')
    found = _GRID_TOKEN.finditer(text, text.index('"TextGrid"') + len('"TextGrid"'))
    tokens = (one[0] if one[1] is None else one[1].replace('""', '"') for one in found)
    start, end, flag = float(next(tokens)), float(next(tokens)), next(tokens)
    tiers = []
    for _ in range(int(next(tokens)) if flag == "<exists>" else 0):
        kind, name, _, _, size = (next(tokens), next(tokens), next(tokens), next(tokens), next(tokens))
        if kind not in ("IntervalTier", "TextTier"):
            raise ValueError(f"a tier of the kind {kind!r}")
        is_interval, spans = kind == "IntervalTier", []
        for _ in range(int(size)):
            begin = float(next(tokens))
            spans.append((begin, float(next(tokens)) if is_interval else begin, next(tokens)))
        tiers.append(GridTier(name, is_interval, spans))
    return Grid(start, end, tiers)
