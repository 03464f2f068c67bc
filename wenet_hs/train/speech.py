# SPDX-License-Identifier: Apache-2.0
"""The training of recognisers: model, optimizer and data sets from config and lists.

`load_task` builds them; `SpeechTask` takes the first weights, loads the batches of each epoch for
`speech_steps`, and counts the clips that cannot be read.
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

OUTPUTS_FORMAT = 2  # in format 1 the features of w2v-BERT were float32
"""To be raised when the outputs of encoders change, or the form of the files that keep them."""
PLATEAU_UTTERANCES = 200
"""How many validation utterances are used for the loss of a constant CTC output."""


def train(options: TrainOptions) -> Path:
    """Train a recogniser to the end of its config, together with the other ranks of the launcher.

    Returns the path of `final.pt`. Raises what `run_training` raises.
    """
    base = find_base(options.checkpoint)
    with join_process_group(find_device(options.device)) as world:
        request = read_request(options, base, world.size, ExperimentConfig)
        run_training(request, world, load_task)
    return options.model_dir / "final.pt"


@dataclass(frozen=True, kw_only=True)
class DataSets:
    """The training list and the validation list, read."""

    train: SpeechDataset
    valid: SpeechDataset
    train_digest: str
    """SHA-256 of the training list."""
    valid_digest: str
    """SHA-256 of the validation list."""
    list_bytes: int
    """The memory of both lists."""


def load_task(
    folder: PreparedFolder[ExperimentConfig], lists: ListPaths, world: World
) -> "SpeechTask":
    """Build a model with new weights, its optimizer, and both data sets, as the config says.

    Parts of the model are frozen and compiled as set there. Rank 0 reports the utterances that are
    not used.
    Raises ConfigError or DataError for a fault in the config, the unit table or a list.
    """
    config = folder.config
    where = str(folder.config_file)
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
    fingerprint = {
        **folder.hashes,
        "training list": sets.train_digest,
        "validation list": sets.valid_digest,
    }
    state = TrainState(
        model,
        build_optimizer(model, config, where=where),
        world.device,
        fingerprint=fingerprint,
        precision=Precision(config.dtype, world.device),
        world=world,
        seed=config.seed,
    )
    return SpeechTask(folder, state, sets, table)


def _build_model(folder: PreparedFolder[ExperimentConfig], table: UnitTable) -> AsrModel:
    """A model with new random weights, with its parts frozen as the config says.

    Frozen are the parts of `freeze`, and those of a pretrained encoder that are never trained.
    """
    config = folder.config
    torch.manual_seed(config.seed)
    cmvn = read_cmvn(folder.path / "global_cmvn") if config.cmvn else None
    model = build_from_folder(config, table, folder.path, cmvn=cmvn)
    frozen_names = list(config.freeze)
    if isinstance(model.encoder, PretrainedEncoder):
        frozen_names += model.encoder.frozen_parts()
    freeze(model, frozen_names, where=str(folder.config_file))
    return model


def _choose_frontend(
    encoder: SpeechEncoder, config: ExperimentConfig, device: torch.device, *, where: str
) -> Frontend | None:
    """The frontend that the encoder needs instead of the one in the config; None: it needs none.

    With `encoder_conf.cache` the data sets compute and keep the outputs of the frozen encoder: it
    is the frontend then, and the encoder in the model is set to take outputs as its input.
    Raises ConfigError if several processes would compute these outputs on one GPU.
    """
    if not isinstance(encoder, PretrainedEncoder) or encoder.conf.cache is None:
        return encoder.own_frontend
    if is_gpu(device) and config.num_workers:
        found = (
            f"num_workers: {config.num_workers}, "
            "but on a GPU only one process can fill encoder_conf.cache"
        )
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
    """Read the training list and the validation list.

    Rank 0 writes and logs which utterances are not used.

    `frontend`: computes the input of the model; None: the features that the config describes.
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
    """Report the utterances of a list that are not used, and those too long for the frontend.

    Args:
        flag: `--train_data` or `--cv_data`, which names the list.
        slowest: the smallest factor of speed, at which an utterance is longest; 1 without
            `speed_perturb`.
    Raises: DataError if no utterance can be used.
    """
    _report_rejected(dataset, flag, model_dir)
    if frontend is not None:
        longest_durations = (dataset.durations / slowest).tolist()
        frontend.warn_about_windows(flag, longest_durations, "cut them at pauses")


