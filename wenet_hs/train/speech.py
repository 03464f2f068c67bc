# SPDX-License-Identifier: Apache-2.0
"""The training of recognisers: model, optimizer and data sets from config and flags, and the
batches of their steps.
"""

import fcntl
import hashlib
import logging
import platform
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from wenet_hs.compute.devices import find_device, resident_bytes
from wenet_hs.compute.distributed import World, join_process_group, local_rank
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.augment import SPEED_FACTORS
from wenet_hs.data.batching import Batch, Quarantine, plan_epoch
from wenet_hs.data.cmvn import read_cmvn
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.data.shards import open_lists
from wenet_hs.frontends.base import Frontend
from wenet_hs.heads.ctc import constant_output_loss
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.outputs import EncoderOutputs
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.weights import load_pretrained
from wenet_hs.model.experiment import build_from_folder, read_units
from wenet_hs.nn.conformer import ConformerLayer, TransformerEncoderLayer
from wenet_hs.nn.transformer import TransformerDecoderLayer
from wenet_hs.runs.record import ListSize
from wenet_hs.text.tokenizer import Tokenizer, check_units
from wenet_hs.text.units import OTHER_SPACE, SPACE, SPECIAL_UNITS, UnitTable
from wenet_hs.train.finetune import BaseModel, load_base_weights
from wenet_hs.train.model_folder import OUTPUT_CACHE, PreparedFolder
from wenet_hs.train.monitor import StepStats
from wenet_hs.train.optim import Precision, build_optimizer, freeze
from wenet_hs.train.speech_steps import SpeechStats, run_epoch, validate
from wenet_hs.train.start import ListPaths, TrainOptions, find_base, read_request
from wenet_hs.train.state import TrainState
from wenet_hs.train.training import DataSize, Task, run_training
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)

OUTPUTS_FORMAT = 2  # w2v-BERT's features were float32
"""To be raised when the outputs of encoders change, or the form of the files that keep them."""
PLATEAU_UTTERANCES = 200
"""Validation utterances for the CTC plateau."""


def train(options: TrainOptions) -> Path:
    """Train to the end of the config, with the other ranks of the launcher.

    Returns the path of `final.pt`.
    """
    base = find_base(options.checkpoint)
    with join_process_group(find_device(options.device)) as world:
        run_training(read_request(options, base, world.size, ExperimentConfig), world, load_task)
    return options.model_dir / "final.pt"


@dataclass(frozen=True, kw_only=True)
class DataSets:
    """The utterances of a training."""

    train: SpeechDataset
    valid: SpeechDataset
    train_digest: str
    """SHA-256 of the list."""
    valid_digest: str
    list_bytes: int
    """The memory of their lists."""


