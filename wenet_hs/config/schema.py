# SPDX-License-Identifier: Apache-2.0
"""All settings of an experiment, with WeNet's names and defaults.

Those of data, encoders, heads and the optimizer are in modules of their own. The end of this module
has the rules which settings may stand together.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from wenet_hs.base.extensions import Extension, find_extensions
from wenet_hs.config.dataset import FRONTENDS, DatasetConf, FbankConf, ResampleConf
from wenet_hs.config.encoders import (
    FEWEST_MEL_BINS,
    Activation,
    ConformerConf,
    EncoderConf,
    EncoderKind,
    LayersConf,
    PretrainedConf,
    StackConf,
    read_encoder,
)
from wenet_hs.config.heads import (
    HEADS,
    ClassHeadConf,
    HeadConf,
    HeadKind,
    HSoftmaxHeadConf,
    SoftmaxHeadConf,
    read_head,
)
from wenet_hs.config.optim import EarlyStoppingConf, Metric, OptimConf, SchedulerConf
from wenet_hs.config.section import (
    BelowOne,
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    FreeOnResume,
    Positive,
    PositiveOrZero,
    Section,
)

SpecialUnit = Literal["<blank>", "<unk>", "<sos>", "<eos>"]


# ---- the network


class DecoderConf(LayersConf):
    """The attention decoder. Its width is the encoder's."""

    r_num_blocks: CountOrZero = 0
    """Number of layers of the right-to-left decoder; for `decoder: bitransformer` only."""
    self_attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights over the previous units."""
    src_attention_dropout_rate: BelowOne = 0.0
    """Dropout of the attention weights over the encoder output."""
    activation_type: Activation = "relu"
    """Activation function of the feed-forward layers."""


class CtcConf(Section):
    """The CTC branch."""

    ctc_blank_id: CountOrZero | None = None
    """Id of the blank; null: that of `<blank>` in the unit table."""
    head: HeadKind = "softmax"
    """Output layer of the CTC branch; the same kinds as the decoder's."""
    head_conf: HeadConf = Field(default_factory=SoftmaxHeadConf)
    """Its settings. A tree for CTC must include the blank: `wenet-hs tree build --blank_share`."""

    _head_selects = field_validator("head_conf", mode="before")(read_head)


class TokenizerConf(Section):
    """Conversion of text to units and back."""

    symbol_table_path: str | None = None
    """Path of units.txt."""
    bpe_path: str | None = None
    """Path of the sentencepiece model; for `tokenizer: bpe` only."""
    special_tokens: dict[SpecialUnit, CountOrZero] | None = None
    """Ids of `<blank>`, `<unk>`, `<sos>` and `<eos>`; null: those of the unit table."""


class CmvnConf(Section):
    """Normalization of the features with the statistics of the training set."""

    cmvn_file: str | None = None
    """Path of global_cmvn."""


class ModelConf(Section):
    """The weights of the losses."""

    ctc_weight: Fraction = 0.5
    """Weight of the CTC loss; the attention loss has the rest.

    With `decoder: none` it is 1, also by default.
    """
    ctc_weight_final: Fraction | None = None
    """Weight of the CTC loss from step `ctc_weight_steps` on, after a linear change; null: it is
    constant.
    """
    ctc_weight_steps: CountOrZero = 0
    """Optimizer steps from `ctc_weight` to `ctc_weight_final`."""
    reverse_weight: Fraction = 0.0
    """Weight of the right-to-left decoder in the attention loss; for `decoder: bitransformer` only."""
    lsm_weight: BelowOne = 0.0
    """Label smoothing: probability mass that is spread over the other units."""
    lsm_kind: Literal["leaf", "node"] = "leaf"
    """`leaf`: over all other units, as in WeNet; `node`: over the other branches at each node of
    the target's path.
    """
    ctc_only_steps: CountOrZero = 0
    """Optimizer steps at the start that train only the encoder, with CTC.

    The schedules below begin after them.
    """
    attention_guide: PositiveOrZero = 0.0
    """Weight of the guided attention penalty (nn/transformer.py) at the decoder's first step; 0:
    none, as in WeNet.
    """
    attention_guide_steps: CountOrZero = 0
    """Optimizer steps of the decoder in which that weight falls linearly to 0."""
    attention_guide_width: Positive = 0.1
    """Distance from the diagonal that the penalty tolerates, as a fraction of the utterance."""
    interctc_weight: Fraction = 0.0
    """Share of a lower encoder layer in the CTC loss: intermediate CTC (Lee and Watanabe 2021)."""
    interctc_layer: CountOrZero = 0
    """The number of that layer, from 1 to below `encoder_conf.num_blocks`."""

    @property
    def last_ctc_weight(self) -> float:
        """Weight of the CTC loss at the end of its change, if it changes."""
        return self.ctc_weight if self.ctc_weight_final is None else self.ctc_weight_final

    @property
    def trained_ctc_weight(self) -> float:
        """The last weight of the CTC loss that is not 0.

        0 if it is always 0: the CTC branch is then untrained and of no use in recognition.
        """
        return self.last_ctc_weight or self.ctc_weight

    def conflicts(self) -> Iterator[Conflict]:
        """Weights without the steps or the layer that they need, and these without a weight."""
        if self.attention_guide and not self.attention_guide_steps:
            yield "attention_guide_steps", "must be at least 1 where attention_guide is given"
        if self.ctc_weight_final is not None and not self.ctc_weight_steps:
            yield "ctc_weight_steps", "must be at least 1 where ctc_weight_final is given"
        if self.ctc_weight_final is None and self.ctc_weight_steps:
            yield (
                "ctc_weight_steps",
                "has no effect without ctc_weight_final; add it or remove this",
            )
        if bool(self.interctc_weight) != bool(self.interctc_layer):
            yield "interctc_layer", "needs interctc_weight, and the reverse; give both or none"


