# SPDX-License-Identifier: Apache-2.0
"""Which files a runtime needs of a model, with the names and metadata that it reads.

Dimension key: T input frames, F features, D width, L layers, H heads, S cached frames, K width of a head.
"""

from typing import cast

import torch
from torch import Tensor

from wenet_hs.encoders.stack import EncoderStack
from wenet_hs.export.modules import (
    ChunkEncoder,
    LogProbs,
    OfflineCtc,
    OnlineCtc,
    Rescorer,
    WaveformCtc,
    WenetDecoder,
    WholeEncoder,
)
from wenet_hs.export.onnx_files import Graph
from wenet_hs.model import AsrModel
from wenet_hs.nn.layers import Chunk

MODEL, RESCORER = "model.onnx", "decoder.onnx"
WENET_ENCODER, WENET_CTC, WENET_DECODER = "encoder.onnx", "ctc.onnx", "decoder.onnx"
_WAVE, _FRAMES = 8000, 300  # length of the examples: half a second of samples, three seconds of frames


def chunk_window(encoder: EncoderStack, chunk: Chunk) -> tuple[int, int]:
    """Input frames of a chunk, and from one chunk to the next."""
    return (chunk.size - 1) * encoder.stride + encoder.min_frames, chunk.size * encoder.stride


def offline_graphs(model: AsrModel, width: int, *, with_decoder: bool) -> list[Graph]:
    """Whole utterances of features (`width` per frame) or samples (1), and the decoder."""
    inputs = {"x": _example(width, batch=2), "x_lens": torch.tensor([_WAVE if width == 1 else _FRAMES] * 2)}
    outputs = ["log_probs", "log_probs_lens", *(["encoder_out"] if with_decoder else [])]
    sherpa = {
        # Of the slot fire_red_asr_ctc, which checks the type; wenet_ctc does not. CMVN is in the graph.
        "model_type": "fire-red-asr-2-ctc",
        "cmvn_mean": ",".join(["0"] * width),
        "cmvn_inv_stddev": ",".join(["1"] * width),
    }
    whole = Graph(
        name=MODEL,
        module=OfflineCtc(model, with_decoder),
        inputs=inputs,
        outputs=outputs,
        dynamic={"x": (0, 1), "x_lens": (0,)},
        metadata=_metadata(model) | ({} if width == 1 else sherpa),
    )
    return [whole, _rescorer(model)] if with_decoder else [whole]


def waveform_graph(model: AsrModel) -> Graph:
    """For the slot omnilingual_asr_ctc."""
    dynamic, metadata = {"x": (1,)}, _metadata(model)
    inputs = {"x": _example(1)}
    return Graph(
        name=MODEL, module=WaveformCtc(model), inputs=inputs, outputs=["log_probs"], dynamic=dynamic, metadata=metadata
    )


