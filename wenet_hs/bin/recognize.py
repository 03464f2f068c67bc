# SPDX-License-Identifier: Apache-2.0
"""Decode a data list to RESULT_DIR/<mode>/text and hyps.jsonl, and RESULT_DIR/rtf.json.

Runs under torchrun too.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test \\
             --modes attention attention_rescoring --beam_size 10

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
from collections.abc import Sequence
from contextlib import nullcontext
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
    modes_help = f"{MODES_HELP}; {AUTO_MODES}: those that are recommended for the model"
    modes_default = "default: all that the model supports"
    add(
        "--modes",
        nargs="+",
        choices=ModeNames(AUTO_MODES),
        metavar="MODE",
        help=f"{modes_help} ({modes_default})",
    )
    inventory_help = (
        "known units of each language, `lang<TAB>unit unit …` per line; no other unit is recognised"
    )
    add("--inventory", type=Path, metavar="FILE", help=inventory_help)
    place_help = "place units of --inventory that the model does not have beside the phone with the nearest features"
    add("--place_unseen", choices=PLACEMENTS, help=place_help)
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add_device_argument(parser)
    dtype_help = "of encoder and decoder (default: fp32); bf16 and fp16 are faster where the device multiplies them, and "
    dtype_help += "may change a few units"
    add("--dtype", choices=get_args(Dtype), default="fp32", help=dtype_help)
    add_batch_size(parser)
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    options = search_options(args)
    check_at_least(args, 1, "batch_size")
    if args.place_unseen and not args.inventory:
        raise ConfigError(
            "--place_unseen",
            "has no effect without --inventory",
            "give the inventory, or leave it out",
        )
    with join_process_group(find_device(args.device)) as world:
        table = open_lists((args.test_data,), args.data_type, flag="--test_data")
        args.model_dir = resolve_model(args.model_dir)
        args.checkpoint = args.checkpoint and resolve_model(args.checkpoint)
        experiment = load_experiment(
            args.model_dir, checkpoint=args.checkpoint, device=world.device
        )
        models: dict[str | None, AsrModel] = {}
        if args.inventory is not None:
            inventories = select_languages(read_inventories(args.inventory), table, args.inventory)
            experiment, models = limit_to_inventories(
                experiment, inventories, place_unseen=args.place_unseen
            )
        lm = (
            None
            if args.lm is None
            else load_language_model(args.lm, experiment.tokenizer, world.device)
        )
        modes = _modes(args.modes, experiment.model)
        check_options(experiment.model, options, modes, lm)
        check_native(args.dtype, world.device)
        sizes = {
            "batch_size": args.batch_size,
            "max_segment_s": args.max_segment_s,
            "dtype": args.dtype,
        }
        job = DecodingJob(modes=modes, options=options, lm=lm, models=models, **sizes)
        settings = _settings(args, table.digest, job, experiment, world.device)
        world.check_equal_across_ranks(
            {name: json.dumps(value) for name, value in settings.items()}
        )
        utterances = list(table)
        audio = [
            [one.key, one.wav, one.start, one.end] for one in utterances
        ]  # other machines may have other paths
        settings["audio"] = hashlib.sha256(json.dumps(audio).encode()).hexdigest()
        lock = locked(
            args.result_dir, flag="--result_dir", work="recognition", error_class=DataError
        )
        with lock if world.is_first else nullcontext():
            try:
                _decode(args.result_dir, utterances, experiment, job, settings, world)
            except KeyboardInterrupt as error:
                if not world.is_first:
                    raise
                hint = f"run the same command again: finished batches are kept in {args.result_dir / 'partial'}"
                raise KeyboardInterrupt(hint) from error


def _modes(named: Sequence[str] | None, model: AsrModel) -> tuple[str, ...]:
    """The modes of --modes, each once, with those of `auto`; without --modes all that the model
    supports.
    """
    if named is None:
        return tuple(model.supported_modes())
    modes = list[str]()
    for name in named:
        modes.extend(model.recommended_modes() if name == AUTO_MODES else [name])
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

    `settings`: what must be the same when an interrupted run is continued, by flag or name.
    """
    if world.is_first:
        _warn_unknown_units(utterances, experiment.tokenizer)
    folder = result_dir / "partial"
    with progress_bar("decode", is_shown=world.is_first) as advance:
        found = recognize(
            experiment, utterances, job, folder, settings=settings, world=world, on_progress=advance
        )
    if found is None:  # only rank 0 has the results
        return
    write_decoding_results(result_dir, utterances, found, experiment)
    stages = {mode: (FEATURES, ENCODER, *stages_of(mode)) for mode in job.modes}
    conditions = {
        "device": str(world.device),
        "num_threads": torch.get_num_threads(),
        **asdict(job.options),
    }
    conditions |= {
        "dtype": job.dtype,
        "batch_size": job.batch_size,
        "max_segment_s": job.max_segment_s,
    }
    named = ("versions", "model", "--lm", "--inventory", "--place_unseen")
    conditions |= {name.lstrip("-"): settings[name] for name in named}
    rtf = write_speed(result_dir / SPEED_FILE, found, stages, conditions)
    if not found.failed:
        shutil.rmtree(folder)
    for mode, factor in rtf.items():
        print(
            f"{result_dir / mode / 'text'}: {len(found.segments[mode])} utterances, RTF {factor:.4f}"
        )
    if found.incomplete:
        print(describe_incomplete(len(found.incomplete)))
    if found.failed:
        print_failures(found.failed)
        fault = f"{len(found.failed)} of {len(utterances)} utterances could not be read"
        to_do = (
            "repair their audio or remove them from the data list, then run the same command again"
        )
        raise DataError(result_dir / "failed.tsv", fault, to_do)


