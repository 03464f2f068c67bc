# SPDX-License-Identifier: Apache-2.0
"""Training, results, transcription and sharing: the pages about models."""

import threading
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from wenet_hs.annotation import corrections
from wenet_hs.annotation.recordings import ANNOTATED, Record, read_record
from wenet_hs.app import commands, lists
from wenet_hs.app.job_details import (
    RecipeDetails,
    read_pack_details,
    read_recipe_details,
    read_transcribe_details,
)
from wenet_hs.app.pages import (
    browse,
    form_of,
    go_to,
    project_of,
    render,
    routes_of,
    show_next,
    site_of,
    start,
    text,
)
from wenet_hs.app.places import Places, check_name, choose
from wenet_hs.app.projects import Project, read_recipe_options
from wenet_hs.app.results import find_expected_time, read_comparisons, read_shown_results
from wenet_hs.base.files import one_field, read_cached, read_lines
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.consent import (
    CONSENT,
    Consent,
    find_unmatched,
    match_consent,
    parse_allowed,
    read_consent,
    set_consents,
)
from wenet_hs.corpus.edits import ADDED, leave_out_held, utterances_of, write_added
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.data.peaks import read_peaks
from wenet_hs.model.packed import resolve_model
from wenet_hs.report.curve_charts import curve_charts
from wenet_hs.results.running import read_state
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, WenetHsError

_MAX_CARD, _MUTEX = 20_000, threading.Lock()


def find_models(project: Project) -> dict[str, Path]:
    """Name → model folder or ZIP: the trained ones of the project, scored ones first, and those
    that were opened.
    """
    trained = sorted(
        (one for one in project.trainings() if one.is_trained), key=lambda one: not one.is_scored
    )
    return {one.name: one.folder for one in trained} | {
        f"models/{path.name}": path for path in project.files("models/*.zip")
    }


def _model(request: Request, project: Project) -> Path:
    return choose(find_models(project), form_of(request).get("model", ""), "model")


def _job(project: Project, name: str) -> Job:
    return choose({job.folder.name: job for job in project.jobs()}, name, "job")


def show_live(request: Request) -> Response:
    """A part of a page that changes: the state of a job, or of a training."""
    project, query = project_of(request), request.query_params
    values: dict[str, Any] = {"project": project}
    if "job" in query:
        job = _job(project, query["job"])
        answer, state = (
            render(request, "live_job.html", job=job, **values),
            live_state(project, job),
        )
    else:
        training = project.training(query.get("training", ""))
        live = read_state(training.folder)
        charts = curve_charts([live.curves], "steps")
        answer = render(
            request, "live_training.html", training=training, live=live, charts=charts, **values
        )
        state = "running" if training.process else "done"
    answer.headers["X-State"] = quote(state)
    return answer


def live_state(project: Project, job: Job) -> str:
    """What decides whether a page with this job is outdated: its state, and the trainings that run."""
    running = (
        [one.name for one in project.trainings() if one.process] if job.kind == "train" else []
    )
    return " ".join([job.state, *running])


def stop(request: Request) -> Response:
    """Stop a job, or a training of a shell."""
    project, form = project_of(request), form_of(request)
    step = form.get("step", "train")
    if form.get("job"):
        _job(project, form["job"]).stop()
    else:
        project.training(form.get("training", "")).stop()
    return go_to(project, step if step in ("check", "train", "transcribe", "share") else "train")


def show_train(request: Request) -> Response:
    project = project_of(request)
    job, values = project.last_job("train"), browse(request, project, "encoders", ())
    values |= {
        "stats": lists.read_project_stats(project),
        "sizes": commands.SIZES,
        "trainings": project.trainings(),
    }
    values |= {"models": find_models(project), "time_job": project.last_job("time"), "job": job}
    values["made"] = read_recipe_options(project / "data")
    of_job = read_recipe_details(job)
    values["job_experiment"] = of_job.options.exp if of_job is not None else None
    values["last"] = last_choice(request.query_params.get("encoder", ""), values["time_job"])
    return render(request, "train.html", state=live_state(project, job) if job else "", **values)


@dataclass(frozen=True, kw_only=True)
class LastChoice:
    """The texts of the fields of the form for a training; empty: not chosen."""

    size: str = ""
    base: str = ""
    encoder: str = ""
    minutes: str = ""


def last_choice(encoder: str, time_job: Job | None) -> LastChoice:
    """The choice whose time was measured last, or only the encoder that the address names."""
    measured = read_recipe_details(time_job)
    if encoder or measured is None:
        return LastChoice(encoder=encoder)
    return _choice_of(measured)


def _choice_of(details: RecipeDetails) -> LastChoice:
    options = details.options
    return LastChoice(
        size=options.size,
        base="" if options.base is None else str(options.base),
        encoder="" if options.encoder is None else str(options.encoder),
        minutes="" if details.minutes is None else f"{details.minutes:g}",
    )


