# SPDX-License-Identifier: Apache-2.0
"""Construction of models and heads with new weights from a config.

Configs and modules do not know each other; this file turns one into the other. The order in which
modules are constructed is part of the results of a seed, because each draws random numbers.

The settings of a head of an installed package construct it themselves.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from wenet_hs.base.extensions import calling_extension, wrong_object
from wenet_hs.config.encoders import (
    FEWEST_MEL_BINS,
    ConformerConf,
    PretrainedConf,
    StackConf,
    TransformerConf,
)
from wenet_hs.config.heads import (
    AdaptiveHeadConf,
    ClassHeadConf,
    HeadConf,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
)
from wenet_hs.config.schema import DecoderConf, ExperimentConfig
from wenet_hs.frontends.build import build_frontend
from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.ctc import Ctc
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.model.asr_model import AsrModel, LossWeights
from wenet_hs.model.encoders.base import ChunkRule, SpeechEncoder
from wenet_hs.model.encoders.description import EncoderDescription
from wenet_hs.model.encoders.kinds import make_pretrained
from wenet_hs.model.encoders.pretrained import PretrainedEncoder, memory_size, state_size
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.conformer import (
    ConformerLayer,
    ConvolutionModule,
    GlobalCmvn,
    TransformerEncoderLayer,
)
from wenet_hs.nn.layers import FeedForward, PositionalEncoding
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling
from wenet_hs.nn.transformer import (
    BiTransformerDecoder,
    TransformerDecoder,
    TransformerDecoderLayer,
)
from wenet_hs.text.units import SpecialIds
from wenet_hs.tree.errors import ConfigError, DataError
from wenet_hs.tree.tree import NaryTree, Tree

AnyTree = Tree | NaryTree
Cmvn = tuple[Tensor, Tensor]
"""Statistics of the features: mean and inverse standard deviation, (F,) each."""


@runtime_checkable
class ExtensionHeadConf(Protocol):
    """The settings of a head of an installed package."""

    def build(self, dim: int, num_units: int, tree: AnyTree | None) -> OutputHead:
        """A head with new weights; `tree` is None unless the settings are a TreeHeadConf."""


def build_model(
    config: ExperimentConfig,
    num_units: int,
    special: SpecialIds,
    *,
    tree: AnyTree | None = None,
    ctc_tree: AnyTree | None = None,
    cmvn: Cmvn | None = None,
    pretrained: EncoderDescription | None = None,
) -> AsrModel:
    """Builds a model with new weights, which depend only on torch's random state.

    Args:
        num_units: size of the output layer, V.
        tree: for a `head` that is built from one; a binary tree or a class tree over the same
            units.
        ctc_tree: the same for `ctc_conf.head`.
        cmvn: statistics for `encoder.global_cmvn`, or None.
        pretrained: the description of the encoder, for `encoder: pretrained`.

    Raises ConfigError if a setting does not fit, DataError if cmvn does not.
    """
    _check_wenet_size(
        "output_dim",
        config.output_dim,
        expected=num_units,
        reason="the unit table has that many units",
    )
    _check_wenet_size(
        "ctc_conf.ctc_blank_id",
        config.ctc_conf.ctc_blank_id,
        expected=special.blank,
        reason="<blank> of the unit table",
    )
    dim = _find_memory_width(config, pretrained)
    # The order is part of the results of a seed: decoder, encoder, heads.
    decoder = _build_decoders(config, dim, num_units)
    encoder = _build_encoder(config, cmvn, pretrained)
    head = None
    if decoder is not None:
        head = build_head(config.head_conf, dim, num_units, tree, name=config.head)
    right_head = None
    if isinstance(decoder, BiTransformerDecoder):
        right_head = build_head(config.head_conf, dim, num_units, tree, name=config.head)
    ctc_head = build_head(
        config.ctc_conf.head_conf,
        dim,
        num_units,
        ctc_tree,
        name=config.ctc_conf.head,
        section="ctc_conf.head_conf",
    )
    ctc = Ctc(ctc_head, blank=special.blank)
    model = AsrModel(encoder, decoder, head=head, right_head=right_head, ctc=ctc, special=special)
    conf = config.model_conf
    model.loss_weights = LossWeights(
        ctc=conf.trained_ctc_weight,
        reverse=conf.reverse_weight,
        smoothing=conf.lsm_weight,
        smoothing_kind=conf.lsm_kind,
        guide_width=conf.attention_guide_width,
        interctc=conf.interctc_weight,
        interctc_layer=conf.interctc_layer,
    )
    return model


def _check_wenet_size(key: str, value: int | None, *, expected: int, reason: str) -> None:
    """Raises ConfigError if a size that WeNet wrote into train.yaml is not that of the unit table.

    None, which is the value in our own configs, is always right. `reason`: where the expected
    value comes from.
    """
    if value is not None and value != expected:
        found = f"{value}, expected {expected} ({reason})"
        raise ConfigError(key, found, "remove the line or use the right file")


def _find_memory_width(config: ExperimentConfig, pretrained: EncoderDescription | None) -> int:
    """The width of the memory that the encoder gives to the decoder and the heads.

    Raises ConfigError if the decoder cannot divide the width of a pretrained encoder among its
    heads. The widths of other encoders are checked when the config is read.
    """
    conf = config.encoder_conf
    if not isinstance(conf, PretrainedConf):
        return conf.output_size
    assert pretrained is not None
    size = memory_size(pretrained, conf)
    num_heads = config.decoder_conf.attention_heads
    if config.decoder != "none" and size % num_heads:
        found = f"the encoder's width {size} is not divisible by {num_heads} heads"
        raise ConfigError(
            "decoder_conf.attention_heads", found, "change it, or encoder_conf.upper.output_size"
        )
    return size


# ---- encoders


def _build_encoder(
    config: ExperimentConfig, cmvn: Cmvn | None, pretrained: EncoderDescription | None
) -> SpeechEncoder:
    """Builds the encoder: a pretrained one, perhaps with layers of ours above, or a stack of layers.

    `pretrained`: the description of a pretrained encoder; `cmvn`: the statistics for a stack.

    Raises DataError if the statistics are of another number of features, ConfigError if a frame has
    too few features for the subsampling or a setting does not fit a pretrained encoder. Whether a
    stack has the layer `interctc_layer` is checked when the config is read.
    """
    conf = config.encoder_conf
    if isinstance(conf, PretrainedConf):
        assert pretrained is not None
        upper = None
        if conf.upper is not None:
            upper = _build_stack(conf.upper, state_size(pretrained, conf))
        encoder = make_pretrained(pretrained, conf, upper)
        _check_interctc(config.model_conf.interctc_layer, encoder)
        return encoder
    feature_dim = build_frontend(config.dataset_conf).width
    if cmvn is not None:
        _check_cmvn(cmvn, feature_dim, config.cmvn_conf.cmvn_file or "global_cmvn")
    fewest = FEWEST_MEL_BINS[conf.input_layer]
    if feature_dim < fewest:
        too_few = f"{feature_dim} features per frame, but input_layer: {conf.input_layer} needs at least {fewest}"
        raise ConfigError("dataset_conf.frontend_conf", too_few, "change one of them")
    return _build_stack(conf, feature_dim, cmvn)


def _check_cmvn(cmvn: Cmvn, feature_dim: int, path: str) -> None:
    """Raises DataError with `path` if the statistics are not of `feature_dim` features."""
    mean, _ = cmvn
    if mean.shape != (feature_dim,):
        found = f"statistics of {mean.numel()} features, but the model has {feature_dim}"
        raise DataError(path, found, "compute it again with `wenet-hs cmvn`")


def _check_interctc(layer: int, encoder: PretrainedEncoder) -> None:
    """Raises ConfigError if the encoder has no such inner layer for the CTC loss.

    `layer`: its number, from 1 to the one below the last; 0: no layer is used, which is always
    right. Without `encoder_conf.upper` no layer can be used if the outputs are cached, because only
    the last one is, or if an adapter after the last layer changes the number of frames.
    """
    is_cached = encoder.conf.cache is not None
    has_adapter = getattr(encoder.pretrained, "adapter", None) is not None
    num_usable = max(0, encoder.num_layers - 1)
    if encoder.upper is None and (is_cached or has_adapter):
        num_usable = 0
    if layer > num_usable:
        found = f"{layer}, but the number of layers that it can name (none with a cache or an adapter) is {num_usable}"
        raise ConfigError(
            "model_conf.interctc_layer", found, "set a lower one or 0, or add encoder_conf.upper"
        )


def _build_stack(
    conf: ConformerConf | TransformerConf, feature_dim: int, cmvn: Cmvn | None = None
) -> EncoderStack:
    """Builds an encoder of Conformer or Transformer layers.

    `feature_dim`: the number of values per input frame; `cmvn`: their statistics, by which they are
    normalized; None: they are not.
    """
    subsampling = _build_subsampling(conf, feature_dim)
    layers = [_build_encoder_layer(conf) for _ in range(conf.num_blocks)]
    return EncoderStack(
        subsampling,
        layers,
        output_size=conf.output_size,
        global_cmvn=None if cmvn is None else GlobalCmvn(*cmvn),
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
        chunk_rule=_choose_chunk_rule(conf),
    )


def _choose_chunk_rule(conf: StackConf) -> ChunkRule | None:
    """The rule for the chunks of training: drawn per batch, of one size, or None without chunks."""
    if conf.use_dynamic_chunk:
        return ChunkRule(size=None, draws_left=conf.use_dynamic_left_chunk)
    if conf.static_chunk_size > 0:
        return ChunkRule(size=conf.static_chunk_size)
    return None


def _build_subsampling(conf: StackConf, feature_dim: int) -> Subsampling:
    """Builds the layer from features to the first encoder layer, by `input_layer`."""
    positional = PositionalEncoding(
        conf.output_size, conf.positional_dropout_rate, conf.pos_enc_layer_type
    )
    if conf.input_layer == "linear":
        return LinearSubsampling(
            feature_dim, conf.output_size, dropout_rate=conf.dropout_rate, positional=positional
        )
    channels = conf.subsampling_conv_channels
    return Conv2dSubsampling(conf.input_layer, feature_dim, conf.output_size, positional, channels)


def _build_encoder_layer(conf: ConformerConf | TransformerConf) -> nn.Module:
    """Builds a Transformer or Conformer layer."""
    if isinstance(conf, TransformerConf):
        return TransformerEncoderLayer(
            _build_self_attention(conf),
            _build_feed_forward(conf, conf.output_size),
            dropout_rate=conf.dropout_rate,
            normalize_before=conf.normalize_before,
            norm_eps=conf.norm_eps,
        )
    # Built also if it is not used: so `use_cnn_module` does not change the weights of other parts.
    convolution = ConvolutionModule(
        conf.output_size,
        conf.cnn_module_kernel,
        activation=conf.activation_type,
        norm=conf.cnn_module_norm,
        is_causal=conf.causal,
    )
    self_attention = _build_self_attention(conf)
    feed_forward = _build_feed_forward(conf, conf.output_size)
    macaron = _build_feed_forward(conf, conf.output_size) if conf.macaron_style else None
    return ConformerLayer(
        self_attention,
        feed_forward,
        feed_forward_macaron=macaron,
        conv_module=convolution if conf.use_cnn_module else None,
        dropout_rate=conf.dropout_rate,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
    )


def _build_self_attention(conf: StackConf) -> MultiHeadAttention:
    """Builds the self-attention of an encoder layer, with relative or absolute positions."""
    is_relative = conf.selfattention_layer_type == "rel_selfattn"
    attention_class = RelPositionAttention if is_relative else MultiHeadAttention
    return attention_class(
        conf.attention_heads, conf.output_size, dropout_rate=conf.attention_dropout_rate
    )


def _build_feed_forward(conf: StackConf | DecoderConf, size: int) -> FeedForward:
    """Builds the feed-forward module of a layer of width `size`."""
    return FeedForward(
        size, conf.linear_units, dropout_rate=conf.dropout_rate, activation=conf.activation_type
    )


# ---- decoders


def _build_decoders(
    config: ExperimentConfig, size: int, num_units: int
) -> TransformerDecoder | BiTransformerDecoder | None:
    """Builds the decoder, or the decoders of both directions; None for `decoder: none`."""
    conf = config.decoder_conf
    if config.decoder == "none":
        return None
    left = _build_decoder(conf, size, num_units, num_blocks=conf.num_blocks)
    if config.decoder != "bitransformer":
        return left
    right = _build_decoder(conf, size, num_units, num_blocks=conf.r_num_blocks)
    return BiTransformerDecoder(left, right)


def _build_decoder(
    conf: DecoderConf, size: int, num_units: int, *, num_blocks: int
) -> TransformerDecoder:
    """Builds a decoder of one direction with `num_blocks` layers of width `size`."""
    layers = [_build_decoder_layer(conf, size) for _ in range(num_blocks)]
    positional = PositionalEncoding(size, conf.positional_dropout_rate)
    return TransformerDecoder(
        num_units,
        positional,
        layers,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
    )


def _build_decoder_layer(conf: DecoderConf, size: int) -> TransformerDecoderLayer:
    """Builds a decoder layer of width `size`."""
    self_attention = MultiHeadAttention(
        conf.attention_heads, size, dropout_rate=conf.self_attention_dropout_rate
    )
    memory_attention = MultiHeadAttention(
        conf.attention_heads, size, dropout_rate=conf.src_attention_dropout_rate
    )
    return TransformerDecoderLayer(
        self_attention,
        memory_attention,
        _build_feed_forward(conf, size),
        dropout_rate=conf.dropout_rate,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
    )


# ---- heads


def build_head(
    conf: HeadConf,
    dim: int,
    num_units: int,
    tree: AnyTree | None,
    *,
    name: str,
    section: str = "head_conf",
) -> OutputHead:
    """Builds a head with new weights, drawn with a seed of their own.

    torch's random state then continues as if only that seed had been drawn: all heads of one
    experiment seed leave the same random numbers to the modules built after them and to training.

    Args:
        dim: width of the hidden states, D.
        tree: for every head whose settings are a TreeHeadConf; a binary tree or a class tree is
            converted as needed.
        name: that of the head, for error messages about a head of an installed package.
        section: the section of `conf`, for error messages.

    Raises ConfigError if a setting does not fit the tree, or a package cannot build its head;
    ValueError if a head of ours needs a tree and there is none.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU only
        torch.default_generator.manual_seed(seed)
        match conf:
            case SoftmaxHeadConf():
                return SoftmaxHead(dim, num_units)
            case HSoftmaxHeadConf():
                tree = _require_tree(tree, section)
                return HSoftmaxHead(dim, tree, conf.bias, sparse_grad=conf.sparse_grad)
            case ClassHeadConf():
                classes = _find_classes(conf, _require_tree(tree, section), section)
                return ClassHead(dim, classes, sparse_grad=conf.sparse_grad)
            case AdaptiveHeadConf():
                _check_cutoffs(conf.cutoffs, num_units, section)
                frequencies = _require_tree(tree, section).frequencies
                return AdaptiveHead(dim, frequencies, conf.cutoffs, conf.div_value)
            case _:
                return _build_extension_head(name, conf, dim, num_units, tree)


