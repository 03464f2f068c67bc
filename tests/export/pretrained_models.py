# SPDX-License-Identifier: Apache-2.0
"""Model folders over small pretrained encoders with random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import TABLE
from pretrained_folders import write_folder
from small_models import SPECIAL

from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.model.build import build_model
from wenet_hs.model.encoders.description import read_description


def write_pretrained(folder: Path, kind: str) -> Path:
    """A model folder over a small pretrained encoder with random weights, without a decoder."""
    pytest.importorskip("transformers")
    source = write_folder(folder / "hf", kind)
    description = read_description(source)
    conf: dict[str, Any] = {"path": "encoder.json"}
    if description.has_language_adapters:
        conf["adapter"] = "new"
    special = {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2}
    tokenizer_conf = {"symbol_table_path": "units.txt", "special_tokens": special}
    config = ExperimentConfig(
        encoder="pretrained",
        encoder_conf=conf,
        decoder="none",
        dataset_conf={"spec_aug": False},  # type: ignore[arg-type]
        tokenizer_conf=tokenizer_conf,  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    model = build_model(config, len(TABLE), SPECIAL, pretrained=description)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += (3.0 if name.startswith("ctc") else 0.05) * torch.randn_like(value)
    dump_config(config, folder / "train.yaml")
    TABLE.write(folder / "units.txt")
    (folder / "encoder.json").write_text(description.to_json(), "utf-8")
    torch.save(model.state_dict(), folder / "final.pt")
    return folder