def train(request: Request) -> Response:
    """Start a training, or with the field `only_time` the measurement of its time.

    With the field `corrected` the corrected segments of all recordings become training speech.
    """
    project, form = project_of(request), form_of(request)
    training = commands.train_command(project, form, site_of(request).places)
    write = partial(write_corrected, project, site_of(request).places)
    if form.get("corrected") and form.get("only_table") and "preview" not in form:
        write()
        return show_next(request, project, "transcribe")
    kind, step = ("time", "train#new") if form.get("only_time") else ("train", "train")
    before = write if form.get("corrected") else lambda: None
    answer = start(request, project, kind, training.command, step, before=before)
    if "preview" in form:
        sentence = find_expected_time(project, training.options) or text("time_unknown")
        answer.headers["X-Expected"] = quote(sentence)
    return answer


def write_corrected(project: Project, places: Places) -> None:
    """Write the corrected segments of all recordings as training speech.

    Raises DataError if there are none, after those that were taken back are removed, or if two
    transcripts of a recording have corrected the same speech.

    Rows of other audio files, which somebody wrote by hand, stay.
    """
    found = [corrections.read_corrected(path) for path in project.transcripts().values()]
    rows = [row for one in found for row in one.training_rows()]
    for audio in {row["audio"] for row in rows}:
        places.resolve(audio)
    corrections.refuse_double(found)
    recordings = {str(one.record.recording.media) for one in found}
    if not rows:
        if (project.target("data") / ADDED).is_file():
            write_added(project / "data" / ADDED, [], recordings=recordings)
        raise DataError("corrected segments", "none", "correct or confirm some first")
    _, held = leave_out_held(
        utterances_of(rows), {name: lists.read_set(project, name) for name in ("dev", "test")}
    )
    if len(held) == len(rows):
        fault = f"none of the {len(rows)} can be training speech: {held[0].reason}"
        raise DataError("corrected segments", fault, "correct recordings that are not in the lists")
    write_added(project.target("data") / ADDED, rows, recordings=recordings)


def resume(request: Request) -> Response:
    """Go on with a training that was stopped, by the command that began it."""
    project = project_of(request)
    experiment = project.training(form_of(request).get("training", "")).folder.parent
    return start(request, project, "train", commands.resume_command(project, experiment), "train")


def show_results(request: Request) -> Response:
    project, query = project_of(request), request.query_params
    trainings = [one for one in project.trainings() if one.is_scored]
    chosen = (
        project.training(query["training"])
        if query.get("training")
        else next(iter(trainings), None)
    )
    results = (
        read_shown_results(chosen, query.get("mode", ""), query.get("page", "")) if chosen else None
    )
    clips = lists.read_clips(project) if results else {}
    values: dict[str, Any] = {
        "trainings": trainings,
        "chosen": chosen,
        "results": results,
        "clips": clips,
    }
    values["comparisons"] = read_comparisons(project) if results else []
    return render(request, "results.html", project=project, **values)


def show_report(request: Request) -> Response:
    """report.html of an experiment as a file: its scripts are not allowed on this page."""
    training = project_of(request).training(request.query_params.get("training", ""))
    path = site_of(request).places.resolve(training.folder.parent / "report.html")
    if not path.is_file():
        raise DataError(path, "not made yet", "wait for the end of the training")
    return FileResponse(path, filename=f"{training.folder.parent.name}-report.html")


def show_transcribe(request: Request) -> Response:
    """The queue of the last job, the transcribed recordings, and a form for more."""
    project = project_of(request)
    job, done = project.last_job("transcribe"), project.transcripts()
    details = read_transcribe_details(job)
    asked = () if details is None else details.files
    model = "" if details is None else str(details.model)
    records, reviewed, faults = list[Record](), dict.fromkeys(done, 0), dict[str, str]()
    for name, path in done.items():
        try:
            records.append(read_source(path, path.stat().st_mtime_ns))
            reviewed[name] = corrections.count_reviewed(path)
        except DataError as error:
            faults[name] = str(error)
    queue = [(one.name, any(record.is_of(one, model) for record in records)) for one in asked]
    found = browse(request, project, "to_transcribe", (*ALL_SUFFIXES, *ANNOTATED))
    annotated = {path.stem for path in found["files"] if path.suffix.lower() in ANNOTATED}
    by_suffix = sorted(found["files"], key=lambda path: path.suffix.lower() in ANNOTATED)
    named = {path.stem if path.stem in annotated else path.name: path for path in by_suffix}
    is_new = found["folder"] == project / "to_transcribe"
    chosen = [
        path
        for path in named.values()
        if is_new and not any(one.is_of(path, one.model) for one in records)
    ]
    values: dict[str, Any] = {"job": job, "queue": queue, "done": done, "chosen": chosen}
    first = next((done[name] for name, count in reviewed.items() if count), None)
    used = read_cached(read_record, first).model if first else ""
    nameless = [name for name, count in reviewed.items() if count and needs_speaker(done[name])]
    values |= {"reviewed": reviewed, "faults": faults, "nameless": nameless, "used": used}
    values |= {"stats": lists.read_project_stats(project), "models": find_models(project)}
    values |= {"added": project / "data" / ADDED, "comparisons": read_comparisons(project)}
    return render(request, "transcribe.html", **found, **values)


