# SPDX-License-Identifier: Apache-2.0
"""From configs to modules: builds models and heads with new weights. Only this file knows both.

The settings of a head of an installed package build it themselves.
"""

from collections.abc import Mapping
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
"""Mean and inverse standard deviation of the features, (F,) each."""


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
        pretrained: for `encoder: pretrained`.

    Raises ConfigError if a setting does not fit, DataError if cmvn does not.
    """
    for key, found, expected, what in (  # WeNet writes these sizes into a train.yaml
        ("output_dim", config.output_dim, num_units, "the unit table has that many units"),
        (
            "ctc_conf.ctc_blank_id",
            config.ctc_conf.ctc_blank_id,
            special.blank,
            "<blank> of the unit table",
        ),
    ):
        if found is not None and found != expected:
            raise ConfigError(
                key,
                f"{found}, expected {expected} ({what})",
                "remove the line or use the right file",
            )
    size = _memory_size(config, pretrained)
    conf, has_right = config.decoder_conf, config.decoder == "bitransformer"
    decoder: TransformerDecoder | BiTransformerDecoder | None = None
    if config.decoder != "none":
        left = _decoder(conf, size, num_units, num_blocks=conf.num_blocks)
        right = _decoder(conf, size, num_units, num_blocks=conf.r_num_blocks) if has_right else None
        decoder = left if right is None else BiTransformerDecoder(left, right)
    encoder = _encoder(config, cmvn, pretrained)
    head = (
        None
        if decoder is None
        else build_head(config.head_conf, size, num_units, tree, name=config.head)
    )
    right_head = (
        build_head(config.head_conf, size, num_units, tree, name=config.head) if has_right else None
    )
    ctc_head = build_head(
        config.ctc_conf.head_conf,
        size,
        num_units,
        ctc_tree,
        name=config.ctc_conf.head,
        section="ctc_conf.head_conf",
    )
    ctc = Ctc(ctc_head, blank=special.blank)
    model = AsrModel(encoder, decoder, head=head, right_head=right_head, ctc=ctc, special=special)
    weights = config.model_conf
    model.loss_weights = LossWeights(
        ctc=weights.trained_ctc_weight,
        reverse=weights.reverse_weight,
        smoothing=weights.lsm_weight,
        smoothing_kind=weights.lsm_kind,
        guide_width=weights.attention_guide_width,
        interctc=weights.interctc_weight,
        interctc_layer=weights.interctc_layer,
    )
    return model


def _memory_size(config: ExperimentConfig, pretrained: EncoderDescription | None) -> int:
    """The width of the memory. Raises ConfigError if the decoder cannot have it."""
    conf, heads = config.encoder_conf, config.decoder_conf.attention_heads
    if not isinstance(conf, PretrainedConf):
        return conf.output_size
    assert pretrained is not None
    size = memory_size(pretrained, conf)
    if config.decoder != "none" and size % heads:
        found = f"the encoder's width {size} is not divisible by {heads} heads"
        raise ConfigError(
            "decoder_conf.attention_heads", found, "change it, or encoder_conf.upper.output_size"
        )
    return size


def _encoder(
    config: ExperimentConfig, cmvn: Cmvn | None, pretrained: EncoderDescription | None
) -> SpeechEncoder:
    """The encoder.

    Raises DataError if the statistics are of other features, ConfigError if these are too few.
    """
    conf = config.encoder_conf
    if isinstance(conf, PretrainedConf):
        assert pretrained is not None
        upper = None if conf.upper is None else _stack(conf.upper, state_size(pretrained, conf))
        encoder = make_pretrained(pretrained, conf, upper)
        _check_interctc(config.model_conf.interctc_layer, encoder)
        return encoder
    feature_dim = build_frontend(config.dataset_conf).width
    if cmvn is not None and cmvn[0].shape != (feature_dim,):
        path, found = config.cmvn_conf.cmvn_file or "global_cmvn", cmvn[0].numel()
        what = f"statistics of {found} features, but the model has {feature_dim}"
        raise DataError(path, what, "compute it again with `wenet-hs cmvn`")
    fewest = FEWEST_MEL_BINS[conf.input_layer]
    if feature_dim < fewest:
        too_few = f"{feature_dim} features per frame, but input_layer: {conf.input_layer} needs at least {fewest}"
        raise ConfigError("dataset_conf.frontend_conf", too_few, "change one of them")
    return _stack(conf, feature_dim, cmvn)


def _check_interctc(layer: int, encoder: PretrainedEncoder) -> None:
    """Raises ConfigError if no such layer (from 1) is below the last, or if it has other frames
    than the memory.
    """
    is_cut = (
        encoder.conf.cache is not None or getattr(encoder.pretrained, "adapter", None) is not None
    )
    num_usable = 0 if is_cut and encoder.upper is None else max(0, encoder.num_layers - 1)
    if layer > num_usable:
        found = f"{layer}, but the number of layers that it can name (none with a cache or an adapter) is {num_usable}"
        raise ConfigError(
            "model_conf.interctc_layer", found, "set a lower one or 0, or add encoder_conf.upper"
        )


def _stack(
    conf: ConformerConf | TransformerConf, feature_dim: int, cmvn: Cmvn | None = None
) -> EncoderStack:
    return EncoderStack(
        _subsampling(conf, feature_dim),
        [_encoder_layer(conf) for _ in range(conf.num_blocks)],
        output_size=conf.output_size,
        global_cmvn=None if cmvn is None else GlobalCmvn(*cmvn),
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
        chunk_rule=_chunk_rule(conf),
    )


def _chunk_rule(conf: StackConf) -> ChunkRule | None:
    if not conf.use_dynamic_chunk:
        return ChunkRule(conf.static_chunk_size) if conf.static_chunk_size > 0 else None
    return ChunkRule(None, draws_left=conf.use_dynamic_left_chunk)


def _subsampling(conf: StackConf, feature_dim: int) -> Subsampling:
    positional = PositionalEncoding(
        conf.output_size, conf.positional_dropout_rate, conf.pos_enc_layer_type
    )
    if conf.input_layer == "linear":
        return LinearSubsampling(
            feature_dim, conf.output_size, dropout_rate=conf.dropout_rate, positional=positional
        )
    channels = conf.subsampling_conv_channels
    return Conv2dSubsampling(conf.input_layer, feature_dim, conf.output_size, positional, channels)


def _self_attention(conf: StackConf) -> MultiHeadAttention:
    kind = (
        RelPositionAttention
        if conf.selfattention_layer_type == "rel_selfattn"
        else MultiHeadAttention
    )
    return kind(conf.attention_heads, conf.output_size, dropout_rate=conf.attention_dropout_rate)


def _feed_forward(conf: StackConf | DecoderConf, size: int) -> FeedForward:
    return FeedForward(
        size, conf.linear_units, dropout_rate=conf.dropout_rate, activation=conf.activation_type
    )


def _encoder_layer(conf: ConformerConf | TransformerConf) -> nn.Module:
    size = conf.output_size
    if isinstance(conf, TransformerConf):
        return TransformerEncoderLayer(
            _self_attention(conf),
            _feed_forward(conf, size),
            dropout_rate=conf.dropout_rate,
            normalize_before=conf.normalize_before,
            norm_eps=conf.norm_eps,
        )
    convolution = ConvolutionModule(
        size,
        conf.cnn_module_kernel,
        activation=conf.activation_type,
        norm=conf.cnn_module_norm,
        is_causal=conf.causal,
    )
    return ConformerLayer(
        _self_attention(conf),
        _feed_forward(conf, size),
        feed_forward_macaron=_feed_forward(conf, size) if conf.macaron_style else None,
        conv_module=convolution if conf.use_cnn_module else None,
        dropout_rate=conf.dropout_rate,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
    )


def _decoder(
    conf: DecoderConf, size: int, num_units: int, *, num_blocks: int
) -> TransformerDecoder:
    layers = [
        TransformerDecoderLayer(
            MultiHeadAttention(
                conf.attention_heads, size, dropout_rate=conf.self_attention_dropout_rate
            ),
            MultiHeadAttention(
                conf.attention_heads, size, dropout_rate=conf.src_attention_dropout_rate
            ),
            _feed_forward(conf, size),
            dropout_rate=conf.dropout_rate,
            normalize_before=conf.normalize_before,
            norm_eps=conf.norm_eps,
        )
        for _ in range(num_blocks)
    ]
    positional = PositionalEncoding(size, conf.positional_dropout_rate)
    return TransformerDecoder(
        num_units,
        positional,
        layers,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
    )


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
        tree: for every head whose settings are a TreeHeadConf; a binary tree or a class tree is
            converted as needed.
        name: that of the head, for error messages about a head of an installed package.
        section: the section of `conf`, for error messages.

    Raises ConfigError if a setting does not fit the tree, or a package cannot build its head.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        match conf:
            case SoftmaxHeadConf():
                return SoftmaxHead(dim, num_units)
            case HSoftmaxHeadConf() | ClassHeadConf() | AdaptiveHeadConf():
                if tree is None:
                    raise ValueError(f"{section}: this head needs a tree")
                return _build_tree_head(conf, dim, num_units, tree, section)
            case _:
                return _build_extension_head(name, conf, dim, num_units, tree)


def _build_extension_head(
    name: str,
    conf: HeadConf,
    dim: int,
    num_units: int,
    tree: AnyTree | None,
) -> OutputHead:
    """A head of an installed package.

    Raises ConfigError if it cannot be built, or is no such head.
    """
    assert isinstance(conf, ExtensionHeadConf)  # `settings_class` has checked it
    with calling_extension("head", name, "`build` failed"):
        head = conf.build(dim, num_units, tree)
    if not isinstance(head, OutputHead):
        found = f"`build` returned {type(head).__name__}, not a wenet_hs.heads.base.OutputHead"
        raise wrong_object("head", name, found)
    sizes = (
        getattr(head, "dim", None),
        getattr(head, "num_units", None),
    )  # a constructor may forget them
    if sizes != (dim, num_units):
        found = f"`build` returned a head with dim {sizes[0]} and num_units {sizes[1]}"
        raise wrong_object("head", name, f"{found}, not {dim} and {num_units}")
    return head


def _build_tree_head(
    conf: HSoftmaxHeadConf | ClassHeadConf | AdaptiveHeadConf,
    dim: int,
    num_units: int,
    tree: AnyTree,
    section: str,
) -> OutputHead:
    match conf:
        case HSoftmaxHeadConf(bias=bias, sparse_grad=sparse_grad):
            return HSoftmaxHead(dim, tree, bias, sparse_grad=sparse_grad)
        case ClassHeadConf(sparse_grad=sparse_grad):
            if isinstance(tree, NaryTree) and conf.num_classes is not None:
                found = f"{conf.tree} already has classes"
                raise ConfigError(
                    f"{section}.num_classes", found, "remove it, or name a binary tree"
                )
            classes = (
                tree if isinstance(tree, NaryTree) else NaryTree.from_binary(tree, conf.num_classes)
            )
            return ClassHead(dim, classes, sparse_grad=sparse_grad)
        case AdaptiveHeadConf(cutoffs=cutoffs, div_value=div_value):
            if cutoffs is not None and cutoffs[-1] >= num_units:
                found = f"the last is {cutoffs[-1]}, but there are {num_units} units"
                raise ConfigError(f"{section}.cutoffs", found, "it must be below their number")
            return AdaptiveHead(dim, tree.frequencies, cutoffs, div_value)


def state_cmvn(state: Mapping[str, Tensor], config: ExperimentConfig) -> Cmvn | None:
    """The feature statistics in a state_dict, independent of the config.

    If only the config has statistics, the result is a placeholder, and load_weights reports what is
    missing.
    """
    found = state.get("encoder.global_cmvn.mean"), state.get("encoder.global_cmvn.istd")
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    feature_dim = build_frontend(config.dataset_conf).width
    return None if config.cmvn is None else (torch.zeros(feature_dim), torch.ones(feature_dim))
