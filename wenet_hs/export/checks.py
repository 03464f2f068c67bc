# SPDX-License-Identifier: Apache-2.0
"""What a runtime requires of a model: errors where it cannot run the model, and warnings where it
gives the model other inputs than its training did.
"""

import logging
from dataclasses import dataclass, replace

from wenet_hs.decode.modes import no_chunks_error
from wenet_hs.export.graphs import Runtime
from wenet_hs.export.options import ExportOptions
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.description import WAVEFORM_KINDS, EncoderDescription
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.experiment import Experiment
from wenet_hs.tree.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FbankSizes:
    """The sizes of log-Mel features."""

    rate: int
    """Of the waveform, in Hz."""
    num_bins: int
    window_ms: float
    """Length of a window."""
    shift_ms: float
    """From one window to the next."""


_SHERPA_FBANK = FbankSizes(rate=16000, num_bins=80, window_ms=25.0, shift_ms=10.0)
"""What sherpa-onnx computes."""
_WENET_WINDOW_MS = (25.0, 10.0)
"""What WeNet's runtime computes: length and distance of windows. Its rate and number of bins are
flags.
"""
_SHERPA_BYTES_MARK = 0xC6
"""sherpa-onnx takes a table of units whose highest byte is this one for bytes of UTF-8."""


def choose_chunks(encoder: SpeechEncoder, options: ExportOptions) -> ExportOptions:
    """The options with the sizes of the chunks of a stream of this model; unchanged without one.

    A size that the user did not give is that of the training, or the default.

    Raises ConfigError if the model reads whole utterances only, or was trained with chunks of
    another size than the user gave.
    """
    if not options.streaming:
        return options
    rule = encoder.chunk_rule
    if rule is None:
        raise no_chunks_error(encoder, "--streaming", "leave it out")
    chunk = rule.chunk_of_stream(options.chunk, options.left)
    is_of_one_size = rule.size is not None
    if is_of_one_size and chunk.size != rule.size:
        raise ConfigError(
            f"--chunk {chunk.size}",
            f"this model was trained with chunks of {rule.size}",
            "use that size",
        )
    return replace(options, chunk=chunk.size, left=chunk.left)


def check_model(experiment: Experiment, options: ExportOptions) -> None:
    """Raises ConfigError if the runtime cannot run the model."""
    model = experiment.model
    runtime = options.runtime
    if "ctc" not in model.trained_branches:
        raise ConfigError(
            f"--for {runtime}",
            "every runtime searches with CTC, and this model was trained without it",
            "train it with model_conf.ctc_weight above 0",
        )
    if isinstance(model.encoder, PretrainedEncoder):
        _check_pretrained(model.encoder.description, options)
    if runtime == "wenet" and model.decoder is None:
        raise ConfigError(
            f"--for {runtime}",
            "WeNet's runtime loads a decoder, and this model has none",
            "use --for sherpa",
        )
    frontend = experiment.frontend
    if isinstance(frontend, Fbank):
        check_fbank(frontend, runtime)
    elif isinstance(model.encoder, EncoderStack) and runtime != "onnxruntime":
        name = experiment.config.dataset_conf.frontend
        raise ConfigError(
            f"--for {runtime}",
            f"it has no frontend {name}, which computes the input of this model",
            "use --for onnxruntime",
        )


def _check_pretrained(description: EncoderDescription, options: ExportOptions) -> None:
    """Raises ConfigError if a pretrained encoder cannot become ONNX, or not for this runtime.

    WeNet's runtime runs no pretrained encoder, and sherpa-onnx only those that read waveforms.
    """
    if _has_relative_keys(description):
        raise ConfigError(
            options.model_dir,
            "w2v-BERT 2.0 with relative keys cannot become ONNX",
            "use it in Python, or fine-tune XLS-R, MMS or HuBERT",
        )
    reads_waveforms = description.kind in WAVEFORM_KINDS
    has_place = {"onnxruntime": True, "sherpa": reads_waveforms, "wenet": False}
    if not has_place[options.runtime]:
        raise ConfigError(
            f"--for {options.runtime}",
            f"has no place for an encoder of the kind {description.kind}",
            "use --for onnxruntime",
        )