class SpeechTask(Task):
    """The training of a recogniser: its data lists, and the clips that cannot be read."""

    config: ExperimentConfig
    state: TrainState[AsrModel]

    def __init__(
        self,
        folder: PreparedFolder[ExperimentConfig],
        state: TrainState[AsrModel],
        sets: DataSets,
        units: UnitTable,
    ) -> None:
        self.config, self.state, self.accum_grad = folder.config, state, folder.config.accum_grad
        self.train_set, self.valid_set = sets.train, sets.valid
        self._list_bytes = sets.list_bytes
        self._folder, self._units = folder, units
        self._num_bad, self._has_begun = 0, False

    def begin(self, base: BaseModel | None) -> None:
        """Take the weights of `base` or of the pretrained encoder, and seed the random numbers of
        this rank.
        """
        world = self.state.world
        self._open_quarantine(fresh=True)
        encoder = self.state.model.encoder
        if base is not None:
            self._take_weights(base)
        elif isinstance(encoder, PretrainedEncoder):
            self._take_pretrained_weights(encoder)
        elif self.config.freeze:
            message = (
                "freeze without --checkpoint: frozen parameters keep their random initial values"
            )
            logger.warning(message, extra={"code": "random_weights_frozen"})
        self._log_untrained_parts()
        if (
            not world.is_first
        ):  # all ranks have the same initial weights; from now on each draws its own numbers
            self.state.seed_new_rank()

    def resume(self) -> None:
        """Continue the list of bad clips."""
        self._open_quarantine(fresh=False)

    def _open_quarantine(self, *, fresh: bool) -> None:
        world = self.state.world
        self._quarantine = Quarantine(
            self._folder.path, fresh=fresh, rank=world.rank, num_ranks=world.size
        )

    def _take_weights(self, base: BaseModel) -> None:
        """Copy what fits of a trained model, and write `fine_tune.json`."""
        report = load_base_weights(self.state.model, base, self._units)
        report.log()
        if self.state.world.is_first:
            write_atomic(self._folder.path / "fine_tune.json", report.to_json())

    def _take_pretrained_weights(self, encoder: PretrainedEncoder) -> None:
        folder = self._folder.encoder_folder
        assert folder is not None  # the config names it
        load_pretrained(encoder.pretrained, folder, encoder.conf.adapter)
        logger.info("encoder: %s with the weights of %s", encoder.description.kind, folder)

    def _log_untrained_parts(self) -> None:
        """A line per part of the model that no step of this training changes."""
        num_steps = self.config.scheduler_conf.total_steps
        if num_steps is None:
            return
        if self.config.model_conf.ctc_only_steps >= num_steps:
            logger.info(
                "model_conf.ctc_only_steps: all %d steps train CTC only; the decoder is not trained",
                num_steps,
            )
        frozen_steps = getattr(self.config.encoder_conf, "freeze_steps", 0)
        if frozen_steps >= num_steps:
            logger.info(
                "encoder_conf.freeze_steps: in all %d steps nothing of the encoder is trained",
                num_steps,
            )

    def prepare(self) -> None:
        """Open the files of `cache_features`, or of `encoder_conf.cache`, which stay."""
        sets, encoder = [self.train_set, self.valid_set], self.state.model.encoder
        if isinstance(encoder, PretrainedEncoder) and encoder.takes_outputs:
            open_output_caches(sets, encoder, self.state.world)
        elif self.config.dataset_conf.cache_features:
            open_feature_caches(sets, self.state.world)

    def data_size(self) -> DataSize:
        return DataSize(
            lists=(_size_of("training", self.train_set), _size_of("validation", self.valid_set)),
            list_bytes=self._list_bytes,
            feature_bytes=_cache_bytes(self.train_set) + _cache_bytes(self.valid_set),
        )

    def num_ctc_only_steps(self) -> int:
        return self.config.model_conf.ctc_only_steps

    def num_batches(self) -> int:
        return len(self.train_set.plan(self.state.progress.epoch))

    def run_epoch(self) -> Iterator[SpeechStats]:
        progress, world = self.state.progress, self.state.world
        self._num_bad = progress.bad_clips
        plan = self.train_set.plan(progress.epoch)
        share = plan.share(rank=world.rank, world_size=world.size, start=progress.batch)
        return run_epoch(
            self.state,
            self._log_first(self._load(self.train_set, share, progress.epoch)),
            self.config,
        )

    def _load(
        self, dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int
    ) -> Iterator[Batch]:
        pin = is_gpu(self.state.device)
        return batches(dataset, plan, epoch, num_workers=self.config.num_workers, pin=pin)

    def _log_first(self, loaded: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; the first one of this run is logged."""
        started = time.perf_counter()
        for batch in loaded:
            if not self._has_begun:
                seconds, shortest, longest = (
                    time.perf_counter() - started,
                    *batch.feature_lengths.aminmax(),
                )
                message = "first batch after %.1f s: utterances: %d, frames: %d to %d, units: %d; its first key: %s"
                values = (
                    seconds,
                    len(batch.keys),
                    shortest,
                    longest,
                    int(batch.target_lengths.sum()),
                    batch.keys[0],
                )
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
        plan = plan_epoch(self.valid_set.num_frames, conf, seed=0, epoch=0, shuffle=False)
        share = plan[
            world.rank :: world.size
        ]  # ranks may have different numbers: no batch is repeated
        counts = Counter[str]()
        watched = self._quarantine.record_batches(self._load(self.valid_set, share, 0), counts)
        valid: Iterator[Batch] = takewhile(lambda _: not is_stopped(), watched)
        sums = validate(self.state.model, valid, self.config, self.state.device).over_ranks(world)
        num_bad, num_drawn = map(int, world.sum([counts["bad"], counts["drawn"]]))
        if world.any(is_stopped()):
            return None
        self._check_bad_clips(num_bad, num_drawn, at_end=True)
        return sums.per_target() | {"bad_clips": num_bad}

    def plateau_ctc(self) -> float | None:
        targets, num_frames = self.valid_set.sample_targets(PLATEAU_UTTERANCES)
        if not targets or not (
            self.config.model_conf.trained_ctc_weight or self.config.model_conf.ctc_only_steps
        ):
            return None
        return constant_output_loss(targets, num_frames, self.state.model.ctc.blank)

    def _check_bad_clips(self, num_bad: int, num_drawn: int, *, at_end: bool) -> None:
        self._quarantine.check_share(
            num_bad, num_drawn, self.config.dataset_conf.max_bad_clips, at_end=at_end
        )


def _size_of(name: Literal["training", "validation"], dataset: SpeechDataset) -> ListSize:
    return ListSize(name=name, utterances=len(dataset), hours=dataset.durations.sum() / 3600)


def _cache_bytes(dataset: SpeechDataset) -> int:
    """The memory of the features that are kept."""
    return 0 if dataset.cache is None else dataset.cache.num_bytes


def load_task(
    folder: PreparedFolder[ExperimentConfig], lists: ListPaths, world: World
) -> SpeechTask:
    """Build a fresh model, frozen and compiled as set in the config, with its optimizer, and both
    data sets.

    Rank 0 reports the utterances that are not used.
    """
    config, where = folder.config, str(folder.config_file)
    table, tokenizer = read_units(config, folder.path / "units.txt", where=where)
    check_units(config.tokenizer, table, config.tokenizer_conf.symbol_table_path or "units.txt")
    model = _build_model(folder, table)
    frontend = _choose_frontend(model.encoder, config, world.device, where=where)
    model = model.to(world.device)
    if config.compile:
        compile_layers(model)
        if frontend is not None:
            logger.warning("compile: the layers of the pretrained encoder are not compiled")
    sets = _open_sets(folder, lists, tokenizer, model.encoder, frontend, world)
    state = TrainState(
        model,
        build_optimizer(model, config, where=where),
        world.device,
        fingerprint={
            **folder.hashes,
            "training list": sets.train_digest,
            "validation list": sets.valid_digest,
        },
        precision=Precision(config.dtype, world.device),
        world=world,
        seed=config.seed,
    )
    return SpeechTask(folder, state, sets, table)


def _build_model(folder: PreparedFolder[ExperimentConfig], table: UnitTable) -> AsrModel:
    """A model with new weights, of which the parts are frozen that the config names."""
    config = folder.config
    torch.manual_seed(config.seed)
    cmvn = read_cmvn(folder.path / "global_cmvn") if config.cmvn else None
    model = build_from_folder(config, table, folder.path, cmvn=cmvn)
    frozen = list(config.freeze)
    if isinstance(model.encoder, PretrainedEncoder):
        frozen += model.encoder.frozen_parts()
    freeze(model, frozen, where=str(folder.config_file))
    return model


def _choose_frontend(
    encoder: SpeechEncoder, config: ExperimentConfig, device: torch.device, *, where: str
) -> Frontend | None:
    """What computes the input of the model instead of the features that the config describes; None:
    nothing.

    With `encoder_conf.cache` it is the encoder itself, whose outputs the model then takes.
    Raises ConfigError if several processes would compute them on one GPU.
    """
    if not isinstance(encoder, PretrainedEncoder) or encoder.conf.cache is None:
        return encoder.own_frontend
    if is_gpu(device) and config.num_workers:
        found = f"num_workers: {config.num_workers}, but on a GPU only one process can fill encoder_conf.cache"
        raise ConfigError(where, found, "set num_workers: 0")
    encoder.takes_outputs = True
    return EncoderOutputs(encoder)


def _open_sets(
    folder: PreparedFolder[ExperimentConfig],
    lists: ListPaths,
    tokenizer: Tokenizer,
    encoder: SpeechEncoder,
    frontend: Frontend | None,
    world: World,
) -> DataSets:
    """Read both lists. Rank 0 reports the utterances that are not used.

    Raises DataError for a damaged list, and for one of which no utterance can be used.
    """
    conf = folder.config.dataset_conf
    bytes_before = resident_bytes()
    make_set = partial(
        SpeechDataset,
        tokenizer=tokenizer,
        conf=conf,
        seed=folder.config.seed,
        output_length=encoder.output_length,
        frontend=frontend,
    )
    train_list = open_lists(lists.train, lists.data_type, flag="--train_data")
    train_set = make_set(train_list, training=True)
    if world.is_first:
        slowest = min(SPEED_FACTORS) if conf.speed_perturb else 1.0
        _report_set(train_set, "--train_data", folder.path, frontend, slowest)
    valid_list = open_lists((lists.valid,), lists.data_type, flag="--cv_data")
    valid_set = make_set(valid_list, training=False)
    if world.is_first:
        _report_set(valid_set, "--cv_data", folder.path, frontend, slowest=1.0)
    return DataSets(
        train=train_set,
        valid=valid_set,
        train_digest=train_list.digest,
        valid_digest=valid_list.digest,
        list_bytes=max(0, resident_bytes() - bytes_before),
    )


def _report_set(
    dataset: SpeechDataset, flag: str, model_dir: Path, frontend: Frontend | None, slowest: float
) -> None:
    """Report the utterances that are not used, and those that are too long for the frontend.

    `slowest`: the factor of speed at which an utterance is longest.
    Raises DataError if no utterance is left.
    """
    _report_rejected(dataset, flag, model_dir)
    if frontend is not None:
        frontend.warn_about_windows(
            flag, (dataset.durations / slowest).tolist(), "cut them at pauses"
        )


def open_output_caches(
    sets: Sequence[SpeechDataset], encoder: PretrainedEncoder, world: World
) -> None:
    """Let the data sets keep the outputs of a frozen encoder in files of `encoder_conf.cache`.

    Every rank must call it.

    A file belongs to the weights of the encoder, its settings and the clips, so that later
    trainings use it too.
    Raises DataError if a file cannot be made, and ConfigError if a rank has other weights.
    """
    folder = Path(str(encoder.conf.cache))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            folder, f"{OUTPUT_CACHE}: cannot be made ({error.strerror})", "name another folder"
        ) from error
    digest = hashlib.sha256(encoder.description.to_json().encode())
    settings = (encoder.conf.layers, encoder.conf.silence_s, torch.get_float32_matmul_precision())
    computed_by = (encoder.device.type, *map(version, ("wenet_hs", "torch", "transformers")))
    digest.update(repr((OUTPUTS_FORMAT, settings, computed_by)).encode())
    for name, value in sorted(encoder.pretrained.state_dict().items()):
        if (
            name == "masked_spec_embed"
        ):  # has no effect in a frozen encoder, and random values if the folder has none
            continue
        digest.update(
            name.encode() + value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    world.check_equal_across_ranks({"weights of the pretrained encoder": digest.hexdigest()})
    paths = [folder / f"{digest.hexdigest()[:16]}-{dataset.cache_key()}.bin" for dataset in sets]
    for is_turn in (world.is_first, not world.is_first):
        if is_turn:
            with (folder / ".cache.lock").open(
                "wb"
            ) as lock:  # another training may reserve the same files
                fcntl.flock(lock, fcntl.LOCK_EX)
                for dataset, path in zip(sets, paths, strict=True):
                    dataset.cache_in(path, setting=OUTPUT_CACHE)
        world.any(False)  # waits for all ranks


def open_feature_caches(sets: Sequence[SpeechDataset], world: World) -> None:
    """Let the data sets keep features in files that the ranks of a machine share.

    Every rank must call it.

    The files are in the temporary folder, and removed from it at once: their space is freed when
    the processes end. The first rank of each machine reserves the space, within the time limit of a
    collective. Machines may share the folder, but not the files.
    Raises DataError if a file cannot be made.
    """
    name = f"wenet_hs-features-{platform.node()}-{world.all_gather(uuid.uuid4().hex)[0]}"
    paths = [Path(tempfile.gettempdir()) / f"{name}-{number}.bin" for number in range(len(sets))]
    is_first_of_machine = local_rank() == 0
    try:
        for is_turn in (is_first_of_machine, not is_first_of_machine):
            if is_turn:
                for dataset, path in zip(sets, paths, strict=True):
                    dataset.cache_in(path)
            world.any(False)  # waits for all ranks, with a time limit
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _report_rejected(dataset: SpeechDataset, flag: str, model_dir: Path) -> None:
    """Write the utterances that are not used to a table, and log their number and the unknown
    units.

    Raises DataError if no utterance is left.
    """
    path = model_dir / f"{flag.removeprefix('--').removesuffix('_data')}_rejected.tsv"
    total = len(dataset) + len(dataset.rejected)
    write_atomic(path, "".join(f"{key}\t{reason}\n" for key, reason in dataset.rejected))
    reasons = Counter(reason.split(":")[0] for _, reason in dataset.rejected)
    listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    if not len(dataset):
        raise DataError(
            flag, f"none of its {total} utterances can be used: {listed}", f"see {path}"
        )
    if dataset.rejected:
        message = "%s: %d of %d utterances are not used: %s; see %s"
        code = {"code": "utterances_not_used"}
        logger.warning(message, flag, len(dataset.rejected), total, listed, path, extra=code)
    else:
        logger.info("%s: all %d utterances are used", flag, total)
    if dataset.unused_marked:
        what = "units.txt: units in no transcript: %s; a unit with a special meaning must be %s, <sos>, <eos>, %s or %s"
        names = list_names(dataset.unused_marked, " ")
        code = {"code": "units_not_used"}
        logger.warning(what, names, ", ".join(SPECIAL_UNITS), SPACE, OTHER_SPACE, extra=code)
    if dataset.unknown:
        often = ", ".join(f"{unit!r} {count}" for unit, count in dataset.unknown.most_common(5))
        num = dataset.unknown.total()
        message = "%s: %d units of transcripts are not in units.txt and become <unk>: %s"
        logger.warning(message, flag, num, often, extra={"code": "unknown_units"})


def compile_layers(model: nn.Module) -> None:
    """Compile every layer of encoder and decoder when it is first called.

    Layers are compiled in place, so parameters keep their names, and checkpoints do not depend on
    it. Layers of one class share their code. Lengths are dynamic. The first step raises a
    ConfigError if a tool of torch's compiler is missing (`translate_torch_errors`).
    """
    for module in model.modules():
        if isinstance(module, ConformerLayer | TransformerEncoderLayer | TransformerDecoderLayer):
            module.compile(dynamic=True)
