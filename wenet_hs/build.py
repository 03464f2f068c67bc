# SPDX-License-Identifier: Apache-2.0
"""Builds models from configs and loads experiment folders. Only this file knows both configs and modules."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.config.heads import (
    AdaptiveHeadConf,
    ClassHeadConf,
    HeadConf,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
    TreeHeadConf,
)
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import DecoderConf, EncoderConf, ExperimentConfig, TrainingConfig
from wenet_hs.curves import is_model_overfitted
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.heads.adaptive import AdaptiveHead
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.class_softmax import ClassHead
from wenet_hs.heads.ctc import Ctc
from wenet_hs.heads.hsoftmax import HSoftmaxHead
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.interop.weights import check_num_units, convert_state_dict, is_wenet, load_state, load_weights
from wenet_hs.model import AsrModel
from wenet_hs.nn.attention import MultiHeadAttention, RelPositionAttention
from wenet_hs.nn.conformer import ConformerLayer, ConvolutionModule, Encoder, GlobalCmvn, TransformerEncoderLayer
from wenet_hs.nn.layers import FeedForward, PositionalEncoding
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder, TransformerDecoderLayer
from wenet_hs.text.tokenizer import Tokenizer, make_tokenizer
from wenet_hs.text.units import SpecialIds, UnitTable, check_special
from wenet_hs.tree.tree import NaryTree, Tree, load_tree

AnyTree = Tree | NaryTree
Cmvn = tuple[Tensor, Tensor]
"""Mean and inverse standard deviation of the features, (F,) each."""


# ---- models


def build_model(
    config: ExperimentConfig,
    num_units: int,
    special: SpecialIds,
    *,
    tree: AnyTree | None = None,
    ctc_tree: AnyTree | None = None,
    cmvn: Cmvn | None = None,
) -> AsrModel:
    """Builds a model with new weights, which depend only on torch's random state.

    Args:
        num_units: size of the output layer, V.
        tree: for every `head` except the softmax; a binary tree or a class tree over the same units.
        ctc_tree: the same for `ctc_conf.head`.
        cmvn: statistics for `encoder.global_cmvn`, or None.

    Raises ConfigError if a setting does not fit, DataError if cmvn does not.
    """
    feature_dim = config.dataset_conf.fbank_conf.num_mel_bins
    for key, found, expected, what in (  # WeNet writes these sizes into a train.yaml
        ("output_dim", config.output_dim, num_units, "the unit table has that many units"),
        ("ctc_conf.ctc_blank_id", config.ctc_conf.ctc_blank_id, special.blank, "<blank> of the unit table"),
    ):
        if found is not None and found != expected:
            raise ConfigError(f"{key}: {found}, expected {expected} ({what}); remove the line or use the right file")
    if cmvn is not None and len(cmvn[0]) != feature_dim:
        path, found = config.cmvn_conf.cmvn_file or "global_cmvn", len(cmvn[0])
        what = f"{path}: statistics of {found} features, but the model has {feature_dim}"
        raise DataError(f"{what}; compute it again with `wenet-hs cmvn`")
    size = config.encoder_conf.output_size
    conf, has_right = config.decoder_conf, config.decoder == "bitransformer"
    left = _decoder(conf, size, num_units, num_blocks=conf.num_blocks)
    right = _decoder(conf, size, num_units, num_blocks=conf.r_num_blocks) if has_right else None
    decoder = left if right is None else BiTransformerDecoder(left, right)
    encoder = _encoder(config.encoder, config.encoder_conf, feature_dim, cmvn=cmvn)
    head = build_head(config.head_conf, size, num_units, tree)
    right_head = build_head(config.head_conf, size, num_units, tree) if has_right else None
    ctc_head = build_head(config.ctc_conf.head_conf, size, num_units, ctc_tree, section="ctc_conf.head_conf")
    ctc = Ctc(ctc_head, blank=special.blank)
    model = AsrModel(encoder, decoder, head=head, right_head=right_head, ctc=ctc, special=special)
    model.ctc_weight = config.model_conf.ctc_weight
    model.reverse_weight = config.model_conf.reverse_weight
    model.lsm_weight = config.model_conf.lsm_weight
    model.lsm_kind = config.model_conf.lsm_kind
    model.attention_guide_width = config.model_conf.attention_guide_width
    model.interctc_weight, model.interctc_layer = config.model_conf.interctc_weight, config.model_conf.interctc_layer
    return model


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
    positional = PositionalEncoding(conf.output_size, conf.positional_dropout_rate, conf.pos_enc_layer_type)
    if conf.input_layer == "linear":
        return LinearSubsampling(feature_dim, conf.output_size, dropout_rate=conf.dropout_rate, positional=positional)
    channels = conf.subsampling_conv_channels
    return Conv2dSubsampling(conf.input_layer, feature_dim, conf.output_size, positional, channels)


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


def _decoder(conf: DecoderConf, size: int, num_units: int, *, num_blocks: int) -> TransformerDecoder:
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
    positional = PositionalEncoding(size, conf.positional_dropout_rate)
    return TransformerDecoder(
        num_units,
        positional,
        layers,
        normalize_before=conf.normalize_before,
        norm_eps=conf.norm_eps,
        recompute=conf.gradient_checkpointing,
    )


# ---- heads

TREE_FILES = {"head_conf": "tree.json", "ctc_conf.head_conf": "ctc_tree.json"}
"""Section that names a tree → its file in an experiment folder: the decoder's tree and the CTC branch's."""


def head_confs(config: TrainingConfig) -> dict[str, HeadConf]:
    """Dotted section → its settings, for the head, and that of a recogniser's CTC branch."""
    of_ctc = {"ctc_conf.head_conf": config.ctc_conf.head_conf} if isinstance(config, ExperimentConfig) else {}
    return {"head_conf": config.head_conf, **of_ctc}


