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
"""Whether a recording may be shared (None: not decided) → the value of the field of the form."""
_MAX_SHOWN_OF_PATH = 200
"""Characters of the path of a recording in a message."""
_LOAD_AGAIN = "load the page again"
_MUTEX = threading.Lock()
"""Held from the reading of a file that is changed to its writing."""


def show_share(request: Request) -> Response:
    """The page on which models are packed to be shared.

    It shows the consents of the training recordings, the form to pack a model, the cards that can
    be edited, the packed models of the project, and the cards of packed models that were uploaded.
    Instead of a card that cannot be read it shows the error.
    """
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
        last_pack=read_pack_details(job),
        drafts=drafts.texts,
        packed=[path.name for path in project.files("shared/*.zip")],
        cards=cards | drafts.faults,  # the error of a draft is shown where its card would be
    )


def _read_cards(project: Project) -> dict[str, str]:
    """The cards of the packed models that were uploaded: name of the ZIP → text of its card.

    The text is empty if a ZIP has no card. If it cannot be read, the line of the error is there
    instead. A long card is cut after _MAX_CARD characters.
    """
    cards = dict[str, str]()
    for path in project.files("models/*.zip"):
        try:
            # The unpacked model is kept in a cache, because the SHA-256 of a ZIP takes seconds.
            card = read_cached(resolve_model, path) / "README.md"
            text = card.read_text("utf-8") if card.is_file() else ""
            cards[path.name] = text[:_MAX_CARD]
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
    """The cards of a project that can be edited: the files in its folder `cards`."""
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
    """The audio files of the data lists, and those of the annotations that are not used."""
    used = {clip.wav for clip in lists.read_clips(project).values()}
    rejected = {annotation.path for annotation in lists.read_rejected_annotations(project)}
    return used | rejected


# ---- consent


@dataclass(frozen=True)
class _SentConsent:
    """The fields of one recording, as the form of consents sent them."""

    recording: str
    """Its audio file, as in the training list."""
    consent: Consent
    """As the user left the fields."""
    shown_fields: str
    """What the page had shown in the fields, as `consent_fields` writes it."""


def save_consents(request: Request) -> Response:
    """Write the consents of a form into consent.tsv of the project.

    With the field `all` the form has one consent, for all recordings that have neither a decision
    nor a note yet. Without it the form has a consent per recording on the page.
    """
    project = project_of(request)
    form = form_of(request)
    if form.get("all"):
        _save_consent_of_unstated(project, form)
    else:
        _save_shown_consents(project, form)
    return go_to(project, "share", page=form.get("page", ""))


def _save_consent_of_unstated(project: Project, form: FormValues) -> None:
    """Write the consent of a form for all training recordings without a decision and a note.

    Raises DataError for a decision that is not yes, no or nothing.
    """
    consent = Consent(parse_allowed(form.get("allowed", "")), form.get("note", ""))
    recordings = lists.read_recordings(project)
    path = project / CONSENT
    with _MUTEX:
        in_file = match_consent(read_consent(path), recordings)
        nothing_stated = Consent()  # neither a decision nor a note
        unstated = [recording for recording, old in in_file if old == nothing_stated]
        _write_consents(path, dict.fromkeys(unstated, consent))


def _save_shown_consents(project: Project, form: FormValues) -> None:
    """Write the consents of a form that the user has changed on the page.

    Raises DataError, and writes none of them, if the file has another consent for one of these
    recordings than the page had shown, or if the fields are wrong; see `_read_sent_consents`.
    """
    sent_consents = _read_sent_consents(project, form)
    recordings = [sent.recording for sent in sent_consents]
    path = project / CONSENT
    changed = dict[str, Consent]()
    with _MUTEX:
        in_file = dict(match_consent(read_consent(path), recordings))
        for sent in sent_consents:
            fields = consent_fields(sent.consent)
            fields_in_file = consent_fields(in_file[sent.recording])
            if fields in (sent.shown_fields, fields_in_file):
                continue  # the user did not change them, or they are in the file already
            if sent.shown_fields != fields_in_file:
                fault = "its consent was changed in another tab, or in the file, since"
                raise DataError(_name_recording(sent.recording), fault, _LOAD_AGAIN)
            changed[sent.recording] = sent.consent
        _write_consents(path, changed)


