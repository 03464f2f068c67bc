# SPDX-License-Identifier: Apache-2.0
"""Decode a data list to RESULT_DIR/<mode>/text and hyps.jsonl, and RESULT_DIR/rtf.json. Runs under torchrun too.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test \\
             --modes attention attention_rescoring --beam_size 10

A clip that cannot be read is left out of `text` (`wenet-hs score` then counts its reference as deletions), is listed in
RESULT_DIR/failed.tsv, and makes the exit code 2; all others are decoded. A clip too short for the encoder has an empty
text. A clip longer than --max_segment_s is cut at pauses; the best hypotheses of its segments are joined.

The same command continues an interrupted run: each decoded batch is saved in RESULT_DIR/partial. The folder stays if
clips have failed: after you repair them, the same command decodes only the batches that contain them.
"""

import argparse
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from wenet_hs.bin.command import main_of, name_failures
from wenet_hs.bin.decoding import (
    MODES_HELP,
    add_batch_size,
    add_search_arguments,
    check_batch_size,
    progress_bar,
    search_options,
)
from wenet_hs.build import Experiment, load_experiment, tree_paths
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.audio import describe_incomplete
from wenet_hs.data.shards import DATA_TYPES, open_lists
from wenet_hs.decode.job import FEATURES, Job, PartialResults, recognize
from wenet_hs.decode.lm import load_language_model, warn_unknown_units
from wenet_hs.decode.modes import ENCODER, MODES, check_options, stages_of
from wenet_hs.decode.output import write_results, write_speed
from wenet_hs.devices import find_device
from wenet_hs.distributed import World, join_process_group
from wenet_hs.errors import DataError, list_names
from wenet_hs.files import file_sha256, locked
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="experiment folder, ours or WeNet's")
    add("--test_data", type=Path, required=True, help="data.list to decode")
    add("--data_type", choices=DATA_TYPES, default="raw", help="format of the list: JSON lines, or tars (default: raw)")
    add("--result_dir", type=Path, required=True, help="folder to write")
    modes_help = f"{MODES_HELP} (default: all)"
    add("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE", help=modes_help)
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")
    add_batch_size(parser)
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Load, decode, write, and print the speed."""
    options = search_options(args)
    check_batch_size(args)
    with join_process_group(find_device(args.device)) as world:
        table = open_lists((args.test_data,), args.data_type, flag="--test_data")
        experiment = load_experiment(args.model_dir, checkpoint=args.checkpoint, device=world.device)
        lm = None if args.lm is None else load_language_model(args.lm, experiment.tokenizer.table)
        if lm is not None and world.is_first:
            warn_unknown_units(args.lm, lm, experiment.tokenizer.table)
        modes = tuple(dict.fromkeys(args.modes))
        check_options(experiment.model, options, modes, lm)
        job = Job(modes=modes, options=options, lm=lm, batch_size=args.batch_size, max_segment_s=args.max_segment_s)
        files = _model_files(args, experiment.config)
        settings = _settings(args, table.digest, job, files, world.device)
        world.check_equal_across_ranks({name: json.dumps(value) for name, value in settings.items()})
        utterances = list(table)
        settings["audio"] = _audio_digest(utterances)  # of this rank only: other machines may have other paths
        lock = locked(args.result_dir, flag="--result_dir", work="recognition", fault=DataError)
        with lock if world.is_first else nullcontext():
            try:
                _decode(args.result_dir, utterances, experiment, job, settings, world)
            except KeyboardInterrupt as error:
                if not world.is_first:
                    raise
                hint = f"run the same command again: finished batches are kept in {args.result_dir / 'partial'}"
                raise KeyboardInterrupt(hint) from error


def _decode(
    result_dir: Path,
    utterances: list[Utterance],
    experiment: Experiment,
    job: Job,
    settings: dict[str, Any],
    world: World,
) -> None:
    """Decode the list together with the other ranks; rank 0 writes the results."""
    if world.is_first:
        _warn_unknown_units(utterances, experiment.tokenizer)
    folder = result_dir / "partial"
    with progress_bar("decode", is_shown=world.is_first) as advance:
        found = recognize(experiment, utterances, job, folder, settings=settings, world=world, on_progress=advance)
    if found is None:
        return
    write_results(result_dir, utterances, found, experiment.tokenizer)
    stages = {mode: (FEATURES, ENCODER, *stages_of(mode)) for mode in MODES if mode in job.modes}
    conditions = {"device": str(world.device), "num_threads": torch.get_num_threads(), **asdict(job.options)}
    conditions |= {"batch_size": job.batch_size, "max_segment_s": job.max_segment_s}
    conditions |= {name.lstrip("-"): settings[name] for name in ("versions", "model", "--lm")}
    rtf = write_speed(result_dir / "rtf.json", found, stages, conditions)
    if not found.failed:
        PartialResults(folder).clear()
    for mode, factor in rtf.items():
        print(f"{result_dir / mode / 'text'}: {len(found.segments[mode])} utterances, RTF {factor:.4f}")
    if found.incomplete:
        print(describe_incomplete(len(found.incomplete)))
    if found.failed:
        name_failures(found.failed, (utterance.key for utterance in utterances))
        raise DataError(
            f"{result_dir / 'failed.tsv'}: {len(found.failed)} of {len(utterances)} utterances could not be read; "
            "repair their audio or remove them from the data list, then run the same command again"
        )


def _model_files(args: argparse.Namespace, config: ExperimentConfig) -> list[Path]:
    """The weights, and the files of the folder that the config names; they are read there by their base name."""
    weights = args.checkpoint or args.model_dir / "final.pt"
    tokenizer = config.tokenizer_conf
    named = (tokenizer.symbol_table_path, tokenizer.bpe_path, *tree_paths(config).values())
    names = dict.fromkeys(["train.yaml", "units.txt", *(Path(name).name for name in named if name is not None)])
    paths = [args.model_dir / name for name in names]
    return [weights / "model.pt" if weights.is_dir() else weights, *(path for path in paths if path.is_file())]


def _audio_digest(utterances: Sequence[Utterance]) -> str:
    """Hash of the audio paths of a list, which the digest of the list does not include."""
    digest = hashlib.sha256()
    for one in utterances:
        digest.update(json.dumps([one.key, one.wav, one.start, one.end]).encode() + b"\n")
    return digest.hexdigest()


def _settings(
    args: argparse.Namespace, list_digest: str, job: Job, files: Sequence[Path], device: torch.device
) -> dict[str, Any]:
    """What must be equal to continue an interrupted run."""
    return {
        "--test_data": list_digest,
        "--modes": list(job.modes),
        "model": {path.name: file_sha256(path) for path in files},
        "--lm": None if args.lm is None else {args.lm.name: file_sha256(args.lm)},
        "options": asdict(job.options),
        "--batch_size": job.batch_size,
        "--max_segment_s": job.max_segment_s,
        "--device": device.type,
        "versions": {name: version(name) for name in ("torch", "wenet_hs")},
    }


def _warn_unknown_units(utterances: Sequence[Utterance], tokenizer: Tokenizer) -> None:
    """Warn about units that the model cannot write: each is an error in the score, and it may be the wrong model."""
    unknown, num_utterances = Counter[str](), 0
    for utterance in utterances:
        missing = tokenizer.unknown(utterance.txt)
        unknown += missing
        num_utterances += bool(missing)
    if unknown:
        named = list_names([unit for unit, _ in unknown.most_common()], " ")
        logger.warning(
            "--test_data: %d of %d utterances have units that the model does not have (%s): they will count as errors",
            *(num_utterances, len(utterances), named),
        )


if __name__ == "__main__":
    main_of(__name__)
