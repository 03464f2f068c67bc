# SPDX-License-Identifier: Apache-2.0
"""`decode`, from features to the hypotheses of each mode; the searches of the modes (SEARCHES);
what they share (`EncodedBatch`); the checks of options.

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
from wenet_hs.decode.hypothesis import DIVERGED, Alignment, DecodeOptions, Hypothesis
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

ENCODER = "encoder"
"""The stage of the encoder, which belongs to no mode."""
ALIGNMENT = "alignment"
"""The stage of the alignment of the best hypotheses of all modes."""


class StageTimes:
    """Wall-clock seconds per stage. On a GPU the queue is emptied before the clock is read."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._inner_seconds = 0.0
        """Of the stages that were measured so far inside of the block that is being measured."""
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`.

        The time of stages that are measured inside of the block is not added. Nothing is added if
        the block raises.
        """
        start = self._now()
        seconds_of_siblings = self._inner_seconds  # measured before, in the same outer block
        self._inner_seconds = 0.0
        yield
        elapsed = self._now() - start
        self.seconds[stage] += elapsed - self._inner_seconds
        # For the outer block, this whole block is time of an inner stage.
        self._inner_seconds = seconds_of_siblings + elapsed

    def _now(self) -> float:
        """Seconds of a clock with any beginning; on a GPU all queued work is finished first."""
        if is_gpu(self._device):
            torch.get_device_module(self._device).synchronize(self._device)
        return time.perf_counter()


@dataclass
class EncodedBatch:
    """Encoder output of a batch, and what several modes use.

    The best units of CTC and the hypotheses of the prefix search are computed once, at their first
    use.
    """

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
    """The mode whose search reads the batch now; `decode_memory` sets it."""

    @property
    def ctc_best(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids (B, T, K) of the best units of each frame.

        Only for a mode with CTC_STAGE; else RuntimeError. K is 1 if no mode of the batch has
        PREFIX_STAGE, else `beam_size`, at most all units. Raises CheckpointError if the
        log-probabilities are NaN.
        """
        self._check_stage(CTC_STAGE)
        return self._ctc_best

    @property
    def prefixes(self) -> tuple[NBests, NBests]:
        """The n-bests of the CTC prefix search, and the same with scores of CTC only.

        Only for a mode with PREFIX_STAGE; else RuntimeError.
        """
        self._check_stage(PREFIX_STAGE)
        return self._prefixes

    def set_prefixes(self, nbests: NBests) -> None:
        """Use these n-bests of an earlier prefix search, which had no language model."""
        self._prefixes = nbests, nbests

    def _check_stage(self, stage: str) -> None:
        """Raise RuntimeError if the current mode does not list a stage.

        If a mode did not list a stage that its search reads, the mode's time would lack the seconds
        of this stage, and `ctc_best` could have too few units for the prefix search.
        """
        if stage not in stages_of(self.current_mode):
            raise RuntimeError(
                f"mode {self.current_mode}: its search reads {stage!r}, which its `stages` do not list"
            )

    @cached_property
    def _ctc_best(self) -> tuple[Tensor, Tensor]:
        """As `ctc_best`, computed at its first use."""
        needs_prefixes = any(PREFIX_STAGE in stages_of(mode) for mode in self.modes)
        num_best = self.options.beam_size if needs_prefixes else 1
        with self.times.measure(CTC_STAGE):
            log_probs_BTK, ids_BTK = self.model.ctc.head.topk(
                self.memory, min(num_best, self.model.num_units)
            )
            if bool(log_probs_BTK.isnan().any()):
                raise CheckpointError("CTC output", "NaN", DIVERGED)
        return log_probs_BTK, ids_BTK

    @cached_property
    def _prefixes(self) -> tuple[NBests, NBests]:
        """As `prefixes`, computed at its first use.

        Without a language model and a length bonus, the fast search is used. Its scores are of CTC
        only, so both n-bests are the same.
        """
        log_probs_BTK, ids_BTK = self._ctc_best
        blank = self.model.ctc.blank
        with self.times.measure(PREFIX_STAGE):
            if self.lm is None and not self.options.length_bonus:
                nbests = prefix_beam_search(
                    log_probs_BTK,
                    ids_BTK,
                    self.lengths,
                    blank=blank,
                    beam_size=self.options.beam_size,
                )
                return nbests, nbests
            return prefix_beam_search_with_lm(
                log_probs_BTK,
                ids_BTK,
                self.lengths,
                blank=blank,
                eos=self.model.special.eos,
                options=self.options,
                lm=self.lm,
            )


Search = Callable[[EncodedBatch], NBests]
"""The n-best of each utterance of a batch."""


@dataclass(frozen=True, kw_only=True)
class SearchMode(Mode):
    """A mode of an installed package: its facts and its search (docs/design/0024-extensions.md)."""

    search: Search


def _greedy(batch: EncodedBatch) -> NBests:
    """The one hypothesis of each utterance that has the best CTC unit in each frame."""
    log_probs_BTK, ids_BTK = batch.ctc_best
    return greedy_search(log_probs_BTK, ids_BTK, batch.lengths, blank=batch.model.ctc.blank)


def _prefix_beam_search(batch: EncodedBatch) -> NBests:
    """The hypotheses of the CTC prefix search, ranked with language model and length bonus."""
    nbests, _ = batch.prefixes
    return nbests


def _attention(batch: EncodedBatch) -> NBests:
    """Search with the decoder only: by WeNet's rules, or with a list of finished hypotheses."""
    arguments = (batch.model, batch.memory, batch.lengths, batch.options)
    if batch.options.finished_list:
        return FinishedListSearch(*arguments, ctc_weight=0.0, lm=batch.lm).search()
    return AttentionSearch(*arguments, lm=batch.lm).search()


def _rescoring(batch: EncodedBatch) -> NBests:
    """The hypotheses of the CTC prefix search, ranked again with the decoder."""
    _, nbests_by_ctc = batch.prefixes
    return rescore(batch.model, batch.memory, batch.lengths, nbests_by_ctc, batch.options, batch.lm)


def _joint(batch: EncodedBatch) -> NBests:
    """Search with decoder and CTC, and a list of finished hypotheses."""
    arguments = (batch.model, batch.memory, batch.lengths, batch.options)
    return FinishedListSearch(*arguments, ctc_weight=batch.options.ctc_weight, lm=batch.lm).search()


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
    """The n-best lists of a mode of an installed package.

    Raises ConfigError unless they are one list per utterance, each with a Hypothesis or more.
    """
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
    """The stages of a mode besides the encoder, as `StageTimes` names them.

    The last one is the mode itself.
    """
    return (*find_mode(mode).stages, mode)


# ---- checks of options


def check_options(
    model: AsrModel,
    options: DecodeOptions,
    modes: Sequence[str] = (),
    lm: AnyLanguageModel | None = None,
) -> None:
    """Raise ConfigError if the model or a mode does not support the options.

    Raise ValueError for an unknown mode. Without modes only the options of decoders and language
    models are checked.
    """
    for mode in modes:
        _check_mode(model, options, mode)
    if modes:
        _check_chunk(model, options)
    if options.reverse_weight and model.right_head is None:
        found = "this model has no right-to-left decoder (bitransformer)"
        raise ConfigError(f"reverse_weight {options.reverse_weight:g}", found, "leave it at 0")
    _check_language_model(options, modes, lm)


def _check_mode(model: AsrModel, options: DecodeOptions, mode: str) -> None:
    """Raise ConfigError if a mode does not support the model, the CTC weight or the n-best list.

    Raise ValueError for an unknown mode.
    """
    facts = find_mode(mode)
    if not facts.branches <= model.branches:
        other_modes = " or ".join(modes_with(model.branches))
        raise ConfigError(mode, "needs a decoder, and this model has none", f"use {other_modes}")
    if options.ctc_weight > facts.max_ctc_weight:
        allowed = f"must be from 0 to {facts.max_ctc_weight:g} for {mode}"
        raise ConfigError(
            f"ctc_weight {options.ctc_weight:g}", allowed, "use another weight or mode"
        )
    if facts.is_greedy and options.nbest is not None and options.nbest > 1:
        to_do = f"leave out this mode, or use {beam_search_instead(facts)}"
        raise ConfigError(f"nbest {options.nbest}", f"{mode} has only one hypothesis", to_do)


def _check_chunk(model: AsrModel, options: DecodeOptions) -> None:
    """Raise ConfigError for chunks that the encoder does not have.

    Also for options that have no effect without `decoding_chunk_size`.
    """
    chunk = options.chunk
    if chunk is None:
        # 0 is not refused, although it has no effect either.
        has_left_chunks = options.num_decoding_left_chunks not in (None, -1, 0)
        if has_left_chunks:
            raise _no_effect_error("num_decoding_left_chunks")
        if options.simulate_streaming:
            raise _no_effect_error("simulate_streaming")
        return
    rule = model.encoder.chunk_rule
    if rule is None:
        raise no_chunks_error(model.encoder, f"decoding_chunk_size {chunk.size}", "leave it out")
    if rule.size is not None and rule.size != chunk.size:
        found = f"this model was trained with chunks of {rule.size}"
        raise ConfigError(f"decoding_chunk_size {chunk.size}", found, "use that size")


def _no_effect_error(name: str) -> ConfigError:
    """The error for an option that needs `decoding_chunk_size`, which is not given."""
    return ConfigError(
        name, "has no effect without decoding_chunk_size", "give that, or leave this out"
    )


def _check_language_model(
    options: DecodeOptions, modes: Sequence[str], lm: AnyLanguageModel | None
) -> None:
    """Raise ConfigError for a weight without a language model, or a model that has no effect.

    A language model has no effect with weight 0, or if all modes are greedy.
    """
    if options.lm_weight and lm is None:
        raise ConfigError(
            f"lm_weight {options.lm_weight:g}", "there is no language model", "give one with --lm"
        )
    if lm is None:
        return
    if not options.lm_weight:
        raise ConfigError(
            "lm_weight 0", "the language model has no effect", "give --lm_weight above 0"
        )
    if modes and all(find_mode(mode).is_greedy for mode in modes):
        beam_search = beam_search_instead(find_mode(modes[0]))
        to_do = f"add {beam_search}, or leave out --lm and --lm_weight"
        raise ConfigError(", ".join(modes), "uses no language model", to_do)


def no_chunks_error(encoder: SpeechEncoder, where: str, to_do: str) -> ConfigError:
    """The error where chunks are asked of an encoder that has none.

    `to_do`: what to do instead of training another model.
    """
    if isinstance(encoder, PretrainedEncoder):
        found = f"a pretrained encoder ({encoder.description.kind}) reads whole utterances"
        return ConfigError(where, found, to_do)
    settings = "encoder_conf.causal and encoder_conf.use_dynamic_chunk: true (docs/streaming.md)"
    found = "this model's encoder reads whole utterances"
    return ConfigError(where, found, f"{to_do}, or train with {settings}")


def warn_about_options(model: AsrModel, options: DecodeOptions, modes: Sequence[str]) -> None:
    """Log a warning for each setting that is rarely meant.

    They are: a beam wider than the unit table, a mode whose branches were not trained, an option
    that no mode reads, and a finished list without a length penalty.
    """
    if options.beam_size > model.num_units:
        message = (
            "beam_size %d: the model has %d units; a larger beam takes time and rarely finds more"
        )
        logger.warning(message, options.beam_size, model.num_units)
    untrained_modes = [mode for mode in modes if not model.supports(mode)]
    if untrained_modes:
        # At least one branch was trained. So if it is the decoder, the CTC layer was not.
        branch = "CTC layer" if "decoder" in model.trained_branches else "decoder"
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
    """The options about the length that are not at their defaults and that no mode reads."""
    default = DecodeOptions()
    read_options = set[str]()
    for mode in modes:
        read_options |= find_mode(mode).length_options
    unread_options = sorted(LENGTH_OPTIONS - read_options)
    return [name for name in unread_options if getattr(options, name) != getattr(default, name)]


# ---- decoding


def pad_features(model: AsrModel, features: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Features (T, F) of utterances as a batch (B, T, F), and their lengths (B,).

    Both are on the model's device.
    """
    rows = list(features)
    device = next(model.parameters()).device
    lengths_B = torch.tensor(list(map(len, rows)), device=device)
    return pad_sequence(rows, batch_first=True).to(device), lengths_B


# Not inference_mode: it extends the model's positional tables, and training may use them later.
@torch.no_grad()
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
        elif options.chunk is not None:
            encoded = model.encode(features, lengths, options.chunk.size, options.chunk.left)
        else:
            encoded = model.encode(features, lengths)
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
        prefixes: per utterance that has a frame, the result of a CTC prefix search that was made
            before, without a language model; None: the search is made here, if a mode needs it.
    """
    memory, memory_lengths = encoded
    with times.measure(ENCODER):
        rows = memory_lengths.nonzero().flatten()  # the utterances that have a frame
        lm_in_search = lm if isinstance(lm, LanguageModel) else None
        batch = EncodedBatch(
            model=model,
            memory=memory[rows],
            lengths=memory_lengths[rows],
            options=options,
            lm=lm_in_search,
            modes=modes,
            times=times,
        )
        check_finite(batch.memory)
    if prefixes is not None:
        batch.set_prefixes(prefixes)
    results: dict[str, NBests] = {}
    for mode in modes:
        # At first each utterance has the empty hypothesis. Those without a frame keep it.
        results[mode] = [[Hypothesis((), 0.0)] for _ in range(len(memory))]
    if not len(rows):
        return results
    nbests_by_mode: dict[str, NBests] = {}
    for mode in modes:
        batch.current_mode = mode
        with times.measure(mode):
            nbests = search_of(mode)(batch)
            if isinstance(lm, TextModel) and not find_mode(mode).is_greedy:
                nbests = _rescore_texts(nbests, lm, options.lm_weight)
            nbests_by_mode[mode] = [nbest[: options.nbest] for nbest in nbests]
    if align and "ctc" in model.trained_branches:
        with times.measure(ALIGNMENT):
            _align_best(batch, nbests_by_mode)
    for mode, nbests in nbests_by_mode.items():
        for row, nbest in zip(rows.tolist(), nbests, strict=True):
            results[mode][row] = nbest
    return results


def check_finite(memory: Tensor) -> None:
    """Raise CheckpointError for an output of the encoder that has NaN or infinity."""
    if not bool(memory.isfinite().all()):
        raise CheckpointError("encoder output", "NaN or infinity", DIVERGED)


def _rescore_texts(nbests: NBests, lm: TextModel, weight: float) -> NBests:
    """The n-best lists ranked again with a language model, best first.

    The score of a hypothesis becomes its score plus `weight` · the model's score of its text.
    """
    texts = []
    for nbest in nbests:
        texts += [hypothesis.ids for hypothesis in nbest]
    lm_scores = iter(lm.score_texts(texts))
    rescored_nbests = []
    for nbest in nbests:
        rescored = []
        for hypothesis in nbest:
            score = hypothesis.score + weight * next(lm_scores)
            rescored.append(replace(hypothesis, score=score))
        rescored.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
        rescored_nbests.append(rescored)
    return rescored_nbests


def _align_best(batch: EncodedBatch, nbests_by_mode: dict[str, NBests]) -> None:
    """Add the alignment to the best hypothesis of each utterance and mode, in the lists themselves.

    Equal hypotheses of an utterance are aligned once.
    """
    alignments: dict[tuple[int, tuple[int, ...]], Alignment | None] = {}
    rows = []
    labels = []
    for nbests in nbests_by_mode.values():
        for row, nbest in enumerate(nbests):
            ids = nbest[0].ids
            if (row, ids) not in alignments:
                alignments[row, ids] = None  # its alignment follows
                rows.append(row)
                labels.append(ids)
    aligned = align_units(batch.model.ctc, batch.memory, batch.lengths, labels, rows)
    for row, ids, alignment in zip(rows, labels, aligned, strict=True):
        alignments[row, ids] = alignment
    for nbests in nbests_by_mode.values():
        for row, nbest in enumerate(nbests):
            nbest[0] = replace(nbest[0], alignment=alignments[row, nbest[0].ids])
