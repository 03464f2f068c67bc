# SPDX-License-Identifier: Apache-2.0
"""The recordings with which a model was trained, and whether it may be shared by their consent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wenet_hs.config.load import load_config
from wenet_hs.corpus.consent import CONSENT, Consent, find_unmatched, join_consents, match_consent, read_consent
from wenet_hs.corpus.output import read_rejected
from wenet_hs.errors import DataError, list_names
from wenet_hs.experiment import SHA256_OF, Experiment
from wenet_hs.files import file_sha256
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.score.error_rate import count_of
from wenet_hs.score.pairing import command_values, first_weights
from wenet_hs.shared_model import WEIGHTS, unpacked_models


def read_training_lists(provenance: Mapping[str, Any], model_dir: Path) -> list[Utterance]:
    """The utterances of the training lists; empty for lists of shards, or unless all of them still exist unchanged.

    A list that has moved is found in another folder of the project, such as data-old-1/train/data.list.
    """
    paths, sums = command_values(provenance, "--train_data"), str(provenance.get(f"{SHA256_OF}training list"))
    project, found = model_dir.resolve().parent.parent, list[Path]()
    if command_values(provenance, "--data_type") == ["shard"]:
        return []
    for path in map(Path, paths):
        candidates = (path, *sorted(project.glob(f"*/{path.parent.name}/{path.name}")))
        found += [one for one in candidates if one.is_file() and file_sha256(one) in sums][:1]
    return [clip for path in found for clip in read_data_list(path)] if len(found) == len(sums.split()) else []


def read_consents(experiment: Experiment, path: Path | None) -> list[Consent]:
    """The consent of each recording with which the model was trained, also of the models that it started from.

    Args:
        path: the file; None: consent.tsv in the project folders of these models, if there is one.

    Raises DataError if a recording is not allowed, if some are not and the training lists are not known any more, or
    if one that is not allowed is in no list: its name may be wrong.
    """
    if path is not None and not path.is_file():
        raise DataError(path, "no such file", "give the consent.tsv of the project, or leave --consent out")
    recordings, unknown, files = dict[str, None](), list[Path](), dict[Path, None]()
    projects = list[Path]()
    for folder, recorded in _trace_training(experiment):
        projects.append(folder.resolve().parent.parent)
        files[path or projects[-1] / CONSENT] = None
        clips = read_training_lists(recorded, folder)
        recordings |= dict.fromkeys(clip.wav for clip in clips)
        unknown += [] if clips or (folder / WEIGHTS).is_file() else [folder]  # a packed model was checked before
    # Recordings of two projects may have one name: then one `no` is enough.
    of_files = [read_consent(file) for file in files]
    found = join_consents(pair for consents in of_files for pair in match_consent(consents, recordings))
    consents = join_consents(pair for consents in of_files for pair in consents.items())
    where = " and ".join(str(file) for file in files if file.is_file())
    if refused := [name for name, one in found.items() if one.is_allowed is False]:
        names = list_names([Path(name).name for name in refused], most=3)
        what = f"{count_of(len(refused), 'recording')} of the training not allowed ({names})"
        raise DataError(where, what, "train without them, or change it there")
    if unknown and any(one.is_allowed is False for one in consents.values()):
        reason = f"recordings are not allowed, and the training lists of {unknown[0]} are of shards, gone or changed"
        raise DataError(where, reason, "restore the lists, or train again from lists of recordings")
    if find_unmatched(consents, recordings) and (wrong := find_unmatched(consents, _list_recordings(projects))):
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


def _trace_training(experiment: Experiment) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Folder and provenance of the training, and of those whose weights it started from; empty where it is not here."""
    folder, recorded, seen = experiment.model_dir, experiment.config.provenance, set[Path]()
    while folder not in seen:
        yield folder, recorded
        seen.add(folder)
        named = [one for one in first_weights(recorded) if not one.startswith("hf:")]
        for start in (Path(one) for one in named if not one.lower().endswith(".zip")):
            if start.is_relative_to(unpacked_models()):
                continue
            places = (start, *start.parents[:2], folder.parent / start.name)
            config = next((one / "train.yaml" for one in places if (one / "train.yaml").is_file()), None)
            folder, recorded = (config.parent, load_config(config).provenance) if config else (start, {})
