# SPDX-License-Identifier: Apache-2.0
"""WeNet's settings that the schema does not have: idle here and named in a warning, or not supported and refused.

Every entry is the dotted key of WeNet at commit 01546996 or of the train.yaml that it writes. A setting that would
change a number is never dropped: it must have the one value that means "off".
"""

from wenet_hs.config.yaml_source import Fault, Node, Scalar, describe

_PLAN = "batches are planned from the seed, the epoch and the durations"
_ENGINE = "torchrun is the one engine and the command line names the folder"
_STATE = "a checkpoint keeps its own position and losses"
_UNUSED = "WeNet does not use it either"
_SAME_NUMBERS = "it changes speed or memory, not numbers"
_OFF = "what it belongs to is off"
_NORMALIZED = "training divides the losses by the targets of an optimizer step, whatever it says"
_NO_LANGID = "the language of an utterance comes from the data list"

IDLE: dict[str, str] = {
    **dict.fromkeys(("train_engine", "deepspeed", "use_amp", "model_dir", "save_states"), _ENGINE),
    **dict.fromkeys(("epoch", "step", "lrs", "tag", "save_time", "loss_dict", "init_infos"), _STATE),
    **{
        f"dataset_conf.{name}": _PLAN
        for name in ("cycle", "list_shuffle", "list_shuffle_conf", "shuffle", "shuffle_conf", "sort", "sort_conf")
    },
    **{
        f"dataset_conf.{name}": _OFF
        for name in ("mfcc_conf", "log_mel_spectrogram_conf", "spec_sub_conf", "spec_trim_conf")
    },
    "dataset_conf.language_conf": _NO_LANGID,
    "model_conf.length_normalized_loss": _NORMALIZED,
    "dataset_conf.split_with_space": "tokenizer: phone says it",
    "dataset_conf.spec_aug_conf.max_w": _UNUSED,
    "tokenizer_conf.is_multilingual": "it is for WeNet's Whisper tokenizer",
    "tokenizer_conf.num_languages": "it is for WeNet's Whisper tokenizer",
    "encoder_conf.positionwise_conv_kernel_size": _UNUSED,
    "encoder_conf.use_dynamic_left_chunk": _OFF,
    "wav2vec_conf": _OFF,
    "data2vec_conf": _OFF,
    **{
        f"{section}.{name}": reason
        for section in ("encoder_conf", "decoder_conf")
        for name, reason in (
            ("use_sdpa", _SAME_NUMBERS),
            ("n_expert", _OFF),
            ("n_expert_activated", _OFF),
        )
    },
}
"""Key → why it has no effect here."""

_STREAMING = "streaming encoders are not implemented"
_LAYERS = "layers are WeNet's standard ones"
_AUGMENTATION = "this augmentation is not implemented"
_OLD_LAYOUT = "the layout of 2021; write dataset_conf as WeNet does now"

ONLY: dict[str, tuple[tuple[Scalar, ...], str]] = {
    "encoder_conf.causal": ((False,), _STREAMING),
    "encoder_conf.use_dynamic_chunk": ((False,), _STREAMING),
    "encoder_conf.static_chunk_size": ((0, -1), _STREAMING),
    "encoder_conf.conv_bias": ((True,), _LAYERS),
    "encoder_conf.conv_norm_eps": ((1e-5,), _LAYERS),
    "encoder_conf.conv_inner_factor": ((2,), _LAYERS),
    "encoder_conf.final_norm": ((True,), _LAYERS),
    "decoder_conf.input_layer": (("embed",), _LAYERS),
    "decoder_conf.use_output_layer": ((True,), _LAYERS),
    "decoder_conf.src_attention": ((True,), _LAYERS),
    "decoder_conf.tie_word_embedding": ((False,), "the head is not tied to the embedding"),
    **{
        f"{section}.{name}": (off, _LAYERS)
        for section in ("encoder_conf", "decoder_conf")
        for name, off in (
            ("query_bias", (True,)),
            ("key_bias", (True,)),
            ("value_bias", (True,)),
            ("mlp_bias", (True,)),
            ("mlp_type", ("position_wise_feed_forward",)),
            ("layer_norm_type", ("layer_norm",)),
            ("n_kv_head", (None,)),
            ("head_dim", (None,)),
        )
    },
    **{f"decoder_conf.src_{name}_bias": ((True,), _LAYERS) for name in ("query", "key", "value")},
    "tokenizer_conf.non_lang_syms_path": ((None,), "with it WeNet makes every transcript upper case"),
    "model_conf.apply_non_blank_embedding": ((False,), "the decoder sees every frame"),
    "dataset_conf.feats_type": (("fbank",), "features are log-Mel filter banks"),
    "dataset_conf.fbank_conf.window_type": (("povey",), "features are log-Mel filter banks"),
    "dataset_conf.singal_channel_conf": ((None,), "audio of several channels is mixed to one"),
    "dataset_conf.speaker_conf": ((None,), "speakers are not an input of the model"),
    "dataset_conf.spec_sub": ((False,), _AUGMENTATION),
    "dataset_conf.spec_trim": ((False,), _AUGMENTATION),
    "optim_conf.modules": ((None,), "all parameters have one learning rate"),
    "pretrain": ((False,), "self-supervised training is not implemented"),
    "lora_conf": ((None,), "adapters are not implemented"),
    "lfmmi_dir": ((None, ""), "LF-MMI is not implemented"),
    "raw_wav": ((True,), "features are computed from audio"),
    "collate_conf": ((None,), _OLD_LAYOUT),
    "spec_aug_conf": ((None,), _OLD_LAYOUT),
    "supervised_dataset_conf": ((None,), "noisy student training is not implemented"),
    "unsupervised_dataset_conf": ((None,), "noisy student training is not implemented"),
    "pseudo_ratio": ((None,), "noisy student training is not implemented"),
    **dict.fromkeys(
        ("predictor", "predictor_conf", "joint", "joint_conf"), ((None,), "transducers are not implemented")
    ),
}
"""Key → the values that mean what is done here, and why no other is supported."""

