# SPDX-License-Identifier: Apache-2.0
"""What a runtime requires of a model: errors where it cannot run the model, and warnings where it
gives the model other inputs than its training did.
"""

import logging
from dataclasses import replace

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


_SHERPA_SIZES = (16000, 80, 25.0, 10.0)
"""The features of sherpa-onnx: Hz, Mel bins, length of a window in ms, ms between windows."""
_WENET_WINDOW_MS = (25.0, 10.0)
"""Length and distance of windows in WeNet's runtime."""
_SHERPA_BYTES_MARK = 0xC6
"""The highest byte of all units from which sherpa-onnx concludes that the units are bytes."""


def choose_chunks(encoder: SpeechEncoder, options: ExportOptions) -> ExportOptions:
    """The options with both sizes of the chunks of a stream; unchanged for whole utterances.

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
    """Raises ConfigError if the runtime cannot run the model.

    All runtimes need CTC, and WeNet's a decoder too. sherpa-onnx and WeNet's runtime compute the
    input of the model, so that its kind and its sizes must be theirs.
    """
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
    """Raises ConfigError if a pretrained encoder cannot become ONNX, or the runtime cannot run it.

    onnxruntime runs all of them, sherpa-onnx those that read waveforms, and WeNet's runtime none.
    """
    if _has_relative_keys(description):
        raise ConfigError(
            options.model_dir,
            "w2v-BERT 2.0 with relative keys cannot become ONNX",
            "use it in Python, or fine-tune XLS-R, MMS or HuBERT",
        )
    if options.runtime == "onnxruntime":
        return
    reads_waveforms = description.kind in WAVEFORM_KINDS
    can_run = options.runtime == "sherpa" and reads_waveforms
    if not can_run:
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

    sherpa-onnx computes features of one size only. WeNet's runtime has fixed windows; its rate and
    number of bins are flags. A program with onnxruntime may compute any features.
    """
    own_sizes = (frontend.rate, frontend.width, *frontend.window_ms)
    if runtime == "sherpa" and own_sizes != _SHERPA_SIZES:
        raise _fbank_error(
            runtime,
            its="{} Hz, {} bins, {:g} ms every {:g} ms".format(*_SHERPA_SIZES),
            own="{}, {}, {:g}, {:g}".format(*own_sizes),
            to_do="train with these",
        )
    if runtime == "wenet" and frontend.window_ms != _WENET_WINDOW_MS:
        raise _fbank_error(
            runtime,
            its="{:g} ms every {:g} ms".format(*_WENET_WINDOW_MS),
            own="{:g}, {:g}".format(*frontend.window_ms),
            to_do="train with these, or use --for onnxruntime",
        )


def _fbank_error(runtime: Runtime, *, its: str, own: str, to_do: str) -> ConfigError:
    """The error for a runtime whose features have other sizes (`its`) than those of the model."""
    return ConfigError(
        f"--for {runtime}",
        f"it computes features of {its}; this model has {own}",
        to_do,
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
        # sherpa-onnx then reads units that are characters as if they were bytes.
        if max(bytes_of_units) == _SHERPA_BYTES_MARK:
            logger.warning(
                "units: sherpa-onnx takes an alphabet whose highest byte is 0xC6 for bytes: wrong texts"
            )


def _warn_about_profile(profile: str, options: ExportOptions) -> None:
    """Logs a warning if the runtime does not compute exactly the features of this profile.

    For whole utterances, sherpa-onnx computes both profiles, but `sherpa` only with dither. For
    streams it computes `sherpa`. WeNet's runtime computes `wenet`.

    Args:
        profile: of the training.
        options: those of sherpa-onnx or WeNet's runtime.
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
