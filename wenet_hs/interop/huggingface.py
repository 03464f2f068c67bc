# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned CTC models in Hugging Face's layout → a model folder of ours with the same outputs.

Such a folder has what encoders/description.py reads, `lm_head.*` among its weights, `vocab.json`
(tokens with ids; of MMS by language), and perhaps `added_tokens.json`, `special_tokens_map.json`,
`tokenizer_config.json` and `adapter.LANG.safetensors`. Unit i of our table is token i, so the rows
of `lm_head` keep their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from pydantic import ValidationError

from wenet_hs.base.files import file_sha256
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.model.checkpoint import write_final
from wenet_hs.model.encoders.description import (
    EncoderDescription,
    read_description,
    read_encoder_json,
    refuse_other_form,
)
from wenet_hs.model.encoders.kinds import make_pretrained
from wenet_hs.model.encoders.weights import adapter_file, hash_pretrained, load_pretrained
from wenet_hs.runs.record import RunRecord, Start, write_run
from wenet_hs.text.units import BLANK, EOS, SOS, SOS_EOS, SPACE, UNK, SpecialIds, UnitTable
from wenet_hs.tree.atomic import fsync_path, write_atomic
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, list_names

NEVER = -1e4
"""The score of `<sos/eos>` where a vocabulary has neither `<s>` nor `</s>`: its probability is 0."""


class Vocabulary(NamedTuple):
    """The units of a fine-tuned model: one per row of `lm_head`, and perhaps `<sos/eos>` after
    them.
    """

    table: UnitTable
    tokenizer: Literal["char", "phone"]


def import_model(
    folder: Path, out: Path, lang: str | None, *, command: Sequence[str]
) -> Vocabulary:
    """Write a model folder (`decoder: none`) with the outputs of the fine-tuned model in `folder`.

    Args:
        out: the folder to write, `train.yaml` last.
        lang: the language whose adapters and output layer are used, for MMS.
        command: the words of the command line, for the run record.
    Raises: ConfigError, DataError or CheckpointError: one line with the file or flag that does not
        fit.
    """
    if taken := [
        name
        for name in ("train.yaml", "units.txt", "encoder.json", "final.pt")
        if (out / name).exists()
    ]:
        raise ConfigError(f"--out {out}", f"has a {taken[0]} already", "name another folder")
    description, ids = _read_model(folder)
    adapter = _choose_adapter(folder, description, ids, lang)
    config = _config(folder, description, lang)
    assert isinstance(config.encoder_conf, PretrainedConf)
    encoder = make_pretrained(description, config.encoder_conf)
    head = load_pretrained(encoder.pretrained, folder, adapter)
    if "lm_head.weight" not in head or "lm_head.bias" not in head:
        if adapter is not None:
            raise CheckpointError(
                adapter_file(folder, adapter), "has no output layer (lm_head)", "download it again"
            )
        to_do = "take a model that was fine-tuned with CTC, or train with this encoder"
        raise CheckpointError(f"--hf {folder}", "has no output layer of CTC (lm_head)", to_do)
    weight, bias = head["lm_head.weight"], head["lm_head.bias"]
    if bias.dim() != 1 or weight.shape != (len(bias), encoder.output_size):
        found = f"lm_head.weight {tuple(weight.shape)} and lm_head.bias {tuple(bias.shape)}"
        found += f", expected (V, {encoder.output_size}) and (V,)"
        raise CheckpointError(
            f"--hf {folder}", found, "config.json and the weights are not of one model"
        )
    of_lang = ids.get(lang or "")
    ids = of_lang if isinstance(of_lang, dict) else ids
    vocabulary = read_vocabulary(folder, ids, description.config.get("pad_token_id", 0), len(bias))
    if len(vocabulary.table) > len(bias):
        weight, bias = (
            torch.cat([weight, torch.zeros_like(weight[:1])]),
            torch.cat([bias, torch.tensor([NEVER])]),
        )
    state = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    state |= {"ctc.head.output.weight": weight, "ctc.head.output.bias": bias}
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".import.") as temporary:  # a full disk leaves nothing
        new = Path(temporary)
        vocabulary.table.write(new / "units.txt")
        write_atomic(new / "encoder.json", description.to_json())
        try:
            write_final(new / "final.pt", state, {}, by="import")
        except CheckpointError as error:
            raise CheckpointError(out / "final.pt", error.found, error.to_do) from error
        run = RunRecord(
            starts=(Start(command=tuple(command)),),
            encoder_sha256=hash_pretrained(folder, adapter),
            files={name: file_sha256(new / name) for name in ("units.txt", "encoder.json")},
        )
        write_run(new, run)
        config = config.model_copy(update={"tokenizer": vocabulary.tokenizer})
        dump_config(config, new / "train.yaml")
        for path in sorted(
            new.iterdir(), key=lambda path: path.name == "train.yaml"
        ):  # that one last
            path.rename(out / path.name)
    fsync_path(out)
    return vocabulary