def _settings(
    args: argparse.Namespace,
    list_digest: str,
    job: DecodingJob,
    experiment: Experiment,
    device: torch.device,
) -> dict[str, Any]:
    """What must be equal on all ranks, and to continue an interrupted run."""
    conf = experiment.config.tokenizer_conf
    named = (conf.symbol_table_path, conf.bpe_path, *tree_paths(experiment.config).values())
    names = dict.fromkeys(
        ["train.yaml", "units.txt", *(Path(name).name for name in named if name is not None)]
    )
    paths = [path for path in (args.model_dir / name for name in names) if path.is_file()]
    model = [weights_path(args.checkpoint or args.model_dir), *paths]
    return {
        "--test_data": list_digest,
        "--modes": list(job.modes),
        "model": {path.name: file_sha256(path) for path in model},
        "--lm": None
        if args.lm is None
        else {path.name: file_sha256(path) for path in _lm_files(args.lm)},
        "--inventory": None
        if args.inventory is None
        else {args.inventory.name: file_sha256(args.inventory)},
        "--place_unseen": args.place_unseen,
        "options": asdict(job.options),
        "--batch_size": job.batch_size,
        "--max_segment_s": job.max_segment_s,
        "--device": device.type,
        "--dtype": job.dtype,
        "versions": _versions(experiment, job.modes),
    }


def _versions(experiment: Experiment, modes: Sequence[str]) -> dict[str, str]:
    """The versions of torch, of this package, and of the packages of the model's names and the
    modes.
    """
    extensions = [*experiment.config.extensions(), *find_extensions("mode", MODES, modes)]
    own = {name: version(name) for name in ("torch", "wenet_hs")}
    return {**own, **package_versions(extensions)}


def _warn_unknown_units(utterances: Sequence[Utterance], tokenizer: Tokenizer) -> None:
    """Warn about units that the model cannot write: each is an error in the score, and it may be
    the wrong model.
    """
    unknown, num_utterances = Counter[str](), 0
    for utterance in utterances:
        missing = tokenizer.count_unknown(utterance.txt)
        unknown += missing
        num_utterances += bool(missing)
    if unknown:
        named = list_names([unit for unit, _ in unknown.most_common()], " ")
        logger.warning(
            "--test_data: %d of %d utterances have units that the model does not have (%s): they will count as errors",
            *(num_utterances, len(utterances), named),
        )


def _lm_files(path: Path) -> list[Path]:
    """An n-gram model, or what a recurrent one in a folder consists of."""
    names = ("train.yaml", "units.txt", "tree.json", "bpe.model", "final.pt")
    return [path / name for name in names if (path / name).is_file()] if path.is_dir() else [path]


if __name__ == "__main__":
    main_of(__name__)
