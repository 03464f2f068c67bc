# SPDX-License-Identifier: Apache-2.0
"""Restartable decoding of a data list: batches by length, shared by the ranks, results appended per batch.

    RESULT_DIR/partial/plan.json            the settings, and the batches of the list
    RESULT_DIR/partial/batches-RANK.jsonl   one line per decoded batch

A crash loses at most the batches in progress. The batches do not depend on the number of ranks, and each is decoded as
a whole. So an interrupted or shared run gives the same bits as a run of one process. The folder is removed when the
results are written, unless clips could not be read: then the next run tries these again.

Dimension key: N samples, T frames, F features.
"""

import json
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.build import Experiment
from wenet_hs.data.audio import segment_duration
from wenet_hs.data.features import utterance_features, waveform_features
from wenet_hs.decode.alignment import frame_clock
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.decode.modes import StageTimes, decode, warn_unused_options, warn_wide_beam
from wenet_hs.decode.output import Recognition, Segment, make_segment
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, find_cuts
from wenet_hs.devices import lacks_memory
from wenet_hs.distributed import World
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import write_atomic
from wenet_hs.manifest import Utterance

logger = logging.getLogger(__name__)

FEATURES = "features"
"""Stage that reads audio and computes features."""
MAX_BATCH_S = 600.0
"""Maximum seconds of audio per batch, including padding: bounds the memory. A longer clip is a batch of its own."""
_WARM_UP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a list is decoded."""

    modes: Sequence[str]
    options: DecodeOptions
    lm: LanguageModel | None = None
    batch_size: int = 16
    """Maximum number of utterances (or segments) per batch; changes no text."""
    max_segment_s: float = DEFAULT_MAX_SEGMENT_S
    """A longer clip is cut at pauses; 0: never."""


def recognize(
    experiment: Experiment,
    utterances: Sequence[Utterance],
    job: Job,
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    world: World | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recognition | None:
    """Decode a list, longest utterances first, so that a lack of memory shows at once.

    A clip that cannot be read is left out and listed in `failed`. A clip that is too short for the encoder has the
    empty hypothesis, and a warning names it. One second of noise is decoded before time is measured.

    Args:
        folder: where each decoded batch is saved. A run that finds results of an earlier run with the same settings
            there continues it, and tries again what could not be read. The caller removes the folder.
        settings: what must be equal for that besides the job: the list, its audio, the model.
        world: the ranks that share the work; their number changes no bit.
        on_progress: called with the number of utterances (or segments) of this rank that were decoded since the last
            call, and with their total number.
    Returns: None on all ranks except rank 0.
    Raises: DataError if batches are missing at the end; ConfigError if the memory is too small for a batch.
    """
    world = world or World()
    partial = PartialResults(folder)
    plan, done = _share_plan(partial, utterances, job, settings or {}, world)
    numbers = assign_batches(plan.batches, done, world.size)[world.rank]
    total = sum(len(plan.batches[number]) for number in numbers)
    on_progress(0, total)
    if world.rank == 0:
        warn_wide_beam(experiment.model, job.options)
        warn_unused_options(job.options, job.modes)
    if numbers:
        _warm_up(experiment, job)
    with partial.appending(world.rank) as append:
        for number in numbers:
            batch = plan.batches[number]
            result = _decode_batch(experiment, [piece.select(utterances) for piece in batch], batch, job)
            append(replace(result, number=number, rank=world.rank))
            on_progress(len(batch), total)
    world.barrier()
    if world.rank != 0:
        return None
    results = partial.read()
    missing = set(range(len(plan.batches))) - results.keys()
    if missing:
        raise DataError(
            f"{folder}: {len(missing)} of {len(plan.batches)} batches are missing (the first is {min(missing)}); run "
            "the same command again"
        )
    found = _merge([results[number] for number in sorted(results)], plan, utterances, job.modes)
    if found.too_short:
        message = "too short for the encoder, so their hypothesis is empty: %d utterances (%s)"
        logger.warning(message, len(found.too_short), list_names(found.too_short))
    return found


# ---- plan


class Piece(NamedTuple):
    """A clip, or a segment of one."""

    row: int
    """Index of the utterance in the list."""
    duration_s: float
    begin_s: float = 0.0
    """From the beginning of the utterance."""
    end_s: float | None = None
    """None: to the end of the utterance."""

    def select(self, utterances: Sequence[Utterance]) -> Utterance:
        """The utterance, limited to this piece."""
        utterance = utterances[self.row]
        if self.begin_s == 0 and self.end_s is None:
            return utterance
        origin = utterance.start or 0.0
        end = utterance.end if self.end_s is None else origin + self.end_s
        return replace(utterance, start=origin + self.begin_s, end=end, duration=self.duration_s)


def cut_pieces(row: int, duration_s: float, cuts: Sequence[float]) -> list[Piece]:
    """The segments between the cuts (seconds, rising) of a clip."""
    bounds, ends = [0.0, *cuts, duration_s], [*cuts, None]
    return [Piece(row, bounds[number + 1] - bounds[number], bounds[number], end) for number, end in enumerate(ends)]


def plan_batches(pieces: Iterable[Piece], batch_size: int) -> list[list[Piece]]:
    """Longest first, at most `batch_size` pieces and MAX_BATCH_S seconds with padding; equal ones keep their order."""
    batches: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.duration_s, reverse=True):
        last = batches[-1] if batches else []
        if last and len(last) < batch_size and (len(last) + 1) * last[0].duration_s <= MAX_BATCH_S:
            last.append(piece)
        else:
            batches.append([piece])
    return batches


def assign_batches(batches: Sequence[Sequence[Piece]], done: Collection[int], num_ranks: int) -> list[list[int]]:
    """The numbers of the batches that are not done, per rank: each goes to the rank with the fewest seconds so far."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    seconds = [0.0] * num_ranks
    for number, batch in enumerate(batches):
        if number not in done:
            rank = seconds.index(min(seconds))
            shares[rank].append(number)
            seconds[rank] += len(batch) * batch[0].duration_s
    return shares


