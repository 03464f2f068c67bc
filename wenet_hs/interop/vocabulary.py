# SPDX-License-Identifier: Apache-2.0
"""The units of a fine-tuned CTC model of transformers: unit i is token i, as `lm_head` has row i.

`vocab.json` has the tokens with their ids. `added_tokens.json`, `special_tokens_map.json` and
`tokenizer_config.json` may add tokens and say which of them are special.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wenet_hs.model.encoders.description import read_encoder_json
from wenet_hs.text.units import BLANK, EOS, SOS, SOS_EOS, SPACE, UNK, SpecialIds, UnitTable
from wenet_hs.tree.errors import DataError


class Vocabulary(NamedTuple):
    """The units of a fine-tuned model."""

    table: UnitTable
    """One unit per row of `lm_head`, and `<sos/eos>` after them if none of them has that role."""
    tokenizer: Literal["char", "phone"]


def read_vocabulary(
    folder: Path, ids: Mapping[str, int], blank: int | None, num_rows: int
) -> Vocabulary:
    """The units that the tokens of a tokenizer become.

    Special tokens get the names that they have in our tables. Others are in lower case if the
    tokenizer writes texts so. The units are phones if the tokenizer is one of phonemes, or if it
    has long units and no token for the space; otherwise they are characters.

    Args:
        ids: the id of each token, of `vocab.json`.
        blank: `pad_token_id` of `config.json`, the blank of CTC; None: the pad token.
        num_rows: rows of `lm_head`.
    Raises: DataError if the tokens are not those of the rows, or cannot be units.
    """
    settings = _read_tokenizer_settings(folder)
    added_tokens = settings.get("added_tokens_decoder") or {}
    tokens = _collect_tokens(folder, ids, added_tokens, num_rows)
    blank = _choose_blank(folder, tokens, settings.get("pad_token"), blank)
    space = _find_token(tokens, settings.get("word_delimiter_token"), "|")
    unk = _find_token(tokens, settings.get("unk_token"), "<unk>", "[UNK]")
    bos = _find_token(tokens, settings.get("bos_token"), "<s>")
    eos = _find_token(tokens, settings.get("eos_token"), "</s>")
    end_roles = _roles_of_ends(bos, eos, others=(blank, unk, space))
    # A token with two roles has the later one of these. A role that no token has is at None, which
    # is the number of no row.
    roles = {**end_roles, space: SPACE, unk: UNK, blank: BLANK}
    is_lower = bool(settings.get("do_lower_case"))
    units = []
    for number in range(num_rows):
        text = tokens[number].lower() if is_lower else tokens[number]
        units.append(roles.get(number, text))
    if not end_roles:
        units.append(SOS_EOS)
    table = _make_table(folder, units, is_lower=is_lower)
    is_of_phonemes = settings.get("tokenizer_class") == "Wav2Vec2PhonemeCTCTokenizer"
    if is_of_phonemes or (space is None and _has_long_unit(table)):
        if space is not None:
            units[space] = tokens[space]  # phones have no units for spaces
        return Vocabulary(replace(table, units=tuple(units)), "phone")
    return Vocabulary(table, "char")


def _read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The settings of a tokenizer in both of its files, with the texts of its special tokens."""
    token_map: dict[str, Any] = {}
    config: dict[str, Any] = {}
    map_path = folder / "special_tokens_map.json"
    if map_path.exists():
        token_map = read_encoder_json(map_path)
    config_path = folder / "tokenizer_config.json"
    if config_path.exists():
        config = read_encoder_json(config_path)
    # As in transformers: the config counts more than the map only if it describes the added tokens.
    if "added_tokens_decoder" in config:
        settings = token_map | config
    else:
        settings = config | token_map
    return {key: _text_of_token(value) for key, value in settings.items()}


def _text_of_token(token: Any) -> Any:
    """The text of a token that is described by a section with `content`; else the value itself."""
    return token["content"] if isinstance(token, dict) and "content" in token else token


