# SPDX-License-Identifier: Apache-2.0
"""Reads the folder of a training: where its files are, and what is in them.

    MODEL_DIR/train.yaml             settings
    MODEL_DIR/run.json               run record
    MODEL_DIR/metrics.jsonl          curves
    MODEL_DIR/tree.json              tree of the output layer
    MODEL_DIR/TEST/rtf.json          decoding options and times
    MODEL_DIR/TEST/MODE/text         best hypotheses
    MODEL_DIR/TEST/MODE/hyps.jsonl   n-best hypotheses, confidences
    MODEL_DIR/TEST/MODE/score.json   error rates

Any of them may be absent. Each is read only when it is asked for, because the local page lists many
folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.base.files import read_cached, read_json
from wenet_hs.config.extensions import EXTENSIONS
from wenet_hs.config.load import is_language_model
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.manifest.data_list import read_text
from wenet_hs.results.modes import sort_modes
from wenet_hs.runs.curves import read_curves
from wenet_hs.runs.file_names import CURVES_FILE, HYPOTHESES_FILE, SCORE_FILE, SPEED_FILE
from wenet_hs.runs.hypotheses import read_hypotheses
from wenet_hs.runs.record import RunRecord, read_run
from wenet_hs.score.error_rate import Report
from wenet_hs.score.report_file import read_report
from wenet_hs.tree.errors import DataError
from wenet_hs.tree.tree import NaryTree, Tree, load_tree

DEFAULT_TEST = "test"
"""The usual name of the folder with the decoding results of a model."""


class ModeSpeed(BaseModel):
    """The times of one decoding mode. None: not recorded."""

    model_config = ConfigDict(frozen=True)

    wall_seconds: float | None = None
    """Of the slowest rank."""
    rtf: float | None = None
    """Seconds of work per second of audio."""
    sum_rtf_by_lang: Mapping[str, float] = {}
    """The same by language, as a sum over the ranks."""


class DecodingRecord(BaseModel):
    """How a test set was decoded: the content of `rtf.json`, which `recognize` writes."""

    model_config = ConfigDict(frozen=True, extra="allow")

    modes: Mapping[str, ModeSpeed]
    audio_seconds: float | None = None
    """Duration of the test set."""
    seconds: Mapping[str, float] = {}
    """Seconds per stage of the work."""
    versions: Mapping[str, str] = {}
    """Of the packages that decoded."""
    model: Mapping[str, str] = {}
    """SHA-256 of the files of the model, by name."""

    @property
    def options(self) -> dict[str, Any]:
        """All conditions by name, such as device and beam size, in the order of the file.

        They are the keys of `rtf.json` that this class does not declare.
        """
        return dict(self.model_extra or {})

    @property
    def speeds(self) -> dict[str, ModeSpeed]:
        """The times of the modes, in the order of `sort_modes`."""
        return {mode: self.modes[mode] for mode in sort_modes(self.modes)}


NO_DECODING_RECORD = DecodingRecord(modes={})
"""Of a test set without `rtf.json`."""


def read_decoding_record(path: Path) -> DecodingRecord:
    """The options and times in a file `rtf.json`. Raises DataError if it is absent or damaged."""
    try:
        return DecodingRecord.model_validate(read_json(path, "decode again"))
    except ValidationError as error:
        raise DataError(path, "not the rtf.json of `recognize`", "decode again") from error


@dataclass(frozen=True)
class DecodedTest:
    """The folder of the decoding results of one model on one test set."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def record_path(self) -> Path:
        return self.path / SPEED_FILE

    def text_path(self, mode: str) -> Path:
        return self.path / mode / "text"

    def hypotheses_path(self, mode: str) -> Path:
        return self.path / mode / HYPOTHESES_FILE

    def score_path(self, mode: str) -> Path:
        return self.path / mode / SCORE_FILE

    def scored_modes(self) -> list[str]:
        """The modes with a scoring, in the order of `sort_modes`."""
        return sort_modes(path.parent.name for path in self.path.glob(f"*/{SCORE_FILE}"))

    def read_record(self) -> DecodingRecord:
        """The options and times of the decoding; without any mode if there is no `rtf.json`.

        Raises DataError if it is damaged.
        """
        path = self.record_path
        return read_decoding_record(path) if path.is_file() else NO_DECODING_RECORD

    def read_score(self, mode: str) -> Report:
        """The scoring of a mode. Raises DataError if it is absent or damaged."""
        return read_report(self.score_path(mode))

    def read_scores(self) -> dict[str, Report]:
        """The scoring of each scored mode, in the order of `sort_modes`.

        Raises DataError if one is damaged.
        """
        return {mode: self.read_score(mode) for mode in self.scored_modes()}

    def is_outdated(self, mode: str, report: Report) -> bool:
        """Whether a mode was decoded again after this scoring, with another text.

        Then speed and confidences belong to the new text. False if the file of the text is absent.
        """
        path = self.text_path(mode)
        if not path.is_file():
            return False
        texts = read_text(path)
        return any(scored.hyp != texts.get(key) for key, scored in report.utterances.items())

    def read_confidences(self, mode: str) -> dict[str, float] | None:
        """The confidence of the best hypothesis of each utterance, by key.

        None without `hyps.jsonl`. Utterances without a confidence and incomplete lines are left out.
        """
        path = self.hypotheses_path(mode)
        if not path.is_file():
            return None
        confidences = dict[str, float]()
        for hypotheses in read_hypotheses(path):
            if hypotheses is not None and hypotheses.confidence is not None:
                confidences[hypotheses.key] = hypotheses.confidence
        return confidences


