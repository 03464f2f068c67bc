# SPDX-License-Identifier: Apache-2.0
"""The kinds of pretrained encoders: their input, the calls of their layers, and their output.

`make_pretrained` makes the encoder that a description asks for; `differences` compares two
descriptions.

Dimension key: B batch, N samples, T frames, C channels, F features, D width of the layers, H heads,
W windows.
"""

import warnings
from collections.abc import Sequence
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
from wenet_hs.model.encoders.pretrained import LayerContext, PretrainedEncoder, additive_mask
from wenet_hs.tree.errors import ConfigError, list_names, one_line

_SETTINGS_WITHOUT_WEIGHTS = (
    "do_stable_layer_norm",
    "feat_extract_norm",
    "conv_stride",
    "hidden_act",
    "activation_function",
    "feat_extract_activation",
    "layer_norm_eps",
    "num_attention_heads",
    "encoder_attention_heads",
    "position_embeddings_type",
    "max_bucket_distance",
    "num_conv_pos_embedding_groups",
    "rotary_embedding_base",
    "left_max_position_embeddings",
    "right_max_position_embeddings",
    "adapter_act",
)
"""Settings of `config.json` that change the outputs, but not the shape of any weight."""
_VARIANCE_EPS = 1e-7
"""What is added to a variance of the input before its root, as in transformers."""


def make_pretrained(
    description: EncoderDescription, conf: PretrainedConf, upper: SpeechEncoder | None = None
) -> PretrainedEncoder:
    """The encoder that a description asks for, with new weights.

    `upper`: an encoder over its outputs; None: they are the memory.

    Raises ConfigError for settings that do not fit the encoder, for values in its `config.json`
    that make no encoder, or if transformers is not installed.
    """
    encoder_class: type[PretrainedEncoder]
    if description.kind in WAVEFORM_KINDS:
        encoder_class = WaveformEncoder
    elif description.kind == "wav2vec2-bert":
        encoder_class = BertEncoder
    else:
        encoder_class = WhisperEncoder
    return encoder_class(_build_module(description), description, conf, upper)


def _build_module(description: EncoderDescription) -> nn.Module:
    """The module of transformers, with new weights; its LayerDrop and its random masks are off.

    A warning of torch about the masks of WavLM is switched off for the whole process.

    Raises ConfigError if transformers is not installed or cannot make the module.
    """
    config = _transformers_config(description)
    from transformers import AutoModel
    from transformers.models.whisper.modeling_whisper import WhisperEncoder as WhisperModule

    # WavLM calls multi_head_attention_forward of torch with a mask of numbers and one of booleans.
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    try:
        config.layerdrop = config.encoder_layerdrop = 0.0
        config.dtype = torch.float32  # not that of the file
        # Only with a probability above 0 does the module have the learned vector that replaces
        # masked frames. It is needed even without masks, so that `--checkpoint` can load it.
        config.mask_time_prob = 0.05
        config.mask_feature_prob = 0.0
        if description.kind == "whisper":
            return WhisperModule(config)
        return AutoModel.from_config(config)
    except Exception as error:  # a downloaded file may have any values
        raise _no_encoder(description, error) from error


def _transformers_config(description: EncoderDescription) -> Any:
    """The configuration object of transformers for a description.

    It has only the settings of the architecture. Other settings of a downloaded file could name
    kernels and code to download.

    Raises ConfigError if transformers is not installed or refuses the settings.
    """
    try:
        from transformers import AutoConfig  # takes seconds, so only where it is needed
    except ImportError as error:
        found = "needs the package transformers, which is not installed"
        to_do = "run pip install '.[pretrained]' in the folder of wenet_hs"
        raise ConfigError("encoder: pretrained", found, to_do) from error
    try:
        default = AutoConfig.for_model(description.kind)
        # The kind is chosen already; the other two could name code.
        known = default.to_dict().keys() - {"model_type", "auto_map", "quantization_config"}
        settings = {key: value for key, value in description.config.items() if key in known}
        return type(default)(**settings)
    except Exception as error:  # a downloaded file may have any values
        raise _no_encoder(description, error) from error


def _no_encoder(description: EncoderDescription, error: Exception) -> ConfigError:
    """The error for a `config.json` of which transformers can make no encoder."""
    found = f"makes no encoder of the kind {description.kind} ({one_line(error)})"
    return ConfigError(description.file, found, "download it again")


