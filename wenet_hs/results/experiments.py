# SPDX-License-Identifier: Apache-2.0
"""Input of a report: the results in experiment folders, the statistics of their data, and the test list."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_json
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.manifest.data_list import Utterance, read_data_list, read_text
from wenet_hs.model.modes import DEFAULT_MODE, MODES
from wenet_hs.results.pairing import SAME_COMPUTATION, Training, check_pair, training_of
from wenet_hs.runs.curves import read_curves
from wenet_hs.runs.record import RunRecord, read_run
from wenet_hs.score.compare import MACRO
from wenet_hs.score.error_rate import UNDEFINED, Report, count_of
from wenet_hs.score.seeds import SeedDifference, SystemSeeds, compare_reports, correct_p
from wenet_hs.score.tables import read_report
from wenet_hs.tree.errors import ConfigError, DataError, list_names
from wenet_hs.tree.tree import NaryTree, Tree, load_tree

logger = logging.getLogger(__name__)

SIMULATED_KEY = re.compile(r"(^|[_/])simulated_[0-9a-f]{8}")  # in the key of every clip of `prepare synthetic`


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """The content of one experiment folder. Files that do not exist are empty here and listed in `absent`."""

    name: str
    """The shortest end of the folder's path that differs from all other experiments."""
    folder: Path
    test: str = "test"
    """The sub-folder of the decoding results."""
    settings: dict[str, Any]
    """train.yaml, without the facts about the training that earlier versions wrote there."""
    run: RunRecord
    """What the training was started with; without any fact if that is not recorded."""
    curves: dict[str, list[dict[str, float]]]
    """Records of metrics.jsonl by kind, "train" and "valid"."""
    tree: Tree | NaryTree | None
    scores: dict[str, Report]
    """Scoring of each decoding mode, in the order of `MODES`."""
    rtf: dict[str, Any]
    """The content of rtf.json."""
    absent: tuple[str, ...]
    """Names of absent files with their content."""
    outdated: tuple[str, ...]
    """A message per mode whose text was decoded again after its scoring."""

    @property
    def head(self) -> str:
        """Kind of the output layer: of the decoder, or of CTC if there is no decoder."""
        settings = self.settings.get("ctc_conf", {}) if self.settings.get("decoder") == "none" else self.settings
        return str(settings.get("head", "unknown"))

    @property
    def training(self) -> Training:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings, self.run)

    @property
    def speeds(self) -> dict[str, dict[str, Any]]:
        """`wall_seconds`, `rtf` and `sum_rtf_by_lang` of each mode, in the order of `MODES`."""
        return {mode: self.rtf["modes"][mode] for mode in sort_modes(self.rtf["modes"])}

    @property
    def is_pretrained_on_simulated(self) -> bool:
        """Whether the training began from a model of simulated speech, which recipes name `…simulated…`."""
        return "simulated" in (self.run.base_name or "")


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The input of all sections of the page."""

    experiments: Sequence[ExperimentResults]
    mode: str | None
    """The decoding mode that the page shows; None if nothing is scored."""
    stats: Mapping[Path, dict[str, Any]] = field(default_factory=dict)
    """The content of each known stats.json by its path."""
    clips: Mapping[str, Utterance] = field(default_factory=dict)
    """The test list by key; empty if unknown."""
    data_list: Path | None = None
    """The file of `clips`."""
    is_simulated: bool | None = None
    """None: unknown."""
    systems: Sequence[SystemSeeds] = ()
    """The systems with several seeds, by mode."""
    seed_faults: Sequence[str] = ()
    """A message for each system that cannot be compared over seeds."""

    @property
    def note(self) -> str:
        """The kind of speech behind the numbers, see `describe_speech`."""
        return describe_speech(bool(self.is_simulated), [one.is_pretrained_on_simulated for one in self.experiments])

    @property
    def folders(self) -> list[Path]:
        """The folders with a known stats.json, and that of the test list."""
        lists = [] if self.data_list is None else [self.data_list.parent.parent]
        return [*dict.fromkeys([*(path.parent for path in self.stats), *lists])]

    @property
    def shown(self) -> list[tuple[int, ExperimentResults, Report]]:
        """The experiments scored in the shown mode, each with its index on the page."""
        return [
            (index, experiment, experiment.scores[self.mode])
            for index, experiment in enumerate(self.experiments)
            if self.mode is not None and self.mode in experiment.scores
        ]


def describe_speech(is_simulated: bool, are_pretrained: Sequence[bool]) -> str:
    """A note beside numbers, with a space before it; empty if all speech is real.

    `is_simulated`: of the test; `are_pretrained`: for each training whether it began from a model of simulated speech.
    """
    if is_simulated:
        return " (simulated speech)"
    if not any(are_pretrained):
        return ""
    return " (real + simulated)" if all(are_pretrained) else " (real, and real + simulated)"


def read_experiments(folders: Sequence[Path], *, test: str = "test") -> list[ExperimentResults]:
    """Read experiment folders. Their decoding results are in the sub-folder `test`.

    Raises DataError for a folder that is given twice, does not exist, has no results, or has a damaged file.
    """
    absent = next((folder for folder in folders if not folder.is_dir()), None)
    if absent is not None:
        raise DataError(absent, "no such experiment folder", "check --exp")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise DataError(folders[-1], "the same experiment twice", "give each --exp once")
    parts = [folder.resolve().parts for folder in folders]
    lengths = range(1, max(map(len, parts)) + 1)
    names = (["/".join(part[-length:]) for part in parts] for length in lengths)
    shortest = next(of_length for of_length in names if len(set(of_length)) == len(folders))
    return [_read_experiment(folder, name, test) for folder, name in zip(folders, shortest, strict=True)]


def _read_experiment(folder: Path, name: str, test: str) -> ExperimentResults:
    settings = dict(read_yaml(folder / "train.yaml").values) if (folder / "train.yaml").is_file() else {}
    run = read_run(folder, settings) or RunRecord()
    settings.pop("provenance", None)
    curves = read_curves(folder / "metrics.jsonl")
    modes = sort_modes(path.parent.name for path in (folder / test).glob("*/score.json"))
    scores = {mode: read_report(folder / test / mode / "score.json") for mode in modes}
    if not (settings or curves or scores):
        what = f"contains no train.yaml, metrics.jsonl or {test}/<mode>/score.json"
        raise DataError(folder, what, "give the --model_dir of a training")
    outdated = []
    for mode, report in scores.items():  # speed and confidences belong to the new text
        path = folder / test / mode / "text"
        texts = read_text(path) if path.is_file() else None
        if texts is not None and any(found.hyp != texts.get(key) for key, found in report.utterances.items()):
            fault = "decoded again after its scoring, its text has changed; run `wenet-hs score` again"
            outdated.append(f"{mode}: {fault}")
            logger.warning("%s, %s: %s", name, mode, fault)
    tree = load_tree(folder / "tree.json") if (folder / "tree.json").is_file() else None
    speed = folder / test / "rtf.json"
    rtf = read_json(speed, "decode again") if speed.is_file() else {"modes": {}}
    if not (isinstance(rtf, dict) and isinstance(rtf.get("modes"), dict)):
        raise DataError(speed, "not the rtf.json of `recognize`", "decode again")
    found = {
        "train.yaml (settings, versions)": settings,
        "metrics.jsonl (training curves)": curves,
        "tree.json (the tree)": tree or settings.get("head") == "softmax",
        f"{test}/<mode>/score.json (error rates)": scores,
        f"{test}/rtf.json (speed)": rtf["modes"],
    }
    return ExperimentResults(
        name=name,
        folder=folder,
        test=test,
        settings=settings,
        run=run,
        curves=curves,
        tree=tree,
        scores=scores,
        rtf=rtf,
        absent=tuple(what for what, content in found.items() if not content),
        outdated=tuple(outdated),
    )


def sort_modes(modes: Iterable[str]) -> list[str]:
    """Decoding modes in the order of `MODES`, then others by name."""
    order = list(MODES)
    return sorted(modes, key=lambda mode: (order.index(mode) if mode in order else len(order), mode))


def gather_data(
    experiments: Sequence[ExperimentResults],
    *,
    mode: str | None = None,
    stats: Path | None = None,
    data_list: Path | None = None,
) -> ReportData:
    """Collect all input of a page.

    Args:
        mode: the decoding mode to show; None: `attention_rescoring`, or another mode that most experiments have.
            The error rates never decide: that would be a selection on the test set.
        stats: the stats.json of the data; None: the files beside the lists of the trainings.
        data_list: the list that was decoded; None: the one beside a stats.json, if it has all scored utterances.

    Raises ConfigError for a mode without scores, DataError for experiments with different test sets.
    """
    keys = _keys_of_same_test(experiments)
    paths = [stats] if stats is not None else _find_stats(experiments)
    corpora = {path: read_json(path, "prepare the data again") for path in paths}
    if wrong := [path for path, record in corpora.items() if not isinstance(record, dict)]:
        raise DataError(wrong[0], "not the stats.json of `prepare`", "check --stats")
    # The keys of the clips show it too, even if the experiment was moved to another machine.
    is_marked = any('"simulated": true' in json.dumps(record) for record in corpora.values())
    is_simulated = is_marked or any(map(SIMULATED_KEY.search, keys))
    clips, source = _read_test_list(keys, paths, data_list)
    modes = sort_modes({name for experiment in experiments for name in experiment.scores})
    systems, seed_faults = compare_systems(experiments, modes)
    return ReportData(
        experiments=experiments,
        mode=choose_mode(experiments, mode),
        stats=corpora,
        clips=clips,
        data_list=source,
        is_simulated=is_simulated if is_simulated or corpora else None,
        systems=systems,
        seed_faults=seed_faults,
    )


# ---- systems over seeds

_Seeds = dict[str, ExperimentResults]


def group_seeds(experiments: Sequence[ExperimentResults], mode: str) -> dict[str, _Seeds]:
    """The experiments with a macro average in this mode by system, which is all settings and files but the seed.

    A system has the name of its first experiment. Experiments without a seed are single.
    """
    groups: dict[object, tuple[str, _Seeds]] = {}
    used = Counter[str]()
    for found in experiments:
        if mode not in found.scores or found.scores[mode].macro.rate is None:
            continue
        seed = str(found.settings.get("seed", UNDEFINED))
        settings = repr((found.settings | {"seed": None}, _files_of_system(found.run)))
        key = (settings, used[settings + seed]) if "seed" in found.settings else found.name
        used[settings + seed] += 1  # a second experiment with equal settings and seed is another system
        groups.setdefault(key, (found.name.removesuffix(f"-seed{seed}"), {}))[1][seed] = found
    names = Counter(name for name, _ in groups.values())
    return {name if names[name] == 1 else next(iter(of.values())).name: of for name, of in groups.values()}


def _files_of_system(run: RunRecord) -> tuple[object, ...]:
    """The sums of what all seeds of a system share.

    Each seed may start from weights of its own, so of these only whether there are any.
    """
    has_base = run.base_name is not None
    return (sorted(run.files.items()), run.lists.train_sums, run.encoder_sha256, has_base)


def compare_systems(
    experiments: Sequence[ExperimentResults], modes: Iterable[str]
) -> tuple[list[SystemSeeds], list[str]]:
    """The systems with several seeds in each mode, and a message for each one that cannot be compared."""
    rows, faults = list[SystemSeeds](), list[str]()
    for mode in modes:
        systems = {name: of for name, of in group_seeds(experiments, mode).items() if len(of) > 1}
        first = next(iter(systems), "")
        for name, of in systems.items():
            difference = None
            if name != first:
                try:
                    difference = _compare(systems[first], of, mode)
                except DataError as error:
                    faults.append(f"{first} and {name} are not compared over seeds in {mode}: {error}")
            rates = {seed: found.scores[mode].macro.rate or 0.0 for seed, found in of.items()}
            rows.append(SystemSeeds(mode=mode, name=name, rates=rates, baseline=first, difference=difference))
    return correct_p(rows), faults


def _compare(baseline: _Seeds, other: _Seeds, mode: str) -> SeedDifference:
    seeds = [seed for seed in baseline if seed in other]
    if len(seeds) < 2:
        where = f"seeds {', '.join(baseline)} and {', '.join(other)}"
        raise DataError(where, to_do="train both with the same seeds")
    for seed in seeds:
        check_pair(baseline[seed].training, other[seed].training, SAME_COMPUTATION)
    pairs = {seed: (baseline[seed].scores[mode], other[seed].scores[mode]) for seed in seeds}
    return compare_reports(pairs).differences[MACRO]


# ---- the shown mode and the files of the data


def choose_mode(experiments: Sequence[ExperimentResults], requested: str | None) -> str | None:
    """The mode to show: the one that most experiments have, then the default mode; None without scores."""
    num_scored = Counter(mode for experiment in experiments for mode in experiment.scores)
    if requested is not None and requested not in num_scored:
        known = ", ".join(sort_modes(num_scored)) or "none"
        where = f"--mode {requested}"
        raise ConfigError(where, "no experiment is scored in this mode", f"scored modes are: {known}")
    order = [DEFAULT_MODE, *reversed(MODES), *sorted(num_scored)]
    return requested or max(num_scored, key=lambda mode: (num_scored[mode], -order.index(mode)), default=None)


def _keys_of_same_test(experiments: Sequence[ExperimentResults]) -> set[str]:
    """The keys of all scorings. Raises DataError for different references, because one table shows their rates."""
    first_path, first = Path(), dict[str, tuple[str, str]]()
    for experiment in experiments:
        for mode, report in experiment.scores.items():
            path = experiment.folder / experiment.test / mode / "score.json"
            reference = {key: (found.lang, found.ref) for key, found in report.utterances.items()}
            first_path, first = (first_path, first) if first else (path, reference)
            differing = sorted({key for key, _ in reference.items() ^ first.items()})
            if differing:
                which = f"{count_of(len(differing), 'utterance')} differ ({list_names(differing)})"
                to_do = "report experiments with one test set, or score all again with one --ref"
                raise DataError(path, f"another test set than {first_path}: {which}", to_do)
    return set(first)


def _find_stats(experiments: Sequence[ExperimentResults]) -> list[Path]:
    """The stats.json of each training corpus that still exists.

    `prepare` writes OUT/stats.json and OUT/train/data.list; the run record has the paths of the lists.
    """
    lists = list[str]()
    for experiment in experiments:
        lists += experiment.run.lists.train_paths
        lists += experiment.run.lists.valid_paths
    expected = dict.fromkeys(Path(path).parent.parent / "stats.json" for path in lists if path.endswith(".list"))
    return [path for path in expected if path.is_file()]


def _read_test_list(
    keys: set[str], stats: Iterable[Path], data_list: Path | None
) -> tuple[dict[str, Utterance], Path | None]:
    """The test utterances by key and their list; empty if no known list has all scored utterances."""
    for path in [data_list] if data_list else [path.parent / "test" / "data.list" for path in stats]:
        clips = {clip.key: clip for clip in read_data_list(path)} if data_list or path.is_file() else {}
        lacking = sorted(keys - clips.keys())
        if lacking and data_list:
            which = f"{count_of(len(lacking), 'scored utterance')} ({list_names(lacking)})"
            found = f"not the list that was decoded, it lacks {which}"
            raise DataError(data_list, found, "give --data_list the list of the test")
        if clips and (data_list or keys) and not lacking:
            return clips, path
    return {}, None