# ---- training


@dataclass(frozen=True, kw_only=True)
class _KindDefaults:
    """Defaults of a section that differ if a setting beside it has a certain value."""

    setting: str
    value: str
    defaults: Mapping[str, Any]


_DEFAULTS_BY_SECTION = {
    "optim_conf": _KindDefaults(setting="optim", value="adamw", defaults={"weight_decay": 0.01}),
    "model_conf": _KindDefaults(setting="decoder", value="none", defaults={"ctc_weight": 1.0}),
}


def defaults_of_kinds(config: "TrainingConfig") -> dict[str, Any]:
    """The defaults by dotted key that follow from a kind of this config, such as its optimizer.

    With `optim: adamw` these are `{"optim_conf.weight_decay": 0.01}`.
    """
    defaults: dict[str, Any] = {}
    for section, of_kind in _DEFAULTS_BY_SECTION.items():
        kind = getattr(config, of_kind.setting, None)  # None: a language model has no `decoder`
        if kind == of_kind.value:
            for key, value in of_kind.defaults.items():
                defaults[f"{section}.{key}"] = value
    return defaults


def _with_defaults_of_kind(value: Any, info: ValidationInfo) -> Any:
    """The value of a section, with the defaults of `_DEFAULTS_BY_SECTION`.

    They follow from a setting that is validated before, such as `optim` for `optim_conf`. This runs
    before the section itself is validated: `value` is a section, a dictionary, None for an empty
    section, or anything else, which stays as it is and is refused by the validation.
    """
    assert info.field_name is not None
    of_kind = _DEFAULTS_BY_SECTION[info.field_name]
    is_of_kind = info.data.get(of_kind.setting) == of_kind.value
    defaults = dict(of_kind.defaults) if is_of_kind else {}
    if value is None:
        return defaults
    if isinstance(value, Section):
        value = value.model_dump(exclude_unset=True)
    return defaults | value if isinstance(value, dict) else value


