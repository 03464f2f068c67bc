# SPDX-License-Identifier: Apache-2.0
"""Projects, recordings and their check: the pages before a training."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

from anyio import from_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from wenet_hs.annotation.recordings import read_record
from wenet_hs.app import commands, lists
from wenet_hs.app.job_details import read_recipe_details
from wenet_hs.app.pages import browse, form_of, go_to, project_of, render, routes_of, site_of, start
from wenet_hs.app.places import TARGETS, UPLOADED, check_file_name
from wenet_hs.app.projects import read_recipe_options
from wenet_hs.base.files import file_sha256, read_cached
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.check import FAULTS, KINDS
from wenet_hs.corpus.expectations import describe_results
from wenet_hs.corpus.forms import recognise
from wenet_hs.corpus.languages import (
    UNDETERMINED,
    describe_language,
    find_language,
    suggest_languages,
)
from wenet_hs.data.audio import AudioError, TooLongError, read_duration
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.recipes.own_options import FORMS
from wenet_hs.report.audio import encode_clip
from wenet_hs.tree.atomic import open_atomic, write_atomic
from wenet_hs.tree.errors import DataError

_UPLOADING, _MUTEX = set[Path](), threading.Lock()
MAX_UPLOAD_BYTES, MAX_UPLOADS, MAX_UPLOAD_HOURS, MAX_CLIP_S = 4 << 30, 5000, 12, 600


def show_projects(request: Request) -> Response:
    site, faults = site_of(request), dict[str, str]()
    projects = site.projects.list()
    for one in projects:
        try:
            one.jobs(), one.trainings()
        except (DataError, OSError) as error:
            faults[one.name] = str(error)
    return render(
        request, "projects.html", projects=projects, faults=faults, folder=site.projects.folder
    )


def create_project(request: Request) -> Response:
    return go_to(site_of(request).projects.create(form_of(request).get("name", "")), "recordings")


def show_recordings(request: Request) -> Response:
    """The folders to choose from, or the contents of the chosen one."""
    project, places, query = project_of(request), site_of(request).places, request.query_params
    made, last = read_recipe_options(project / "data"), lists.read_choice(project)
    form = next((one for one in FORMS if one in made), "")
    of_choice = last.get("form"), last.get("path")
    if form and of_choice != (
        [form],
        [made[form]],
    ):  # the lists are of a shell, or the last job was refused
        last = {"form": [form], "path": [made[form]]}
    lang = query.get("lang", next(iter(last.get("lang", ())), made.get("lang", "")))
    source, fault, lang_fault, code = None, "", "", UNDETERMINED
    try:
        code = find_language(lang) if lang.strip() else code
    except ValueError as error:
        lang_fault = str(error)
    try:
        source = recognise(places.resolve(query["path"]), code) if query.get("path") else None
    except DataError as error:
        fault = str(error)
    given = (
        {name: query.getlist(name) for name in query} if "form" in query else last
    )  # the page before has sent it
    values: dict[str, Any] = {
        "source": source,
        "fault": fault,
        "lang": lang,
        "made": made,
        "last": last,
    }
    values |= {
        "lang_fault": lang_fault,
        "lang_known": describe_language(code),
        "suffixes": UPLOADED,
    }
    values["job"] = project.last_job("prepare")
    values["given"] = (
        given if source and "unit" in given and given.get("path") == [str(source.path)] else {}
    )
    return render(request, "recordings.html", **values, **browse(request, project, "recordings"))


def send_languages(request: Request) -> Response:
    """Names of languages that are like what was typed → their codes."""
    return JSONResponse(suggest_languages(request.query_params.get("name", "")[:100]))


def prepare(request: Request) -> Response:
    """Make the lists. With the field `replace`, those of other recordings are moved away first."""
    project, form = project_of(request), form_of(request)

    def move_lists() -> None:
        if form.get("replace") and project.target("data").is_dir():
            number = next(
                number
                for number in range(1, 10_000)
                if not (project / f"data-old-{number}").exists()
            )
            (project / "data").rename(project / f"data-old-{number}")
        chosen = {name: form.getlist(name) for name in form if name != "replace"}
        write_atomic(project.target(".app") / lists.CHOICE, json.dumps(chosen, ensure_ascii=False))

    options = commands.prepare_options(project, form, site_of(request).places)
    if not form.get("replace") and not form.get("preview"):
        commands.refuse_other_lists(project, options)
    command = commands.prepare_command(options)
    return start(request, project, "prepare", command, "check", before=move_lists)


def prepare_again(request: Request) -> Response:
    project = project_of(request)
    return start(request, project, "prepare", commands.prepare_again_command(project), "check")


def show_check(request: Request) -> Response:
    """What was found in the lists; the utterances of one kind of finding."""
    project, query = project_of(request), request.query_params
    stats, found = lists.read_project_stats(project), lists.read_findings(project)
    kinds = [
        (kind, len(found[kind]), kind in FAULTS, KINDS[kind]) for kind in KINDS if kind in found
    ]
    kind = query.get("kind") or (kinds[0][0] if kinds else "")
    shown = lists.page_of(found.get(kind, ()), query.get("page", ""))
    left_out = lists.read_excluded(project)
    values: dict[str, Any] = {
        "stats": stats,
        "kinds": kinds,
        "kind": kind,
        "shown": shown,
        "left_out": left_out,
    }
    values["expected"] = (
        describe_results(stats["total"]["hours"].get("train", 0.0)) if stats else ""
    )
    values["excluded"] = lists.page_of(left_out, query.get("excluded", ""), 100)
    values["num_rejected"] = len(lists.read_rejected_annotations(project))
    job = project.last_job("prepare")
    values |= {"clips": lists.read_clips(project), "job": job}
    values["least_minutes"] = missed_minimum(job, stats)
    values |= {"made": read_recipe_options(project / "data"), "choice": lists.read_choice(project)}
    return render(request, "check.html", project=project, **values)


def missed_minimum(job: Job | None, stats: Mapping[str, Any]) -> float | None:
    """The minutes of training speech that a job needed; None if it did not fail for too few.

    `stats`: the content of data/stats.json, empty if there is none.
    """
    details = read_recipe_details(job)
    if job is None or details is None or not stats or job.state != "failed":
        return None
    minutes = 60 * stats["total"]["hours"].get("train", 0.0)
    least = details.options.min_minutes
    return least if minutes < least else None


def show_rejected(request: Request) -> Response:
    """Every annotation that is not used, with its reason."""
    project, query = project_of(request), request.query_params
    order = query.get("order", "")
    order = order if order in ("key", "text", "path") else "reason"
    rows = sorted(lists.read_rejected_annotations(project), key=attrgetter(order))
    shown = lists.page_of(rows, query.get("page", ""), 50)
    return render(
        request,
        "rejected.html",
        project=project,
        shown=shown,
        has_audio=lists.has_audio,
        order=order,
    )


def exclude(request: Request) -> Response:
    project, form = project_of(request), form_of(request)
    lists.set_excluded(project, form.get("key", ""), is_excluded=form.get("excluded") == "yes")
    return go_to(project, "check", kind=form.get("kind", ""), page=form.get("page", ""))


def play(request: Request) -> Response:
    """The audio of an utterance, an annotation that is not used, or a part of a transcribed
    recording, as MP3.
    """
    project, query = project_of(request), request.query_params
    if "key" in query:
        clip = lists.find_clip(project, query["key"])
    elif "rejected" in query:
        clip = lists.find_rejected(project, query["rejected"])
    else:
        media = str(
            read_cached(read_record, project.transcript(query.get("name", ""))).recording.media
        )
        try:
            begin, end = float(query.get("start", "")), float(query.get("end", ""))
        except ValueError as error:
            raise DataError(
                "start and end", "not numbers of seconds", "load the page again"
            ) from error
        clip = Utterance(key="", wav=media, txt="", start=begin, end=end)
    clip = replace(clip, wav=str(site_of(request).places.resolve(clip.wav)))
    seconds = (
        clip.duration or read_duration(clip.wav)
        if clip.end is None
        else clip.end - (clip.start or 0.0)
    )
    if not 0 < seconds <= MAX_CLIP_S:
        raise DataError(
            clip.wav, f"not a part of up to {MAX_CLIP_S} s", "open it in another program"
        )
    return Response(encode_clip(clip), media_type="audio/mpeg")


def upload(request: Request) -> Response:
    """Write the body of the request to a file of the project, whole or not at all."""
    project, query = project_of(request), request.query_params
    target = query.get("to", "")
    if target not in TARGETS:
        raise DataError("upload", "not a folder for files", "load the page again")
    if "form" in request.scope:
        raise DataError("upload", "a form, not a file", "load the page again")
    folder, name = project.target(target), check_file_name(query.get("name", ""), TARGETS[target])
    if (folder / name).is_file() and _is_equal(request, folder / name):
        return PlainTextResponse("")  # sent before
    declared = request.headers.get("content-length", "0")
    with _reserve(folder / name), open_atomic(folder / name) as file:
        _check_size(name, int(declared) if declared.isdecimal() else 0)
        size, parts = 0, request.stream()
        while part := from_thread.run(anext, parts):  # the last part is empty
            _check_size(name, size := size + len(part))
            file.write(part)
        file.flush()
        _check_length(name, Path(file.name))
    return PlainTextResponse("")


def _is_equal(request: Request, path: Path) -> bool:
    """Whether the body of the request is the content of a file."""
    digest, size, parts = sha256(), 0, request.stream()
    while part := from_thread.run(anext, parts):
        _check_size(path.name, size := size + len(part))
        digest.update(part)
    return digest.hexdigest() == file_sha256(path)


@contextmanager
def _reserve(path: Path) -> Iterator[None]:
    """Keep the name of a file for one upload.

    Raises DataError if it is taken, or the folder is full.
    """
    with _MUTEX:
        is_full = path.parent.is_dir() and sum(1 for _ in path.parent.iterdir()) >= MAX_UPLOADS
        if is_full or path in _UPLOADING or path.exists():
            found = (
                f"has {MAX_UPLOADS:,} files already"
                if is_full
                else f"has a file {path.name!r} already"
            )
            raise DataError(
                path.parent, found, "choose the folder on this computer instead, or rename the file"
            )
        _UPLOADING.add(path)
    try:
        yield
    finally:
        _UPLOADING.discard(path)


def _check_size(name: str, size: int) -> None:
    if size > MAX_UPLOAD_BYTES:
        found = f"larger than {MAX_UPLOAD_BYTES / 1e9:.1f} GB"
        raise DataError(f"file {name!r}", found, "choose its folder on this computer instead")


def _check_length(name: str, path: Path) -> None:
    """Raise DataError for a recording that is too long.

    What cannot be read is reported when it is used.
    """
    try:
        is_long = (
            name.lower().endswith(ALL_SUFFIXES) and read_duration(path) > 3600 * MAX_UPLOAD_HOURS
        )
    except TooLongError:
        is_long = True
    except AudioError:
        return
    if is_long:
        to_do = "cut it into parts, or choose its folder on this computer instead"
        raise DataError(f"file {name!r}", f"more than {MAX_UPLOAD_HOURS} hours of audio", to_do)


ROUTES = (
    Route("/", show_projects),
    Route("/languages", send_languages),
    Route("/projects", create_project, methods=["POST"]),
    Route("/p/{project}", lambda request: go_to(project_of(request), "recordings")),
    *routes_of(
        "GET", recordings=show_recordings, check=show_check, rejected=show_rejected, audio=play
    ),
    *routes_of(
        "POST", prepare=prepare, prepare_again=prepare_again, exclude=exclude, upload=upload
    ),
)
