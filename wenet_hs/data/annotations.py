# SPDX-License-Identifier: Apache-2.0
"""Annotation files of ELAN (.eaf) and Praat (.TextGrid): read and checked, whatever their version and encoding."""

from pathlib import Path
from xml.etree import ElementTree

from praatio.textgrid import Textgrid, openTextgrid

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


def read_textgrid(path: Path) -> tuple[str, Textgrid]:
    """A TextGrid, long or short, UTF-8 or UTF-16: its characters, and what they mean. Raises DataError."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        return text, openTextgrid(str(path), True, "silence", "rename")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: neither UTF-8 nor UTF-16; save it again in Praat") from error
    except Exception as error:  # praatio raises errors of many kinds
        raise DataError(f"{path}: not a TextGrid ({one_line(error)}); save it as text file in Praat") from error