def check_same_outputs(own: EncoderDescription, path: Path) -> None:
    """Raises ConfigError if the same weights give other outputs in the encoder that `path` describes.

    `path`: an `encoder.json`; if there is no such file, nothing is compared.
    """
    if not path.is_file():
        return
    different = differences(own, read_description(path))
    if different:
        found = f"an encoder with {list_names(different)} as in {path}"
        raise ConfigError("encoder_conf.path", found, "take the folder of their encoder")


def differences(own: EncoderDescription, other: EncoderDescription) -> list[str]:
    """The settings that differ between two encoders and change the outputs of the same weights.

    Each is written `NAME OWN, not OTHER`. If the `model_type` differs, this is the only entry. The
    list is empty if the outputs are equal.
    """
    if own.kind != other.kind:
        return [f"model_type {own.kind!r}, not {other.kind!r}"]
    own_settings = _output_settings(own)
    other_settings = _output_settings(other)
    return [
        f"{name} {value!r}, not {other_settings[name]!r}"
        for name, value in own_settings.items()
        if value != other_settings[name]
    ]


def _output_settings(description: EncoderDescription) -> dict[str, Any]:
    """The settings that change the outputs, but no shape of a weight, by name.

    The value is None for a setting that this kind of encoder does not have.
    """
    settings = _transformers_config(description).to_dict()
    output_settings = {name: settings.get(name) for name in _SETTINGS_WITHOUT_WEIGHTS}
    return {**output_settings, "do_normalize": description.is_normalized}


