# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs export`: from a model folder to files that run without PyTorch, compared with it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor

from wenet_hs.data.features import utterance_features
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import STREAMING_SETTINGS, check_options
from wenet_hs.encoders.base import SpeechEncoder
from wenet_hs.encoders.description import WAVEFORM_KINDS
from wenet_hs.encoders.pretrained import PretrainedEncoder
from wenet_hs.encoders.stack import EncoderStack
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.experiment import Experiment, load_experiment
from wenet_hs.export.compare import TOLERANCE, compare, compare_wenet, greedy_ids, largest_difference, log_probs_of
from wenet_hs.export.graphs import MODEL, chunk_window, offline_graphs, online_graphs, waveform_graph, wenet_graphs
from wenet_hs.export.onnx_files import Graph, OnnxFile, check_installed, quantize, write_graph
from wenet_hs.export.readme import write_readme
from wenet_hs.files import fsync_path, write_atomic
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.nn.layers import Chunk
from wenet_hs.options import REQUIRED, check_values, option
from wenet_hs.score.edit_distance import ErrorCounts, count_errors

logger = logging.getLogger(__name__)

MAX_CLIPS = 100
"""Of a test list, its first ones: an hour of speech at most."""
_SYNTHETIC_S = (0.8, 2.4, 4.1)
_STREAM_DEFAULT = Chunk(16, 4)
_SHERPA_RATE, _SHERPA_BINS = 16000, 80


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The flags of `wenet-hs export`."""

    model_dir: str = option(REQUIRED, "experiment folder, ours or WeNet's, or a packed model: folder, ZIP, hf://…")
    out: Path = option(REQUIRED, "new folder", metavar="DIR")
    runtime: Literal["onnxruntime", "sherpa", "wenet"] = option(
        "onnxruntime", "what will run it: onnxruntime (any program), sherpa-onnx, or WeNet's runtime", flags=("--for",)
    )
    streaming: bool = option(False, "chunk by chunk instead of whole utterances")
    chunk: int | None = option(None, "of a stream: encoder frames per chunk (default: 16)")
    left: int | None = option(None, "of a stream: chunks before its own that a frame sees (default: 4)")
    quantize: Literal["int8"] | None = option(None, "also write 8-bit weights, as model.int8.onnx; needs --test_data")
    max_int8_loss: float = option(0.05, "refuse 8-bit weights that change a larger share of the units of fp32")
    test_data: Path | None = option(
        None, f"data.list of clips for the comparison, the first {MAX_CLIPS} (default: noise)"
    )

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("chunk", "left"):
            value = getattr(self, name)
            if value is not None and not self.streaming:
                raise ValueError(f"{name} {value}: only with --streaming; add it, or leave this out")
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: must be at least 1; the runtimes keep caches of a fixed size")
        if not 0 <= self.max_int8_loss <= 1:
            raise ValueError(f"max_int8_loss {self.max_int8_loss:g}: must be from 0 to 1")
        if self.quantize and self.test_data is None:
            raise ValueError("quantize int8: its loss is measured on speech; give --test_data")
        if self.quantize and self.runtime == "wenet":
            raise ValueError(
                "quantize int8: the files of WeNet's runtime have fixed names; use --for onnxruntime or sherpa"
            )

    @property
    def stream(self) -> Chunk | None:
        """None: whole utterances."""
        if not self.streaming:
            return None
        return Chunk(self.chunk or _STREAM_DEFAULT.size, self.left or _STREAM_DEFAULT.left)


def export_model(options: ExportOptions) -> list[str]:
    """Writes the files to `out`, all or none. Returns lines about the comparison.

    Raises ConfigError if the model or a package does not suit, CheckpointError if a file differs from PyTorch or its
    8-bit weights lose too much, DataError if `out` is not empty or the test list has no usable clip.
    """
    check_installed()
    out = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(out, "is not an empty folder", "name another one, or delete it")
    experiment = load_experiment(options.model_dir)
    check_model(experiment, options)
    warn_about_features(experiment, options)
    graphs, (clips, features) = make_graphs(experiment, options), read_clips(experiment, options.test_data)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        for graph in graphs:
            write_graph(folder, graph)
        lines = [_compare(folder, experiment, features, options)]
        if options.quantize:
            lines += _compare_int8(folder, experiment, clips, features, options)
        units = "".join(f"{unit} {number}\n" for number, unit in enumerate(experiment.tokenizer.table.units))
        write_atomic(folder / ("units.txt" if options.runtime == "wenet" else "tokens.txt"), units)
        write_readme(folder, experiment, lines, runtime=options.runtime, chunk=options.stream)
        for path in (*folder.iterdir(), folder):
            fsync_path(path)
        folder.rename(out)
    return lines


# ---- what can be exported


def check_model(experiment: Experiment, options: ExportOptions) -> None:
    """Raises ConfigError if the runtime cannot run the model."""
    model, stream, to = experiment.model, options.stream, f"--for {options.runtime}"
    if not model.loss_weights.ctc:
        found = "the model was trained without CTC (model_conf.ctc_weight 0), and every runtime searches with CTC"
        raise ConfigError(to, found, "train it with ctc_weight above 0")
    if stream is not None and model.encoder.chunk_rule is None:
        found = "this model's encoder reads whole utterances"
        raise ConfigError("--streaming", found, f"leave it out, or train with {STREAMING_SETTINGS}")
    if stream is not None:
        check_options(model, DecodeOptions(decoding_chunk_size=stream.size, num_decoding_left_chunks=stream.left))
    _check_encoder(model.encoder, options)
    if options.runtime == "wenet" and model.decoder is None:
        raise ConfigError(to, "WeNet's runtime loads a decoder, and this model has none", "use --for sherpa")
    if options.runtime == "sherpa" and model.encoder.own_frontend is None:
        conf = experiment.config.dataset_conf
        fbank, rate = conf.fbank_conf, conf.resample_conf.resample_rate
        sizes = rate, fbank.num_mel_bins, fbank.frame_length, fbank.frame_shift
        if sizes != (_SHERPA_RATE, _SHERPA_BINS, 25.0, 10.0):
            has = "features of {} Hz, {} bins, windows of {:g} ms every {:g} ms".format(*sizes)
            raise ConfigError(to, has, "sherpa-onnx computes 80 bins at 16000 Hz, 25 ms every 10 ms; train with these")


def _check_encoder(encoder: SpeechEncoder, options: ExportOptions) -> None:
    if not isinstance(encoder, PretrainedEncoder):
        return
    kind, config = encoder.description.kind, encoder.description.config
    positions = config.get("position_embeddings_type", "relative_key")
    if kind == "wav2vec2-bert" and positions == "relative_key":
        found = "w2v-BERT 2.0 with relative keys cannot become ONNX"
        raise ConfigError("encoder: pretrained", found, "use the model in Python, or fine-tune XLS-R, MMS or HuBERT")
    if options.runtime == "wenet" or (options.runtime == "sherpa" and kind not in WAVEFORM_KINDS):
        name = {"sherpa": "sherpa-onnx", "wenet": "WeNet's runtime"}[options.runtime]
        raise ConfigError("encoder: pretrained", f"{name} has no place for a {kind} encoder", "use --for onnxruntime")


def warn_about_features(experiment: Experiment, options: ExportOptions) -> None:
    """Warn where the runtime computes other inputs than those of the training."""
    encoder, units = experiment.model.encoder, experiment.tokenizer.table.units
    profile = experiment.config.dataset_conf.fbank_conf.profile
    if isinstance(encoder, PretrainedEncoder):
        if options.runtime == "sherpa" and not encoder.description.is_normalized:
            logger.warning(
                "features: sherpa-onnx normalizes waveforms; this encoder was trained with do_normalize false"
            )
    elif options.runtime == "sherpa" and not options.streaming and profile == "sherpa":
        logger.warning(
            "features: trained with fbank_conf.profile sherpa. The slot wenet_ctc computes these with dither, so two "
            "runs differ a little; for exact results train with profile wenet and use fire_red_asr_ctc"
        )
    elif options.runtime != "onnxruntime" and profile != (
        wanted := "sherpa" if _is_sherpa_stream(options) else "wenet"
    ):
        message = (
            "features: trained with fbank_conf.profile %s, but this runtime computes those of %s; error rates rise"
        )
        logger.warning(message, profile, wanted)
    if options.runtime == "sherpa" and max(max(unit.encode()) for unit in units) == 0xC6:
        logger.warning("units: sherpa-onnx takes an alphabet whose highest byte is 0xC6 for bytes and shows wrong text")


def _is_sherpa_stream(options: ExportOptions) -> bool:
    return options.runtime == "sherpa" and options.streaming


def make_graphs(experiment: Experiment, options: ExportOptions) -> list[Graph]:
    """The files that the runtime needs."""
    model, width, stream = experiment.model, experiment.frontend.width, options.stream
    if options.runtime == "wenet":
        return wenet_graphs(model, width, stream)
    with_decoder = options.runtime == "onnxruntime" and model.decoder is not None
    if stream is not None:
        return online_graphs(model, width, stream, with_decoder=with_decoder)
    if options.runtime == "sherpa" and isinstance(model.encoder, PretrainedEncoder):
        return [waveform_graph(model)]
    return offline_graphs(model, width, with_decoder=with_decoder)


# ---- comparison


def read_clips(experiment: Experiment, test_data: Path | None) -> tuple[list[Utterance], list[Tensor]]:
    """The first clips of a list that give an encoder frame, and their features (T, F); without a list noise, no clips.

    Raises DataError if a clip cannot be read, or all are too short.
    """
    frontend, encoder = experiment.frontend, experiment.model.encoder
    if test_data is None:
        generator = torch.Generator().manual_seed(0)
        waves = [torch.randn(round(seconds * frontend.rate), generator=generator) for seconds in _SYNTHETIC_S]
        return [], [frontend.compute(0.1 * wave * torch.linspace(0, 9, len(wave)).sin()) for wave in waves]
    clips = list(islice(read_data_list(test_data), MAX_CLIPS))
    pairs = [(clip, utterance_features(clip, frontend)) for clip in clips]
    usable = [(clip, features) for clip, features in pairs if encoder.output_length(len(features)) > 0]
    if not usable:
        raise DataError(test_data, "no clip is long enough for the encoder", "give a list of speech")
    return [clip for clip, _ in usable], [features for _, features in usable]


def _compare(folder: Path, experiment: Experiment, features: Sequence[Tensor], options: ExportOptions) -> str:
    pairs = (compare_wenet if options.runtime == "wenet" else compare)(
        folder, experiment.model, features, options.stream
    )
    difference = largest_difference(pairs)
    what = f"{len(features)} clips" if options.test_data else "synthetic audio"
    if not difference <= TOLERANCE:  # NaN too
        found = f"differs from PyTorch by {difference:.1e} on {what}, more than {TOLERANCE:g}"
        raise CheckpointError(
            options.model_dir, found, "nothing was written; please report it with the model's train.yaml"
        )
    return f"onnxruntime and PyTorch differ by at most {difference:.1e} on {what}"


def _compare_int8(
    folder: Path, experiment: Experiment, clips: Sequence[Utterance], features: Sequence[Tensor], options: ExportOptions
) -> list[str]:
    """Writes 8-bit weights. Returns lines about their error rate."""
    model, stream = experiment.model, options.stream
    window = (
        None if stream is None or not isinstance(model.encoder, EncoderStack) else chunk_window(model.encoder, stream)
    )
    before, changed = OnnxFile(folder / MODEL), OnnxFile(quantize(folder / MODEL))
    fp32 = int8 = loss = ErrorCounts()
    for clip, one in zip(clips, features, strict=True):
        if window is not None and len(one) < window[0]:
            continue
        old, new = (greedy_ids(log_probs_of(file, one, window), model.ctc.blank) for file in (before, changed))
        reference = experiment.tokenizer.encode(clip.txt)
        fp32, int8 = fp32 + _errors(reference, old), int8 + _errors(reference, new)
        loss += _errors(old, new)
    if loss.rate is None:
        raise DataError(f"{options.test_data}", "the model finds no unit in these clips", "give clips of speech")
    if loss.rate > options.max_int8_loss:
        found = f"int8 changes {loss.rate:.1%} of the units of fp32, more than {options.max_int8_loss:.1%}"
        raise CheckpointError(options.model_dir, found, "leave out --quantize, or raise --max_int8_loss")
    line = f"int8 changes {loss.errors} of {loss.num_units} units of fp32 ({loss.rate:.1%})"
    if fp32.rate is None or int8.rate is None:
        return [line]
    return [line, f"unit error rate, greedy: fp32 {fp32.rate:.1%}, int8 {int8.rate:.1%}"]


def _errors(reference: Sequence[int], hypothesis: Sequence[int]) -> ErrorCounts:
    return count_errors([str(unit) for unit in reference], [str(unit) for unit in hypothesis])
