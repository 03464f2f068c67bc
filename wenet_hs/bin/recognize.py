# SPDX-License-Identifier: Apache-2.0
"""Decode a data list to RESULT_DIR/<mode>/text and hyps.jsonl, and RESULT_DIR/rtf.json.

Runs under torchrun too.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list \\
             --result_dir exp/hsoftmax/test --modes attention attention_rescoring --beam_size 10

A clip that cannot be read is left out of `text` (`wenet-hs score` then counts its reference as
deletions), is listed in RESULT_DIR/failed.tsv, and makes the exit code 2; all others are decoded. A
clip too short for the encoder has an empty text. A clip longer than --max_segment_s is cut at
pauses; the best hypotheses of its segments are joined.

The same command continues an interrupted run: each decoded batch is saved in RESULT_DIR/partial.
The folder stays if clips have failed: after you repair them, the same command decodes only the
batches that contain them.

WeNet's flags are read as ours, or the message says what to do instead (docs/from-wenet.md).
"""

import argparse
import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import torch

from wenet_hs.base.extensions import find_extensions, package_versions
from wenet_hs.base.files import file_sha256, locked
from wenet_hs.bin.main import (
    MODEL_HELP,
    add_device_argument,
    check_at_least,
    main_of,
    print_failures,
)
from wenet_hs.bin.search_flags import (
    MODES_HELP,
    ModeNames,
    add_batch_size,
    add_search_arguments,
    progress_bar,
    search_options,
)
from wenet_hs.compute.devices import check_native, find_device
from wenet_hs.compute.distributed import World, join_process_group
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.data.shards import DATA_TYPES, open_lists
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.job import FEATURES, DecodingJob, Dtype, recognize
from wenet_hs.decode.known_units import PLACEMENTS, limit_to_inventories
from wenet_hs.decode.modes import ENCODER, check_options, stages_of
from wenet_hs.decode.recognition import write_decoding_results, write_speed
from wenet_hs.lm.loader import load_language_model
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.model.experiment import Experiment, load_experiment, tree_paths
from wenet_hs.model.modes import AUTO_MODES, MODES
from wenet_hs.model.packed import resolve_model
from wenet_hs.runs.file_names import SPEED_FILE
from wenet_hs.text.inventory import read_inventories, select_languages
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs recognize`."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help=MODEL_HELP)
    add("--test_data", type=Path, required=True, help="data.list to decode")
    add(
        "--data_type",
        choices=DATA_TYPES,
        default="raw",
        help="format of the list: JSON lines, or tars (default: raw)",
    )
    add("--result_dir", type=Path, required=True, help="folder to write")
    modes_help = (
        f"{MODES_HELP}; {AUTO_MODES}: those that are recommended for the model "
        "(default: all that the model supports)"
    )
    add("--modes", nargs="+", choices=ModeNames(AUTO_MODES), metavar="MODE", help=modes_help)
    inventory_help = (
        "known units of each language, `lang<TAB>unit unit …` per line; no other unit is recognised"
    )
    add("--inventory", type=Path, metavar="FILE", help=inventory_help)
    place_help = (
        "place units of --inventory that the model does not have beside the phone with the "
        "nearest features"
    )
    add("--place_unseen", choices=PLACEMENTS, help=place_help)
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add_device_argument(parser)
    dtype_help = (
        "of encoder and decoder (default: fp32); bf16 and fp16 are faster where the device "
        "multiplies them, and may change a few units"
    )
    add("--dtype", choices=get_args(Dtype), default="fp32", help=dtype_help)
    add_batch_size(parser)
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Decode the data list on all ranks, and write the results on rank 0.

    Raises ConfigError if flags do not fit each other or the model, or differ between ranks. Raises
    DataError if another run writes to --result_dir, or utterances cannot be read. Ctrl-C raises
    KeyboardInterrupt, on rank 0 with a hint how to continue.
    """
    options = search_options(args)
    check_at_least(args, 1, "batch_size")
    if args.place_unseen and not args.inventory:
        to_do = "give the inventory, or leave it out"
        raise ConfigError("--place_unseen", "has no effect without --inventory", to_do)
    with join_process_group(find_device(args.device)) as world:
        data_list = open_lists((args.test_data,), args.data_type, flag="--test_data")
        args.model_dir = resolve_model(args.model_dir)
        if args.checkpoint is not None:
            args.checkpoint = resolve_model(args.checkpoint)
        experiment, job = _load_job(args, options, data_list, world.device)
        settings = _collect_settings(args, data_list.digest, job, experiment, world.device)
        world.check_equal_across_ranks(
            {name: json.dumps(value) for name, value in settings.items()}
        )
        utterances = list(data_list)
        # Not compared across ranks: other machines may have other paths.
        settings["audio"] = _hash_audio(utterances)
        lock: AbstractContextManager[None] = nullcontext()
        if world.is_first:
            lock = locked(
                args.result_dir, flag="--result_dir", work="recognition", error_class=DataError
            )
        with lock:
            try:
                _decode(args.result_dir, utterances, experiment, job, settings, world)
            except KeyboardInterrupt as error:
                if not world.is_first:
                    raise
                folder = _partial_folder(args.result_dir)
                hint = f"run the same command again: finished batches are kept in {folder}"
                raise KeyboardInterrupt(hint) from error


def _load_job(
    args: argparse.Namespace,
    options: DecodeOptions,
    data_list: Sequence[Utterance],
    device: torch.device,
) -> tuple[Experiment, DecodingJob]:
    """Load the model and the language model, and decide how the list is decoded.

    With --inventory there is one model per language of the list, limited to its units; with
    --place_unseen the experiment has the added units.

    Raises ConfigError or DataError if the model, the modes, the options and the device do not fit
    each other.
    """
    experiment = load_experiment(args.model_dir, checkpoint=args.checkpoint, device=device)
    models: dict[str | None, AsrModel] = {}
    if args.inventory is not None:
        inventories = select_languages(read_inventories(args.inventory), data_list, args.inventory)
        experiment, models = limit_to_inventories(
            experiment, inventories, place_unseen=args.place_unseen
        )
    lm = None
    if args.lm is not None:
        lm = load_language_model(args.lm, experiment.tokenizer, device)
    modes = _choose_modes(args.modes, experiment.model)
    check_options(experiment.model, options, modes, lm)
    check_native(args.dtype, device)
    job = DecodingJob(
        modes=modes,
        options=options,
        lm=lm,
        models=models,
        batch_size=args.batch_size,
        max_segment_s=args.max_segment_s,
        dtype=args.dtype,
    )
    return experiment, job


def _choose_modes(names: Sequence[str] | None, model: AsrModel) -> tuple[str, ...]:
    """The modes to decode with, each once.

    `names` are the values of --modes, where `auto` stands for the modes that are recommended for
    the model. None, without the flag: all modes that the model supports.
    """
    if names is None:
        return tuple(model.supported_modes())
    modes: list[str] = []
    for name in names:
        if name == AUTO_MODES:
            modes.extend(model.recommended_modes())
        else:
            modes.append(name)
    return tuple(dict.fromkeys(modes))


def _decode(
    result_dir: Path,
    utterances: list[Utterance],
    experiment: Experiment,
    job: DecodingJob,
    settings: dict[str, Any],
    world: World,
) -> None:
    """Decode the list together with the other ranks; rank 0 writes the results.

    It prints the number of utterances and the real-time factor (RTF) of each mode. Decoded batches
    are in a folder, which is removed at the end if no clip has failed.

    Args:
        settings: what must be the same to continue an interrupted run, by flag or name.
    Raises: DataError, on rank 0, if clips could not be read; the others are written.
    """
    if world.is_first:
        _warn_unknown_units(utterances, experiment.tokenizer)
    partial_folder = _partial_folder(result_dir)
    with progress_bar("decode", is_shown=world.is_first) as advance:
        recognition = recognize(
            experiment,
            utterances,
            job,
            partial_folder,
            settings=settings,
            world=world,
            on_progress=advance,
        )
    if recognition is None:  # another rank than 0
        return
    write_decoding_results(result_dir, utterances, recognition, experiment)
    stages_of_modes = {mode: (FEATURES, ENCODER, *stages_of(mode)) for mode in job.modes}
    conditions = _conditions_of_speed(job, settings, world.device)
    rtf_of_modes = write_speed(result_dir / SPEED_FILE, recognition, stages_of_modes, conditions)
    if not recognition.failed:
        shutil.rmtree(partial_folder)
    for mode, rtf in rtf_of_modes.items():
        num_decoded = len(recognition.segments[mode])
        print(f"{result_dir / mode / 'text'}: {num_decoded} utterances, RTF {rtf:.4f}")
    if recognition.incomplete:
        print(describe_incomplete(len(recognition.incomplete)))
    if recognition.failed:
        print_failures(recognition.failed)
        fault = f"{len(recognition.failed)} of {len(utterances)} utterances could not be read"
        to_do = (
            "repair their audio or remove them from the data list, then run the same command again"
        )
        raise DataError(result_dir / "failed.tsv", fault, to_do)


def _partial_folder(result_dir: Path) -> Path:
    """The folder of the batches that are decoded, from which an interrupted run continues."""
    return result_dir / "partial"


def _conditions_of_speed(
    job: DecodingJob, settings: Mapping[str, Any], device: torch.device
) -> dict[str, Any]:
    """What rtf.json states besides the times: device, threads, options, versions and models."""
    conditions = {
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        **asdict(job.options),
        "dtype": job.dtype,
        "batch_size": job.batch_size,
        "max_segment_s": job.max_segment_s,
    }
    for name in ("versions", "model", "--lm", "--inventory", "--place_unseen"):
        conditions[name.removeprefix("--")] = settings[name]  # `lm` for --lm
    return conditions


# ---- what must be equal on all ranks, and when a run is continued


def _collect_settings(
    args: argparse.Namespace,
    list_digest: str,
    job: DecodingJob,
    experiment: Experiment,
    device: torch.device,
) -> dict[str, Any]:
    """All that the results depend on: flags, options, versions, and the SHA-256 of files.

    Hashes are by the name of the file. A file that no flag names has None instead.
    """
    lm_hashes = None if args.lm is None else _hash_files(_files_of_lm(args.lm))
    inventory_hash = None if args.inventory is None else _hash_files([args.inventory])
    return {
        "--test_data": list_digest,
        "--modes": list(job.modes),
        "model": _hash_files(_files_of_model(args, experiment)),
        "--lm": lm_hashes,
        "--inventory": inventory_hash,
        "--place_unseen": args.place_unseen,
        "options": asdict(job.options),
        "--batch_size": job.batch_size,
        "--max_segment_s": job.max_segment_s,
        "--device": device.type,
        "--dtype": job.dtype,
        "versions": _collect_versions(experiment, job.modes),
    }


def _hash_files(paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file by its name."""
    return {path.name: file_sha256(path) for path in paths}


def _files_of_model(args: argparse.Namespace, experiment: Experiment) -> list[Path]:
    """The weights, and the files of the model folder that it has: config, units, BPE, trees."""
    conf = experiment.config.tokenizer_conf
    named_files = [conf.symbol_table_path, conf.bpe_path, *tree_paths(experiment.config).values()]
    names = ["train.yaml", "units.txt"]
    names += [Path(name).name for name in named_files if name is not None]
    paths = [args.model_dir / name for name in dict.fromkeys(names)]
    return [
        weights_path(args.checkpoint or args.model_dir),
        *(path for path in paths if path.is_file()),
    ]


def _files_of_lm(path: Path) -> list[Path]:
    """The file of an n-gram model, or the files that a folder of a recurrent model has."""
    if not path.is_dir():
        return [path]
    names = ("train.yaml", "units.txt", "tree.json", "bpe.model", "final.pt")
    return [path / name for name in names if (path / name).is_file()]


def _collect_versions(experiment: Experiment, modes: Sequence[str]) -> dict[str, str]:
    """The versions of torch, of wenet_hs, and of packages that extend the model or the modes."""
    extensions = [*experiment.config.extensions(), *find_extensions("mode", MODES, modes)]
    return {
        "torch": version("torch"),
        "wenet_hs": version("wenet_hs"),
        **package_versions(extensions),
    }


def _hash_audio(utterances: Iterable[Utterance]) -> str:
    """The SHA-256 of the keys, paths, begins and ends of all utterances."""
    audio = [
        [utterance.key, utterance.wav, utterance.start, utterance.end] for utterance in utterances
    ]
    return hashlib.sha256(json.dumps(audio).encode()).hexdigest()


def _warn_unknown_units(utterances: Sequence[Utterance], tokenizer: Tokenizer) -> None:
    """Warn about units of the transcripts that the model does not have, most frequent first.

    Each of them counts as an error in the score, and the model may be the wrong one.
    """
    unknown_units = Counter[str]()
    num_utterances = 0
    for utterance in utterances:
        missing_units = tokenizer.count_unknown(utterance.txt)
        unknown_units += missing_units
        if missing_units:
            num_utterances += 1
    if unknown_units:
        names = list_names([unit for unit, _ in unknown_units.most_common()], " ")
        logger.warning(
            "--test_data: %d of %d utterances have units that the model does not have (%s): "
            "they will count as errors",
            num_utterances,
            len(utterances),
            names,
        )


if __name__ == "__main__":
    main_of(__name__)
