# SPDX-License-Identifier: Apache-2.0
"""One experiment, typed: every section and setting of a YAML file, under WeNet's names and with WeNet's defaults.

A new head is one class in `network.py`, with its name in `HeadKind`, `HeadConf` and `_HEADS` there.
"""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf, FilterConf, ResampleConf, SpecAugConf
from wenet_hs.config.network import (
    AdaptiveHeadConf,
    ClassHeadConf,
    CmvnConf,
    CtcConf,
    DecoderConf,
    EncoderConf,
    HeadConf,
    HeadKind,
    HSoftmaxHeadConf,
    ModelConf,
    SoftmaxHeadConf,
    TokenizerConf,
    TransformerEncoderConf,
    chosen_head,
)
from wenet_hs.config.section import (
    BelowOne,
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    Section,
    as_chosen,
    setting_error,
)

__all__ = [
    "AdamWConf",
    "AdaptiveHeadConf",
    "BatchConf",
    "ClassHeadConf",
    "CmvnConf",
    "CtcConf",
    "DatasetConf",
    "DecoderConf",
    "EarlyStoppingConf",
    "EncoderConf",
    "ExperimentConfig",
    "FbankConf",
    "FilterConf",
    "HeadConf",
    "HSoftmaxHeadConf",
    "Metric",
    "ModelConf",
    "OptimConf",
    "ResampleConf",
    "SchedulerConf",
    "SoftmaxHeadConf",
    "SpecAugConf",
    "TokenizerConf",
    "TransformerEncoderConf",
]

FEWEST_MEL_BINS = {"linear": 4, "conv2d": 7, "conv2d6": 11, "conv2d8": 15}
"""What each `input_layer` needs so that a feature is left after its strides in frequency."""


class OptimConf(Section):
    """The optimizer; these defaults are those of `optim: adam`, and torch's."""

    lr: Positive = 1e-3
    """Learning rate; under `warmuplr` the rate reached at the end of the warm-up."""
    betas: tuple[BelowOne, BelowOne] = Field(default=(0.9, 0.999), strict=False)
    """Decay of the running means of the gradient and of its square."""
    eps: Positive = 1e-8
    """Added to the root of the mean square."""
    weight_decay: PositiveOrZero = 0.0
    """Pull of the weights towards 0."""


class AdamWConf(OptimConf):
    """The same keys with the defaults of `optim: adamw`."""

    weight_decay: PositiveOrZero = 0.01
    """Pull of the weights towards 0, in units of the learning rate."""


class SchedulerConf(Section):
    """How the learning rate changes, an optimizer step at a time."""

    warmup_steps: CountOrZero = 25000
    """Optimizer steps in which the rate rises."""
    total_steps: Count | None = None
    """Optimizer step at which the rate reaches 0 and training ends; for `warmup_cosine` only."""


Metric = Literal["loss", "loss_att", "loss_ctc", "accuracy", "bits_per_unit"]
"""What a validation measures: of `accuracy` the highest is the best, of the others the lowest."""


class EarlyStoppingConf(Section):
    """When a training that no longer gets better ends."""

    metric: Metric = "loss"
    """What must get better."""
    patience: Count = 10
    """Validations in a row that may bring no better value."""
    min_delta: PositiveOrZero = 0.0
    """By how much a value must be better than the best one before."""


_CHOSEN: dict[str, tuple[str, dict[str, type[Section]]]] = {
    "encoder_conf": ("encoder", {"conformer": EncoderConf, "transformer": TransformerEncoderConf}),
    "optim_conf": ("optim", {"adam": OptimConf, "adamw": AdamWConf}),
}
"""Sections whose class another setting chooses."""

_METRIC_KEYS = {"keep_best_by": "keep_best_by", "early_stopping": "early_stopping.metric"}


