# SPDX-License-Identifier: Apache-2.0
"""The ONNX files that a runtime needs of a model, with the names and metadata that it reads."""

from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from wenet_hs.export.modules import (
    ChunkEncoder,
    LogProbs,
    OfflineCtc,
    Rescorer,
    WaveformCtc,
    WholeEncoder,
)
from wenet_hs.export.onnx_files import Graph
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.whisper_mel import WhisperMel
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.experiment import Experiment
from wenet_hs.nn.layers import Chunk

Runtime = Literal["onnxruntime", "sherpa", "wenet"]
MODEL = "model.onnx"
"""Encoder and CTC."""
ENCODER = "encoder.onnx"
"""Of WeNet's runtime only, with CTC in a file of its own."""
CTC = "ctc.onnx"
DECODER = "decoder.onnx"
WHOLE_UTTERANCES = Chunk(size=-1, left=-1)
"""What WeNet's runtime takes for a model without chunks."""
_EXAMPLE_SAMPLES = 8000  # half a second at 16 kHz
_EXAMPLE_FRAMES = 300  # input frames: three seconds
_EXAMPLE_MEMORY = 30  # encoder frames


def make_graphs(experiment: Experiment, runtime: Runtime, chunk: Chunk | None) -> list[Graph]:
    """The files for a runtime.

    WeNet's runtime has an encoder and a CTC layer, the others have both in one file. The decoder
    has a file of its own, except for sherpa-onnx, which does not use it.

    Args:
        chunk: the chunks of a stream; None: whole utterances.
    """
    model = experiment.model
    has_decoder_file = runtime != "sherpa" and model.decoder is not None
    example = _example_input(experiment.frontend.width)
    if runtime == "wenet":
        graphs = _wenet_graphs(model, example, chunk)
    elif chunk is not None:
        graphs = [_stream_graph(model, example, chunk, with_memory=has_decoder_file)]
    elif runtime == "sherpa" and isinstance(model.encoder, PretrainedEncoder):
        waveform = {"x": example[:1]}
        graphs = [Graph(MODEL, WaveformCtc(model), waveform, ["log_probs"], {"x": (1,)})]
    else:
        graphs = [_offline_graph(model, example, with_memory=has_decoder_file)]
    if has_decoder_file:
        graphs.append(_decoder_graph(model))
    return graphs


def _example_input(width: int) -> Tensor:
    """A batch of two zero inputs: samples (2, N) for a width of 1, otherwise features (2, T, F)."""
    if width == 1:
        return torch.zeros(2, _EXAMPLE_SAMPLES)
    return torch.zeros(2, _EXAMPLE_FRAMES, width)


def _offline_graph(model: AsrModel, example: Tensor, *, with_memory: bool) -> Graph:
    """MODEL for batches of whole utterances."""
    outputs = ["log_probs", "log_probs_lens"]
    if with_memory:
        outputs.append("encoder_out")
    batch_size, num_frames = example.shape[:2]
    return Graph(
        name=MODEL,
        module=OfflineCtc(model, with_memory),
        inputs={"x": example, "x_lens": torch.full((batch_size,), num_frames)},
        outputs=outputs,
        dynamic={"x": (0, 1), "x_lens": (0,)},
    )