CHOICES: dict[str, tuple[str, ...]] = {
    "encoder": (
        *("squeezeformer", "efficientConformer", "branchformer", "e_branchformer", "chunkformer", "dual_conformer"),
        *("dual_transformer", "sanm_encoder", "firered_conformer"),
    ),
    "encoder_conf.input_layer": (
        *("embed", "conv1d2", "conv2d2", "dwconv2d4", "stack_n_frames", "paraformer_dummy", "firered_conv2d4"),
    ),
    "encoder_conf.pos_enc_layer_type": ("rope_pos", "abs_pos_whisper", "embed_learnable_pe", "abs_pos_paraformer"),
    "encoder_conf.selfattention_layer_type": (
        *("shaw_rel_selfattn", "rope_abs_selfattn", "abs_selfattn", "firered_rel_selfattn"),
    ),
    "encoder_conf.activation_type": ("hardtanh", "tanh", "selu"),
    "encoder_conf.cnn_module_norm": ("rms_norm",),
    "decoder": ("sanm_decoder",),
    "decoder_conf.activation_type": ("hardtanh", "tanh", "selu"),
    "tokenizer": ("whisper", "paraformer", "sentencepiece"),
    "model": ("k2_model", "ctl_model", "transducer", "whisper", "paraformer", "sense_voice_small", "firered"),
    "dataset": ("ssl",),
    "scheduler": ("NoamHoldAnnealing",),
}
"""Values that WeNet has for a setting of the schema and that are not supported."""


def translate_wenet_config(root: Node) -> tuple[Node, list[Fault], dict[str, list[str]]]:
    """The sections without WeNet's other keys, the faults among those, and the idle ones by reason."""
    root, faults = _with_cmvn_sections(root)
    idle: dict[str, list[str]] = {}
    for dotted in (*IDLE, *ONLY):
        node, root = take_out(root, dotted.split("."))
        if node is None:
            continue
        if dotted in IDLE:
            idle.setdefault(IDLE[dotted], []).append(dotted)
        elif not any(_same(node.plain(), value) for value in ONLY[dotted][0]):
            faults.append(Fault(node.place, _refusal(dotted, node.plain())))
    return root, faults, idle


def take_out(section: Node, keys: list[str]) -> tuple[Node | None, Node]:
    """The node under `keys`, or None, and the section without it."""
    if not isinstance(section.value, dict) or keys[0] not in section.value:
        return None, section
    inner = section.value[keys[0]]
    if len(keys) == 1:
        rest = {key: node for key, node in section.value.items() if key != keys[0]}
        return inner, Node(rest, section.place)
    found, changed = take_out(inner, keys[1:])
    return (found, Node({**section.value, keys[0]: changed}, section.place)) if found else (None, section)


def _same(value: object, other: Scalar) -> bool:
    """Equality for which 1 is not true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _refusal(dotted: str, value: object) -> str:
    (off, *_), reason = ONLY[dotted]
    repair = "remove it" if off is None else f"remove it or set {off if isinstance(off, str) else describe(off)}"
    return f"{dotted}: {describe(value)} is not supported ({reason}); {repair}"


def _with_cmvn_sections(root: Node) -> tuple[Node, list[Fault]]:
    """WeNet before December 2023 had `cmvn_file` and `is_json_cmvn` outside of any section."""
    file, root = take_out(root, ["cmvn_file"])
    is_json, root = take_out(root, ["is_json_cmvn"])
    old = {name: node for name, node in (("cmvn_file", file), ("is_json_cmvn", is_json)) if node is not None}
    assert isinstance(root.value, dict)  # the reader returns nothing else
    if "cmvn_conf" in root.value:
        return root, [
            Fault(node.place, f"{name}: stands in cmvn_conf too; keep that one") for name, node in old.items()
        ]
    if file is None or file.value is None:
        return root, []
    sections = {"cmvn": Node("global_cmvn", file.place), "cmvn_conf": Node(old, file.place)}
    return Node({**root.value, **sections}, root.place), []
