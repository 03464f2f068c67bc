# SPDX-License-Identifier: Apache-2.0
"""The kinds of pretrained encoders: what stands before and after their layers, and how a layer is
called.

Dimension key: B batch, N samples, T frames, C channels, F features, D width of the layers, H heads,
W windows.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.frontends.base import Frames
from wenet_hs.frontends.whisper_mel import WINDOW_FRAMES, WhisperMel
from wenet_hs.heads.masks import length_mask
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.description import WAVEFORM_KINDS, EncoderDescription, read_description
from wenet_hs.model.encoders.pretrained import PretrainedEncoder, additive_mask
from wenet_hs.tree.errors import ConfigError, list_names, one_line

_COMPUTED = (
    *(
        "do_stable_layer_norm",
        "feat_extract_norm",
        "conv_stride",
        "hidden_act",
        "activation_function",
    ),
    *(
        "feat_extract_activation",
        "layer_norm_eps",
        "num_attention_heads",
        "encoder_attention_heads",
    ),
    *(
        "position_embeddings_type",
        "max_bucket_distance",
        "num_conv_pos_embedding_groups",
        "rotary_embedding_base",
    ),
    *("left_max_position_embeddings", "right_max_position_embeddings", "adapter_act"),
)
"""Settings of `config.json` that no shape of a weight shows, but that change the outputs."""
_EPS = 1e-7  # of a variance of the input, as in transformers


class WaveformEncoder(PretrainedEncoder):
    """wav2vec 2.0 (so XLS-R and MMS), HuBERT and WavLM."""

    _convolutions = ("feature_extractor",)

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        module = self.pretrained
        x_BCT = self._normalize_wave(inputs, lengths)[:, None]
        for number, layer in enumerate(module.feature_extractor.conv_layers):
            norm = getattr(layer, "layer_norm", None)
            if isinstance(
                norm, nn.GroupNorm
            ):  # statistics over the frames of the clip, not over its padding
                kernel, stride = self.description.convolutions[number]
                frames_B = ((lengths - kernel) // stride + 1).clamp(min=1)
                x_BCT = layer.activation(_group_norm(norm, layer.conv(x_BCT), frames_B))
            else:
                x_BCT = layer(x_BCT)
        projected = module.feature_projection(x_BCT.transpose(1, 2))
        x_BTD = projected[0] if isinstance(projected, tuple) else projected
        valid_BT = length_mask(self._layer_length(lengths), x_BTD.size(1))
        x_BTD = self._mask(x_BTD).masked_fill(~valid_BT[:, :, None], 0.0)
        x_BTD = x_BTD + self._convolve_positions(module.encoder.pos_conv_embed, x_BTD, valid_BT)
        return module.encoder.dropout(
            x_BTD if self._is_stable else module.encoder.layer_norm(x_BTD)
        ), valid_BT

    def _convolve_positions(self, embed: Any, x_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The convolution that encodes positions. mHuBERT has a batch norm before it: its running
        statistics are always used.
        """
        norm = getattr(embed, "batch_norm", None)
        if norm is None:
            return embed(x_BTD)
        statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        normed_BDT = (
            F.batch_norm(x_BTD.transpose(1, 2), *statistics, eps=norm.eps) * valid_BT[:, None]
        )
        return embed.activation(embed.padding(embed.conv(normed_BDT))).transpose(1, 2)

    def _normalize_wave(self, wave_BN: Tensor, lengths: Tensor) -> Tensor:
        """Waveforms with mean 0 and variance 1 over their samples, if the encoder was trained so;
        padding is 0.
        """
        is_audio_BN, samples_B1 = (
            length_mask(lengths, wave_BN.size(1)),
            lengths.clamp(min=1)[:, None],
        )
        wave_BN = torch.where(is_audio_BN, wave_BN, 0.0)
        if not self.description.is_normalized:
            return wave_BN
        centered_BN = torch.where(
            is_audio_BN, wave_BN - wave_BN.sum(1, keepdim=True) / samples_B1, 0.0
        )
        variance_B1 = centered_BN.square().sum(1, keepdim=True) / samples_B1
        return centered_BN / (variance_B1 + _EPS).sqrt()

    def _call_layer(
        self,
        block: nn.Module,
        x_BTD: Tensor,
        valid_BT: Tensor,
        visible_B11T: Tensor,
        shared: Tensor | None,
    ) -> Tensor:
        if self.description.kind != "wavlm":
            return super()._call_layer(block, x_BTD, valid_BT, visible_B11T, shared)
        return block(x_BTD, attention_mask=valid_BT.long(), position_bias=shared)[0]

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        if self.description.kind != "wavlm":
            return None
        bias_HTT = self.pretrained.encoder.layers[0].attention.compute_bias(
            x_BTD.size(1), x_BTD.size(1)
        )
        return bias_HTT.repeat(x_BTD.size(0), 1, 1)

    @property
    def _is_stable(self) -> bool:
        """Whether normalization comes before each branch, so that the last output is normalized
        too.
        """
        return bool(self.description.config.get("do_stable_layer_norm", False))

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        norm = self.pretrained.get_submodule("encoder.layer_norm")
        return norm(output_BTD) if self._is_stable else output_BTD

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        adapter = self.pretrained.adapter
        if adapter.proj is not None:
            output_BTD = adapter.proj_layer_norm(adapter.proj(output_BTD))
        lengths_B = valid_BT.sum(1)
        for layer in adapter.layers:
            is_speech_BT1 = length_mask(lengths_B, output_BTD.size(1))[:, :, None]
            output_BTD = layer((output_BTD * is_speech_BT1).transpose(1, 2)).transpose(1, 2)
            lengths_B = self.description.adapter_length(lengths_B)
        return output_BTD

    def _parts_below_layers(self) -> Sequence[str]:
        parts = ["masked_spec_embed", "feature_projection", "encoder.pos_conv_embed"]
        return parts if self._is_stable else [*parts, "encoder.layer_norm"]


