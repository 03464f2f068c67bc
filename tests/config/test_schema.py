# SPDX-License-Identifier: Apache-2.0
"""The sections: WeNet's defaults, frozen values, ranges, and settings that must fit each other."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from wenet_hs.config.dataset import DatasetConf, FilterConf
from wenet_hs.config.heads import HSoftmaxHeadConf, SoftmaxHeadConf
from wenet_hs.config.schema import ConformerConf, ExperimentConfig, ModelConf, OptimConf
from wenet_hs.config.section import Count, FreeOnResume, Section, settings_free_on_resume


def fault_of(**settings: Any) -> str:
    """`key: text` of the one fault that the settings have."""
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig(**settings)
    (error,) = caught.value.errors()
    if error["type"] == "conflicts":
        return error["msg"]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def sections(kind: type[Section]) -> Iterator[type[Section]]:
    yield kind
    for field in kind.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                yield from sections(part)


def test_every_setting_is_documented() -> None:
    for section in sections(ExperimentConfig):
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description or name.endswith("_conf"), (
                f"{section.__name__}.{name} has no docstring"
            )


def test_the_defaults_are_wenets() -> None:
    config = ExperimentConfig()
    encoder, limits = config.encoder_conf, config.dataset_conf.filter_conf
    found = [config.encoder, config.decoder, config.decoder_conf.activation_type]
    assert found == ["conformer", "bitransformer", "relu"]
    assert (
        encoder.output_size,
        encoder.attention_heads,
        encoder.linear_units,
        encoder.num_blocks,
    ) == (256, 4, 2048, 6)
    assert (encoder.cnn_module_kernel, encoder.cnn_module_norm, encoder.norm_eps) == (
        15,
        "batch_norm",
        1e-5,
    )
    assert (config.model_conf.ctc_weight, config.model_conf.lsm_weight) == (0.5, 0.0)
    assert (limits.max_length, limits.min_length, limits.token_max_length) == (10240, 10, 200)
    assert (config.grad_clip, config.max_epoch, config.scheduler_conf.warmup_steps) == (
        50.0,
        100,
        25000,
    )
    encoder = ExperimentConfig(
        encoder="transformer", encoder_conf=ConformerConf(output_size=512)
    ).encoder_conf
    found = [encoder.pos_enc_layer_type, encoder.selfattention_layer_type, encoder.activation_type]
    assert found == ["abs_pos", "selfattn", "relu"]
    assert encoder.output_size == 512 and not hasattr(encoder, "macaron_style")


def test_the_settings_that_a_resumed_run_may_change_are_marked_in_the_schema() -> None:
    class Inner(Section):
        patience: FreeOnResume[Count | None] = None
        size: Count = 3

    class Outer(Section):
        interval: FreeOnResume[Count] = 1
        seed: Count = 7
        inner: Inner | None = None

    assert settings_free_on_resume(Outer()) == {"interval"}
    assert settings_free_on_resume(Outer(inner=Inner())) == {"interval", "inner.patience"}


def test_the_head_chooses_the_class_of_its_section() -> None:
    assert ExperimentConfig().head_conf == SoftmaxHeadConf()
    tree = ExperimentConfig(head="hsoftmax", head_conf={"tree": "tree.json"}).head_conf  # type: ignore[arg-type]
    assert tree == HSoftmaxHeadConf(tree="tree.json", bias=False)
    assert ExperimentConfig(head="hsoftmax", head_conf=tree).head_conf is tree
    assert (
        fault_of(head="softmax", head_conf=tree) == "head_conf.tree: Extra inputs are not permitted"
    )


def test_adamw_decays_by_default_as_in_torch_and_an_empty_section_is_all_defaults() -> None:
    assert ExperimentConfig().optim_conf == OptimConf(weight_decay=0.0)
    assert ExperimentConfig(optim="adamw").optim_conf.weight_decay == 0.01
    assert (
        ExperimentConfig(optim="adamw", optim_conf={"weight_decay": 0.0}).optim_conf.weight_decay
        == 0.0
    )  # type: ignore[arg-type]
    assert ExperimentConfig(encoder_conf=None, dataset_conf=None) == ExperimentConfig()  # type: ignore[arg-type]
    assert DatasetConf(filter_conf=None).filter_conf == FilterConf()  # type: ignore[arg-type]


def test_without_a_decoder_ctc_has_all_weight_by_default_and_no_setting_of_a_decoder_has_to_fit() -> (
    None
):
    config = ExperimentConfig(
        decoder="none", encoder_conf={"output_size": 18, "attention_heads": 3}
    )  # type: ignore[arg-type]
    assert (config.model_conf.ctc_weight, ExperimentConfig().model_conf.ctc_weight) == (1.0, 0.5)
    assert ExperimentConfig(
        decoder="none", model_conf=ModelConf(interctc_weight=0.3, interctc_layer=2)
    ) == (
        ExperimentConfig(
            decoder="none",
            model_conf={"interctc_weight": 0.3, "interctc_layer": 2, "ctc_weight": 1.0},
        )  # type: ignore[arg-type]
    )
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config
    ramp = {
        "ctc_weight_final": 0.1,
        "ctc_weight_steps": 5,
        "attention_guide": 1.0,
        "attention_guide_steps": 4,
    }
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig(decoder="none", model_conf=ramp)  # type: ignore[arg-type]
    (error,) = caught.value.errors()
    assert [line.split(":")[0] for line in error["msg"].splitlines()] == [
        f"model_conf.{key}" for key in ramp
    ]


@pytest.mark.parametrize(
    "settings",
    [
        *(
            "encoder_conf: {dropout_rate: 1.0}",
            "encoder_conf: {norm_eps: 0.0}",
            "decoder_conf: {num_blocks: 0}",
        ),
        *(
            "model_conf: {lsm_weight: 1.0}",
            "dataset_conf: {fbank_conf: {dither: -1.0}}",
            "optim_conf: {betas: [0.9]}",
        ),
        *(
            "dataset_conf: {batch_conf: {bucket_boundaries: [0]}}",
            "scheduler_conf: {warmup_steps: -1}",
        ),
        *("tokenizer_conf: {special_tokens: {<start>: 1}}", "save_interval: 0"),
        *(
            "max_minutes: 0",
            "keep_checkpoints: 0",
            "grad_clip: 0.0",
            "encoder_conf: {num_blocks: 2.0}",
        ),
        *("dataset_conf: {sampling: {temperature: 0}}", "dataset_conf: {sampling: {by: speaker}}"),
        *(
            "dataset_conf: {sampling: {weights: [1, 0]}}",
            "dataset_conf: {reverb_conf: {list: n, prob: 2}}",
        ),
        *(
            "optim_conf: {lr: true}",
            "optim_conf: {lr: '0.1'}",
            "optim_conf: {lr: null}",
            "optim_conf: {lr: .inf}",
        ),
    ],
)
def test_values_outside_of_their_range_are_refused(settings: str) -> None:
    assert fault_of(**yaml.safe_load(settings))


# Settings => the beginning of their fault, and after … another part of it.
CONFLICTS = """
encoder_conf: {output_size: 30} => attention_heads: output_size 30 is not divisible by 4 heads
encoder_conf: {output_size: 64}, decoder_conf: {attention_heads: 3} => decoder_conf.attention_heads:
encoder_conf: {cnn_module_kernel: 8} => cnn_module_kernel: must be odd without causal, got 8
encoder_conf: {use_dynamic_chunk: true} => use_dynamic_chunk: the convolutions see frames after the chunk; set
encoder_conf: {static_chunk_size: 8} => static_chunk_size: the convolutions see frames after the chunk; set
dataset_conf: {features_on: device, fbank_conf: {profile: sherpa}} => features_on: device pads before it mirrors
encoder_conf: {input_layer: linear, subsampling_conv_channels: 32} => subsampling_conv_channels: has no effect with
encoder: transformer, encoder_conf: {macaron_style: true} => encoder_conf.macaron_style: Extra inputs are not permitted
decoder: transformer, decoder_conf: {r_num_blocks: 3} => decoder_conf.r_num_blocks: needs decoder: bitransformer
decoder: transformer, model_conf: {reverse_weight: 0.3} => model_conf.reverse_weight: needs decoder: bitransformer
decoder: none, model_conf: {ctc_weight: 0.5} => model_conf.ctc_weight: decoder: none trains CTC only; set 1.0
decoder: none, model_conf: {reverse_weight: 0.3} => model_conf.reverse_weight: has no effect with decoder: none; remove
decoder: none, model_conf: {lsm_weight: 0.1} => model_conf.lsm_weight: has no effect with decoder: none; remove it
decoder: none, model_conf: {ctc_only_steps: 5} => model_conf.ctc_only_steps: has no effect with decoder: none; remove it
decoder: none, decoder_conf: {num_blocks: 3} => decoder_conf: has no effect with decoder: none; remove it, or set null
decoder: none, head: hsoftmax, head_conf: {tree: t} => head: decoder: none has no output layer but that of CTC; remove
decoder: none, keep_best_by: accuracy => keep_best_by: accuracy is not measured at ctc_weight 1; use loss
model_conf: {attention_guide: 1.0} => attention_guide_steps: must be at least 1 where attention_guide is given
model_conf: {ctc_weight_final: 0.1} => ctc_weight_steps: must be at least 1 where ctc_weight_final is given
model_conf: {interctc_weight: 0.3} => interctc_layer: needs interctc_weight, and the reverse; give both or none
model_conf: {interctc_weight: 0.3, interctc_layer: 6} => model_conf.interctc_layer: must be below encoder_conf…, 6
model_conf: {ctc_weight_steps: 10} => ctc_weight_steps: has no effect without ctc_weight_final; add it or remove this
tokenizer: bpe => tokenizer_conf.bpe_path: missing; tokenizer: bpe needs its sentencepiece model
cmvn: global_cmvn => cmvn_conf.cmvn_file: missing; cmvn: global_cmvn needs it (wenet-hs cmvn writes it)
dataset_conf: {fbank_conf: {num_mel_bins: 3}} => dataset_conf.fbank_conf.num_mel_bins:… at least 7, got 3
dataset_conf: {fbank_conf: {num_mel_bins: 6}} => dataset_conf.fbank_conf.num_mel_bins:… at least 7, got 6
dataset_conf: {filter_conf: {min_length: 11, max_length: 10}} => min_length: must not be above max_length, 10, got 11
dataset_conf: {batch_conf: {bucket_boundaries: [5, 5]}} => bucket_boundaries: must ascend, got [5, 5]
dataset_conf: {batch_conf: {batch_type: bucket, bucket_boundaries: [5]}} => bucket_batch_sizes:… 2 buckets, got 0
dataset_conf: {noise_conf: {list: n, snr_db: [5.0, 4.5]}} => snr_db: must be lowest and highest, got 5 and 4.5
dataset_conf: {noise_conf: {list: n}, cache_features: true} => noise_conf: cache_features would repeat the same noise
dataset_conf: {features_on: device, cache_features: true} => features_on: device does not keep features
dataset_conf: {features_on: device, fbank_conf: {dither: 1.0}} => features_on: device has no dither;… or worker
head: adaptive, head_conf: {tree: t, cutoffs: [5, 5]} => cutoffs: must be one or more ascending numbers, got [5, 5]
head: class, head_conf: {tree: t, sparse_grad: true}, model_conf: {lsm_weight: 0.1} => model_conf.lsm_kind: leaf
head: class, head_conf: {tree: t, sparse_grad: true}, optim_conf: {weight_decay: 0.1} => head_conf.sparse_grad: needs
ctc_conf: {head: class, head_conf: {tree: t, sparse_grad: true}}, optim: adamw => ctc_conf.head_conf.sparse_grad: needs
keep_best_by: accuracy, model_conf: {ctc_weight: 1.0} => keep_best_by: accuracy is not measured… use loss
early_stopping: {metric: loss_ctc}, model_conf: {ctc_weight: 0.0} => early_stopping.metric: loss_ctc… use loss
scheduler: warmup_cosine => scheduler_conf.total_steps: missing; scheduler: warmup_cosine needs it, or max_minutes
scheduler: warmup_cosine, scheduler_conf: {total_steps: 10} => scheduler_conf.total_steps:… warmup_steps, 25000
scheduler_conf: {total_steps: 10} => scheduler_conf.total_steps: scheduler: warmuplr has no end; remove it
"""


@pytest.mark.parametrize("line", CONFLICTS.strip().split("\n"))
def test_conflicting_settings_are_refused(line: str) -> None:
    settings, _, fault = line.partition(" => ")
    beginning, _, end = fault.partition("…")
    found = fault_of(**yaml.safe_load(f"{{{settings}}}"))
    assert found.startswith(beginning) and end in found
