# SPDX-License-Identifier: Apache-2.0
"""The scores that belong to the weights of a model folder.

Other scores may be there too: of weights that were in the folder before.
"""

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
    """Of the whole test set, with all modes."""
    report: Report


def read_scorings(model_dir: Path) -> list[Scoring]:
    """The scores of a folder that were decoded with its weights, as `TEST/rtf.json` shows.

    Other scores are left out. Logs a warning per test set that has some.

    Raises CheckpointError without weights, DataError for a damaged file.
    """
    weights = weights_path(model_dir)
    weights_sha256 = file_sha256(weights)
    scorings = list[Scoring]()
    for test in ExperimentFolder(model_dir).scored_tests():
        decoding = test.read_record()
        is_of_weights = weights_sha256 in decoding.model.values()
        left_out = list[str]()
        for mode in test.scored_modes():
            # The rtf.json may be one of another decoding, without this mode.
            if not is_of_weights or mode not in decoding.modes:
                left_out.append(mode)
                continue
            report = test.read_score(mode)
            scorings.append(Scoring(test=test.name, mode=mode, decoding=decoding, report=report))
        if left_out:
            logger.warning(
                "%s: %s: left out of the card: %s does not show that %s decoded them",
                test.path,
                list_names(left_out),
                test.record_path.name,
                weights,
            )
    return scorings