class BertEncoder(PretrainedEncoder):
    """w2v-BERT 2.0: log-Mel features with mean 0 and variance 1 per bin, two frames as one."""

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        module = self.pretrained
        is_audio_BT1, frames_B11 = (
            length_mask(lengths, inputs.size(1))[:, :, None],
            lengths[:, None, None],
        )
        sum_B1F = (inputs * is_audio_BT1).sum(
            1, keepdim=True, dtype=torch.float64
        )  # so that padding changes no bit
        centered_BTF = torch.where(is_audio_BT1, inputs - sum_B1F / frames_B11.clamp(min=1), 0.0)
        variance_B1F = centered_BTF.square().sum(1, keepdim=True) / (frames_B11 - 1).clamp(min=1)
        features_BTF = (centered_BTF / (variance_B1F + _EPS).sqrt()).float()
        # Not a slice of an even length, which torch.export cannot follow.
        pairs_BTF = features_BTF.unfold(1, 2, 2).transpose(2, 3).flatten(2)
        x_BTD = module.feature_projection(pairs_BTF)[0]
        valid_BT = length_mask(self._layer_length(lengths), x_BTD.size(1))
        x_BTD = self._mask(x_BTD).masked_fill(~valid_BT[:, :, None], 0.0)
        return module.encoder.dropout(x_BTD), valid_BT

    def _call_layer(
        self,
        block: nn.Module,
        x_BTD: Tensor,
        valid_BT: Tensor,
        visible_B11T: Tensor,
        shared: Tensor | None,
    ) -> Tensor:
        return block(
            x_BTD,
            attention_mask=visible_B11T,
            relative_position_embeddings=shared,
            conv_attention_mask=valid_BT,
        )

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        embed = self.pretrained.encoder.embed_positions
        return None if embed is None else embed(x_BTD)

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """As `Wav2Vec2BertAdapter`, which lets padding into its convolutions."""
        adapter = self.pretrained.adapter
        if self.pretrained.intermediate_ffn is not None:
            output_BTD = output_BTD + 0.5 * self.pretrained.intermediate_ffn(output_BTD)
        if adapter.proj is not None:
            output_BTD = adapter.proj_layer_norm(adapter.proj(output_BTD))
        lengths_B = valid_BT.sum(1)
        for layer in adapter.layers:
            is_speech_BT1 = length_mask(lengths_B, output_BTD.size(1))[:, :, None]
            residual_BTD, x_BTD = (
                layer.activation(
                    convolution((norm(output_BTD) * is_speech_BT1).transpose(1, 2))
                ).transpose(1, 2)
                for norm, convolution in (
                    (layer.residual_layer_norm, layer.residual_conv),
                    (layer.self_attn_layer_norm, layer.self_attn_conv),
                )
            )
            lengths_B = self.description.adapter_length(lengths_B)
            visible_B11T = additive_mask(length_mask(lengths_B, x_BTD.size(1)), x_BTD.dtype)
            attended_BTD, _ = layer.self_attn(x_BTD, attention_mask=visible_B11T)
            output_BTD = layer.self_attn_dropout(attended_BTD) + residual_BTD
            output_BTD = layer.ffn(layer.ffn_layer_norm(output_BTD)) + output_BTD
        return output_BTD

    def _parts_below_layers(self) -> Sequence[str]:
        return ["masked_spec_embed", "feature_projection"]