def _require_tree(tree: AnyTree | None, section: str) -> AnyTree:
    """Returns the tree. Raises ValueError with the section of the head if there is none."""
    if tree is None:
        raise ValueError(f"{section}: this head needs a tree")
    return tree


def _find_classes(conf: ClassHeadConf, tree: AnyTree, section: str) -> NaryTree:
    """The tree of classes: the given one, or a binary tree that is cut into `num_classes` classes.

    Raises ConfigError if `num_classes` is set for a tree that already has classes.
    """
    if not isinstance(tree, NaryTree):
        return NaryTree.from_binary(tree, conf.num_classes)
    if conf.num_classes is not None:
        found = f"{conf.tree} already has classes"
        raise ConfigError(f"{section}.num_classes", found, "remove it, or name a binary tree")
    return tree


def _check_cutoffs(cutoffs: Sequence[int] | None, num_units: int, section: str) -> None:
    """Raises ConfigError if the last cluster would begin after the last unit.

    `cutoffs`: the ranks at which the clusters begin, ascending; None: the head chooses them.
    """
    if cutoffs is not None and cutoffs[-1] >= num_units:
        found = f"the last is {cutoffs[-1]}, but there are {num_units} units"
        raise ConfigError(f"{section}.cutoffs", found, "it must be below their number")


