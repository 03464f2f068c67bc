# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs export`: from a model folder to files that run without PyTorch, compared with it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.base.options import REQUIRED, check_values, option
from wenet_hs.data.audio import read_utterance
from wenet_hs.decode.modes import no_chunks_error
from wenet_hs.export.compare import compare_outputs, greedy_ids, largest_difference, log_probs_of
from wenet_hs.export.graphs import (
    MODEL,
    SHERPA_FEATURES,
    Runtime,
    chunk_window,
    feature_sizes,
    make_graphs,
    metadata_of,
)
from wenet_hs.export.onnx_files import check_exporter_installed, quantize, write_graph
from wenet_hs.export.readme import make_readme
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.description import WAVEFORM_KINDS
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.nn.layers import Chunk
from wenet_hs.score.edit_distance import ErrorCounts, count_errors
from wenet_hs.tree.atomic import fsync_path, write_atomic
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest difference of a log-probability or score; see `largest_difference`."""
MAX_CLIPS = 100
"""The first ones of a test list are used."""
_NOISE_S = (1.1, 2.4, 4.1)
_WENET_WINDOW_MS = (25.0, 10.0)  # the rate and the number of bins are flags of WeNet's runtime


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The flags of `wenet-hs export`."""

    model_dir: str = option(
        REQUIRED, "experiment folder, ours or WeNet's, or a packed model: folder, ZIP, hf://…"
    )
    out: Path = option(REQUIRED, "new folder", metavar="DIR")
    runtime: Runtime = option(
        "onnxruntime",
        "what will run it: onnxruntime (any program), sherpa-onnx, or WeNet's runtime",
        flags=("--for",),
    )
    streaming: bool = option(False, "chunk by chunk instead of whole utterances")
    chunk: int | None = option(None, "with --streaming: encoder frames per chunk (default: 16)")
    left: int | None = option(
        None, "with --streaming: chunks before its own that a frame sees (default: 4)"
    )
    test_data: Path | None = option(
        None, f"data.list of clips to compare on, the first {MAX_CLIPS} (default: noise)"
    )
    quantize: Literal["int8"] | None = option(
        None, "also write model.int8.onnx, with 8-bit weights; needs --test_data"
    )
    max_int8_loss: float = option(
        0.05, "refuse 8-bit weights that change a larger share of the units of fp32"
    )

    def __post_init__(self) -> None:
        check_values(self)
        for name, value in (("chunk", self.chunk), ("left", self.left)):
            if value is not None and not self.streaming:
                raise ValueError(
                    f"{name} {value}: only with --streaming; add it, or leave this out"
                )
            if value is not None and value < 1:
                raise ValueError(
                    f"{name} {value}: must be at least 1; the runtimes keep caches of a fixed size"
                )
        if not 0 <= self.max_int8_loss <= 1:
            raise ValueError(f"max_int8_loss {self.max_int8_loss:g}: must be from 0 to 1")
        if self.quantize and self.test_data is None:
            raise ValueError("quantize int8: its loss is measured on speech; give --test_data")
        if self.quantize and self.runtime == "wenet":
            raise ValueError(
                "quantize int8: WeNet's runtime has fixed names of files; use --for onnxruntime or sherpa"
            )

    @property
    def stream(self) -> Chunk | None:
        """None: whole utterances. The sizes are given, see `_with_chunk`."""
        return Chunk(self.chunk or 0, self.left or 0) if self.streaming else None


