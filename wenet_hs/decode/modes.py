# SPDX-License-Identifier: Apache-2.0
"""The searches of the decoding modes, and `decode`: from features to the hypotheses of each mode.

To add a mode, write its search in a file of this package, add it to SEARCHES, and its facts to the
table MODES of `model/modes.py`.

Dimension key: B utterances, T encoder frames, K best units of a frame, D width.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.base.extensions import wrong_object
from wenet_hs.decode.attention_search import AttentionSearch
from wenet_hs.decode.ctc_search import (
    align_units,
    greedy_search,
    prefix_beam_search,
    prefix_beam_search_with_lm,
)
from wenet_hs.decode.hypothesis import DIVERGED, DecodeOptions, Hypothesis
from wenet_hs.decode.joint import FinishedListSearch
from wenet_hs.decode.rescoring import rescore
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.lm.language_model import AnyLanguageModel, LanguageModel, TextModel
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.model.modes import (
    CTC_STAGE,
    LENGTH_OPTIONS,
    PREFIX_STAGE,
    Mode,
    beam_search_instead,
    find_mode,
    modes_reading,
    modes_with,
)
from wenet_hs.tree.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

NBests = list[list[Hypothesis]]
"""Per utterance its hypotheses, best first; at most `beam_size`, and at most `nbest` if that is
set.
"""

ENCODER, ALIGNMENT = "encoder", "alignment"
"""Stages that belong to no mode: the encoder, and the alignment of the best hypotheses of all
modes.
"""


class StageTimes:
    """Wall-clock seconds per stage. On a GPU the queue is emptied before the clock is read."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._inner_seconds = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`, without the time of stages that are measured inside
        of it.
        """
        start, outer_seconds = self._now(), self._inner_seconds
        self._inner_seconds = 0.0
        yield
        elapsed = self._now() - start
        self.seconds[stage] += elapsed - self._inner_seconds
        self._inner_seconds = outer_seconds + elapsed

    def _now(self) -> float:
        if is_gpu(self._device):
            torch.get_device_module(self._device).synchronize(self._device)
        return time.perf_counter()


@dataclass
class EncodedBatch:
    """Encoder output of a batch, and what several modes compute from it once."""

    model: AsrModel
    memory: Tensor
    """(B, T, D)"""
    lengths: Tensor
    """(B,) in T, at least 1."""
    options: DecodeOptions
    lm: LanguageModel | None
    modes: Sequence[str]
    times: StageTimes
    current_mode: str = ""
    """The mode whose search reads the batch now."""

    @property
    def ctc_best(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids (B, T, K) of the best units of each frame, for a mode with
        CTC_STAGE.

        K is 1 if no mode of the batch has PREFIX_STAGE, else `beam_size`.
        """
        self._check_stage(CTC_STAGE)
        return self._ctc_best

    @property
    def prefixes(self) -> tuple[NBests, NBests]:
        """The n-bests of the CTC prefix search, and the same with scores of CTC only, for a mode
        with PREFIX_STAGE.
        """
        self._check_stage(PREFIX_STAGE)
        return self._prefixes

    def set_prefixes(self, nbests: NBests) -> None:
        """Use these n-bests of an earlier prefix search, which had no language model."""
        self._prefixes = nbests, nbests

    def _check_stage(self, stage: str) -> None:
        """A stage that a mode does not list would be missing in its time, and the beam could be too
        small.
        """
        if stage not in stages_of(self.current_mode):
            raise RuntimeError(
                f"mode {self.current_mode}: its search reads {stage!r}, which its `stages` do not list"
            )

    @cached_property
    def _ctc_best(self) -> tuple[Tensor, Tensor]:
        needs_prefixes = any(PREFIX_STAGE in stages_of(mode) for mode in self.modes)
        size = self.options.beam_size if needs_prefixes else 1
        with self.times.measure(CTC_STAGE):
            best = self.model.ctc.head.topk(self.memory, min(size, self.model.num_units))
            if bool(best[0].isnan().any()):
                raise CheckpointError("CTC output", "NaN", DIVERGED)
        return best

    @cached_property
    def _prefixes(self) -> tuple[NBests, NBests]:
        best, options, blank, eos = (
            self._ctc_best,
            self.options,
            self.model.ctc.blank,
            self.model.special.eos,
        )
        with self.times.measure(PREFIX_STAGE):
            if self.lm is None and not options.length_bonus:
                found = prefix_beam_search(
                    *best, self.lengths, blank=blank, beam_size=options.beam_size
                )
                return found, found
            return prefix_beam_search_with_lm(
                *best, self.lengths, blank=blank, eos=eos, options=options, lm=self.lm
            )


