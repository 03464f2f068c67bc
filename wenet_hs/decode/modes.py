# SPDX-License-Identifier: Apache-2.0
"""The decoding modes: from features to the hypotheses of each mode, the encoder run once for all of them.

Dimension key: B utterances, T encoder frames, D width.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wenet_hs.decode.alignment import CTC_NAN, align_units
from wenet_hs.decode.attention import attention_beam_search
from wenet_hs.decode.ctc import greedy_search, prefix_beam_search
from wenet_hs.decode.ctc_fused import fused_prefix_search
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.joint import finished_list_search
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.decode.rescoring import rescore
from wenet_hs.decode.timing import StageTimes
from wenet_hs.errors import CheckpointError, ConfigError
from wenet_hs.model import AsrModel

logger = logging.getLogger(__name__)

MODES = ("attention", "ctc_greedy_search", "ctc_prefix_beam_search", "attention_rescoring", "joint")
"""Names of the searches; the first four are WeNet's."""
ENCODER = "encoder"
CTC = "ctc"
ALIGNMENT = "alignment"
"""Stage that finds when the units of the best hypotheses were said; it is of no mode."""
STAGES_OF_MODE = {
    "attention": ("attention",),
    "ctc_greedy_search": (CTC, "ctc_greedy_search"),
    "ctc_prefix_beam_search": (CTC, "ctc_prefix_beam_search"),
    "attention_rescoring": (CTC, "ctc_prefix_beam_search", "attention_rescoring"),
    "joint": ("joint",),
}
"""What a mode takes besides the encoder: names of StageTimes."""
_DECODER_OPTIONS = ("finished_list", "length_penalty", "max_len_ratio", "min_len_ratio")
"""What only the searches of the decoder, attention and joint, read."""
_PREFIX_MODES = {"ctc_prefix_beam_search", "attention_rescoring"}
_CTC_MODES = {"ctc_greedy_search", *_PREFIX_MODES}


def check_options(
    model: AsrModel, options: DecodeOptions, modes: Sequence[str] = (), lm: LanguageModel | None = None
) -> None:
    """Raise ConfigError where this model, or one of the modes, cannot do what the options ask for."""
    if options.reverse_weight and model.right_head is None:
        raise ConfigError(
            f"reverse_weight {options.reverse_weight:g}: this model has no right-to-left decoder (bitransformer); "
            "leave it at 0"
        )
    if "joint" in modes and options.ctc_weight > 1:
        raise ConfigError(f"ctc_weight {options.ctc_weight:g}: joint needs it from 0 to 1; give another mode or weight")
    if "ctc_greedy_search" in modes and (options.nbest or 1) > 1:
        raise ConfigError(
            f"nbest {options.nbest}: ctc_greedy_search has one hypothesis; leave it out of the modes, or take "
            "ctc_prefix_beam_search"
        )
    if options.lm_weight and lm is None:
        raise ConfigError(f"lm_weight {options.lm_weight:g}: there is no language model; give one by --lm")
    if lm is not None and not options.lm_weight:
        raise ConfigError("lm_weight 0: the language model would not count; give --lm_weight above 0")
    if lm is not None and set(modes) == {"ctc_greedy_search"}:
        raise ConfigError(
            "ctc_greedy_search: takes no language model; give ctc_prefix_beam_search too or instead, or leave out --lm "
            "and --lm_weight"
        )


def warn_of_wide_beam(model: AsrModel, options: DecodeOptions) -> None:
    """Say that a beam is wider than the unit table. It is no error: every search then keeps all that there is."""
    if options.beam_size > model.num_units:
        logger.warning(
            "beam_size %d: the model has %d units; a beam above that costs time and rarely finds more",
            *(options.beam_size, model.num_units),
        )


def warn_of_options(options: DecodeOptions, modes: Sequence[str]) -> None:
    """Say which options no mode reads, and that a finished list without a length penalty prefers short texts."""
    default = DecodeOptions()
    given = [name for name in _DECODER_OPTIONS if getattr(options, name) != getattr(default, name)]
    if given and not {"attention", "joint"}.intersection(modes):
        logger.warning(
            "%s: read by attention and joint alone, so without effect on %s", *map(", ".join, (given, modes))
        )
    if "attention" in modes and options.finished_list and not options.length_penalty:
        logger.warning(
            "attention with finished_list and length_penalty 0 prefers short texts and finds many empty ones; give "
            "length_penalty too, about 1"
        )


