# SPDX-License-Identifier: Apache-2.0
"""Tokenizers, which convert a transcript to units and ids and back; training of BPE models.

There is one for characters, for phones or words, for words of scripts without spaces, and for BPE.
"""

import copy
import io
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

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
"""Sentencepiece drops longer lines of its training text."""
_RESERVED = "▅"
"""Sentencepiece drops lines with this character, which it uses itself (U+2585)."""
_NO_SPACES = regex.compile(f"[{NO_SPACES}]")
"""A character of a script without spaces."""
_NO_SPACES_OR_OTHER = regex.compile(rf"(?:[{NO_SPACES}]\p{{M}}*)+|[^{NO_SPACES}]+")
"""The longest part of a word in scripts without spaces, marks included, or in other scripts."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A piece of a BPE model that is one byte of a character in UTF-8, such as `<0xC3>`."""


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
        """Sets the table and what is computed from it. `_ids` are the ids of the units of text.

        `_ids` finds most units faster than the table, because it does not normalize them.
        """
        self.table = table
        self.marked_units = table.marked_units
        self._ids = {
            unit: unit_id
            for unit_id, unit in enumerate(table.units)
            if unit_id not in table.special_ids
        }

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
        """The ids that write one unit, such as a letter; empty if the table does not have it."""
        unit_id = self.table.id_of(unit)
        return [] if unit_id is None else [unit_id]

    def texts(self, units: Iterable[str]) -> list[str]:
        """The text of each unit, with `▁` for a space."""
        return list(units)

    def encode(self, text: str) -> list[int]:
        """The ids of a transcript. A unit that is not in the table has the id of `<unk>`.

        Raises DataError for such a unit if the table has no `<unk>`.
        """
        ids = []
        for unit in self.split(text):
            unit_id = self._ids.get(unit)
            if unit_id is None:  # the table may have it in another Unicode form
                unit_id = self._id_of_text(unit)
            if unit_id is None:
                unit_id = self.table.special.unk
            if unit_id is None:
                raise DataError(
                    f"transcript {text!r}",
                    f"unit {unit!r} is not in the unit table, which has no <unk>",
                    "use the table of these data, or one with <unk>",
                )
            ids.append(unit_id)
        return ids

    def count_unknown(self, text: str) -> Counter[str]:
        """The units of a transcript that are not in the table, with their frequencies."""
        return Counter(unit for unit in self.split(text) if self._id_of_text(unit) is None)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: blank, <sos> and <eos> are left out, `<unk>` is written as `⁇`."""
        table_units = self.table.units
        special = self.table.special
        units = []
        for unit_id in ids:
            if unit_id in (special.blank, special.sos, special.eos):
                continue
            is_unknown = unit_id == special.unk
            units.append(UNKNOWN_SHOWN if is_unknown else table_units[unit_id])
        return self.join(units)

    def _id_of_text(self, unit: str) -> int | None:
        """The id of a unit of a transcript; None if the table does not have it as text.

        A transcript may contain "<blank>" as text, which must never become the blank of CTC.
        """
        unit_id = self.table.id_of(unit)
        return None if unit_id in self.table.special_ids else unit_id

    def _split_around_marked(self, text: str, split: Callable[[str], Iterable[str]]) -> list[str]:
        """The marked units in a text as they are, and the units that `split` gives for the rest."""
        if not any(unit in text for unit in self.marked_units):
            return list(split(text))
        any_marked_unit = "|".join(map(re.escape, self.marked_units))
        parts = re.split(f"({any_marked_unit})", text)  # because of the group, marked units stay
        units = list[str]()
        for part in parts:
            if part in self.marked_units:
                units.append(part)
            else:
                units += split(part)
        return units


class CharTokenizer(Tokenizer):
    """The longest units of the table (`UnitMatcher`); a space is `▁`.

    In a table of letters each code point of NFC text is one unit. A table may have units of several
    letters, such as `ts` or `ʈʰ`, and letters in another Unicode form. A character of the text that
    is in no unit of the table is a unit of its own.
    """

    def _set_table(self, table: UnitTable) -> None:
        super()._set_table(table)
        self._matcher = UnitMatcher(self._ids)

    def split(self, text: str) -> list[str]:
        """The units of a transcript: the longest ones of the table; each space is one `▁`."""
        text = unicodedata.normalize("NFC", text)
        text_with_space_units = text.replace(" ", SPACE)
        # Most tables have letters only. The units are then code points, which is fast.
        if self._matcher.are_code_points(text_with_space_units):
            return list(text_with_space_units)
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
        """The ids that write one unit, such as a letter; empty if the table does not have it.

        A letter that the table has as several units, such as `e` and an accent, has their ids.
        """
        ids = super().ids_of(unit)
        is_written_in_parts = not ids and not self.count_unknown(unit)
        return self.encode(unit) if is_written_in_parts else ids


class PhoneTokenizer(Tokenizer):
    """One unit per phone or word; they are separated by white space."""

    def split(self, text: str) -> list[str]:
        return normalize_phones(text).split()

    def join(self, units: Iterable[str]) -> str:
        return unicodedata.normalize("NFC", " ".join(units))


class _Segmentation(NamedTuple):
    """A division of the first letters of a text into words."""

    cost: tuple[int, int]
    """The number of letters that are in no word of the table, and the number of words.

    Such a letter counts as a word too. The smaller cost is better: the numbers of letters are
    compared first.
    """
    words: tuple[str, ...]


class SegmentingTokenizer(PhoneTokenizer):
    """Words between spaces. Text of a script without spaces is divided into words of the table.

    The division has the fewest letters that are in no word, and then the fewest words. Such a
    letter is one unit.
    """

    def split(self, text: str) -> list[str]:
        """The words of a transcript, also of its parts in scripts without spaces between words."""
        units = list[str]()
        for word in super().split(text):
            if self._id_of_text(word) is not None:
                parts = [word]  # it may have other scripts too, so it is not divided by script
            else:
                parts = _NO_SPACES_OR_OTHER.findall(word)
            for part in parts:
                if _NO_SPACES.match(part):
                    units += self._segment(part)
                else:
                    units.append(part)
        return units

    def _set_table(self, table: UnitTable) -> None:
        """Sets the table and what is computed from it.

        `_longest` is the length of its longest word in a script without spaces.
        """
        super()._set_table(table)
        lengths = [len(unit) for unit in table.units if _NO_SPACES.match(unit)]
        self._longest = max(lengths, default=1)

    def _segment(self, text: str) -> Sequence[str]:
        """The words of a text without spaces, and its letters that are in no word, in order.

        The division has the fewest letters that are in no word, and then the fewest words. Of
        equally good divisions it is the one whose last word is longest.
        """
        letters = regex.findall(r"\X", text)  # each with its marks
        divisions = [_Segmentation(cost=(0, 0), words=())]  # divisions[n]: of the first n letters
        for end in range(1, len(letters) + 1):
            best: _Segmentation | None = None
            for begin in range(max(0, end - self._longest), end):
                word = "".join(letters[begin:end])
                is_unknown = self._id_of_text(word) is None
                is_one_letter = begin == end - 1
                if is_unknown and not is_one_letter:
                    continue
                before = divisions[begin]
                num_unknown, num_words = before.cost
                cost = (num_unknown + is_unknown, num_words + 1)
                if best is None or cost < best.cost:
                    best = _Segmentation(cost, (*before.words, word))
            assert best is not None  # one letter is always a word
            divisions.append(best)
        return divisions[-1].words


class BpeTokenizer(Tokenizer):
    """The pieces of a sentencepiece model.

    `▁` begins a word, or ends it if the model was trained with `treat_whitespace_as_suffix`.

    A letter that the model does not have is written with characters of the model if an equivalent
    spelling exists, such as `e` and an accent for `é`. Any other character may be its bytes in
    UTF-8, one piece each (`<0xC3>`).

    If the table has Chinese characters that the model does not have, text is split as WeNet does:
    each of these characters is a unit, and the rest is converted to upper case (if the model has
    upper case) and split by the model.
    """

    def __init__(self, table: UnitTable, model: Path | str) -> None:
        """The tokenizer of a sentencepiece model in a file.

        Raises DataError if the file is missing or is no such model.
        """
        self.processor = _load_sentencepiece(model)
        self._pieces = frozenset(bpe_units(self.processor.serialized_model_proto()))
        self._characters = frozenset("".join(self._pieces)) | {" "}
        # Respells letters that the model does not have with characters that it has.
        self._character_matcher = UnitMatcher(_nfc_last(self._characters))
        has_upper_case = any(piece != piece.lower() for piece in self._pieces)
        self._to_case = str.upper if has_upper_case else str  # `str` changes nothing
        super().__init__(table)  # last, because `_set_table` uses the pieces

    def _set_table(self, table: UnitTable) -> None:
        """Sets the table and what is computed from it.

        `_is_mixed`: whether the table has Chinese characters that the model does not have. Marked
        units are those that are no pieces of the model.
        """
        super()._set_table(table)
        self.marked_units = [unit for unit in table.marked_units if unit not in self._pieces]
        self._is_mixed = any(
            _CHINESE.fullmatch(unit) and unit not in self._pieces for unit in table.units
        )

    def split(self, text: str) -> list[str]:
        """The units of a transcript in NFC; a marked unit, as `<noise>`, stays whole."""
        text = unicodedata.normalize("NFC", text)
        split_unmarked = self._split_mixed if self._is_mixed else self._split_by_model
        return self._split_around_marked(text, split_unmarked)

    def _split_by_model(self, text: str) -> list[str]:
        """The pieces of the model, after unknown characters are respelled with those it has."""
        if not self._characters.issuperset(text):
            words = text.split(" ")
            text = " ".join("".join(self._character_matcher.split(word)) for word in words)
        return list(self.processor.encode(text, out_type=str))

    def _split_mixed(self, text: str) -> list[str]:
        """Each Chinese character is a unit, and the text between them has pieces of the model."""
        units = list[str]()
        for part in _CHINESE.split(self._to_case(text)):
            if _CHINESE.fullmatch(part):
                units.append(part)
            elif part.strip():
                units += self._split_by_model(part)
        return units

    def join(self, units: Iterable[str]) -> str:
        text = "".join(self.texts(units)).replace(SPACE, " ").strip(" ")
        return unicodedata.normalize("NFC", text)

    def texts(self, units: Iterable[str]) -> list[str]:
        """The text of each unit, with `▁` for a space.

        Of a character that is written as bytes, the first byte has the whole text and the others
        have none: `<0xC3> <0xA9>` → `é` and an empty text. Incomplete bytes are one `�`.
        """
        texts = list[str]()
        character = b""  # its bytes so far
        for unit in units:
            byte_match = _BYTE.fullmatch(unit)
            if byte_match is None:
                character = b""
                texts.append(unit)
                continue
            byte = bytes.fromhex(byte_match[1])
            is_continuation = b"\x80" <= byte < b"\xc0"
            if is_continuation:
                character += byte
            else:
                character = byte
            texts.append("")
            text = character.decode("utf-8", errors="replace")
            index_of_first_byte = -len(character)
            texts[index_of_first_byte] = SPACE if text.isspace() else text
        return texts


def _load_sentencepiece(model: Path | str) -> sentencepiece.SentencePieceProcessor:
    """A sentencepiece model from its file. Raises DataError if it is missing or is not one."""
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=Path(model).read_bytes())
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise DataError(model, found, "check the path of the BPE model") from error
    except (RuntimeError, TypeError) as error:
        to_do = "create it with `wenet-hs units --kind bpe`"
        raise DataError(model, "not a sentencepiece model", to_do) from error


def _nfc_last(characters: Iterable[str]) -> list[str]:
    """The characters in code point order, those that are in NFC after those that are not.

    Of canonically equivalent characters a `UnitMatcher` keeps the last one: the one in NFC.
    """
    return sorted(characters, key=lambda character: (_is_in_nfc(character), character))


def _is_in_nfc(character: str) -> bool:
    """Whether a character is its own form in NFC."""
    return character == unicodedata.normalize("NFC", character)


def make_tokenizer(kind: str, table: UnitTable, bpe_model: Path | str | None = None) -> Tokenizer:
    """The tokenizer of a kind, one of `KINDS`.

    The tokenizers of characters and BPE have `▁` in their table where `table` has `<space>`.
    Phones and words are written in transcripts as in the table.

    Raises ValueError for another kind, or for `bpe` without its model.
    """
    if kind in ("char", "bpe"):
        units = [SPACE if unit == OTHER_SPACE else unit for unit in table.units]
        table = replace(table, units=tuple(units))
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
    counts = Counter[str]()
    for transcript in transcripts:
        counts.update(tokenizer.split(transcript))
    frequent_units = [unit for unit, count in counts.items() if count >= min_count]
    rare_counts = [count for count in counts.values() if count < min_count]
    return UnitTable.from_units(frequent_units), rare_counts


# ---- whether a unit table belongs to a kind of tokenizer


def read_unit_table(kind: str, path: Path | str) -> UnitTable:
    """The unit table in a file, for a kind of tokenizer.

    Raises DataError if the file is damaged, ConfigError if the table is for another kind.
    """
    table = UnitTable.read(path)
    check_units(kind, table, path)
    return table


def check_units(kind: str, table: UnitTable, path: Path | str) -> None:
    """Raises ConfigError for the first unit that shows that a table is not for this kind.

    Tables for characters and for phones are recognised, by `_CHARACTER_RULES` and `_PHONE_RULES`.
    A table for any other kind is not checked.
    """
    rules: _UnitRules = ()
    if kind == "char":
        rules = _CHARACTER_RULES
    elif kind == "phone":
        rules = _PHONE_RULES
    for unit in table.units:
        for find_fault in rules:
            fault = find_fault(unit, table)
            if fault is not None:
                raise ConfigError(path, f"unit {unit!r} {fault.found}", fault.to_do)


@dataclass(frozen=True)
class _UnitFault:
    """Why a unit cannot be in a table for a kind of tokenizer."""

    found: str
    """What it is, as the predicate of a sentence about the unit."""
    to_do: str


_UnitRules = tuple[Callable[[str, UnitTable], _UnitFault | None], ...]
"""Each rule gets a unit and its table; None: the unit does not show that the table is wrong."""


def _find_other_space(unit: str, table: UnitTable) -> _UnitFault | None:
    """The fault of a unit that is the space of another toolkit, such as `|`; None for other units.

    It is no fault in a table that has `▁` or `<space>` too.
    """
    is_other_space = unit.lower() in ("|", "[space]", "<space>")
    if not is_other_space or _has_space(table):
        return None
    return _UnitFault(
        "is the space of other toolkits, which is a letter for tokenizer: char",
        f"rename it {SPACE}",
    )


def _find_bpe_piece(unit: str, table: UnitTable) -> _UnitFault | None:
    """The fault of a unit that is a piece of BPE; None for other units.

    Such a piece has `▁` beside letters, as `▁la`, or is a byte, as `<0xC3>`. A marked unit, as
    `<a▁b>`, is no piece.
    """
    has_boundary_of_word = SPACE in unit and unit != SPACE
    is_piece = has_boundary_of_word or _BYTE.fullmatch(unit) is not None
    if not is_piece or unit in table.marked_units:
        return None
    return _UnitFault(
        "is a piece of BPE, not a character",
        "set tokenizer: bpe, or create the table with --kind char",
    )


def _find_several_letters(unit: str, table: UnitTable) -> _UnitFault | None:
    """The fault of a unit of several letters in a table without a space; None for other units.

    Such a unit is a phone, as `aɪ`, or a word. Tables of these have no space, because transcripts
    have spaces between phones or words. A letter with its marks is one letter. Special and marked
    units are not text, so they are no fault.
    """
    is_text = unit not in (*SPECIAL_UNITS, SOS, EOS, *table.marked_units)
    is_one_letter = regex.fullmatch(r"\X", unit) is not None
    if not is_text or is_one_letter or _has_space(table):
        return None
    return _UnitFault(
        f"has several letters, and the table has no space {SPACE}, "
        "so its units may be phones or words",
        f"set tokenizer: phone or word; of letters such as `ts`, add {SPACE} to the table",
    )


def _find_space(unit: str, table: UnitTable) -> _UnitFault | None:
    """The fault of the unit `▁`, which is no phone; None for other units."""
    if unit != SPACE:
        return None
    return _UnitFault(
        "is the space of characters, no phone",
        "set tokenizer: char, or create the table with --kind phone",
    )


def _has_space(table: UnitTable) -> bool:
    """Whether the table has `▁` or `<space>`."""
    return table.id_of(SPACE) is not None


_CHARACTER_RULES: _UnitRules = (_find_other_space, _find_bpe_piece, _find_several_letters)
_PHONE_RULES: _UnitRules = (_find_space,)


# ---- training of BPE models


def cut_lines(transcripts: Iterable[str]) -> Iterator[str]:
    """The lines for `train_bpe`; a line that sentencepiece would drop as too long is cut.

    It is cut at the last possible space, or between letters if it has none there. Lines have no
    spaces at their ends, and empty ones are left out.

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
        encoded = rest.encode()
        while len(encoded) > _MAX_LINE_BYTES:
            # Bytes of a character that is cut in two are ignored.
            longest_line = encoded[:_MAX_LINE_BYTES].decode(errors="ignore")
            end = _end_of_line(longest_line)
            yield rest[:end]
            rest = rest[end:].lstrip(" ")
            encoded = rest.encode()
        if rest:
            yield rest


