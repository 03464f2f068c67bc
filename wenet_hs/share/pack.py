# SPDX-License-Identifier: Apache-2.0
"""Packs an experiment folder to share it: weights as safetensors, settings without private paths, a
model card.
"""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path, PureWindowsPath
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
from wenet_hs.runs.record import DataFile, DataLists, RunProgress, RunRecord, Start, write_run
from wenet_hs.share.card import (
    SPDX,
    UNKNOWN,
    PackOptions,
    is_card,
    known_license,
    read_card,
    renew_consent,
    write_card,
)
from wenet_hs.share.trained_on import read_consents
from wenet_hs.train.model_folder import FOLDER_NAMES
from wenet_hs.tree import load_tree
from wenet_hs.tree.atomic import fsync_path, open_atomic, write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names, one_line

logger = logging.getLogger(__name__)

_PUBLISHED_WARNINGS = (
    "overfitted",
    "ctc_on_plateau",
    "ended_in_warmup",
    "all_in_warmup",
    "ends_before_schedule",
)
"""Codes of warnings that are published: their sentences name no path and no utterance."""
PRIVATE_PATH = re.compile(
    r"(?<![\w/.])(?:file:/+[\w.-]|~(?:[A-Za-z_]\w*)?/\w|\.\./[\w.]|\$\{?[A-Za-z_]\w*\}?/|/[\w.-]{2,}/[\w.-]|[A-Za-z]:\\+\w|\\\\\w)[^\s\"')]*"
)
"""A path that is absolute and has at least two parts, or begins with a home folder, a variable or
`..`; no URL, no phone between slashes.
"""
_TREE_FILES = ("data_list", "text", "bpe_model", "folder", "file", "embeddings", "checkpoint")
"""Options of a tree that name files or folders."""


def pack_model(options: PackOptions) -> Path:
    """Write the model to `out`, a folder or a ZIP, whole or not at all, and upload it if `push` is
    given.

    Raises CheckpointError, DataError or ConfigError if the folder does not load, `out` exists, a
    recording of the training must not be shared, the card would publish a private path, or the
    upload fails.
    """
    out = options.out
    suffix = out.suffix.lower()
    is_zip = suffix == ".zip"
    is_only_card = suffix == ".md"
    _check_out(out, overwrite=options.overwrite)
    if is_only_card and options.push:
        raise ConfigError(
            f"--push {options.push}", f"only the card is written to {out}", "leave one of them out"
        )
    hub_name = split_hub_name(options.push) if options.push else None
    if options.push and hub_name and not options.overwrite:
        with open_hub(options.push, "uploaded") as hub:
            is_taken = hub.repo_exists(hub_name[0])
        if is_taken:
            raise DataError(
                f"--push {options.push}", "exists already", "name another one, or add --overwrite"
            )
    experiment = load_experiment(options.model_dir)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        _write_files(folder, experiment, options)
        if is_only_card:
            write_atomic(out, (folder / "README.md").read_bytes())
        elif is_zip:
            _write_zip(folder, out)
        else:
            for path in (*folder.iterdir(), folder):
                fsync_path(path)
            if out.exists():
                out.rename(Path(temporary) / "replaced")
            folder = folder.rename(out)
        if options.push:
            _upload(folder, options)
    return out


def _upload(folder: Path, options: PackOptions) -> None:
    """Put the files into a repository of the hub, and delete those of an earlier upload."""
    assert options.push is not None
    name, revision = split_hub_name(options.push)
    with open_hub(options.push, "uploaded") as hub:
        hub.create_repo(name, private=True, exist_ok=options.overwrite)
        if revision and not revision.startswith("refs/"):
            hub.create_branch(name, branch=revision, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=str(folder),
            revision=revision,
            delete_patterns=list(MODEL_FILES),
        )


def _check_out(out: Path, *, overwrite: bool) -> None:
    """Raise DataError if `out` has no name for a card, or exists and must not be replaced."""
    others = (
        [path.name for path in out.iterdir() if path.name not in MODEL_FILES]
        if out.is_dir()
        else []
    )
    found, to_do = (
        f"exists already{' with ' if others else ''}{list_names(others)}",
        "name another one",
    )
    if out.exists() and (others or not overwrite or not _is_replaceable(out)):
        raise DataError(
            f"--out {out}", found, f"{to_do}; --overwrite replaces only what this command wrote"
        )
    if not out.name.isprintable():
        raise DataError(
            f"--out {str(out)!r}", "a name with characters that cannot be printed", to_do
        )


