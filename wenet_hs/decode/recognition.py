# SPDX-License-Identifier: Apache-2.0
"""A whole data list through the decoding modes: batches by length, shared by the ranks, every clip accounted for.

Dimension key: N samples, T frames, F features.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.build import Experiment
from wenet_hs.data.features import utterance_features, waveform_features
from wenet_hs.decode.alignment import FrameClock, frame_clock
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.decode.memory import naming_batch
from wenet_hs.decode.modes import decode, warn_of_options, warn_of_wide_beam
from wenet_hs.decode.outcome import Recognition, merge
from wenet_hs.decode.partial import BatchResult, PartialResults
from wenet_hs.decode.plan import Piece, Plan, deal, make_plan
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S
from wenet_hs.decode.timing import StageTimes
from wenet_hs.distributed import World
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance

logger = logging.getLogger(__name__)

FEATURES = "features"
"""Name of the stage that reads audio and computes features."""
_WARM_UP_S = 1.0
_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a list is decoded."""

    modes: Sequence[str]
    options: DecodeOptions
    lm: LanguageModel | None = None
    batch_size: int = 16
    """Most utterances (or segments) in a batch; it never changes a text."""
    max_segment_s: float = DEFAULT_MAX_SEGMENT_S
    """A longer clip is cut in its pauses; 0: none is."""