class WhisperEncoder(PretrainedEncoder):
    """The encoder of Whisper.

    A window of 30 s has positions from 0, and sees nothing of the others.
    """

    _blocks_name = "layers"
    _convolutions = ("conv1", "conv2")

    def _layer_length(self, length: Frames) -> Frames:
        assert isinstance(self.own_frontend, WhisperMel)
        return self.own_frontend.audio_frames(length) // 2

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        module = self.pretrained
        num_windows = max(1, -(-inputs.size(1) // WINDOW_FRAMES))
        if num_windows > 1:
            inputs = F.pad(inputs, (0, 0, 0, num_windows * WINDOW_FRAMES - inputs.size(1)))
            inputs = inputs.reshape(-1, WINDOW_FRAMES, inputs.size(2))
            starts_W = torch.arange(num_windows, device=lengths.device) * WINDOW_FRAMES
            lengths = (lengths[:, None] - starts_W).clamp(0, WINDOW_FRAMES).flatten()
        inputs = F.pad(inputs, (0, 0, 0, inputs.size(1) % 2))
        frames_B1T = length_mask(lengths, inputs.size(1))[:, None]
        x_BDT = F.gelu(module.conv1(inputs.transpose(1, 2) * frames_B1T)) * frames_B1T
        x_BTD = F.gelu(module.conv2(x_BDT)).transpose(1, 2)
        x_BTD = x_BTD + module.embed_positions.weight[: x_BTD.size(1)]
        valid_BT = length_mask(lengths // 2, x_BTD.size(1))
        x_BTD = F.dropout(self._mask(x_BTD), p=module.dropout, training=module.training)
        return x_BTD, valid_BT

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        return self.pretrained.layer_norm(output_BTD)

    def _drop_silence(self, output_BTD: Tensor, num_utterances: int) -> Tensor:
        """The frames of the audio: each window but the last has the same number, before its
        silence.
        """
        assert isinstance(self.own_frontend, WhisperMel)
        silence = self.own_frontend.silence_frames // 2
        if output_BTD.size(0) > num_utterances:
            output_BTD = output_BTD[:, : WINDOW_FRAMES // 2 - silence]
            return output_BTD.reshape(num_utterances, -1, output_BTD.size(2))
        return output_BTD[:, : max(1, output_BTD.size(1) - silence)]

    def _parts_below_layers(self) -> Sequence[str]:
        return ["embed_positions"]


def make_pretrained(
    description: EncoderDescription, conf: PretrainedConf, upper: SpeechEncoder | None = None
) -> PretrainedEncoder:
    """The encoder of this kind, with new weights.

    Raises ConfigError for settings that do not fit the encoder, or if transformers is not
    installed.
    """
    kind: type[PretrainedEncoder] = WaveformEncoder
    if description.kind not in WAVEFORM_KINDS:
        kind = BertEncoder if description.kind == "wav2vec2-bert" else WhisperEncoder
    return kind(_build(description), description, conf, upper)


def check_same_outputs(own: EncoderDescription, path: Path) -> None:
    """Raises ConfigError if the encoder that `path` describes, if it is there, computes other
    outputs from weights.
    """
    if path.is_file() and (different := differences(own, read_description(path))):
        found = f"an encoder with {list_names(different)} as in {path}"
        raise ConfigError("encoder_conf.path", found, "take the folder of their encoder")


def differences(own: EncoderDescription, other: EncoderDescription) -> list[str]:
    """The settings of another description with which the same weights would give other outputs."""
    if own.kind != other.kind:
        return [f"model_type {own.kind!r}, not {other.kind!r}"]
    settings, others = (
        _config(one).to_dict() | {"do_normalize": one.is_normalized} for one in (own, other)
    )
    pairs = {name: (settings.get(name), others.get(name)) for name in (*_COMPUTED, "do_normalize")}
    return [
        f"{name} {found!r}, not {expected!r}"
        for name, (found, expected) in pairs.items()
        if found != expected
    ]


def _config(description: EncoderDescription) -> Any:
    """The configuration of transformers, with only the settings of the architecture: others name
    kernels and code to download.
    """
    try:
        from transformers import AutoConfig  # takes seconds, so only where it is needed
    except ImportError as error:
        found = "needs the package transformers, which is not installed"
        to_do = "run pip install '.[pretrained]' in the folder of wenet_hs"
        raise ConfigError("encoder: pretrained", found, to_do) from error
    try:
        default = AutoConfig.for_model(description.kind)
        known = default.to_dict().keys() - {"model_type", "auto_map", "quantization_config"}
        return type(default)(
            **{key: value for key, value in description.config.items() if key in known}
        )
    except Exception as error:  # a downloaded file may have any values
        raise _no_encoder(description, error) from error


def _no_encoder(description: EncoderDescription, error: Exception) -> ConfigError:
    found = f"makes no encoder of the kind {description.kind} ({one_line(error)})"
    return ConfigError(description.file, found, "download it again")


def _build(description: EncoderDescription) -> nn.Module:
    """The module of transformers, with new weights. LayerDrop and its own masks are off."""
    config = _config(description)
    from transformers import AutoModel
    from transformers.models.whisper.modeling_whisper import WhisperEncoder as WhisperModule

    # torch.nn.functional.multi_head_attention_forward, which WavLM calls with a mask of numbers and
    # one of booleans
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    try:
        return _make_module(
            WhisperModule if description.kind == "whisper" else AutoModel.from_config, config
        )
    except Exception as error:  # a downloaded file may have any values
        raise _no_encoder(description, error) from error


def _make_module(make: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    config.layerdrop = config.encoder_layerdrop = 0.0
    config.dtype = torch.float32  # not that of the file
    # Above 0: the module has the learned vector, also without masks, so that `--checkpoint` takes
    # it.
    config.mask_time_prob, config.mask_feature_prob = 0.05, 0.0
    return make(config)


def _group_norm(norm: nn.GroupNorm, x_BCT: Tensor, frames_B: Tensor) -> Tensor:
    """Group normalization with one group per channel, over the first `frames_B` frames."""
    x_BCT = x_BCT.float()
    is_frame_B1T, number_B11 = (
        length_mask(frames_B, x_BCT.size(2))[:, None],
        frames_B[:, None, None],
    )
    centered_BCT = x_BCT - (x_BCT * is_frame_B1T).sum(2, keepdim=True) / number_B11
    variance_BC1 = (centered_BCT.square() * is_frame_B1T).sum(2, keepdim=True) / number_B11
    return (
        centered_BCT * (variance_BC1 + norm.eps).rsqrt() * norm.weight[:, None] + norm.bias[:, None]
    )
