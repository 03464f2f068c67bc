# SPDX-License-Identifier: Apache-2.0
"""Packs an experiment folder to share it: weights as safetensors, settings, a model card."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile, ZipInfo

from safetensors import SafetensorError
from safetensors.torch import save_file

from wenet_hs.base.files import file_sha256, read_json
from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.consent import summarise_consent
from wenet_hs.model.experiment import TREE_FILES, Experiment, in_folder, load_experiment
from wenet_hs.model.packed import MODEL_FILES, WEIGHTS, is_packed, open_hub, split_hub_name
from wenet_hs.runs.record import RunRecord, write_run
from wenet_hs.share.card import UNKNOWN, write_card
from wenet_hs.share.edited_card import (
    find_license,
    is_card,
    is_license_name,
    read_edited_card,
    renew_consent,
)
from wenet_hs.share.options import PackOptions
from wenet_hs.share.privacy import (
    BPE_PATHS,
    PRIVATE_PATH,
    blank_texts,
    publish_run,
    without_folders,
)
from wenet_hs.share.trained_on import read_consents
from wenet_hs.train.model_folder import FOLDER_NAMES
from wenet_hs.tree import load_tree
from wenet_hs.tree.atomic import fsync_path, open_atomic, write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names, one_line

logger = logging.getLogger(__name__)

_FILES_OF_TREE = ("data_list", "text", "bpe_model", "folder", "file", "embeddings", "checkpoint")
"""Options of a tree that name files or folders."""
_READABLE_BY_ALL = 0o644 << 16
"""Permissions of a file in a ZIP: the upper half of its attributes."""
_COPY_BYTES = 1 << 20


def pack_model(options: PackOptions) -> Path:
    """Write the model to `out`, a folder, a ZIP or only its card, whole or not at all. Returns `out`.

    If `push` is given, it is uploaded afterwards.

    Raises CheckpointError, DataError or ConfigError if the folder does not load, `out` exists, a
    recording of the training must not be shared, the card would publish a private path, or the
    upload fails.
    """
    out = options.out
    _check_out(options)
    if options.is_only_card and options.push:
        raise ConfigError(
            f"--push {options.push}", f"only the card is written to {out}", "leave one of them out"
        )
    if options.push:
        _check_push(options.push, overwrite=options.overwrite)
    experiment = load_experiment(options.model_dir)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        _write_files(folder, experiment, options)
        if options.is_only_card:
            write_atomic(out, (folder / "README.md").read_bytes())
        elif options.is_zip:
            _write_zip(folder, out)
        else:
            for path in (*folder.iterdir(), folder):
                fsync_path(path)
            if out.exists():
                out.rename(Path(temporary) / "replaced")  # removed with the temporary folder
            folder = folder.rename(out)
        if options.push:
            _upload(folder, options.push, overwrite=options.overwrite)
    return out


# ---- the place of the result


def _check_out(options: PackOptions) -> None:
    """Raise DataError if `out` has no name for a card, or exists and must not be replaced."""
    out = options.out
    if out.exists():
        others = _list_other_files(out)
        may_be_replaced = options.overwrite and not others and _is_replaceable(options)
        if not may_be_replaced:
            with_others = f" with {list_names(others)}" if others else ""
            raise DataError(
                f"--out {out}",
                f"exists already{with_others}",
                "name another one; --overwrite replaces only what this command wrote",
            )
    if not out.name.isprintable():
        raise DataError(
            f"--out {str(out)!r}",
            "a name with characters that cannot be printed",
            "name another one",
        )


def _list_other_files(out: Path) -> list[str]:
    """The names of what is in a folder and is no file of a packed model; none for a file."""
    if not out.is_dir():
        return []
    return [path.name for path in out.iterdir() if path.name not in MODEL_FILES]


def _is_replaceable(options: PackOptions) -> bool:
    """Whether this command wrote what exists at `out`, or it is an empty folder.

    A folder is never replaced by a file, nor a file by a folder.
    """
    out = options.out
    will_be_folder = not (options.is_only_card or options.is_zip)
    if out.is_dir() != will_be_folder:
        return False
    if options.is_only_card:
        return is_card(out)
    is_empty_folder = out.is_dir() and not any(out.iterdir())
    return is_empty_folder or is_packed(out)


def _check_push(push: str, *, overwrite: bool) -> None:
    """Raises ConfigError if `push` names no model of the hub.

    Without `overwrite`, raises DataError if the hub has a model of this name.
    """
    name, _ = split_hub_name(push)
    if overwrite:
        return
    with open_hub(push, "uploaded") as hub:
        is_taken = hub.repo_exists(name)
    if is_taken:
        raise DataError(f"--push {push}", "exists already", "name another one, or add --overwrite")


# ---- the files


def _write_files(folder: Path, experiment: Experiment, options: PackOptions) -> None:
    """Write all files of the packed model into an empty folder.

    The weights get the names of this release. Raises DataError if a recording of the training must
    not be shared or a file cannot be read or written, and ConfigError for the card or the licence.
    """
    settings = _copy_named_files(folder, experiment)
    _copy_encoder_description(folder, experiment.model_dir, settings["encoder_conf"])
    _save_weights(folder, experiment, options)
    sums = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    published = publish_run(experiment.run, is_overfitted=experiment.is_overfitted)
    published = published.model_copy(update={"files": sums})
    write_run(folder, published)
    consent_lines = summarise_consent(read_consents(experiment, options.consent))
    licence = options.license or find_license(experiment.model_dir, options.card)
    license_id = _write_license(folder, licence)
    card = _make_card(experiment, options, published, license_id, consent_lines)
    write_atomic(folder / "README.md", card)
    config = ExperimentConfig.model_validate(without_folders(settings))
    dump_config(config, folder / "train.yaml")


def _copy_named_files(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Copy units, trees, BPE model and statistics under their usual names.

    Returns the settings of the model with these names.
    """
    settings = experiment.config.model_dump(mode="json")
    tokenizer_conf = settings["tokenizer_conf"]
    tokenizer_conf["symbol_table_path"] = tokenizer_conf["symbol_table_path"] or "units.txt"
    for setting, name in FOLDER_NAMES.items():
        *parents, key = setting.split(".")
        section = settings
        for parent in parents:
            section = section[parent]
        own_name = Path(section.get(key) or "").name
        if not own_name:
            continue  # the model has no such file
        if name == "global_cmvn" and not (experiment.model_dir / own_name).is_file():
            continue  # the weights have the statistics too
        source = in_folder(experiment.model_dir, own_name, name)
        section[key] = name
        if name in TREE_FILES.values():
            _copy_tree(source, folder / name)
        elif name == "bpe.model":
            _copy_bpe_model(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)
    return settings


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a tree without the options that name files, and without the folders in the others."""
    tree = load_tree(source)
    options = {key: value for key, value in tree.options.items() if key not in _FILES_OF_TREE}
    replace(tree, options=without_folders(options)).save(target)


def _copy_bpe_model(source: Path, target: Path) -> None:
    """Copy a BPE model without the paths of its training."""
    model = bytearray(source.read_bytes())
    blank_texts(memoryview(model), BPE_PATHS)
    write_atomic(target, bytes(model))


def _copy_encoder_description(folder: Path, model_dir: Path, encoder_conf: dict[str, Any]) -> None:
    """Copy the description of a pretrained encoder without paths, if the model has one.

    Then the folder of its cache is removed from the settings `encoder_conf`.
    """
    source = model_dir / "encoder.json"
    if not source.is_file():
        return
    if "cache" in encoder_conf:
        encoder_conf["cache"] = None
    public = without_folders(read_json(source, "copy it again"))
    write_atomic(folder / source.name, json.dumps(public, ensure_ascii=False, indent=1) + "\n")


def _save_weights(folder: Path, experiment: Experiment, options: PackOptions) -> None:
    """Write the weights as safetensors. Raises DataError if that fails."""
    state = experiment.model.state_dict()
    weights = {name: value.contiguous() for name, value in state.items()}
    path = folder / WEIGHTS
    try:
        save_file(weights, path)
    except SafetensorError as error:
        raise DataError(
            f"--out {options.out}",
            f"cannot be written ({one_line(error)})",
            "free some space, or name another disk",
        ) from error
    # save_file gives no rights to other users. All other files have the usual ones.
    usual_mode = (folder / "units.txt").stat().st_mode
    path.chmod(usual_mode)


def _write_license(folder: Path, stated: str | None) -> str:
    """Copy a licence that is a file. Returns its name on the hub.

    The name is an SPDX name in lower case, `other` for a file, or `unknown`.

    Args:
        stated: an SPDX name, or a file with the text, which is copied as LICENSE; None: a warning
            is logged.

    Raises ConfigError for `other` without a text.
    """
    if stated is None:
        logger.warning("no --license: the card says %r, and others may not use the model", UNKNOWN)
        return "unknown"
    if stated == "other":
        raise ConfigError("--license", "a licence without a name", "give a file with its text")
    if is_license_name(stated):
        return stated.lower()
    shutil.copyfile(stated, folder / "LICENSE")
    return "other"


def _make_card(
    experiment: Experiment,
    options: PackOptions,
    published: RunRecord,
    license_id: str,
    consent_lines: Sequence[str],
) -> str:
    """The text of the card: a new one, or the edited one with its section on consent renewed.

    Raises ConfigError if it would publish a private path, DataError as `write_card` and
    `read_edited_card`.
    """
    # It also reads the scores, which must not be damaged for an edited card either.
    card = write_card(experiment, options, published, license_id, consent_lines)
    if options.card is not None:
        edited = read_edited_card(options.card, options, published, license_id)
        card = renew_consent(edited, consent_lines)
    private_path = PRIVATE_PATH.search(card)
    if private_path is not None:
        raise ConfigError(
            "the model card",
            f"would publish the path {private_path[0]}",
            "remove it from the texts",
        )
    return card


# ---- ZIP and hub


def _write_zip(folder: Path, out: Path) -> None:
    """Write a ZIP with one folder, named as the ZIP, that has the files of `folder`.

    It contains no times. Nothing is compressed, because weights hardly compress.
    """
    with open_atomic(out) as file, ZipFile(file, "w") as zipped:
        for path in sorted(folder.iterdir()):
            info = ZipInfo(f"{out.stem}/{path.name}")
            info.external_attr = _READABLE_BY_ALL
            with path.open("rb") as source, zipped.open(info, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)


def _upload(folder: Path, push: str, *, overwrite: bool) -> None:
    """Put the files into a private repository of the hub, and delete those of an earlier upload.

    Makes the repository, which may exist with `overwrite`, and the branch that `push` names.
    """
    name, revision = split_hub_name(push)
    with open_hub(push, "uploaded") as hub:
        hub.create_repo(name, private=True, exist_ok=overwrite)
        if revision and not revision.startswith("refs/"):
            hub.create_branch(name, branch=revision, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=str(folder),
            revision=revision,
            delete_patterns=list(MODEL_FILES),
        )
