# SPDX-License-Identifier: Apache-2.0
"""The units that the tokens of a tokenizer become: examples by hand, without a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from wenet_hs.interop.vocabulary import Vocabulary, read_vocabulary
from wenet_hs.text.units import SpecialIds
from wenet_hs.tree.errors import DataError


def read(folder: Path, tokens: list[str], blank: int | None, **settings: Any) -> Vocabulary:
    """The vocabulary of these tokens, with settings in tokenizer_config.json."""
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {token: number for number, token in enumerate(tokens)}
    return read_vocabulary(folder, ids, blank, len(tokens))


def test_special_tokens_get_the_names_of_our_tables(tmp_path: Path) -> None:
    table, tokenizer = read(tmp_path, ["<pad>", "<s>", "</s>", "[UNK]", "|", "A"], 0)
    assert table.units == ("<blank>", "<sos>", "<eos>", "<unk>", "▁", "A") and tokenizer == "char"
    assert table.special == SpecialIds(blank=0, unk=3, sos=1, eos=2)


def test_without_a_begin_and_an_end_one_unit_is_added(tmp_path: Path) -> None:
    table, _ = read(tmp_path, ["a", "B", "[PAD]"], 2, do_lower_case=True)
    assert table.units == ("a", "b", "<blank>", "<sos/eos>")
    assert table.special == SpecialIds(blank=2, unk=None, sos=3, eos=3)


def test_one_token_may_be_begin_and_end(tmp_path: Path) -> None:
    table, _ = read(tmp_path, ["[PAD]", "a", "#"], 0, bos_token="#", eos_token={"content": "#"})
    assert table.units == ("<blank>", "a", "<sos/eos>") and table.special.sos == 2


def test_long_units_without_a_space_are_phones(tmp_path: Path) -> None:
    tokens = ["<pad>", "tʃ", "a"]
    assert read(tmp_path, tokens, 0).tokenizer == "phone"
    assert read(tmp_path, [*tokens, "|"], 0).tokenizer == "char"
    of_phonemes = read(tmp_path, [*tokens, "|"], 0, tokenizer_class="Wav2Vec2PhonemeCTCTokenizer")
    assert of_phonemes.tokenizer == "phone" and of_phonemes.table.units[3] == "|"


def test_the_blank_is_the_pad_token_if_the_config_names_none(tmp_path: Path) -> None:
    assert read(tmp_path, ["a", "-"], None, pad_token="-").table.special.blank == 1
    with pytest.raises(
        DataError, match="pad_token_id is null, but the tokenizer's pad token '_' has no id; set"
    ):
        read(tmp_path, ["a", "-"], None, pad_token="_")