def _read_model(folder: Path) -> tuple[EncoderDescription, dict[str, Any]]:
    """The encoder, and the content of `vocab.json`."""
    refuse_other_form(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"--hf {folder}", "has no config.json", "give a folder in Hugging Face's layout"
        )
    description = read_description(folder)
    if description.kind == "whisper":
        found = "is Whisper, whose decoder is not used here"
        raise ConfigError(
            f"--hf {folder}", found, "train CTC on its encoder with encoder: pretrained"
        )
    return description, read_encoder_json(
        folder / "vocab.json", "only models with this file can be used"
    )


def _config(folder: Path, description: EncoderDescription, lang: str | None) -> ExperimentConfig:
    """The settings, with the masks of the model's training, and a learning rate for training it
    further.
    """
    theirs = description.config
    masks = {
        "mask_time": theirs.get("mask_time_prob", 0.05),
        "mask_feature": theirs.get("mask_feature_prob", 0.0),
    }
    conf: dict[str, Any] = {
        name: share for name, share in masks.items() if theirs.get("apply_spec_augment", True)
    }
    conf |= {"path": "encoder.json", "adapter": lang if description.has_language_adapters else None}
    settings = {
        "encoder": "pretrained",
        "encoder_conf": conf,
        "decoder": "none",
        "dataset_conf": {"spec_aug": False},
    }
    settings |= {"optim_conf": {"lr": 1e-4}, "scheduler_conf": {"warmup_steps": 500}}
    try:
        return ExperimentConfig.model_validate(
            {**settings, "tokenizer_conf": {"symbol_table_path": "units.txt"}}
        )
    except ValidationError as error:  # of its masks
        found = ", ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        fault = f"mask_time_prob or mask_feature_prob: {found}"
        raise ConfigError(folder / "config.json", fault, "correct it there") from error


def _choose_adapter(
    folder: Path, description: EncoderDescription, ids: Mapping[str, Any], lang: str | None
) -> str | None:
    """The language whose adapter file is read; None where the other weights have all.

    Never that of another language.

    Raises ConfigError if `lang` is missing, unknown or without effect.
    """
    has_adapters = description.has_language_adapters
    of_ids = {name for name, value in ids.items() if isinstance(value, dict)}
    if not has_adapters and not of_ids:
        if lang is not None:
            raise ConfigError(
                f"--lang {lang}", "this model has no parts for languages", "leave it out"
            )
        return None
    files = {
        one.name[len("adapter.") : -len(".safetensors")]
        for one in folder.glob("adapter.*.safetensors")
    }
    is_single = (
        not files and len(of_ids) < 2
    )  # saved after fine-tuning, with the adapters among the other weights
    known = of_ids if is_single or not has_adapters else files & of_ids if of_ids else files
    listed = list_names(sorted(known))
    if lang is None:
        found = f"has parts for languages: {listed or 'one that is not named'}"
        raise ConfigError(f"--hf {folder}", found, "name the language with --lang")
    if lang not in known and (known or not is_single):
        to_do = f"use one of {listed}" if known else f"download adapter.{lang}.safetensors"
        raise ConfigError(
            f"--lang {lang}", f"{folder} has no adapter and vocabulary of this language", to_do
        )
    return lang if lang in files and has_adapters else None


