# SPDX-License-Identifier: Apache-2.0
"""A training from its flags to `final.pt`: the folder, the resume, then steps, validations and checkpoints."""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

from wenet_hs.checkpoint import (
    list_checkpoints,
    newest_intact,
    read_checkpoint,
    remove_incomplete,
    report_full_disk,
    set_aside_newer,
)
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch, Quarantine, plan_epoch
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.devices import find_device, processor_name
from wenet_hs.distributed import World, join_process_group
from wenet_hs.errors import CheckpointError
from wenet_hs.files import locked, write_atomic
from wenet_hs.heads.ctc import constant_output_loss
from wenet_hs.model import AsrModel
from wenet_hs.text.units import UnitTable
from wenet_hs.train.finetune import load_base_weights
from wenet_hs.train.loop import SpeechStats, run_epoch, validate
from wenet_hs.train.monitor import StepStats
from wenet_hs.train.run import Task, Training
from wenet_hs.train.setup import (
    TrainOptions,
    check_dtype,
    load_parts,
    open_feature_caches,
    prepare_folder,
    resolve_dtype,
)
from wenet_hs.train.state import TrainState

__all__ = ["TrainOptions", "train"]

logger = logging.getLogger(__name__)

PLATEAU_UTTERANCES = 200
"""Validation utterances for the CTC plateau."""


def train(options: TrainOptions) -> Path:
    """Train to the end of the config, with the other ranks of the launcher. Returns the path of `final.pt`."""
    with (
        join_process_group(find_device(options.device)) as world,
        report_full_disk(options.model_dir, options.model_dir / "checkpoints"),
        locked(options.model_dir, flag="--model_dir", work="training", error_class=CheckpointError)
        if world.is_first
        else nullcontext(),
    ):
        _train_as_rank(options, world)
    return options.model_dir / "final.pt"


def _train_as_rank(options: TrainOptions, world: World) -> None:
    """Train on this rank. The model is freed at the end, as `join_process_group` asks for."""
    checkpoints = options.model_dir / "checkpoints"
    config = load_config(options.config, options.override_config)
    check_dtype(config, options.config, world.device)
    if world.is_first:
        remove_incomplete(checkpoints)
    found = find_resume(options) if world.is_first else None  # it may rename damaged checkpoints
    name = world.all_gather(None if found is None else found.name)[0]
    resume_from = None if name is None else checkpoints / name
    config = resolve_dtype(config, options, world.device, is_resumed=resume_from is not None)
    processors = sorted(set(world.all_gather(processor_name(world.device))))
    hardware = {"processor": "; ".join(processors), "ranks": str(world.size)} if world.is_first else None
    with world.first_before_others():
        config, hashes = prepare_folder(options, config, is_resumed=resume_from is not None, hardware=hardware)
    versions = {name: version(name) for name in ("torch", "wenet_hs")}
    sha256 = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    world.check_equal_across_ranks({**hashes, "config": sha256, **versions})
    state, train_set, valid_set = load_parts(config, options, hashes, world)
    world.check_equal_across_ranks(state.fingerprint)
    if resume_from is not None:
        state.restore(resume_from)
        logger.info("resuming from %s (epoch %d, step %d)", resume_from, state.progress.epoch, state.progress.step)
    else:
        _load_base_weights(state, options, config)
    quarantine = Quarantine(options.model_dir, fresh=resume_from is None, rank=world.rank, num_ranks=world.size)
    logger.info("the model has %s parameters", f"{sum(value.numel() for value in state.model.parameters()):,}")
    if world.size > 1:
        logger.info("%d processes; a step has %d batches of each", world.size, config.accum_grad)
    Training(options.model_dir, SpeechTask(config, state, (train_set, valid_set), quarantine)).run()


def find_resume(options: TrainOptions) -> Path | None:
    """The checkpoint to resume from, by `--resume`, or None. Raises CheckpointError if a model would be overwritten."""
    folder, final = options.model_dir / "checkpoints", options.model_dir / "final.pt"
    if options.resume not in ("auto", "never"):
        path = Path(options.resume)
        if path.resolve() not in [checkpoint.resolve() for checkpoint in list_checkpoints(folder)]:
            what = f"--resume {path}: not auto, never or one of {folder}/step-*"
            raise CheckpointError(f"{what}; to start from its weights use --checkpoint")
        read_checkpoint(path)  # before others are renamed
        set_aside_newer(folder / path.name)
        return folder / path.name
    if options.resume == "never" and list_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: holds checkpoints and --resume is never; use another --model_dir or remove it"
        )
    newest = newest_intact(folder)
    if newest is None and final.exists():
        raise CheckpointError(f"{final}: a model without checkpoints, so it cannot be resumed; use another --model_dir")
    return newest


