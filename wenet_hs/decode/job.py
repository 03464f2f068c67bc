# SPDX-License-Identifier: Apache-2.0
"""Restartable decoding of a data list: batches by length, shared by the ranks, results appended per
batch.

A crash loses at most the batches in progress. The batches do not depend on the number of ranks, and
each is decoded as a whole. So an interrupted or shared run gives the same bits as a run of one
process. The folder is removed when the results are written, unless clips could not be read: then
the next run tries these again.

Dimension key: N samples, T frames, F features.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from wenet_hs.compute.distributed import World
from wenet_hs.data.features import utterance_features
from wenet_hs.data.loading import load_ahead
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import StageTimes, decode, pad_features, warn_about_options
from wenet_hs.decode.partial_results import FORMAT, DecodedBatch, EarlierRun, PartialResults
from wenet_hs.decode.recognition import Recognition, Segment, make_segment
from wenet_hs.decode.segments import (
    CUT_AT_PAUSES,
    DEFAULT_MAX_SEGMENT_S,
    Piece,
    cut_clip,
    limit_segment,
    out_of_memory_as_error,
    plan_batches,
)
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.lm.language_model import AnyLanguageModel
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

FEATURES = "features"
"""Stage that reads audio and computes features."""

Dtype = Literal["fp32", "bf16", "fp16"]
_TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class DecodingJob:
    """How a list is decoded."""

    modes: Sequence[str]
    options: DecodeOptions
    lm: AnyLanguageModel | None = None
    batch_size: int = 16
    """Maximum number of utterances (or segments) per batch; changes no text."""
    max_segment_s: float = DEFAULT_MAX_SEGMENT_S
    """A longer clip is cut at pauses, and one longer than `longest_s` of the encoder; 0: never."""
    models: Mapping[str | None, AsrModel] = field(default_factory=dict)
    """Per language the model that decodes it; empty: the experiment's model decodes all."""
    dtype: Dtype = "fp32"
    """Type in which encoder and decoder compute; heads, CTC and language models use float32."""