def _end_of_line(longest_line: str) -> int:
    """The position at which a line that is continued should be cut: its last space.

    Without a space the cut is before the last letter, because its marks may follow in the rest. A
    line of one letter is cut at its end.
    """
    if " " in longest_line:
        return longest_line.rfind(" ")
    start_of_last_letter: int = regex.search(r"\X$", longest_line).start()
    return start_of_last_letter or len(longest_line)


def train_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Trains a sentencepiece model of `vocab_size` pieces.

    It is deterministic and does not normalize the text (NFKC).

    `lines`: of `cut_lines`. Raises ConfigError if they give fewer pieces, or need more, or if
        `vocab_size` is below 1.
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
        message = _explain_training_error(str(error))
        raise ConfigError(f"--vocab_size {vocab_size}", message) from error
    return model.getvalue()


def _explain_training_error(message: str) -> str:
    """What a message of sentencepiece means for `vocab_size`; other messages are unchanged."""
    most = re.search(r"set it to a value <= (\d+)", message)
    if most is not None:
        return f"the transcripts give at most {most[1]} pieces; use {most[1]} or less"
    least = re.search(r"smaller than required_chars. \d+ vs (\d+)", message)
    if least is not None:
        return (
            f"the characters of the transcripts are already {least[1]} pieces; "
            f"use {least[1]} or more"
        )
    return message


def bpe_units(model: bytes) -> list[str]:
    """The pieces of a model, without its control symbols and its piece for unknown text."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    units = []
    for piece_id in range(processor.get_piece_size()):
        if not (processor.is_control(piece_id) or processor.is_unknown(piece_id)):
            units.append(processor.id_to_piece(piece_id))
    return units
