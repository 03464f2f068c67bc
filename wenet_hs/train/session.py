# SPDX-License-Identifier: Apache-2.0
"""A training from its flags to `final.pt`: the folder, the resume, then steps, validations and checkpoints."""

import hashlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from wenet_hs.build import build_model, initialize_from
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig, HSoftmaxHeadConf
from wenet_hs.data.batching import plan_epoch
from wenet_hs.data.cmvn import read_cmvn
from wenet_hs.data.dataset import Batch, SpeechDataset, batches
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.model import AsrModel
from wenet_hs.text.tokenize import Tokenizer, make_tokenizer
from wenet_hs.text.units import UnitTable
from wenet_hs.train.average import write_model
from wenet_hs.train.checkpoint import list_checkpoints, newest_good, rotate, save_checkpoint
from wenet_hs.train.distributed import World, this_world
from wenet_hs.train.folder import locked, prepare_folder, sha256_of
from wenet_hs.train.loop import run_epoch, validate
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.state import TrainState, progress_of
from wenet_hs.tree import Tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The flags of `wenet-hs train`."""

    config: Path
    train_data: tuple[Path, ...]
    cv_data: Path
    model_dir: Path
    overrides: tuple[str, ...] = ()
    resume: str = "auto"
    checkpoint: Path | None = None
    device: str = "auto"


def train(options: TrainOptions) -> Path:
    """Train to the end of the config. Returns the path of `final.pt`."""
    world = this_world()
    config = load_config(options.config, options.overrides)
    if config.dtype == "fp16":
        raise ConfigError(f"{options.config}: dtype: fp16 needs loss scaling, which is not there yet; use bf16 or fp32")
    with locked(options.model_dir):
        resume_from = _find_resume(options)
        config = prepare_folder(options.model_dir, config, resuming=resume_from is not None)
        session = Session.start(config, options, world)
        if resume_from is not None:
            session.state.restore(resume_from)
            logger.info("resuming from %s (epoch %d)", resume_from, session.state.progress.epoch)
        elif options.checkpoint is not None:
            new = initialize_from(session.state.model, options.checkpoint)
            logger.info("weights from %s; new: %s", options.checkpoint, ", ".join(new) or "none")
        session.run()
    return options.model_dir / "final.pt"


def _find_resume(options: TrainOptions) -> Path | None:
    """The checkpoint to go on from, by `--resume`."""
    folder = options.model_dir / "checkpoints"
    if options.resume == "auto":
        return newest_good(folder)
    if options.resume != "never":
        path = Path(options.resume)
        progress_of(path)  # a clear error if it is not a checkpoint
        return path
    if list_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: holds checkpoints and --resume is never; use another --model_dir or remove it"
        )
    return None


@dataclass
class Session:
    """One training in progress: the state that changes and the data it is fed."""

    config: ExperimentConfig
    model_dir: Path
    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    world: World

    @classmethod
    def start(cls, config: ExperimentConfig, options: TrainOptions, world: World) -> "Session":
        """Read everything from the prepared folder; a fresh model from the config's seed."""
        model_dir = options.model_dir
        table = UnitTable.read(model_dir / "units.txt")
        bpe = model_dir / "bpe.model" if config.tokenizer_conf.bpe_path else None
        tokenizer = make_tokenizer(config.tokenizer, table, bpe)
        torch.manual_seed(config.seed)
        tree = Tree.load(model_dir / "tree.json") if isinstance(config.head_conf, HSoftmaxHeadConf) else None
        cmvn = read_cmvn(model_dir / "global_cmvn") if config.cmvn else None
        device = _device(options.device)
        model = build_model(config, len(table), table.special, tree=tree, cmvn=cmvn, units=table.units).to(device)
        utterances = _read_lists(options.train_data)
        train_set = _dataset(utterances, tokenizer, config, model, training=True)
        valid_set = _dataset(read_data_list(options.cv_data), tokenizer, config, model, training=False)
        _report(train_set, model_dir / "train_rejected.tsv", len(utterances))
        state = TrainState(model, build_optimizer(model, config), device)
        state.fingerprint = {"units": sha256_of(model_dir / "units.txt"), "training list": _digest(utterances)}
        return cls(config, model_dir, state, train_set, valid_set, world)

    def run(self) -> None:
        """Train until the config says stop, then write `final.pt`."""
        progress = self.state.progress
        if progress.finished and progress.epoch >= self.config.max_epoch:
            logger.info("%s: trained already (%d steps)", self.model_dir, progress.step)
        progress.finished = False
        steps_per_epoch = -(-len(self._plan(progress.epoch)) // self.config.accum_grad)
        with Monitor(
            self.model_dir,
            step=progress.step,
            metrics_bytes=progress.metrics_bytes,
            log_interval=self.config.log_interval,
            total_steps=steps_per_epoch * self.config.max_epoch,
        ) as monitor:
            while progress.epoch < self.config.max_epoch and not self._out_of_time():
                self._epoch(monitor)
        write_model(self.model_dir / "final.pt", self.state.model.state_dict())

    def _epoch(self, monitor: Monitor) -> None:
        """The rest of one epoch; saves at each `save_interval` steps, or at its end, and at the end of all."""
        progress, interval = self.state.progress, self.config.save_interval
        plan = self._plan(progress.epoch)
        steps = run_epoch(self.state, self._batches(plan, progress.epoch, progress.batch), self.config)
        for stats in steps:
            monitor.step(stats)
            ended = progress.batch >= len(plan)
            if ended:
                progress.epoch, progress.batch = progress.epoch + 1, 0
            due = ended if interval is None else progress.step % interval == 0
            last = progress.epoch == self.config.max_epoch or self._out_of_time()
            if due or last:
                self._save(monitor, finished=last)
            if last:
                return

    def _save(self, monitor: Monitor, *, finished: bool) -> None:
        """Validate and commit a checkpoint; then let go of those that are no longer needed."""
        progress = self.state.progress
        plan = plan_epoch(
            self.valid_set.num_frames, self.config.dataset_conf.batch_conf, seed=0, epoch=0, shuffle=False
        )
        facts = validate(
            self.state.model, batches(self.valid_set, plan, 0), self.config, self.state.device
        ).per_target()
        monitor.valid(progress.step, progress.epoch, progress.seconds, facts)
        progress.cv_loss = facts["loss"]
        progress.metrics_bytes = monitor.sync()
        progress.finished = finished
        folder = self.model_dir / "checkpoints"
        newest = save_checkpoint(folder, progress.step, self.state.to_files())
        rotate(folder, {newest, *self._worth_keeping(folder)})

    def _worth_keeping(self, folder: Path) -> set[Path]:
        """The newest checkpoints and those of lowest validation loss, `keep_checkpoints` of each."""
        paths, num = list_checkpoints(folder), self.config.keep_checkpoints
        losses = {path: progress_of(path).cv_loss for path in paths}
        best = sorted(paths, key=lambda path: (losses[path] is None, losses[path] or 0.0))
        return {*paths[-num:], *best[:num]}

    def _plan(self, epoch: int) -> list[list[int]]:
        conf = self.config.dataset_conf.batch_conf
        return plan_epoch(
            self.train_set.epoch_frames(epoch),
            conf,
            seed=self.config.seed,
            epoch=epoch,
            rank=self.world.rank,
            world_size=self.world.size,
        )

    def _batches(self, plan: list[list[int]], epoch: int, start: int) -> Iterator[Batch]:
        return batches(self.train_set, plan, epoch, num_workers=self.config.num_workers, start=start)

    def _out_of_time(self) -> bool:
        limit = self.config.max_minutes
        return limit is not None and self.state.progress.seconds >= 60 * limit


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: not a device; use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name}: no CUDA device here; use --device cpu")
    return device