class TrainingConfig(Section):
    """The settings that trainings of recognisers and of language models have in common."""

    head: HeadKind = "softmax"
    """Output layer.

    The sections `head_conf` describe each kind; docs/heads.md says when to use which.
    """
    head_conf: HeadConf = Field(default_factory=SoftmaxHeadConf)
    tokenizer: Literal["char", "phone", "bpe", "word"] = "char"
    """What a unit is: characters (of units.txt the longest that fits), a phone (text between
    spaces), a piece of a sentencepiece model, or a word.
    """
    tokenizer_conf: TokenizerConf = Field(default_factory=TokenizerConf)

    grad_clip: Positive = 50.0
    """Largest norm of the gradient."""
    max_epoch: FreeOnResume[Count] = 100
    """Number of passes over the training list."""
    max_minutes: FreeOnResume[Positive | None] = None
    """Training ends after this many minutes; null: no limit."""
    log_interval: FreeOnResume[Count] = 10
    """Optimizer steps per line of the log."""
    save_interval: FreeOnResume[Count | None] = None
    """Optimizer steps per checkpoint; null: one checkpoint at the end of each epoch."""
    keep_checkpoints: FreeOnResume[Count] = 10
    """Number of the newest checkpoints that are kept on disk."""
    keep_checkpoints_gb: FreeOnResume[Positive | None] = None
    """Largest size of the checkpoints on disk together, 10^9 bytes, without `frozen.pt`: the oldest
    are deleted first, the best last, the newest never. null: no limit.
    """
    keep_best: FreeOnResume[CountOrZero | None] = None
    """Number of the best checkpoints that are kept as well; null: the same as `keep_checkpoints`."""
    keep_best_by: FreeOnResume[Metric] = "loss"
    """Metric on the validation list by which the best checkpoints are chosen."""
    early_stopping: EarlyStoppingConf | None = None
    """Ends training when validation no longer improves; `final.pt` is then the best checkpoint.
    null: never.
    """
    optim: Literal["adam", "adamw"] = "adam"
    """Kind of optimizer."""
    optim_conf: OptimConf = Field(default_factory=OptimConf)
    scheduler: Literal["warmuplr", "warmup_cosine"] = "warmuplr"
    """Learning rate after a linear rise: `warmuplr` (WeNet's) falls with 1/sqrt(step),
    `warmup_cosine` as a cosine.
    """
    scheduler_conf: SchedulerConf = Field(default_factory=SchedulerConf)
    matmul_precision: Literal["auto", "highest", "high", "medium"] = "auto"
    """Precision of the factors in products of float32 matrices while training; sums and weights
    stay float32. `high`: TF32 on GPUs. `medium`: bfloat16 on CPUs that multiply it natively.
    `auto`: high on a GPU, else highest.
    """
    seed: CountOrZero = 777
    """Seed of the initial weights, the order of the data and every augmentation."""
    trained_by: ClassVar[str] = "train"
    """The command of `wenet-hs` that writes the folder of such a model."""
    has_equal_epochs: ClassVar[bool] = False
    """Whether the number of steps follows from `max_epoch`, so that `warmup_cosine` needs no other
    end.
    """

    _head_selects = field_validator("head_conf", mode="before")(read_head)
    _optim_selects = field_validator("optim_conf", mode="before")(_with_defaults_of_kind)

    def conflicts(self) -> Iterator[Conflict]:
        """The settings that break one of the rules of all trainings, in the order of the rules."""
        for rule in _RULES_OF_TRAINING:
            yield from rule(self)

    def extensions(self) -> list[Extension]:
        """The names in this config that are of other packages.

        Raises ConfigError if one is not installed.
        """
        return find_extensions("head", HEADS, [self.head])

    def why_unmeasured(self, metric: Metric) -> str | None:
        """Why a validation of this training does not measure a metric; None if it does."""
        raise NotImplementedError


