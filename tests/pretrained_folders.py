# SPDX-License-Identifier: Apache-2.0
"""Small pretrained encoders with random weights, written as folders in Hugging Face's layout by
transformers.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wenet_hs.config.encoders import PretrainedConf
from wenet_hs.model.encoders.description import EncoderDescription
from wenet_hs.model.encoders.kinds import make_pretrained
from wenet_hs.model.encoders.pretrained import PretrainedEncoder

_LAYERS = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
_WAVES = {
    **_LAYERS,
    **{
        "conv_dim": [8] * 3,
        "conv_kernel": [10, 8, 4],
        "conv_stride": [10, 8, 4],
        "num_feat_extract_layers": 3,
    },
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 8},
}
_STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
_ADAPTER = {"add_adapter": True, "num_adapter_layers": 1}
_BERT = {**_LAYERS, "model_type": "wav2vec2-bert", "conv_depthwise_kernel_size": 5}
_BUCKETS = {"num_buckets": 20, "max_bucket_distance": 40}
_WHISPER = {
    **{"d_model": 16, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
    **{"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8, "vocab_size": 16},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "wav2vec2": {"model_type": "wav2vec2", **_WAVES},
    "xls-r": {"model_type": "wav2vec2", **_WAVES, **_STABLE},
    "mms": {"model_type": "wav2vec2", **_WAVES, **_STABLE, "adapter_attn_dim": 4},
    "wav2vec2-adapter": {"model_type": "wav2vec2", **_WAVES, **_ADAPTER, "output_hidden_size": 12},
    "hubert": {"model_type": "hubert", **_WAVES},
    "mhubert": {
        "model_type": "hubert",
        **_WAVES,
        "conv_pos_batch_norm": True,
        "feat_proj_layer_norm": False,
    },
    "wavlm": {"model_type": "wavlm", **_WAVES, **_BUCKETS},
    "wavlm-large": {"model_type": "wavlm", **_WAVES, **_STABLE, **_BUCKETS},
    "w2v-bert": _BERT,
    "w2v-bert-relative": {**_BERT, "position_embeddings_type": "relative"},
    "w2v-bert-adapter": {**_BERT, **_ADAPTER, "use_intermediate_ffn_before_adapter": True},
    "whisper": {"model_type": "whisper", **_WHISPER},
}
"""The kinds of encoders, and what differs within a kind. A frame per 20 ms."""


def make_encoder(name: str, **settings: Any) -> PretrainedEncoder:
    """An encoder with random weights in evaluation mode. The same name gives the same weights."""
    torch.manual_seed(0)
    settings.setdefault("adapter", "new" if name == "mms" else None)
    encoder = make_pretrained(
        EncoderDescription(CONFIGS[name]), PretrainedConf(path="x", **settings)
    ).eval()
    generator = torch.Generator().manual_seed(1)
    for value in encoder.parameters():  # biases and norms, which begin as 0 and 1, are to matter
        value.data += 0.03 * torch.randn(value.shape, generator=generator)
    return encoder


def write_folder(folder: Path, name: str, prefix: str = "") -> Path:
    """The folder of such an encoder, with `prefix` before the names of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"do_normalize": True, "sampling_rate": 16000})
    )
    weights = make_encoder(name).pretrained.state_dict()
    save_file(
        {f"{prefix}{key}": value.contiguous() for key, value in weights.items()},
        folder / "model.safetensors",
    )
    return folder
