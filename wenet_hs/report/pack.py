# SPDX-License-Identifier: Apache-2.0
"""Packs an experiment folder to share it: weights as safetensors, settings without private paths, a model card."""

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZipFile, ZipInfo

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from safetensors.torch import save_file

from wenet_hs.checkpoint import weights_path
from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.corpus.consent import CONSENT, summarise_consent
from wenet_hs.decode.modes import DEFAULT_MODE, MODES
from wenet_hs.encoders.pretrained import PretrainedEncoder
from wenet_hs.errors import ConfigError, DataError, list_names, one_line
from wenet_hs.experiment import OVERFITTED, SHA256_OF, TREE_FILES, Experiment, in_folder, load_experiment
from wenet_hs.files import file_sha256, fsync_path, open_atomic, read_lines, write_atomic
from wenet_hs.options import REQUIRED, option
from wenet_hs.report.collect import SIMULATED_KEY, read_json, sort_modes
from wenet_hs.report.trained_on import read_consents, read_training_lists
from wenet_hs.score.error_rate import ALL, Report, format_interval, percent
from wenet_hs.score.pairing import command_values
from wenet_hs.score.tables import read_report
from wenet_hs.shared_model import MODEL_FILES, WEIGHTS, is_packed, open_hub, split_hub_name
from wenet_hs.train.model_folder import FOLDER_NAMES
from wenet_hs.tree import load_tree

logger = logging.getLogger(__name__)

UNKNOWN = "unknown: ask the author"
_SUMS = (f"{SHA256_OF}training list", f"{SHA256_OF}checkpoint")
_PUBLISHED = (
    *(f"{SHA256_OF}encoder weights", "git", "python", "processor", "ranks", "wenet_hs", "torch", "transformers"),
    *(OVERFITTED, *_SUMS),
)
"""Keys of the provenance that are published, beside the sums of the files. The command and the machine are not."""
PRIVATE_PATH = re.compile(
    r"(?<![\w/.])(?:file:/+[\w.-]|~(?:[A-Za-z_]\w*)?/\w|\.\./[\w.]|\$\{?[A-Za-z_]\w*\}?/|/[\w.-]{2,}/[\w.-]|[A-Za-z]:\\+\w|\\\\\w)[^\s\"')]*"
)
"""A path that is absolute and has at least two parts, or begins with a home folder, a variable or `..`; no URL, no
phone between slashes."""
_quote = partial(json.dumps, ensure_ascii=False)  # a text in YAML, whose escapes are those of JSON
_SPDX = re.compile(r"[A-Za-z0-9.+-]+")
_TREE_FILES = ("data_list", "text", "bpe_model", "folder", "file", "embeddings", "checkpoint")
"""Options of a tree that name files or folders."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The flags of `wenet-hs pack`."""

    model_dir: Path = option(REQUIRED, "experiment folder, ours or WeNet's")
    out: Path = option(
        REQUIRED, "folder to write, a file that ends with .zip, or with .md: only the card", metavar="DIR|ZIP|MD"
    )
    overwrite: bool = option(False, "replace an earlier result of this command, also on the hub")
    license: str | None = option(None, "of the model: its SPDX name, such as cc-by-4.0, or a file with its text")
    data: str | None = option(None, "what the training data are, in a sentence for the card", metavar="TEXT")
    datasets: tuple[str, ...] = option((), "names of the data sets on the hub, such as mozilla-foundation/common_voice")
    languages: tuple[str, ...] = option((), "codes of its languages (default: those of the lists and scores)")
    card: Path | None = option(None, "edited text of the card; its section on consent is renewed", metavar="MD")
    consent: Path | None = option(
        None, f"consent per recording (default: {CONSENT} in the folder of the project)", metavar="TSV"
    )
    base_model: str | None = option(None, "the model from which the training started, by its name on the hub")
    push: str | None = option(None, "also upload it as private, after `hf auth login`", metavar="hf://USER/NAME")


def pack_model(options: PackOptions) -> Path:
    """Write the model to `out`, a folder or a ZIP, whole or not at all, and upload it if `push` is given.

    Raises CheckpointError, DataError or ConfigError if the folder does not load, `out` exists, a recording of the
    training must not be shared, the card would publish a private path, or the upload fails.
    """
    out, is_zip, is_card = options.out, options.out.suffix.lower() == ".zip", options.out.suffix.lower() == ".md"
    _check_out(out, overwrite=options.overwrite)
    if is_card and options.push:
        raise ConfigError(f"--push {options.push}", f"only the card is written to {out}", "leave one of them out")
    hub_name = split_hub_name(options.push) if options.push else None
    if options.push and hub_name and not options.overwrite:
        with open_hub(options.push, "uploaded") as hub:
            is_taken = hub.repo_exists(hub_name[0])
        if is_taken:
            raise DataError(f"--push {options.push}", "exists already", "name another one, or add --overwrite")
    experiment = load_experiment(options.model_dir)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        _write_files(folder, experiment, options)
        if is_card:
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
        hub.upload_folder(repo_id=name, folder_path=str(folder), revision=revision, delete_patterns=list(MODEL_FILES))


