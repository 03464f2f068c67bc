# SPDX-License-Identifier: Apache-2.0
"""What the files of a pretrained encoder say about it. Reading them needs no other package.

Its weights are those of a folder in Hugging Face's layout: `config.json`,
`preprocessor_config.json` or `processor_config.json` (optional for log-Mel features),
`model.safetensors` or `pytorch_model.bin`. A model folder has `encoder.json` with both descriptions
instead.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from wenet_hs.frontends.base import Frames, Frontend
from wenet_hs.frontends.fbank import Fbank
from wenet_hs.frontends.waveform import Waveform
from wenet_hs.frontends.whisper_mel import WINDOW_FRAMES, WhisperMel
from wenet_hs.model.encoders.other_forms import recognise_other_form
from wenet_hs.tree.errors import CheckpointError, ConfigError

WAVEFORM_KINDS = ("wav2vec2", "hubert", "wavlm")
KINDS = (*WAVEFORM_KINDS, "wav2vec2-bert", "whisper")
"""The `model_type` of the encoders that can be used."""
_RATE = 16000
_ADAPTER_LAYERS = {"wav2vec2": 3, "wavlm": 3, "wav2vec2-bert": 1}
"""How many layers `add_adapter` adds where `config.json` gives no number; the other kinds have
none.
"""
_FIXED: dict[str, dict[str, Any]] = {
    "wav2vec2-bert": {
        "feature_projection_input_dim": 160,
        "num_mel_bins": 80,
        "feature_size": 80,
        "stride": 2,
    },
    "whisper": {"max_source_positions": WINDOW_FRAMES // 2, "n_fft": 400, "hop_length": 160},
}
"""Kind → settings of both files that must have this value, or be absent."""


@dataclass(frozen=True)
class EncoderDescription:
    """The architecture of a pretrained encoder, and what it does to the audio."""

    config: Mapping[str, Any]
    """`config.json`."""
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    """`preprocessor_config.json`."""
    file: Path = field(default=Path("config.json"), compare=False)
    """What the config was read from, for error messages."""

    def __post_init__(self) -> None:
        self._check()
        _ = self.hidden_size, self.num_layers, self.output_size, self.frame_geometry

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def hidden_size(self) -> int:
        return int(self.config["d_model" if self.kind == "whisper" else "hidden_size"])

    @property
    def num_layers(self) -> int:
        return int(self.config["encoder_layers" if self.kind == "whisper" else "num_hidden_layers"])

    @property
    def is_normalized(self) -> bool:
        """Whether a waveform gets mean 0 and variance 1."""
        return bool(self.preprocessor.get("do_normalize", True))

    @property
    def has_language_adapters(self) -> bool:
        """Whether its layers have adapters for languages (MMS)."""
        return self.config.get("adapter_attn_dim") is not None

    @property
    def adapter_layers(self) -> int:
        """Number of layers after the last one that each halve the number of frames; not the
        adapters of MMS.
        """
        default = _ADAPTER_LAYERS.get(self.kind, 0) if self.config.get("add_adapter") else 0
        return int(self.config.get("num_adapter_layers", default)) if default else 0

    @property
    def output_size(self) -> int:
        """Width of the last output."""
        return (
            int(self.config.get("output_hidden_size") or self.hidden_size)
            if self.adapter_layers
            else self.hidden_size
        )

    @cached_property
    def convolutions(self) -> list[tuple[int, int]]:
        """(kernel, stride) of each convolution over samples."""
        kernels, strides = self.config.get("conv_kernel"), self.config.get("conv_stride")
        found = list(
            zip(kernels or (10, 3, 3, 3, 3, 2, 2), strides or (5, 2, 2, 2, 2, 2, 2), strict=True)
        )
        if not all(isinstance(number, int) and number > 0 for pair in found for number in pair):
            raise ValueError(f"conv_kernel {kernels}, conv_stride {strides}")
        return found

    @cached_property
    def frame_geometry(self) -> tuple[int, int]:
        """Input frames that one frame of the layers is computed from, and from one such frame to
        the next.
        """
        # Whisper's frame 2 t is the middle of output t: the convolutions are padded.
        frames, stride = {"wav2vec2-bert": (2, 2), "whisper": (1, 2)}.get(self.kind, (1, 1))
        for kernel, step in self.convolutions if self.kind in WAVEFORM_KINDS else ():
            frames, stride = frames + (kernel - 1) * stride, stride * step
        return frames, stride

    def frontend(self, silence_s: float) -> Frontend:
        """What computes the input of the encoder. `silence_s`: after the audio, for Whisper."""
        if self.kind in WAVEFORM_KINDS:
            return Waveform(_RATE)
        if (
            self.kind == "wav2vec2-bert"
        ):  # in float64 as there: its encoder enlarges what is rounded in a silence
            return Fbank(_RATE, dtype=torch.float64)
        return WhisperMel(int(self.config.get("num_mel_bins", 80)), silence_s=silence_s)

    def layer_length(self, length: Frames) -> Frames:
        """How many frames the layers get for `length` input frames, 0 where they are too few; (B,)
        → (B,).
        """
        if self.kind not in WAVEFORM_KINDS:
            return length // 2
        for kernel, stride in self.convolutions:
            length = (length - kernel) // stride + 1
        return max(length, 0) if isinstance(length, int) else length.clip(min=0)

    def adapter_length(self, length: Frames) -> Frames:
        """How many frames one adapter layer makes of `length`; its kernel is 3, its stride 2, its
        padding 1.
        """
        return (length + 1) // 2

    def to_json(self) -> str:
        files = {"config": self.config, "preprocessor": self.preprocessor}
        return json.dumps(files, indent=1, ensure_ascii=False, sort_keys=True) + "\n"

    def _check(self) -> None:
        """Raises ConfigError for an encoder that would be computed in another way than it was
        trained.
        """
        if self.kind not in KINDS:
            known = ", ".join(KINDS)
            raise ConfigError(
                "config.json", f"model_type {self.kind!r} is not supported", f"use one of {known}"
            )
        fixed = {"sampling_rate": _RATE, **_FIXED.get(self.kind, {})}
        if self.adapter_layers:
            fixed |= {"adapter_kernel_size": 3, "adapter_stride": 2}
        if self.kind == "whisper":
            fixed["feature_size"] = self.config.get("num_mel_bins", 80)
        for file, settings in (
            ("config.json", self.config),
            ("preprocessor_config.json", self.preprocessor),
        ):
            for name, value in fixed.items():
                if settings.get(name) not in (None, value):
                    raise ConfigError(
                        file, f"{name} {settings[name]!r}", f"only {value} is supported"
                    )
        if not isinstance(self.preprocessor.get("do_normalize"), bool | None):
            found = f"do_normalize {self.preprocessor['do_normalize']!r}"
            raise ConfigError("preprocessor_config.json", found, "must be true or false")


def read_description(path: Path) -> EncoderDescription:
    """The description in a folder of Hugging Face's layout, or in the `encoder.json` of a model
    folder.

    Raises CheckpointError or ConfigError naming the file that is missing, damaged or of an unknown
    encoder. A model in another form than this layout is named too.
    """
    refuse_other_form(path)
    file = path / "config.json" if path.is_dir() else path
    content, preprocessor = read_encoder_json(file), file
    try:
        if not path.is_dir():
            return EncoderDescription(content["config"], content["preprocessor"], file)
        names = (
            "preprocessor_config.json",
            "processor_config.json",
        )  # the second one of transformers 5
        preprocessor = next(
            (path / name for name in names if (path / name).exists()), path / names[0]
        )
        found = read_encoder_json(preprocessor) if preprocessor.exists() else None
        if found is None and content.get("model_type") in WAVEFORM_KINDS:
            to_do = (
                "download it too: it says whether the encoder was trained on normalized waveforms"
            )
            raise CheckpointError(preprocessor, "no such file", to_do)
        return EncoderDescription(
            content, (found or {}).get("feature_extractor", found or {}), file
        )
    except ConfigError as error:
        raise ConfigError(
            file if error.where == "config.json" else preprocessor, error.found, error.to_do
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            file, f"does not describe an encoder ({error!r})", "download the folder again"
        ) from error


def refuse_other_form(path: Path) -> None:
    """Raises CheckpointError if a model is in another form than a folder in Hugging Face's layout."""
    if other := recognise_other_form(path):
        raise CheckpointError(path, other.found, other.to_do)


def read_encoder_json(
    path: Path,
    to_do: str = "encoder_conf.path is a folder in Hugging Face's layout, with config.json and weights",
) -> dict[str, Any]:
    """The object in a file. Raises CheckpointError, which says what to do without the file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})", to_do) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, "is no JSON", "download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(path, "is no JSON object", "download it again")
    return content
