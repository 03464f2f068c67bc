# SPDX-License-Identifier: Apache-2.0
"""All settings of an experiment except those of data, encoders and heads, with WeNet's names and
defaults.
"""

import sys
from collections.abc import Iterator
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
    Count,
    CountOrZero,
    Fraction,
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
        """Weight of the CTC loss at the end of its change."""
        return self.ctc_weight if self.ctc_weight_final is None else self.ctc_weight_final

    @property
    def trained_ctc_weight(self) -> float:
        """The last weight of the CTC loss beside the decoder's that is not 0; 0: CTC is of no use
        in recognition.
        """
        return self.last_ctc_weight or self.ctc_weight

    def conflicts(self) -> Iterator[tuple[str, str]]:
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

_DEFAULTS_OF_KIND: dict[str | None, tuple[str, str, dict[str, Any]]] = {
    "optim_conf": ("optim", "adamw", {"weight_decay": 0.01}),
    "model_conf": ("decoder", "none", {"ctc_weight": 1.0}),
}
"""Section → a setting and a value of it, and the defaults of the section that differ then."""


def defaults_of_kinds(config: "TrainingConfig") -> dict[str, Any]:
    """The defaults that follow from a kind of this config, such as its optimizer, by dotted key."""
    defaults: dict[str, Any] = {}
    for section, (setting, kind, of_kind) in _DEFAULTS_OF_KIND.items():
        if getattr(config, setting, None) == kind:
            defaults |= {f"{section}.{key}": value for key, value in of_kind.items()}
    return defaults


_OF_DECODER = (
    *(
        "ctc_weight_final",
        "ctc_weight_steps",
        "ctc_only_steps",
        "reverse_weight",
        "lsm_weight",
        "lsm_kind",
    ),
    *("attention_guide", "attention_guide_steps", "attention_guide_width"),
)
"""The settings of `ModelConf` that have no effect without a decoder."""