Search = Callable[[EncodedBatch], NBests]
"""The n-best of each utterance of a batch."""


@dataclass(frozen=True, kw_only=True)
class SearchMode(Mode):
    """A mode of an installed package: the facts, and its search (docs/design/0024-extensions.md)."""

    search: Search


def _greedy(batch: EncodedBatch) -> NBests:
    return greedy_search(*batch.ctc_best, batch.lengths, blank=batch.model.ctc.blank)


def _attention(batch: EncodedBatch) -> NBests:
    arguments = (batch.model, batch.memory, batch.lengths, batch.options)
    if batch.options.finished_list:
        return FinishedListSearch(*arguments, ctc_weight=0.0, lm=batch.lm).search()
    return AttentionSearch(*arguments, batch.lm).search()


def _rescoring(batch: EncodedBatch) -> NBests:
    return rescore(
        batch.model, batch.memory, batch.lengths, batch.prefixes[1], batch.options, batch.lm
    )


def _joint(batch: EncodedBatch) -> NBests:
    arguments = (batch.model, batch.memory, batch.lengths, batch.options)
    return FinishedListSearch(*arguments, ctc_weight=batch.options.ctc_weight, lm=batch.lm).search()


def _prefix_beam_search(batch: EncodedBatch) -> NBests:
    return batch.prefixes[0]


SEARCHES: dict[str, Search] = {
    "ctc_greedy_search": _greedy,
    "ctc_prefix_beam_search": _prefix_beam_search,
    "attention": _attention,
    "attention_rescoring": _rescoring,
    "joint": _joint,
}
"""The search of each mode of MODES, in the same order."""


def search_of(mode: str) -> Search:
    """The search of one of our modes, or of one of an installed package. Raises as `find_mode`."""
    if mode in SEARCHES:
        return SEARCHES[mode]
    facts = find_mode(mode)
    if not isinstance(facts, SearchMode):
        raise wrong_object("mode", mode, "is no wenet_hs.decode.modes.SearchMode")
    return partial(_search_of_package, mode, facts.search)


def _search_of_package(mode: str, search: Search, batch: EncodedBatch) -> NBests:
    """The n-best lists of a mode of an installed package. Raises ConfigError if they are none."""
    nbests = search(batch)
    is_list = isinstance(nbests, list) and all(isinstance(nbest, list) for nbest in nbests)
    if not is_list or len(nbests) != len(batch.lengths):
        found = f"its search returned no list of {len(batch.lengths)} lists, one per utterance"
        raise wrong_object("mode", mode, found)
    for nbest in nbests:
        if not nbest or not all(isinstance(hypothesis, Hypothesis) for hypothesis in nbest):
            found = "its search returned a list without a Hypothesis for an utterance"
            raise wrong_object("mode", mode, found)
    return nbests


def stages_of(mode: str) -> tuple[str, ...]:
    """The stages of a mode besides the encoder: names in StageTimes."""
    return (*find_mode(mode).stages, mode)


def no_chunks_error(encoder: SpeechEncoder, where: str, to_do: str) -> ConfigError:
    """The error where chunks are asked of an encoder that has none.

    `to_do`: instead of training another model.
    """
    if isinstance(encoder, PretrainedEncoder):
        return ConfigError(
            where,
            f"a pretrained encoder ({encoder.description.kind}) reads whole utterances",
            to_do,
        )
    settings = "encoder_conf.causal and encoder_conf.use_dynamic_chunk: true (docs/streaming.md)"
    return ConfigError(
        where, "this model's encoder reads whole utterances", f"{to_do}, or train with {settings}"
    )


