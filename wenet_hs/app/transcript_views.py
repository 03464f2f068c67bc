# SPDX-License-Identifier: Apache-2.0
"""Transcription of recordings, and the correction of transcripts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wenet_hs.annotation import corrections
from wenet_hs.annotation.corrections import CorrectedRecording
from wenet_hs.annotation.recordings import ANNOTATED, Record, read_record
from wenet_hs.annotation.tiers import TranscribedSegment
from wenet_hs.app import commands, lists
from wenet_hs.app.job_details import read_transcribe_details
from wenet_hs.app.pages import (
    browse_folder,
    form_of,
    go_to,
    project_of,
    render,
    routes_of,
    run_as_job,
    site_of,
    wants_html,
)
from wenet_hs.app.places import Places
from wenet_hs.app.projects import Project
from wenet_hs.app.results import read_comparisons
from wenet_hs.base.files import read_cached
from wenet_hs.base.jobs import Job
from wenet_hs.corpus.edits import ADDED
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.data.peaks import read_peaks
from wenet_hs.tree.errors import DataError

_UPLOADS = "to_transcribe"
"""The folder of a project with uploaded recordings to transcribe."""
_NO_SEGMENT = -1
"""The number of no segment: `save_correction` refuses it."""
_MAX_NUMBER_DIGITS = 8


# ---- transcription


def show_transcribe(request: Request) -> Response:
    """The page of transcription.

    It shows the files of the last job, the transcribed recordings with their corrections, the form
    for a training with these corrections, and the form to transcribe more recordings. In this form
    the uploaded files that are not transcribed yet are ticked.
    """
    project = project_of(request)
    job = project.last_job("transcribe")
    transcripts = _read_transcripts(project)
    browsed = browse_folder(request, project, _UPLOADS, suffixes=(*ALL_SUFFIXES, *ANNOTATED))
    ticked_files = list[Path]()
    if browsed.folder == project / _UPLOADS:
        ticked_files = _find_untranscribed(browsed.files, transcripts.records)
    return render(
        request,
        "transcribe.html",
        project=project,
        **browsed.template_values(),
        job=job,
        queue=_list_queue(job, transcripts.records),
        transcripts=transcripts.paths,
        num_reviewed=transcripts.num_reviewed,
        faults=transcripts.faults,
        without_speaker=transcripts.find_without_speaker(),
        used_model=transcripts.find_used_model(),
        ticked_files=ticked_files,
        corrected_table=project / "data" / ADDED,
        stats=lists.read_project_stats(project),
        models=project.models(),
        comparisons=read_comparisons(project),
    )


@dataclass(frozen=True)
class _Transcripts:
    """The transcribed recordings of a project."""

    paths: Mapping[str, Path]
    """Name → the JSON file with the segments."""
    records: list[Record]
    """The content of the files that can be read, without the segments."""
    num_reviewed: dict[str, int]
    """Name → the number of segments that a person has corrected or confirmed."""
    faults: dict[str, str]
    """Name of a recording with a damaged file → the line of the error."""

    def find_without_speaker(self) -> list[str]:
        """The names of recordings with reviewed segments whose speaker is not known."""
        return [name for name in self._reviewed_names() if _needs_speaker(self.paths[name])]

    def find_used_model(self) -> str:
        """The model that made the first transcript with reviewed segments; empty without one.

        It is proposed as the model from which a training with these segments starts.
        """
        reviewed_names = self._reviewed_names()
        if not reviewed_names:
            return ""
        return read_cached(read_record, self.paths[reviewed_names[0]]).model

    def _reviewed_names(self) -> list[str]:
        """The names of the recordings with reviewed segments."""
        return [name for name, count in self.num_reviewed.items() if count > 0]


def _read_transcripts(project: Project) -> _Transcripts:
    """The transcribed recordings of a project. The errors of damaged files are among the faults.

    Raises DataError if the folder of transcripts is outside of the project.
    """
    paths = project.transcripts()
    transcripts = _Transcripts(
        paths=paths,
        records=[],
        num_reviewed=dict.fromkeys(paths, 0),
        faults={},
    )
    for name, path in paths.items():
        try:
            transcripts.records.append(_read_without_segments(path, path.stat().st_mtime_ns))
            transcripts.num_reviewed[name] = corrections.count_reviewed(path)
        except DataError as error:
            transcripts.faults[name] = str(error)
    return transcripts


@lru_cache(maxsize=10_000)
def _read_without_segments(path: Path, changed_ns: int) -> Record:
    """The content of the file of a transcript without the segments, so that the cache stays small.

    `changed_ns`: when the file changed last; a changed file has another key in the cache.
    """
    record = read_record(path)
    return replace(record, recording=replace(record.recording, segments=()))


def _needs_speaker(path: Path) -> bool:
    """Whether a transcript has reviewed segments whose speaker is not known.

    False for a damaged file, because its segments do not become training speech.
    """
    try:
        return corrections.read_corrected(path, read_cached(read_record, path)).needs_speaker
    except DataError:
        return False


class _QueuedFile(NamedTuple):
    """A file that the last job transcribes."""

    name: str
    is_done: bool


def _list_queue(job: Job | None, records: Sequence[Record]) -> list[_QueuedFile]:
    """The files that a job transcribes, in its order; none without a job.

    A file is done if one of the records is the transcript of it by the model of the job.
    """
    details = read_transcribe_details(job)
    if details is None:
        return []
    model = str(details.model)
    queue = list[_QueuedFile]()
    for path in details.files:
        is_done = any(record.is_of(path, model) for record in records)
        queue.append(_QueuedFile(path.name, is_done))
    return queue


def _find_untranscribed(files: Iterable[Path], records: Sequence[Record]) -> list[Path]:
    """The files to transcribe that no model has transcribed yet, with one file per recording.

    Args:
        files: recordings and annotation files of one folder.
        records: the transcripts of the project.
    """
    untranscribed = list[Path]()
    for path in _choose_file_per_recording(files):
        # `is_of` also asks for a model. That of the record itself is always right.
        is_transcribed = any(record.is_of(path, record.model) for record in records)
        if not is_transcribed:
            untranscribed.append(path)
    return untranscribed


def _choose_file_per_recording(files: Iterable[Path]) -> list[Path]:
    """One file per recording of a folder: its annotation file, or else the recording itself.

    With an annotation file the transcript can have the tiers of this file. For talk.wav that is
    talk.eaf or talk.wav.eaf. The annotation files come first, then the recordings without one.
    """
    media = list[Path]()
    annotation_files = dict[str, Path]()  # by name without suffix; of several the last one
    for path in files:
        if path.suffix.lower() in ANNOTATED:
            annotation_files[path.stem] = path
        else:
            media.append(path)
    chosen_files = list(annotation_files.values())
    for path in media:
        has_annotation_file = path.stem in annotation_files or path.name in annotation_files
        if not has_annotation_file:
            chosen_files.append(path)
    return chosen_files


def start_transcription(request: Request) -> Response:
    """Start the job that transcribes the files that a form has, with the model that it has.

    Raises DataError if there are no files, or if one of them may not be read.
    """
    project = project_of(request)
    form = form_of(request)
    places = site_of(request).places
    files = [places.resolve(path) for path in form.getlist("file")]
    model = project.model(form.get("model", ""))
    command = commands.make_transcribe_command(project, model, files)
    return run_as_job(request, project, "transcribe", command, "transcribe")


# ---- correction


class _Mark(NamedTuple):
    """A segment as the picture of the waveform shows it, for the script of the page."""

    start: float
    """Seconds, as the end."""
    end: float
    is_corrected: int
    """1: the segment has a correction; 0: it has none."""


def show_text(request: Request) -> Response:
    """The page of a transcribed recording, on which its segments are played and corrected.

    If the recording was given by an annotation file, the page also shows what the tiers of this
    file have at the time of each segment. If the annotation file cannot be read, the page shows its
    error instead.
    """
    project = project_of(request)
    query = request.query_params
    path = project.transcript(query.get("name", ""))
    corrected = corrections.read_corrected(path, read_cached(read_record, path))
    recording = corrected.apply()
    numbered_segments = list(enumerate(recording.segments))
    shown = lists.select_page(numbered_segments, query.get("page", ""))
    shown_segments = [segment for _, segment in shown.items]
    fault = ""
    try:
        other_tiers = _read_other_tiers(corrected, shown_segments, site_of(request).places)
    except DataError as error:
        other_tiers = [[] for _ in shown_segments]
        fault = str(error)
    marks = [
        _Mark(segment.start, segment.end, int(number in corrected.corrections))
        for number, segment in numbered_segments
    ]
    speakers = {clip.speaker for clip in lists.read_clips(project).values() if clip.speaker}
    return render(
        request,
        "text.html",
        project=project,
        corrected=corrected,
        duration_s=recording.duration_s,
        shown=shown,
        other_tiers=other_tiers,
        fault=fault,
        marks=marks,
        speakers=sorted(speakers),
    )


def _read_other_tiers(
    corrected: CorrectedRecording, segments: Sequence[TranscribedSegment], places: Places
) -> list[list[tuple[str, str]]]:
    """What the tiers of the annotation file of a recording have at the time of each segment.

    Returns a list per segment, with the name and text of each tier that has a text at its time. The
    lists are empty if the recording was not given by an annotation file. Raises DataError if this
    file may not or cannot be read.
    """
    source = corrected.record.source
    if source.suffix.lower() not in ANNOTATED:
        return [[] for _ in segments]
    source = places.resolve(source)
    if source.is_file():
        annotation_file = read_cached(corrections.read_given, source)
    else:
        # The cache has only files that exist. Without it the error is that of a missing file.
        annotation_file = corrections.read_given(source)
    duration_s = corrected.record.recording.duration_s
    return corrections.annotations_beside(annotation_file, duration_s, segments)


def send_peaks(request: Request) -> Response:
    """The waveform of a transcribed recording: a byte per 10 ms, from 0 (silence) to 255."""
    project = project_of(request)
    transcript = project.transcript(request.query_params.get("name", ""))
    media = read_cached(read_record, transcript).recording.media
    peaks = read_peaks(site_of(request).places.resolve(media), project / ".app/peaks")
    return Response(peaks, media_type="application/octet-stream")


def correct_transcript(request: Request) -> Response:
    """Save the speaker of a recording, or the text and the borders of a segment.

    The answer leads back to the page of the recording. A script that saves a segment gets the hash
    of the new correction instead. The form has the hash of the segment as its page has shown it, as
    `seen`: if it is another one now, another tab has changed the segment.

    Raises DataError or ConfigError if the segment was changed, or for values that cannot be saved.
    """
    project = project_of(request)
    form = form_of(request)
    name = form.get("name", "")
    path = project.transcript(name)
    if "speaker" in form:
        corrections.save_speaker(path, form["speaker"])
    else:
        new_hash = corrections.save_correction(
            path,
            _read_segment_number(form),
            commands.read_correction(form),
            seen=form.get("seen"),
        )
        if not wants_html(request):
            return PlainTextResponse(new_hash)
    return go_to(project, "text", name=name, page=form.get("page", ""))


def _read_segment_number(form: commands.FormValues) -> int:
    """The number of the segment that a form corrects, from 0; _NO_SEGMENT if it is no number."""
    number = form.get("number", "")
    is_number = number.isdecimal() and len(number) <= _MAX_NUMBER_DIGITS
    return int(number) if is_number else _NO_SEGMENT


def send_transcript(request: Request) -> Response:
    """A transcribed recording with its corrections, as a file for another program.

    The address has the `name` of the recording, and as `form` the suffix of the file, such as eaf.
    Raises DataError for a suffix that cannot be written, or if the recording or its annotation file
    may not or cannot be read.
    """
    project = project_of(request)
    query = request.query_params
    corrected = corrections.read_corrected(project.transcript(query.get("name", "")))
    suffix = query.get("form", "")
    # The tiers of the source are copied into the file, so it must be a file that may be read.
    site_of(request).places.resolve(corrected.record.source)
    file_name = quote(f"{corrected.name}.{suffix}")
    return Response(
        corrections.export_corrected(corrected, suffix),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{file_name}"},
    )


ROUTES = (
    *routes_of(
        "GET",
        transcribe=show_transcribe,
        text=show_text,
        peaks=send_peaks,
        download=send_transcript,
    ),
    *routes_of("POST", transcribe=start_transcription, text=correct_transcript),
)