def export_model(options: ExportOptions) -> list[str]:
    """Writes the files to `out`, all or none. Returns lines about the comparison.

    Raises ConfigError if the model or a package does not suit, CheckpointError if a file differs
    from PyTorch or its 8-bit weights lose too much, DataError if `out` is not empty or the test
    list has no usable clip.
    """
    check_exporter_installed()
    out = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(out, "is not an empty folder", "name another one, or delete it")
    experiment = load_experiment(options.model_dir)
    options = _with_chunk(experiment.model.encoder, options)
    stream = options.stream
    check_model(experiment, options)
    warn_about_features(experiment, options)
    clips, features = read_clips_to_compare(experiment, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        for graph in make_graphs(experiment, options.runtime, stream):
            write_graph(folder, graph, metadata_of(experiment, stream))
        difference = largest_difference(compare_outputs(folder, experiment.model, features, stream))
        what = f"{len(features)} clips" if clips else "noise"
        if not difference <= TOLERANCE:  # NaN too
            found = f"onnxruntime differs from PyTorch by {difference:.1e} on {what}, more than {TOLERANCE:g}"
            raise CheckpointError(
                options.model_dir, found, "nothing was written; report it with the train.yaml"
            )
        lines = [f"onnxruntime differs from PyTorch by at most {difference:.1e} on {what}"]
        if options.quantize:
            lines += _compare_int8(folder, experiment, clips, features, options)
        experiment.tokenizer.table.write(
            folder / ("units.txt" if options.runtime == "wenet" else "tokens.txt")
        )
        write_atomic(folder / "README.md", make_readme(experiment, options.runtime, stream, lines))
        for path in (*folder.iterdir(), folder):
            fsync_path(path)
        folder.rename(out)
    return lines


def _with_chunk(encoder: SpeechEncoder, options: ExportOptions) -> ExportOptions:
    """The options with the sizes of a stream of this model.

    Raises ConfigError if it has none, or others.
    """
    if not options.streaming:
        return options
    if encoder.chunk_rule is None:
        raise no_chunks_error(encoder, "--streaming", "leave it out")
    chunk = encoder.chunk_rule.chunk_of_stream(options.chunk, options.left)
    if encoder.chunk_rule.size not in (None, chunk.size):
        found = f"this model was trained with chunks of {encoder.chunk_rule.size}"
        raise ConfigError(f"--chunk {chunk.size}", found, "use that size")
    return replace(options, chunk=chunk.size, left=chunk.left)


def check_model(experiment: Experiment, options: ExportOptions) -> None:
    """Raises ConfigError if the runtime cannot run the model."""
    model, to = experiment.model, f"--for {options.runtime}"
    encoder, frontend = model.encoder, experiment.frontend
    if "ctc" not in model.trained_branches:
        found = "every runtime searches with CTC, and this model was trained without it"
        raise ConfigError(to, found, "train it with model_conf.ctc_weight above 0")
    if isinstance(encoder, PretrainedEncoder):
        kind, config = encoder.description.kind, encoder.description.config
        if (
            kind == "wav2vec2-bert"
            and config.get("position_embeddings_type", "relative_key") == "relative_key"
        ):
            found = "w2v-BERT 2.0 with relative keys cannot become ONNX"
            raise ConfigError(
                str(options.model_dir), found, "use it in Python, or fine-tune XLS-R, MMS or HuBERT"
            )
        if options.runtime == "wenet" or (
            options.runtime == "sherpa" and kind not in WAVEFORM_KINDS
        ):
            raise ConfigError(
                to, f"has no place for an encoder of the kind {kind}", "use --for onnxruntime"
            )
    if options.runtime == "wenet" and model.decoder is None:
        raise ConfigError(
            to, "WeNet's runtime loads a decoder, and this model has none", "use --for sherpa"
        )
    has_other_frontend = isinstance(encoder, EncoderStack) and not isinstance(frontend, Fbank)
    if has_other_frontend and options.runtime != "onnxruntime":
        found = f"it has no frontend {experiment.config.dataset_conf.frontend}, which computes the input of this model"
        raise ConfigError(to, found, "use --for onnxruntime")
    if isinstance(frontend, Fbank):
        check_features(frontend, options.runtime)


def check_features(frontend: Fbank, runtime: Runtime) -> None:
    """Raises ConfigError if the runtime computes features of other sizes."""
    to = f"--for {runtime}"
    if runtime == "sherpa" and feature_sizes(frontend) != SHERPA_FEATURES:
        found = "it computes features of {} Hz, {} bins, {:g} ms every {:g} ms".format(
            *SHERPA_FEATURES
        )
        own = "this model has {}, {}, {:g}, {:g}".format(*feature_sizes(frontend))
        raise ConfigError(to, f"{found}; {own}", "train with these")
    if runtime == "wenet" and frontend.window_ms != _WENET_WINDOW_MS:
        found = "it computes features of {:g} ms every {:g} ms".format(*_WENET_WINDOW_MS)
        own = "this model has {:g}, {:g}".format(*frontend.window_ms)
        raise ConfigError(to, f"{found}; {own}", "train with these, or use --for onnxruntime")


def warn_about_features(experiment: Experiment, options: ExportOptions) -> None:
    """Warn where the runtime computes other inputs than those of the training, or shows other text."""
    encoder, sherpa = experiment.model.encoder, options.runtime == "sherpa"
    profile = experiment.frontend.profile if isinstance(experiment.frontend, Fbank) else ""
    wanted = "sherpa" if sherpa and options.streaming else "wenet"
    if isinstance(encoder, PretrainedEncoder):
        if sherpa and not encoder.description.is_normalized:
            logger.warning(
                "features: sherpa-onnx normalizes waveforms, and this encoder was trained without that"
            )
    elif sherpa and profile != wanted and not options.streaming:
        logger.warning(
            "features: trained with the profile sherpa; sherpa-onnx computes these for whole utterances with "
            "dither (slot wenet_ctc), so two runs may differ; without it for profile wenet (slot fire_red_asr_ctc)"
        )
    elif options.runtime != "onnxruntime" and profile != wanted:
        message = "features: trained with the profile %s, and this runtime computes those of %s: more errors"
        logger.warning(message, profile, wanted)
    if sherpa and max(max(unit.encode()) for unit in experiment.tokenizer.table.units) == 0xC6:
        logger.warning(
            "units: sherpa-onnx takes an alphabet whose highest byte is 0xC6 for bytes: wrong texts"
        )


def read_clips_to_compare(
    experiment: Experiment, options: ExportOptions
) -> tuple[list[Utterance], list[Tensor]]:
    """The usable clips among the first ones of the test list, with their features (T, F).

    Without a list there are no clips, only features of noise. Clips that are too short for the
    model are left out. With a warning so are clips that are longer than the window of its encoder:
    an exported encoder reads one window. Raises DataError if a clip cannot be read, or none is
    usable.
    """
    frontend, encoder, stream = experiment.frontend, experiment.model.encoder, options.stream
    needed = (
        encoder.min_frames
        if stream is None
        else chunk_window(cast(EncoderStack, encoder), stream)[0]
    )
    silence = (
        0 if stream is None else round(needed * frontend.frame_s * frontend.rate)
    )  # so that no chunk is missing
    if options.test_data is None:
        return [], _noise_features(frontend, silence)
    clips = list(islice(read_data_list(options.test_data), MAX_CLIPS))
    usable: list[Utterance] = []
    features: list[Tensor] = []
    num_too_long = 0
    for clip in clips:
        wave_N = read_utterance(clip, frontend.rate)
        if len(wave_N) > frontend.window_s * frontend.rate:
            num_too_long += 1
            continue
        features_TF = frontend.compute(F.pad(wave_N, (0, silence)))
        if len(features_TF) >= needed:
            usable.append(clip)
            features.append(features_TF)
    if not usable and num_too_long:
        longest = (
            f"{frontend.window_s:g} s, the longest that this encoder reads when it is exported"
        )
        found = f"no clip of at most {longest}"
        raise DataError(options.test_data, found, "give a list of such clips")
    if not usable:
        raise DataError(
            options.test_data,
            "no clip is long enough for the model",
            "give a list of longer speech",
        )
    if num_too_long:
        message = "%s: %d of %d clips are not compared: %s"
        reason = f"this encoder reads at most {frontend.window_s:g} s when it is exported"
        logger.warning(message, options.test_data, num_too_long, len(clips), reason)
    return usable, features


def _noise_features(frontend: Frontend, silence: int) -> list[Tensor]:
    """Features of noise that swells and fades, and of `silence` samples after it."""
    generator = torch.Generator().manual_seed(0)
    features = []
    for seconds in _NOISE_S:
        noise_N = 0.1 * torch.randn(round(seconds * frontend.rate), generator=generator)
        swelling_N = noise_N * torch.linspace(0, 9, len(noise_N)).sin()
        features.append(frontend.compute(F.pad(swelling_N, (0, silence))))
    return features


def _compare_int8(
    folder: Path,
    experiment: Experiment,
    clips: Sequence[Utterance],
    features: Sequence[Tensor],
    options: ExportOptions,
) -> list[str]:
    """Writes 8-bit weights. Returns lines about their error rate."""
    model, names = experiment.model, (MODEL, quantize(folder / MODEL).name)
    fp32 = int8 = loss = ErrorCounts()
    for clip, one in zip(clips, features, strict=True):
        found = (log_probs_of(folder, model, one, options.stream, name) for name in names)
        ids = (
            experiment.tokenizer.encode(clip.txt),
            *(greedy_ids(log_probs, model.ctc.blank) for log_probs in found),
        )
        text, before, after = ([str(unit) for unit in units] for units in ids)
        fp32, int8 = fp32 + count_errors(text, before), int8 + count_errors(text, after)
        loss += count_errors(before, after)
    if loss.rate is None:
        raise DataError(
            str(options.test_data), "the model finds no unit in these clips", "give clips of speech"
        )
    if loss.rate > options.max_int8_loss:
        share = f"int8 changes {loss.rate:.1%} of the units of fp32, more than {options.max_int8_loss:.1%}"
        raise CheckpointError(
            options.model_dir, share, "leave out --quantize, or raise --max_int8_loss"
        )
    line = f"int8 changes {loss.errors} of {loss.num_units} units of fp32 ({loss.rate:.1%})"
    rates = (
        f"{name} {counts.errors / max(1, counts.num_units):.1%}"
        for name, counts in (("fp32", fp32), ("int8", int8))
    )
    return [line, f"unit error rate, greedy: {', '.join(rates)}"]