def _load_base_weights(state: TrainState[AsrModel], options: TrainOptions, config: ExperimentConfig) -> None:
    """Load the weights that `--checkpoint` names, if any, and seed the random numbers of this rank."""
    if options.checkpoint is not None:
        report = load_base_weights(state.model, options.checkpoint, UnitTable.read(options.model_dir / "units.txt"))
        report.log()
        if state.world.is_first:
            write_atomic(options.model_dir / "fine_tune.json", report.to_json())
    elif config.freeze:
        logger.warning("freeze without --checkpoint: frozen parameters keep their random initial values")
    if not state.world.is_first:  # all ranks have the same initial weights; from now on each draws its own numbers
        state.seed_new_rank()


class SpeechTask(Task):
    """The training of a recogniser: its data lists, and the clips that cannot be read."""

    config: ExperimentConfig
    state: TrainState[AsrModel]

    def __init__(
        self,
        config: ExperimentConfig,
        state: TrainState[AsrModel],
        sets: tuple[SpeechDataset, SpeechDataset],
        quarantine: Quarantine,
    ) -> None:
        """`sets`: for training and validation."""
        self.config, self.state, self.accum_grad = config, state, config.accum_grad
        self._train_set, self._valid_set = sets
        self._quarantine, self._num_bad, self._has_begun = quarantine, 0, False

    def prepare(self) -> None:
        """Open the files of `cache_features`."""
        if self.config.dataset_conf.cache_features:
            open_feature_caches([self._train_set, self._valid_set], self.state.world)

    def num_batches(self) -> int:
        return len(self._train_set.plan(self.state.progress.epoch))

    def run_epoch(self) -> Iterator[SpeechStats]:
        progress, world = self.state.progress, self.state.world
        self._num_bad = progress.bad_clips
        plan = self._train_set.plan(progress.epoch)
        share = plan.share(rank=world.rank, world_size=world.size, start=progress.batch)
        loaded = batches(self._train_set, share, progress.epoch, num_workers=self.config.num_workers)
        return run_epoch(self.state, self._log_first(loaded), self.config)

    def _log_first(self, loaded: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; the first one of this run is logged."""
        started = time.perf_counter()
        for batch in loaded:
            if not self._has_begun:
                seconds, shortest, longest = time.perf_counter() - started, *batch.feature_lengths.aminmax()
                message = "first batch after %.1f s: utterances: %d, frames: %d to %d, units: %d; its first key: %s"
                values = (seconds, len(batch.keys), shortest, longest, int(batch.target_lengths.sum()), batch.keys[0])
                logger.info(message, *values)
            self._has_begun = True
            yield batch

    def after_step(self, stats: StepStats, *, at_end: bool) -> None:
        """List the clips that could not be read. Raises DataError if their share is too large."""
        assert isinstance(stats, SpeechStats)
        progress = self.state.progress
        self._quarantine.record(stats.quarantined)
        if progress.bad_clips > self._num_bad:  # clips restored since then must not end the run
            self._check_bad_clips(progress.bad_clips, progress.clips_drawn, at_end=at_end)

    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        world, conf = self.state.world, self.config.dataset_conf.batch_conf
        plan = plan_epoch(self._valid_set.num_frames, conf, seed=0, epoch=0, shuffle=False)
        share = plan[world.rank :: world.size]  # ranks may have different numbers: no batch is repeated
        counts = Counter[str]()
        watched = self._quarantine.record_batches(batches(self._valid_set, share, 0), counts)
        valid: Iterator[Batch] = takewhile(lambda _: not is_stopped(), watched)
        sums = validate(self.state.model, valid, self.config, self.state.device).over_ranks(world)
        num_bad, num_drawn = map(int, world.sum([counts["bad"], counts["drawn"]]))
        if world.any(is_stopped()):
            return None
        self._check_bad_clips(num_bad, num_drawn, at_end=True)
        return sums.per_target() | {"bad_clips": num_bad}

    def plateau_ctc(self) -> float | None:
        targets, num_frames = self._valid_set.sample_targets(PLATEAU_UTTERANCES)
        if not targets or (self.config.model_conf.ctc_weight == 0 and not self.config.model_conf.ctc_only_steps):
            return None
        return constant_output_loss(targets, num_frames, self.state.model.ctc.blank)

    def _check_bad_clips(self, num_bad: int, num_drawn: int, *, at_end: bool) -> None:
        self._quarantine.check_share(num_bad, num_drawn, self.config.dataset_conf.max_bad_clips, at_end=at_end)