@lru_cache(maxsize=10_000)
def read_source(path: Path, _: int) -> Record:
    """Recording and model of a file of `transcribe --record`, without its segments.

    The number: when it changed.
    """
    found = read_record(path)
    return replace(found, recording=replace(found.recording, segments=()))


def needs_speaker(path: Path) -> bool:
    """Whether corrected segments need the name of who speaks.

    Those of a damaged file become no training speech.
    """
    try:
        return corrections.read_corrected(path, read_cached(read_record, path)).needs_speaker
    except DataError:
        return False


def transcribe(request: Request) -> Response:
    project, places = project_of(request), site_of(request).places
    files = [places.resolve(one) for one in form_of(request).getlist("file")]
    command = commands.transcribe_command(project, _model(request, project), files)
    return start(request, project, "transcribe", command, "transcribe")


def show_text(request: Request) -> Response:
    """The segments of a transcribed recording, with what other tiers of its annotation file have at
    these times.
    """
    project, query = project_of(request), request.query_params
    path = project.transcript(query.get("name", ""))
    found = corrections.read_corrected(path, read_cached(read_record, path))
    recording = found.apply()
    shown = lists.page_of([*enumerate(recording.segments)], query.get("page", ""))
    beside, fault, source = [list[tuple[str, str]]()] * len(shown.items), "", found.record.source
    if source.suffix.lower() in ANNOTATED:
        try:
            source = site_of(request).places.resolve(source)
            read = corrections.read_given
            given = read_cached(read, source) if source.is_file() else read(source)
            beside = corrections.annotations_beside(
                given, recording.duration_s, [one for _, one in shown.items]
            )
        except DataError as error:
            fault = str(error)
    marks = [
        (one.start, one.end, int(number in found.corrections))
        for number, one in enumerate(recording.segments)
    ]
    speakers = sorted({clip.speaker for clip in lists.read_clips(project).values() if clip.speaker})
    values = {
        "found": found,
        "shown": shown,
        "beside": beside,
        "fault": fault,
        "marks": marks,
        "speakers": speakers,
    }
    return render(request, "text.html", project=project, duration_s=recording.duration_s, **values)


def send_peaks(request: Request) -> Response:
    """The waveform of a transcribed recording: a byte per 10 ms."""
    project = project_of(request)
    media = read_cached(
        read_record, project.transcript(request.query_params.get("name", ""))
    ).recording.media
    content = read_peaks(site_of(request).places.resolve(media), project / ".app/peaks")
    return Response(content, media_type="application/octet-stream")


def correct(request: Request) -> Response:
    """Save the text and the borders of a segment, or the speaker of the recording.

    A script gets the new hash.
    """
    project, form = project_of(request), form_of(request)
    name, number = form.get("name", ""), form.get("number", "")
    path = project.transcript(name)
    if "speaker" in form:
        corrections.save_speaker(path, form["speaker"])
    else:
        known = int(number) if number.isdecimal() and len(number) < 9 else -1
        seen = corrections.save_correction(
            path, known, commands.read_correction(form), seen=form.get("seen")
        )
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(seen)
    return go_to(project, "text", name=name, page=form.get("page", ""))


def download(request: Request) -> Response:
    """A transcribed recording with its corrections, for another program."""
    project, query = project_of(request), request.query_params
    found, form = (
        corrections.read_corrected(project.transcript(query.get("name", ""))),
        query.get("form", ""),
    )
    site_of(request).places.resolve(found.record.source)
    disposition = f"attachment; filename*=UTF-8''{quote(f'{found.name}.{form}')}"
    headers = {"Content-Disposition": disposition}
    return Response(
        corrections.export_corrected(found, form),
        media_type="application/octet-stream",
        headers=headers,
    )