def recognize(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    job: Job,
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    ranks: World | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recognition | None:
    """Decode a list, longest utterances first: if memory does not suffice, that shows at once.

    A clip that cannot be read is left out and named in `failed`; one too short for the encoder has the empty hypothesis
    and is named in a warning. One second of noise is decoded before the clock starts.

    Args:
        folder: where each batch is kept as soon as it is done (see partial.py). A run that finds there what an earlier
            one with the same settings has left goes on with it, and tries again what could not be read. The caller
            removes it.
        settings: what must be the same for that, besides the job: the list, its audio, the model.
        ranks: the processes that share the work; the number of them changes no bit.
        on_progress: told how many utterances (or segments) of this rank are done since it was last called, and how many
            there are.
    Returns: None on all ranks but the first.
    Raises: DataError where batches are missing in the end; ConfigError where the memory does not suffice for one.
    """
    ranks = ranks or World()
    partial = PartialResults(folder)
    plan, done = _agree_on_plan(partial, utterances, job, settings or {}, ranks)
    mine = deal(plan.batches, done, ranks.size)[ranks.rank]
    total = sum(len(plan.batches[number]) for number in mine)
    on_progress(0, total)
    if ranks.rank == 0:
        warn_of_wide_beam(experiment.model, job.options)
        warn_of_options(job.options, job.modes)
    if mine:
        _warm_up(experiment, job)
    with partial.appending(ranks.rank) as results:
        for number in mine:
            results.append(_recognize_one(experiment, plan.batches[number], utterances, job, number))
            on_progress(len(plan.batches[number]), total)
    ranks.barrier()
    if ranks.rank != 0:
        return None
    found = merge(_all_batches(partial, plan), plan, utterances, job.modes, _clock(experiment))
    _warn(found)
    return found


def _agree_on_plan(
    partial: PartialResults, utterances: Sequence[Utterance], job: Job, settings: Mapping[str, Any], ranks: World
) -> tuple[Plan, set[int]]:
    """The batches, and which of them are done: the first rank looks, and tells the others.

    Utterances that an earlier run could not place in a batch are tried again: their batches come after all others.
    """
    kept = partial.find(settings) if ranks.rank == 0 else None
    ours = b"" if kept is None else json.dumps([kept[0].to_json(), sorted(kept[1])]).encode()
    told = ranks.all_gather(ours if ranks.size > 1 else b"")[0]
    if kept is None and told:
        record, numbers = json.loads(told)
        kept = Plan.from_json(record), set(numbers)
    if kept is not None and not kept[0].failed:
        return kept
    rows = range(len(utterances)) if kept is None else sorted(kept[0].failed)
    new = make_plan(utterances, rows, job.batch_size, job.max_segment_s, ranks)
    plan = new if kept is None else Plan([*kept[0].batches, *new.batches], new.failed)
    if ranks.rank == 0:
        (partial.start if kept is None else partial.write_plan)(settings, plan)
    ranks.barrier()
    return plan, set() if kept is None else kept[1]


def _all_batches(partial: PartialResults, plan: Plan) -> list[BatchResult]:
    """What the batches of the plan have given. Raises DataError where one has left nothing."""
    results = partial.read()
    missing = set(range(len(plan.batches))) - {result.number for result in results}
    if missing:
        raise DataError(
            f"{partial.folder}: {len(missing)} of {len(plan.batches)} batches are missing (the first is "
            f"{min(missing)}); give the same command again"
        )
    return results


def _recognize_one(
    experiment: Experiment, batch: list[Piece], utterances: Sequence[Utterance], job: Job, number: int
) -> BatchResult:
    keys, longest_s = [utterances[piece.row].key for piece in batch], max(piece.duration_s for piece in batch)
    with naming_batch(keys, longest_s, "lower --batch_size or --max_segment_s"):
        return _recognize_batch(experiment, batch, utterances, job, number)


def _recognize_batch(
    experiment: Experiment, batch: list[Piece], utterances: Sequence[Utterance], job: Job, number: int
) -> BatchResult:
    device = next(experiment.model.parameters()).device
    found, times = BatchResult(number), StageTimes(device)
    with times.measure(FEATURES):
        features = _read_features(experiment, batch, utterances, found)
        if features:
            padded = pad_sequence(list(features.values()), batch_first=True).to(device)
            lengths = torch.tensor([len(frames) for frames in features.values()], device=device)
    found.seconds = dict(times.seconds)
    if not features:
        return found
    shortest = experiment.model.encoder.subsampled_length
    found.too_short = [place for place, frames in features.items() if shortest(len(frames)) < 1]
    results = decode(experiment.model, padded, lengths, job.modes, job.options, lm=job.lm, align=True, times=times)
    found.nbest = {mode: dict(zip(features, lists, strict=True)) for mode, lists in results.items()}
    found.seconds = dict(times.seconds)
    return found


def _read_features(
    experiment: Experiment, batch: list[Piece], utterances: Sequence[Utterance], found: BatchResult
) -> dict[int, Tensor]:
    """(T, F) by place in the batch, of the clips that can be read; the others go to `failed`."""
    features = {}
    for place, piece in enumerate(batch):
        utterance = utterances[piece.row]
        try:
            features[place] = utterance_features(piece.of(utterance), experiment.config.dataset_conf)
            found.audio_seconds += piece.duration_s
        except DataError as error:
            found.failed[place] = str(error).removeprefix(f"utterance {utterance.key}: ")
    return features


def _clock(experiment: Experiment) -> FrameClock:
    return frame_clock(experiment.model.encoder, experiment.config.dataset_conf)


def _warm_up(experiment: Experiment, job: Job) -> None:
    """Load whatever is loaded at first use: filter banks, kernels, tables."""
    conf, device = experiment.config.dataset_conf, next(experiment.model.parameters()).device
    num_samples = int(conf.resample_conf.resample_rate * _WARM_UP_S)
    noise_N = 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    features = waveform_features(noise_N, conf)
    lengths = torch.tensor([len(features)], device=device)
    decode(experiment.model, features[None].to(device), lengths, job.modes, job.options, lm=job.lm, align=True)


def _warn(found: Recognition) -> None:
    keys = found.too_short
    if keys:
        named = ", ".join(keys[:_NAMED]) + (" …" if len(keys) > _NAMED else "")
        logger.warning("too short for the encoder, so their hypothesis is empty: %d utterances (%s)", len(keys), named)
