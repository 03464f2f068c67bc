# SPDX-License-Identifier: Apache-2.0
"""The words of a binary file of KenLM: their number, and their spelling if the file includes it.

KenLM itself needs only hashes of the words: it tells whether it knows a given word, but not which
words it knows. The spelling stands at the end of the file: `build_binary` writes it there unless
it gets `-v`. The layout is that of `lm/binary_format.cc` in version 5 of KenLM's format, the only
one that KenLM 0.3 reads.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.tree.errors import DataError

MAGIC = b"mmap lm http://kheafield.com/code"
"""What a binary file begins with, in each version and also if it was not written to the end."""
_VERSION = MAGIC + b" format version 5\n\0"
_PARAMETERS_OFFSET = 88
"""Bytes before the parameters: the version and test values, padded to multiples of 8 bytes."""
_PARAMETERS = struct.Struct("=4x4x4x?3x4xQ")
"""Whether the file has the spelling of the words (`?`), and the number of 1-grams (`Q`).

The bytes that are skipped (`x`) hold the order, the size of the hash tables, the kind of the model,
padding, and the version of that kind.
"""
_FIRST_WORD = b"<unk>\0"
"""The words begin with it. A zero byte ends each of them."""


@dataclass(frozen=True, kw_only=True)
class KenlmVocabulary:
    """The words of a binary file, with `<s>`, `</s>` and `<unk>`."""

    num_words: int
    """One less if the ARPA file had no `<unk>` and the model is one of hash tables."""
    words: Sequence[str] | None
    """None: the file was built with `-v`, without the spelling of its words."""


def is_kenlm_file(path: Path) -> bool:
    """Whether a file begins as a binary file of KenLM. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_kenlm_vocabulary(path: Path) -> KenlmVocabulary:
    """The words of a binary file of KenLM, without loading the model.

    A file that was built without the spelling of its words has only their number.

    Raises DataError if the file is of another version or incomplete, or a word is not UTF-8.
    """
    header_size = _PARAMETERS_OFFSET + _PARAMETERS.size
    with path.open("rb") as file:
        header = file.read(header_size)
        if len(header) < header_size or not header.startswith(_VERSION):
            raise _make_damaged_error(path)
        has_spelling, num_words = _PARAMETERS.unpack_from(header, _PARAMETERS_OFFSET)
        if not has_spelling:
            return KenlmVocabulary(num_words=num_words, words=None)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            offset = _find_spelling(path, content, num_words)
            spelling = content[offset:]
    try:
        words = spelling.decode("utf-8").removesuffix("\0").split("\0")
    except UnicodeDecodeError as error:
        to_do = "convert the ARPA file to UTF-8 and build it again with build_binary"
        raise DataError(path, "has words that are not UTF-8", to_do) from error
    return KenlmVocabulary(num_words=num_words, words=words)


def _find_spelling(path: Path, content: mmap.mmap, num_words: int) -> int:
    """Where the words of a binary file begin: their spellings are its end.

    The first word is `<unk>`, and a zero byte ends each. So the words begin at the last `<unk>`
    with at least `num_words` zero bytes after it. A later `<unk>` is the end of another word, such
    as `my<unk>`. Raises DataError if there is no such place: then the file is incomplete.
    """
    offset = content.rfind(_FIRST_WORD)
    while offset >= 0 and content[offset:].count(b"\0") < num_words:
        offset = content.rfind(_FIRST_WORD, 0, offset)
    if offset < 0:  # not found
        raise _make_damaged_error(path)
    return offset


def _make_damaged_error(path: Path) -> DataError:
    """The error for a file of another version, and for one that is cut off."""
    fault = "is no complete binary file of KenLM (version 5)"
    return DataError(path, fault, "build it again with build_binary")