def _report_rejected(dataset: SpeechDataset, flag: str, model_dir: Path) -> None:
    """Write the utterances that are not used to a table in the model folder, and log their number.

    The units of the transcripts are compared with the unit table (`_warn_of_units`).

    `flag`: `--train_data` or `--cv_data`, which names the list.
    Raises DataError if no utterance can be used.
    """
    list_name = flag.removeprefix("--").removesuffix("_data")  # train or cv
    path = model_dir / f"{list_name}_rejected.tsv"
    rows = [f"{key}\t{reason}\n" for key, reason in dataset.rejected]
    write_atomic(path, "".join(rows))
    num_rejected = len(dataset.rejected)
    num_utterances = len(dataset) + num_rejected
    reasons = Counter(reason.split(":")[0] for _, reason in dataset.rejected)
    counted_reasons = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    if not len(dataset):
        found = f"none of its {num_utterances} utterances can be used: {counted_reasons}"
        raise DataError(flag, found, f"see {path}")
    if dataset.rejected:
        message = "%s: %d of %d utterances are not used: %s; see %s"
        counts = (num_rejected, num_utterances, counted_reasons)
        logger.warning(message, flag, *counts, path, extra={"code": "utterances_not_used"})
    else:
        logger.info("%s: all %d utterances are used", flag, num_utterances)
    _warn_of_units(dataset, flag)


def _warn_of_units(dataset: SpeechDataset, flag: str) -> None:
    """Warn of differences between the units of the transcripts and the unit table.

    These are units in angle brackets in the table that no transcript has, and units in transcripts
    that are not in the table.
    """
    if dataset.unused_marked:
        message = (
            "units.txt: units in no transcript: %s; "
            "a unit with a special meaning must be %s, <sos>, <eos>, %s or %s"
        )
        names = list_names(dataset.unused_marked, " ")
        special_units = (", ".join(SPECIAL_UNITS), SPACE, OTHER_SPACE)
        logger.warning(message, names, *special_units, extra={"code": "units_not_used"})
    if dataset.unknown:
        most_frequent = dataset.unknown.most_common(5)
        counted_units = ", ".join(f"{unit!r} {count}" for unit, count in most_frequent)
        message = "%s: %d units of transcripts are not in units.txt and become <unk>: %s"
        num_unknown = dataset.unknown.total()
        logger.warning(message, flag, num_unknown, counted_units, extra={"code": "unknown_units"})


def compile_layers(model: nn.Module) -> None:
    """Let torch compile every layer of encoder and decoder when it is first called.

    Layers are compiled in place: parameters keep their names, and checkpoints are the same as
    without. Layers of one class share their compiled code. If a tool of torch's compiler is
    missing, the first step fails, not this call.
    """
    for module in model.modules():
        if isinstance(module, ConformerLayer | TransformerEncoderLayer | TransformerDecoderLayer):
            module.compile(dynamic=True)  # one compilation for all lengths


