# SPDX-License-Identifier: Apache-2.0
"""The scores that belong to the weights of a model folder, which other weights of the folder may
not have."""

import logging
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.base.files import file_sha256
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.results.folder import DecodingRecord, ExperimentFolder
from wenet_hs.score.error_rate import Report
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The scores of one mode on one test set."""

    test: str
    """Name of the folder of results."""
    mode: str
    decoding: DecodingRecord
    report: Report


def read_scorings(model_dir: Path) -> list[Scoring]:
    """The scores of a folder that were decoded with its weights, as `TEST/rtf.json` shows.

    Logs a warning per test set with other scores.
    Raises CheckpointError without weights, DataError for a damaged file.
    """
    weights = weights_path(model_dir)
    weights_sha256 = file_sha256(weights)
    scorings = list[Scoring]()
    for test in ExperimentFolder(model_dir).scored_tests():
        decoding = test.read_record()
        has_decoded = weights_sha256 in decoding.model.values()
        left_out = list[str]()
        for mode in test.scored_modes():
            if has_decoded and mode in decoding.modes:
                report = test.read_score(mode)
                scorings.append(
                    Scoring(test=test.name, mode=mode, decoding=decoding, report=report)
                )
            else:
                left_out.append(mode)
        if left_out:
            where = f"{test.path}: {list_names(left_out)}: left out of the card"
            logger.warning(
                "%s: %s does not show that %s decoded them", where, test.record_path.name, weights
            )
    return scorings
