# SPDX-License-Identifier: Apache-2.0
"""The recordings with which a model was trained, and whether it may be shared by their consent."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
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


def read_training_lists(run: RunRecord, model_dir: Path) -> list[Utterance]:
    """The utterances of the training lists; empty for lists of shards, or unless all of them still
    exist unchanged.

    A list that has moved is found in another folder of the project, such as
    data-old-1/train/data.list.
    """
    if run.lists.kind == "shard":
        return []
    sums = run.lists.train_sums
    project = model_dir.resolve().parent.parent
    unchanged = list[Path]()
    for path in map(Path, run.lists.train_paths):
        same = _find_list(path, project, sums)
        if same is not None:
            unchanged.append(same)
    if len(unchanged) != len(sums):
        return []
    utterances = list[Utterance]()
    for path in unchanged:
        utterances += read_data_list(path)
    return utterances


def _find_list(path: Path, project: Path, sums: Sequence[str]) -> Path | None:
    """The list at its path, or at the same place of another folder of the project; None if it has
    changed.
    """
    elsewhere = sorted(project.glob(f"*/{path.parent.name}/{path.name}"))
    for candidate in (path, *elsewhere):
        if candidate.is_file() and file_sha256(candidate) in sums:
            return candidate
    return None


def read_consents(experiment: Experiment, path: Path | None) -> list[Consent]:
    """The consent of each recording with which the model was trained, also of the models that it
    started from.

    Args:
        path: the file; None: consent.tsv in the project folders of these models, if there is one.

    Raises DataError if a recording is not allowed, if some are not and the training lists are not
    known any more, or if one that is not allowed is in no list: its name may be wrong.
    """
    if path is not None and not path.is_file():
        raise DataError(
            path, "no such file", "give the consent.tsv of the project, or leave --consent out"
        )
    recordings, unknown, files = dict[str, None](), list[Path](), dict[Path, None]()
    projects = list[Path]()
    for folder, run in _trace_training(experiment):
        projects.append(folder.resolve().parent.parent)
        files[path or projects[-1] / CONSENT] = None
        clips = read_training_lists(run, folder)
        recordings |= dict.fromkeys(clip.wav for clip in clips)
        unknown += (
            [] if clips or (folder / WEIGHTS).is_file() else [folder]
        )  # a packed model was checked before
    # Recordings of two projects may have one name: then one `no` is enough.
    of_files = [read_consent(file) for file in files]
    found = join_consents(
        pair for consents in of_files for pair in match_consent(consents, recordings)
    )
    consents = join_consents(pair for consents in of_files for pair in consents.items())
    where = " and ".join(str(file) for file in files if file.is_file())
    if refused := [name for name, one in found.items() if one.is_allowed is False]:
        names = list_names([Path(name).name for name in refused], most=3)
        what = f"{count_of(len(refused), 'recording')} of the training not allowed ({names})"
        raise DataError(where, what, "train without them, or change it there")
    if unknown and any(one.is_allowed is False for one in consents.values()):
        reason = f"recordings are not allowed, and the training lists of {unknown[0]} are of shards, gone or changed"
        raise DataError(where, reason, "restore the lists, or train again from lists of recordings")
    if find_unmatched(consents, recordings) and (
        wrong := find_unmatched(consents, _list_recordings(projects))
    ):
        reason = f"not allowed, but no recording of the lists has this name ({list_names(wrong, most=3)})"
        raise DataError(where, reason, "correct the name, or remove the line")
    return [*found.values()]


def _list_recordings(projects: Sequence[Path]) -> set[str]:
    """The recordings of all lists of the projects, also those that are not used."""
    lists = [path for project in projects for path in project.glob("*/*/data.list")]
    rejected = [path for project in projects for path in project.glob("*/rejected.tsv")]
    known = set[str]()
    for path in lists:
        with suppress(DataError):  # a list of shards does not name recordings
            known |= {clip.wav for clip in read_data_list(path)}
    return known | {one.path for path in rejected for one in read_rejected(path)}


def _trace_training(experiment: Experiment) -> Iterator[tuple[Path, RunRecord]]:
    """Folder and record of the training, and of those whose weights it started from.

    The record has no fact where the training is not on this machine.
    """
    folder: Path | None = experiment.model_dir
    run = experiment.run
    seen = set[Path]()
    while folder is not None and folder not in seen:
        yield folder, run
        seen.add(folder)
        start = _local_start(run)
        if start is None:
            return
        folder = _find_training(start, folder) or start
        run = ExperimentFolder(folder).read_run()


def _local_start(run: RunRecord) -> Path | None:
    """The folder or file of the weights that a training started from; None for random and for
    packed ones.
    """
    name = run.base_name
    if name is None or name.startswith("hf:") or name.lower().endswith(".zip"):
        return None
    path = Path(name)
    return None if path.is_relative_to(unpacked_models()) else path


def _find_training(start: Path, folder: Path) -> Path | None:
    """The model folder of the weights `start` from which the training in `folder` began; None if it
    is not here.
    """
    places = (start, *start.parents[:2], folder.parent / start.name)
    return next((place for place in places if ExperimentFolder(place).has_settings()), None)