def _with_defaults_of_kind(value: Any, info: ValidationInfo) -> Any:
    """A section with the defaults of the kind that the setting before it selects."""
    setting, kind, of_kind = _DEFAULTS_OF_KIND[info.field_name]
    defaults = of_kind if info.data.get(setting) == kind else {}
    if isinstance(value, Section):
        value = value.model_dump(exclude_unset=True)
    return defaults | value if isinstance(value, dict) else defaults if value is None else value


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
    max_epoch: Count = 100
    """Number of passes over the training list."""
    max_minutes: Positive | None = None
    """Training ends after this many minutes; null: no limit."""
    log_interval: Count = 10
    """Optimizer steps per line of the log."""
    save_interval: Count | None = None
    """Optimizer steps per checkpoint; null: one checkpoint at the end of each epoch."""
    keep_checkpoints: Count = 10
    """Number of the newest checkpoints that are kept on disk."""
    keep_checkpoints_gb: Positive | None = None
    """Largest size of the checkpoints on disk together, 10^9 bytes, without `frozen.pt`: the oldest
    are deleted first, the best last, the newest never. null: no limit.
    """
    keep_best: CountOrZero | None = None
    """Number of the best checkpoints that are kept as well; null: the same as `keep_checkpoints`."""
    keep_best_by: Metric = "loss"
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

    def conflicts(self) -> Iterator[tuple[str, str]]:
        schedule = self.scheduler_conf
        if self.tokenizer == "bpe" and self.tokenizer_conf.bpe_path is None:
            yield "tokenizer_conf.bpe_path", "missing; tokenizer: bpe needs its sentencepiece model"
        yield from self._optimizer_conflicts("head_conf", _is_sparse(self.head_conf))
        has_end = (
            schedule.total_steps is not None
            or self.max_minutes is not None
            or self.has_equal_epochs
        )
        if self.scheduler == "warmup_cosine" and not has_end:
            yield (
                "scheduler_conf.total_steps",
                "missing; scheduler: warmup_cosine needs it, or max_minutes",
            )
        if (
            self.scheduler == "warmup_cosine"
            and (schedule.total_steps or sys.maxsize) <= schedule.warmup_steps
        ):
            yield (
                "scheduler_conf.total_steps",
                f"must be above warmup_steps, {schedule.warmup_steps}",
            )
        if self.scheduler == "warmuplr" and schedule.total_steps is not None:
            yield "scheduler_conf.total_steps", "scheduler: warmuplr has no end; remove it"
        metrics = {"keep_best_by": self.keep_best_by}
        if self.early_stopping is not None:
            metrics["early_stopping.metric"] = self.early_stopping.metric
        for key, metric in metrics.items():
            if fault := self.why_unmeasured(metric):
                yield key, f"{fault}; use loss"

    def extensions(self) -> list[Extension]:
        """The names in this config that are of other packages.

        Raises ConfigError if one is not installed.
        """
        return find_extensions("head", HEADS, [self.head])

    def why_unmeasured(self, metric: Metric) -> str | None:
        """Why a validation of this training does not measure a metric; None if it does."""
        raise NotImplementedError

    def _optimizer_conflicts(
        self, section: str, has_sparse_grad: bool
    ) -> Iterator[tuple[str, str]]:
        if has_sparse_grad and (self.optim == "adamw" or self.optim_conf.weight_decay):
            text = "needs optim: adam without weight_decay, which updates only rows with a gradient"
            yield f"{section}.sparse_grad", f"{text}; change optim, or remove sparse_grad"


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
    num_workers: CountOrZero = 0
    """Processes that load data; 0: the training process loads it."""

    output_dim: Count | None = None
    """Number of units, as WeNet writes it into the train.yaml of a trained model; null: not
    checked.
    """

    _encoder_selects = field_validator("encoder_conf", mode="before")(read_encoder)
    _decoder_selects = field_validator("model_conf", mode="before")(_with_defaults_of_kind)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        encoder, decoder, model = self.encoder_conf, self.decoder_conf, self.model_conf
        if self.decoder == "none":
            yield from self._conflicts_without_decoder()
        if self.decoder == "transformer" and decoder.r_num_blocks:
            yield (
                "decoder_conf.r_num_blocks",
                "needs decoder: bitransformer; remove it or change decoder",
            )
        if self.cmvn is not None and self.cmvn_conf.cmvn_file is None:
            yield (
                "cmvn_conf.cmvn_file",
                "missing; cmvn: global_cmvn needs it (wenet-hs cmvn writes it)",
            )
        if isinstance(encoder, PretrainedConf):
            yield from self._conflicts_of_pretrained(encoder)
        else:
            yield from self._conflicts_of_stack(encoder)
        if self.decoder == "transformer" and model.reverse_weight:
            yield (
                "model_conf.reverse_weight",
                "needs decoder: bitransformer; remove it or change decoder",
            )
        if _is_sparse(self.head_conf) and model.lsm_weight and model.lsm_kind == "leaf":
            text = "leaf smoothing updates every node, which head_conf.sparse_grad is to avoid"
            yield "model_conf.lsm_kind", f"{text}; set node, or remove sparse_grad"
        yield from self._optimizer_conflicts(
            "ctc_conf.head_conf", _is_sparse(self.ctc_conf.head_conf)
        )
        yield from super().conflicts()

    def extensions(self) -> list[Extension]:
        heads = find_extensions("head", HEADS, [self.head, self.ctc_conf.head])
        return [*heads, *find_extensions("frontend", FRONTENDS, [self.dataset_conf.frontend])]

    def _conflicts_of_stack(self, encoder: StackConf) -> Iterator[tuple[str, str]]:
        heads, num_bins = (
            self.decoder_conf.attention_heads,
            self.dataset_conf.fbank_conf.num_mel_bins,
        )
        if self.decoder != "none" and encoder.output_size % heads:
            text = (
                f"encoder_conf.output_size {encoder.output_size} is not divisible by {heads} heads"
            )
            yield "decoder_conf.attention_heads", text
        has_fbank = (
            self.dataset_conf.frontend == "fbank"
        )  # the width of another one is checked when it is built
        if has_fbank and num_bins < (fewest := FEWEST_MEL_BINS[encoder.input_layer]):
            text = f"input_layer: {encoder.input_layer} needs at least {fewest}, got {num_bins}"
            yield "dataset_conf.fbank_conf.num_mel_bins", text
        if self.model_conf.interctc_layer >= encoder.num_blocks:
            yield (
                "model_conf.interctc_layer",
                f"must be below encoder_conf.num_blocks, {encoder.num_blocks}",
            )

    def _conflicts_of_pretrained(self, encoder: PretrainedConf) -> Iterator[tuple[str, str]]:
        """Settings that act on features of ours, which a pretrained encoder does not have."""
        data, own = self.dataset_conf, "the encoder computes its own input"
        if self.cmvn is not None:
            yield "cmvn", f"{own} and its normalization; remove it"
        if data.spec_aug:
            yield (
                "dataset_conf.spec_aug",
                f"{own}; set false (encoder_conf.mask_time masks its frames)",
            )
        if data.frontend != "fbank":
            yield "dataset_conf.frontend", f"{own}; remove it"
        if data.fbank_conf != FbankConf():
            yield "dataset_conf.fbank_conf", f"{own}; remove it"
        if data.resample_conf != ResampleConf():
            yield (
                "dataset_conf.resample_conf",
                "the rate of the encoder is 16000; remove it (all audio is resampled)",
            )
        if data.features_on == "device":
            yield "dataset_conf.features_on", f"{own}; set worker"
        if data.cache_features:
            yield (
                "dataset_conf.cache_features",
                f"{own}; set false (encoder_conf.cache keeps outputs)",
            )
        for name in ("noise_conf", "reverb_conf"):
            if encoder.cache is not None and getattr(data, name) is not None:
                yield (
                    f"dataset_conf.{name}",
                    "encoder_conf.cache would repeat the same noise; set one of them to null",
                )

    def _conflicts_without_decoder(self) -> Iterator[tuple[str, str]]:
        if self.model_conf.ctc_weight != 1:
            yield "model_conf.ctc_weight", "decoder: none trains CTC only; set 1.0"
        if self.head != "softmax":
            yield (
                "head",
                "decoder: none has no output layer but that of CTC; remove it, and use ctc_conf.head",
            )
        given = {
            key: getattr(self.model_conf, key) != ModelConf.model_fields[key].default
            for key in _OF_DECODER
        }
        for key in [f"model_conf.{key}" for key in _OF_DECODER if given[key]]:
            yield key, "has no effect with decoder: none; remove it"
        if self.decoder_conf != DecoderConf():
            yield "decoder_conf", "has no effect with decoder: none; remove it, or set null"

    def why_unmeasured(self, metric: Metric) -> str | None:
        """A branch of weight 0 is not computed, so its metric is the same at each validation."""
        share = self.model_conf.last_ctc_weight
        if metric == "loss" or share != (0.0 if metric == "loss_ctc" else 1.0):
            return None
        return f"{metric} is not measured at ctc_weight {share:g}"


def _is_sparse(head_conf: HeadConf) -> bool:
    return isinstance(head_conf, HSoftmaxHeadConf | ClassHeadConf) and head_conf.sparse_grad
