# SPDX-License-Identifier: Apache-2.0
"""Files as earlier versions wrote them."""

from collections.abc import Mapping
from pathlib import Path

from wenet_hs.config.load import dump_config
from wenet_hs.config.schema import TrainingConfig


def write_facts(config: TrainingConfig, path: Path, facts: Mapping[str, str]) -> None:
    """Write a train.yaml with the facts about the training, which are in run.json now."""
    dump_config(config.model_copy(update={"provenance": dict(facts)}), path)
