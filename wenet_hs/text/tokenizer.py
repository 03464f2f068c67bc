# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: transcript to units to ids and back, for characters, phones, BPE and words; training
of BPE models.
"""

import copy
import io
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import regex  # type: ignore[import-untyped]
import sentencepiece

from wenet_hs.text.matching import UnitMatcher
from wenet_hs.text.normalize import UNKNOWN_SHOWN, normalize_phones
from wenet_hs.text.units import EOS, NO_SPACES, OTHER_SPACE, SOS, SPACE, SPECIAL_UNITS, UnitTable
from wenet_hs.tree.errors import ConfigError, DataError

KINDS = ("char", "phone", "bpe", "word")
"""`word` is for unit tables and trees of language models; a config has one of the others."""
_CHINESE = re.compile(r"([\u4e00-\u9fff])")
"""The characters that WeNet separates from the text of a BPE model."""
_MAX_LINE_BYTES = 4192
_RESERVED = "▅"
_NO_SPACES = regex.compile(f"[{NO_SPACES}]")
_NO_SPACES_OR_OTHER = regex.compile(rf"(?:[{NO_SPACES}]\p{{M}}*)+|[^{NO_SPACES}]+")
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Tokenizer(ABC):
    """Converts a normalized transcript to the ids of a unit table, and ids to text.

    It can be pickled.
    """

    table: UnitTable
    marked_units: list[str]
    """Units such as `<noise>`, which stay whole where a transcript has them."""

    def __init__(self, table: UnitTable) -> None:
        self._set_table(table)

    def _set_table(self, table: UnitTable) -> None:
        self.table = table
        self.marked_units = table.marked_units
        self._ids = {
            unit: unit_id
            for unit_id, unit in enumerate(table.units)
            if unit_id not in table.special_ids
        }
        """For speed: the ids of units that are written as in the table."""

    def with_table(self, table: UnitTable) -> Self:
        """The same tokenizer with another table, such as one with more units."""
        other = copy.copy(self)
        other._set_table(table)
        return other

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """The units of a transcript in NFC; they need not be in the table."""

    @abstractmethod
    def join(self, units: Iterable[str]) -> str:
        """The transcript of units in NFC: the inverse of `split` on normalized text."""

    def ids_of(self, unit: str) -> list[int]:
        """The ids with which a unit of an inventory is written; none if the table does not have it."""
        unit_id = self.table.id_of(unit)
        return [] if unit_id is None else [unit_id]

    def texts(self, units: Iterable[str]) -> list[str]:
        """The text of each unit, with `▁` for a space."""
        return list(units)

    def encode(self, text: str) -> list[int]:
        """The ids of a transcript.

        A unit that is not in the table is `<unk>`, or a DataError if the table has none.
        """
        ids = []
        for unit in self.split(text):
            unit_id = self._ids[unit] if unit in self._ids else self._text_id(unit)
            unit_id = self.table.special.unk if unit_id is None else unit_id
            if unit_id is None:
                found = f"unit {unit!r} is not in the unit table, which has no <unk>"
                raise DataError(
                    f"transcript {text!r}", found, "use the table of these data, or one with <unk>"
                )
            ids.append(unit_id)
        return ids

    def unknown(self, text: str) -> Counter[str]:
        return Counter(unit for unit in self.split(text) if self._text_id(unit) is None)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: blank, <sos> and <eos> are left out, `<unk>` is written as `⁇`."""
        special, units = self.table.special, self.table.units
        kept = (
            unit_id for unit_id in ids if unit_id not in (special.blank, special.sos, special.eos)
        )
        return self.join(
            UNKNOWN_SHOWN if unit_id == special.unk else units[unit_id] for unit_id in kept
        )

    def _text_id(self, unit: str) -> int | None:
        # "<blank>" in a transcript is text; it must never become the blank of CTC.
        unit_id = self.table.id_of(unit)
        return None if unit_id in self.table.special_ids else unit_id

    def _split_around_marked(self, text: str, split: Callable[[str], Iterable[str]]) -> list[str]:
        if not any(unit in text for unit in self.marked_units):
            return list(split(text))
        parts = re.split(f"({'|'.join(map(re.escape, self.marked_units))})", text)
        return [
            unit
            for part in parts
            for unit in ([part] if part in self.marked_units else split(part))
        ]


