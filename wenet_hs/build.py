# SPDX-License-Identifier: Apache-2.0
"""Builds models from a configuration and loads experiment folders."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.config.load import load_config
from wenet_hs.config.schema import (
    AdaptiveHeadConf,
    ClassHeadConf,
    DecoderConf,
    EncoderConf,
    ExperimentConfig,
    HeadConf,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
)
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.ctc import Ctc
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.kernels.search import has_triton
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.interop.weights import check_num_units, convert_state_dict, is_wenet, load_state, load_weights
from wenet_hs.model import AsrModel
from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.conformer import ConformerLayer, Encoder, GlobalCmvn, TransformerEncoderLayer
from wenet_hs.nn.convolution import ConvolutionModule
from wenet_hs.nn.layers import FeedForward
from wenet_hs.nn.positional import (
    AbsolutePositionalEncoding,
    NoPositionalEncoding,
    PositionalEncoding,
    RelativePositionalEncoding,
)
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder, TransformerDecoderLayer
from wenet_hs.text.tokenizer import Tokenizer, make_tokenizer
from wenet_hs.text.units import SpecialIds, UnitTable, check_special
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree, load_tree

AnyTree = Tree | NaryTree

TREE_FILES = {"head_conf": "tree.json", "ctc_conf.head_conf": "ctc_tree.json"}
"""The trees of an experiment folder, by the section that names them: the decoder's and the CTC branch's."""


def head_confs(config: ExperimentConfig) -> dict[str, HeadConf]:
    """The settings of the decoder's head and of the CTC branch's, by their dotted section."""
    return {"head_conf": config.head_conf, "ctc_conf.head_conf": config.ctc_conf.head_conf}


def tree_paths(config: ExperimentConfig) -> dict[str, str]:
    """The trees that a configuration names: section → path."""
    return {section: conf.tree for section, conf in head_confs(config).items() if not isinstance(conf, SoftmaxHeadConf)}


def check_routes(config: ExperimentConfig, device: torch.device) -> None:
    """Raise ConfigError where a head is to compute its costs or to search by kernels that this device does not have."""
    for section, conf in head_confs(config).items():
        if isinstance(conf, HSoftmaxHeadConf | ClassHeadConf) and conf.search == "best_first":
            is_tree = isinstance(conf, HSoftmaxHeadConf)
            if device.type != "cpu" and not (is_tree and device.type == "cuda" and has_triton()):
                other = "dense" if is_tree else "all"
                raise ConfigError(f"{section}.search: best_first does not run on {device.type}; use auto or {other}")
        if isinstance(conf, HSoftmaxHeadConf) and conf.route in ("path", "nodes") and device.type != "cpu":
            raise ConfigError(
                f"{section}.route: {conf.route} runs on a CPU alone, here is {device.type}; use auto or "
                f"torch-{conf.route}"
            )


def read_tree(path: Path, units: Sequence[str]) -> AnyTree:
    """The tree in a file. Raises DataError if it is damaged or not over these units."""
    tree = load_tree(path)
    check_tree(tree, len(units), units, str(path))
    return tree


def build_head(
    conf: HeadConf,
    dim: int,
    num_units: int,
    *,
    tree: AnyTree | None = None,
    units: Sequence[str] | None = None,
    section: str = "head_conf",
) -> OutputHead:
    """A head with fresh weights.

    Args:
        tree: for every head but the softmax; binary or of classes, the head makes of it what it needs.
        units: of the unit table, so that a tree of other units is refused; without them only its size is compared.
        section: where `conf` stands, for error messages.
    Raises: DataError where the tree is of other units, ConfigError where a setting does not fit it.
    """
    if isinstance(conf, SoftmaxHeadConf):
        return SoftmaxHead(dim, num_units)
    if tree is None:
        raise ValueError(f"{section}: this head is built with a tree")
    check_tree(tree, num_units, units, conf.tree)
    match conf:
        case HSoftmaxHeadConf(bias=bias, sparse_grad=sparse_grad, route=route, search=search):
            binary = tree.binary() if isinstance(tree, NaryTree) else tree
            return HSoftmaxHead(dim, binary, bias, sparse_grad=sparse_grad, route=route, search=search)
        case ClassHeadConf(sparse_grad=sparse_grad, route=route, search=search):
            classes = _classes(tree, conf, section)
            return ClassHead(dim, classes, sparse_grad=sparse_grad, route=route, search=search)
        case AdaptiveHeadConf(cutoffs=cutoffs, div_value=div_value):
            if cutoffs is not None and cutoffs[-1] >= num_units:
                raise ConfigError(
                    f"{section}.cutoffs: the last is {cutoffs[-1]}, but there are {num_units} units; it must be below "
                    "their number"
                )
            return AdaptiveHead(dim, tree.frequencies, cutoffs, div_value)


def _classes(tree: AnyTree, conf: ClassHeadConf, section: str) -> NaryTree:
    if isinstance(tree, Tree):
        return NaryTree.from_binary(tree, conf.num_classes)
    if conf.num_classes is not None:
        raise ConfigError(
            f"{section}.num_classes: {conf.tree} has its classes already; remove it, or name a binary tree"
        )
    return tree


def check_tree(tree: AnyTree, num_units: int, units: Sequence[str] | None, path: str) -> None:
    """The leaf of unit i must be unit i of the table. Raises DataError naming the first difference."""
    remedy = "build the tree again from this unit table with `wenet-hs tree build`"
    if tree.num_units != num_units:
        raise DataError(f"{path}: a tree over {tree.num_units} units, but the unit table has {num_units}; {remedy}")
    for unit_id, (leaf, unit) in enumerate(zip(tree.units, units or tree.units, strict=True)):
        if leaf != unit:
            raise DataError(
                f"{path}: leaf {unit_id} is {leaf!r}, but unit {unit_id} of the table is {unit!r}; {remedy}"
            )


__all__ = [
    "Experiment",
    "build_from_folder",
    "build_model",
    "check_files",
    "check_old_convention",
    "load_experiment",
    "load_state",
    "state_cmvn",
]

Cmvn = tuple[Tensor, Tensor]
"""Mean and inverse standard deviation of the features, (F,) each."""

_POSITIONAL: dict[str, type[PositionalEncoding]] = {
    "rel_pos": RelativePositionalEncoding,
    "abs_pos": AbsolutePositionalEncoding,
    "no_pos": NoPositionalEncoding,
}


# ---- from a configuration to a model


def build_model(
    config: ExperimentConfig,
    num_units: int,
    special: SpecialIds,
    *,
    feature_dim: int | None = None,
    tree: AnyTree | None = None,
    ctc_tree: AnyTree | None = None,
    units: Sequence[str] | None = None,
    cmvn: Cmvn | None = None,
) -> AsrModel:
    """A model with fresh weights, which depend on torch's random state alone.

    Args:
        num_units: size of the output layer, V.
        feature_dim: features a frame, F; None for the configuration's `num_mel_bins`.
        tree: of every `head` but the softmax; binary or of classes.
        ctc_tree: the same of `ctc_conf.head`.
        units: of the unit table, so that a tree of other units is refused; without them only its size is compared.
        cmvn: statistics for `encoder.global_cmvn`; None for none.

    Raises: ConfigError, or DataError where tree or cmvn do not fit.
    """
    feature_dim = feature_dim or config.dataset_conf.fbank_conf.num_mel_bins
    _check_sizes(config, num_units, special)
    if cmvn is not None and len(cmvn[0]) != feature_dim:
        raise DataError(
            f"{config.cmvn_conf.cmvn_file or 'global_cmvn'}: statistics of {len(cmvn[0])} features, but the model has "
            f"{feature_dim}; compute it again with `wenet-hs cmvn`"
        )
    size = config.encoder_conf.output_size
    decoder = _decoder(config.decoder, config.decoder_conf, size, num_units)
    encoder = _encoder(config.encoder, config.encoder_conf, feature_dim, cmvn=cmvn)
    has_right = isinstance(decoder, BiTransformerDecoder)
    head = build_head(config.head_conf, size, num_units, tree=tree, units=units)
    right_head = build_head(config.head_conf, size, num_units, tree=tree, units=units) if has_right else None
    ctc_head = build_head(
        config.ctc_conf.head_conf, size, num_units, tree=ctc_tree, units=units, section="ctc_conf.head_conf"
    )
    ctc = Ctc(ctc_head, blank=special.blank)
    model = AsrModel(encoder, decoder, head=head, right_head=right_head, ctc=ctc, special=special)
    model.ctc_weight = config.model_conf.ctc_weight
    model.reverse_weight = config.model_conf.reverse_weight
    model.lsm_weight = config.model_conf.lsm_weight
    model.lsm_kind = config.model_conf.lsm_kind
    model.attention_guide_width = config.model_conf.attention_guide_width
    return model


def _check_sizes(config: ExperimentConfig, num_units: int, special: SpecialIds) -> None:
    """What WeNet writes into a train.yaml must be true of the model that is built from it."""
    for key, found, expected, what in (
        ("output_dim", config.output_dim, num_units, "the unit table has that many units"),
        ("ctc_conf.ctc_blank_id", config.ctc_conf.ctc_blank_id, special.blank, "<blank> of the unit table"),
    ):
        if found is not None and found != expected:
            raise ConfigError(f"{key}: {found}, expected {expected} ({what}); remove the line or use the right file")


def _encoder(kind: str, conf: EncoderConf, feature_dim: int, *, cmvn: Cmvn | None) -> Encoder:
    layer = _conformer_layer if kind == "conformer" else _transformer_layer
    return Encoder(
        _subsampling(conf, feature_dim),
        [layer(conf) for _ in range(conf.num_blocks)],
        output_size=conf.output_size,
        global_cmvn=None if cmvn is None else GlobalCmvn(*cmvn),
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
    )


def _subsampling(conf: EncoderConf, feature_dim: int) -> Subsampling:
    positional = _POSITIONAL[conf.pos_enc_layer_type](conf.output_size, conf.positional_dropout_rate)
    if conf.input_layer == "linear":
        return LinearSubsampling(feature_dim, conf.output_size, dropout_rate=conf.dropout_rate, positional=positional)
    return Conv2dSubsampling(conf.input_layer, feature_dim, conf.output_size, positional)


def _self_attention(conf: EncoderConf) -> MultiHeadAttention:
    kind = RelPositionAttention if conf.selfattention_layer_type == "rel_selfattn" else MultiHeadAttention
    return kind(conf.attention_heads, conf.output_size, dropout_rate=conf.attention_dropout_rate)


def _feed_forward(conf: EncoderConf | DecoderConf, size: int) -> FeedForward:
    return FeedForward(size, conf.linear_units, dropout_rate=conf.dropout_rate, activation=conf.activation_type)


def _conformer_layer(conf: EncoderConf) -> ConformerLayer:
    size = conf.output_size
    convolution = ConvolutionModule(
        size, conf.cnn_module_kernel, activation=conf.activation_type, norm=conf.cnn_module_norm
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


def _transformer_layer(conf: EncoderConf) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(
        _self_attention(conf),
        _feed_forward(conf, conf.output_size),
        dropout_rate=conf.dropout_rate,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
    )


def _decoder(kind: str, conf: DecoderConf, size: int, num_units: int) -> TransformerDecoder | BiTransformerDecoder:
    left = _one_decoder(conf, size, num_units, num_blocks=conf.num_blocks)
    if kind == "transformer":
        return left
    return BiTransformerDecoder(left, _one_decoder(conf, size, num_units, num_blocks=conf.r_num_blocks))


def _one_decoder(conf: DecoderConf, size: int, num_units: int, *, num_blocks: int) -> TransformerDecoder:
    layers = [
        TransformerDecoderLayer(
            MultiHeadAttention(conf.attention_heads, size, dropout_rate=conf.self_attention_dropout_rate),
            MultiHeadAttention(conf.attention_heads, size, dropout_rate=conf.src_attention_dropout_rate),
            _feed_forward(conf, size),
            dropout_rate=conf.dropout_rate,
            normalize_before=conf.normalize_before,
            norm_eps=conf.norm_eps,
        )
        for _ in range(num_blocks)
    ]
    positional = AbsolutePositionalEncoding(size, conf.positional_dropout_rate)
    return TransformerDecoder(
        num_units,
        positional,
        layers,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
    )


def state_cmvn(state: Mapping[str, Tensor], config: ExperimentConfig) -> Cmvn | None:
    """The statistics of the features in a state_dict, which stand there whatever the configuration says of them.

    Where the configuration has them and the weights do not, a placeholder: load_weights will then name what is missing.
    """
    found = state.get("encoder.global_cmvn.mean"), state.get("encoder.global_cmvn.istd")
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    feature_dim = config.dataset_conf.fbank_conf.num_mel_bins
    return None if config.cmvn is None else (torch.zeros(feature_dim), torch.ones(feature_dim))


# ---- experiment folders

SHA256_OF = "sha256 of "
"""Keys of a `train.yaml`'s provenance that begin so are followed by the name of a file of the folder."""


