# SPDX-License-Identifier: Apache-2.0
"""WeNet's settings that the schema does not have: ignored ones, and those with only one value.

Every entry is the dotted key of WeNet at commit 01546996 or of the train.yaml that it writes. A
setting that would change a number is never ignored: it must have the value that means "off".
`wenet_translation` applies these tables.
"""

from dataclasses import dataclass

Scalar = str | int | float | bool | None


# ---- ignored keys


_IGNORED_BY_REASON: dict[str, tuple[str, ...]] = {
    "torchrun is the one engine and the command line names the folder": (
        "train_engine",
        "deepspeed",
        "use_amp",
        "model_dir",
        "save_states",
    ),
    "a checkpoint contains its own position and losses": (
        "epoch",
        "step",
        "lrs",
        "tag",
        "save_time",
        "loss_dict",
        "init_infos",
    ),
    "batches are planned from the seed, the epoch and the durations": (
        "dataset_conf.cycle",
        "dataset_conf.list_shuffle",
        "dataset_conf.list_shuffle_conf",
        "dataset_conf.shuffle",
        "dataset_conf.shuffle_conf",
        "dataset_conf.sort",
        "dataset_conf.sort_conf",
    ),
    "the feature it configures is off": (
        "dataset_conf.mfcc_conf",
        "dataset_conf.log_mel_spectrogram_conf",
        "dataset_conf.spec_sub_conf",
        "dataset_conf.spec_trim_conf",
        "wav2vec_conf",
        "data2vec_conf",
        "encoder_conf.n_expert",
        "encoder_conf.n_expert_activated",
        "decoder_conf.n_expert",
        "decoder_conf.n_expert_activated",
    ),
    "the language of an utterance comes from the data list": ("dataset_conf.language_conf",),
    "losses are always divided by the number of targets of an optimizer step": (
        "model_conf.length_normalized_loss",
    ),
    "tokenizer: phone replaces it": ("dataset_conf.split_with_space",),
    "dataset_conf.fbank_conf.num_mel_bins is the number of features": ("input_dim",),
    "output_dim is the number of units": ("vocab_size",),
    "WeNet does not use it either": (
        "dataset_conf.spec_aug_conf.max_w",
        "encoder_conf.positionwise_conv_kernel_size",
    ),
    "it is for WeNet's Whisper tokenizer": (
        "tokenizer_conf.is_multilingual",
        "tokenizer_conf.num_languages",
    ),
    "it changes speed or memory, not numbers": (
        "encoder_conf.use_sdpa",
        "decoder_conf.use_sdpa",
    ),
}


def _reason_by_key() -> dict[str, str]:
    """The table above by its keys."""
    reasons: dict[str, str] = {}
    for reason, keys in _IGNORED_BY_REASON.items():
        reasons |= dict.fromkeys(keys, reason)
    return reasons


IGNORED_KEYS = _reason_by_key()
"""Key → why it has no effect here."""

RENAMED_KEYS = {
    "symbol_table": "tokenizer_conf.symbol_table_path",
    "dict": "tokenizer_conf.symbol_table_path",
    "bpe_model": "tokenizer_conf.bpe_path",
}
"""Flags of WeNet → the setting."""


# ---- keys with only one value


@dataclass(frozen=True)
class OnlyValues:
    """The values of a setting of WeNet that describe what is done here."""

    accepted: tuple[Scalar, ...]
    """The first one is named in messages."""
    reason: str
    """Why no other value is supported."""