def _is_replaceable(out: Path) -> bool:
    """Whether this command wrote it, or it is an empty folder."""
    if out.is_dir() == (out.suffix.lower() in (".md", ".zip")):
        return False
    if out.suffix.lower() == ".md":
        return is_card(out)
    return is_packed(out) or (out.is_dir() and not any(out.iterdir()))


def _write_files(folder: Path, experiment: Experiment, options: PackOptions) -> None:
    """Write all files of the packed model into an empty folder.

    Weights get the names of this release.
    """
    settings = _copy_named_files(folder, experiment)
    encoder = experiment.model_dir / "encoder.json"
    if encoder.is_file():
        public = without_folders(read_json(encoder, "copy it again"))
        settings["encoder_conf"] |= {"cache": None} if "cache" in settings["encoder_conf"] else {}
        write_atomic(folder / encoder.name, json.dumps(public, ensure_ascii=False, indent=1) + "\n")
    weights = {name: value.contiguous() for name, value in experiment.model.state_dict().items()}
    try:
        save_file(weights, folder / WEIGHTS)
    except SafetensorError as error:
        to_do = "free some space, or name another disk"
        raise DataError(
            f"--out {options.out}", f"cannot be written ({one_line(error)})", to_do
        ) from error
    (folder / WEIGHTS).chmod(
        (folder / "units.txt").stat().st_mode
    )  # save_file gives no rights to others
    published = publish_run(experiment.run, is_overfitted=experiment.is_overfitted)
    sums = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    published = published.model_copy(update={"files": sums})
    write_run(folder, published)
    consents = read_consents(experiment, options.consent)
    lines = summarise_consent(consents)
    license_id = _write_license(
        folder, options.license or known_license(experiment.model_dir, options.card)
    )
    card = write_card(experiment, options, published, license_id, lines)
    if options.card is not None:
        card = renew_consent(read_card(options, published, license_id), lines)
    if found := PRIVATE_PATH.search(card):
        raise ConfigError(
            "the model card", f"would publish the path {found[0]}", "remove it from the texts"
        )
    write_atomic(folder / "README.md", card)
    config = ExperimentConfig.model_validate(without_folders(settings))
    dump_config(config, folder / "train.yaml")


def publish_run(run: RunRecord, *, is_overfitted: bool) -> RunRecord:
    """The facts of a record that are published: versions, kinds of processors, sums, steps and
    warnings.

    Paths, commands, the machine and the times of the starts are not.
    """
    steps_done = None
    if run.progress is not None:
        progress = run.progress
        steps_done = RunProgress(step=progress.step, epoch=progress.epoch, seconds=progress.seconds)
    weights = run.first_weights
    if weights is not None and not (weights.name or "").startswith("hf:"):
        weights = weights.model_copy(update={"name": None})
    return RunRecord(
        model=run.model,
        starts=tuple(map(_publish_start, run.starts)),
        lists=DataLists(
            kind=run.lists.kind,
            train=tuple(DataFile(path=None, sha256=sha256) for sha256 in run.lists.train_sums),
        ),
        first_weights=weights,
        encoder_sha256=run.encoder_sha256,
        head=run.head,
        ctc_head=run.ctc_head,
        trees=run.trees,
        seed=run.seed,
        steps=run.steps,
        progress=steps_done,
        warnings=tuple(warning for warning in run.warnings if warning.code in _PUBLISHED_WARNINGS),
        is_overfitted=is_overfitted,
    )


def _publish_start(start: Start) -> Start:
    """Processors, ranks and versions; a text with a path is left out."""
    return Start(
        step=start.step,
        processors=tuple(kind for kind in start.processors if not PRIVATE_PATH.search(kind)),
        ranks=start.ranks,
        python=_publish_text(start.python),
        packages={
            name: text for name, text in start.packages.items() if not PRIVATE_PATH.search(text)
        },
        commit=_publish_text(start.commit),
    )