def _stream_graph(model: AsrModel, example: Tensor, chunk: Chunk, *, with_memory: bool) -> Graph:
    """MODEL for one chunk of a stream; no dimension is dynamic."""
    encoder = cast(EncoderStack, model.encoder)
    names = ["x", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask"]
    inputs = example_chunk(encoder, example.size(2), chunk, scalar_shape=(1,))
    outputs = ["log_probs", "next_att_cache", "next_conv_cache"]
    if with_memory:
        outputs.append("encoder_out")
    return Graph(
        name=MODEL,
        module=ChunkEncoder(encoder, model.ctc.head, with_memory),
        inputs=dict(zip(names, inputs, strict=True)),
        outputs=outputs,
    )


def _wenet_graphs(model: AsrModel, example: Tensor, chunk: Chunk | None) -> list[Graph]:
    """ENCODER, of whole utterances or of one chunk, and CTC."""
    encoder = cast(EncoderStack, model.encoder)
    if chunk is None:
        module: WholeEncoder | ChunkEncoder = WholeEncoder(encoder)
        inputs = {"chunk": example[:1]}
    else:
        module = ChunkEncoder(encoder)
        names = ["chunk", "offset", "required_cache_size", "att_cache", "cnn_cache", "att_mask"]
        tensors = example_chunk(encoder, example.size(2), chunk, scalar_shape=())
        inputs = dict(zip(names, tensors, strict=True))
    encoder_graph = Graph(
        name=ENCODER,
        module=module,
        inputs=inputs,
        outputs=["output", "r_att_cache", "r_cnn_cache"],
        dynamic={"chunk": (1,)},
    )
    ctc_graph = Graph(
        name=CTC,
        module=LogProbs(model.ctc.head),
        inputs={"hidden": torch.zeros(1, _EXAMPLE_MEMORY, encoder.output_size)},
        outputs=["probs"],
        dynamic={"hidden": (1,)},
    )
    return [encoder_graph, ctc_graph]


def _decoder_graph(model: AsrModel) -> Graph:
    """DECODER for any number of hypotheses of one utterance; the example has two."""
    inputs = {
        "hyps": torch.full((2, 8), model.special.sos),
        "hyps_lens": torch.tensor([8, 5]),
        "encoder_out": torch.zeros(1, _EXAMPLE_MEMORY, model.encoder.output_size),
    }
    return Graph(
        name=DECODER,
        module=Rescorer(model),
        inputs=inputs,
        outputs=["score", "r_score"],
        dynamic={"hyps": (0, 1), "hyps_lens": (0,), "encoder_out": (1,)},
    )


def example_chunk(
    encoder: EncoderStack, num_features: int, chunk: Chunk, scalar_shape: tuple[int, ...]
) -> list[Tensor]:
    """Example inputs of a `ChunkEncoder`, in the order of its arguments.

    Args:
        num_features: features per input frame, F.
        scalar_shape: of the offset and the cache size, which WeNet's runtime gives as (), the
            others as (1,).
    """
    window = chunk_window(encoder, chunk)
    num_cached = chunk.size * chunk.left
    cache_of_layers = encoder.new_caches()
    _, num_heads, _, keys_values_size = cache_of_layers[0].attention.shape
    _, num_past_inputs, width = cache_of_layers[0].convolution.shape
    num_layers = len(cache_of_layers)
    return [
        torch.zeros(1, window.length, num_features),
        torch.full(scalar_shape, num_cached),  # offset
        torch.full(scalar_shape, num_cached),  # required_cache_size
        torch.zeros(num_layers, num_heads, num_cached, keys_values_size),
        torch.zeros(num_layers, 1, width, num_past_inputs),
        torch.ones(1, 1, num_cached + chunk.size, dtype=torch.bool),
    ]


class ChunkWindow(NamedTuple):
    """The input frames from which the chunks of a stream are computed."""

    length: int
    """Of one chunk."""
    shift: int
    """From one chunk to the next; neighbouring chunks may share frames."""


def chunk_window(encoder: SpeechEncoder, chunk: Chunk) -> ChunkWindow:
    """How many input frames a chunk needs, and after how many the next one begins."""
    return ChunkWindow(
        length=(chunk.size - 1) * encoder.stride + encoder.min_frames,
        shift=chunk.size * encoder.stride,
    )


def collect_metadata(experiment: Experiment, chunk: Chunk | None) -> dict[str, object]:
    """The metadata of each file of an export: what the runtimes read, and `feature_profile`.

    Models with Whisper's features also have the silence after the audio and the longest audio.
    Models of our own encoders also have what streams and WeNet's runtime need.

    Args:
        chunk: the chunks of a stream; None: whole utterances.
    """
    model = experiment.model
    encoder = model.encoder
    frontend = experiment.frontend
    metadata: dict[str, object] = {
        # fire_red_asr_ctc checks its type; wenet_ctc, which has the same inputs and outputs, does
        # not check it.
        "model_type": "fire-red-asr-2-ctc" if chunk is None else "wenet_ctc",
        "version": 1,
        "model_author": "wenet_hs",
        "comment": "wenet-hs export",
        "url": "",
        "vocab_size": model.num_units,
        "subsampling_factor": encoder.stride,
        # The graph contains CMVN, so the runtime reads a mean and a factor without an effect.
        "cmvn_mean": ",".join(["0"] * frontend.width),
        "cmvn_inv_stddev": ",".join(["1"] * frontend.width),
        "feature_profile": describe_features(experiment),
    }
    if isinstance(frontend, WhisperMel):
        metadata["silence_frames"] = frontend.silence_frames
        metadata["longest_s"] = frontend.window_s
    if isinstance(encoder, EncoderStack):
        cache = encoder.new_caches()[0]
        stated_chunk = WHOLE_UTTERANCES if chunk is None else chunk
        num_past_inputs = cache.convolution.size(1)  # all inputs of a kernel but the present one
        metadata["head"] = cache.attention.size(1)
        metadata["num_blocks"] = encoder.num_layers
        metadata["output_size"] = encoder.output_size
        metadata["cnn_module_kernel"] = num_past_inputs + 1
        metadata["right_context"] = encoder.min_frames - 1
        metadata["subsampling_rate"] = encoder.stride
        metadata["chunk_size"] = stated_chunk.size
        metadata["left_chunks"] = stated_chunk.left
        metadata["sos_symbol"] = model.special.sos
        metadata["eos_symbol"] = model.special.eos
        metadata["is_bidirectional_decoder"] = int(model.right_head is not None)
    return metadata


def describe_features(experiment: Experiment) -> str:
    """What computes the input of a model, such as `wenet`, `WhisperMel` or `Waveform`.

    It is the profile of log-Mel features, and the name of the class of another frontend. A profile
    with an unusual rate or window is followed by them: `wenet, 8000 Hz, 25 ms, 10 ms`.
    """
    frontend = experiment.frontend
    if not isinstance(frontend, Fbank):
        return type(frontend).__name__
    window_ms, shift_ms = frontend.window_ms
    if (frontend.rate, window_ms, shift_ms) == (16000, 25.0, 10.0):
        return frontend.profile
    return f"{frontend.profile}, {frontend.rate} Hz, {window_ms:g} ms, {shift_ms:g} ms"