def check_options(
    model: AsrModel,
    options: DecodeOptions,
    modes: Sequence[str] = (),
    lm: AnyLanguageModel | None = None,
) -> None:
    """Raise ConfigError if the model or a mode does not support the options, ValueError for an
    unknown mode.
    """
    for mode in modes:
        facts = find_mode(mode)
        if not facts.branches <= model.branches:
            others = " or ".join(modes_with(model.branches))
            raise ConfigError(mode, "needs a decoder, and this model has none", f"use {others}")
        if options.ctc_weight > facts.max_ctc_weight:
            found = f"must be from 0 to {facts.max_ctc_weight:g} for {mode}"
            raise ConfigError(
                f"ctc_weight {options.ctc_weight:g}", found, "use another weight or mode"
            )
        if facts.is_greedy and (options.nbest or 1) > 1:
            found = f"{mode} has only one hypothesis"
            to_do = f"leave out this mode, or use {beam_search_instead(facts)}"
            raise ConfigError(f"nbest {options.nbest}", found, to_do)
    if modes:
        _check_chunk(model, options)
    if options.reverse_weight and model.right_head is None:
        found = "this model has no right-to-left decoder (bitransformer)"
        raise ConfigError(f"reverse_weight {options.reverse_weight:g}", found, "leave it at 0")
    if options.lm_weight and lm is None:
        raise ConfigError(
            f"lm_weight {options.lm_weight:g}", "there is no language model", "give one with --lm"
        )
    if lm is not None and not options.lm_weight:
        raise ConfigError(
            "lm_weight 0", "the language model has no effect", "give --lm_weight above 0"
        )
    if lm is not None and modes and all(find_mode(mode).is_greedy for mode in modes):
        found = "uses no language model"
        to_do = f"add {beam_search_instead(find_mode(modes[0]))}, or leave out --lm and --lm_weight"
        raise ConfigError(", ".join(modes), found, to_do)


def _check_chunk(model: AsrModel, options: DecodeOptions) -> None:
    rule, chunk = model.encoder.chunk_rule, options.chunk
    for name in ("num_decoding_left_chunks", "simulate_streaming"):
        if chunk is None and getattr(options, name) not in (None, -1, False):
            raise ConfigError(
                name, "has no effect without decoding_chunk_size", "give that, or leave this out"
            )
    if chunk is not None and rule is None:
        raise no_chunks_error(model.encoder, f"decoding_chunk_size {chunk.size}", "leave it out")
    if chunk is not None and rule is not None and rule.size not in (None, chunk.size):
        found = f"this model was trained with chunks of {rule.size}"
        raise ConfigError(f"decoding_chunk_size {chunk.size}", found, "use that size")


def warn_about_options(model: AsrModel, options: DecodeOptions, modes: Sequence[str]) -> None:
    """Warn about what is rarely meant.

    A beam wider than the unit table, a mode whose branches were not trained, options that no mode
    reads, a finished list without penalty.
    """
    if options.beam_size > model.num_units:
        message = (
            "beam_size %d: the model has %d units; a larger beam takes time and rarely finds more"
        )
        logger.warning(message, options.beam_size, model.num_units)
    untrained_modes = [mode for mode in modes if not model.supports(mode)]
    if untrained_modes:
        branch = "decoder" if "decoder" not in model.trained_branches else "CTC layer"
        message = (
            "%s: the %s of this model was not trained (ctc_weight %g), so its scores are random"
        )
        logger.warning(message, ", ".join(untrained_modes), branch, model.loss_weights.ctc)
    for option in _unread_options(options, modes):
        readers = ", ".join(modes_reading(option))
        logger.warning("%s: read only by %s, no effect on %s", option, readers, ", ".join(modes))
    biased_modes = [mode for mode in modes if find_mode(mode).favours_short_texts]
    if biased_modes and options.finished_list and not options.length_penalty:
        logger.warning(
            "%s with finished_list and length_penalty 0 favours short texts and returns many empty ones; set "
            "length_penalty to about 1",
            ", ".join(biased_modes),
        )


def _unread_options(options: DecodeOptions, modes: Sequence[str]) -> list[str]:
    """The options about the length that differ from their defaults and that none of the modes
    reads.
    """
    default = DecodeOptions()
    changed = [
        name for name in sorted(LENGTH_OPTIONS) if getattr(options, name) != getattr(default, name)
    ]
    read = frozenset[str]().union(*(find_mode(mode).length_options for mode in modes))
    return [name for name in changed if name not in read]