_STANDARD_LAYERS: dict[str, Scalar] = {
    "query_bias": True,
    "key_bias": True,
    "value_bias": True,
    "mlp_bias": True,
    "mlp_type": "position_wise_feed_forward",
    "layer_norm_type": "layer_norm",
    "n_kv_head": None,
    "head_dim": None,
}
"""Settings that WeNet's encoder and decoder both have."""
_SUPPORTED_BY_REASON: dict[str, dict[str, Scalar]] = {
    "layers are WeNet's standard ones": {
        "encoder_conf.conv_bias": True,
        "encoder_conf.conv_norm_eps": 1e-5,
        "encoder_conf.conv_inner_factor": 2,
        "encoder_conf.final_norm": True,
        "decoder_conf.input_layer": "embed",
        "decoder_conf.use_output_layer": True,
        "decoder_conf.src_attention": True,
        "decoder_conf.src_query_bias": True,
        "decoder_conf.src_key_bias": True,
        "decoder_conf.src_value_bias": True,
        **{f"encoder_conf.{key}": value for key, value in _STANDARD_LAYERS.items()},
        **{f"decoder_conf.{key}": value for key, value in _STANDARD_LAYERS.items()},
    },
    "the head is not tied to the embedding": {"decoder_conf.tie_word_embedding": False},
    "it is also given in cmvn_conf": {"cmvn_file": None},
    "global_cmvn is WeNet's JSON": {
        "is_json_cmvn": True,
        "cmvn_conf.is_json_cmvn": True,
    },
    "it is the only kind here": {
        "ctc": "ctc",
        "dataset": "asr",
    },
    "Paraformer and other kinds of models are not implemented": {"model": "asr_model"},
    "it only marks padding": {"model_conf.ignore_id": -1},
    "only with tokenizer: phone": {"tokenizer_conf.split_with_space": False},
    "units are joined by a space with tokenizer: phone, else by nothing": {
        "tokenizer_conf.connect_symbol": "",
    },
    "units such as <noise> in units.txt are whole without it, and WeNet would convert transcripts to upper case": {
        "tokenizer_conf.non_lang_syms_path": None,
    },
    "the decoder sees every frame": {"model_conf.apply_non_blank_embedding": False},
    "features are log-Mel filter banks": {
        "dataset_conf.feats_type": "fbank",
        "dataset_conf.fbank_conf.window_type": "povey",
    },
    "features are computed from audio": {"raw_wav": True},
    "audio of several channels is mixed to one": {"dataset_conf.singal_channel_conf": None},
    "speakers are not an input of the model": {"dataset_conf.speaker_conf": None},
    "this augmentation is not implemented": {
        "dataset_conf.spec_sub": False,
        "dataset_conf.spec_trim": False,
    },
    "lr is no list with one rate more; write lr_of": {"optim_conf.modules": None},
    "self-supervised training is not implemented": {"pretrain": False},
    "adapters are not implemented": {"lora_conf": None},
    "LF-MMI is not implemented": {"lfmmi_dir": None},
    "the layout of 2021; write dataset_conf as WeNet does now": {
        "collate_conf": None,
        "spec_aug_conf": None,
    },
    "noisy student training is not implemented": {
        "supervised_dataset_conf": None,
        "unsupervised_dataset_conf": None,
        "pseudo_ratio": None,
    },
    "transducers are not implemented": {
        "predictor": None,
        "predictor_conf": None,
        "joint": None,
        "joint_conf": None,
    },
}
_ALSO_ACCEPTED: dict[str, tuple[Scalar, ...]] = {"lfmmi_dir": ("",)}
"""Values besides the one in the table above."""


def _only_values_by_key() -> dict[str, OnlyValues]:
    """The two tables above by their keys."""
    only_values = {}
    for reason, settings in _SUPPORTED_BY_REASON.items():
        for key, value in settings.items():
            accepted = (value, *_ALSO_ACCEPTED.get(key, ()))
            only_values[key] = OnlyValues(accepted, reason)
    return only_values


ONLY_VALUES = _only_values_by_key()
"""Key → the values that it may have, and why no others."""
OF_TRAINING_ONLY = frozenset(
    (
        "dataset_conf.spec_sub",
        "dataset_conf.spec_trim",
        "lfmmi_dir",
        "supervised_dataset_conf",
        "unsupervised_dataset_conf",
        "pseudo_ratio",
    )
)
"""Keys of `ONLY_VALUES` that a trained model does not use: with any value it can be decoded."""
KINDS_OF_MODELS = frozenset(("model", "predictor", "predictor_conf", "joint", "joint_conf"))
"""Keys of `ONLY_VALUES` that name another kind of model: without them the file would describe a
model of ours, with other weights.
"""