def online_graphs(model: AsrModel, width: int, chunk: Chunk, *, with_decoder: bool) -> list[Graph]:
    """One chunk of a stream for sherpa-onnx and onnxruntime, and the decoder."""
    encoder = cast(EncoderStack, model.encoder)
    names = ("x", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask")
    online = Graph(
        name=MODEL,
        module=OnlineCtc(encoder, model.ctc.head, with_memory=with_decoder),
        inputs=dict(zip(names, _chunk_inputs(encoder, width, chunk, (1,)), strict=True)),
        outputs=[
            *("log_probs", "next_att_cache", "next_conv_cache"),
            *(["encoder_out"] if with_decoder else []),
        ],
        metadata=_metadata(model) | _stream_metadata(encoder, chunk),
    )
    return [online, _rescorer(model)] if with_decoder else [online]


def wenet_graphs(model: AsrModel, width: int, chunk: Chunk | None) -> list[Graph]:
    """The three files of WeNet's runtime; `chunk` None: whole utterances."""
    encoder, (hidden, units, lengths) = cast(EncoderStack, model.encoder), _decoder_examples(model)
    metadata = _metadata(model) | _stream_metadata(encoder, chunk or Chunk(-1)) | _wenet_metadata(model)
    names = ("chunk", "offset", "required_cache_size", "att_cache", "cnn_cache", "att_mask")
    inputs = [_example(width)] if chunk is None else _chunk_inputs(encoder, width, chunk, ())
    of_encoder = Graph(
        name=WENET_ENCODER,
        module=WholeEncoder(encoder) if chunk is None else ChunkEncoder(encoder),
        inputs=dict(zip(names, inputs, strict=False)),
        outputs=["output", "r_att_cache", "r_cnn_cache"],
        dynamic={"chunk": (1,)},
        metadata=metadata,
    )
    of_ctc = Graph(
        name=WENET_CTC,
        module=LogProbs(model.ctc.head),
        inputs={"hidden": hidden[:1]},
        outputs=["probs"],
        dynamic={"hidden": (1,)},
        metadata=metadata,
    )
    of_decoder = Graph(
        name=WENET_DECODER,
        module=WenetDecoder(model),
        inputs={"hyps": units, "hyps_lens": lengths, "encoder_out": hidden[:1]},
        outputs=["score", "r_score"],
        dynamic={"hyps": (0, 1), "hyps_lens": (0,), "encoder_out": (1,)},
        metadata=metadata,
    )
    return [of_encoder, of_ctc, of_decoder]


def _rescorer(model: AsrModel) -> Graph:
    hidden, units, lengths = _decoder_examples(model)
    return Graph(
        name=RESCORER,
        module=Rescorer(model),
        inputs={
            "encoder_out": hidden,
            "encoder_out_lens": torch.tensor([30, 30]),
            "hyps": units,
            "hyps_lens": lengths,
        },
        outputs=["score"] if model.right_head is None else ["score", "r_score"],
        dynamic={"encoder_out": (0, 1), "encoder_out_lens": (0,), "hyps": (0, 1), "hyps_lens": (0,)},
        metadata=_metadata(model),
    )


def _example(width: int, batch: int = 1) -> Tensor:
    """Noise: features (B, T, F), or samples (B, N)."""
    shape = (batch, _WAVE) if width == 1 else (batch, _FRAMES, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _decoder_examples(model: AsrModel) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder output (2, 30, D), units (2, 8) and their lengths."""
    return torch.zeros(2, 30, model.encoder.output_size), torch.full((2, 8), model.special.sos), torch.tensor([8, 5])


def _chunk_inputs(encoder: EncoderStack, width: int, chunk: Chunk, scalar: tuple[int, ...]) -> list[Tensor]:
    kept, caches = chunk.size * chunk.left, encoder.new_caches()
    _, num_heads, _, both = caches[0].attention.shape
    _, num_before, size = caches[0].convolution.shape
    return [
        _example(width)[:, :1].expand(-1, chunk_window(encoder, chunk)[0], -1).contiguous(),
        *(torch.full(scalar, kept), torch.full(scalar, kept)),
        torch.zeros(len(caches), num_heads, kept, both),
        torch.zeros(len(caches), 1, size, num_before),
        torch.ones(1, 1, kept + chunk.size, dtype=torch.bool),
    ]


def _metadata(model: AsrModel) -> dict[str, object]:
    return {
        "model_type": "wenet_ctc",
        "vocab_size": model.num_units,
        "subsampling_factor": model.encoder.stride,
        "version": 1,
        "model_author": "wenet_hs",
        "comment": "exported by wenet-hs export",
        "url": "",
    }


def _stream_metadata(encoder: EncoderStack, chunk: Chunk) -> dict[str, object]:
    cache = encoder.new_caches()[0]
    return {
        "head": cache.attention.size(1),
        "num_blocks": encoder.num_layers,
        "output_size": encoder.output_size,
        "cnn_module_kernel": cache.convolution.size(1) + 1,
        "right_context": encoder.min_frames - 1,
        "chunk_size": chunk.size,
        "left_chunks": chunk.left,
    }


def _wenet_metadata(model: AsrModel) -> dict[str, object]:
    return {
        "subsampling_rate": model.encoder.stride,
        "sos_symbol": model.special.sos,
        "eos_symbol": model.special.eos,
        "is_bidirectional_decoder": int(model.right_head is not None),
    }
