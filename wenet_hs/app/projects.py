# SPDX-License-Identifier: Apache-2.0
"""Projects: folders with the layout of examples/own/s0, and the files, jobs and models in them."""

import os
import signal
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

from wenet_hs.annotation.corrections import CORRECTIONS
from wenet_hs.app.places import UPLOAD_FOLDERS, Places, check_name, find_entry
from wenet_hs.base.files import lock_holder, locked, one_field
from wenet_hs.base.jobs import Job, read_jobs
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.recipes.folder_options import has_options, read_absolute_values
from wenet_hs.results.folder import ExperimentFolder
from wenet_hs.tree.errors import DataError, WenetHsError

_FOLDERS_OF_RECIPE = ("data", "exp")
_EIGHT_HEX_DIGITS = "[0-9a-f]" * 8
_INCOMPLETE_FILES = f".*.{_EIGHT_HEX_DIGITS}.tmp"
"""A pattern for the temporary files of `open_atomic`, such as `.talk.wav.0123abcd.tmp`."""


class Projects:
    """The projects below a folder. The first request for one locks it for this server."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder = folder.resolve()
        self.places = places
        self._locks = ExitStack()
        self._open = dict[str, Project]()
        """The projects that this server has locked, by name."""
        self._mutex = threading.Lock()

    def list(self) -> list["Project"]:
        """The folders that are projects, by name."""
        folders = self.places.list_folder(self.folder).folders
        return [Project(folder) for folder in folders if _is_project(folder)]

    def create(self, name: str) -> "Project":
        """Make an empty project and open it.

        Raises DataError if the name is taken, or cannot be the name of a project.
        """
        folder = self.folder / check_name(name, "project")
        if folder.exists():
            raise DataError(folder, "exists already", "choose another name")
        (folder / ".app").mkdir(parents=True)
        return self.open(folder.name)

    def open(self, name: str) -> "Project":
        """The project of this name, locked for this server.

        The first call for a name takes the lock, which is kept until `close`. It also deletes the
        incomplete files of uploads to a server that was killed.

        Raises DataError if there is no such project, or if another server has locked it.
        """
        with self._mutex:
            if name not in self._open:
                project = Project(self._find_folder(name))
                self._lock(project)
                _remove_incomplete_uploads(project)
                self._open[name] = project
            return self._open[name]

    def _find_folder(self, name: str) -> Path:
        """The folder of the project with this name.

        The name of a listed project is used as it is, because another program may have made the
        project with a name that `check_name` refuses or changes. Any other name is checked first,
        because a request may send a path.

        Raises DataError if there is no such folder, or if it is a link to another place.
        """
        is_listed = name in [project.name for project in self.list()]
        folder_name = name if is_listed else check_name(name, "project")
        folder = self.folder / folder_name
        if not folder.is_dir() or self.places.resolve(folder).parent != self.folder:
            raise DataError(folder, "no such project", "choose one in the list")
        return folder

    def _lock(self, project: "Project") -> None:
        """Lock the folder .app of a project. Raises DataError if another server has it."""
        folder = project.writable_path(".app")
        lock = locked(folder, flag="--dir", work="wenet-hs app", error_class=DataError)
        self._locks.enter_context(lock)

    def close(self) -> None:
        """Release all locks."""
        self._locks.close()


def _is_project(folder: Path) -> bool:
    """Whether a folder has files of this page or of the recipe `wenet-hs own`.

    False also for a folder that cannot be read, such as `lost+found` of the administrator.
    """
    with suppress(OSError):
        if (folder / ".app").exists() or (folder / "data/stats.json").exists():
            return True
        return any(has_options(folder / name) for name in _FOLDERS_OF_RECIPE)
    return False


def _remove_incomplete_uploads(project: "Project") -> None:
    """Delete the temporary files in the folders of uploads.

    A file that cannot be deleted stays. Folders that are links are skipped, because they may lead
    out of the project.
    """
    for name in UPLOAD_FOLDERS:
        folder = project / name
        if folder.is_symlink():
            continue
        for path in folder.glob(_INCOMPLETE_FILES):
            with suppress(OSError):
                path.unlink()


@dataclass(frozen=True)
class Project:
    """A project by its folder."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    def __truediv__(self, name: str) -> Path:
        """A path in the folder: `project / "data"`."""
        return self.folder / name

    def writable_path(self, name: str) -> Path:
        """A path in the folder that the page may write to.

        Raises DataError if a link leads out of the project.
        """
        path = self / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            fault = "is a link that leads out of the project"
            raise DataError(path, fault, "replace it by a folder")
        return path

    @property
    def has_lists(self) -> bool:
        """Whether the recipe has made data lists of recordings."""
        return has_options(self / "data")

    @property
    def jobs_folder(self) -> Path:
        """The folder of the page's own files about jobs."""
        return self.writable_path(".app/jobs")

    def jobs(self, *kinds: str) -> list[Job]:
        """The jobs of these kinds, the newest first; without kinds all jobs."""
        jobs = read_jobs(self.jobs_folder)
        if not kinds:
            return jobs
        return [job for job in jobs if job.kind in kinds]

    def job(self, folder_name: str) -> Job:
        """The job with this folder, such as `0012-train`. Raises DataError if there is none."""
        jobs = {job.folder.name: job for job in self.jobs()}
        return find_entry(jobs, folder_name, "job")

    def last_job(self, kind: str) -> Job | None:
        """The newest job of this kind; None if there is none."""
        jobs = self.jobs(kind)
        return jobs[0] if jobs else None

    def trainings(self) -> list["ProjectTraining"]:
        """The trainings of all experiments; first the one whose folder changed last.

        A training is a folder in exp*/ with the file train.yaml. The process that holds the lock of
        the folder is the one that trains.
        """
        folders = [path.parent for path in self.folder.glob("exp*/*/train.yaml")]
        folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [ProjectTraining(folder, process=lock_holder(folder)) for folder in folders]

    def training(self, name: str) -> "ProjectTraining":
        """The training of this name, such as `exp/softmax`. Raises DataError if there is none."""
        trainings = {training.name: training for training in self.trainings()}
        return find_entry(trainings, name, "training")

    def models(self) -> dict[str, Path]:
        """The models that can decode: name → model folder or ZIP.

        First come those of trainings with results, then those of other trainings, then the packed
        models in the folder `models`.
        """
        trained = [training for training in self.trainings() if training.is_trained]
        trained.sort(key=lambda training: not training.is_scored)  # False comes before True
        models = {training.name: training.folder for training in trained}
        for path in self.files("models/*.zip"):
            models[f"models/{path.name}"] = path
        return models

    def model(self, name: str) -> Path:
        """The model of this name, one of `models`. Raises DataError if there is none."""
        return find_entry(self.models(), name, "model")

    def files(self, pattern: str) -> list[Path]:
        """The files of the project that match a pattern such as `models/*.zip`, sorted by path.

        Files whose name has control characters are left out, because no page can show them.
        """
        paths = self.folder.glob(pattern)
        return sorted(path for path in paths if path.name == one_field(path.name))

    def transcripts(self) -> dict[str, Path]:
        """The transcribed recordings: name → the JSON file with the segments.

        Beside them are files with the corrections of a person, which are left out. Raises DataError
        if the folder of transcripts is a link that leads out of the project.
        """
        self.writable_path("transcribed")  # raises DataError for a link to the outside
        transcripts = dict[str, Path]()
        for path in self.files("transcribed/*.json"):
            if not path.name.endswith(CORRECTIONS):
                transcripts[path.stem] = path
        return transcripts

    def transcript(self, name: str) -> Path:
        """The transcribed recording of this name. Raises DataError if there is none."""
        return find_entry(self.transcripts(), name, "recording", "not transcribed")

    def free_experiment(self) -> Path:
        """A folder for a new training: exp, or the first of exp-2, exp-3 … that is not used."""
        experiment = self / "exp"
        numbers = count(2)
        while _is_used(experiment):
            experiment = self / f"exp-{next(numbers)}"
        return experiment


