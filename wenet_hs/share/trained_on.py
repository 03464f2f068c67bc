# SPDX-License-Identifier: Apache-2.0
"""The recordings with which a model was trained, and whether it may be shared by their consent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.base.files import file_sha256
from wenet_hs.corpus.consent import (
    CONSENT,
    Consent,
    find_unmatched,
    join_consents,
    match_consent,
    read_consent,
)
from wenet_hs.corpus.output import read_rejected
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.model.experiment import Experiment
from wenet_hs.model.packed import WEIGHTS, unpacked_models
from wenet_hs.results.folder import ExperimentFolder
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.error_rate import count_of
from wenet_hs.tree.errors import DataError, list_names


@dataclass(frozen=True)
class _TrainingHistory:
    """What is known of the trainings that led to a model: its own, and those it started from."""

    projects: list[Path]
    """The folder of the project of each training."""
    recordings: list[str]
    """Of all training lists that are known, without repetition."""
    unknown: list[Path]
    """Model folders whose training lists are of shards, gone or changed."""


def read_consents(experiment: Experiment, path: Path | None) -> list[Consent]:
    """The consent of each recording with which the model, or one that it started from, was trained.

    Args:
        path: the file; None: consent.tsv in the project folders of these models, if there is one.

    Raises DataError in three cases: a recording of the training is not allowed; any recording is
    not allowed while not all training lists are known; a name that is not allowed is in no list, so
    that it may be misspelt.
    """
    if path is not None and not path.is_file():
        raise DataError(
            path, "no such file", "give the consent.tsv of the project, or leave --consent out"
        )
    history = _collect_trainings(experiment)
    if path is None:
        # Without repetition: a model may have started from another one of its project.
        files = list(dict.fromkeys(project / CONSENT for project in history.projects))
    else:
        files = [path]
    stated = list[tuple[str, Consent]]()  # names as they are written in the files
    matched = list[tuple[str, Consent]]()  # recordings of the training
    for file in files:
        consents_of_file = read_consent(file)
        stated += consents_of_file.items()
        matched += match_consent(consents_of_file, history.recordings)
    # Recordings of two projects may have one name: then one `no` is enough.
    stated_consents = join_consents(stated)
    consent_of_recording = join_consents(matched)
    where = " and ".join(str(file) for file in files if file.is_file())
    _refuse_recordings(where, consent_of_recording)
    _refuse_unknown_lists(where, stated_consents, history)
    _refuse_unmatched_names(where, stated_consents, history)
    return list(consent_of_recording.values())


def _collect_trainings(experiment: Experiment) -> _TrainingHistory:
    """Reads the records and training lists of a model and of those that it started from.

    A packed model among them needs no lists: its recordings were checked when it was packed.
    """
    projects = list[Path]()
    recordings = dict[str, None]()
    unknown = list[Path]()
    for folder, run in _trace_training(experiment):
        projects.append(_find_project(folder))
        clips = read_training_lists(run, folder)
        recordings |= dict.fromkeys(clip.wav for clip in clips)
        is_packed_model = (folder / WEIGHTS).is_file()
        if not clips and not is_packed_model:
            unknown.append(folder)
    return _TrainingHistory(projects, list(recordings), unknown)


def _refuse_recordings(where: str, consent_of_recording: Mapping[str, Consent]) -> None:
    """Raises DataError if a recording of the training is not allowed.

    A recording without a statement (`is_allowed` is None) is no error.
    """
    refused = [
        Path(name).name
        for name, consent in consent_of_recording.items()
        if consent.is_allowed is False
    ]
    if refused:
        count = count_of(len(refused), "recording")
        raise DataError(
            where,
            f"{count} of the training not allowed ({list_names(refused, most=3)})",
            "train without them, or change it there",
        )


def _refuse_unknown_lists(
    where: str, stated_consents: Mapping[str, Consent], history: _TrainingHistory
) -> None:
    """Raises DataError if recordings that are not allowed may have been used.

    That is so if any recording is not allowed, while the lists of a training are not known.
    """
    is_any_refused = any(consent.is_allowed is False for consent in stated_consents.values())
    if history.unknown and is_any_refused:
        lists = f"the training lists of {history.unknown[0]}"
        raise DataError(
            where,
            f"recordings are not allowed, and {lists} are of shards, gone or changed",
            "restore the lists, or train again from lists of recordings",
        )


def _refuse_unmatched_names(
    where: str, stated_consents: Mapping[str, Consent], history: _TrainingHistory
) -> None:
    """Raises DataError if a name that is not allowed matches no recording of the projects.

    All lists of the projects are read, which takes time. So that is done only if a name matches no
    recording of the training lists.
    """
    if not find_unmatched(stated_consents, history.recordings):
        return
    unmatched = find_unmatched(stated_consents, _list_recordings(history.projects))
    if unmatched:
        names = list_names(unmatched, most=3)
        raise DataError(
            where,
            f"not allowed, but no recording of the lists has this name ({names})",
            "correct the name, or remove the line",
        )


def _list_recordings(projects: Sequence[Path]) -> set[str]:
    """The recordings of all lists of the projects, also those that are not used."""
    recordings = set[str]()
    for project in projects:
        for data_list in project.glob("*/*/data.list"):
            with suppress(DataError):  # a list of shards does not name recordings
                recordings |= {clip.wav for clip in read_data_list(data_list)}
        for rejected_list in project.glob("*/rejected.tsv"):
            recordings |= {rejected.path for rejected in read_rejected(rejected_list)}
    return recordings


def read_training_lists(run: RunRecord, model_dir: Path) -> list[Utterance]:
    """The utterances of all training lists that the run record of a model names.

    Empty if one of the lists has changed or is gone, and for lists of shards. A list that has moved
    is found in another folder of the project, such as data-old-1/train/data.list. Lists are
    compared with their SHA-256 in the record.
    """
    if run.lists.kind == "shard":
        return []
    sums = run.lists.train_sums
    project = _find_project(model_dir)
    unchanged = list[Path]()
    for path in map(Path, run.lists.train_paths):
        unchanged_path = _find_list(path, project, sums)
        if unchanged_path is not None:
            unchanged.append(unchanged_path)
    if len(unchanged) != len(sums):
        return []
    utterances = list[Utterance]()
    for path in unchanged:
        utterances += read_data_list(path)
    return utterances


def _find_project(model_dir: Path) -> Path:
    """The folder of the project of a model: `my_project` of `my_project/exp/softmax`."""
    return model_dir.resolve().parent.parent


def _find_list(path: Path, project: Path, sums: Sequence[str]) -> Path | None:
    """The list at its path, or at the same place of another folder of the project.

    None if no such file has one of the SHA-256 `sums`: it has changed.
    """
    elsewhere = sorted(project.glob(f"*/{path.parent.name}/{path.name}"))
    for candidate in (path, *elsewhere):
        if candidate.is_file() and file_sha256(candidate) in sums:
            return candidate
    return None


def _trace_training(experiment: Experiment) -> Iterator[tuple[Path, RunRecord]]:
    """Model folder and run record of the training, and of those whose weights it started from.

    The record has no fact if a training is not on this machine. The trace ends at random weights,
    at a packed model, and where it comes back to a folder.
    """
    folder = experiment.model_dir
    run = experiment.run
    traced = set[Path]()
    while folder not in traced:
        yield folder, run
        traced.add(folder)
        start = _find_start(run)
        if start is None:
            return
        # A training that is not on this machine is traced too: its lists are unknown.
        folder = _find_model_dir(start, folder) or start
        run = ExperimentFolder(folder).read_run()


def _find_start(run: RunRecord) -> Path | None:
    """The folder or file of the weights that a training started from.

    None for random weights, and for those of a packed model.
    """
    name = run.base_name
    if name is None:
        return None
    is_packed_model = name.startswith("hf:") or name.lower().endswith(".zip")
    if is_packed_model or Path(name).is_relative_to(unpacked_models()):
        return None
    return Path(name)


def _find_model_dir(start: Path, folder: Path) -> Path | None:
    """The model folder of the weights `start` from which the training in `folder` began.

    It is the path itself, one of the two folders above it, or a folder of this name beside
    `folder`. None if none of them is a model folder.
    """
    candidates = (start, *start.parents[:2], folder.parent / start.name)
    for candidate in candidates:
        if ExperimentFolder(candidate).has_settings():
            return candidate
    return None
