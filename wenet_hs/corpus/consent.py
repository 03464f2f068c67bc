# SPDX-License-Identifier: Apache-2.0
"""Consent and access per recording: the file consent.tsv of a project.

People and programs write it. It has a header and one line per recording: the recording, `yes`, `no`
or nothing, and a note. A recording is the path of its audio file as in the data lists, or the end of
that path, such as `talk.wav` or `2019/talk.wav`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from unicodedata import normalize

from wenet_hs.base.files import one_field, read_lines
from wenet_hs.data.media import fold_name
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

CONSENT = "consent.tsv"
HEADER = ("recording", "allowed", "note")
_ALLOWED = {"yes": True, "no": False, "": None}


@dataclass(frozen=True)
class Consent:
    """What is known about a recording."""

    is_allowed: bool | None = None
    """Whether a model that was trained with it may be shared; None: not stated."""
    note: str = ""


_NOTHING_STATED = Consent()


# ---- the file


def read_consent(path: Path) -> dict[str, Consent]:
    """Recording → its consent; empty if there is no file.

    If several lines name a recording, `join_consents` says which counts. Raises DataError for a
    line of another form.
    """
    if not path.is_file():
        return {}
    consents = list[tuple[str, Consent]]()
    for number, line in enumerate(read_lines(path), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        is_header = number == 1 and cells == [*HEADER]
        if is_header or not any(cells):
            continue
        recording, word, note = [*cells, "", ""][:3]  # cells at the end may be absent
        if len(cells) > 3 or not recording or word.lower() not in _ALLOWED:
            to_do = "write the recording, yes, no or nothing, and a note, with tabs between them"
            raise DataError(f"{path}:{number}", "not a line of consent", to_do)
        consents.append((recording, Consent(_ALLOWED[word.lower()], note)))
    return join_consents(consents)


def join_consents(consents: Iterable[tuple[str, Consent]]) -> dict[str, Consent]:
    """Name → its consent. Of several with one name, the first refusal counts, or else the last one.

    A refusal is a consent that is not allowed; later ones do not replace it.
    """
    joined = dict[str, Consent]()
    for name, consent in consents:
        is_refused = name in joined and joined[name].is_allowed is False
        if not is_refused:
            joined[name] = consent
    return joined


def parse_allowed(word: str) -> bool | None:
    """True for yes, False for no, None for nothing. Raises DataError for another word."""
    if word.lower() not in _ALLOWED:
        where = f"allowed {one_field(word)[:40]!r}"
        raise DataError(where, "not yes, no or nothing", "write one of them")
    return _ALLOWED[word.lower()]


def set_consents(path: Path, consents: Mapping[str, Consent]) -> None:
    """Write the consent of these recordings; the lines of other recordings stay.

    A recording with neither a decision nor a note gets no line, and its earlier line is removed.
    """
    consent_of = read_consent(path)
    for name, consent in consents.items():
        note = one_field(consent.note.strip())
        consent_of[one_field(name)] = Consent(consent.is_allowed, note)
    word_of = {is_allowed: word for word, is_allowed in _ALLOWED.items()}
    rows = [HEADER]
    for name, consent in consent_of.items():
        if consent != _NOTHING_STATED:
            rows.append((name, word_of[consent.is_allowed], consent.note))
    write_atomic(path, "".join("\t".join(row) + "\n" for row in rows))


# ---- recordings of lists


def match_consent(
    consents: Mapping[str, Consent], recordings: Iterable[str]
) -> Iterator[tuple[str, Consent]]:
    """Each recording with the consent of the longest end of its path that has one.

    Composed and decomposed letters are equal. A name with the same upper and lower case as the path
    is preferred; otherwise the case of the file's name does not count.
    """
    exact = join_consents((normalize("NFC", name), consent) for name, consent in consents.items())
    folded = join_consents((_fold_name(name), consent) for name, consent in consents.items())
    for recording in recordings:
        yield recording, _match_one(recording, exact, folded)


def _match_one(
    recording: str, exact: Mapping[str, Consent], folded: Mapping[str, Consent]
) -> Consent:
    """The consent of the longest end of a path that has one; if no end has one, nothing is stated.

    Args:
        exact: consents by name in NFC.
        folded: consents by name as `_fold_name` gives it.
    """
    for end in _list_ends_of_path(recording):
        consent = exact.get(end) or folded.get(_fold_name(end))
        if consent is not None:
            return consent
    return _NOTHING_STATED


def find_unmatched(consents: Mapping[str, Consent], recordings: Iterable[str]) -> list[str]:
    """The names with a refusal that match no recording.

    They may be misspelt, or their recording is in no list.
    """
    known_ends = set[str]()
    for recording in recordings:
        known_ends |= {_fold_name(end) for end in _list_ends_of_path(recording)}
    not_allowed = [name for name, consent in consents.items() if consent.is_allowed is False]
    return [name for name in not_allowed if _fold_name(name) not in known_ends]


def _list_ends_of_path(recording: str) -> list[str]:
    """The path in NFC, and each end of it: `/a/b.wav`, `a/b.wav` and `b.wav`, the longest first."""
    written = one_field(recording)  # without tabs and line ends, as consent.tsv has it
    parts = PurePath(normalize("NFC", written)).parts
    return [str(PurePath(*parts[start:])) for start in range(len(parts))]


def _fold_name(path: str) -> str:
    """A path in NFC whose file name is without case."""
    composed = PurePath(normalize("NFC", path))
    if not composed.name:  # the empty path, or `/`
        return str(composed)
    return str(composed.with_name(fold_name(composed.name)))


def summarise_consent(consents: Iterable[Consent]) -> list[str]:
    """Sentences for a model card: the number of recordings that are stated as allowed, and the notes.

    Each note stands with its number of recordings. The list is empty if nothing is stated about any
    recording.
    """
    consents = list(consents)
    if all(consent == _NOTHING_STATED for consent in consents):
        return []
    num_allowed = sum(consent.is_allowed is True for consent in consents)
    notes = Counter(consent.note for consent in consents if consent.note)
    total = f"Recordings in the training: {len(consents):,}."
    lines = [f"{total} Stated as allowed: {num_allowed:,}."]
    return lines + [f"{number:,} of them: {note}" for note, number in notes.most_common()]
