# SPDX-License-Identifier: Apache-2.0
"""The settings of the encoders.

A new one needs one class here, with its name in `EncoderKind`, `EncoderConf` and `ENCODERS`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo

from wenet_hs.config.section import (
    BelowOne,
    Conflict,
    Count,
    CountOrZero,
    FreeOnResume,
    Positive,
    Section,
    read_section,
)

Activation = Literal["swish", "relu", "gelu"]
FEWEST_MEL_BINS = {"linear": 4, "conv2d": 7, "conv2d6": 11, "conv2d8": 15}
"""As many features each `input_layer` needs, so that its strides in frequency leave at least one."""


class LayersConf(Section):
    """The settings that encoder and decoder have in common."""

    attention_heads: Count = 4
    """Number of attention heads. They share the width equally."""
    linear_units: Count = 2048
    """Inner width of the feed-forward layers."""
    num_blocks: Count = 6
    """Number of layers; of a decoder: left to right."""
    dropout_rate: BelowOne = 0.1
    """Dropout of each residual branch and inside the feed-forward layers."""
    positional_dropout_rate: BelowOne = 0.1
    """Dropout after the positional encoding."""
    normalize_before: bool = True
    """Whether LayerNorm comes before each residual branch (true) or after it (false)."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm. WeNet before 2022-01-11 had 1e-12."""
    gradient_checkpointing: FreeOnResume[bool] = False
    """Whether the backward pass computes each layer again: less memory, a third more time,
    bit-equal results. Not in decoder steps with `attention_guide`.
    """