def _check_out(out: Path, *, overwrite: bool) -> None:
    """Raise DataError if `out` has no name for a card, or exists and must not be replaced."""
    others = [path.name for path in out.iterdir() if path.name not in MODEL_FILES] if out.is_dir() else []
    found, to_do = f"exists already{' with ' if others else ''}{list_names(others)}", "name another one"
    if out.exists() and (others or not overwrite or not _is_replaceable(out)):
        raise DataError(f"--out {out}", found, f"{to_do}; --overwrite replaces only what this command wrote")
    if not out.name.isprintable():
        raise DataError(f"--out {str(out)!r}", "a name with characters that cannot be printed", to_do)


def _is_replaceable(out: Path) -> bool:
    """Whether this command wrote it, or it is an empty folder."""
    if out.is_dir() == (out.suffix.lower() in (".md", ".zip")):
        return False
    if out.suffix.lower() == ".md":
        return "\nlibrary_name: wenet_hs\n" in out.read_text("utf-8", "replace")
    return is_packed(out) or (out.is_dir() and not any(out.iterdir()))


def _write_files(folder: Path, experiment: Experiment, options: PackOptions) -> None:
    """Write all files of the packed model into an empty folder. Weights get the names of this release."""
    settings = _copy_named_files(folder, experiment)
    encoder = experiment.model_dir / "encoder.json"
    if encoder.is_file():
        public = without_folders(read_json(encoder, "copy it again"))
        settings["encoder_conf"] |= {"cache": None} if "cache" in settings["encoder_conf"] else {}
        write_atomic(folder / encoder.name, json.dumps(public, ensure_ascii=False, indent=1) + "\n")
    weights = {name: value.contiguous() for name, value in experiment.model.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    (folder / WEIGHTS).chmod((folder / "units.txt").stat().st_mode)  # save_file gives no rights to others
    recorded = experiment.config.provenance | ({OVERFITTED: "yes"} if experiment.is_overfitted else {})
    published = {key: str(recorded[key]) for key in _PUBLISHED if key in recorded}
    published |= {f"{SHA256_OF}{path.name}": file_sha256(path) for path in sorted(folder.iterdir())}
    published = {key: value for key, value in published.items() if not PRIVATE_PATH.search(value)}
    consents = read_consents(experiment, options.consent)
    lines = summarise_consent(consents)
    license_id = _write_license(folder, options.license or _known_license(experiment.model_dir, options.card))
    card = write_card(experiment, options, published, license_id, lines)
    if options.card is not None:
        card = renew_consent(_read_card(options, published, license_id), lines)
    if found := PRIVATE_PATH.search(card):
        raise ConfigError("the model card", f"would publish the path {found[0]}", "remove it from the texts")
    write_atomic(folder / "README.md", card)
    config = ExperimentConfig.model_validate({**without_folders(settings), "provenance": published})
    dump_config(config, folder / "train.yaml")


def _read_card(options: PackOptions, published: Mapping[str, str], license_id: str) -> str:
    """The text of an edited card, in which the name of the draft's file becomes that of the model.

    Raises DataError if it names other weights, whose error rates are not those of this model, or differs from a flag.
    """
    path = options.card or Path()
    text, key = "\n".join(read_lines(path)).rstrip() + "\n", f"{SHA256_OF}{WEIGHTS}"
    if (found := re.search(rf"{key}: ([0-9a-f]{{64}})", text)) and found[1] != published[key]:
        raise DataError(path, "was made for other weights", "make it again with --out FILE.md, and edit it again")
    front = _front_matter(path, text)
    flags = {"license": options.license and license_id, "languages": [*options.languages]}
    flags |= {"datasets": [*options.datasets], "base_model": options.base_model}
    for flag, value in flags.items():
        stated = front.get(written := flag.replace("languages", "language"))
        stated = [stated] if isinstance(value, list) and isinstance(stated, str) else stated
        if value and stated != value and not (flag == "license" and str(stated).lower() == value):
            raise DataError(path, f"has {written}: {stated}, not that of --{flag}", "change one of them")
    if options.data and options.data not in text:
        raise DataError(path, "has not the text of --data", "write it there, or leave --data out")
    name, draft = model_name(options.out), path.stem
    for old, new in ((f"# {draft}\n", f"# {name}\n"), (f"- name: {_quote(draft)}", f"- name: {_quote(name)}")):
        text = text.replace(f"\n{old}", f"\n{new}", 1)
    return re.sub(rf"(?<![\w.-]){re.escape(draft)}\.zip(?![\w-])", lambda _: reference(options), text)


def _front_matter(path: Path, text: str) -> dict[str, Any]:
    """The settings at the beginning of a card. Raises DataError if they are no YAML."""
    if not text.startswith("---\n"):
        return {}
    try:
        found = yaml.safe_load(text[4:].partition("\n---")[0])
    except (yaml.YAMLError, RecursionError) as error:
        raise DataError(path, f"its front matter is no YAML ({one_line(error)})", "correct it") from error
    return found if isinstance(found, dict) else {}


def _known_license(model_dir: Path, card: Path | None) -> str | None:
    """The licence that an edited card names, or that of a packed model which is packed again: a name or a file."""
    is_again, text = is_packed(model_dir), model_dir / "LICENSE"
    cards = [*([card] if card else []), *([model_dir / "README.md"] if is_again else [])]
    named = [_front_matter(one, "\n".join(read_lines(one))).get("license") for one in cards if one.is_file()]
    found = next((str(one) for one in named if one not in (None, "unknown")), None)
    if found == "other" and is_again and text.is_file():
        return str(text)
    if found and found != "other" and (not _SPDX.fullmatch(found) or Path(found).is_file()):  # no file of the user
        raise DataError(cards[0], f"license {found[:80]!r} is no SPDX name", "correct it, or give --license")
    return found


def model_name(out: Path) -> str:
    return out.stem if out.suffix.lower() in (".zip", ".md") else out.name


def reference(options: PackOptions) -> str:
    """How a command names the model."""
    return options.push or (f"{options.out.stem}.zip" if options.out.suffix.lower() == ".md" else options.out.name)


def _copy_named_files(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Copy units, trees, BPE model and statistics under their usual names. Returns the settings with these names."""
    settings = experiment.config.model_dump(mode="json", exclude={"provenance"})
    settings["tokenizer_conf"]["symbol_table_path"] = settings["tokenizer_conf"]["symbol_table_path"] or "units.txt"
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
"""Fields of a sentencepiece model with paths: input, model_prefix and seed_sentencepieces_file of its trainer_spec,
normalization_rule_tsv of its normalizer_spec and denormalizer_spec. Its tokens do not depend on them."""


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
    """The number there: 7 bits per byte, the lowest first, 128 added to all but the last. And where it ends."""
    end = next(at for at in range(start, len(message)) if message[at] < 128) + 1
    return sum((byte & 127) << 7 * place for place, byte in enumerate(message[start:end])), end


def without_folders(value: Any) -> Any:
    """A value of a YAML or JSON file in which each path is its last name, without where transformers loaded it."""
    if isinstance(value, Mapping):
        return {key: without_folders(one) for key, one in value.items() if key != "_name_or_path"}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return PureWindowsPath(value).name if isinstance(value, str) and re.search(r"[/\\]", value) else value


def _write_license(folder: Path, given: str | None) -> str:
    """The licence's name on the hub; a file is copied as LICENSE."""
    if given is None:
        logger.warning("no --license: the card says %r, and others may not use the model", UNKNOWN)
        return "unknown"
    if given == "other":
        raise ConfigError("--license", "a licence without a name", "give a file with its text")
    if _SPDX.fullmatch(given) and not Path(given).is_file():
        return given.lower()
    shutil.copyfile(given, folder / "LICENSE")
    return "other"


def _write_zip(folder: Path, out: Path) -> None:
    """A ZIP with one folder in it, without times. Weights hardly compress, so nothing is compressed."""
    with open_atomic(out) as file, ZipFile(file, "w") as zipped:
        for path in sorted(folder.iterdir()):
            info = ZipInfo(f"{out.stem}/{path.name}")
            info.external_attr = 0o644 << 16
            with path.open("rb") as source, zipped.open(info, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 1 << 20)


# ---- the card


class Scoring(NamedTuple):
    """A score.json of the experiment folder: the name of the folder of results, and how it was decoded."""

    test: str
    mode: str
    conditions: str
    report: Report


def read_scorings(model_dir: Path) -> list[Scoring]:
    """The scores `TEST/MODE/score.json` of a folder that were decoded, by `TEST/rtf.json`, with its weights."""
    scorings, weights = list[Scoring](), weights_path(model_dir)
    sha256 = file_sha256(weights)
    for test in sorted({path.parents[1] for path in model_dir.glob("*/*/score.json")}):
        speed, modes = test / "rtf.json", {path.parent.name for path in test.glob("*/score.json")}
        recorded = read_json(speed, "decode again") if speed.is_file() else {}
        decoded = recorded.get("modes", {}) if sha256 in recorded.get("model", {}).values() else {}
        if others := sort_modes(modes - {*decoded}):
            left_out = f"{test}: {list_names(others)}: left out of the card"
            logger.warning("%s: %s does not show that %s decoded them", left_out, speed.name, weights)
        texts = {"beam_size": "beam of {}", "lm_weight": "language model with weight {}", "inventory": "known units"}
        for mode in sort_modes(modes & {*decoded}):
            report = read_report(test / mode / "score.json")
            conditions = [text.format(recorded[name]) for name, text in texts.items() if recorded.get(name)]
            conditions += ["simulated speech"] if any(map(SIMULATED_KEY.search, report.utterances)) else []
            scorings.append(Scoring(test.name, mode, ", ".join(conditions), report))
    return scorings


_CONSENT_TITLE = "## Consent and access"


def renew_consent(card: str, lines: Sequence[str]) -> str:
    """A card with these lines as its section on consent, which is at its old position or at the end."""
    section = "\n".join([_CONSENT_TITLE, "", *(f"- {line}" for line in lines)]) + "\n"
    before, title, after = card.partition(_CONSENT_TITLE + "\n")
    _, heading, rest = after.partition("\n## ")
    if not lines:
        section, heading = "", heading.lstrip()
    return f"{before}{section}{heading}{rest}" if title else f"{card}\n{section}" if lines else card


def write_card(
    experiment: Experiment,
    options: PackOptions,
    published: Mapping[str, str],
    license_id: str,
    consent: Sequence[str] = (),
) -> str:
    """The text of the card.

    Args:
        published: the provenance of the packed model.
        license_id: that of the hub: an SPDX name, `other` for a text in LICENSE, or `unknown`.
        consent: of `summarise_consent`.
    """
    recorded, model_dir, model = experiment.config.provenance, experiment.model_dir, experiment.model
    scorings, clips = read_scorings(model_dir), read_training_lists(recorded, model_dir)
    langs = {clip.lang for clip in clips if clip.lang} | {lang for one in scorings for lang in one.report.languages}
    ctc, needs_both = model.loss_weights.ctc, ("attention_rescoring", "joint")
    named = [split_hub_name(one)[0] for one in command_values(recorded, "--checkpoint") if one.startswith("hf:")]
    encoder = model.encoder.description if isinstance(model.encoder, PretrainedEncoder) else None
    sha256 = recorded.get(_SUMS[1]) if encoder is None else recorded.get(f"{SHA256_OF}encoder weights")
    base = options.base_model or next(iter(named), None)
    start = base or {None: UNKNOWN, "none": "random weights"}.get(sha256, "another model")
    if base is None and encoder is not None:
        start = f"a pretrained encoder of the kind {encoder.kind}"
    start += f", weights with SHA-256 {sha256}" if sha256 not in (None, "none") else ""
    durations = [clip.duration or 0.0 for clip in clips]
    found = f"{sum(durations) / 3600:.2f} hours in {len(clips):,} utterances" if clips and all(durations) else None
    loader = PackageLoader("wenet_hs.report")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["yaml"] = _quote
    return environment.get_template("model_card.md").render(
        options=options,
        experiment=experiment,
        millions=f"{sum(one.numel() for one in model.parameters()) / 1e6:.1f}",
        license=license_id,
        unknown=UNKNOWN,
        languages=options.languages or sorted(langs - {ALL}),
        found=found,
        base=base,
        start=start,
        name=model_name(options.out),
        reference=reference(options),
        scorings=scorings,
        with_rates=[one for one in scorings if one.report.macro.rate is not None or one.report.micro.rate is not None],
        best=min(scorings, key=lambda one: one.mode != DEFAULT_MODE, default=None),
        percent=percent,
        interval=format_interval,
        modes=[one for one in MODES if (0 < ctc < 1 if one in needs_both else ctc < 1 if one == "attention" else ctc)],
        published=published,
        consent=consent,
    )