@dataclass(frozen=True)
class Experiment:
    """A trained model and what belongs to it."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: AsrModel
    """In evaluation mode."""
    model_dir: Path


def load_experiment(
    model_dir: Path | str, *, checkpoint: Path | str | None = None, device: torch.device | str = "cpu"
) -> Experiment:
    """Load an experiment folder, ours or WeNet's (`train.yaml final.pt units.txt`), wherever it was moved to.

    Args:
        checkpoint: weights instead of `final.pt`: a file, or a checkpoint folder.

    Raises: CheckpointError, DataError or ConfigError naming the file that is missing, damaged or of another model.
    """
    model_dir = Path(model_dir)
    config = load_config(_in_folder(model_dir, "train.yaml"))
    check_routes(config, torch.device(device))
    table_path = _in_folder(model_dir, config.tokenizer_conf.symbol_table_path or "units.txt", "units.txt")
    check_files(model_dir, config)
    table, tokenizer = read_units(config, table_path, where=str(model_dir / "train.yaml"))
    path = _in_folder(model_dir, "final.pt") if checkpoint is None else Path(checkpoint)
    state = load_state(path)
    if is_wenet(state):
        check_old_convention(config, table, table_path)
        state = convert_state_dict(state)
    check_num_units(state, len(table), str(path), str(table_path))
    model = build_from_folder(config, table, model_dir, cmvn=state_cmvn(state, config))
    load_weights(model, state, str(path))
    return Experiment(config, tokenizer, model.to(device).eval(), model_dir)


def read_units(config: ExperimentConfig, table_path: Path, *, where: str) -> tuple[UnitTable, Tokenizer]:
    """The unit table of an experiment folder, and the tokenizer to its units, with the BPE model beside the table.

    Args:
        where: the file of the config, for error messages.

    Raises: DataError or ConfigError where the table is damaged, or is not the one the config was written for.
    """
    table = UnitTable.read(table_path)
    special = {str(name): unit_id for name, unit_id in (config.tokenizer_conf.special_tokens or {}).items()}
    check_special(table, special, f"{where}: tokenizer_conf")
    bpe = config.tokenizer_conf.bpe_path
    bpe_model = None if bpe is None else _in_folder(table_path.parent, bpe)
    return table, make_tokenizer(config.tokenizer, table, bpe_model)


def build_from_folder(
    config: ExperimentConfig, table: UnitTable, folder: Path, *, cmvn: Cmvn | None = None
) -> AsrModel:
    """A model with fresh weights over the units of `table`, with the trees that the config names, found in `folder`.

    Raises: as `build_model`; CheckpointError where a tree is missing.
    """
    trees = {section: read_tree(_in_folder(folder, path), table.units) for section, path in tree_paths(config).items()}
    return build_model(
        config,
        len(table),
        table.special,
        tree=trees.get("head_conf"),
        ctc_tree=trees.get("ctc_conf.head_conf"),
        units=table.units,
        cmvn=cmvn,
    )


def check_files(model_dir: Path, config: ExperimentConfig) -> None:
    """Units and trees must be those of the training: with others of equal number every word would be wrong.

    Raises CheckpointError where the `train.yaml` of the folder has another sum of one.
    """
    for name in ("units.txt", *TREE_FILES.values(), "bpe.model"):
        expected, path = config.provenance.get(SHA256_OF + name), model_dir / name
        if expected and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise CheckpointError(
                f"{path}: changed since the training (train.yaml has its sha256); put the old file back"
            )


def _in_folder(model_dir: Path, *names: str) -> Path:
    """The first of `names`, by its base name, that is in the folder. Raises CheckpointError if none is."""
    base_names = [Path(name).name for name in names]
    for name in base_names:
        if (model_dir / name).is_file():
            return model_dir / name
    if not model_dir.is_dir():
        raise CheckpointError(f"{model_dir}: no such folder; give the --model_dir of a training")
    command = _MADE_BY.get(base_names[0], "wenet-hs train")
    raise CheckpointError(
        f"{model_dir / base_names[0]}: no such file; `{command} --model_dir {model_dir}` writes it, "
        "or copy it from the model's own folder"
    )


_MADE_BY = {"final.pt": "wenet-hs average"}


def check_old_convention(config: ExperimentConfig, table: UnitTable, table_path: Path) -> None:
    """Without `special_tokens` WeNet trains with <sos/eos> = V - 1, whatever the table calls that unit.

    Raises CheckpointError where a WeNet model's table calls another unit so.
    """
    last = len(table) - 1
    if config.tokenizer_conf.special_tokens is None and table.special.eos != last:
        raise CheckpointError(
            f"{table_path}: <sos/eos> is {table.special.eos}, but WeNet trained this model with {last}, as its "
            "train.yaml has no tokenizer_conf.special_tokens; use the model's own units.txt, or add special_tokens"
        )