@dataclass(frozen=True)
class Plan:
    """The batches of a list."""

    batches: list[list[Piece]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """Row of each utterance whose header (or audio, if it must be cut) cannot be read → reason."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Plan":
        """The plan whose fields were written as JSON."""
        batches = [[Piece(*piece) for piece in batch] for batch in record["batches"]]
        return cls(batches, {int(row): reason for row, reason in record["failed"].items()})


def _share_plan(
    partial: "PartialResults", utterances: Sequence[Utterance], job: Job, settings: Mapping[str, Any], world: World
) -> tuple[Plan, set[int]]:
    """The plan, and the batches that are done. Rank 0 reads the partial results and sends them to the others.

    Utterances that an earlier run could not place in a batch are tried again: their batches follow all others.
    """
    found_by_rank_0 = partial.find(settings) if world.rank == 0 else None
    kept = world.all_gather(found_by_rank_0)[0]
    plan, done = kept or (Plan(), set())
    if kept is not None and not plan.failed:
        return plan, done
    rows = range(len(utterances)) if kept is None else sorted(plan.failed)
    found = _find_pieces(utterances, rows, job.max_segment_s, world)
    pieces = [piece for _, value in found if not isinstance(value, str) for piece in value]
    failed = {row: value for row, value in found if isinstance(value, str)}
    plan = Plan([*plan.batches, *plan_batches(pieces, job.batch_size)], failed)
    if world.rank == 0:
        if kept is None:
            partial.clear()
        partial.write_plan(settings, plan)
    world.barrier()
    return plan, done


def _find_pieces(
    utterances: Sequence[Utterance], rows: Sequence[int], max_segment_s: float, world: World
) -> list[tuple[int, list[Piece] | str]]:
    """Row and pieces of each utterance, or why it cannot be read. Each rank reads its share of the audio."""
    found: list[tuple[int, list[Piece] | str]] = []
    for row in rows[world.rank :: world.size]:
        utterance = utterances[row]
        try:
            duration_s = segment_duration(utterance) if utterance.duration is None else utterance.duration
            is_cut = 0 < max_segment_s < duration_s
            found.append(
                (row, cut_pieces(row, *find_cuts(utterance, max_segment_s)) if is_cut else [Piece(row, duration_s)])
            )
        except DataError as error:
            found.append((row, str(error)))
    world.barrier()
    return sorted((item for share in world.all_gather(found) for item in share), key=lambda item: item[0])


# ---- partial results


@dataclass(frozen=True)
class DecodedBatch:
    """The results of one batch: a line of `batches-RANK.jsonl`."""

    pieces: list[dict[str, Segment] | str]
    """Per piece its results by mode, or the reason why it could not be read."""
    too_short: list[int]
    """Positions in the batch of the pieces without an encoder frame."""
    seconds: dict[str, float]
    """By stage."""
    started_at: float
    """Time of the machine's clock in seconds; orders the attempts at one batch."""
    number: int = 0
    """In the plan."""
    rank: int = 0
    incomplete: list[str] = field(default_factory=list)
    """Keys of the clips that lack a little of the length in their header."""

    @property
    def has_failures(self) -> bool:
        """Whether a piece could not be read."""
        return any(isinstance(piece, str) for piece in self.pieces)

    @classmethod
    def from_json(cls, line: bytes) -> "DecodedBatch | None":
        """The batch of a line; None if the line is damaged: then the batch is decoded again."""
        try:
            record = json.loads(line)
            pieces = [
                piece if isinstance(piece, str) else {mode: Segment.from_json(one) for mode, one in piece.items()}
                for piece in record["pieces"]
            ]
            return cls(**{**record, "pieces": pieces})
        except (ValueError, KeyError, TypeError):
            return None


class PartialResults:
    """The folder of a recognition in progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan = folder / "plan.json"

    def find(self, settings: Mapping[str, Any]) -> tuple[Plan, set[int]] | None:
        """The plan of an interrupted run with the same settings, and the batches that are done; None if there is none.

        A batch with a clip that could not be read is not done: the clip may have been repaired. If the settings differ,
        a warning says so, and the results are not used.
        """
        try:
            record = json.loads(self._plan.read_bytes())
            plan, previous = Plan.from_json(record["plan"]), record["settings"]
        except FileNotFoundError:
            return None
        except (AttributeError, ValueError, KeyError, TypeError):
            logger.warning("%s: damaged; starting from the beginning", self._plan)
            return None
        present = json.loads(json.dumps(settings))
        for name in sorted({*previous, *present}):
            if previous.get(name) != present.get(name):
                message = "%s: of an interrupted run with other settings (%s); starting from the beginning"
                logger.warning(message, self._plan, name)
                return None
        results = self.read().values()
        done = {result.number for result in results if not result.has_failures}
        logger.info("%s: %d of %d batches are decoded already; continuing", self.folder, len(done), len(plan.batches))
        num_failed = len(plan.failed) + sum(isinstance(piece, str) for result in results for piece in result.pieces)
        if num_failed:
            logger.info("%s: trying again the %d clips (or segments) that were not read", self.folder, num_failed)
        return plan, done

    def clear(self) -> None:
        """Discard previous results."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def write_plan(self, settings: Mapping[str, Any], plan: Plan) -> None:
        """Write the plan, or replace it; decoded batches stay."""
        write_atomic(self._plan, json.dumps({"settings": settings, "plan": plan}, default=vars))

    @contextmanager
    def appending(self, rank: int) -> Iterator[Callable[[DecodedBatch], None]]:
        """A function that saves a batch in the file of a rank: from then on a killed process does not lose it.

        An incomplete line at the end of the file, of a killed run, is removed.
        """
        with (self.folder / f"batches-{rank}.jsonl").open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

            def append(result: DecodedBatch) -> None:
                file.write(json.dumps(result, default=vars).encode() + b"\n")
                file.flush()

            yield append

    def read(self) -> dict[int, DecodedBatch]:
        """The decoded batches by number: of several attempts one without failures, otherwise the last one."""
        best: dict[int, DecodedBatch] = {}
        for path in sorted(self.folder.glob("batches-*.jsonl")):
            for line in path.read_bytes().split(b"\n")[:-1]:
                result = DecodedBatch.from_json(line)
                if result is not None:
                    attempts = (best.get(result.number, result), result)
                    best[result.number] = max(attempts, key=lambda one: (not one.has_failures, one.started_at))
        return best


def _merge(
    results: Sequence[DecodedBatch], plan: Plan, utterances: Sequence[Utterance], modes: Sequence[str]
) -> Recognition:
    """All batches as one result. An utterance with a segment that failed has failed."""
    found = Recognition({mode: {} for mode in modes})
    segments_of: defaultdict[int, list[dict[str, Segment]]] = defaultdict(list)
    failed, too_short = dict(plan.failed), set[int]()
    for result in results:
        found.incomplete.update(result.incomplete)
        for stage, seconds in result.seconds.items():
            found.seconds[result.rank][stage] += seconds
        num_decoded = sum(not isinstance(segments, str) for segments in result.pieces)
        batch = plan.batches[result.number]
        too_short |= {batch[place].row for place in result.too_short}
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
            found.segments[mode][utterances[row].key] = sorted(segments_in_mode, key=lambda one: one.begin_s)
    found.failed = {utterances[row].key: failed[row] for row in sorted(failed)}
    found.too_short = [utterances[row].key for row in sorted(too_short)]
    return found


# ---- decoding


@contextmanager
def out_of_memory_as_error(utterances: Sequence[Utterance], longest_s: float, remedy: str) -> Iterator[None]:
    """Raise ConfigError with the keys of the batch if the block runs out of memory.

    Args:
        longest_s: seconds of the longest clip, to which the others are padded.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        named = list_names([utterance.key for utterance in utterances])
        raise ConfigError(
            f"out of memory with a batch of {len(utterances)}, the longest of {longest_s:.1f} s ({named}); {remedy}"
        ) from error


def _decode_batch(
    experiment: Experiment, utterances: Sequence[Utterance], batch: Sequence[Piece], job: Job
) -> DecodedBatch:
    longest_s = max(piece.duration_s for piece in batch)
    with out_of_memory_as_error(utterances, longest_s, "lower --batch_size or --max_segment_s"):
        model, conf = experiment.model, experiment.config.dataset_conf
        device = next(model.parameters()).device
        started_at, times = time.time(), StageTimes(device)
        features: dict[int, Tensor] = {}
        incomplete: list[str] = []
        pieces: list[dict[str, Segment] | str] = [{} for _ in batch]
        with times.measure(FEATURES):
            for place, utterance in enumerate(utterances):
                try:
                    features[place] = utterance_features(utterance, conf, incomplete)
                except DataError as error:
                    pieces[place] = str(error).removeprefix(f"utterance {utterance.key}: ")
            if features:
                padded = pad_sequence(list(features.values()), batch_first=True).to(device)
                lengths = torch.tensor([len(frames) for frames in features.values()], device=device)
        if features:
            results = decode(model, padded, lengths, job.modes, job.options, lm=job.lm, align=True, times=times)
            clock = frame_clock(model.encoder, conf)
            for index, place in enumerate(features):
                pieces[place] = {
                    mode: make_segment(nbests[index], batch[place].begin_s, experiment.tokenizer, clock)
                    for mode, nbests in results.items()
                }
    too_short = [place for place, frames in features.items() if model.encoder.subsampled_length(len(frames)) < 1]
    return DecodedBatch(pieces, too_short, dict(times.seconds), started_at, incomplete=incomplete)


def _warm_up(experiment: Experiment, job: Job) -> None:
    """Load what is loaded at first use: filter banks, kernels, tables."""
    conf, device = experiment.config.dataset_conf, next(experiment.model.parameters()).device
    num_samples = int(conf.resample_conf.resample_rate * _WARM_UP_S)
    noise_N = 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    features = waveform_features(noise_N, conf)
    lengths = torch.tensor([len(features)], device=device)
    decode(experiment.model, features[None].to(device), lengths, job.modes, job.options, lm=job.lm, align=True)