class WaveformEncoder(PretrainedEncoder):
    """wav2vec 2.0 (and XLS-R and MMS, which have its architecture), HuBERT and WavLM."""

    _convolutions = ("feature_extractor",)

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first layer (B, T, D), and which of its frames are not padding, (B, T).

        inputs: waveforms (B, N); lengths: (B,) in samples. In training some frames and dimensions
        are masked.
        """
        module = self.pretrained
        wave_BN = self._normalize_wave(inputs, lengths)
        features_BTC = self._convolve_wave(wave_BN, lengths)
        projected = module.feature_projection(features_BTC)
        if isinstance(projected, tuple):  # wav2vec 2.0 and WavLM also return the normalized input
            projected = projected[0]
        valid_BT = length_mask(self._layer_length(lengths), projected.size(1))
        masked_BTD = self._mask(projected)
        x_BTD = masked_BTD.masked_fill(~valid_BT[:, :, None], 0.0)
        x_BTD = x_BTD + self._convolve_positions(module.encoder.pos_conv_embed, x_BTD, valid_BT)
        if not self._has_stable_norm:
            x_BTD = module.encoder.layer_norm(x_BTD)
        return module.encoder.dropout(x_BTD), valid_BT

    def _normalize_wave(self, wave_BN: Tensor, lengths: Tensor) -> Tensor:
        """The waveforms with 0 in their padding.

        Each gets mean 0 and variance 1 over its own samples, if the encoder was trained on
        normalized waveforms.
        """
        is_audio_BN = length_mask(lengths, wave_BN.size(1))
        num_samples_B1 = lengths.clamp(min=1)[:, None]  # no division by 0 for empty utterances
        wave_BN = torch.where(is_audio_BN, wave_BN, 0.0)
        if not self.description.is_normalized:
            return wave_BN
        mean_B1 = wave_BN.sum(1, keepdim=True) / num_samples_B1
        centered_BN = torch.where(is_audio_BN, wave_BN - mean_B1, 0.0)
        variance_B1 = centered_BN.square().sum(1, keepdim=True) / num_samples_B1
        return centered_BN / (variance_B1 + _VARIANCE_EPS).sqrt()

    def _convolve_wave(self, wave_BN: Tensor, lengths: Tensor) -> Tensor:
        """The features (B, T, C) that the convolutions compute from waveforms (B, N).

        A group normalization would take its statistics over the padding too; they are taken over
        the frames of the utterance.
        """
        x_BCT = wave_BN[:, None]
        for index, layer in enumerate(self.pretrained.feature_extractor.conv_layers):
            norm = getattr(layer, "layer_norm", None)
            if isinstance(norm, nn.GroupNorm):
                # Only the first convolution has it, so `lengths` are those of its input.
                kernel, stride = self.description.convolutions[index]
                num_frames_B = (lengths - kernel) // stride + 1
                num_frames_B = num_frames_B.clamp(min=1)  # no division by 0
                normed_BCT = _group_norm(norm, layer.conv(x_BCT), num_frames_B)
                x_BCT = layer.activation(normed_BCT)
            else:
                x_BCT = layer(x_BCT)
        return x_BCT.transpose(1, 2)

    def _convolve_positions(self, embed: Any, x_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The output (B, T, D) of `embed`, the convolution that encodes positions.

        mHuBERT has a batch normalization before it. Its running statistics are always used, also in
        training, so that an output does not depend on the other utterances of the batch.
        """
        norm = getattr(embed, "batch_norm", None)
        if norm is None:
            return embed(x_BTD)
        statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        normed_BDT = F.batch_norm(x_BTD.transpose(1, 2), *statistics, eps=norm.eps)
        valid_BDT = normed_BDT * valid_BT[:, None]
        convolved_BDT = embed.conv(valid_BDT)
        same_length_BDT = embed.padding(convolved_BDT)  # removes a last frame of an even kernel
        return embed.activation(same_length_BDT).transpose(1, 2)

    def _call_layer(self, block: nn.Module, x_BTD: Tensor, context: LayerContext) -> Tensor:
        """The output of a layer, (B, T, D); WavLM's layers have other arguments than the others."""
        if self.description.kind != "wavlm":
            return super()._call_layer(block, x_BTD, context)
        is_valid_BT = context.valid_BT.long()
        return block(x_BTD, attention_mask=is_valid_BT, position_bias=context.positions)[0]

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        """WavLM: the bias of each pair of positions, (B * H, T, T). None for the other kinds."""
        if self.description.kind != "wavlm":
            return None
        num_utterances, num_frames, _ = x_BTD.shape
        # Only the first layer has the weights of the bias; all layers use it.
        first_attention = self.pretrained.encoder.layers[0].attention
        bias_HTT = first_attention.compute_bias(num_frames, num_frames)
        return bias_HTT.repeat(num_utterances, 1, 1)

    @property
    def _has_stable_norm(self) -> bool:
        """Whether the layers normalize their inputs ("stable layer norm"), and not their outputs.

        If so, `encoder.layer_norm` normalizes the output of the last layer. Otherwise it normalizes
        the input of the first layer.
        """
        return bool(self.description.config.get("do_stable_layer_norm", False))

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        """The output of the last layer, normalized if the layers normalize only their input."""
        norm = self.pretrained.get_submodule("encoder.layer_norm")
        return norm(output_BTD) if self._has_stable_norm else output_BTD

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The output (B, T', D) of the adapter; its convolutions see zeros instead of padding.

        Each layer halves the number of frames. Before them is a projection, if the adapter has
        another width than the layers of the encoder.
        """
        adapter = self.pretrained.adapter
        if adapter.proj is not None:
            output_BTD = adapter.proj_layer_norm(adapter.proj(output_BTD))
        lengths_B = valid_BT.sum(1)
        for layer in adapter.layers:
            is_speech_BT1 = length_mask(lengths_B, output_BTD.size(1))[:, :, None]
            speech_BDT = (output_BTD * is_speech_BT1).transpose(1, 2)
            output_BTD = layer(speech_BDT).transpose(1, 2)
            lengths_B = self.description.adapter_length(lengths_B)
        return output_BTD

    def _parts_below_layers(self) -> Sequence[str]:
        """The vector of masks, the projection, the positions, and the normalization before layer 1."""
        parts = ["masked_spec_embed", "feature_projection", "encoder.pos_conv_embed"]
        return parts if self._has_stable_norm else [*parts, "encoder.layer_norm"]


class BertEncoder(PretrainedEncoder):
    """w2v-BERT 2.0: log-Mel features with mean 0 and variance 1 per bin; two frames become one."""

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first layer (B, T // 2, D), and which of its frames are not padding.

        inputs: log-Mel features (B, T, F); lengths: (B,) in T. In training some frames and
        dimensions are masked.
        """
        module = self.pretrained
        features_BTF = _normalize_bins(inputs, lengths)
        # Frames 2 t and 2 t + 1 are concatenated; a last frame without a pair is left out. A
        # reshape would need a slice of an even length, which torch.export cannot follow.
        pairs_BTF2 = features_BTF.unfold(1, 2, 2)
        pairs_BTF = pairs_BTF2.transpose(2, 3).flatten(2)
        x_BTD = module.feature_projection(pairs_BTF)[0]
        valid_BT = length_mask(self._layer_length(lengths), x_BTD.size(1))
        x_BTD = self._mask(x_BTD).masked_fill(~valid_BT[:, :, None], 0.0)
        return module.encoder.dropout(x_BTD), valid_BT

    def _call_layer(self, block: nn.Module, x_BTD: Tensor, context: LayerContext) -> Tensor:
        """The output of a layer, (B, T, D); its convolution sees zeros instead of padding."""
        return block(
            x_BTD,
            attention_mask=context.visible_B11T,
            relative_position_embeddings=context.positions,
            conv_attention_mask=context.valid_BT,
        )

    def _positions(self, x_BTD: Tensor) -> Tensor | None:
        """The embeddings of positions; None for `relative_key`, whose layers have their own."""
        embed = self.pretrained.encoder.embed_positions
        return None if embed is None else embed(x_BTD)

    def _adapt(self, output_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """The output (B, T', D) of the adapter; its convolutions see zeros instead of padding.

        Each layer halves the number of frames. Before them are a feed-forward module and a
        projection, if the encoder has them. The computation is that of `Wav2Vec2BertAdapter`, which
        is not called because its convolutions see the padding.
        """
        adapter = self.pretrained.adapter
        if self.pretrained.intermediate_ffn is not None:
            # Half of it is added, as in a Conformer layer.
            output_BTD = output_BTD + 0.5 * self.pretrained.intermediate_ffn(output_BTD)
        if adapter.proj is not None:
            output_BTD = adapter.proj_layer_norm(adapter.proj(output_BTD))
        lengths_B = valid_BT.sum(1)
        for layer in adapter.layers:
            is_speech_BT1 = length_mask(lengths_B, output_BTD.size(1))[:, :, None]
            # Two convolutions of stride 2, for the residual and for the attention.
            speech_BDT = (layer.residual_layer_norm(output_BTD) * is_speech_BT1).transpose(1, 2)
            residual_BTD = layer.activation(layer.residual_conv(speech_BDT)).transpose(1, 2)
            speech_BDT = (layer.self_attn_layer_norm(output_BTD) * is_speech_BT1).transpose(1, 2)
            x_BTD = layer.activation(layer.self_attn_conv(speech_BDT)).transpose(1, 2)
            lengths_B = self.description.adapter_length(lengths_B)
            visible_B11T = additive_mask(length_mask(lengths_B, x_BTD.size(1)), x_BTD.dtype)
            attended_BTD, _ = layer.self_attn(x_BTD, attention_mask=visible_B11T)
            output_BTD = layer.self_attn_dropout(attended_BTD) + residual_BTD
            output_BTD = layer.ffn(layer.ffn_layer_norm(output_BTD)) + output_BTD
        return output_BTD

    def _parts_below_layers(self) -> Sequence[str]:
        """The vector of masks and the projection of the features."""
        return ["masked_spec_embed", "feature_projection"]


class WhisperEncoder(PretrainedEncoder):
    """The encoder of Whisper.

    Each window of 30 s is encoded by itself: its positions begin at 0, and it sees no other window.
    """

    _blocks_name = "layers"
    _convolutions = ("conv1", "conv2")

    def _layer_length(self, length: Frames) -> Frames:
        """The number of frames of audio, without the silence after it; (B,) → (B,)."""
        assert isinstance(self.own_frontend, WhisperMel)
        return self.own_frontend.audio_frames(length) // 2

    def _embed(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first layer (B * W, T', D), and which of its frames are not padding.

        W is the number of windows of the longest utterance. T' is half the frames of a window, or
        half the frames of the batch if it has only one window.

        inputs: log-Mel features (B, T, F); lengths: (B,) in T. In training some frames and
        dimensions are masked.
        """
        module = self.pretrained
        num_windows_rounded_up = (inputs.size(1) + WINDOW_FRAMES - 1) // WINDOW_FRAMES
        num_windows = max(1, num_windows_rounded_up)
        if num_windows > 1:
            # Each window becomes a row of the batch, with its own length.
            num_missing = num_windows * WINDOW_FRAMES - inputs.size(1)
            inputs = F.pad(inputs, (0, 0, 0, num_missing))  # zeros after the last frame
            inputs = inputs.reshape(-1, WINDOW_FRAMES, inputs.size(2))
            starts_W = torch.arange(num_windows, device=lengths.device) * WINDOW_FRAMES
            lengths = (lengths[:, None] - starts_W).clamp(0, WINDOW_FRAMES).flatten()
        inputs = F.pad(inputs, (0, 0, 0, inputs.size(1) % 2))  # an even number, for conv2's stride
        # Padding is 0 before each convolution, as beyond the end of a single recording.
        is_frame_B1T = length_mask(lengths, inputs.size(1))[:, None]
        inputs_BFT = inputs.transpose(1, 2) * is_frame_B1T
        x_BDT = F.gelu(module.conv1(inputs_BFT)) * is_frame_B1T
        x_BTD = F.gelu(module.conv2(x_BDT)).transpose(1, 2)  # of stride 2: half the frames
        x_BTD = x_BTD + module.embed_positions.weight[: x_BTD.size(1)]
        valid_BT = length_mask(lengths // 2, x_BTD.size(1))
        x_BTD = F.dropout(self._mask(x_BTD), p=module.dropout, training=module.training)
        return x_BTD, valid_BT

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        """The output of the last layer, normalized."""
        return self.pretrained.layer_norm(output_BTD)

    def _drop_silence(self, output_BTD: Tensor, num_utterances: int) -> Tensor:
        """The frames of the audio, (num_utterances, T, D), from windows (B, T', D).

        Every window ends with silence of the same length. If utterances have several windows
        (B > num_utterances), the silence is removed from each window, and the frames of the windows
        of each utterance are joined. If each has one window, at least one frame is left, also if
        all utterances of the batch are empty.
        """
        assert isinstance(self.own_frontend, WhisperMel)
        num_silence = self.own_frontend.silence_frames // 2  # two input frames are one output
        if output_BTD.size(0) > num_utterances:
            num_audio = WINDOW_FRAMES // 2 - num_silence
            audio_BTD = output_BTD[:, :num_audio]
            return audio_BTD.reshape(num_utterances, -1, output_BTD.size(2))
        num_audio = max(1, output_BTD.size(1) - num_silence)
        return output_BTD[:, :num_audio]

    def _parts_below_layers(self) -> Sequence[str]:
        """The embeddings of positions."""
        return ["embed_positions"]


def _group_norm(norm: nn.GroupNorm, x_BCT: Tensor, num_frames_B: Tensor) -> Tensor:
    """Group normalization with one group per channel, computed in float32.

    The mean and the variance are those of the first `num_frames_B` frames. All frames are
    normalized with them.
    """
    x_BCT = x_BCT.float()
    is_frame_B1T = length_mask(num_frames_B, x_BCT.size(2))[:, None]
    num_frames_B11 = num_frames_B[:, None, None]
    mean_BC1 = (x_BCT * is_frame_B1T).sum(2, keepdim=True) / num_frames_B11
    centered_BCT = x_BCT - mean_BC1
    squares_BCT = centered_BCT.square() * is_frame_B1T
    variance_BC1 = squares_BCT.sum(2, keepdim=True) / num_frames_B11
    normed_BCT = centered_BCT * (variance_BC1 + norm.eps).rsqrt()
    return normed_BCT * norm.weight[:, None] + norm.bias[:, None]


def _normalize_bins(features_BTF: Tensor, lengths: Tensor) -> Tensor:
    """Features in float32 with mean 0 and variance 1 per utterance and bin; their padding is 0.

    The sum of squares is divided by T - 1 for an utterance of T frames, as in transformers.
    """
    is_audio_BT1 = length_mask(lengths, features_BTF.size(1))[:, :, None]
    num_frames_B11 = lengths[:, None, None]
    # In float64, so that the length of the padding changes no bit.
    sum_B1F = (features_BTF * is_audio_BT1).sum(1, keepdim=True, dtype=torch.float64)
    mean_B1F = sum_B1F / num_frames_B11.clamp(min=1)
    centered_BTF = torch.where(is_audio_BT1, features_BTF - mean_B1F, 0.0)
    num_degrees_B11 = (num_frames_B11 - 1).clamp(min=1)
    variance_B1F = centered_BTF.square().sum(1, keepdim=True) / num_degrees_B11
    return (centered_BTF / (variance_B1F + _VARIANCE_EPS).sqrt()).float()
