# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned CTC models in Hugging Face's layout → a model folder of ours with the same outputs.

Such a folder has what encoders/description.py reads, `lm_head.*` among its weights, `vocab.json`
(tokens with ids; of MMS by language), and perhaps `added_tokens.json`, `special_tokens_map.json`,
`tokenizer_config.json` and `adapter.LANG.safetensors`. Unit i of our table is token i, so the rows
of `lm_head` keep their order.

Dimension key: V rows of `lm_head`, D width of the encoder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from wenet_hs.base.files import file_sha256
from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.interop.vocabulary import Vocabulary, read_vocabulary
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
from wenet_hs.text.units import UnitTable
from wenet_hs.tree.atomic import fsync_path, write_atomic
from wenet_hs.tree.errors import CheckpointError, ConfigError, list_names

_NEVER = -1e4
"""The score of `<sos/eos>` where a vocabulary has neither `<s>` nor `</s>`: its probability is 0."""


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
    _check_out(out)
    description = _read_encoder_description(folder)
    vocab = read_encoder_json(folder / "vocab.json", "only models with this file can be used")
    adapter = _choose_adapter(folder, description, vocab, lang)
    config = _make_config(folder, description, lang)
    assert isinstance(config.encoder_conf, PretrainedConf)
    encoder = make_pretrained(description, config.encoder_conf)
    head_weights = load_pretrained(encoder.pretrained, folder, adapter)
    weight_VD, bias_V = _find_output_layer(head_weights, folder, adapter, encoder.output_size)
    vocabulary = read_vocabulary(
        folder,
        _ids_of_language(vocab, lang),
        blank=description.config.get("pad_token_id", 0),
        num_rows=len(bias_V),
    )
    if len(vocabulary.table) > len(bias_V):  # <sos/eos> was added
        weight_VD = torch.cat([weight_VD, torch.zeros_like(weight_VD[:1])])
        bias_V = torch.cat([bias_V, torch.tensor([_NEVER])])
    state = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    state["ctc.head.output.weight"] = weight_VD
    state["ctc.head.output.bias"] = bias_V
    config = config.model_copy(update={"tokenizer": vocabulary.tokenizer})
    run = RunRecord(
        starts=(Start(command=tuple(command)),), encoder_sha256=hash_pretrained(folder, adapter)
    )
    _write_model_folder(out, vocabulary.table, description, state, config, run)
    return vocabulary