def _build_extension_head(
    name: str,
    conf: HeadConf,
    dim: int,
    num_units: int,
    tree: AnyTree | None,
) -> OutputHead:
    """Builds a head of an installed package, by the `build` of its settings.

    Raises ConfigError, which names the package, if `build` raises an exception, or returns no
    OutputHead or one of other sizes.
    """
    assert isinstance(conf, ExtensionHeadConf)  # `settings_class` has checked it
    with calling_extension("head", name, "`build` failed"):
        head = conf.build(dim, num_units, tree)
    if not isinstance(head, OutputHead):
        found = f"`build` returned {type(head).__name__}, not a wenet_hs.heads.base.OutputHead"
        raise wrong_object("head", name, found)
    # None if the constructor of the package does not call that of OutputHead.
    built_dim = getattr(head, "dim", None)
    built_num_units = getattr(head, "num_units", None)
    if (built_dim, built_num_units) != (dim, num_units):
        found = f"`build` returned a head with dim {built_dim} and num_units {built_num_units}"
        raise wrong_object("head", name, f"{found}, not {dim} and {num_units}")
    return head


# ---- feature statistics


def state_cmvn(state: Mapping[str, Tensor], config: ExperimentConfig) -> Cmvn | None:
    """The feature statistics for the model that will load a state_dict.

    They are those in the state_dict if it has both, also if the config has none. If only the config
    has statistics, the result is a placeholder of the right shape, so that `load_weights` reports
    what the state_dict lacks. None if neither has statistics.
    """
    mean = state.get("encoder.global_cmvn.mean")
    istd = state.get("encoder.global_cmvn.istd")
    if mean is not None and istd is not None:
        return mean, istd
    if config.cmvn is None:
        return None
    feature_dim = build_frontend(config.dataset_conf).width
    return torch.zeros(feature_dim), torch.ones(feature_dim)
