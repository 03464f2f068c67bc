# SPDX-License-Identifier: Apache-2.0
"""Files that a browser uploads, and audio that it plays."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from anyio import from_thread
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wenet_hs.annotation.recordings import read_record
from wenet_hs.app import lists
from wenet_hs.app.pages import project_of, routes_of, site_of
from wenet_hs.app.places import UPLOAD_FOLDERS, check_file_name
from wenet_hs.app.projects import Project
from wenet_hs.base.files import file_sha256, read_cached
from wenet_hs.data.audio import AudioError, TooLongError, read_duration
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.report.audio import encode_clip
from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import DataError

MAX_UPLOAD_BYTES = 4 << 30  # 4 GiB
MAX_UPLOADS = 5000
"""Files in one folder of uploads."""
MAX_UPLOAD_HOURS = 12
MAX_CLIP_S = 600
"""Seconds of audio in one answer."""
_CHOOSE_INSTEAD = "choose its folder on this computer instead"
_UPLOADING = set[Path]()
"""The files that are being uploaded to this server."""
_UPLOADING_MUTEX = threading.Lock()


# ---- uploads


def save_upload(request: Request) -> Response:
    """Write the body of a request to a file of the project, completely or not at all.

    The address names the folder (`to`) and the file (`name`). The answer is an empty text. If there
    is an equal file of this name, it was sent before, and nothing is written.

    Raises DataError if files cannot be uploaded to the folder, if the name is not allowed or in
    use, or if the file is too large or has too many hours of audio.
    """
    project = project_of(request)
    query = request.query_params
    target = query.get("to", "")
    if target not in UPLOAD_FOLDERS:
        raise DataError("upload", "not a folder for files", "load the page again")
    if "form" in request.scope:  # the guard has read the body as a form
        raise DataError("upload", "a form, not a file", "load the page again")
    folder = project.writable_path(target)
    path = folder / check_file_name(query.get("name", ""), UPLOAD_FOLDERS[target])
    if path.is_file() and _is_equal_to_body(path, request):
        return PlainTextResponse("")
    with _reserve(path), open_atomic(path) as file:
        _check_size(path.name, _declared_size(request))  # a large file is refused at once
        for part in _read_body(path.name, request):
            file.write(part)
        file.flush()
        _check_duration(path.name, Path(file.name))
    return PlainTextResponse("")


def _declared_size(request: Request) -> int:
    """The bytes of the body by the header Content-Length; 0 if it is missing or no number."""
    header = request.headers.get("content-length", "0")
    return int(header) if header.isdecimal() else 0


def _read_body(name: str, request: Request) -> Iterator[bytes]:
    """The parts of the body of a request, in the order in which they arrive.

    Raises DataError as soon as there are more than MAX_UPLOAD_BYTES. `name`: the name of the file,
    for the message.
    """
    size = 0
    parts = request.stream()
    while True:
        # The handler runs in a thread, and the event loop of the server reads the part.
        part = from_thread.run(anext, parts)
        is_end = not part  # the last part of a stream of Starlette is empty
        if is_end:
            return
        size += len(part)
        _check_size(name, size)
        yield part


def _is_equal_to_body(path: Path, request: Request) -> bool:
    """Whether the body of a request is the content of a file.

    The body is read to its end, and cannot be read again.
    Raises DataError if the body is larger than an upload may be.
    """
    digest = sha256()
    for part in _read_body(path.name, request):
        digest.update(part)
    return digest.hexdigest() == file_sha256(path)


@contextmanager
def _reserve(path: Path) -> Iterator[None]:
    """Keep the name of a file for one upload as long as the block runs.

    Raises DataError if a file or another upload has the name, or the folder is full.
    """
    with _UPLOADING_MUTEX:
        fault = _find_reservation_fault(path)
        if fault is not None:
            to_do = "choose the folder on this computer instead, or rename the file"
            raise DataError(path.parent, fault, to_do)
        _UPLOADING.add(path)
    try:
        yield
    finally:
        _UPLOADING.discard(path)


def _find_reservation_fault(path: Path) -> str | None:
    """Why a file cannot be uploaded to a path, as a part of a message; None if it can.

    The folder may be full, or the name may be that of a file or of another upload that runs.
    """
    num_files = 0
    if path.parent.is_dir():
        num_files = sum(1 for _ in path.parent.iterdir())
    if num_files >= MAX_UPLOADS:
        return f"has {MAX_UPLOADS:,} files already"
    if path in _UPLOADING or path.exists():
        return f"has a file {path.name!r} already"
    return None


def _check_size(name: str, size: int) -> None:
    """Raise DataError if a file of this size in bytes is too large. `name`: of the file."""
    if size > MAX_UPLOAD_BYTES:
        fault = f"larger than {MAX_UPLOAD_BYTES / 1e9:.1f} GB"
        raise DataError(f"file {name!r}", fault, _CHOOSE_INSTEAD)


def _check_duration(name: str, path: Path) -> None:
    """Raise DataError if a file is a recording with more than MAX_UPLOAD_HOURS.

    A recording that cannot be read is accepted: the error is reported when it is used.

    Args:
        name: of the file after the upload.
        path: its content, in a temporary file.
    """
    if not name.lower().endswith(ALL_SUFFIXES):
        return
    try:
        is_too_long = read_duration(path) > 3600 * MAX_UPLOAD_HOURS
    except TooLongError:
        is_too_long = True
    except AudioError:
        return
    if is_too_long:
        fault = f"more than {MAX_UPLOAD_HOURS} hours of audio"
        raise DataError(f"file {name!r}", fault, f"cut it into parts, or {_CHOOSE_INSTEAD}")


# ---- playing


def send_audio(request: Request) -> Response:
    """A part of a recording as MP3; see `_find_audio` for how the address names it.

    Raises DataError if there is no such recording, if the part is empty or longer than MAX_CLIP_S,
    or if the file may not be read.
    """
    named_clip = _find_audio(project_of(request), request.query_params)
    path = site_of(request).places.resolve(named_clip.wav)
    clip = replace(named_clip, wav=str(path))
    if not 0 < _find_duration(clip) <= MAX_CLIP_S:
        fault = f"not a part of up to {MAX_CLIP_S} s"
        raise DataError(clip.wav, fault, "open it in another program")
    return Response(encode_clip(clip), media_type="audio/mpeg")


def _find_audio(project: Project, query: QueryParams) -> Utterance:
    """The audio that the query of an address names, as an utterance. The query has one of:

    key: the key of an utterance in the data lists.
    rejected: the key of an annotation that is not used.
    name, start, end: a transcribed recording, and the part of it between two times in seconds.

    Raises DataError if there is no such audio, or if the times are not numbers.
    """
    if "key" in query:
        return lists.find_clip(project, query["key"])
    if "rejected" in query:
        return lists.find_rejected(project, query["rejected"])
    record = read_cached(read_record, project.transcript(query.get("name", "")))
    try:
        start = float(query.get("start", ""))
        end = float(query.get("end", ""))
    except ValueError as error:
        where = "start and end"
        raise DataError(where, "not numbers of seconds", "load the page again") from error
    return Utterance(key="", wav=str(record.recording.media), txt="", start=start, end=end)


def _find_duration(clip: Utterance) -> float:
    """The duration of an utterance in seconds.

    Without an end it is the duration that the data list states, or else that of the whole file.
    """
    if clip.end is not None:
        return clip.end - (clip.start or 0.0)
    return clip.duration or read_duration(clip.wav)


ROUTES = (
    *routes_of("GET", audio=send_audio),
    *routes_of("POST", upload=save_upload),
)