def _write_model_folder(
    out: Path,
    table: UnitTable,
    description: EncoderDescription,
    state: dict[str, Tensor],
    config: ExperimentConfig,
    run: RunRecord,
) -> None:
    """Write all files of a model folder, or none if one cannot be written.

    Args:
        state: the weights, by their names in our model.
        run: the run record, which also gets the SHA-256 of units and description.
    Raises: CheckpointError if the weights cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".import.") as temporary:  # a full disk leaves nothing
        new = Path(temporary)
        table.write(new / "units.txt")
        write_atomic(new / "encoder.json", description.to_json())
        try:
            write_final(new / "final.pt", state, {}, by="import")
        except CheckpointError as error:
            # The user knows `out`, not the temporary folder.
            raise CheckpointError(out / "final.pt", error.found, error.to_do) from error
        sums = {name: file_sha256(new / name) for name in ("units.txt", "encoder.json")}
        write_run(new, run.model_copy(update={"files": sums}))
        dump_config(config, new / "train.yaml")
        _move_files(new, out)
    fsync_path(out)


def _check_out(out: Path) -> None:
    """Raises ConfigError if a folder has one of the files of a model folder."""
    for name in ("train.yaml", "units.txt", "encoder.json", "final.pt"):
        if (out / name).exists():
            raise ConfigError(f"--out {out}", f"has a {name} already", "name another folder")


def _move_files(source: Path, out: Path) -> None:
    """Move the files of a folder, train.yaml last: a folder with it is a whole model."""
    others = [path for path in source.iterdir() if path.name != "train.yaml"]
    for path in (*others, source / "train.yaml"):
        path.rename(out / path.name)


# ---- what the folder has


def _read_encoder_description(folder: Path) -> EncoderDescription:
    """The description of the encoder.

    Raises ConfigError or CheckpointError if the folder has another form, or is of Whisper, which
    has no CTC layer.
    """
    refuse_other_form(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"--hf {folder}", "has no config.json", "give a folder in Hugging Face's layout"
        )
    description = read_description(folder)
    if description.kind == "whisper":
        raise ConfigError(
            f"--hf {folder}",
            "is Whisper, whose decoder is not used here",
            "train CTC on its encoder with encoder: pretrained",
        )
    return description


def _ids_of_language(vocab: Mapping[str, Any], lang: str | None) -> Mapping[str, int]:
    """The ids of the tokens, of `vocab.json`: those of the language if it has parts for them."""
    of_language = None if lang is None else vocab.get(lang)
    return of_language if isinstance(of_language, dict) else vocab


def _choose_adapter(
    folder: Path, description: EncoderDescription, vocab: Mapping[str, Any], lang: str | None
) -> str | None:
    """The language whose adapter file is read, never that of another language.

    None if no adapter file is needed: for a model without adapters, and for one that was saved
    after fine-tuning to a single language, with the adapters among its other weights.

    Raises ConfigError if the model has parts for languages and `lang` is not one of them, or if it
    has none and `lang` is given.
    """
    has_adapters = description.has_language_adapters
    with_vocabulary = {name for name, value in vocab.items() if isinstance(value, dict)}
    if not has_adapters and not with_vocabulary:
        if lang is not None:
            raise ConfigError(
                f"--lang {lang}", "this model has no parts for languages", "leave it out"
            )
        return None
    with_adapter_file = _list_adapters(folder)
    # Saved after fine-tuning to one language: its adapters are among the other weights.
    is_of_one_language = not with_adapter_file and len(with_vocabulary) < 2
    if is_of_one_language or not has_adapters:
        languages = with_vocabulary
    elif with_vocabulary:
        languages = with_adapter_file & with_vocabulary  # a language needs both
    else:
        languages = with_adapter_file
    is_unnamed = is_of_one_language and not languages
    _check_language(folder, lang, languages, is_unnamed=is_unnamed)
    needs_adapter_file = has_adapters and lang in with_adapter_file
    return lang if needs_adapter_file else None


def _check_language(
    folder: Path, lang: str | None, languages: set[str], *, is_unnamed: bool
) -> None:
    """Raises ConfigError unless `lang` is one of the languages of a model.

    `is_unnamed`: the files do not name its only language. So any `lang` is right, but one must be
    given.
    """
    listed = list_names(sorted(languages))
    if lang is None:
        known = listed or "one that is not named"
        raise ConfigError(
            f"--hf {folder}",
            f"has parts for languages: {known}",
            "name the language with --lang",
        )
    if lang not in languages and not is_unnamed:
        to_do = f"use one of {listed}" if languages else f"download adapter.{lang}.safetensors"
        raise ConfigError(
            f"--lang {lang}", f"{folder} has no adapter and vocabulary of this language", to_do
        )


def _list_adapters(folder: Path) -> set[str]:
    """The languages of the files `adapter.LANG.safetensors`."""
    languages = set[str]()
    for path in folder.glob("adapter.*.safetensors"):
        languages.add(path.name.removeprefix("adapter.").removesuffix(".safetensors"))
    return languages


def _find_output_layer(
    head_weights: Mapping[str, Tensor], folder: Path, adapter: str | None, width: int
) -> tuple[Tensor, Tensor]:
    """Weight (V, D) and bias (V,) of the output layer of CTC.

    Args:
        head_weights: as `load_pretrained` returns them.
        adapter: the language of the adapter file that should have the layer; None: other weights.
        width: D.
    Raises: CheckpointError if the layer is missing or of another shape.
    """
    if "lm_head.weight" not in head_weights or "lm_head.bias" not in head_weights:
        if adapter is not None:
            raise CheckpointError(
                adapter_file(folder, adapter), "has no output layer (lm_head)", "download it again"
            )
        raise CheckpointError(
            f"--hf {folder}",
            "has no output layer of CTC (lm_head)",
            "take a model that was fine-tuned with CTC, or train with this encoder",
        )
    weight = head_weights["lm_head.weight"]
    bias = head_weights["lm_head.bias"]
    if bias.dim() != 1 or weight.shape != (len(bias), width):
        shapes = f"lm_head.weight {tuple(weight.shape)} and lm_head.bias {tuple(bias.shape)}"
        raise CheckpointError(
            f"--hf {folder}",
            f"{shapes}, expected (V, {width}) and (V,)",
            "config.json and the weights are not of one model",
        )
    return weight, bias


def _make_config(
    folder: Path, description: EncoderDescription, lang: str | None
) -> ExperimentConfig:
    """The settings of the model folder, to recognise and to train it further.

    The masks are those of the model's training, with the defaults of transformers. The learning
    rate is a low one. Raises ConfigError if the masks are not allowed here.
    """
    encoder_conf: dict[str, Any] = {"path": "encoder.json", "adapter": None}
    if description.has_language_adapters:
        encoder_conf["adapter"] = lang
    model_config = description.config
    if model_config.get("apply_spec_augment", True):
        encoder_conf["mask_time"] = model_config.get("mask_time_prob", 0.05)
        encoder_conf["mask_feature"] = model_config.get("mask_feature_prob", 0.0)
    settings = {
        "encoder": "pretrained",
        "encoder_conf": encoder_conf,
        "decoder": "none",
        "dataset_conf": {"spec_aug": False},
        "optim_conf": {"lr": 1e-4},
        "scheduler_conf": {"warmup_steps": 500},
        "tokenizer_conf": {"symbol_table_path": "units.txt"},
    }
    try:
        return ExperimentConfig.model_validate(settings)
    except ValidationError as error:  # only the masks are not ours
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ConfigError(
            folder / "config.json",
            f"mask_time_prob or mask_feature_prob: {', '.join(faults)}",
            "correct it there",
        ) from error
