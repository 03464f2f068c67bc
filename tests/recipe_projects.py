# SPDX-License-Identifier: Apache-2.0
"""Folders that recipes read: lists with hours of speech, options, and pretrained encoders."""

import json
from pathlib import Path

from pretrained_folders import CONFIGS

from wenet_hs.recipes.folder_options import FolderOptions, write_folder_options


def write_stats(folder: Path, hours: float) -> Path:
    """A folder of lists with these hours of training speech."""
    folder.mkdir(exist_ok=True)
    content = {"total": {"hours": {"train": hours}}}
    (folder / "stats.json").write_text(json.dumps(content))
    return folder


def write_options(folder: Path, /, **values: str) -> None:
    """The options with which the recipe `own` made a folder."""
    write_folder_options(folder, FolderOptions("own", values))


def write_description(folder: Path, name: str) -> Path:
    """The folder of an encoder whose weights are an empty file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder
