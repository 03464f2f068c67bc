# SPDX-License-Identifier: Apache-2.0
"""Which files a runtime needs of a model, with the names and metadata that it reads."""

from typing import Literal, cast

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
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.experiment import Experiment
from wenet_hs.nn.layers import Chunk

Runtime = Literal["onnxruntime", "sherpa", "wenet"]
MODEL, ENCODER, CTC, DECODER = "model.onnx", "encoder.onnx", "ctc.onnx", "decoder.onnx"
SHERPA_FEATURES = (16000, 80, 25.0, 10.0)
"""Rate, Mel bins, and milliseconds of a window and between windows: what sherpa-onnx computes."""
_WAVE, _FRAMES = (
    8000,
    300,
)  # length of the examples: half a second of samples, three seconds of frames


def make_graphs(experiment: Experiment, runtime: Runtime, chunk: Chunk | None) -> list[Graph]:
    """The files for a runtime; `chunk`: of a stream, None: whole utterances."""
    model, width = experiment.model, experiment.frontend.width
    with_decoder = runtime != "sherpa" and model.decoder is not None
    memory = ["encoder_out"] if with_decoder else []
    x = torch.zeros((2, _WAVE) if width == 1 else (2, _FRAMES, width))
    if runtime == "wenet":
        graphs = _wenet_graphs(model, x, chunk)
    elif chunk is not None:
        encoder = cast(EncoderStack, model.encoder)
        names = ["x", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask"]
        inputs = dict(zip(names, _chunk_inputs(encoder, x, chunk, (1,)), strict=True))
        outputs = ["log_probs", "next_att_cache", "next_conv_cache", *memory]
        graphs = [
            Graph(MODEL, ChunkEncoder(encoder, model.ctc.head, with_decoder), inputs, outputs)
        ]
    elif runtime == "sherpa" and isinstance(model.encoder, PretrainedEncoder):
        graphs = [Graph(MODEL, WaveformCtc(model), {"x": x[:1]}, ["log_probs"], {"x": (1,)})]
    else:
        inputs, outputs = (
            {"x": x, "x_lens": torch.tensor([x.size(1)] * 2)},
            ["log_probs", "log_probs_lens", *memory],
        )
        graphs = [
            Graph(
                MODEL,
                OfflineCtc(model, with_decoder),
                inputs,
                outputs,
                {"x": (0, 1), "x_lens": (0,)},
            )
        ]
    return [*graphs, _rescorer(model)] if with_decoder else graphs


def _wenet_graphs(model: AsrModel, x: Tensor, chunk: Chunk | None) -> list[Graph]:
    encoder = cast(EncoderStack, model.encoder)
    names = ["chunk", "offset", "required_cache_size", "att_cache", "cnn_cache", "att_mask"]
    inputs = [x[:1]] if chunk is None else _chunk_inputs(encoder, x, chunk, ())
    module = WholeEncoder(encoder) if chunk is None else ChunkEncoder(encoder)
    outputs, named = (
        ["output", "r_att_cache", "r_cnn_cache"],
        dict(zip(names, inputs, strict=False)),
    )
    hidden = {"hidden": torch.zeros(1, 30, encoder.output_size)}
    return [
        Graph(ENCODER, module, named, outputs, {"chunk": (1,)}),
        Graph(CTC, LogProbs(model.ctc.head), hidden, ["probs"], {"hidden": (1,)}),
    ]


def _rescorer(model: AsrModel) -> Graph:
    inputs = {
        "hyps": torch.full((2, 8), model.special.sos),
        "hyps_lens": torch.tensor([8, 5]),
        "encoder_out": torch.zeros(1, 30, model.encoder.output_size),
    }
    free = {"hyps": (0, 1), "hyps_lens": (0,), "encoder_out": (1,)}
    return Graph(DECODER, Rescorer(model), inputs, ["score", "r_score"], free)


def _chunk_inputs(
    encoder: EncoderStack, x: Tensor, chunk: Chunk, scalar: tuple[int, ...]
) -> list[Tensor]:
    kept, caches = chunk.size * chunk.left, encoder.new_caches()
    (_, num_heads, _, both), (_, num_before, size) = (
        caches[0].attention.shape,
        caches[0].convolution.shape,
    )
    return [
        x.new_zeros(1, chunk_window(encoder, chunk)[0], x.size(2)),
        *(torch.full(scalar, kept), torch.full(scalar, kept)),
        torch.zeros(len(caches), num_heads, kept, both),
        torch.zeros(len(caches), 1, size, num_before),
        torch.ones(1, 1, kept + chunk.size, dtype=torch.bool),
    ]


def chunk_window(encoder: EncoderStack, chunk: Chunk) -> tuple[int, int]:
    """Input frames of a chunk, and from one chunk to the next."""
    return (chunk.size - 1) * encoder.stride + encoder.min_frames, chunk.size * encoder.stride


def metadata_of(experiment: Experiment, chunk: Chunk | None) -> dict[str, object]:
    """What the runtimes read, and `feature_profile`, for every file."""
    model, width = experiment.model, experiment.frontend.width
    encoder = model.encoder
    found = {
        # fire_red_asr_ctc checks its type; wenet_ctc, which has the same inputs and outputs, does
        # not check it.
        "model_type": "fire-red-asr-2-ctc" if chunk is None else "wenet_ctc",
        **{"version": 1, "model_author": "wenet_hs", "comment": "wenet-hs export", "url": ""},
        **{"vocab_size": model.num_units, "subsampling_factor": encoder.stride},
        **{
            "cmvn_mean": ",".join("0" * width),
            "cmvn_inv_stddev": ",".join("1" * width),
        },  # CMVN is in the graph
        "feature_profile": features_name(experiment),
    }
    if isinstance(experiment.frontend, WhisperMel):
        found["silence_frames"] = experiment.frontend.silence_frames
        found["longest_s"] = experiment.frontend.window_s
    if isinstance(encoder, EncoderStack):  # of streams, and of WeNet's runtime
        cache, (size, left) = encoder.new_caches()[0], chunk or (-1, -1)
        found |= {
            "head": cache.attention.size(1),
            "num_blocks": encoder.num_layers,
            "output_size": encoder.output_size,
        }
        found |= {
            "cnn_module_kernel": cache.convolution.size(1) + 1,
            "right_context": encoder.min_frames - 1,
        }
        found |= {"subsampling_rate": encoder.stride, "chunk_size": size, "left_chunks": left}
        found |= {"sos_symbol": model.special.sos, "eos_symbol": model.special.eos}
        found |= {"is_bidirectional_decoder": int(model.right_head is not None)}
    return found


def feature_sizes(frontend: Fbank) -> tuple[int, int, float, float]:
    """Rate, Mel bins, and milliseconds of a window and between windows."""
    window_ms, shift_ms = frontend.window_ms
    return frontend.rate, frontend.width, window_ms, shift_ms


def features_name(experiment: Experiment) -> str:
    """What computes the input: the profile of the features, with their sizes if these are unusual,
    or a class.
    """
    frontend = experiment.frontend
    if not isinstance(frontend, Fbank):
        return type(frontend).__name__
    if (frontend.rate, *frontend.window_ms) == (16000, 25.0, 10.0):
        return frontend.profile
    return "{}, {} Hz, {:g} ms, {:g} ms".format(
        frontend.profile, frontend.rate, *frontend.window_ms
    )