class StackConf(LayersConf):
    """What the encoders have in common that are built here: subsampling, then equal layers.

    The defaults are the conformer's.
    """

    output_size: Annotated[int, Field(gt=0, multiple_of=2)] = 256
    """Width of encoder and decoder."""
    attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights."""
    input_layer: Literal["conv2d", "conv2d6", "conv2d8", "linear"] = "conv2d"
    """Subsampling in time: by 4, 6, 8, or none (`linear`)."""
    subsampling_conv_channels: Count | None = None
    """Channels of the convolutions of `input_layer`; null: `output_size`, as in WeNet."""
    pos_enc_layer_type: Literal["rel_pos", "abs_pos", "no_pos"] = "rel_pos"
    """Positional encoding: input of the attention (`rel_pos`), added to the features (`abs_pos`),
    or none.
    """
    selfattention_layer_type: Literal["rel_selfattn", "selfattn"] = "rel_selfattn"
    """Whether the attention scores use the positional encoding (`rel_selfattn`) or not."""
    activation_type: Activation = "swish"
    """Activation function of feed-forward and convolution."""
    static_chunk_size: Annotated[int, Field(ge=-1)] = 0
    """Encoder frames per chunk of the attention: a frame sees its chunk and those before it; 0, -1:
    all frames. As in WeNet it has no effect with `use_dynamic_chunk`.
    """
    use_dynamic_chunk: bool = False
    """Whether each training batch has chunks of another size, drawn at random (U2, Zhang et al.
    2020): such a model recognises whole utterances, and streams with chunks of any size.
    """
    use_dynamic_left_chunk: bool = False
    """Whether the number of chunks before its own that a frame sees is drawn too; otherwise it sees
    all of them. It has no effect without `use_dynamic_chunk`.
    """

    def conflicts(self) -> Iterator[Conflict]:
        """A width that heads cannot share, and channels of a convolution that is not there."""
        if self.output_size % self.attention_heads:
            width = f"output_size {self.output_size}"
            text = f"{width} is not divisible by {self.attention_heads} heads"
            yield "attention_heads", text
        if self.subsampling_conv_channels and self.input_layer == "linear":
            yield (
                "subsampling_conv_channels",
                "has no effect with input_layer: linear, which has no convolution",
            )


class ConformerConf(StackConf):
    """`encoder: conformer` (Gulati et al. 2020)."""

    macaron_style: bool = True
    """Whether a layer has half a feed-forward module at its start and its end, or a whole one at
    the end.
    """
    use_cnn_module: bool = True
    """Whether layers have a convolution module."""
    cnn_module_kernel: Count = 15
    """Width of the depthwise convolution in encoder frames; odd, unless `causal`."""
    causal: bool = False
    """Whether the convolution sees no later frame; for chunks, so for streaming."""
    cnn_module_norm: Literal["batch_norm", "layer_norm"] = "batch_norm"
    """Normalization inside the convolution module."""

    def conflicts(self) -> Iterator[Conflict]:
        """The conflicts of all stacks, and convolutions that do not fit `causal` or chunks.

        A convolution that is not causal has its center in the middle, and sees later frames.
        """
        yield from super().conflicts()
        if self.cnn_module_kernel % 2 == 0 and not self.causal:
            yield "cnn_module_kernel", f"must be odd without causal, got {self.cnn_module_kernel}"
        sees_later_frames = self.use_cnn_module and not self.causal
        text = "the convolutions see frames after the chunk; set causal: true"
        if sees_later_frames and self.use_dynamic_chunk:
            yield "use_dynamic_chunk", text
        elif sees_later_frames and self.static_chunk_size > 0:
            yield "static_chunk_size", text


class TransformerConf(StackConf):
    """`encoder: transformer` (Vaswani et al. 2017)."""

    pos_enc_layer_type: Literal["rel_pos", "abs_pos", "no_pos"] = "abs_pos"
    """Positional encoding: input of the attention (`rel_pos`), added to the features (`abs_pos`),
    or none.
    """
    selfattention_layer_type: Literal["rel_selfattn", "selfattn"] = "selfattn"
    """Whether the attention scores use the positional encoding (`rel_selfattn`) or not."""
    activation_type: Activation = "relu"
    """Activation function of the feed-forward layers."""


class UpperConf(ConformerConf):
    """Conformer layers above a pretrained encoder, after a linear layer."""

    num_blocks: CountOrZero = 2
    """Number of layers; 0: only the linear layer."""
    input_layer: Literal["linear"] = "linear"
    """The input is one frame per 20 ms (wav2vec 2.0, Whisper), which is not subsampled."""
    mask_time: BelowOne = 0.0
    """Share of the frames that masks of 10 frames hide at the input of these layers, in training
    only; overlaps count.
    """
    mask_feature: BelowOne = 0.0
    """Share of the dimensions that masks of 10 dimensions set to 0 there."""

    def conflicts(self) -> Iterator[Conflict]:
        """The conflicts of a conformer, and settings for streaming.

        No pretrained encoder supports streaming: it reads whole utterances.
        """
        yield from super().conflicts()
        streaming_settings = {
            "causal": self.causal,
            "use_dynamic_chunk": self.use_dynamic_chunk,
            "static_chunk_size": self.static_chunk_size > 0,  # 0, -1: no chunks
        }
        for name, is_used in streaming_settings.items():
            if is_used:
                text = "is for streaming, and the pretrained encoder reads whole utterances"
                yield name, f"{text}; remove it"


class PretrainedConf(Section):
    """`encoder: pretrained`: an encoder of `transformers` from a folder in Hugging Face's layout."""

    path: str
    """The folder, with `config.json` and weights; in a model folder `encoder.json`, which describes
    the encoder.
    """
    layers: Literal["last", "weighted"] | Count = "last"
    """What the memory is computed from: `last`, the output of the last layer; `weighted`, a sum
    with learned weights of the first layer's input and all outputs; or a number N, the output of
    layer N (from 1). Layers above N are left out. The output of layer N gets the last layer's
    normalization, if the encoder has one.
    """
    adapter: str | None = None
    """For MMS: the language (ISO 639-3) of `adapter.LANG.safetensors` in the folder, or `new`:
    untrained adapters.
    """
    freeze: Literal["all", "all_but_adapters", "feature_encoder", "none"] | Count = (
        "feature_encoder"
    )
    """What is not trained: everything, everything but the adapters of MMS, the convolutions before
    the layers, nothing, or everything up to this layer.
    """
    freeze_steps: CountOrZero = 0
    """Optimizer steps at the start in which nothing of the encoder is trained."""
    lr: Positive | None = None
    """Learning rate of the encoder; null: that of `optim_conf`."""
    mask_time: BelowOne = 0.0
    """Share of the frames that masks of 10 frames hide before the first layer, in training only;
    overlaps count.
    """
    mask_feature: BelowOne = 0.0
    """Share of the hidden dimensions that masks of 10 dimensions set to 0 there."""
    silence_s: Annotated[float, Field(ge=0.2, le=29)] = 0.4
    """Seconds of silence after the audio that Whisper's encoder sees; for Whisper only."""
    layerdrop: Annotated[float, Field(ge=0, le=0)] = 0.0
    """Share of the layers that a step leaves out; only 0: it fails with recomputation and with
    several ranks.
    """
    gradient_checkpointing: FreeOnResume[bool] = False
    """Whether the backward pass computes each layer again: less memory, a third more time."""
    cache: Annotated[str, Field(min_length=1)] | None = None
    """Folder that keeps the outputs of a frozen encoder, as float16; with `freeze: all` and masks
    of 0. null: none.
    """
    upper: UpperConf | None = None
    """Layers above the encoder, which are trained from nothing; null: none."""

    def conflicts(self) -> Iterator[Conflict]:
        """A cache of outputs that change, and settings without effect on a frozen encoder."""
        if self.cache is not None and self.freeze != "all":
            yield "cache", "keeps the outputs of a frozen encoder; set freeze: all, or cache: null"
        if self.freeze == "all":
            yield from self._conflicts_of_frozen()

    def _conflicts_of_frozen(self) -> Iterator[Conflict]:
        """The settings that act on the training of an encoder with `freeze: all`, which has none."""
        for name in ("mask_time", "mask_feature"):
            share = getattr(self, name)
            if share > 0:
                text = "acts before layers that are not trained"
                yield name, f"{text}; set 0.0, and use upper.{name}"
        if self.lr is not None:
            yield "lr", "has no effect with freeze: all; remove it"
        if self.freeze_steps > 0:
            yield "freeze_steps", "has no effect with freeze: all; remove it"
        if self.adapter == "new":
            yield "freeze", "all leaves the new adapters untrained; set all_but_adapters"


EncoderKind = Literal["conformer", "transformer", "pretrained"]
EncoderConf = ConformerConf | TransformerConf | PretrainedConf
ENCODERS: dict[str, type[Section]] = {
    "conformer": ConformerConf,
    "transformer": TransformerConf,
    "pretrained": PretrainedConf,
}


def read_encoder(value: Any, info: ValidationInfo) -> Any:
    """An `encoder_conf`, read by the class that the setting `encoder` beside it selects.

    `value`: what the file has, or the default. `info.data`: the settings before it that are valid.
    """
    return read_section(value, info.data.get("encoder"), ENCODERS)
