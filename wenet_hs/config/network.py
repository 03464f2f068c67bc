# SPDX-License-Identifier: Apache-2.0
"""The sections of the network and of its text: encoder, decoder, head, CTC, tokenizer, CMVN and the loss."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from wenet_hs.config.section import (
    BelowOne,
    Count,
    CountOrZero,
    Fraction,
    Positive,
    PositiveOrZero,
    Section,
    as_chosen,
    setting_error,
)

Activation = Literal["swish", "relu", "gelu"]
SpecialUnit = Literal["<blank>", "<unk>", "<sos>", "<eos>"]


class EncoderConf(Section):
    """The encoder; these defaults are those of `encoder: conformer`."""

    output_size: Annotated[int, Field(gt=0, multiple_of=2)] = 256
    """Width of the encoder and of the decoder."""
    attention_heads: Count = 4
    """Heads; they share the width equally."""
    linear_units: Count = 2048
    """Inner width of the feed-forward layers."""
    num_blocks: Count = 6
    """Layers."""
    dropout_rate: BelowOne = 0.1
    """Dropout of each branch and inside the feed-forward layers."""
    positional_dropout_rate: BelowOne = 0.1
    """Dropout after the positional encoding."""
    attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights."""
    input_layer: Literal["conv2d", "conv2d6", "conv2d8", "linear"] = "conv2d"
    """Subsampling in time by 4, 6, 8, or none."""
    pos_enc_layer_type: Literal["rel_pos", "abs_pos", "no_pos"] = "rel_pos"
    """Positional encoding: given to the attention, added to the input, or none."""
    normalize_before: bool = True
    """LayerNorm before each branch (true) or after it."""
    macaron_style: bool = True
    """Two half feed-forward layers around attention and convolution instead of one behind them."""
    selfattention_layer_type: Literal["rel_selfattn", "selfattn"] = "rel_selfattn"
    """Whether the attention scores see the positional encoding."""
    activation_type: Activation = "swish"
    """Nonlinearity of feed-forward and convolution."""
    use_cnn_module: bool = True
    """Whether layers have a convolution."""
    cnn_module_kernel: Count = 15
    """Width of the depthwise convolution in frames of the encoder; odd."""
    cnn_module_norm: Literal["batch_norm", "layer_norm"] = "batch_norm"
    """Normalisation inside the convolution."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm. WeNet before 2022-01-11 had 1e-12."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and compute the layer again in the backward pass: less memory, about a third
    more time, the same numbers to the last bit."""

    @field_validator("attention_heads")
    @classmethod
    def _share_the_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("output_size", heads)
        if width % heads:
            raise setting_error("attention_heads", f"output_size {width} is not divisible by {heads} heads")
        return heads

    @field_validator("cnn_module_kernel")
    @classmethod
    def _has_a_middle(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise setting_error("cnn_module_kernel", f"must be odd, got {kernel}")
        return kernel


class TransformerEncoderConf(EncoderConf):
    """The same keys with the defaults of `encoder: transformer`, which has neither macaron layers nor convolutions."""

    pos_enc_layer_type: Literal["rel_pos", "abs_pos", "no_pos"] = "abs_pos"
    """Positional encoding: given to the attention, added to the input, or none."""
    macaron_style: bool = False
    """Always false."""
    selfattention_layer_type: Literal["rel_selfattn", "selfattn"] = "selfattn"
    """Whether the attention scores see the positional encoding."""
    activation_type: Activation = "relu"
    """Nonlinearity of the feed-forward layers."""
    use_cnn_module: bool = False
    """Always false."""

    @field_validator("macaron_style", "use_cnn_module")
    @classmethod
    def _conformer_only(cls, value: bool, info: ValidationInfo) -> bool:
        if value:
            raise setting_error(info.field_name or "", "encoder: transformer has none; remove it or take conformer")
        return value


class DecoderConf(Section):
    """The attention decoder; its width is the encoder's."""

    attention_heads: Count = 4
    """Heads; they share the width equally."""
    linear_units: Count = 2048
    """Inner width of the feed-forward layers."""
    num_blocks: Count = 6
    """Layers of the decoder that writes from left to right."""
    r_num_blocks: CountOrZero = 0
    """Layers of the decoder that writes from right to left; for `decoder: bitransformer` only."""
    dropout_rate: BelowOne = 0.1
    """Dropout of each branch and inside the feed-forward layers."""
    positional_dropout_rate: BelowOne = 0.1
    """Dropout after the positional encoding."""
    self_attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights over the units written so far."""
    src_attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights over the encoder's output."""
    normalize_before: bool = True
    """LayerNorm before each branch (true) or after it."""
    activation_type: Activation = "relu"
    """Nonlinearity of the feed-forward layers."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm. WeNet before 2022-01-11 had 1e-12."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and compute the layer again in the backward pass: less memory, about a third
    more time, the same numbers to the last bit; not while `attention_guide` watches."""


class SoftmaxHeadConf(Section):
    """`head: softmax` has no settings."""


class HSoftmaxHeadConf(Section):
    """`head: hsoftmax`: a binary tree over the units, a logistic decision at each inner node."""

    tree: str
    """Path of the tree.json that `wenet-hs tree build` wrote for the same units; one of classes becomes binary."""
    bias: bool = False
    """Whether a node's decision has a bias beside its vector."""
    sparse_grad: bool = False
    """Whether a step updates the vectors on its targets' paths alone, for very many units; with `optim: adam`."""
    route: Literal["auto", "torch", "path", "nodes", "torch-path", "torch-nodes"] = "auto"
    """How costs are computed (heads/hsoftmax.py); auto: the fastest for the size and the device at hand."""
    search: Literal["auto", "torch", "best_first", "dense"] = "auto"
    """How the best units are found (heads/kernels/search.py); auto: the fastest for the size and the device at hand."""


class ClassHeadConf(Section):
    """`head: class`: a tree of classes over the units, a softmax at each inner node."""

    tree: str
    """Path of the tree.json that `wenet-hs tree build` wrote for the same units; of classes, or binary."""
    num_classes: Count | None = None
    """How many branches from the top of a binary tree become classes; null: the root of the number of units."""
    sparse_grad: bool = False
    """Whether a step updates the vectors of the nodes on its targets' paths alone; with `optim: adam`."""
    route: Literal["auto", "path", "all"] = "auto"
    """Whether costs come from the nodes on the targets' paths or from all; auto: by size and device."""
    search: Literal["auto", "best_first", "all"] = "auto"
    """How the best units are found: from the likeliest nodes on, or from all; auto: by size and device."""


class AdaptiveHeadConf(Section):
    """`head: adaptive`: PyTorch's adaptive softmax, frequent units first and rarer ones in clusters of less width."""

    tree: str
    """Path of the tree.json that `wenet-hs tree build` wrote for the same units; its frequencies rank them."""
    cutoffs: list[Count] | None = None
    """Ranks at which the clusters begin; null: after the fewest units with 1/2, 3/4 and 7/8 of all occurrences."""
    div_value: Annotated[float, Field(ge=1)] = 4.0
    """A cluster's width is that of the one before it divided by this; lowered where the last one would have none."""

    @field_validator("cutoffs")
    @classmethod
    def _cutoffs_ascend(cls, cutoffs: list[int] | None) -> list[int] | None:
        if cutoffs is not None and (not cutoffs or cutoffs != sorted(set(cutoffs))):
            raise setting_error("cutoffs", f"must be one or more ascending numbers, got {cutoffs}")
        return cutoffs


HeadKind = Literal["softmax", "hsoftmax", "class", "adaptive"]
HeadConf = SoftmaxHeadConf | HSoftmaxHeadConf | ClassHeadConf | AdaptiveHeadConf

_HEADS: dict[str, type[Section]] = {
    "softmax": SoftmaxHeadConf,
    "hsoftmax": HSoftmaxHeadConf,
    "class": ClassHeadConf,
    "adaptive": AdaptiveHeadConf,
}


def chosen_head(value: Any, info: ValidationInfo) -> Any:
    """For a `head_conf` beside a `head`: the section as the class of that head."""
    return as_chosen(value, info.data.get("head"), _HEADS, otherwise=SoftmaxHeadConf())


class CtcConf(Section):
    """The CTC branch."""

    ctc_blank_id: CountOrZero | None = None
    """Id of the blank; null: that of `<blank>` in the unit table."""
    head: HeadKind = "softmax"
    """Output layer of the branch, of the same kinds as the decoder's."""
    head_conf: HeadConf = Field(default_factory=SoftmaxHeadConf)
    """Its settings. A tree for CTC counts the blank too: `wenet-hs tree build --blank_share`."""

    _chosen_head = field_validator("head_conf", mode="before")(chosen_head)


class TokenizerConf(Section):
    """From text to units and back."""

    symbol_table_path: str | None = None
    """Path of units.txt."""
    bpe_path: str | None = None
    """Path of the sentencepiece model; for `tokenizer: bpe` only."""
    split_with_space: bool = False
    """WeNet's way to say that units stand between spaces: with `tokenizer: char` it makes it `phone`."""
    connect_symbol: Literal["", " "] = ""
    """What WeNet writes between the units of a hypothesis; here phones are joined by a space, characters by nothing."""
    special_tokens: dict[SpecialUnit, CountOrZero] | None = None
    """Ids of `<blank>`, `<unk>`, `<sos>` and `<eos>`; null: those of the unit table."""


class CmvnConf(Section):
    """Normalisation of the features by the statistics of the training set."""

    cmvn_file: str | None = None
    """Path of global_cmvn."""
    is_json_cmvn: Literal[True] = True
    """The file is WeNet's JSON, the one format read here."""


class ModelConf(Section):
    """How the losses are put together."""

    ctc_weight: Fraction = 0.5
    """Share of CTC in the loss; the attention decoder has the rest."""
    ctc_weight_final: Fraction | None = None
    """Share of CTC from optimizer step `ctc_weight_steps` on, reached in a straight line; null: it stays."""
    ctc_weight_steps: CountOrZero = 0
    """Optimizer steps from `ctc_weight` to `ctc_weight_final`."""
    ignore_id: Literal[-1] = -1
    """What stands behind the targets of the shorter utterances of a batch."""
    reverse_weight: Fraction = 0.0
    """Share of the right-to-left decoder in the attention loss; for `decoder: bitransformer` only."""
    lsm_weight: BelowOne = 0.0
    """Label smoothing: probability mass spread over the other units."""
    lsm_kind: Literal["leaf", "node"] = "leaf"
    """Over all other units alike, as in WeNet, or over the other branches at each node of the target's path alone."""
    ctc_only_steps: CountOrZero = 0
    """Optimizer steps at the start that train the encoder by CTC alone; the schedules below begin after them."""
    attention_guide: PositiveOrZero = 0.0
    """Weight of the guided-attention penalty (nn/transformer.py) at the decoder's first step; 0: none, as in WeNet."""
    attention_guide_steps: CountOrZero = 0
    """Optimizer steps of the decoder in which that weight falls to 0, in a straight line."""
    attention_guide_width: Positive = 0.1
    """How far from the diagonal attention may stray, as a share of the utterance."""

    @field_validator("attention_guide_steps")
    @classmethod
    def _guide_ends(cls, steps: int, info: ValidationInfo) -> int:
        if info.data.get("attention_guide") and not steps:
            raise setting_error("attention_guide_steps", "must be at least 1 where attention_guide is given")
        return steps

    @field_validator("ctc_weight_steps")
    @classmethod
    def _goes_with_final(cls, steps: int, info: ValidationInfo) -> int:
        changes = info.data.get("ctc_weight_final") is not None
        if changes and not steps:
            raise setting_error("ctc_weight_steps", "must be at least 1 where ctc_weight_final is given")
        if steps and not changes and "ctc_weight_final" in info.data:
            raise setting_error("ctc_weight_steps", "has no effect without ctc_weight_final; add it or remove this")
        return steps