def _publish_text(text: str | None) -> str | None:
    return None if text is None or PRIVATE_PATH.search(text) else text


def _copy_named_files(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Copy units, trees, BPE model and statistics under their usual names.

    Returns the settings with these names.
    """
    settings = experiment.config.model_dump(mode="json")
    settings["tokenizer_conf"]["symbol_table_path"] = (
        settings["tokenizer_conf"]["symbol_table_path"] or "units.txt"
    )
    for setting, name in FOLDER_NAMES.items():
        *parents, key = setting.split(".")
        section = reduce(getitem, parents, settings)
        named = Path(section.get(key) or "").name
        if not named or (name == "global_cmvn" and not (experiment.model_dir / named).is_file()):
            continue  # the weights have the statistics too
        source, section[key] = in_folder(experiment.model_dir, named, name), name
        if name in TREE_FILES.values():
            tree = load_tree(source)
            options = {key: value for key, value in tree.options.items() if key not in _TREE_FILES}
            replace(tree, options=without_folders(options)).save(folder / name)
        elif name == "bpe.model":
            blank_texts(memoryview(model := bytearray(source.read_bytes())), TRAINING_FILES)
            write_atomic(folder / name, bytes(model))
        else:
            shutil.copyfile(source, folder / name)
    return settings


TRAINING_FILES: Mapping[int, Any] = {2: {1: None, 2: None, 54: None}, 3: {6: None}, 5: {6: None}}
"""Fields of a sentencepiece model with paths: input, model_prefix and seed_sentencepieces_file of
its trainer_spec, normalization_rule_tsv of its normalizer_spec and denormalizer_spec. Its tokens do
not depend on them.
"""


def blank_texts(message: memoryview, fields: Mapping[int, Any]) -> None:
    """Overwrite texts of a message of protobuf in place, so that no length changes.

    sentencepiece's own protobuf classes cannot be in one process with those of transformers.

    `fields`: number of a field → None: its text, or the fields of the message in it.
    """
    end = 0
    while end < len(message):
        tag, end = _varint(message, end)
        number, kind = tag >> 3, tag & 7
        size, start = _varint(message, end) if kind in (0, 2) else ({1: 8, 5: 4}[kind], end)
        end = start + (size if kind else 0)
        if number in fields and kind == 2:
            content, inner = message[start:end], fields[number]
            if inner is None:
                content[:] = b"-" * size
            else:
                blank_texts(content, inner)


def _varint(message: memoryview, start: int) -> tuple[int, int]:
    """The number there: 7 bits per byte, the lowest first, 128 added to all but the last.

    And where it ends.
    """
    end = next(at for at in range(start, len(message)) if message[at] < 128) + 1
    return sum((byte & 127) << 7 * place for place, byte in enumerate(message[start:end])), end


def without_folders(value: Any) -> Any:
    """A value of a YAML or JSON file in which each path is its last name, without where
    transformers loaded it.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(one) for key, one in value.items() if key != "_name_or_path"}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return (
        PureWindowsPath(value).name
        if isinstance(value, str) and re.search(r"[/\\]", value)
        else value
    )


def _write_license(folder: Path, given: str | None) -> str:
    """The licence's name on the hub; a file is copied as LICENSE."""
    if given is None:
        logger.warning("no --license: the card says %r, and others may not use the model", UNKNOWN)
        return "unknown"
    if given == "other":
        raise ConfigError("--license", "a licence without a name", "give a file with its text")
    if SPDX.fullmatch(given) and not Path(given).is_file():
        return given.lower()
    shutil.copyfile(given, folder / "LICENSE")
    return "other"


def _write_zip(folder: Path, out: Path) -> None:
    """A ZIP with one folder in it, without times.

    Weights hardly compress, so nothing is compressed.
    """
    with open_atomic(out) as file, ZipFile(file, "w") as zipped:
        for path in sorted(folder.iterdir()):
            info = ZipInfo(f"{out.stem}/{path.name}")
            info.external_attr = 0o644 << 16
            with path.open("rb") as source, zipped.open(info, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 1 << 20)