def tree_paths(config: TrainingConfig) -> dict[str, str]:
    """Section → path, for the trees that a config names."""
    return {section: conf.tree for section, conf in head_confs(config).items() if isinstance(conf, TreeHeadConf)}


def build_head(
    conf: HeadConf, dim: int, num_units: int, tree: AnyTree | None, *, section: str = "head_conf"
) -> OutputHead:
    """Builds a head with new weights, drawn with a seed of their own.

    torch's random state then continues as if only that seed had been drawn: all heads of one experiment seed leave the
    same random numbers to the modules built after them and to training.

    Args:
        tree: for every head except the softmax; a binary tree or a class tree is converted as needed.
        section: the section of `conf`, for error messages.

    Raises ConfigError if a setting does not fit the tree.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(conf, SoftmaxHeadConf):
            return SoftmaxHead(dim, num_units)
        if tree is None:
            raise ValueError(f"{section}: this head needs a tree")
        match conf:
            case HSoftmaxHeadConf(bias=bias, sparse_grad=sparse_grad):
                return HSoftmaxHead(dim, tree, bias, sparse_grad=sparse_grad)
            case ClassHeadConf(sparse_grad=sparse_grad):
                if isinstance(tree, NaryTree) and conf.num_classes is not None:
                    what = f"{section}.num_classes: {conf.tree} already has classes"
                    raise ConfigError(f"{what}; remove it, or name a binary tree")
                classes = tree if isinstance(tree, NaryTree) else NaryTree.from_binary(tree, conf.num_classes)
                return ClassHead(dim, classes, sparse_grad=sparse_grad)
            case AdaptiveHeadConf(cutoffs=cutoffs, div_value=div_value):
                if cutoffs is not None and cutoffs[-1] >= num_units:
                    what = f"{section}.cutoffs: the last is {cutoffs[-1]}, but there are {num_units} units"
                    raise ConfigError(f"{what}; it must be below their number")
                return AdaptiveHead(dim, tree.frequencies, cutoffs, div_value)


def check_tree(tree: AnyTree, units: Sequence[str], path: Path) -> None:
    """Raises DataError with the first difference if leaf i of the tree is not unit i of the table."""
    remedy = "build the tree again from this unit table with `wenet-hs tree build`"
    if tree.num_units != len(units):
        raise DataError(f"{path}: a tree over {tree.num_units} units, but the unit table has {len(units)}; {remedy}")
    for unit_id, (leaf, unit) in enumerate(zip(tree.units, units, strict=True)):
        if leaf != unit:
            what = f"{path}: leaf {unit_id} is {leaf!r}, but unit {unit_id} of the table is {unit!r}"
            raise DataError(f"{what}; {remedy}")


# ---- experiment folders


def state_cmvn(state: Mapping[str, Tensor], config: ExperimentConfig) -> Cmvn | None:
    """The feature statistics in a state_dict, independent of the config.

    If only the config has statistics, the result is a placeholder, and load_weights reports what is missing.
    """
    found = state.get("encoder.global_cmvn.mean"), state.get("encoder.global_cmvn.istd")
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    feature_dim = config.dataset_conf.fbank_conf.num_mel_bins
    return None if config.cmvn is None else (torch.zeros(feature_dim), torch.ones(feature_dim))


SHA256_OF = "sha256 of "
"""Prefix of the keys in the provenance of a `train.yaml` that end with the name of a file of the folder."""


@dataclass(frozen=True)
class Experiment:
    """A trained model with its config and tokenizer."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: AsrModel
    """In evaluation mode."""
    model_dir: Path
    is_overfitted: bool = False
    """By the records of its training; its confidences are too high then."""