def _read_sent_consents(project: Project, form: FormValues) -> list[_SentConsent]:
    """The consents of recordings in a form.

    Per recording it has four fields: `recording`, `allowed` (the decision), `note`, and `was` (what
    the page had shown of both).

    Raises DataError for a recording that is not in the training list, if a field is missing or
    doubled, and for a decision that is not yes, no or nothing.
    """
    recordings = form.getlist("recording")
    unknown = set(recordings) - set(lists.read_recordings(project))
    if unknown:
        first = min(unknown)  # by path
        raise DataError(_name_recording(first), "not in the training list", _LOAD_AGAIN)
    decisions = form.getlist("allowed")
    notes = form.getlist("note")
    shown_texts = form.getlist("was")
    num_fields = {len(recordings), len(decisions), len(notes), len(shown_texts)}
    if len(num_fields) > 1:  # a field is missing or doubled
        raise DataError("consent", "not the fields of this page", _LOAD_AGAIN)
    sent_consents = []
    rows = zip(recordings, decisions, notes, shown_texts, strict=True)
    for recording, decision, note, shown_text in rows:
        # As in the file, which has no white space around a note.
        shown_parts = [part.strip() for part in shown_text.split("\t", 1)]
        sent = _SentConsent(
            recording=recording,
            consent=Consent(parse_allowed(decision), note),
            shown_fields="\t".join(shown_parts),
        )
        sent_consents.append(sent)
    return sent_consents


def _name_recording(recording: str) -> str:
    """The recording as a message names it."""
    return f"recording {one_field(recording)[:_MAX_SHOWN_OF_PATH]!r}"


def _write_consents(path: Path, consents: Mapping[str, Consent]) -> None:
    """Write consents by recording into the file; without any consent it is not touched."""
    if consents:
        set_consents(path, consents)


def consent_fields(consent: Consent) -> str:
    """What a page shows of a consent: `yes`, `no` or nothing, a tab, and the note."""
    return f"{_ALLOWED_TEXTS[consent.is_allowed]}\t{consent.note}"


# ---- cards and packed models


def save_card(request: Request) -> Response:
    """Save the edited text of a card in the folder `cards` of the project.

    The form also has the text that the page had shown, as `was`. Raises DataError if the file has
    another text now, if there is no such card, or if the form has no text.
    """
    project = project_of(request)
    form = form_of(request)
    name = check_name(form.get("name", ""), "card")
    path = project.writable_path("cards") / f"{name}.md"
    if not path.is_file():
        raise DataError(path, "no such card", "make it first")
    # Browsers send \r\n. The page shows a line end after the last line, also if the file has none.
    shown = form.get("was", "").replace("\r\n", "\n").rstrip("\n")
    edited = form.get("text", "").replace("\r\n", "\n")
    with _MUTEX:
        text_in_file = "\n".join(read_lines(path)).rstrip("\n")
        if "text" not in form or shown != text_in_file:
            raise DataError(path, "changed in another tab, or in the file, since", _LOAD_AGAIN)
        write_atomic(path, edited)
    return go_to(project, "share")


def start_packing(request: Request) -> Response:
    """Start the job that packs the model of a form; with the field `card_only` it makes its card.

    Raises DataError for an unknown model, or a name that a packed model cannot have.
    """
    project = project_of(request)
    form = form_of(request)
    model = project.model(form.get("model", ""))
    command = commands.make_pack_command(project, model, form)
    return run_as_job(request, project, "pack", command, "share")


def send_packed(request: Request) -> Response:
    """The packed model of this `name` in the folder `shared`, as a file to save.

    Raises DataError if there is none.
    """
    project = project_of(request)
    name = request.query_params.get("name", "")
    packed = {path.name: path for path in project.files("shared/*.zip")}
    path = find_entry(packed, name, "model", "not packed")
    return FileResponse(site_of(request).places.resolve(path), filename=name)


ROUTES = (
    *routes_of("GET", share=show_share, packed=send_packed),
    *routes_of("POST", consent=save_consents, card=save_card, pack=start_packing),
)
