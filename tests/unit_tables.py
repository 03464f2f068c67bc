# SPDX-License-Identifier: Apache-2.0
"""Unit tables of many kinds, each with a text and the units that the text has in this table."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from wenet_hs.text.tokenizer import Tokenizer, bpe_units, make_tokenizer
from wenet_hs.text.units import SPACE, SpecialIds, UnitTable

SPECIAL = SpecialIds(blank=0, unk=1, sos=2, eos=2)


@dataclass(frozen=True)
class TableCase:
    """A table, a text in NFC, and its units."""

    name: str
    kind: str
    table_units: Sequence[str]
    """In the order and spelling of the table, without the special units."""
    text: str
    units: Sequence[str]
    bpe_settings: dict[str, Any] | None = None
    """Of sentencepiece's trainer, for `kind` bpe; the model is trained on `table_units`, which are
    lines of text.
    """

    def write(self, folder: Path) -> Tokenizer:
        """Write `units.txt`, and `bpe.model` if there is one, and return their tokenizer."""
        model = (
            None
            if self.bpe_settings is None
            else _train_pieces(self.table_units, self.bpe_settings)
        )
        text_units = self.table_units if model is None else bpe_units(model)
        table = UnitTable(("<blank>", "<unk>", "<sos/eos>", *text_units), SPECIAL)
        table.write(folder / "units.txt")
        if model is not None:
            (folder / "bpe.model").write_bytes(model)
        return make_tokenizer(self.kind, table, None if model is None else folder / "bpe.model")

    def flags(self, folder: Path) -> str:
        """The flags that name the files of `write`."""
        bpe_model = "" if self.bpe_settings is None else f" --bpe_model {folder / 'bpe.model'}"
        return f"--tokenizer {self.kind} --units {folder / 'units.txt'}{bpe_model}"


def _train_pieces(lines: Sequence[str], settings: dict[str, Any]) -> bytes:
    model = io.BytesIO()
    defaults = {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "hard_vocab_limit": False,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        character_coverage=1.0,
        **(defaults | settings),
    )
    return model.getvalue()


NUKTA_YA = "\u09df"  # য় as one code point; NFC divides it
ACUTE, DOT_BELOW, HOOK, NUKTA = "\u0301", "\u0323", "\u0309", "\u093c"

CASES = (
    TableCase("letters", "char", [*"abct", SPACE], "ab cat", ["a", "b", SPACE, "c", "a", "t"]),
    TableCase("space of ESPnet", "char", [*"abc", "<space>"], "ab c", ["a", "b", SPACE, "c"]),
    TableCase(
        "digraphs",
        "char",
        ["t", "s", "ts", "a", "n", "g", "ng", SPACE],
        "tsang sat",
        ["ts", "a", "ng", SPACE, "s", "a", "t"],
    ),
    TableCase(
        "digraphs without their letters",
        "char",
        ["ʈʰ", "æ̃", "æ", SPACE],
        "ʈʰæ æ̃",
        ["ʈʰ", "æ", SPACE, "æ̃"],
    ),
    TableCase(
        "three lengths", "char", ["a", "aː", "aːː", SPACE], "aːːaː a", ["aːː", "aː", SPACE, "a"]
    ),
    TableCase(
        "digraph before a letter with a mark",
        "char",
        ["t", "ts", "s̃", SPACE],
        "ts̃ ts",
        ["t", "s̃", SPACE, "ts"],
    ),
    TableCase(
        "marked units",
        "char",
        ["<en>", "<noise>", *"eno", SPACE],
        "<en>no <noise>",
        ["<en>", *"no", SPACE, "<noise>"],
    ),
    TableCase(
        "Bengali without NFC",
        "char",
        [NUKTA_YA, "ক", "া", SPACE],
        "কায\u09bc ক",
        ["ক", "া", NUKTA_YA, SPACE, "ক"],
    ),
    TableCase(
        "Devanagari without NFC",
        "char",
        ["\u0958", "\u095c", "क", SPACE],
        "क\u093cड\u093c क",
        ["\u0958", "\u095c", SPACE, "क"],
    ),
    TableCase(
        "Hebrew without NFC",
        "char",
        ["\ufb2a", "\u05e9", SPACE],
        "\u05e9\u05c1 \u05e9",
        ["\ufb2a", SPACE, "\u05e9"],
    ),
    TableCase(
        "accents as units", "char", ["e", "a", ACUTE, SPACE], "é a", ["e", ACUTE, SPACE, "a"]
    ),
    TableCase(
        "tones as units",
        "char",
        ["ê", "a", "i", DOT_BELOW, HOOK, SPACE],
        "ệi ả",
        ["ê", DOT_BELOW, "i", SPACE, "a", HOOK],
    ),
    TableCase(
        "letters with separate marks",
        "char",
        ["e" + ACUTE, "a", "a" + "\u0300", SPACE],
        "éà a",
        ["e" + ACUTE, "a" + "\u0300", SPACE, "a"],
    ),
    TableCase(
        "vowel signs in two parts",
        "char",
        ["ক", "\u09c7", "\u09be", SPACE],
        "ক\u09cb ক",
        ["ক", "\u09c7", "\u09be", SPACE, "ক"],
    ),
    TableCase(
        "digraph with a tone",
        "char",
        ["ie", "i", "e", ACUTE, SPACE],
        "ié ie",
        ["ie", ACUTE, SPACE, "ie"],
    ),
    TableCase(
        "conjoining jamo",
        "char",
        ["\u1100", "\u1161", "\u11a8", SPACE],
        "각 가",
        ["\u1100", "\u1161", "\u11a8", SPACE, "\u1100", "\u1161"],
    ),
    TableCase(
        "syllables and words of a script without spaces",
        "char",
        ["你", "好", "你好", SPACE],
        "你好你",
        ["你好", "你"],
    ),
    TableCase("phones", "phone", ["t", "ts", "ʈʰ", "ɔ̃"], "ts ʈʰ ɔ̃ t", ["ts", "ʈʰ", "ɔ̃", "t"]),
    TableCase("words", "word", ["la", "casa"], "la casa la", ["la", "casa", "la"]),
    TableCase(
        "pieces", "bpe", ["la casa la casa"], "la casa", ["▁la", "▁casa"], {"vocab_size": 16}
    ),
    TableCase(
        "pieces with the space at their end",
        "bpe",
        ["la casa la casa"],
        "la casa",
        ["la▁", "casa▁"],
        {"vocab_size": 16, "treat_whitespace_as_suffix": True},
    ),
    TableCase(
        "pieces in NFD",
        "bpe",
        ["e" + ACUTE + "a", "a" + ACUTE],
        "éa á",
        ["▁", "e", ACUTE, "a", "▁", "a", ACUTE],
        {"model_type": "char", "vocab_size": 7},
    ),
    TableCase(
        "pieces and bytes",
        "bpe",
        ["la casa la casa"],
        "la é",
        ["▁la", "▁", "<0xC3>", "<0xA9>"],
        {"vocab_size": 272, "byte_fallback": True},
    ),
)
