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
from wenet_hs.data.audio import segment_duration
from wenet_hs.data.features import utterance_features
from wenet_hs.data.loading import load_ahead
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import StageTimes, decode, pad_features, warn_about_options
from wenet_hs.decode.partial_results import FORMAT, DecodedBatch, PartialResults
from wenet_hs.decode.recognition import Recognition, Segment, make_segment
from wenet_hs.decode.segments import (
    CUT_AT_PAUSES,
    DEFAULT_MAX_SEGMENT_S,
    Piece,
    cut_pieces,
    find_cuts,
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
    """Of the encoder and the decoder; heads, CTC and language models compute in float32."""


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
        settings: what must be equal for that besides the job: the list, its audio, the model.
        world: the ranks that share the work; their number changes no bit.
        on_progress: called with the number of utterances (or segments) of this rank that were
            decoded since the last call, and with their total number.
    Returns: None on all ranks except rank 0.
    Raises: DataError if batches are missing at the end; ConfigError if the memory is too small for
        a batch.
    """
    world, encoder = world or World(), experiment.model.encoder
    partial = PartialResults(folder)
    job = replace(job, max_segment_s=limit_segment(job.max_segment_s, encoder.longest_s))
    settings = {"format": FORMAT, **(settings or {})}
    batches, done, failed = _share_plan(
        partial, utterances, job, settings, world, encoder.max_batch_s
    )
    numbers = assign_batches(batches, done, world.size)[world.rank]
    total = sum(len(batches[number]) for number in numbers)
    on_progress(0, total)
    if world.is_first:
        warn_about_options(experiment.model, job.options, job.modes)
        seconds = [piece.duration_s for batch in batches for piece in batch]
        experiment.frontend.warn_about_windows(
            f"max_segment_s {job.max_segment_s:g}", seconds, CUT_AT_PAUSES
        )
    if numbers:
        _warm_up(experiment, job)
    with partial.appending(world.rank) as append:
        for number, result in _decode_batches(
            experiment, utterances, {n: batches[n] for n in numbers}, job
        ):
            append(replace(result, number=number, rank=world.rank))
            on_progress(len(batches[number]), total)
    world.barrier()
    if not world.is_first:
        return None
    results = partial.read()
    missing = set(range(len(batches))) - results.keys()
    if missing:
        found = (
            f"{len(missing)} of {len(batches)} batches are missing (the first is {min(missing)})"
        )
        raise DataError(folder, found, "run the same command again")
    return _merge(
        [results[number] for number in range(len(batches))], batches, failed, utterances, job.modes
    )


# ---- plan


def assign_batches(
    batches: Sequence[Sequence[Piece]], done: Collection[int], num_ranks: int
) -> list[list[int]]:
    """The numbers of the batches that are not done, per rank: each goes to the rank with the fewest
    seconds so far.
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    seconds = [0.0] * num_ranks
    for number, batch in enumerate(batches):
        if number not in done:
            rank = seconds.index(min(seconds))
            shares[rank].append(number)
            seconds[rank] += len(batch) * batch[0].duration_s
    return shares


def _share_plan(
    partial: PartialResults,
    utterances: Sequence[Utterance],
    job: DecodingJob,
    settings: Mapping[str, Any],
    world: World,
    max_batch_s: float,
) -> tuple[list[list[Piece]], set[int], dict[int, str]]:
    """The batches, the numbers of those that are done, and row → reason of utterances that are in
    no batch.

    Such an utterance's header (or audio, if it must be cut) cannot be read. The next run tries it
    again: the batches of these utterances follow all others. Rank 0 reads the partial results and
    sends them to the others.
    """
    kept = world.all_gather(partial.find(settings) if world.is_first else None)[0]
    batches, done = kept or ([], set())
    rows = sorted(
        set(range(len(utterances))).difference(piece.row for batch in batches for piece in batch)
    )
    pieces, failed = list[Piece](), dict[int, str]()
    for row in rows[world.rank :: world.size]:
        clip = utterances[row]
        try:
            duration_s = segment_duration(clip) if clip.duration is None else clip.duration
            is_cut = 0 < job.max_segment_s < duration_s
            pieces += (
                cut_pieces(row, *find_cuts(clip, job.max_segment_s))
                if is_cut
                else [Piece(row, duration_s)]
            )
        except DataError as error:
            failed[row] = str(error)
    world.barrier()
    of_ranks = world.all_gather((pieces, failed))
    pieces = sorted(piece for pieces_of_rank, _ in of_ranks for piece in pieces_of_rank)
    new = plan_batches(
        pieces,
        job.batch_size,
        lambda piece: utterances[piece.row].lang if job.models else None,
        max_batch_s=max_batch_s,
    )
    batches = [*batches, *new]
    if world.is_first:
        partial.write_plan(settings, batches, is_new=kept is None)
    world.barrier()
    return (
        batches,
        done,
        {row: reason for _, failed_of_rank in of_ranks for row, reason in failed_of_rank.items()},
    )


# ---- one result


def _merge(
    results: Sequence[DecodedBatch],
    batches: Sequence[Sequence[Piece]],
    unplanned: Mapping[int, str],
    utterances: Sequence[Utterance],
    modes: Sequence[str],
) -> Recognition:
    """All batches as one result. An utterance with a segment that failed has failed."""
    found = Recognition({mode: {} for mode in modes})
    segments_of: defaultdict[int, list[dict[str, Segment]]] = defaultdict(list)
    failed = dict(unplanned)
    for result, batch in zip(results, batches, strict=True):
        found.incomplete.update(result.incomplete)
        for stage, seconds in result.seconds.items():
            found.seconds[result.rank][stage] += seconds
        num_decoded = sum(not isinstance(segments, str) for segments in result.pieces)
        for piece, segments in zip(batch, result.pieces, strict=True):
            if isinstance(segments, str):
                failed[piece.row] = segments
                continue
            segments_of[piece.row].append(segments)
            lang = utterances[piece.row].lang
            found.audio_seconds[lang] += piece.duration_s
            for stage, seconds in result.seconds.items():
                found.seconds_by_lang[lang][stage] += seconds / num_decoded
    for row in sorted(segments_of.keys() - failed.keys()):
        for mode in modes:
            segments_in_mode = [segments[mode] for segments in segments_of[row]]
            found.segments[mode][utterances[row].key] = sorted(
                segments_in_mode, key=lambda one: one.begin_s
            )
    found.failed = {utterances[row].key: failed[row] for row in sorted(failed)}
    return found


# ---- decoding


def decode_pieces(
    experiment: Experiment,
    features: Mapping[Piece, Tensor],
    job: DecodingJob,
    times: StageTimes | None = None,
) -> tuple[dict[Piece, dict[str, Segment]], list[Piece]]:
    """Decode a batch: the hypotheses of each piece by mode, and the pieces that are too short for
    the encoder.

    Args:
        features: (T, F) of each piece.
        times: the seconds of each stage are added to it.
    """
    if not features:
        return {}, []
    model, times = experiment.model, times or StageTimes()
    with times.measure(FEATURES):
        features_BTF, lengths_B = pad_features(model, features.values())
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[job.dtype]
    with torch.autocast(features_BTF.device.type, dtype, enabled=job.dtype != "fp32"):
        found = decode(
            model,
            features_BTF,
            lengths_B,
            job.modes,
            job.options,
            lm=job.lm,
            align=True,
            times=times,
        )
    segments = {
        piece: {
            mode: make_segment(nbests[row], piece.begin_s, experiment)
            for mode, nbests in found.items()
        }
        for row, piece in enumerate(features)
    }
    return segments, [
        piece for piece, one in features.items() if model.encoder.output_length(len(one)) < 1
    ]


@dataclass(frozen=True)
class LoadedBatch:
    """The audio of a batch."""

    clips: dict[Piece, Utterance]
    started_at: float
    features: dict[Piece, Tensor] = field(default_factory=dict)
    """(T, F) of each piece."""
    failed: dict[Piece, str] = field(default_factory=dict)
    """The pieces that cannot be read, and why."""
    incomplete: list[str] = field(default_factory=list)


def _load_batch(
    experiment: Experiment, utterances: Sequence[Utterance], batch: Sequence[Piece]
) -> LoadedBatch:
    loaded = LoadedBatch({piece: piece.select(utterances) for piece in batch}, time.time())
    for piece, clip in loaded.clips.items():
        try:
            loaded.features[piece] = utterance_features(
                clip, experiment.frontend, loaded.incomplete
            )
        except DataError as error:
            loaded.failed[piece] = str(error).removeprefix(f"utterance {clip.key}: ")
    return loaded


def _decode_batches(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    batches: Mapping[int, Sequence[Piece]],
    job: DecodingJob,
) -> Iterator[tuple[int, DecodedBatch]]:
    """Decode batches, given by number.

    Beside a GPU the audio of the next ones is loaded meanwhile.
    """
    device = next(experiment.model.parameters()).device
    of_position = list(batches.values())

    def load(position: int) -> LoadedBatch:
        return _load_batch(experiment, utterances, of_position[position])

    loaded = iter((load_ahead if is_gpu(device) else map)(load, range(len(of_position))))
    for number, batch in batches.items():
        times = StageTimes(device)
        keys = [piece.select(utterances).key for piece in batch]
        with out_of_memory_as_error(
            keys, batch[0].duration_s, "lower --batch_size or --max_segment_s"
        ):
            with times.measure(FEATURES):
                ready = next(loaded)
            result = _decode_batch(experiment, ready, job, times)
        yield number, result


def _decode_batch(
    experiment: Experiment, loaded: LoadedBatch, job: DecodingJob, times: StageTimes
) -> DecodedBatch:
    lang = next(iter(loaded.clips.values())).lang
    experiment = replace(experiment, model=job.models.get(lang, experiment.model))
    decoded, too_short = decode_pieces(experiment, loaded.features, job, times)
    if too_short:
        keys = [loaded.clips[piece].key for piece in loaded.clips if piece in too_short]
        message = "too short for the encoder, so their hypothesis is empty: %d utterances (%s)"
        logger.warning(message, len(keys), list_names(keys))
    pieces = [
        loaded.failed[piece] if piece in loaded.failed else decoded[piece] for piece in loaded.clips
    ]
    return DecodedBatch(
        pieces, dict(times.seconds), loaded.started_at, incomplete=loaded.incomplete
    )


def _warm_up(experiment: Experiment, job: DecodingJob) -> None:
    """Load what is loaded at first use: filter banks, kernels, tables."""
    # One second.
    noise_N = 0.1 * torch.randn(
        experiment.frontend.rate, generator=torch.Generator().manual_seed(0)
    )
    decode_pieces(experiment, {Piece(0, 1.0): experiment.frontend.compute(noise_N)}, job)