def _read_lists(paths: tuple[Path, ...]) -> list[Utterance]:
    utterances = list(itertools.chain.from_iterable(read_data_list(path) for path in paths))
    keys = [utterance.key for utterance in utterances]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"--train_data: utterance {twice!r} stands in more than one list; give each a unique key")
    return utterances


def _dataset(
    utterances: list[Utterance], tokenizer: Tokenizer, config: ExperimentConfig, model: AsrModel, *, training: bool
) -> SpeechDataset:
    dataset = SpeechDataset(
        utterances,
        tokenizer,
        config.dataset_conf,
        training=training,
        seed=config.seed,
        subsampled_length=model.encoder.subsampled_length,
    )
    if not len(dataset):
        reasons = {reason for _, reason in dataset.rejected}
        raise DataError(
            f"no utterance is left to {'train' if training else 'validate'} on: {'; '.join(sorted(reasons))}"
        )
    return dataset


def _report(dataset: SpeechDataset, path: Path, total: int) -> None:
    """Say what is not trained on, and which units are unknown; nothing is left out in silence."""
    write_atomic(path, "".join(f"{key}\t{reason}\n" for key, reason in dataset.rejected))
    logger.info("%d of %d training utterances used; the others stand in %s", len(dataset), total, path)
    if dataset.unknown:
        often = ", ".join(f"{unit!r} {count}" for unit, count in dataset.unknown.most_common(5))
        logger.warning("%d units are not in units.txt and are trained as <unk>: %s", dataset.unknown.total(), often)


def _digest(utterances: list[Utterance]) -> str:
    text = "\n".join(f"{u.key}\t{u.txt}\t{u.duration}\t{u.start}\t{u.end}" for u in utterances)
    return hashlib.sha256(text.encode()).hexdigest()
