# SPDX-License-Identifier: Apache-2.0
"""Projects: folders with the layout of examples/own/s0, and what is in them."""

import os
import signal
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wenet_hs.annotation.corrections import CORRECTIONS
from wenet_hs.app.places import TARGETS, Places, check_name, choose
from wenet_hs.base.files import lock_holder, locked, one_field
from wenet_hs.base.jobs import Job, read_jobs
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.recipes.folder_options import has_options, read_absolute_values
from wenet_hs.results.folder import ExperimentFolder
from wenet_hs.tree.errors import DataError, WenetHsError

_FOLDERS_OF_RECIPE = ("data", "exp")


@dataclass(frozen=True)
class ProjectModel:
    """A model folder in exp*/ that a training writes or wrote, also one of a shell."""

    folder: Path
    process: int | None
    """The process that trains now."""

    @property
    def name(self) -> str:
        """Its folder below the project, such as `exp/softmax`."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def is_trained(self) -> bool:
        """Whether it can decode."""
        return weights_path(self.folder).is_file()

    @property
    def is_scored(self) -> bool:
        """Whether it has results."""
        return bool(ExperimentFolder(self.folder).test().scored_modes())

    @property
    def is_complete(self) -> bool:
        """Whether the recipe has done all of its experiment; the report is last."""
        return self.folder.with_name("report.html").is_file()

    @property
    def begun(self) -> str:
        """When its settings were written, in local time."""
        changed = ExperimentFolder(self.folder).settings_path.stat().st_mtime
        return f"{datetime.fromtimestamp(changed):%Y-%m-%d %H:%M}"

    @property
    def max_minutes(self) -> float | None:
        """The limit of its time; None without one, or if train.yaml cannot be read."""
        with suppress(WenetHsError, OSError):
            value = ExperimentFolder(self.folder).read_settings().get("max_minutes")
            return float(value) if isinstance(value, int | float) else None
        return None

    def stop(self) -> None:
        """Ask the process that trains to save and end."""
        if self.process and self.process > 0:
            os.kill(self.process, signal.SIGTERM)


@dataclass(frozen=True)
class Project:
    """A project by its folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def target(self, name: str) -> Path:
        """A folder that the page writes to. Raises DataError if a link leads out of the project."""
        if not (self / name).resolve().is_relative_to(self.folder.resolve()):
            raise DataError(
                self / name, "is a link that leads out of the project", "replace it by a folder"
            )
        return self / name

    @property
    def has_lists(self) -> bool:
        """Whether the recipe has made lists of recordings."""
        return has_options(self / "data")

    @property
    def jobs_folder(self) -> Path:
        """The folder of the page's own files about jobs."""
        return self.target(".app/jobs")

    def jobs(self, *kinds: str) -> list[Job]:
        """The jobs of these kinds, or all, the newest first."""
        return [job for job in read_jobs(self.jobs_folder) if not kinds or job.kind in kinds]

    def last_job(self, kind: str) -> Job | None:
        """The newest job of this kind."""
        return next(iter(self.jobs(kind)), None)

    def trainings(self) -> list[ProjectModel]:
        """The model folders of all experiments, the newest first."""
        folders = [path.parent for path in self.folder.glob("exp*/*/train.yaml")]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        return [ProjectModel(folder, lock_holder(folder)) for folder in folders]

    def training(self, name: str) -> ProjectModel:
        """The training of this name. Raises DataError if there is none."""
        return choose({one.name: one for one in self.trainings()}, name, "training")

    def files(self, pattern: str) -> list[Path]:
        """The files of the project that match, by name, without names that no page can show."""
        return sorted(
            path for path in self.folder.glob(pattern) if path.name == one_field(path.name)
        )

    def transcripts(self) -> dict[str, Path]:
        """The transcribed recordings by name.

        Raises DataError if they are outside of the project.
        """
        self.target("transcribed")
        return {
            path.stem: path
            for path in self.files("transcribed/*.json")
            if not path.name.endswith(CORRECTIONS)
        }

    def transcript(self, name: str) -> Path:
        """The transcribed recording of this name. Raises DataError if there is none."""
        return choose(self.transcripts(), name, "recording", "not transcribed")

    def free_experiment(self) -> Path:
        """A folder for a new training: exp, or the first of exp-2, exp-3 … that is not used."""
        folders = (self / f"exp{f'-{number}' if number > 1 else ''}" for number in range(1, 1000))
        return next(folder for folder in folders if not _is_used(folder))


def _is_used(experiment: Path) -> bool:
    """Whether a folder has the options or a model of a training."""
    return has_options(experiment) or any(experiment.glob("*/train.yaml"))


def read_recipe_options(folder: Path) -> dict[str, str]:
    """The options with which the recipe made data or an experiment, without empty ones.

    Paths are absolute. Raises DataError if the file with the options is damaged.
    """
    values = read_absolute_values(folder)
    return {name: value for name, value in values.items() if value}


def _is_project(folder: Path) -> bool:
    with suppress(OSError):  # of another user, such as lost+found
        if (folder / ".app").exists() or (folder / "data/stats.json").exists():
            return True
        return any(has_options(folder / name) for name in _FOLDERS_OF_RECIPE)
    return False


class Projects:
    """The projects below a folder. The first request for one locks it for this server."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder, self.places = folder.resolve(), places
        self._stack, self._open, self._mutex = ExitStack(), dict[str, Project](), threading.Lock()

    def list(self) -> list[Project]:
        """The folders that are projects, by name."""
        folders, _ = self.places.list_folder(self.folder)
        return [Project(path) for path in folders if _is_project(path)]

    def create(self, name: str) -> Project:
        """Make an empty project. Raises DataError if the name is taken."""
        folder = self.folder / check_name(name, "project")
        if folder.exists():
            raise DataError(folder, "exists already", "choose another name")
        (folder / ".app").mkdir(parents=True)
        return self.open(folder.name)

    def open(self, name: str) -> Project:
        """The project of this name, locked.

        Raises DataError if there is none, or another server has it.
        """
        with self._mutex:
            if name not in self._open:
                is_listed = name in (
                    one.name for one in self.list()
                )  # also one whose name this page would not give
                folder = self.folder / (name if is_listed else check_name(name, "project"))
                if not folder.is_dir() or self.places.resolve(folder).parent != self.folder:
                    raise DataError(folder, "no such project", "choose one in the list")
                project = Project(folder)
                lock = locked(
                    project.target(".app"), flag="--dir", work="wenet-hs app", error_class=DataError
                )
                self._stack.enter_context(lock)
                own = [folder / one for one in TARGETS if not (folder / one).is_symlink()]
                for unfinished in (
                    path for one in own for path in one.glob(f".*.{'[0-9a-f]' * 8}.tmp")
                ):
                    with suppress(OSError):
                        unfinished.unlink()  # an upload to a server that was killed
                self._open[name] = project
            return self._open[name]

    def close(self) -> None:
        """Release all locks."""
        self._stack.close()
