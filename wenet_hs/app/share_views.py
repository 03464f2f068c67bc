# SPDX-License-Identifier: Apache-2.0
"""Models to share: consent of the recordings, cards, packing, and the packed models."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from wenet_hs.app import commands, lists
from wenet_hs.app.commands import FormValues
from wenet_hs.app.job_details import read_pack_details
from wenet_hs.app.pages import (
    form_of,
    go_to,
    project_of,
    render,
    routes_of,
    run_as_job,
    site_of,
)
from wenet_hs.app.places import Places, check_name, find_entry
from wenet_hs.app.projects import Project
from wenet_hs.base.files import one_field, read_cached, read_lines
from wenet_hs.corpus.consent import (
    CONSENT,
    Consent,
    find_unmatched,
    match_consent,
    parse_allowed,
    read_consent,
    set_consents,
)
from wenet_hs.model.packed import resolve_model
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, WenetHsError

_MAX_CARD = 20_000
"""Characters of a card that are shown."""
_ALLOWED_TEXTS = {None: "", True: "yes", False: "no"}
"""Whether a recording may be shared → the value of the field of the form."""
_LOAD_AGAIN = "load the page again"
_MUTEX = threading.Lock()
"""Held from the reading of a file that is changed to its writing."""


def show_share(request: Request) -> Response:
    """The page to share models: consents, the form to pack, drafts of cards, packed models."""
    project = project_of(request)
    recordings = lists.read_recordings(project)
    shown = lists.select_page(recordings, request.query_params.get("page", ""), size=25)
    consents = read_consent(project / CONSENT)
    models = project.models()
    job = project.last_job("pack")
    cards = _read_cards(project)
    drafts = _read_drafts(project, site_of(request).places)
    return render(
        request,
        "share.html",
        project=project,
        shown=shown,
        consents=dict(match_consent(consents, shown.items)),
        consent_fields=consent_fields,
        unmatched=find_unmatched(consents, _find_all_audio(project)),
        models={name: path for name, path in models.items() if path.is_dir()},
        job=job,
        last=read_pack_details(job),
        drafts=drafts.texts,
        packed=[path.name for path in project.files("shared/*.zip")],
        cards=cards | drafts.faults,
    )


def _read_cards(project: Project) -> dict[str, str]:
    """The cards of the packed models in the folder `models`: name of the ZIP → text of its card.

    Instead of the card of a ZIP that cannot be read there is the line of the error.
    """
    cards = dict[str, str]()
    for path in project.files("models/*.zip"):
        try:
            # In a cache, because the SHA-256 of a ZIP takes seconds.
            card = read_cached(resolve_model, path) / "README.md"
            cards[path.name] = card.read_text("utf-8")[:_MAX_CARD] if card.is_file() else ""
        except (WenetHsError, UnicodeDecodeError, OSError) as error:
            cards[path.name] = str(error)
    return cards


@dataclass(frozen=True)
class _Drafts:
    """The cards of a project that can be edited."""

    texts: dict[str, str]
    """Name of the model → text."""
    faults: dict[str, str]
    """Name of a file that cannot be read → the line of the error."""


def _read_drafts(project: Project, places: Places) -> _Drafts:
    """The files of the folder `cards`."""
    drafts = _Drafts(texts={}, faults={})
    for path in project.files("cards/*.md"):
        try:
            lines = read_lines(places.resolve(path))
        except DataError as error:
            drafts.faults[path.name] = str(error)
        else:
            drafts.texts[path.stem] = "".join(f"{line}\n" for line in lines)
    return drafts


def _find_all_audio(project: Project) -> set[str]:
    """The audio files of all lists, and those of the annotations that are not used."""
    used = {clip.wav for clip in lists.read_clips(project).values()}
    rejected = {annotation.path for annotation in lists.read_rejected_annotations(project)}
    return used | rejected


# ---- consent


@dataclass(frozen=True)
class _SentConsent:
    """The fields of one recording in the form of consents."""

    recording: str
    """Its audio file, as in the training list."""
    consent: Consent
    """As the user left the fields."""
    shown_fields: str
    """What the page had shown in them: the `consent_fields` of the consent at that time."""


def save_consents(request: Request) -> Response:
    """Write the consents of a form into consent.tsv.

    With the field `all` the form has one consent for all recordings that have neither a consent nor
    a note. Without it, it has the consent of each recording on the page.
    """
    project = project_of(request)
    form = form_of(request)
    if form.get("all"):
        _save_consent_of_others(project, form)
    else:
        _save_shown_consents(project, form)
    return go_to(project, "share", page=form.get("page", ""))


def _save_consent_of_others(project: Project, form: FormValues) -> None:
    """Write one consent for all recordings of the training list that have none and no note."""
    consent = Consent(parse_allowed(form.get("allowed", "")), form.get("note", ""))
    recordings = lists.read_recordings(project)
    path = project / CONSENT
    with _MUTEX:
        stated = match_consent(read_consent(path), recordings)
        _write_consents(path, {name: consent for name, old in stated if old == Consent()})


def _save_shown_consents(project: Project, form: FormValues) -> None:
    """Write the consents of the recordings on a page that the user has changed.

    Raises DataError, and writes none, if one of them is no longer as the page has shown it.
    """
    sent_consents = _read_sent_consents(project, form)
    recordings = [sent.recording for sent in sent_consents]
    path = project / CONSENT
    changed = dict[str, Consent]()
    with _MUTEX:
        stated = dict(match_consent(read_consent(path), recordings))
        for sent in sent_consents:
            fields_in_file = consent_fields(stated[sent.recording])
            # Fields that the user did not change, or that are in the file already, are not written.
            if consent_fields(sent.consent) in (sent.shown_fields, fields_in_file):
                continue
            if sent.shown_fields != fields_in_file:
                fault = "its consent was changed in another tab, or in the file, since"
                raise DataError(_name_recording(sent.recording), fault, _LOAD_AGAIN)
            changed[sent.recording] = sent.consent
        _write_consents(path, changed)


def _read_sent_consents(project: Project, form: FormValues) -> list[_SentConsent]:
    """The consents of the recordings that a form has.

    Raises DataError for a recording that is not in the training list, and for fields that are not
    of this page.
    """
    recordings = form.getlist("recording")
    unknown = set(recordings) - set(lists.read_recordings(project))
    if unknown:
        raise DataError(_name_recording(min(unknown)), "not in the training list", _LOAD_AGAIN)
    columns = [form.getlist(name) for name in ("recording", "allowed", "note", "was")]
    if any(len(column) != len(recordings) for column in columns):
        raise DataError("consent", "not the fields of this page", _LOAD_AGAIN)
    sent_consents = []
    for recording, allowed, note, shown in zip(*columns, strict=True):
        shown_parts = [part.strip() for part in shown.split("\t", 1)]
        sent = _SentConsent(
            recording=recording,
            consent=Consent(parse_allowed(allowed), note),
            shown_fields="\t".join(shown_parts),
        )
        sent_consents.append(sent)
    return sent_consents


def _name_recording(recording: str) -> str:
    """The recording as a message names it."""
    return f"recording {one_field(recording)[:200]!r}"


def _write_consents(path: Path, consents: Mapping[str, Consent]) -> None:
    """Write the consents into consent.tsv; without any the file is not touched."""
    if consents:
        set_consents(path, consents)


def consent_fields(consent: Consent) -> str:
    """What the two fields of a recording show, with a tab between them: `yes` and the note."""
    return f"{_ALLOWED_TEXTS[consent.is_allowed]}\t{consent.note}"


# ---- cards and packed models


def save_card(request: Request) -> Response:
    """Save the edited text of a card. Raises DataError if it is not as the page has shown it."""
    project = project_of(request)
    form = form_of(request)
    name = check_name(form.get("name", ""), "card")
    path = project.writable_path("cards") / f"{name}.md"
    if not path.is_file():
        raise DataError(path, "no such card", "make it first")
    # Browsers send \r\n. At the end of a textarea they may leave out or add line ends.
    shown = form.get("was", "").replace("\r\n", "\n").rstrip("\n")
    edited = form.get("text", "").replace("\r\n", "\n")
    with _MUTEX:
        text_in_file = "\n".join(read_lines(path)).rstrip("\n")
        if "text" not in form or shown != text_in_file:
            raise DataError(path, "changed in another tab, or in the file, since", _LOAD_AGAIN)
        write_atomic(path, edited)
    return go_to(project, "share")


def start_packing(request: Request) -> Response:
    """Start the job that packs a model, or makes its card with the field `card_only`."""
    project = project_of(request)
    form = form_of(request)
    model = project.model(form.get("model", ""))
    command = commands.make_pack_command(project, model, form)
    return run_as_job(request, project, "pack", command, "share")


def send_packed(request: Request) -> Response:
    """A packed model of the folder `shared`. Raises DataError if there is none of this name."""
    project = project_of(request)
    name = request.query_params.get("name", "")
    packed = {path.name: path for path in project.files("shared/*.zip")}
    path = find_entry(packed, name, "model", "not packed")
    return FileResponse(site_of(request).places.resolve(path), filename=name)


ROUTES = (
    *routes_of("GET", share=show_share, packed=send_packed),
    *routes_of("POST", consent=save_consents, card=save_card, pack=start_packing),
)