@torch.no_grad()  # not inference_mode: the model's tables of positions grow here and may be used for training later
def decode(
    model: AsrModel,
    features: Tensor,
    lengths: Tensor,
    modes: Sequence[str],
    options: DecodeOptions | None = None,
    *,
    lm: LanguageModel | None = None,
    align: bool = False,
    times: StageTimes | None = None,
) -> dict[str, list[list[Hypothesis]]]:
    """The hypotheses of each utterance by mode, best first. The batch size never changes a text.

    Args:
        model: in eval mode, on the device of the features.
        features: (B, T, F) float32 before CMVN; lengths: (B,) in feature frames.
        modes: names out of MODES.
        lm: a language model, which counts `lm_weight` times in all modes but ctc_greedy_search.
        align: whether the best hypothesis of each mode gets its CTC alignment. A model that was trained without CTC
            (`ctc_weight` 0) has none to give.
        times: where to add the seconds of each stage.
    Returns: {mode: B lists of hypotheses}. An utterance too short for one encoder frame has the empty one, of score 0.
    Raises: ValueError on an unknown mode or a model in training mode; ConfigError as check_options; CheckpointError
        where the output of the encoder is not finite, or that of CTC NaN.
    """
    options = options or DecodeOptions()
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ValueError(f"mode {unknown[0]!r}: must be one of {', '.join(MODES)}")
    if model.training:
        raise ValueError("decode needs the model in eval mode; call model.eval()")
    check_options(model, options, modes, lm)
    times = times or StageTimes()
    with times.measure(ENCODER):
        memory, memory_lengths = model.encode(features, lengths)
        present = memory_lengths.nonzero().flatten()
        memory, memory_lengths = memory[present], memory_lengths[present]
        if not bool(memory.isfinite().all()):
            raise CheckpointError(
                "encoder output: NaN or infinity; the weights are damaged or training diverged, take another checkpoint"
            )
    found = _search(model, memory, memory_lengths, set(modes), options, lm=lm, times=times) if len(present) else {}
    if align and found and model.ctc_weight:
        with times.measure(ALIGNMENT):
            found = _align_best(model, memory, memory_lengths, found)
    return {mode: _spread(found.get(mode, []), present.tolist(), len(features)) for mode in modes}


def _search(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    modes: set[str],
    options: DecodeOptions,
    *,
    lm: LanguageModel | None,
    times: StageTimes,
) -> dict[str, list[list[Hypothesis]]]:
    found: dict[str, list[list[Hypothesis]]] = {}
    if "attention" in modes:
        with times.measure("attention"):
            found["attention"] = attention_beam_search(model, memory, lengths, options, lm)
    if "joint" in modes:
        with times.measure("joint"):
            weight = options.ctc_weight
            found["joint"] = finished_list_search(model, memory, lengths, options, ctc_weight=weight, lm=lm)
    if modes & _CTC_MODES:
        found |= _search_ctc(model, memory, lengths, modes, options, lm=lm, times=times)
    return {mode: [nbest[: options.nbest] for nbest in lists] for mode, lists in found.items()}


def _search_ctc(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    modes: set[str],
    options: DecodeOptions,
    *,
    lm: LanguageModel | None,
    times: StageTimes,
) -> dict[str, list[list[Hypothesis]]]:
    """The modes that begin with the best units of each frame."""
    found: dict[str, list[list[Hypothesis]]] = {}
    beam_size = options.beam_size if modes & _PREFIX_MODES else 1
    with times.measure(CTC):
        best = model.ctc.topk(memory, min(beam_size, model.num_units))
        if bool(best[0].isnan().any()):
            raise CheckpointError(CTC_NAN)
    if "ctc_greedy_search" in modes:
        with times.measure("ctc_greedy_search"):
            found["ctc_greedy_search"] = greedy_search(*best, lengths, blank=model.ctc.blank)
    if modes & _PREFIX_MODES:
        with times.measure("ctc_prefix_beam_search"):
            found["ctc_prefix_beam_search"], prefixes = _search_prefixes(model, best, lengths, options, lm)
        if "attention_rescoring" in modes:
            with times.measure("attention_rescoring"):
                found["attention_rescoring"] = rescore(model, memory, lengths, prefixes, options, lm)
    return found


def _search_prefixes(
    model: AsrModel, best: tuple[Tensor, Tensor], lengths: Tensor, options: DecodeOptions, lm: LanguageModel | None
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """The hypotheses of the prefix search, and the same by CTC's score alone."""
    if lm is None and not options.length_bonus:
        found = prefix_beam_search(*best, lengths, blank=model.ctc.blank, beam_size=options.beam_size)
        return found, found
    special = (model.ctc.blank, model.special.eos)
    fused = fused_prefix_search(*best, lengths, special=special, options=options, lm=lm)
    by_ctc = [[Hypothesis(prefix.ids, prefix.ctc) for prefix in nbest] for nbest in fused]
    return [[prefix.hypothesis for prefix in nbest] for nbest in fused], by_ctc


def _align_best(
    model: AsrModel, memory: Tensor, lengths: Tensor, found: dict[str, list[list[Hypothesis]]]
) -> dict[str, list[list[Hypothesis]]]:
    """The same hypotheses, the best of each utterance and mode with its alignment; where modes agree, found once."""
    best = [(row, nbest[0].ids) for lists in found.values() for row, nbest in enumerate(lists)]
    readings = list(dict.fromkeys(best))
    rows, labels = zip(*readings, strict=True)
    alignments = dict(zip(readings, align_units(model.ctc, memory, lengths, labels, rows), strict=True))
    return {
        mode: [
            [replace(nbest[0], alignment=alignments[row, nbest[0].ids]), *nbest[1:]] for row, nbest in enumerate(lists)
        ]
        for mode, lists in found.items()
    }


def _spread(found: list[list[Hypothesis]], present: list[int], count: int) -> list[list[Hypothesis]]:
    """Hypotheses of the utterances `present` among all; the others have the empty one."""
    results = [[Hypothesis((), 0.0)] for _ in range(count)]
    for row, nbest in zip(present, found, strict=True):
        results[row] = nbest
    return results