def _collect_tokens(
    folder: Path, ids: Mapping[str, int], added_tokens: Mapping[str, Any], num_rows: int
) -> dict[int, str]:
    """The token of each row.

    Tokens that were added to those of `vocab.json` count only if they have a row.

    Args:
        added_tokens: the section `added_tokens_decoder` of the tokenizer: id → token.
    Raises: DataError if that section is damaged, or if not exactly the rows have tokens.
    """
    token_of_added: dict[Any, Any] = {}
    path = folder / "added_tokens.json"
    if path.exists():
        for token, number in read_encoder_json(path).items():
            token_of_added[number] = token
    try:
        for number_text, token in added_tokens.items():
            token_of_added[int(number_text)] = _text_of_token(token)
    except (ValueError, AttributeError) as error:
        raise DataError(
            folder / "tokenizer_config.json",
            "its added_tokens_decoder is damaged",
            "download it again",
        ) from error
    tokens: dict[int, str] = {}
    for number, token in token_of_added.items():
        if isinstance(number, int) and number < num_rows:
            tokens[number] = str(token)
    for token, number in ids.items():
        if isinstance(number, int):  # other values are the tokens of a language
            tokens[number] = token
    if tokens.keys() != set(range(num_rows)):
        largest_id = max(tokens, default=0)
        raise DataError(
            folder / "vocab.json",
            f"{len(tokens)} tokens with ids to {largest_id}, but lm_head has {num_rows} rows",
            "take the vocab.json that belongs to the weights",
        )
    return tokens


def _choose_blank(
    folder: Path, tokens: Mapping[int, str], pad_token: str | None, blank: int | None
) -> int:
    """The id of the blank: `blank` of the config, or that of the pad token if it is None.

    Raises DataError if it is no token, or if the tokenizer names another pad token.
    """
    pad = _find_token(tokens, pad_token)
    chosen = pad if blank is None else blank
    is_pad_token = not pad_token or pad == chosen  # true if the tokenizer names no pad token
    if chosen is None or chosen not in tokens or not is_pad_token:
        stated = "null" if blank is None else blank
        id_of_pad = "no id" if pad is None else f"the id {pad}"
        raise DataError(
            folder / "config.json",
            f"pad_token_id is {stated}, but the tokenizer's pad token {pad_token!r} has {id_of_pad}",
            "set the one that the training had as blank",
        )
    return chosen


def _find_token(tokens: Mapping[int, str], *texts: str | None) -> int | None:
    """The id of the first of some texts that is a token; None if none is."""
    for text in texts:
        for number, token in tokens.items():
            if token == text:
                return number
    return None


def _roles_of_ends(
    bos: int | None, eos: int | None, others: Sequence[int | None]
) -> dict[int | None, str]:
    """The units of the tokens that begin and end a text.

    They are `<sos>` and `<eos>` if there are two, `<sos/eos>` if there is one, and none if there is
    none. A token that is missing (None), or is one of `others`, does not count.
    """
    ends = []
    for number in dict.fromkeys((bos, eos)):  # one token may be both
        if number is not None and number not in others:
            ends.append(number)
    if len(ends) == 2:
        return {ends[0]: SOS, ends[1]: EOS}
    return {number: SOS_EOS for number in ends}


def _make_table(folder: Path, units: Sequence[str], *, is_lower: bool) -> UnitTable:
    """The table of units with the ids of the special ones among them.

    Raises DataError for units that are equal or cannot be written. `is_lower`: whether they were
    changed to lower case, which the message then says.
    """
    id_of = {unit: number for number, unit in enumerate(units)}
    special = SpecialIds(
        blank=id_of[BLANK],
        unk=id_of.get(UNK),
        sos=id_of[SOS] if SOS in id_of else id_of[SOS_EOS],
        eos=id_of[EOS] if EOS in id_of else id_of[SOS_EOS],
    )
    try:
        return UnitTable(tuple(units), special)
    except ValueError as error:
        reason = str(error)
        if is_lower:
            reason += " in lower case (do_lower_case of tokenizer_config.json)"
        raise DataError(
            folder / "vocab.json", reason, "write another token there: only its id matters"
        ) from error


def _has_long_unit(table: UnitTable) -> bool:
    """Whether a unit that is text has more than one character."""
    not_text = {BLANK, UNK, SOS_EOS, SOS, EOS, *table.marked_units}
    return any(len(unit) > 1 and unit not in not_text for unit in table.units)
