# SPDX-License-Identifier: Apache-2.0
"""Decode a data list; results are RESULT_DIR/<mode>/text and hyps.jsonl, RESULT_DIR/rtf.json. Under torchrun, by many.

Example: wenet-hs recognize --model_dir exp/hsoftmax --test_data data/test/data.list --result_dir exp/hsoftmax/test \\
             --modes attention attention_rescoring --beam_size 10

A clip that cannot be read is left out of `text` (`wenet-hs score` then counts its reference as deletions), listed in
RESULT_DIR/failed.tsv, and makes the exit code 2; all others are decoded. One too short for the encoder has no text.

A clip longer than --max_segment_s is cut in its pauses; the best readings of its segments are joined, without n-best.
The same command goes on where a run was interrupted: each batch is kept in RESULT_DIR/partial as soon as it is done.
It stays there while clips have failed: the same command then decodes only the batches of those, once they are mended.
"""

import argparse
import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wenet_hs.bin.command import main_of, name_failures
from wenet_hs.bin.search_arguments import add_search_arguments, search_options
from wenet_hs.build import Experiment, load_experiment, tree_paths
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.shards import DATA_TYPES, open_lists
from wenet_hs.decode import MODES
from wenet_hs.decode.lm import load_language_model, warn_of_unknown_units
from wenet_hs.decode.modes import check_options
from wenet_hs.decode.outcome import Recognition
from wenet_hs.decode.partial import PartialResults
from wenet_hs.decode.recognition import Job, recognize
from wenet_hs.decode.results import write_results, write_speed
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, check_max_segment
from wenet_hs.devices import find_device
from wenet_hs.distributed import World, join_process_group
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import file_sha256, locked
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_NAMED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="experiment folder, ours or WeNet's")
    add("--test_data", type=Path, required=True, help="data.list to decode")
    add("--data_type", choices=DATA_TYPES, default="raw", help="what the list is: JSON lines, or tars (default: raw)")
    add("--result_dir", type=Path, required=True, help="folder to write")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE", help=f"{' '.join(MODES)} (default)")
    add("--checkpoint", type=Path, help="weights (default: final.pt of model_dir)")
    add("--device", default="auto", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")
    add("--batch_size", type=int, default=16, help="most utterances at a time; never changes a text (default: 16)")
    add(
        "--max_segment_s",
        type=float,
        default=DEFAULT_MAX_SEGMENT_S,
        help=f"a longer clip is cut in its pauses, decoded in segments and joined; 0: never (default: "
        f"{DEFAULT_MAX_SEGMENT_S:g})",
    )
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Load, decode, write, and say how fast it was."""
    options = search_options(args)
    if args.batch_size < 1:
        raise ConfigError(f"--batch_size {args.batch_size}: must be at least 1")
    check_max_segment(args.max_segment_s)
    with join_process_group(find_device(args.device)) as world:
        table = open_lists((args.test_data,), args.data_type, flag="--test_data")
        experiment = load_experiment(args.model_dir, checkpoint=args.checkpoint, device=world.device)
        lm = None if args.lm is None else load_language_model(args.lm, experiment.tokenizer.table)
        if lm is not None and world.is_first:
            warn_of_unknown_units(args.lm, lm, experiment.tokenizer.table)
        modes = tuple(dict.fromkeys(args.modes))
        check_options(experiment.model, options, modes, lm)
        job = Job(modes=modes, options=options, lm=lm, batch_size=args.batch_size, max_segment_s=args.max_segment_s)
        files = _model_files(args, experiment.config)
        settings = _settings(args, table.digest, job, files, world.device)
        world.check_equal_across_ranks({name: json.dumps(value) for name, value in settings.items()})
        utterances = list(table)
        settings["audio"] = _audio_digest(utterances)  # of this rank alone: others may have it mounted elsewhere
        held = locked(args.result_dir, flag="--result_dir", work="recognition", fault=DataError)
        with held if world.is_first else nullcontext(), _saying_how_to_go_on(args.result_dir, world):
            _decode(args.result_dir, utterances, experiment, job, settings, world)


@contextmanager
def _saying_how_to_go_on(result_dir: Path, world: World) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        if not world.is_first:
            raise
        kept = f"give the same command again: finished batches are kept in {result_dir / 'partial'}"
        raise KeyboardInterrupt(kept) from error


def _decode(
    result_dir: Path,
    utterances: list[Utterance],
    experiment: Experiment,
    job: Job,
    settings: dict[str, Any],
    world: World,
) -> None:
    """Decode the list with the other ranks; the first one writes the results."""
    if world.is_first:
        _warn_of_unknown_units(utterances, experiment.tokenizer)
    folder = result_dir / "partial"
    with _progress(world.is_first) as progress:
        task = progress.add_task("decode")
        found = recognize(
            experiment,
            utterances,
            job,
            folder,
            settings=settings,
            ranks=world,
            on_progress=lambda count, total: progress.update(task, advance=count, total=total),
        )
    if found is None:
        return
    write_results(result_dir, utterances, found, experiment.tokenizer)
    conditions = {name.lstrip("-"): settings[name] for name in ("versions", "model", "--lm")}
    rtf = write_speed(result_dir / "rtf.json", found, job, conditions, device=world.device)
    if not found.failed:
        PartialResults(folder).remove()
    for mode, factor in rtf.items():
        print(f"{result_dir / mode / 'text'}: {len(found.parts[mode])} utterances, RTF {factor:.4f}")
    _report_failures(result_dir, utterances, found)


def _model_files(args: argparse.Namespace, config: ExperimentConfig) -> list[Path]:
    """The weights, and of what the config names the files that are in the folder: there, by base name, all is read."""
    weights = args.checkpoint or args.model_dir / "final.pt"
    tokenizer = config.tokenizer_conf
    named = (tokenizer.symbol_table_path, tokenizer.bpe_path, *tree_paths(config).values())
    names = dict.fromkeys(["train.yaml", "units.txt", *(Path(name).name for name in named if name is not None)])
    paths = [args.model_dir / name for name in names]
    return [weights / "model.pt" if weights.is_dir() else weights, *(path for path in paths if path.is_file())]


def _audio_digest(utterances: Sequence[Utterance]) -> str:
    """Where the audio of a list is, which the digest of the list leaves out."""
    digest = hashlib.sha256()
    for one in utterances:
        digest.update(json.dumps([one.key, one.wav, one.start, one.end]).encode() + b"\n")
    return digest.hexdigest()


def _settings(
    args: argparse.Namespace, list_digest: str, job: Job, files: Sequence[Path], device: torch.device
) -> dict[str, Any]:
    """What must be the same for a run to go on with what an interrupted one has found."""
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


def _warn_of_unknown_units(utterances: Sequence[Utterance], tokenizer: Tokenizer) -> None:
    """Say what the model cannot write: that is an error in every score, and perhaps it is the wrong model."""
    unknown, num_utterances = Counter[str](), 0
    for utterance in utterances:
        missing = tokenizer.unknown(utterance.txt)
        unknown += missing
        num_utterances += bool(missing)
    if unknown:
        named = " ".join(unit for unit, _ in unknown.most_common(_NAMED)) + (" …" if len(unknown) > _NAMED else "")
        logger.warning(
            "--test_data: %d of %d utterances have units that are not the model's (%s): they will count as errors",
            *(num_utterances, len(utterances), named),
        )


def _progress(is_shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not (is_shown and sys.stderr.isatty()))


def _report_failures(result_dir: Path, utterances: list[Utterance], found: Recognition) -> None:
    if not found.failed:
        return
    name_failures(found.failed, (utterance.key for utterance in utterances))
    raise DataError(
        f"{result_dir / 'failed.tsv'}: {len(found.failed)} of {len(utterances)} utterances could not be read; "
        "mend their audio or take them out of the data list, then give the same command again"
    )


if __name__ == "__main__":
    main_of(__name__)