def read_vocabulary(
    folder: Path, ids: Mapping[str, int], blank: int | None, num_rows: int
) -> Vocabulary:
    """The units that the tokens of a tokenizer become.

    Args:
        ids: the id of each token, of `vocab.json`.
        blank: `pad_token_id` of `config.json`, the blank of CTC.
        num_rows: rows of `lm_head`.
    Raises: DataError if the tokens are not those of the rows, or cannot be units.
    """
    paths = (folder / "special_tokens_map.json", folder / "tokenizer_config.json")
    of_map, config = (read_encoder_json(path) if path.exists() else {} for path in paths)
    # As in transformers: the config counts more than the map only if it describes the added tokens.
    merged = of_map | config if "added_tokens_decoder" in config else config | of_map
    settings = {key: _content(value) for key, value in merged.items()}
    tokens = _tokens_by_id(folder, ids, settings.get("added_tokens_decoder") or {}, num_rows)

    def find(key: str, *names: str) -> int:
        wanted = (settings.get(key), *names)
        return next(
            (number for name in wanted for number, token in tokens.items() if token == name), -1
        )

    pad = find("pad_token")
    blank = pad if blank is None else blank
    if blank not in tokens or (settings.get("pad_token") and pad != blank):
        found = f"pad_token_id is {blank}, but the tokenizer's pad token {settings.get('pad_token')!r} has the id {pad}"
        raise DataError(folder / "config.json", found, "set the one that the training had as blank")
    space, unk = find("word_delimiter_token", "|"), find("unk_token", "<unk>", "[UNK]")
    both = dict.fromkeys((find("bos_token", "<s>"), find("eos_token", "</s>")))
    ends = [number for number in both if number not in (-1, blank, unk, space)]
    roles = dict(zip(ends, (SOS, EOS) if len(ends) == 2 else (SOS_EOS,), strict=False))
    roles |= {space: SPACE, unk: UNK, blank: BLANK}
    to_case = str.lower if settings.get("do_lower_case") else str
    units = [roles.get(number) or to_case(tokens[number]) for number in range(num_rows)]
    units += [] if ends else [SOS_EOS]
    number_of = {unit: number for number, unit in enumerate(units)}
    sos, eos = (number_of.get(name, number_of.get(SOS_EOS, 0)) for name in (SOS, EOS))
    try:
        table = UnitTable(tuple(units), SpecialIds(number_of[BLANK], number_of.get(UNK), sos, eos))
    except ValueError as error:
        lower = (
            " in lower case (do_lower_case of tokenizer_config.json)"
            if to_case is str.lower
            else ""
        )
        to_do = "write another token there: only its id matters"
        raise DataError(folder / "vocab.json", f"{error}{lower}", to_do) from error
    named = {BLANK, UNK, SOS_EOS, SOS, EOS, *table.marked_units}
    long_units = [unit for unit in table.units if len(unit) > 1 and unit not in named]
    is_of_characters = space >= 0 or not long_units  # without a space, long units are phones
    if is_of_characters and settings.get("tokenizer_class") != "Wav2Vec2PhonemeCTCTokenizer":
        return Vocabulary(table, "char")
    units = [tokens[number] if number == space else unit for number, unit in enumerate(units)]
    return Vocabulary(replace(table, units=tuple(units)), "phone")


def _tokens_by_id(
    folder: Path, ids: Mapping[str, int], more: Mapping[str, Any], num_rows: int
) -> dict[int, str]:
    """The token of each row. One that was added to those of `vocab.json` counts if it has a row."""
    path = folder / "added_tokens.json"
    added = {
        number: token
        for token, number in (read_encoder_json(path) if path.exists() else {}).items()
    }
    try:
        added |= {int(number): _content(token) for number, token in more.items()}
        added = {number: str(token) for number, token in added.items() if isinstance(number, int)}
    except (ValueError, AttributeError) as error:
        to_do = "download it again"
        raise DataError(
            folder / "tokenizer_config.json", "its added_tokens_decoder is damaged", to_do
        ) from error
    tokens = {number: token for number, token in added.items() if number < num_rows}
    tokens |= {number: token for token, number in ids.items() if isinstance(number, int)}
    if tokens.keys() != set(range(num_rows)):
        found = f"{len(tokens)} tokens with ids to {max(tokens, default=0)}, but lm_head has {num_rows} rows"
        raise DataError(
            folder / "vocab.json", found, "take the vocab.json that belongs to the weights"
        )
    return tokens


def _content(token: Any) -> Any:
    """The text of a token that is described by a section."""
    return token["content"] if isinstance(token, dict) and "content" in token else token
