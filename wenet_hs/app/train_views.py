# SPDX-License-Identifier: Apache-2.0
"""Trainings: the form that starts one, its expected time, and the page of results."""

from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from wenet_hs.annotation import corrections
from wenet_hs.app import commands, lists
from wenet_hs.app.job_details import RecipeDetails, read_recipe_details
from wenet_hs.app.job_views import describe_live_state
from wenet_hs.app.pages import (
    browse_folder,
    form_of,
    is_preview,
    project_of,
    render,
    routes_of,
    run_as_job,
    show_next,
    site_of,
    text,
)
from wenet_hs.app.places import Places
from wenet_hs.app.projects import Project, read_recipe_options
from wenet_hs.app.results import find_expected_time, read_comparisons, read_shown_results
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.edits import ADDED, leave_out_held, utterances_of, write_added
from wenet_hs.tree.errors import DataError


def show_train(request: Request) -> Response:
    """The page of trainings: those that run or have ended, and the form for a new training.

    The form shows the last choice; see `read_last_choice`. The user can browse to an encoder.
    """
    project = project_of(request)
    job = project.last_job("train")
    time_job = project.last_job("time")
    # An encoder is a folder, so no files are listed.
    browsed = browse_folder(request, project, "encoders", suffixes=())
    job_details = read_recipe_details(job)
    return render(
        request,
        "train.html",
        project=project,
        **browsed.template_values(),
        stats=lists.read_project_stats(project),
        made_with=read_recipe_options(project / "data"),
        sizes=commands.SIZES,
        models=project.models(),
        trainings=project.trainings(),
        job=job,
        job_experiment=None if job_details is None else job_details.options.exp,
        state="" if job is None else describe_live_state(project, job),
        time_job=time_job,
        last_choice=read_last_choice(request.query_params.get("encoder", ""), time_job),
    )


@dataclass(frozen=True, kw_only=True)
class LastChoice:
    """The texts of the fields of the form for a training; empty: not chosen."""

    size: str = ""
    base: str = ""
    encoder: str = ""
    minutes: str = ""


def read_last_choice(encoder: str, time_job: Job | None) -> LastChoice:
    """What the form for a training shows as chosen.

    Args:
        encoder: the path of an encoder that the user has just chosen; empty: none. With one, no
            other field is chosen.
        time_job: the last job that measured the time of a training; without an encoder the fields
            are as they were for this job.
    """
    measured = read_recipe_details(time_job)
    if encoder or measured is None:
        return LastChoice(encoder=encoder)
    return _choice_of(measured)


def _choice_of(details: RecipeDetails) -> LastChoice:
    """The fields of the form for a training as they were for these details of a job."""
    options = details.options
    return LastChoice(
        size=options.size,
        base="" if options.base is None else str(options.base),
        encoder="" if options.encoder is None else str(options.encoder),
        minutes="" if details.minutes is None else f"{details.minutes:g}",
    )


def start_training(request: Request) -> Response:
    """Start a training by the fields of a form. These fields change what is done:

    corrected: before the start, corrected segments of all recordings become training speech.
    only_table: with `corrected`, only the table of these segments is written.
    only_time: the time of the training is measured instead.
    preview: nothing is started or written. The answer is the command of the training, and its
        header X-Expected has a sentence about the expected time.

    Raises ConfigError or DataError for a wrong field, also if only the table is written, and
    DataError if the training cannot start.
    """
    project = project_of(request)
    form = form_of(request)
    places = site_of(request).places
    uses_corrections = bool(form.get("corrected"))
    training = commands.make_train_command(project, form, places)
    if uses_corrections and form.get("only_table") and not is_preview(request):
        write_corrected_segments(project, places)
        return show_next(request, project, "transcribe")

    def write_corrections() -> None:
        if uses_corrections:
            write_corrected_segments(project, places)

    kind = "train"
    step = "train"
    if form.get("only_time"):
        kind = "time"
        step = "train#new"  # the form for a new training, where the time is shown
    answer = run_as_job(request, project, kind, training.command, step, before=write_corrections)
    if is_preview(request):
        sentence = find_expected_time(project, training.options) or text("time_unknown")
        answer.headers["X-Expected"] = quote(sentence)
    return answer