def pad_features(model: AsrModel, features: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Features (T, F) of utterances as a batch (B, T, F) on the model's device, and their lengths
    (B,).
    """
    rows, device = list(features), next(model.parameters()).device
    return pad_sequence(rows, batch_first=True).to(device), torch.tensor(
        list(map(len, rows)), device=device
    )


@torch.no_grad()  # not inference_mode: the model's positional tables are extended here; training may use them later
def decode(
    model: AsrModel,
    features: Tensor,
    lengths: Tensor,
    modes: Sequence[str],
    options: DecodeOptions | None = None,
    *,
    lm: AnyLanguageModel | None = None,
    align: bool = False,
    times: StageTimes | None = None,
) -> dict[str, NBests]:
    """The hypotheses of each utterance by mode, best first.

    The encoder runs once. The batch size changes no text.

    Args:
        model: in eval mode, on the device of the features.
        features: (B, T, F) float32 before CMVN; lengths: (B,) in feature frames.
        modes: names from MODES, or of modes of installed packages.
        lm: language model with weight `lm_weight`, for all modes except greedy ones: in the search,
            or for the n-best list after it (`TextModel`).
        align: whether to add the CTC alignment of the best hypothesis of each mode. A model that
            was trained without CTC (`ctc_weight` 0) has none.
        times: the seconds of each stage are added to it.
    Returns: {mode: B lists of hypotheses}. An utterance without an encoder frame has the empty
        hypothesis, score 0.
    Raises: ValueError for an unknown mode or a model in training mode; ConfigError as
        check_options; CheckpointError if the output of the encoder is not finite, or that of CTC is
        NaN.
    """
    options = options or DecodeOptions()
    if model.training:
        raise ValueError("decode needs the model in eval mode; call model.eval()")
    check_options(model, options, modes, lm)
    times = times or StageTimes()
    with times.measure(ENCODER):
        if options.simulate_streaming and options.chunk is not None:
            encoded = encode_streamed(model.encoder, features, lengths, options.chunk)
        else:
            encoded = model.encode(features, lengths, *(options.chunk or (-1, -1)))
    return decode_memory(model, encoded, modes, options, lm=lm, align=align, times=times)


@torch.no_grad()
def decode_memory(
    model: AsrModel,
    encoded: tuple[Tensor, Tensor],
    modes: Sequence[str],
    options: DecodeOptions,
    *,
    lm: AnyLanguageModel | None,
    align: bool,
    times: StageTimes,
    prefixes: NBests | None = None,
) -> dict[str, NBests]:
    """As `decode`, from the output of the encoder.

    Args:
        encoded: (B, T, D), and the lengths (B,).
        prefixes: what the CTC prefix search found, if it is known; only without a language model in
            the search.
    """
    memory, memory_lengths = encoded
    with times.measure(ENCODER):
        rows = memory_lengths.nonzero().flatten()
        in_search = lm if isinstance(lm, LanguageModel) else None
        batch = EncodedBatch(
            model, memory[rows], memory_lengths[rows], options, in_search, modes, times
        )
        check_finite(batch.memory)
    if prefixes is not None:
        batch.set_prefixes(prefixes)
    results: dict[str, NBests] = {
        mode: [[Hypothesis((), 0.0)] for _ in range(len(memory))] for mode in modes
    }
    if not len(rows):
        return results
    found: dict[str, NBests] = {}
    for mode in modes:
        batch.current_mode = mode
        with times.measure(mode):
            nbests = search_of(mode)(batch)
            if isinstance(lm, TextModel) and not find_mode(mode).is_greedy:
                nbests = _rescore_texts(nbests, lm, options.lm_weight)
            found[mode] = [nbest[: options.nbest] for nbest in nbests]
    if align and "ctc" in model.trained_branches:
        with times.measure(ALIGNMENT):
            _align_best(batch, found)
    for mode, nbests in found.items():
        for row, nbest in zip(rows.tolist(), nbests, strict=True):
            results[mode][row] = nbest
    return results


def check_finite(memory: Tensor) -> None:
    """Raise CheckpointError for an output of the encoder that has NaN or infinity."""
    if not bool(memory.isfinite().all()):
        raise CheckpointError("encoder output", "NaN or infinity", DIVERGED)


def _rescore_texts(nbests: NBests, lm: TextModel, weight: float) -> NBests:
    """Add the model's score of each text, times `weight`, to its hypothesis, and sort."""
    scores = iter(lm.score_texts([hypothesis.ids for nbest in nbests for hypothesis in nbest]))
    added = (
        [replace(one, score=one.score + weight * next(scores)) for one in nbest] for nbest in nbests
    )
    return [sorted(nbest, key=lambda hypothesis: hypothesis.score, reverse=True) for nbest in added]


def _align_best(batch: EncodedBatch, found: dict[str, NBests]) -> None:
    """Add the alignment to the best hypothesis of each utterance and mode; equal hypotheses are
    aligned once.
    """
    best = [(row, nbest[0].ids) for nbests in found.values() for row, nbest in enumerate(nbests)]
    distinct = list(dict.fromkeys(best))
    rows, labels = zip(*distinct, strict=True)
    found_alignments = align_units(batch.model.ctc, batch.memory, batch.lengths, labels, rows)
    alignments = dict(zip(distinct, found_alignments, strict=True))
    for nbests in found.values():
        for row, nbest in enumerate(nbests):
            nbest[0] = replace(nbest[0], alignment=alignments[row, nbest[0].ids])