def recognize(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    job: DecodingJob,
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    world: World | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recognition | None:
    """Decode a list, longest utterances first, so that a lack of memory shows at once.

    A clip that cannot be read is left out and listed in `failed`. A clip that is too short for the
    encoder has the empty hypothesis, and a warning names it. One second of noise is decoded before
    time is measured.

    Args:
        folder: where each decoded batch is saved. A run that finds results of an earlier run with
            the same settings there continues it, and tries again what could not be read. The caller
            removes the folder.
        settings: all that the results depend on: the job, the list, its audio, the model.
        world: the ranks that share the work; their number changes no bit.
        on_progress: called with the number of utterances (or segments) of this rank that were
            decoded since the last call, and with their total number.
    Returns: None on all ranks except rank 0.
    Raises: DataError if batches are missing at the end; ConfigError if the memory is too small for
        a batch.
    """
    world = world or World()
    encoder = experiment.model.encoder
    partial_results = PartialResults(folder)
    job = replace(job, max_segment_s=limit_segment(job.max_segment_s, encoder.longest_s))
    settings = {"format": FORMAT, **(settings or {})}
    plan = _make_plan(partial_results, utterances, job, settings, world, encoder.max_batch_s)
    batches = plan.batches
    numbers = assign_batches(batches, plan.done, world.size)[world.rank]
    total = sum(len(batches[number]) for number in numbers)
    on_progress(0, total)
    if world.is_first:
        warn_about_options(experiment.model, job.options, job.modes)
        durations_s = [piece.duration_s for batch in batches for piece in batch]
        experiment.frontend.warn_about_windows(
            f"max_segment_s {job.max_segment_s:g}", durations_s, CUT_AT_PAUSES
        )
    if numbers:
        _warm_up(experiment, job)
    own_batches = {number: batches[number] for number in numbers}
    with partial_results.appending(world.rank) as append:
        for number, result in _decode_batches(experiment, utterances, own_batches, job):
            append(replace(result, number=number, rank=world.rank))
            on_progress(len(batches[number]), total)
    world.barrier()
    if not world.is_first:
        return None
    results = partial_results.read()
    missing = set(range(len(batches))) - results.keys()
    if missing:
        found = (
            f"{len(missing)} of {len(batches)} batches are missing (the first is {min(missing)})"
        )
        raise DataError(folder, found, "run the same command again")
    results_in_order = [results[number] for number in range(len(batches))]
    return _merge(results_in_order, plan, utterances, job.modes)


# ---- plan


@dataclass(frozen=True)
class _Plan:
    """What a run decodes."""

    batches: list[list[Piece]]
    done: set[int]
    """The numbers of the batches that an earlier run has decoded."""
    failed: dict[int, str]
    """Row → reason of each utterance that is in no batch, because it cannot be read."""


def _make_plan(
    partial_results: PartialResults,
    utterances: Sequence[Utterance],
    job: DecodingJob,
    settings: Mapping[str, Any],
    world: World,
    max_batch_s: float,
) -> _Plan:
    """The same plan on all ranks, which share the reading of headers (and of audio, to cut it).

    Rank 0 reads the partial results of an earlier run, sends them to the others, and writes the
    plan. The batches of the earlier run come first. Utterances that are in none of them, because
    they could not be read, are tried again, and their batches follow.
    """
    found_by_this_rank = partial_results.find(settings) if world.is_first else None
    found_by_first_rank = world.all_gather(found_by_this_rank)[0]
    earlier = found_by_first_rank or EarlierRun(batches=[], done=set())
    planned_rows = {piece.row for batch in earlier.batches for piece in batch}
    rows = [row for row in range(len(utterances)) if row not in planned_rows]
    pieces: list[Piece] = []
    failed: dict[int, str] = {}
    for row in rows[world.rank :: world.size]:
        try:
            pieces += cut_clip(row, utterances[row], job.max_segment_s)
        except DataError as error:
            failed[row] = str(error)
    world.barrier()
    pieces_of_all: list[Piece] = []
    failed_of_all: dict[int, str] = {}
    for pieces_of_rank, failed_of_rank in world.all_gather((pieces, failed)):
        pieces_of_all += pieces_of_rank
        failed_of_all |= failed_of_rank

    def group_of(piece: Piece) -> str | None:
        """The language of a piece, if each language has a model of its own."""
        return utterances[piece.row].lang if job.models else None

    new_batches = plan_batches(
        sorted(pieces_of_all), job.batch_size, group_of, max_batch_s=max_batch_s
    )
    batches = [*earlier.batches, *new_batches]
    if world.is_first:
        partial_results.write_plan(settings, batches, is_new=found_by_first_rank is None)
    world.barrier()
    return _Plan(batches, earlier.done, failed_of_all)


def assign_batches(
    batches: Sequence[Sequence[Piece]], done: Collection[int], num_ranks: int
) -> list[list[int]]:
    """The numbers of the batches that are not done, per rank.

    Each batch goes to the rank with the fewest seconds of audio (with padding) so far.
    """
    numbers_of_rank: list[list[int]] = [[] for _ in range(num_ranks)]
    seconds_of_rank = [0.0] * num_ranks
    for number, batch in enumerate(batches):
        if number not in done:
            rank = seconds_of_rank.index(min(seconds_of_rank))
            numbers_of_rank[rank].append(number)
            seconds_of_rank[rank] += len(batch) * batch[0].duration_s
    return numbers_of_rank


# ---- decoding


def _warm_up(experiment: Experiment, job: DecodingJob) -> None:
    """Decode one second of noise, which loads filter banks, kernels and tables."""
    generator = torch.Generator().manual_seed(0)
    noise_N = 0.1 * torch.randn(experiment.frontend.rate, generator=generator)
    features_TF = experiment.frontend.compute(noise_N)
    decode_pieces(experiment, {Piece(row=0, duration_s=1.0): features_TF}, job)


def _decode_batches(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    batches: Mapping[int, Sequence[Piece]],
    job: DecodingJob,
) -> Iterator[tuple[int, DecodedBatch]]:
    """The number and the result of each batch; `batches` has them by number.

    Beside a GPU the audio of the next batches is loaded in the meantime. Raises ConfigError if the
    memory is too small for a batch.
    """
    device = next(experiment.model.parameters()).device
    batches_in_order = list(batches.values())

    def load(position: int) -> LoadedBatch:
        return _load_batch(experiment, utterances, batches_in_order[position])

    positions = range(len(batches_in_order))
    if is_gpu(device):
        loaded_batches = iter(load_ahead(load, positions))
    else:
        loaded_batches = map(load, positions)
    for number, batch in batches.items():
        times = StageTimes(device)
        keys = [piece.select(utterances).key for piece in batch]
        remedy = "lower --batch_size or --max_segment_s"
        with out_of_memory_as_error(keys, batch[0].duration_s, remedy):
            with times.measure(FEATURES):
                loaded_batch = next(loaded_batches)
            result = _decode_batch(experiment, loaded_batch, job, times)
        yield number, result


@dataclass(frozen=True)
class LoadedBatch:
    """The audio of a batch."""

    clips: dict[Piece, Utterance]
    started_at: float
    """Time of the machine's clock in seconds."""
    features: dict[Piece, Tensor] = field(default_factory=dict)
    """(T, F) of each piece that can be read."""
    failed: dict[Piece, str] = field(default_factory=dict)
    """The pieces that cannot be read, and why."""
    incomplete: list[str] = field(default_factory=list)
    """Keys of the clips that lack a little of the length in their header."""


def _load_batch(
    experiment: Experiment, utterances: Sequence[Utterance], batch: Sequence[Piece]
) -> LoadedBatch:
    """Read the audio of each piece and compute its features."""
    clips = {piece: piece.select(utterances) for piece in batch}
    loaded = LoadedBatch(clips, started_at=time.time())
    for piece, clip in clips.items():
        try:
            loaded.features[piece] = utterance_features(
                clip, experiment.frontend, loaded.incomplete
            )
        except DataError as error:
            loaded.failed[piece] = str(error).removeprefix(f"utterance {clip.key}: ")
    return loaded


def _decode_batch(
    experiment: Experiment, loaded: LoadedBatch, job: DecodingJob, times: StageTimes
) -> DecodedBatch:
    """Decode the pieces of a batch, all of one language if each language has a model of its own.

    A warning names the clips that are too short for the encoder.
    """
    lang = next(iter(loaded.clips.values())).lang
    model_of_lang = job.models.get(lang, experiment.model)
    experiment = replace(experiment, model=model_of_lang)
    decoded, too_short = decode_pieces(experiment, loaded.features, job, times)
    if too_short:
        keys = [loaded.clips[piece].key for piece in too_short]
        message = "too short for the encoder, so their hypothesis is empty: %d utterances (%s)"
        logger.warning(message, len(keys), list_names(keys))
    pieces: list[dict[str, Segment] | str] = []
    for piece in loaded.clips:
        pieces.append(loaded.failed[piece] if piece in loaded.failed else decoded[piece])
    return DecodedBatch(
        pieces, dict(times.seconds), loaded.started_at, incomplete=loaded.incomplete
    )


def decode_pieces(
    experiment: Experiment,
    features: Mapping[Piece, Tensor],
    job: DecodingJob,
    times: StageTimes | None = None,
) -> tuple[dict[Piece, dict[str, Segment]], list[Piece]]:
    """Decode a batch.

    Returns: per piece its hypotheses by mode; and the pieces that are too short for the encoder,
        which have the empty hypothesis.

    Args:
        features: (T, F) of each piece.
        times: the seconds of each stage are added to it.
    """
    if not features:
        return {}, []
    model = experiment.model
    times = times or StageTimes()
    with times.measure(FEATURES):
        features_BTF, lengths_B = pad_features(model, features.values())
    dtype = _TORCH_DTYPES[job.dtype]
    with torch.autocast(features_BTF.device.type, dtype, enabled=job.dtype != "fp32"):
        nbests_by_mode = decode(
            model,
            features_BTF,
            lengths_B,
            job.modes,
            job.options,
            lm=job.lm,
            align=True,
            times=times,
        )
    segments: dict[Piece, dict[str, Segment]] = {}
    too_short = []
    for row, (piece, features_TF) in enumerate(features.items()):
        segments[piece] = {
            mode: make_segment(nbests[row], piece.begin_s, experiment)
            for mode, nbests in nbests_by_mode.items()
        }
        if model.encoder.output_length(len(features_TF)) < 1:
            too_short.append(piece)
    return segments, too_short


# ---- one result


def _merge(
    results: Sequence[DecodedBatch],
    plan: _Plan,
    utterances: Sequence[Utterance],
    modes: Sequence[str],
) -> Recognition:
    """All batches as one result. An utterance with a segment that failed has failed.

    In the times per language, each piece that was decoded has an equal part of its batch.
    """
    recognition = Recognition({mode: {} for mode in modes})
    segments_of_row: defaultdict[int, list[dict[str, Segment]]] = defaultdict(list)
    failed = dict(plan.failed)
    for result, batch in zip(results, plan.batches, strict=True):
        recognition.incomplete.update(result.incomplete)
        for stage, seconds in result.seconds.items():
            recognition.seconds[result.rank][stage] += seconds
        num_decoded = sum(not isinstance(segments, str) for segments in result.pieces)
        for piece, segments in zip(batch, result.pieces, strict=True):
            if isinstance(segments, str):  # the reason of a failure
                failed[piece.row] = segments
                continue
            segments_of_row[piece.row].append(segments)
            lang = utterances[piece.row].lang
            recognition.audio_seconds[lang] += piece.duration_s
            for stage, seconds in result.seconds.items():
                recognition.seconds_by_lang[lang][stage] += seconds / num_decoded
    for row in sorted(segments_of_row.keys() - failed.keys()):
        for mode in modes:
            segments_in_mode = [segments[mode] for segments in segments_of_row[row]]
            segments_in_mode.sort(key=lambda segment: segment.begin_s)
            recognition.segments[mode][utterances[row].key] = segments_in_mode
    recognition.failed = {utterances[row].key: failed[row] for row in sorted(failed)}
    return recognition