def _has_relative_keys(description: EncoderDescription) -> bool:
    """Whether an encoder is w2v-BERT 2.0 with relative keys, which are its default."""
    positions = description.config.get("position_embeddings_type", "relative_key")
    return description.kind == "wav2vec2-bert" and positions == "relative_key"


def check_fbank(frontend: Fbank, runtime: Runtime) -> None:
    """Raises ConfigError if the runtime computes log-Mel features of other sizes.

    WeNet's runtime has fixed windows only, and a program with onnxruntime computes any features.
    """
    window_ms, shift_ms = frontend.window_ms
    own = FbankSizes(
        rate=frontend.rate, num_bins=frontend.width, window_ms=window_ms, shift_ms=shift_ms
    )
    if runtime == "sherpa" and own != _SHERPA_FBANK:
        its_sizes = (
            f"{_SHERPA_FBANK.rate} Hz, {_SHERPA_FBANK.num_bins} bins, "
            f"{_SHERPA_FBANK.window_ms:g} ms every {_SHERPA_FBANK.shift_ms:g} ms"
        )
        own_sizes = f"{own.rate}, {own.num_bins}, {own.window_ms:g}, {own.shift_ms:g}"
        raise ConfigError(
            f"--for {runtime}",
            f"it computes features of {its_sizes}; this model has {own_sizes}",
            "train with these",
        )
    if runtime == "wenet" and frontend.window_ms != _WENET_WINDOW_MS:
        its_window_ms, its_shift_ms = _WENET_WINDOW_MS
        its_sizes = f"{its_window_ms:g} ms every {its_shift_ms:g} ms"
        own_sizes = f"{own.window_ms:g}, {own.shift_ms:g}"
        raise ConfigError(
            f"--for {runtime}",
            f"it computes features of {its_sizes}; this model has {own_sizes}",
            "train with these, or use --for onnxruntime",
        )


def warn_about_differences(experiment: Experiment, options: ExportOptions) -> None:
    """Logs a warning where the runtime computes other inputs than the training, or shows other text.

    The model is one that `check_model` accepts. onnxruntime gets its inputs from the user's
    program, so there is no warning.
    """
    if options.runtime == "onnxruntime":
        return
    encoder = experiment.model.encoder
    if isinstance(encoder, PretrainedEncoder):
        if options.runtime == "sherpa" and not encoder.description.is_normalized:
            logger.warning(
                "features: sherpa-onnx normalizes waveforms, and this encoder was trained without that"
            )
    elif isinstance(experiment.frontend, Fbank):
        _warn_about_profile(experiment.frontend.profile, options)
    if options.runtime == "sherpa":
        bytes_of_units = "".join(experiment.tokenizer.table.units).encode()
        if max(bytes_of_units) == _SHERPA_BYTES_MARK:
            logger.warning(
                "units: sherpa-onnx takes an alphabet whose highest byte is 0xC6 for bytes: wrong texts"
            )


def _warn_about_profile(profile: str, options: ExportOptions) -> None:
    """Logs a warning if sherpa-onnx or WeNet's runtime computes features of another profile.

    sherpa-onnx computes both for whole utterances, but its own only with dither.
    """
    if options.runtime == "sherpa" and not options.streaming:
        if profile == "sherpa":
            logger.warning(
                "features: trained with the profile sherpa; sherpa-onnx computes these for whole utterances with "
                "dither (slot wenet_ctc), so two runs may differ; without it for profile wenet (slot fire_red_asr_ctc)"
            )
        return
    its_profile = options.runtime  # the profiles have the names of the runtimes
    if profile != its_profile:
        message = "features: trained with the profile %s, and this runtime computes those of %s: more errors"
        logger.warning(message, profile, its_profile)