class SpeechTask(Task):
    """The training of a recogniser: its first weights, batches and validation, and bad clips.

    A bad clip is one that cannot be read. It is left out, and listed in the model folder.
    """

    config: ExperimentConfig
    state: TrainState[AsrModel]

    def __init__(
        self,
        folder: PreparedFolder[ExperimentConfig],
        state: TrainState[AsrModel],
        sets: DataSets,
        units: UnitTable,
    ) -> None:
        self.config = folder.config
        self.state = state
        self.accum_grad = folder.config.accum_grad
        self.train_set = sets.train
        self.valid_set = sets.valid
        self._list_bytes = sets.list_bytes
        self._folder = folder
        self._units = units
        self._num_bad_before = 0
        """Bad clips of the training list when the epoch, or this run in it, began."""
        self._has_begun = False
        """Whether this run has loaded a batch."""

    def begin(self, base: BaseModel | None) -> None:
        """Take the weights of `base`, or else of the pretrained encoder, if there is one.

        Begins a new list of bad clips, and seeds the random numbers of each rank except rank 0.
        Warns if the config freezes parameters with random weights. Logs which parts of the model
        are never trained.
        Raises CheckpointError, DataError or ConfigError if the weights do not fit.
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
        # So far all ranks drew the same numbers, for equal weights. Now each draws its own.
        if not world.is_first:
            self.state.seed_new_rank()

    def resume(self) -> None:
        """Continue the list of bad clips of the earlier run."""
        self._open_quarantine(fresh=False)

    def _open_quarantine(self, *, fresh: bool) -> None:
        """Open this rank's list of bad clips in the model folder; `fresh`: an empty one."""
        world = self.state.world
        self._quarantine = Quarantine(
            self._folder.path, fresh=fresh, rank=world.rank, num_ranks=world.size
        )

    def _take_weights(self, base: BaseModel) -> None:
        """Copy the weights of a trained model that fit; log which, and write `fine_tune.json`."""
        report = load_base_weights(self.state.model, base, self._units)
        report.log()
        if self.state.world.is_first:
            write_atomic(self._folder.path / "fine_tune.json", report.to_json())

    def _take_pretrained_weights(self, encoder: PretrainedEncoder) -> None:
        """Load the weights of the pretrained encoder from the folder that the config names."""
        folder = self._folder.encoder_folder
        assert folder is not None  # the config names it
        load_pretrained(encoder.pretrained, folder, encoder.conf.adapter)
        logger.info("encoder: %s with the weights of %s", encoder.description.kind, folder)

    def _log_untrained_parts(self) -> None:
        """Log a line if no step of this training changes the decoder, and one for the encoder.

        Without `total_steps` it is not known how many steps there are, and nothing is logged.
        """
        num_steps = self.config.scheduler_conf.total_steps
        if num_steps is None:
            return
        if self.config.model_conf.ctc_only_steps >= num_steps:
            message = (
                "model_conf.ctc_only_steps: all %d steps train CTC only; the decoder is not trained"
            )
            logger.info(message, num_steps)
        # Only a pretrained encoder has this setting.
        frozen_steps = getattr(self.config.encoder_conf, "freeze_steps", 0)
        if frozen_steps >= num_steps:
            message = "encoder_conf.freeze_steps: in all %d steps nothing of the encoder is trained"
            logger.info(message, num_steps)

    def prepare(self) -> None:
        """Open the files that keep features, or outputs of a frozen encoder, if the config says so.

        The files of outputs (`encoder_conf.cache`) stay on the disk. Those of features
        (`dataset_conf.cache_features`) exist as long as this training.
        """
        sets = [self.train_set, self.valid_set]
        encoder = self.state.model.encoder
        if isinstance(encoder, PretrainedEncoder) and encoder.takes_outputs:
            open_output_caches(sets, encoder, self.state.world)
        elif self.config.dataset_conf.cache_features:
            open_feature_caches(sets, self.state.world)

    def data_size(self) -> DataSize:
        """The size of both lists, and their memory and that of kept features on this rank."""
        return DataSize(
            lists=(_size_of("training", self.train_set), _size_of("validation", self.valid_set)),
            list_bytes=self._list_bytes,
            feature_bytes=_cache_bytes(self.train_set) + _cache_bytes(self.valid_set),
        )

    def num_ctc_only_steps(self) -> int:
        """How many steps at the start of the training train only CTC."""
        return self.config.model_conf.ctc_only_steps

    def num_batches(self) -> int:
        """The number of batches in the current epoch, of all ranks together."""
        return len(self.train_set.plan(self.state.progress.epoch))

    def run_epoch(self) -> Iterator[SpeechStats]:
        """Do the optimizer steps of the current epoch with this rank's share of the batches.

        The first batch is the one at `progress.batch`. Yields the facts of each step.
        """
        progress = self.state.progress
        world = self.state.world
        self._num_bad_before = progress.bad_clips
        plan = self.train_set.plan(progress.epoch)
        share = plan.share(rank=world.rank, world_size=world.size, start=progress.batch)
        loaded = self._load(self.train_set, share, progress.epoch)
        return run_epoch(self.state, self._with_first_logged(loaded), self.config)

    def _load(
        self, dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int
    ) -> Iterator[Batch]:
        """The batches of a plan, which has the numbers of the utterances of each batch."""
        pin = is_gpu(self.state.device)  # pinned memory is copied to a GPU faster
        return batches(dataset, plan, epoch, num_workers=self.config.num_workers, pin=pin)

    def _with_first_logged(self, loaded: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches unchanged; log the size of the first one of this run, and its time."""
        started = time.perf_counter()
        for batch in loaded:
            if not self._has_begun:
                self._has_begun = True
                _log_batch(batch, seconds=time.perf_counter() - started)
            yield batch

    def after_step(self, stats: StepStats, *, at_end: bool) -> None:
        """List the clips of the step that could not be read.

        Raises DataError if the share of bad clips is too large. It is checked only if this epoch
        had one: before a resume, bad clips of earlier epochs may have been repaired.
        """
        assert isinstance(stats, SpeechStats)
        progress = self.state.progress
        self._quarantine.record(stats.quarantined)
        if progress.bad_clips > self._num_bad_before:
            self._check_bad_clips(progress.bad_clips, progress.clips_drawn, at_end=at_end)

    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """The metrics of the validation list and its number of bad clips, over all ranks.

        None if a rank got a signal, after which it stops before its next batch.
        `is_stopped`: whether this rank got one.
        Raises DataError if the share of bad clips is too large.
        """
        world = self.state.world
        batch_conf = self.config.dataset_conf.batch_conf
        plan = plan_epoch(self.valid_set.num_frames, batch_conf, seed=0, epoch=0, shuffle=False)
        # Ranks may have different numbers of batches here, so that no batch is repeated.
        share = plan[world.rank :: world.size]
        counts = Counter[str]()  # gets the clips of this rank as "bad" and "drawn"
        # Each batch is loaded, its bad clips are recorded, then its losses are computed, unless a
        # signal has arrived: then the batches end.
        loaded = self._load(self.valid_set, share, epoch=0)
        recorded = self._quarantine.record_batches(loaded, counts)
        until_stopped: Iterator[Batch] = takewhile(lambda _: not is_stopped(), recorded)
        own_sums = validate(self.state.model, until_stopped, self.config, self.state.device)
        sums = own_sums.over_ranks(world)
        num_bad, num_drawn = map(int, world.sum([counts["bad"], counts["drawn"]]))
        if world.any(is_stopped()):
            return None
        self._check_bad_clips(num_bad, num_drawn, at_end=True)
        return sums.per_target() | {"bad_clips": num_bad}

    def plateau_ctc(self) -> float | None:
        """The CTC loss per target on the validation list of an output that is always the same.

        It is estimated from a sample. None if CTC is never trained, or the list has no targets.
        """
        conf = self.config.model_conf
        targets, num_frames = self.valid_set.sample_targets(PLATEAU_UTTERANCES)
        is_ctc_trained = conf.trained_ctc_weight > 0 or conf.ctc_only_steps > 0
        if not targets or not is_ctc_trained:
            return None
        return constant_output_loss(targets, num_frames, self.state.model.ctc.blank)

    def _check_bad_clips(self, num_bad: int, num_drawn: int, *, at_end: bool) -> None:
        """Raise DataError if the share of bad clips among the drawn ones is above the limit.

        `at_end`: whether an epoch, a validation or the training is over. Before, a few bad clips at
        the start are no reason to end.
        """
        self._quarantine.check_share(
            num_bad, num_drawn, self.config.dataset_conf.max_bad_clips, at_end=at_end
        )


def _log_batch(batch: Batch, *, seconds: float) -> None:
    """Log the size of the first batch, and how long loading it took."""
    shortest, longest = batch.feature_lengths.aminmax()
    num_units = int(batch.target_lengths.sum())
    message = (
        "first batch after %.1f s: utterances: %d, frames: %d to %d, units: %d; its first key: %s"
    )
    frames = (shortest, longest)
    logger.info(message, seconds, len(batch.keys), *frames, num_units, batch.keys[0])


def _size_of(name: Literal["training", "validation"], dataset: SpeechDataset) -> ListSize:
    """The utterances and hours of a list, under the name that it has in the run record."""
    return ListSize(name=name, utterances=len(dataset), hours=dataset.durations.sum() / 3600)


def _cache_bytes(dataset: SpeechDataset) -> int:
    """The memory of the features or outputs that a data set keeps, in bytes; 0 if it keeps none."""
    return 0 if dataset.cache is None else dataset.cache.num_bytes


def open_output_caches(
    sets: Sequence[SpeechDataset], encoder: PretrainedEncoder, world: World
) -> None:
    """Let the data sets keep the outputs of a frozen encoder in files of `encoder_conf.cache`.

    Rank 0 makes the files, then the other ranks open them: every rank must call it.
    The name of a file has hashes of the encoder and of the clips, so later trainings with the same
    ones use it too.
    Raises DataError if a file cannot be made, and ConfigError if a rank has other weights.
    """
    folder = Path(str(encoder.conf.cache))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"{OUTPUT_CACHE}: cannot be made ({error.strerror})"
        raise DataError(folder, found, "name another folder") from error
    sha256 = _hash_encoder(encoder)
    world.check_equal_across_ranks({"weights of the pretrained encoder": sha256})
    paths = [folder / f"{sha256[:16]}-{dataset.cache_key()}.bin" for dataset in sets]
    # Rank 0 has the first of two turns, the other ranks have the second one.
    for is_turn in (world.is_first, not world.is_first):
        if is_turn:
            # Another training may make the same files. Closing the file ends the lock.
            with (folder / ".cache.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                for dataset, path in zip(sets, paths, strict=True):
                    dataset.cache_in(path, setting=OUTPUT_CACHE)
        _wait_for_all(world)


def _hash_encoder(encoder: PretrainedEncoder) -> str:
    """SHA-256 of all that the outputs of a frozen encoder depend on, besides its input.

    It is of the weights, the settings, the kind of device and the versions of the packages.
    """
    digest = hashlib.sha256(encoder.description.to_json().encode())
    settings = (encoder.conf.layers, encoder.conf.silence_s, torch.get_float32_matmul_precision())
    computed_by = (encoder.device.type, *map(version, ("wenet_hs", "torch", "transformers")))
    digest.update(repr((OUTPUTS_FORMAT, settings, computed_by)).encode())
    for name, value in sorted(encoder.pretrained.state_dict().items()):
        # It has no effect in a frozen encoder, and is random if the folder does not have it.
        if name != "masked_spec_embed":
            as_bytes = value.cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(name.encode() + as_bytes.numpy().tobytes())
    return digest.hexdigest()


def _wait_for_all(world: World) -> None:
    """Wait until all ranks are here, at most for the time limit of a collective."""
    world.any(False)  # any collective does


def open_feature_caches(sets: Sequence[SpeechDataset], world: World) -> None:
    """Let the data sets keep features in files that the ranks of a machine share.

    The first rank of each machine makes the files, within the time limit of a collective, then its
    other ranks open them: every rank must call it.
    The files are in the temporary folder, and are removed from it at once: their space is freed
    when the processes end.
    Raises DataError if a file cannot be made.
    """
    # Machines may share the temporary folder, but not the files.
    run_id = world.all_gather(uuid.uuid4().hex)[0]
    name = f"wenet_hs-features-{platform.node()}-{run_id}"
    folder = Path(tempfile.gettempdir())
    paths = [folder / f"{name}-{number}.bin" for number in range(len(sets))]
    is_first_of_machine = local_rank() == 0
    try:
        # The first rank of a machine has the first of two turns, its other ranks the second one.
        for is_turn in (is_first_of_machine, not is_first_of_machine):
            if is_turn:
                for dataset, path in zip(sets, paths, strict=True):
                    dataset.cache_in(path)
            _wait_for_all(world)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
