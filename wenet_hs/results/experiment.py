# SPDX-License-Identifier: Apache-2.0
"""Experiments to compare: what their folders have about the training and one test set."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.results.folder import (
    DEFAULT_TEST,
    DecodedTest,
    DecodingRecord,
    ExperimentFolder,
    ModeSpeed,
)
from wenet_hs.results.pairing import TrainingFacts, training_of
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.error_rate import Report
from wenet_hs.tree.errors import DataError
from wenet_hs.tree.tree import NaryTree, Tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """The content of one experiment folder.

    What a file would have that does not exist is empty here. `absent` lists these files.
    """

    name: str
    """The end of the folder's path, as long as needed to differ from all other experiments."""
    folder: Path
    test: DecodedTest
    """The folder of the decoding results."""
    settings: dict[str, Any]
    """train.yaml."""
    run: RunRecord
    """What the training was started with; without any fact if that is not recorded."""
    curves: dict[str, list[dict[str, float]]]
    """Records of metrics.jsonl by kind, "train" and "valid"."""
    tree: Tree | NaryTree | None
    scores: dict[str, Report]
    """Scoring of each decoding mode, in the order of `sort_modes`."""
    decoding: DecodingRecord
    """Options and times of the decoding."""
    absent: tuple[str, ...]
    """Names of absent files, each with its usual content in brackets."""
    outdated: tuple[str, ...]
    """A message per mode whose text was decoded again after its scoring."""

    @property
    def head(self) -> str:
        """Kind of the output layer: of the decoder, or of CTC if there is no decoder."""
        has_decoder = self.settings.get("decoder") != "none"
        settings = self.settings if has_decoder else self.settings.get("ctc_conf", {})
        return str(settings.get("head", "unknown"))

    @property
    def training(self) -> TrainingFacts:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings, self.run)

    @property
    def speeds(self) -> dict[str, ModeSpeed]:
        """The times of each decoded mode, in the order of `sort_modes`."""
        return self.decoding.speeds

    @property
    def is_pretrained_on_simulated(self) -> bool:
        """Whether the training began from a model of simulated speech.

        Recipes have `simulated` in the names of such models.
        """
        return "simulated" in (self.run.base_name or "")


def read_experiments(
    folders: Sequence[Path], *, test: str = DEFAULT_TEST
) -> list[ExperimentResults]:
    """Read experiment folders, in the given order.

    Logs a warning per mode whose scoring is outdated.

    Args:
        test: the sub-folder with the decoding results.
    Raises:
        DataError: a folder is given twice, does not exist, has no results, or has a damaged file.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DataError(folder, "no such experiment folder", "check --exp")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise DataError(folders[-1], "the same experiment twice", "give each --exp once")
    names = _shortest_names(folders)
    return [
        _read_experiment(folder, name, test) for folder, name in zip(folders, names, strict=True)
    ]


def _shortest_names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: the end of its path.

    All names have equally many parts, as few as make them different. An example: `s0/exp` and
    `s1/exp` for `/a/s0/exp` and `/a/s1/exp`. The folders must be different.
    """
    all_parts = [folder.resolve().parts for folder in folders]
    names: list[str] = []
    for num_parts in range(1, max(map(len, all_parts)) + 1):
        names = ["/".join(parts[-num_parts:]) for parts in all_parts]
        if len(set(names)) == len(names):
            break
    return names


def _read_experiment(path: Path, name: str, test_name: str) -> ExperimentResults:
    """All that one experiment folder has. Logs a warning per outdated scoring.

    Raises DataError if it has no settings, curves or scores, or a file is damaged.
    """
    folder = ExperimentFolder(path)
    test = folder.test(test_name)
    settings = folder.read_settings()
    run = folder.read_run()
    curves = folder.read_curves()
    scores = test.read_scores()
    if not (settings or curves or scores):
        fault = f"contains no train.yaml, metrics.jsonl or {test_name}/<mode>/score.json"
        raise DataError(path, fault, "give the --model_dir of a training")
    outdated = _find_outdated(test, scores)
    for message in outdated:
        logger.warning("%s, %s", name, message)
    tree = folder.read_tree()
    decoding = test.read_record()
    # A head without a tree in its settings needs no tree.json. Without settings it may have one.
    head_settings = settings.get("head_conf") or {}
    is_without_tree = bool(settings) and "tree" not in head_settings
    is_there = {
        "train.yaml (settings, versions)": bool(settings),
        "metrics.jsonl (training curves)": bool(curves),
        "tree.json (the tree)": tree is not None or is_without_tree,
        f"{test_name}/<mode>/score.json (error rates)": bool(scores),
        f"{test_name}/rtf.json (speed)": bool(decoding.modes),
    }
    return ExperimentResults(
        name=name,
        folder=path,
        test=test,
        settings=settings,
        run=run,
        curves=curves,
        tree=tree,
        scores=scores,
        decoding=decoding,
        absent=tuple(file for file, exists in is_there.items() if not exists),
        outdated=tuple(outdated),
    )


def _find_outdated(test: DecodedTest, scores: Mapping[str, Report]) -> list[str]:
    """A message per mode that was decoded again after its scoring."""
    fault = "decoded again after its scoring, its text has changed; run `wenet-hs score` again"
    return [f"{mode}: {fault}" for mode, report in scores.items() if test.is_outdated(mode, report)]


def read_training(hypothesis: Path) -> TrainingFacts | None:
    """The training that decoded a file of hypotheses, MODEL_DIR/<test>/<mode>/text.

    None if MODEL_DIR has no train.yaml, or if there is no third folder above the file.

    Raises ConfigError or DataError if a file of MODEL_DIR is damaged.
    """
    parents = hypothesis.resolve().parents
    if len(parents) < 3:
        return None
    folder = ExperimentFolder(parents[2])  # above the folders of the mode (0) and the test (1)
    if not folder.has_settings():
        return None
    return training_of(str(hypothesis), folder.read_settings(), folder.read_run())