def write_corrected_segments(project: Project, places: Places) -> None:
    """Write the corrected segments of all transcribed recordings to data/added.tsv.

    The file has the segments that become training speech when the data lists are made. Earlier rows
    of these recordings are replaced. Rows of other audio files, which somebody wrote by hand, stay.

    Raises DataError

    - if no segment is corrected or confirmed; earlier rows of these recordings are removed then,
    - if two transcripts of one recording have corrected the same speech,
    - if all segments are held out for the dev and test sets,
    - if a recording is outside of the folders that may be read, or a file is damaged.
    """
    corrected_recordings = [
        corrections.read_corrected(path) for path in project.transcripts().values()
    ]
    rows = list[dict[str, str]]()
    for corrected in corrected_recordings:
        rows += corrected.training_rows()
    for audio in {row["audio"] for row in rows}:
        places.resolve(audio)  # raises DataError if it may not be read
    corrections.refuse_double(corrected_recordings)
    audio_files = {str(corrected.record.recording.media) for corrected in corrected_recordings}
    if not rows:
        if (project.writable_path("data") / ADDED).is_file():
            write_added(project / "data" / ADDED, [], recordings=audio_files)
        raise DataError("corrected segments", "none", "correct or confirm some first")
    _refuse_if_all_held_out(project, rows)
    write_added(project.writable_path("data") / ADDED, rows, recordings=audio_files)


def _refuse_if_all_held_out(project: Project, rows: list[dict[str, str]]) -> None:
    """Raise DataError if none of the rows may be training speech.

    Speech is held out if its recording or its speaker is, or may be, in the dev or test set.
    `rows`: of data/added.tsv, column → value.
    """
    held_sets = {name: lists.read_set(project, name) for name in ("dev", "test")}
    _, held_out = leave_out_held(utterances_of(rows), held_sets)
    if len(held_out) == len(rows):
        fault = f"none of the {len(rows)} can be training speech: {held_out[0].reason}"
        raise DataError("corrected segments", fault, "correct recordings that are not in the lists")


def resume_training(request: Request) -> Response:
    """Start a job that goes on with a training that was stopped, by the command that began it.

    Raises DataError if this page did not begin it.
    """
    project = project_of(request)
    training = project.training(form_of(request).get("training", ""))
    command = commands.make_resume_command(project, training.folder.parent)
    return run_as_job(request, project, "train", command, "train")


def show_results(request: Request) -> Response:
    """The page of results of a training: that in the address, or the newest with results.

    Without any results the page says so.
    """
    project = project_of(request)
    query = request.query_params
    trainings = [training for training in project.trainings() if training.is_scored]
    shown_training = trainings[0] if trainings else None
    if query.get("training"):
        shown_training = project.training(query["training"])
    results = None
    if shown_training is not None:
        results = read_shown_results(shown_training, query.get("mode", ""), query.get("page", ""))
    has_results = results is not None
    return render(
        request,
        "results.html",
        project=project,
        trainings=trainings,
        shown_training=shown_training,
        results=results,
        clips=lists.read_clips(project) if has_results else {},
        comparisons=read_comparisons(project) if has_results else [],
    )


def send_report(request: Request) -> Response:
    """report.html of an experiment as a file to save: this page does not allow its scripts.

    `training` in the address names one of its trainings. Raises DataError if there is no report,
    which is written after the training.
    """
    training = project_of(request).training(request.query_params.get("training", ""))
    experiment = training.folder.parent
    path = site_of(request).places.resolve(experiment / "report.html")
    if not path.is_file():
        raise DataError(path, "not made yet", "wait for the end of the training")
    return FileResponse(path, filename=f"{experiment.name}-report.html")


ROUTES = (
    *routes_of("GET", train=show_train, results=show_results, report=send_report),
    *routes_of("POST", train=start_training, resume=resume_training),
)