@dataclass(frozen=True)
class ExperimentFolder:
    """The folder of a training. Settings and curves are read again only if they have changed."""

    path: Path

    @property
    def settings_path(self) -> Path:
        return self.path / "train.yaml"

    @property
    def curves_path(self) -> Path:
        return self.path / CURVES_FILE

    @property
    def tree_path(self) -> Path:
        return self.path / "tree.json"

    def has_settings(self) -> bool:
        """Whether a training was begun here."""
        return self.settings_path.is_file()

    def is_language_model(self) -> bool:
        """Whether the training is one of a language model.

        Raises ConfigError if train.yaml is no YAML.
        """
        return is_language_model(self.read_settings())

    def read_settings(self) -> dict[str, Any]:
        """The settings in train.yaml, nested; empty without this file.

        The list of needed packages is no setting: their versions are not compared.
        Raises ConfigError if it is no YAML.
        """
        if not self.has_settings():
            return {}
        settings = dict(read_cached(read_yaml, self.settings_path).values)
        settings.pop(EXTENSIONS, None)
        return settings

    def read_run(self) -> RunRecord:
        """The run record: what the training was started with, and how far it is.

        Without run.json it is a record without facts.
        Raises DataError if run.json is damaged or of a newer version.
        """
        return read_run(self.path) or RunRecord()

    def read_curves(self) -> dict[str, list[dict[str, float]]]:
        """The records of metrics.jsonl by kind, "train" and "valid"; empty without this file.

        Raises DataError if it is damaged.
        """
        return read_cached(read_curves, self.curves_path, {})

    def read_tree(self) -> Tree | NaryTree | None:
        """The tree of the output layer; None without tree.json.

        Raises DataError if it is damaged.
        """
        return load_tree(self.tree_path) if self.tree_path.is_file() else None

    def test(self, name: str = DEFAULT_TEST) -> DecodedTest:
        """The results on a test set, whose folder may not exist."""
        return DecodedTest(self.path / name)

    def scored_tests(self) -> list[DecodedTest]:
        """The results on all test sets with a scoring, by name."""
        score_files = self.path.glob(f"*/*/{SCORE_FILE}")  # TEST/MODE/score.json
        test_folders = {path.parent.parent for path in score_files}
        return [DecodedTest(path) for path in sorted(test_folders)]