def load_experiment(
    model_dir: Path | str, *, checkpoint: Path | str | None = None, device: torch.device | str = "cpu"
) -> Experiment:
    """Loads an experiment folder, ours or WeNet's (`train.yaml final.pt units.txt`). It may have been moved.

    `checkpoint`: weights instead of `final.pt`: a file, or a checkpoint folder.

    Raises CheckpointError, DataError or ConfigError with the file that is missing, damaged or of another model.
    """
    model_dir = Path(model_dir)
    config = load_config(in_folder(model_dir, "train.yaml"))
    table_path = in_folder(model_dir, config.tokenizer_conf.symbol_table_path or "units.txt", "units.txt")
    check_files(model_dir, config)
    table, tokenizer = read_units(config, table_path, where=str(model_dir / "train.yaml"))
    path = in_folder(model_dir, "final.pt") if checkpoint is None else Path(checkpoint)
    state = load_state(path)
    if is_wenet(state):
        check_old_convention(config, table, table_path)
        state = convert_state_dict(state)
    check_num_units(state, len(table), str(path), str(table_path))
    model = build_from_folder(config, table, model_dir, cmvn=state_cmvn(state, config))
    load_weights(model, state, str(path))
    return Experiment(config, tokenizer, model.to(device).eval(), model_dir, is_model_overfitted(model_dir, path))


def read_units(config: TrainingConfig, table_path: Path, *, where: str) -> tuple[UnitTable, Tokenizer]:
    """Reads the unit table of an experiment folder, with its tokenizer; a BPE model is in the same folder.

    `where`: the file of the config, for error messages.

    Raises DataError or ConfigError if the table is damaged, or is not the one the config was written for.
    """
    table = UnitTable.read(table_path)
    check_special(table, config.tokenizer_conf.special_tokens, f"{where}: tokenizer_conf")
    bpe = config.tokenizer_conf.bpe_path
    bpe_model = None if bpe is None else in_folder(table_path.parent, bpe, made_by=config.trained_by)
    return table, make_tokenizer(config.tokenizer, table, bpe_model)


def build_from_folder(
    config: ExperimentConfig, table: UnitTable, folder: Path, *, cmvn: Cmvn | None = None
) -> AsrModel:
    """Builds a model with new weights over the units of `table`, with the trees that the config names, from `folder`.

    Raises what `build_model` and `load_trees` raise.
    """
    trees = load_trees(config, table, folder)
    of_head = {"tree": trees.get("head_conf"), "ctc_tree": trees.get("ctc_conf.head_conf")}
    return build_model(config, len(table), table.special, cmvn=cmvn, **of_head)


def load_trees(config: TrainingConfig, table: UnitTable, folder: Path) -> dict[str, AnyTree]:
    """The trees that the config names, from `folder`, by section.

    Raises CheckpointError if a tree is missing, and DataError if it is damaged, not over the units of `table`, or built
    with another tokenizer.
    """
    trees = {}
    for section, name in tree_paths(config).items():
        path = in_folder(folder, name, made_by=config.trained_by)
        trees[section] = tree = load_tree(path)
        check_tree(tree, table.units, path)
        built_with = tree.options.get("tokenizer", config.tokenizer)
        if built_with != config.tokenizer:
            what = f"built with --tokenizer {built_with}, but the config has tokenizer: {config.tokenizer}"
            raise DataError(f"{path}: {what}; set the same one in both")
    return trees


def check_files(model_dir: Path, config: TrainingConfig) -> None:
    """Raises CheckpointError if units, tree or BPE model are not those of the training, by the sums in `train.yaml`.

    With other units of the same number every word would be wrong.
    """
    for name in ("units.txt", *TREE_FILES.values(), "bpe.model"):
        expected, path = config.provenance.get(SHA256_OF + name), model_dir / name
        if expected and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise CheckpointError(f"{path}: changed since the training (sha256 in train.yaml); put the old file back")


def in_folder(model_dir: Path, *names: str, made_by: str = "train") -> Path:
    """The first file of the folder with the base name of one of `names`. Raises CheckpointError if there is none."""
    base_names = [Path(name).name for name in names]
    for name in base_names:
        if (model_dir / name).is_file():
            return model_dir / name
    if not model_dir.is_dir():
        found = "a file" if model_dir.is_file() else "no such folder"
        raise CheckpointError(f"{model_dir}: {found}; give the --model_dir of a training")
    command = "average" if base_names[0] == "final.pt" and made_by == "train" else made_by
    what_to_do = f"`wenet-hs {command} --model_dir {model_dir}` writes it, or copy it from the folder of the model"
    raise CheckpointError(f"{model_dir / base_names[0]}: no such file; {what_to_do}")


def check_old_convention(config: ExperimentConfig, table: UnitTable, table_path: Path) -> None:
    """Raises CheckpointError if <sos/eos> of a WeNet model's table is not V - 1.

    Without `special_tokens` WeNet trains with V - 1, even if the table has another unit there.
    """
    last = len(table) - 1
    if config.tokenizer_conf.special_tokens is None and table.special.eos != last:
        what = f"{table_path}: <sos/eos> is {table.special.eos}, but WeNet trained this model with {last}"
        why = "its train.yaml has no tokenizer_conf.special_tokens"
        raise CheckpointError(f"{what} ({why}); use the units.txt of the model, or add special_tokens")