class CharTokenizer(Tokenizer):
    """The longest units of the table (`UnitMatcher`); a space is `▁`.

    In a table of letters this is one unit per code point of NFC text. A table may have units of
    several letters, such as `ts` or `ʈʰ`, and letters in another Unicode form. What is no unit of
    the table is one code point.
    """

    def _set_table(self, table: UnitTable) -> None:
        super()._set_table(table)
        self._matcher = UnitMatcher(self._ids)

    def split(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFC", text)
        marked_spaces = text.replace(" ", SPACE)
        if self._matcher.are_code_points(marked_spaces):
            return list(marked_spaces)
        first_word, *more_words = text.split(" ")
        units = self._matcher.split(first_word)
        for word in more_words:
            units.append(SPACE)
            units += self._matcher.split(word)
        return units

    def join(self, units: Iterable[str]) -> str:
        text = "".join(units).replace(SPACE, " ").strip(" ")
        return unicodedata.normalize("NFC", text)

    def ids_of(self, unit: str) -> list[int]:
        """As in `Tokenizer`.

        A letter that the table has as several units, such as `e` and an accent, has their ids.
        """
        ids = super().ids_of(unit)
        is_written_in_parts = not ids and not self.unknown(unit)
        return self.encode(unit) if is_written_in_parts else ids


class PhoneTokenizer(Tokenizer):
    """One unit per phone or word; they are separated by white space."""

    def split(self, text: str) -> list[str]:
        return normalize_phones(text).split()

    def join(self, units: Iterable[str]) -> str:
        return unicodedata.normalize("NFC", " ".join(units))


class SegmentingTokenizer(PhoneTokenizer):
    """Words between spaces. Text of a script without spaces is divided into words of the table.

    The division has the fewest letters that are in no word, and then the fewest words. Such a
    letter is one unit.
    """

    def split(self, text: str) -> list[str]:
        parts = (part for word in super().split(text) for part in self._parts(word))
        return [
            unit
            for part in parts
            for unit in (self._segment(part) if _NO_SPACES.match(part) else [part])
        ]

    def _set_table(self, table: UnitTable) -> None:
        super()._set_table(table)
        self._longest = max(
            (len(unit) for unit in table.units if _NO_SPACES.match(unit)), default=1
        )

    def _parts(self, word: str) -> list[str]:
        """A word of the table, or the parts of a word that are in scripts with spaces and without."""
        return (
            [word]
            if self._text_id(word) is not None
            else [part[0] for part in _NO_SPACES_OR_OTHER.finditer(word)]
        )

    def _segment(self, text: str) -> Sequence[str]:
        letters = regex.findall(r"\X", text)
        best: list[tuple[int, int, tuple[str, ...]]] = [
            (0, 0, ())
        ]  # per position: unknown letters, words, the words
        for end in range(1, len(letters) + 1):
            choices = []
            for begin in range(max(0, end - self._longest), end):
                word = "".join(letters[begin:end])
                is_unknown = self._text_id(word) is None
                if begin == end - 1 or not is_unknown:
                    num_unknown, num_words, words = best[begin]
                    choices.append((num_unknown + is_unknown, num_words + 1, (*words, word)))
            best.append(min(choices, key=lambda choice: choice[:2]))
        return best[-1][2]


class BpeTokenizer(Tokenizer):
    """The pieces of a sentencepiece model; `▁` begins a word, or ends it
    (`treat_whitespace_as_suffix`).

    A letter that the model does not have is written with characters of the model if an equivalent
    one exists, such as `e` and an accent for `é`. Any other character may be its bytes in UTF-8,
    one piece each (`<0xC3>`). If the table has Chinese characters that the model does not have,
    text is split as by WeNet: these characters apart, and in upper case (if the model has upper
    case).
    """

    def __init__(self, table: UnitTable, model: Path | str) -> None:
        """Raises DataError if the model is missing or is not one."""
        try:
            self.processor = sentencepiece.SentencePieceProcessor(
                model_proto=Path(model).read_bytes()
            )
        except OSError as error:
            raise DataError(
                model, f"cannot be read ({error.strerror})", "check the path of the BPE model"
            ) from error
        except (RuntimeError, TypeError) as error:
            raise DataError(
                model, "not a sentencepiece model", "create it with `wenet-hs units --kind bpe`"
            ) from error
        self._pieces = frozenset(bpe_units(self.processor.serialized_model_proto()))
        self._characters = frozenset("".join(self._pieces)) | {" "}
        # Of equivalent characters the last one counts: the one in NFC.
        by_form = sorted(
            self._characters, key=lambda one: (one == unicodedata.normalize("NFC", one), one)
        )
        self._character_matcher = UnitMatcher(by_form)
        self._to_case = str.upper if any(piece != piece.lower() for piece in self._pieces) else str
        super().__init__(table)

    def _set_table(self, table: UnitTable) -> None:
        super()._set_table(table)
        self.marked_units = [unit for unit in table.marked_units if unit not in self._pieces]
        self._is_mixed = any(
            _CHINESE.fullmatch(unit) and unit not in self._pieces for unit in table.units
        )

    def split(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFC", text)
        return self._split_around_marked(
            text, self._split_mixed if self._is_mixed else self._split_plain
        )

    def _split_plain(self, text: str) -> list[str]:
        if not self._characters.issuperset(text):
            words = [self._character_matcher.split(word) for word in text.split(" ")]
            text = " ".join("".join(characters) for characters in words)
        return list(self.processor.encode(text, out_type=str))

    def _split_mixed(self, text: str) -> list[str]:
        parts = (part for part in _CHINESE.split(self._to_case(text)) if part.strip())
        return [
            unit
            for part in parts
            for unit in ([part] if _CHINESE.fullmatch(part) else self._split_plain(part))
        ]

    def join(self, units: Iterable[str]) -> str:
        text = "".join(self.texts(units)).replace(SPACE, " ").strip(" ")
        return unicodedata.normalize("NFC", text)

    def texts(self, units: Iterable[str]) -> list[str]:
        """The text of each unit; a character in bytes is the text of its first one.

        Incomplete bytes are one `�`.
        """
        texts, character = list[str](), b""
        for unit in units:
            byte = bytes.fromhex(found[1]) if (found := _BYTE.fullmatch(unit)) else b""
            is_continued = bool(character) and b"\x80" <= byte < b"\xc0"
            character = character + byte if is_continued else byte
            texts.append("" if byte else unit)
            if byte:
                text = character.decode("utf-8", "replace")
                texts[-len(character)] = SPACE if text.isspace() else text
        return texts


def make_tokenizer(kind: str, table: UnitTable, bpe_model: Path | str | None = None) -> Tokenizer:
    """The tokenizer of a kind, one of `KINDS`.

    Raises ValueError for another, or for `bpe` without its model.

    Its table has `▁` for `<space>`, except for phones and words, which are written in transcripts
    as in the table.
    """
    if kind in ("char", "bpe"):
        table = replace(
            table, units=tuple(SPACE if unit == OTHER_SPACE else unit for unit in table.units)
        )
    if kind == "bpe" and bpe_model is not None:
        return BpeTokenizer(table, bpe_model)
    if kind == "char":
        return CharTokenizer(table)
    if kind in ("phone", "word"):
        return PhoneTokenizer(table)
    raise ValueError(f"no tokenizer {kind!r} with the model {bpe_model}")


def count_units(
    tokenizer: Tokenizer, transcripts: Iterable[str], min_count: int
) -> tuple[UnitTable, list[int]]:
    """The table of the units that occur `min_count` times or more, and the counts of the others."""
    counts = Counter(unit for transcript in transcripts for unit in tokenizer.split(transcript))
    table = UnitTable.from_units(unit for unit, count in counts.items() if count >= min_count)
    return table, [count for count in counts.values() if count < min_count]


def read_unit_table(kind: str, path: Path | str) -> UnitTable:
    """The unit table in a file.

    Raises DataError if it is damaged, ConfigError if it is not one of this kind.
    """
    table = UnitTable.read(path)
    check_units(kind, table, path)
    return table


def check_units(kind: str, table: UnitTable, path: Path | str) -> None:
    """Raises ConfigError for the first unit that shows that the table is not one of this kind of
    tokenizer.
    """
    for unit in table.units:
        found = to_do = ""
        if kind == "char":
            found, to_do = _fault_as_characters(unit, table)
        elif kind == "phone" and unit == SPACE:
            found = "is the space of characters, no phone"
            to_do = "set tokenizer: char, or create the table with --kind phone"
        if found:
            raise ConfigError(path, f"unit {unit!r} {found}", to_do)


def _fault_as_characters(unit: str, table: UnitTable) -> tuple[str, str]:
    """What shows that a table is not one of characters, and what to do; empty if this unit does not
    show it.
    """
    has_space = table.id_of(SPACE) is not None
    if unit in (*SPECIAL_UNITS, SOS, EOS, OTHER_SPACE, SPACE):
        return "", ""
    if unit.lower() in ("|", "[space]", "<space>") and not has_space:
        return (
            "is the space of other toolkits, which is a letter for tokenizer: char",
            f"rename it {SPACE}",
        )
    if unit in table.marked_units:
        return "", ""
    if SPACE in unit or _BYTE.fullmatch(unit):
        return (
            "is a piece of BPE, not a character",
            "set tokenizer: bpe, or create the table with --kind char",
        )
    is_one_letter = regex.fullmatch(r"\X", unit) is not None  # with its marks
    if not has_space and not is_one_letter:  # phones and words are between spaces
        found = f"has several letters, and the table has no space {SPACE}, so its units may be phones or words"
        return (
            found,
            f"set tokenizer: phone or word; of letters such as `ts`, add {SPACE} to the table",
        )
    return "", ""


def cut_lines(transcripts: Iterable[str]) -> Iterator[str]:
    """The lines for `train_bpe`: those that sentencepiece would drop as too long are cut at spaces
    or between letters.

    Raises DataError for a character that makes sentencepiece drop a line.
    """
    for transcript in transcripts:
        if _RESERVED in transcript:
            raise DataError(
                repr(transcript[:60]),
                "has U+2585, which sentencepiece reserves",
                "remove this character",
            )
        rest = transcript.strip(" ")
        while len(encoded := rest.encode()) > _MAX_LINE_BYTES:
            line = encoded[:_MAX_LINE_BYTES].decode(errors="ignore")
            last_letter = regex.search(r"\X$", line).start()  # it may go on
            end = line.rfind(" ") if " " in line else last_letter or len(line)
            yield rest[:end]
            rest = rest[end:].lstrip(" ")
        if rest:
            yield rest


def train_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Trains a sentencepiece model of `vocab_size` pieces.

    It is deterministic and does not normalize the text (NFKC).

    `lines`: of `cut_lines`. Raises ConfigError if they do not allow that many pieces, or need more.
    """
    if vocab_size < 1:
        raise ConfigError(f"--vocab_size {vocab_size}", "must be above 0")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            max_sentence_length=_MAX_LINE_BYTES,
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        message = str(error)
        if found := re.search(r"set it to a value <= (\d+)", message):
            message = f"the transcripts give at most {found[1]} pieces; use {found[1]} or less"
        if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
            message = f"the characters of the transcripts are already {found[1]} pieces; use {found[1]} or more"
        raise ConfigError(f"--vocab_size {vocab_size}", message) from error
    return model.getvalue()


def bpe_units(model: bytes) -> list[str]:
    """The pieces of a model, without its control symbols."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = range(processor.get_piece_size())
    return [
        processor.id_to_piece(n)
        for n in pieces
        if not (processor.is_control(n) or processor.is_unknown(n))
    ]
