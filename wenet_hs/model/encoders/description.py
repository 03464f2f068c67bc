# SPDX-License-Identifier: Apache-2.0
"""The description of a pretrained encoder, read from its files without any other package.

A folder in Hugging Face's layout has `config.json`, `preprocessor_config.json` or
`processor_config.json` (optional for log-Mel features), and the weights in `model.safetensors` or
`pytorch_model.bin`. A model folder of ours has one file instead, `encoder.json`, with the contents
of both descriptions.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
"""Samples per second of the audio of all kinds."""
_ADAPTER_LAYERS = {"wav2vec2": 3, "wavlm": 3, "wav2vec2-bert": 1}
"""How many layers `add_adapter` adds if `config.json` gives no number; other kinds have none."""
_DEFAULT_KERNELS = (10, 3, 3, 3, 3, 2, 2)
_DEFAULT_STRIDES = (5, 2, 2, 2, 2, 2, 2)
"""The convolutions over samples if `config.json` does not name them."""
_FIXED: dict[str, dict[str, Any]] = {
    "wav2vec2-bert": {
        "feature_projection_input_dim": 160,
        "num_mel_bins": 80,
        "feature_size": 80,
        "stride": 2,
    },
    "whisper": {"max_source_positions": WINDOW_FRAMES // 2, "n_fft": 400, "hop_length": 160},
}
"""Kind → the settings that must have this value in both files, or be absent or null."""


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
        """Raises ConfigError for an encoder that is not supported (`_check`).

        Values of another type than expected raise KeyError, TypeError, ValueError, AttributeError
        or OverflowError.
        """
        self._check()
        # Each property raises an error for a wrong value. It is raised now, not at the first use.
        _ = self.hidden_size, self.num_layers, self.output_size, self.frame_geometry

    @property
    def kind(self) -> str:
        """The kind of the encoder, one of KINDS; `model_type` in `config.json`."""
        return str(self.config.get("model_type"))

    @property
    def hidden_size(self) -> int:
        """Width of the layers."""
        return int(self.config["d_model" if self.kind == "whisper" else "hidden_size"])

    @property
    def num_layers(self) -> int:
        """Number of layers of the encoder."""
        return int(self.config["encoder_layers" if self.kind == "whisper" else "num_hidden_layers"])

    @property
    def is_normalized(self) -> bool:
        """Whether a waveform gets mean 0 and variance 1; it does if no file says."""
        return bool(self.preprocessor.get("do_normalize", True))

    @property
    def has_language_adapters(self) -> bool:
        """Whether its layers have adapters for languages (MMS)."""
        return self.config.get("adapter_attn_dim") is not None

    @property
    def adapter_layers(self) -> int:
        """Number of layers after the last one that each halve the number of frames.

        0 without `add_adapter`, and for a kind that has none. They are not the adapters of MMS.
        """
        default = _ADAPTER_LAYERS.get(self.kind, 0)
        if not self.config.get("add_adapter") or default == 0:
            return 0
        return int(self.config.get("num_adapter_layers", default))

    @property
    def output_size(self) -> int:
        """Width of the last output: that of the layers, or another one after an adapter."""
        if self.adapter_layers == 0:
            return self.hidden_size
        return int(self.config.get("output_hidden_size") or self.hidden_size)

    @cached_property
    def convolutions(self) -> list[tuple[int, int]]:
        """(kernel, stride) of each convolution over samples; those of wav2vec 2.0 if none are given.

        Raises ValueError if they are not positive integers, or not equally many.
        """
        kernels = self.config.get("conv_kernel")
        strides = self.config.get("conv_stride")
        pairs = list(zip(kernels or _DEFAULT_KERNELS, strides or _DEFAULT_STRIDES, strict=True))
        for pair in pairs:
            if not all(isinstance(number, int) and number > 0 for number in pair):
                raise ValueError(f"conv_kernel {kernels}, conv_stride {strides}")
        return pairs

    @cached_property
    def frame_geometry(self) -> tuple[int, int]:
        """The window and the stride of the frames of the layers, in input frames.

        The window is the number of input frames from which one frame of the layers is computed. The
        stride is the distance from one such frame to the next.
        """
        if self.kind == "wav2vec2-bert":
            return 2, 2  # two input frames become one
        if self.kind == "whisper":
            # The convolutions are padded, and input frame 2 t is in the middle of output frame t.
            return 1, 2
        window = 1
        total_stride = 1  # of the convolutions so far, in samples
        for kernel, stride in self.convolutions:
            window += (kernel - 1) * total_stride
            total_stride *= stride
        return window, total_stride

    def frontend(self, silence_s: float) -> Frontend:
        """The frontend that computes the input of the encoder.

        `silence_s`: seconds of silence after the audio; it has an effect only for Whisper.
        """
        if self.kind in WAVEFORM_KINDS:
            return Waveform(_RATE)
        if self.kind == "wav2vec2-bert":
            # In float64 as in transformers: the encoder enlarges rounding errors in silence.
            return Fbank(_RATE, dtype=torch.float64)
        return WhisperMel(int(self.config.get("num_mel_bins", 80)), silence_s=silence_s)

    def layer_length(self, length: Frames) -> Frames:
        """The number of frames of the layers for `length` input frames, 0 for too few; (B,) → (B,).

        `length`: an int, or an array or a tensor of B lengths.
        """
        if self.kind not in WAVEFORM_KINDS:
            return length // 2  # the stride of features is 2
        for kernel, stride in self.convolutions:
            length = (length - kernel) // stride + 1
        # The formula gives numbers below 0 for an input that is shorter than the kernels.
        return max(length, 0) if isinstance(length, int) else length.clip(min=0)

    def adapter_length(self, length: Frames) -> Frames:
        """The number of frames after one adapter layer, of kernel 3, stride 2 and padding 1."""
        return (length + 1) // 2

    def to_json(self) -> str:
        """The content of `encoder.json`, which `read_description` reads."""
        files = {"config": self.config, "preprocessor": self.preprocessor}
        return json.dumps(files, indent=1, ensure_ascii=False, sort_keys=True) + "\n"

    def _check(self) -> None:
        """Raises ConfigError for an encoder that is not supported.

        Its kind is not in KINDS, or a setting has a value with which our computation would differ
        from that of its training.

        The place of the error is `config.json` or `preprocessor_config.json`. `read_description`
        replaces it with the path.
        """
        if self.kind not in KINDS:
            known = ", ".join(KINDS)
            raise ConfigError(
                "config.json", f"model_type {self.kind!r} is not supported", f"use one of {known}"
            )
        self._check_fixed("config.json", self.config)
        self._check_fixed("preprocessor_config.json", self.preprocessor)
        if not isinstance(self.preprocessor.get("do_normalize"), bool | None):
            found = f"do_normalize {self.preprocessor['do_normalize']!r}"
            raise ConfigError("preprocessor_config.json", found, "must be true or false")

    def _check_fixed(self, file: str, settings: Mapping[str, Any]) -> None:
        """Raises ConfigError for the first setting of a file with a value that is not supported."""
        for name, value in self._fixed_settings().items():
            if settings.get(name) not in (None, value):
                raise ConfigError(file, f"{name} {settings[name]!r}", f"only {value} is supported")

    def _fixed_settings(self) -> dict[str, Any]:
        """Name → the value that this setting must have in both files, or be absent or null."""
        fixed = {"sampling_rate": _RATE, **_FIXED.get(self.kind, {})}
        if self.adapter_layers:
            fixed |= {"adapter_kernel_size": 3, "adapter_stride": 2}
        if self.kind == "whisper":
            fixed["feature_size"] = self.config.get("num_mel_bins", 80)
        return fixed


def read_description(path: Path) -> EncoderDescription:
    """Reads the description in a folder of Hugging Face's layout, or in a file `encoder.json`.

    Raises CheckpointError or ConfigError with the file that is missing, damaged or of an encoder
    that is not supported. If `path` is a model in another form, a CheckpointError says which form
    it is.
    """
    refuse_other_form(path)
    if path.is_dir():
        return _read_folder(path)
    content = read_encoder_json(path)
    with _name_file_of_errors(path, preprocessor_file=path):
        return EncoderDescription(content["config"], content["preprocessor"], file=path)


def _read_folder(folder: Path) -> EncoderDescription:
    """The description in a folder of Hugging Face's layout; raises as `read_description`.

    Encoders of log-Mel features may lack the file of the preprocessor.
    """
    config_file = folder / "config.json"
    config = read_encoder_json(config_file)
    preprocessor_file = folder / "preprocessor_config.json"
    newer_file = folder / "processor_config.json"  # of transformers 5
    if not preprocessor_file.exists() and newer_file.exists():
        preprocessor_file = newer_file
    preprocessor: dict[str, Any] = {}
    if preprocessor_file.exists():
        content = read_encoder_json(preprocessor_file)
        preprocessor = content.get("feature_extractor", content)  # transformers 5 has this section
    elif config.get("model_type") in WAVEFORM_KINDS:
        to_do = "download it too: it says whether the encoder was trained on normalized waveforms"
        raise CheckpointError(preprocessor_file, "no such file", to_do)
    with _name_file_of_errors(config_file, preprocessor_file=preprocessor_file):
        return EncoderDescription(config, preprocessor, file=config_file)


@contextmanager
def _name_file_of_errors(config_file: Path, *, preprocessor_file: Path) -> Iterator[None]:
    """Turns errors of EncoderDescription into errors that name the file with the wrong value.

    Raises ConfigError for an encoder that is not supported, CheckpointError for values of another
    type than expected.
    """
    try:
        yield
    except ConfigError as error:
        file = config_file if error.where == "config.json" else preprocessor_file
        raise ConfigError(file, error.found, error.to_do) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        found = f"does not describe an encoder ({error!r})"
        raise CheckpointError(config_file, found, "download the folder again") from error


def refuse_other_form(path: Path) -> None:
    """Raises CheckpointError if a model is in another form than a folder in Hugging Face's layout."""
    other = recognise_other_form(path)
    if other is not None:
        raise CheckpointError(path, other.found, other.to_do)


def read_encoder_json(
    path: Path,
    to_do: str = "encoder_conf.path is a folder in Hugging Face's layout, with config.json and weights",
) -> dict[str, Any]:
    """The JSON object in a file.

    `to_do`: what the error message says to do if the file cannot be read.

    Raises CheckpointError if the file cannot be read or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})", to_do) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, "is no JSON", "download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(path, "is no JSON object", "download it again")
    return content