class ExperimentConfig(TrainingConfig):
    """All settings of a recogniser. A section that is left out has its defaults."""

    encoder: EncoderKind = "conformer"
    """Kind of encoder."""
    encoder_conf: EncoderConf = Field(default_factory=ConformerConf)
    decoder: Literal["transformer", "bitransformer", "none"] = "bitransformer"
    """Kind of decoder: left to right (`transformer`), both directions, or `none`: CTC only."""
    decoder_conf: DecoderConf = Field(default_factory=DecoderConf)
    tokenizer: Literal["char", "phone", "bpe"] = "char"
    """What a unit is: characters (of units.txt the longest that fits), a phone (text between
    spaces), or a piece of a sentencepiece model.
    """
    ctc_conf: CtcConf = Field(default_factory=CtcConf)
    cmvn: Literal["global_cmvn"] | None = None
    """Whether features are normalized."""
    cmvn_conf: CmvnConf = Field(default_factory=CmvnConf)
    model_conf: ModelConf = Field(default_factory=ModelConf)
    dataset_conf: DatasetConf = Field(default_factory=DatasetConf)

    accum_grad: Count = 1
    """Batches per optimizer step."""
    freeze: tuple[str, ...] = Field(default=(), strict=False)
    """Prefixes of parameters that are not trained, such as `encoder.embed`; --checkpoint gives
    their values.
    """
    dtype: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of the forward pass; weights and losses are fp32.

    `auto`: bf16 where the device supports it natively, on a CPU only for encoders of width 256 or
    more: a narrow one gains little there, or becomes slower. fp16 scales the loss and is for GPUs.
    """
    compile: bool = False
    """Whether torch compiles the layers of encoder and decoder, not those of a pretrained encoder;
    the first steps then take minutes.
    """
    num_workers: FreeOnResume[CountOrZero] = 0
    """Processes that load data; 0: the training process loads it."""

    output_dim: Count | None = None
    """Number of units, as WeNet writes it into the train.yaml of a trained model; null: not
    checked.
    """

    _encoder_selects = field_validator("encoder_conf", mode="before")(read_encoder)
    _decoder_selects = field_validator("model_conf", mode="before")(_with_defaults_of_kind)

    def conflicts(self) -> Iterator[Conflict]:
        """The settings that break a rule of recognisers, then those of all trainings."""
        for rule in _RULES_OF_RECOGNISER:
            yield from rule(self)
        yield from super().conflicts()

    def extensions(self) -> list[Extension]:
        """The heads and the frontend in this config that are of other packages.

        Raises ConfigError if one is not installed.
        """
        heads = find_extensions("head", HEADS, [self.head, self.ctc_conf.head])
        frontends = find_extensions("frontend", FRONTENDS, [self.dataset_conf.frontend])
        return [*heads, *frontends]

    def why_unmeasured(self, metric: Metric) -> str | None:
        """Why a validation does not measure a metric; None if it does.

        A branch of weight 0 is not computed, so its metric is the same at each validation.
        """
        ctc_weight = self.model_conf.last_ctc_weight
        if metric == "loss":
            is_measured = True
        elif metric == "loss_ctc":
            is_measured = ctc_weight != 0
        else:  # of the decoder, which has the rest of the weight
            is_measured = ctc_weight != 1
        return None if is_measured else f"{metric} is not measured at ctc_weight {ctc_weight:g}"


# ---- rules of all trainings: which settings do not fit each other


def _bpe_without_model(config: TrainingConfig) -> Iterator[Conflict]:
    """`tokenizer: bpe` needs the path of its sentencepiece model."""
    if config.tokenizer == "bpe" and config.tokenizer_conf.bpe_path is None:
        yield "tokenizer_conf.bpe_path", "missing; tokenizer: bpe needs its sentencepiece model"


def _sparse_head_with_dense_updates(config: TrainingConfig) -> Iterator[Conflict]:
    """`head_conf.sparse_grad` needs an optimizer that updates only rows with a gradient."""
    yield from sparse_grad_conflicts(
        config, section="head_conf", has_sparse_grad=_is_sparse(config.head_conf)
    )


def sparse_grad_conflicts(
    config: TrainingConfig, *, section: str, has_sparse_grad: bool
) -> Iterator[Conflict]:
    """The conflict of `sparse_grad` in a section with the optimizer, if there is one.

    Weight decay, which `optim: adamw` always has, changes every row at each step.
    """
    has_weight_decay = config.optim == "adamw" or bool(config.optim_conf.weight_decay)
    if has_sparse_grad and has_weight_decay:
        text = "needs optim: adam without weight_decay, which updates only rows with a gradient"
        yield f"{section}.sparse_grad", f"{text}; change optim, or remove sparse_grad"


def _is_sparse(head_conf: HeadConf) -> bool:
    """Whether a head has the setting `sparse_grad`, and it is true."""
    return isinstance(head_conf, HSoftmaxHeadConf | ClassHeadConf) and head_conf.sparse_grad


def _cosine_without_end(config: TrainingConfig) -> Iterator[Conflict]:
    """`scheduler: warmup_cosine` needs to know when training ends.

    `total_steps` or `max_minutes` says so, or `max_epoch` where epochs have equal numbers of steps.
    """
    has_last_step = config.scheduler_conf.total_steps is not None or config.has_equal_epochs
    has_end = has_last_step or config.max_minutes is not None
    if config.scheduler == "warmup_cosine" and not has_end:
        yield (
            "scheduler_conf.total_steps",
            "missing; scheduler: warmup_cosine needs it, or max_minutes",
        )


def _cosine_ends_in_warmup(config: TrainingConfig) -> Iterator[Conflict]:
    """`scheduler: warmup_cosine` needs steps after its warm-up."""
    if config.scheduler != "warmup_cosine":
        return
    total_steps = config.scheduler_conf.total_steps
    warmup_steps = config.scheduler_conf.warmup_steps
    if total_steps is not None and total_steps <= warmup_steps:
        yield "scheduler_conf.total_steps", f"must be above warmup_steps, {warmup_steps}"


def _warmuplr_with_end(config: TrainingConfig) -> Iterator[Conflict]:
    """`scheduler: warmuplr` falls for ever, so `total_steps` has no meaning for it."""
    if config.scheduler == "warmuplr" and config.scheduler_conf.total_steps is not None:
        yield "scheduler_conf.total_steps", "scheduler: warmuplr has no end; remove it"


def _unmeasured_metrics(config: TrainingConfig) -> Iterator[Conflict]:
    """A metric that decides about checkpoints or the end must be measured in this training."""
    metrics = {"keep_best_by": config.keep_best_by}
    if config.early_stopping is not None:
        metrics["early_stopping.metric"] = config.early_stopping.metric
    for key, metric in metrics.items():
        reason = config.why_unmeasured(metric)
        if reason is not None:
            yield key, f"{reason}; use loss"


_RULES_OF_TRAINING: tuple[Callable[[TrainingConfig], Iterator[Conflict]], ...] = (
    _bpe_without_model,
    _sparse_head_with_dense_updates,
    _cosine_without_end,
    _cosine_ends_in_warmup,
    _warmuplr_with_end,
    _unmeasured_metrics,
)
"""In the order of their faults in a message."""


# ---- rules of recognisers


def _decoder_settings_without_decoder(config: ExperimentConfig) -> Iterator[Conflict]:
    """With `decoder: none` only CTC is trained, so settings of the decoder have no effect."""
    if config.decoder != "none":
        return
    if config.model_conf.ctc_weight != 1:
        yield "model_conf.ctc_weight", "decoder: none trains CTC only; set 1.0"
    if config.head != "softmax":
        yield (
            "head",
            "decoder: none has no output layer but that of CTC; remove it, and use ctc_conf.head",
        )
    for name in _LOSS_SETTINGS_OF_DECODER:
        default = ModelConf.model_fields[name].default
        if getattr(config.model_conf, name) != default:
            yield f"model_conf.{name}", "has no effect with decoder: none; remove it"
    if config.decoder_conf != DecoderConf():
        yield "decoder_conf", "has no effect with decoder: none; remove it, or set null"


_LOSS_SETTINGS_OF_DECODER = (
    "ctc_weight_final",
    "ctc_weight_steps",
    "ctc_only_steps",
    "reverse_weight",
    "lsm_weight",
    "lsm_kind",
    "attention_guide",
    "attention_guide_steps",
    "attention_guide_width",
)
"""The settings of `ModelConf` that have no effect without a decoder."""


def _reverse_layers_without_reverse_decoder(config: ExperimentConfig) -> Iterator[Conflict]:
    """`decoder: transformer` has no right-to-left decoder, which could have layers."""
    if config.decoder == "transformer" and config.decoder_conf.r_num_blocks:
        to_do = "needs decoder: bitransformer; remove it or change decoder"
        yield "decoder_conf.r_num_blocks", to_do


def _cmvn_without_file(config: ExperimentConfig) -> Iterator[Conflict]:
    """`cmvn: global_cmvn` needs the file of statistics."""
    if config.cmvn is not None and config.cmvn_conf.cmvn_file is None:
        yield (
            "cmvn_conf.cmvn_file",
            "missing; cmvn: global_cmvn needs it (wenet-hs cmvn writes it)",
        )


def _features_of_pretrained_encoder(config: ExperimentConfig) -> Iterator[Conflict]:
    """A pretrained encoder computes its own input, so settings of our features have no effect."""
    if not isinstance(config.encoder_conf, PretrainedConf):
        return
    data = config.dataset_conf
    reason = "the encoder computes its own input"
    if config.cmvn is not None:
        yield "cmvn", f"{reason} and its normalization; remove it"
    if data.spec_aug:
        to_do = "set false (encoder_conf.mask_time masks its frames)"
        yield "dataset_conf.spec_aug", f"{reason}; {to_do}"
    if data.frontend != "fbank":
        yield "dataset_conf.frontend", f"{reason}; remove it"
    if data.fbank_conf != FbankConf():
        yield "dataset_conf.fbank_conf", f"{reason}; remove it"
    if data.resample_conf != ResampleConf():
        to_do = "remove it (all audio is resampled)"
        yield "dataset_conf.resample_conf", f"the rate of the encoder is 16000; {to_do}"
    if data.features_on == "device":
        yield "dataset_conf.features_on", f"{reason}; set worker"
    if data.cache_features:
        to_do = "set false (encoder_conf.cache keeps outputs)"
        yield "dataset_conf.cache_features", f"{reason}; {to_do}"


def _random_audio_with_kept_outputs(config: ExperimentConfig) -> Iterator[Conflict]:
    """Kept outputs of a pretrained encoder would have the same noise in each epoch."""
    encoder = config.encoder_conf
    if not isinstance(encoder, PretrainedConf) or encoder.cache is None:
        return
    data = config.dataset_conf
    for name, conf in {"noise_conf": data.noise_conf, "reverb_conf": data.reverb_conf}.items():
        if conf is not None:
            yield (
                f"dataset_conf.{name}",
                "encoder_conf.cache would repeat the same noise; set one of them to null",
            )


def _width_not_divisible_by_heads(config: ExperimentConfig) -> Iterator[Conflict]:
    """The decoder has the width of the encoder, which its attention heads share equally."""
    encoder = config.encoder_conf
    if config.decoder == "none" or not isinstance(encoder, StackConf):
        return
    num_heads = config.decoder_conf.attention_heads
    if encoder.output_size % num_heads:
        width = f"encoder_conf.output_size {encoder.output_size}"
        yield "decoder_conf.attention_heads", f"{width} is not divisible by {num_heads} heads"


def _too_few_mel_bins(config: ExperimentConfig) -> Iterator[Conflict]:
    """Subsampling must leave at least one feature of a frame.

    The number of features of a frontend other than `fbank` is checked when the model is built.
    """
    encoder = config.encoder_conf
    if config.dataset_conf.frontend != "fbank" or not isinstance(encoder, StackConf):
        return
    num_bins = config.dataset_conf.fbank_conf.num_mel_bins
    fewest_bins = FEWEST_MEL_BINS[encoder.input_layer]
    if num_bins < fewest_bins:
        needed = f"input_layer: {encoder.input_layer} needs at least {fewest_bins}"
        yield "dataset_conf.fbank_conf.num_mel_bins", f"{needed}, got {num_bins}"


def _intermediate_ctc_above_last_layer(config: ExperimentConfig) -> Iterator[Conflict]:
    """The layer of intermediate CTC must be below the last one, which CTC has anyway."""
    encoder = config.encoder_conf
    if not isinstance(encoder, StackConf):
        return
    if config.model_conf.interctc_layer >= encoder.num_blocks:
        to_do = f"must be below encoder_conf.num_blocks, {encoder.num_blocks}"
        yield "model_conf.interctc_layer", to_do


def _reverse_loss_without_reverse_decoder(config: ExperimentConfig) -> Iterator[Conflict]:
    """`decoder: transformer` has no right-to-left decoder, whose loss could have a weight."""
    if config.decoder == "transformer" and config.model_conf.reverse_weight:
        to_do = "needs decoder: bitransformer; remove it or change decoder"
        yield "model_conf.reverse_weight", to_do


def _leaf_smoothing_with_sparse_head(config: ExperimentConfig) -> Iterator[Conflict]:
    """Label smoothing over all units would give every node of a sparse head a gradient."""
    model = config.model_conf
    has_leaf_smoothing = bool(model.lsm_weight) and model.lsm_kind == "leaf"
    if _is_sparse(config.head_conf) and has_leaf_smoothing:
        text = "leaf smoothing updates every node, which head_conf.sparse_grad is to avoid"
        yield "model_conf.lsm_kind", f"{text}; set node, or remove sparse_grad"


def _sparse_ctc_head_with_dense_updates(config: ExperimentConfig) -> Iterator[Conflict]:
    """`sparse_grad` of the head of CTC needs an optimizer that updates only rows with a gradient."""
    yield from sparse_grad_conflicts(
        config,
        section="ctc_conf.head_conf",
        has_sparse_grad=_is_sparse(config.ctc_conf.head_conf),
    )


_RULES_OF_RECOGNISER: tuple[Callable[[ExperimentConfig], Iterator[Conflict]], ...] = (
    _decoder_settings_without_decoder,
    _reverse_layers_without_reverse_decoder,
    _cmvn_without_file,
    _features_of_pretrained_encoder,
    _random_audio_with_kept_outputs,
    _width_not_divisible_by_heads,
    _too_few_mel_bins,
    _intermediate_ctc_above_last_layer,
    _reverse_loss_without_reverse_decoder,
    _leaf_smoothing_with_sparse_head,
    _sparse_ctc_head_with_dense_updates,
)
"""In the order of their faults in a message, before those of `_RULES_OF_TRAINING`."""