def _is_used(experiment: Path) -> bool:
    """Whether a folder has the options or a model of a training."""
    return has_options(experiment) or any(experiment.glob("*/train.yaml"))


@dataclass(frozen=True)
class ProjectTraining:
    """A training, started by the page or in a shell, by its model folder in exp*/."""

    folder: Path
    process: int | None
    """The number of the process that trains now; None if it does not run."""

    @property
    def name(self) -> str:
        """Its folder below the project, such as `exp/softmax`."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def is_trained(self) -> bool:
        """Whether its model can decode."""
        return weights_path(self.folder).is_file()

    @property
    def is_scored(self) -> bool:
        """Whether it has results on the test set."""
        return bool(ExperimentFolder(self.folder).test().scored_modes())

    @property
    def is_complete(self) -> bool:
        """Whether all stages of the recipe have ended: the last one writes the report."""
        return self.folder.with_name("report.html").is_file()

    @property
    def begun(self) -> str:
        """When its settings were written, in local time, such as `2026-01-31 09:05`."""
        changed = ExperimentFolder(self.folder).settings_path.stat().st_mtime
        return f"{datetime.fromtimestamp(changed):%Y-%m-%d %H:%M}"

    @property
    def max_minutes(self) -> float | None:
        """The limit of its time in minutes; None: no limit, or train.yaml cannot be read."""
        with suppress(WenetHsError, OSError):
            minutes = ExperimentFolder(self.folder).read_settings().get("max_minutes")
            if isinstance(minutes, int | float):
                return float(minutes)
        return None

    def stop(self) -> None:
        """Ask the process that trains to save and end. Nothing happens if there is none."""
        # The number is 0 or negative for a process of another computer on a shared disk.
        if self.process is not None and self.process > 0:
            os.kill(self.process, signal.SIGTERM)


def read_recipe_options(folder: Path) -> dict[str, str]:
    """The options with which the recipe made a folder of lists or of experiments: name → text.

    Options that were not given are left out. Paths are absolute. Raises DataError if the file with
    the options is damaged.
    """
    values = read_absolute_values(folder)
    return {name: value for name, value in values.items() if value}
