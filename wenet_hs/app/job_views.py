# SPDX-License-Identifier: Apache-2.0
"""Jobs and trainings that run: the parts of pages that change, and the button that stops them."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from wenet_hs.app.pages import form_of, go_to, project_of, render, routes_of
from wenet_hs.app.projects import Project
from wenet_hs.base.jobs import Job
from wenet_hs.report.curve_charts import curve_charts
from wenet_hs.results.running import read_state

_STEPS_WITH_JOBS = ("check", "train", "transcribe", "share")


def show_live(request: Request) -> Response:
    """A part of a page that the script loads again and again: a job, or the course of a training.

    The address names one of them, as `job` or `training`. The header X-State has its state. When
    this changes, the script tells the user that the rest of the page is outdated.
    """
    project = project_of(request)
    query = request.query_params
    if "job" in query:
        job = project.job(query["job"])
        answer = render(request, "live_job.html", project=project, job=job)
        state = describe_live_state(project, job)
    else:
        training = project.training(query.get("training", ""))
        live = read_state(training.folder)
        answer = render(
            request,
            "live_training.html",
            project=project,
            training=training,
            live=live,
            charts=curve_charts([live.curves], "steps"),
        )
        state = "running" if training.process else "done"
    answer.headers["X-State"] = quote(state)
    return answer


def describe_live_state(project: Project, job: Job) -> str:
    """The state of a job, and the names of the trainings that run if the job trains.

    A page with this job is outdated when this text is another one.
    """
    if job.kind != "train":
        return job.state
    running = [training.name for training in project.trainings() if training.process]
    return " ".join([job.state, *running])


def stop_job(request: Request) -> Response:
    """Stop the job that the form names, or a training that a shell started.

    Then the page is shown that has the button, by its name in the field `step`. For any name that
    is no page with jobs it is the page of trainings.
    """
    project = project_of(request)
    form = form_of(request)
    if form.get("job"):
        project.job(form["job"]).stop()
    else:
        project.training(form.get("training", "")).stop()
    step = form.get("step", "")
    return go_to(project, step if step in _STEPS_WITH_JOBS else "train")


ROUTES = (
    *routes_of("GET", live=show_live),
    *routes_of("POST", stop=stop_job),
)
