# SPDX-License-Identifier: Apache-2.0
"""Every head, kind of encoder and pretrained encoder as ONNX: equal to PyTorch in other sizes than
those of the export.

Dimension key: B batch, T frames, F features, D width, V units.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import TABLE, noise
from pretrained_models import write_pretrained
from small_models import NUM_BINS, small_model
from torch import Tensor

from wenet_hs.config.heads import HEADS, has_tree
from wenet_hs.export.compare import greedy_ids
from wenet_hs.export.graphs import chunk_window, example_chunk
from wenet_hs.export.job import export_model
from wenet_hs.export.modules import ChunkEncoder, LogProbs, OfflineCtc
from wenet_hs.export.onnx_files import Graph, OnnxFile, run_chunks, write_graph
from wenet_hs.export.options import ExportOptions
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.model.encoders.stream import encode_streamed
from wenet_hs.model.experiment import Experiment, load_experiment
from wenet_hs.nn.layers import Chunk
from wenet_hs.tree.errors import ConfigError

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

WIDTH = 16
ENCODERS: dict[str, dict[str, Any]] = {
    "conv2d6": {"encoder_conf": {"input_layer": "conv2d6", "cnn_module_norm": "layer_norm"}},
    "conv2d8": {
        "encoder_conf": {"input_layer": "conv2d8", "use_cnn_module": False, "macaron_style": False}
    },
    "linear": {
        "encoder_conf": {
            "input_layer": "linear",
            "pos_enc_layer_type": "no_pos",
            "selfattention_layer_type": "selfattn",
        }
    },
    "transformer": {"encoder": "transformer", "encoder_conf": {"pos_enc_layer_type": "abs_pos"}},
    "static": {"encoder_conf": {"causal": True, "static_chunk_size": 4}},
}
STREAMING = {"use_dynamic_chunk": True, "num_blocks": 1}
STREAMS: dict[str, dict[str, Any]] = {
    "conv2d6": {
        "encoder_conf": {
            "causal": True,
            "input_layer": "conv2d6",
            "cnn_module_norm": "layer_norm",
            **STREAMING,
        }
    },
    "transformer": {
        "encoder": "transformer",
        "encoder_conf": {"input_layer": "linear", **STREAMING},
    },
}


def head_sections(kind: str) -> dict[str, Any]:
    conf = {"tree": "tree.json"} if has_tree(kind) else {}
    return {"head": kind, "head_conf": conf, "ctc_conf": {"head": kind, "head_conf": conf}}


@torch.no_grad()
@pytest.mark.parametrize("kind", list(HEADS))
def test_heads_of_confident_models(kind: str, tmp_path: Path) -> None:
    """Scores as large as those of a trained model: log(sigmoid) of onnxruntime lost all digits
    there.
    """
    head = small_model(**head_sections(kind)).ctc.head
    for parameter in head.parameters():
        parameter *= 30
    graph = Graph(
        "head.onnx",
        LogProbs(head),
        {"hidden": torch.zeros(2, 9, WIDTH)},
        ["probs"],
        {"hidden": (0, 1)},
    )
    write_graph(tmp_path, graph, {})
    for batch, length in ((1, 1), (3, 200)):
        hidden_BTD = torch.randn(batch, length, WIDTH)
        expected_BTV = head.log_probs(hidden_BTD)
        assert float(expected_BTV.min()) < -30 or length == 1
        found_BTV = OnnxFile(tmp_path / "head.onnx").run(hidden_BTD)[0]
        torch.testing.assert_close(found_BTV, expected_BTV, atol=1e-4, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_every_kind(name: str, tmp_path: Path) -> None:
    model = small_model(**ENCODERS[name])
    inputs = {"x": torch.zeros(2, 90, NUM_BINS), "x_lens": torch.tensor([90, 90])}
    outputs, free = ["log_probs", "log_probs_lens", "encoder_out"], {"x": (0, 1), "x_lens": (0,)}
    write_graph(tmp_path, Graph("model.onnx", OfflineCtc(model, True), inputs, outputs, free), {})
    file = OnnxFile(tmp_path / "model.onnx")
    longest = (
        9000 if model.encoder.stride > 1 else 2600
    )  # more frames than the table of positions has
    for lengths in ([40], [131, 90, 60, 20], [longest, 300]):
        features_BTF, lengths_B = (
            torch.randn(len(lengths), lengths[0], NUM_BINS),
            torch.tensor(lengths),
        )
        memory_BTD, memory_lengths_B = model.encode(features_BTF, lengths_B)
        log_probs_BTV, found_lengths_B, found_BTD = file.run(features_BTF, lengths_B)
        assert torch.equal(found_lengths_B, memory_lengths_B)
        for row, length in enumerate(memory_lengths_B.tolist()):
            torch.testing.assert_close(
                found_BTD[row, :length], memory_BTD[row, :length], atol=1e-4, rtol=0
            )
            expected_TV = model.ctc.log_probs(memory_BTD[row, :length])
            torch.testing.assert_close(log_probs_BTV[row, :length], expected_TV, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_other_kinds(name: str, tmp_path: Path) -> None:
    """Another input layer; an encoder without convolutions, whose cache of inputs is empty but
    stays an input.
    """
    model, chunk = small_model(**STREAMS[name]), Chunk(5, 2)
    encoder = model.encoder
    assert isinstance(encoder, EncoderStack)
    names = ["x", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask"]
    inputs = dict(zip(names, example_chunk(encoder, NUM_BINS, chunk, (1,)), strict=True))
    outputs = ["log_probs", "next_att_cache", "next_conv_cache"]
    write_graph(
        tmp_path, Graph("model.onnx", ChunkEncoder(encoder, model.ctc.head), inputs, outputs), {}
    )
    file = OnnxFile(tmp_path / "model.onnx")
    assert list(file.inputs) == names
    features_TF = torch.randn(300, NUM_BINS)
    memory_1TD, _ = encode_streamed(encoder, features_TF[None], torch.tensor([300]), chunk)
    found_TV = run_chunks(file, features_TF, *chunk_window(encoder, chunk))
    assert len(found_TV) > 30
    torch.testing.assert_close(
        found_TV, model.ctc.log_probs(memory_1TD)[0, : len(found_TV)], atol=1e-4, rtol=0
    )


# ---- pretrained encoders


@pytest.mark.parametrize("kind", ["wav2vec2", "xls-r", "mms", "hubert", "wavlm", "whisper"])
def test_pretrained_encoders_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    folder = write_pretrained(tmp_path / "exp", kind)
    (line,) = export_model(ExportOptions(model_dir=str(folder), out=tmp_path / "out"))
    assert line.startswith("onnxruntime differs from PyTorch by at most")
    assert list(OnnxFile(tmp_path / "out/model.onnx").inputs) == ["x", "x_lens"]


def greedy_tokens(experiment: Experiment, wave_N: np.ndarray) -> list[str]:
    wave_1N = torch.from_numpy(wave_N)[None]
    with torch.no_grad():
        memory_1TD: Tensor = experiment.model.encode(wave_1N, torch.tensor([len(wave_N)]))[0]
        ids = greedy_ids(experiment.model.ctc.log_probs(memory_1TD)[0], 0)
    return [TABLE.units[unit].replace("▁", " ") for unit in ids]


@pytest.mark.parametrize("kind", ["xls-r", "wav2vec2"])
def test_pretrained_encoder_in_sherpa(kind: str, tmp_path: Path) -> None:
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    folder = write_pretrained(tmp_path / "exp", kind)
    out = tmp_path / "out"
    export_model(ExportOptions(model_dir=str(folder), out=out, runtime="sherpa"))
    recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
        model=str(out / "model.onnx"), tokens=str(out / "tokens.txt")
    )
    experiment, different = load_experiment(folder), set()
    for seed in range(5):
        wave_N = noise(1.0 + 0.3 * seed, seed=seed)
        stream = recognizer.create_stream()
        stream.accept_waveform(16000, wave_N)
        recognizer.decode_stream(stream)
        expected = greedy_tokens(experiment, wave_N)
        assert list(stream.result.tokens) == expected
        different.add(json.dumps(expected))
    assert len(different) == 5 and len(expected) > 3


def test_w2v_bert_with_relative_keys_is_refused(tmp_path: Path) -> None:
    folder = write_pretrained(tmp_path / "exp", "w2v-bert")
    with pytest.raises(
        ConfigError, match="w2v-BERT 2.0 with relative keys cannot become ONNX; use it in Python"
    ):
        export_model(ExportOptions(model_dir=str(folder), out=tmp_path / "out"))
    other = write_pretrained(tmp_path / "whisper", "whisper")
    for runtime in ("sherpa", "wenet"):
        options = ExportOptions(model_dir=str(other), out=tmp_path / "out", runtime=runtime)  # type: ignore[arg-type]
        with pytest.raises(
            ConfigError, match=f"--for {runtime}: has no place for an encoder of the kind whisper"
        ):
            export_model(options)
    with pytest.raises(
        ConfigError,
        match=r"--streaming: a pretrained encoder \(.*\) reads whole utterances; leave it out",
    ):
        export_model(ExportOptions(model_dir=str(other), out=tmp_path / "out", streaming=True))