class ExperimentConfig(Section):
    """Everything an experiment is made of. Sections left out have their defaults."""

    encoder: Literal["conformer", "transformer"] = "conformer"
    """Kind of encoder."""
    encoder_conf: EncoderConf = Field(default_factory=EncoderConf)
    """The encoder's settings."""
    decoder: Literal["transformer", "bitransformer"] = "bitransformer"
    """Kind of decoder: from left to right, or in both directions."""
    decoder_conf: DecoderConf = Field(default_factory=DecoderConf)
    """The decoder's settings."""
    head: HeadKind = "softmax"
    """Output layer of the decoder: a softmax over all units, a tree of binary decisions, one of classes, or PyTorch's
    adaptive softmax."""
    head_conf: HeadConf = Field(default_factory=SoftmaxHeadConf)
    """The head's settings."""
    tokenizer: Literal["char", "phone", "bpe"] = "char"
    """What a unit is: a character, what stands between spaces, or a piece of a sentencepiece model."""
    tokenizer_conf: TokenizerConf = Field(default_factory=TokenizerConf)
    """The tokenizer's settings."""
    ctc: Literal["ctc"] = "ctc"
    """Kind of CTC branch."""
    ctc_conf: CtcConf = Field(default_factory=CtcConf)
    """The CTC branch's settings."""
    cmvn: Literal["global_cmvn"] | None = None
    """Whether features are normalised."""
    cmvn_conf: CmvnConf = Field(default_factory=CmvnConf)
    """Where the statistics are."""
    model: Literal["asr_model"] = "asr_model"
    """Kind of model."""
    model_conf: ModelConf = Field(default_factory=ModelConf)
    """How the losses are put together."""
    dataset: Literal["asr"] = "asr"
    """Kind of data set."""
    dataset_conf: DatasetConf = Field(default_factory=DatasetConf)
    """From the data list to batches."""

    grad_clip: Positive = 50.0
    """Greatest norm of the gradient."""
    accum_grad: Count = 1
    """Batches an optimizer step."""
    max_epoch: Count = 100
    """Passes over the training list."""
    max_minutes: Positive | None = None
    """Stop after so many minutes of training, whatever the epoch; null: no limit."""
    log_interval: Count = 10
    """Optimizer steps between two lines of the log."""
    save_interval: Count | None = None
    """Optimizer steps between two checkpoints; null: one at the end of each epoch."""
    keep_checkpoints: Count = 10
    """How many of the newest checkpoints are kept on disk."""
    keep_best: CountOrZero | None = None
    """How many of the best ones are kept beside them; null: as many as `keep_checkpoints` says."""
    keep_best_by: Metric = "loss"
    """What the best ones are best by, on the validation list."""
    early_stopping: EarlyStoppingConf | None = None
    """End before `max_epoch` where validation gets no better; `final.pt` is then the best checkpoint. null: do not."""
    optim: Literal["adam", "adamw"] = "adam"
    """Kind of optimizer."""
    optim_conf: OptimConf = Field(default_factory=OptimConf)
    """The optimizer's settings."""
    scheduler: Literal["warmuplr", "warmup_cosine"] = "warmuplr"
    """`warmuplr` is WeNet's: up in a line, then down as 1/sqrt(step); `warmup_cosine`: then down as half a cosine."""
    scheduler_conf: SchedulerConf = Field(default_factory=SchedulerConf)
    """The schedule's settings."""
    freeze: tuple[str, ...] = Field(default=(), strict=False)
    """Modules and parameters that are not trained, by the beginnings of their names in the state_dict, such as
    `encoder.embed`, `encoder.encoders.0`; with --checkpoint they stay as they were there."""
    dtype: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of the forward pass; weights and losses are fp32. `auto`: bf16 where the device has it natively; fp16
    scales the loss, and is for GPUs."""
    compile: bool = False
    """Whether torch compiles the layers of encoder and decoder; the first steps then take minutes."""
    seed: CountOrZero = 777
    """Of the initial weights, the order of the data and every augmentation."""
    num_workers: CountOrZero = 0
    """Processes that load data; 0: the training process does."""

    input_dim: Count | None = None
    """Features a frame, as WeNet writes it into the train.yaml of a trained model."""
    output_dim: Count | None = None
    """Number of units, as WeNet writes it into the train.yaml of a trained model."""
    vocab_size: Count | None = None
    """The same number as `output_dim`."""
    provenance: dict[str, str] = Field(default_factory=dict)
    """What wrote this file: versions, commit, command line, machine. Read by people only."""

    @model_validator(mode="before")
    @classmethod
    def _phones(cls, data: Any) -> Any:
        """WeNet writes phones as characters split at spaces."""
        tokenizer_conf = data.get("tokenizer_conf") if isinstance(data, dict) else None
        if isinstance(tokenizer_conf, dict) and tokenizer_conf.get("split_with_space") is True:
            return {**data, "tokenizer": "phone"} if data.get("tokenizer", "char") == "char" else data
        return data

    @field_validator(
        "encoder_conf",
        "decoder_conf",
        "tokenizer_conf",
        "ctc_conf",
        "cmvn_conf",
        "model_conf",
        "dataset_conf",
        "optim_conf",
        "scheduler_conf",
        "provenance",
        mode="before",
    )
    @classmethod
    def _section(cls, value: Any, info: ValidationInfo) -> Any:
        """An empty section is all defaults; one with a selector is read by the class that it selects."""
        value = {} if value is None else value
        selector, classes = _CHOSEN.get(info.field_name or "", ("", {}))
        return as_chosen(value, info.data.get(selector), classes, otherwise=value)

    _chosen_head = field_validator("head_conf", mode="before")(chosen_head)

    @field_validator("decoder_conf")
    @classmethod
    def _decoder_fits(cls, conf: DecoderConf, info: ValidationInfo) -> DecoderConf:
        if info.data.get("decoder") == "transformer" and conf.r_num_blocks:
            raise setting_error("decoder_conf.r_num_blocks", "only decoder: bitransformer writes from right to left")
        encoder = info.data.get("encoder_conf")
        if encoder is not None and encoder.output_size % conf.attention_heads:
            raise setting_error(
                "decoder_conf.attention_heads",
                f"encoder_conf.output_size {encoder.output_size} is not divisible by {conf.attention_heads} heads",
            )
        return conf

    @field_validator("tokenizer_conf")
    @classmethod
    def _tokenizer_fits(cls, conf: TokenizerConf, info: ValidationInfo) -> TokenizerConf:
        kind = info.data.get("tokenizer")
        if kind == "bpe" and conf.bpe_path is None:
            raise setting_error("tokenizer_conf.bpe_path", "missing; tokenizer: bpe needs its sentencepiece model")
        if kind == "bpe" and conf.split_with_space:
            raise setting_error("tokenizer_conf.split_with_space", "true is not supported with tokenizer: bpe")
        if kind in ("char", "bpe") and conf.connect_symbol:
            raise setting_error("tokenizer_conf.connect_symbol", f"must be empty with tokenizer: {kind}")
        return conf

    @field_validator("cmvn_conf")
    @classmethod
    def _cmvn_has_a_file(cls, conf: CmvnConf, info: ValidationInfo) -> CmvnConf:
        if info.data.get("cmvn") is not None and conf.cmvn_file is None:
            raise setting_error("cmvn_conf.cmvn_file", "missing; cmvn: global_cmvn needs it (wenet-hs cmvn writes it)")
        return conf

    @field_validator("model_conf")
    @classmethod
    def _loss_fits(cls, conf: ModelConf, info: ValidationInfo) -> ModelConf:
        if info.data.get("decoder") == "transformer" and conf.reverse_weight:
            raise setting_error("model_conf.reverse_weight", "only decoder: bitransformer writes from right to left")
        if _is_sparse(info.data.get("head_conf")) and conf.lsm_weight and conf.lsm_kind == "leaf":
            raise setting_error(
                "model_conf.lsm_kind",
                "leaf smoothing reaches every node, so that head_conf.sparse_grad has nothing to leave out; set node, "
                "or remove sparse_grad",
            )
        return conf

    @field_validator("keep_best_by", "early_stopping")
    @classmethod
    def _metric_is_measured(cls, value: Any, info: ValidationInfo) -> Any:
        """A branch of weight 0 is not run, so that what it would say is the same at each validation."""
        metric = value.metric if isinstance(value, EarlyStoppingConf) else value
        conf = info.data.get("model_conf")
        if conf is None or metric in (None, "loss"):
            return value
        share = conf.ctc_weight if conf.ctc_weight_final is None else conf.ctc_weight_final
        if share == (0.0 if metric == "loss_ctc" else 1.0):
            text = f"{metric} is not measured at ctc_weight {share:g}; use loss"
            raise setting_error(_METRIC_KEYS[info.field_name or ""], text)
        return value

    @field_validator("dataset_conf")
    @classmethod
    def _features_fit(cls, conf: DatasetConf, info: ValidationInfo) -> DatasetConf:
        encoder = info.data.get("encoder_conf")
        num_bins = conf.fbank_conf.num_mel_bins
        if encoder is not None and num_bins < FEWEST_MEL_BINS[encoder.input_layer]:
            fewest = FEWEST_MEL_BINS[encoder.input_layer]
            raise setting_error(
                "dataset_conf.fbank_conf.num_mel_bins",
                f"input_layer: {encoder.input_layer} needs at least {fewest}, got {num_bins}",
            )
        return conf

    @field_validator("optim_conf")
    @classmethod
    def _sparse_gradients_fit(cls, conf: OptimConf, info: ValidationInfo) -> OptimConf:
        ctc_conf = info.data.get("ctc_conf")
        heads = {"head_conf": info.data.get("head_conf"), "ctc_conf.head_conf": ctc_conf and ctc_conf.head_conf}
        for section, head_conf in heads.items():
            if _is_sparse(head_conf) and (info.data.get("optim") == "adamw" or conf.weight_decay):
                raise setting_error(
                    f"{section}.sparse_grad",
                    "needs optim: adam without weight_decay, which updates the touched rows alone; change optim, or "
                    "remove sparse_grad",
                )
        return conf

    @field_validator("scheduler_conf")
    @classmethod
    def _schedule_ends(cls, conf: SchedulerConf, info: ValidationInfo) -> SchedulerConf:
        kind = info.data.get("scheduler")
        if kind == "warmup_cosine" and conf.total_steps is None:
            raise setting_error("scheduler_conf.total_steps", "missing; scheduler: warmup_cosine needs it")
        if kind == "warmup_cosine" and (conf.total_steps or 0) <= conf.warmup_steps:
            raise setting_error("scheduler_conf.total_steps", f"must be above warmup_steps, {conf.warmup_steps}")
        if kind == "warmuplr" and conf.total_steps is not None:
            raise setting_error("scheduler_conf.total_steps", "scheduler: warmuplr has no end; remove it")
        return conf

    @field_validator("input_dim")
    @classmethod
    def _input_dim_is_the_features(cls, input_dim: int | None, info: ValidationInfo) -> int | None:
        dataset = info.data.get("dataset_conf")
        if input_dim is not None and dataset is not None and input_dim != dataset.fbank_conf.num_mel_bins:
            bins = dataset.fbank_conf.num_mel_bins
            raise setting_error("input_dim", f"is {input_dim}, but dataset_conf.fbank_conf.num_mel_bins is {bins}")
        return input_dim

    @field_validator("vocab_size")
    @classmethod
    def _vocab_size_is_output_dim(cls, vocab_size: int | None, info: ValidationInfo) -> int | None:
        output_dim = info.data.get("output_dim")
        if vocab_size is not None and output_dim is not None and vocab_size != output_dim:
            raise setting_error("vocab_size", f"is {vocab_size}, but output_dim is {output_dim}")
        return vocab_size


def _is_sparse(head_conf: HeadConf | None) -> bool:
    return isinstance(head_conf, HSoftmaxHeadConf | ClassHeadConf) and head_conf.sparse_grad