def show_share(request: Request) -> Response:
    """Packed models of this project, and the cards of those that were opened."""
    project = project_of(request)
    cards = dict[str, str]()
    for path in project.files("models/*.zip"):
        try:
            card = read_cached(resolve_model, path) / "README.md"  # its SHA-256 takes seconds
            cards[path.name] = card.read_text("utf-8")[:_MAX_CARD] if card.is_file() else ""
        except (WenetHsError, UnicodeDecodeError, OSError) as error:
            cards[path.name] = str(error)
    models = {name: path for name, path in find_models(project).items() if path.is_dir()}
    job = project.last_job("pack")
    values: dict[str, Any] = {"cards": cards, "models": models, "job": job}
    values["last"] = read_pack_details(job)
    packed = [path.name for path in project.files("shared/*.zip")]
    shown = lists.page_of(lists.read_recordings(project), request.query_params.get("page", ""), 25)
    consents = read_consent(project / CONSENT)
    known = {clip.wav for clip in lists.read_clips(project).values()}
    known |= {one.path for one in lists.read_rejected_annotations(project)}
    values |= {"shown": shown, "consents": dict(match_consent(consents, shown.items))}
    values |= {"unmatched": find_unmatched(consents, known), "consent_fields": consent_fields}
    drafts = dict[str, str]()
    for path in project.files("cards/*.md"):
        try:
            drafts[path.stem] = "".join(
                f"{line}\n" for line in read_lines(site_of(request).places.resolve(path))
            )
        except DataError as error:
            cards[path.name] = str(error)
    return render(request, "share.html", project=project, packed=packed, drafts=drafts, **values)


def save_consents(request: Request) -> Response:
    """Write consent and access of the recordings of a page, or of all recordings that have neither
    yet.
    """
    project, form = project_of(request), form_of(request)
    known, given = (
        lists.read_recordings(project),
        [] if form.get("all") else form.getlist("recording"),
    )
    if unknown := sorted({*given} - {*known}):
        raise DataError(
            f"recording {one_field(unknown[0])[:200]!r}",
            "not in the training list",
            "load the page again",
        )
    rows = [given, *(form.getlist(name)[: len(given)] for name in ("allowed", "note", "was"))]
    if len({*map(len, rows)}) > 1:
        raise DataError("consent", "not the fields of this page", "load the page again")
    consents = dict[str, Consent]()
    with _MUTEX:
        now = dict(match_consent(read_consent(project / CONSENT), given))
        for name, allowed, note, was in zip(*rows, strict=True):
            was = "\t".join(map(str.strip, was.split("\t", 1)))
            new, in_file = Consent(parse_allowed(allowed), note), consent_fields(now[name])
            if consent_fields(new) not in (was, in_file):
                if was != in_file:
                    found = "its consent was changed in another tab, or in the file, since"
                    raise DataError(
                        f"recording {one_field(name)[:200]!r}", found, "load the page again"
                    )
                consents[name] = new
        if form.get("all"):
            of_all = Consent(parse_allowed(form.get("allowed", "")), form.get("note", ""))
            stated = match_consent(read_consent(project / CONSENT), known)
            consents = {name: of_all for name, one in stated if one == Consent()}
        if consents:
            set_consents(project / CONSENT, consents)
    return go_to(project, "share", page=form.get("page", ""))


def consent_fields(one: Consent) -> str:
    """What the two fields of a recording show."""
    return f"{'' if one.is_allowed is None else 'yes' if one.is_allowed else 'no'}\t{one.note}"


def save_card(request: Request) -> Response:
    """Save the edited text of a card. Raises DataError if it is not as the page has shown it."""
    project, form = project_of(request), form_of(request)
    path = project.target("cards") / f"{check_name(form.get('name', ''), 'card')}.md"
    if not path.is_file():
        raise DataError(path, "no such card", "make it first")
    was, new = (form.get(name, "").replace("\r\n", "\n") for name in ("was", "text"))
    with _MUTEX:
        if "text" not in form or was.rstrip("\n") != "\n".join(read_lines(path)).rstrip("\n"):
            raise DataError(
                path, "changed in another tab, or in the file, since", "load the page again"
            )
        write_atomic(path, new)
    return go_to(project, "share")


def pack(request: Request) -> Response:
    project = project_of(request)
    command = commands.pack_command(project, _model(request, project), form_of(request))
    return start(request, project, "pack", command, "share")


def send_packed(request: Request) -> Response:
    project, name = project_of(request), request.query_params.get("name", "")
    path = choose(
        {path.name: path for path in project.files("shared/*.zip")}, name, "model", "not packed"
    )
    return FileResponse(site_of(request).places.resolve(path), filename=name)


ROUTES = (
    *routes_of("GET", live=show_live, train=show_train, results=show_results, report=show_report),
    *routes_of(
        "GET", transcribe=show_transcribe, text=show_text, download=download, share=show_share
    ),
    *routes_of("GET", packed=send_packed, peaks=send_peaks),
    *routes_of(
        "POST",
        stop=stop,
        train=train,
        resume=resume,
        transcribe=transcribe,
        text=correct,
        pack=pack,
    ),
    *routes_of("POST", consent=save_consents, card=save_card),
)
