# SPDX-License-Identifier: Apache-2.0
"""Consent and access per recording: the file consent.tsv of a project, which people and programs
write.

It has a header and one line per recording: the recording, `yes`, `no` or nothing, and a note. A
recording is the path of its audio file as in the data lists, or the end of that path, such as
`talk.wav` or `2019/talk.wav`.
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


def read_consent(path: Path) -> dict[str, Consent]:
    """Recording → its consent, of several lines that which is not allowed; empty if there is no
    file.

    Raises DataError for a line of another form.
    """
    found = list[tuple[str, Consent]]()
    for number, line in enumerate(read_lines(path) if path.is_file() else [], 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if number == 1 and cells == [*HEADER] or not any(cells):
            continue
        recording, allowed, note = [*cells, "", ""][:3]
        if len(cells) > 3 or not recording or allowed.lower() not in _ALLOWED:
            to_do = "write the recording, yes, no or nothing, and a note, with tabs between them"
            raise DataError(f"{path}:{number}", "not a line of consent", to_do)
        found.append((recording, Consent(_ALLOWED[allowed.lower()], note)))
    return join_consents(found)


def parse_allowed(word: str) -> bool | None:
    """yes, no or nothing. Raises DataError for another word."""
    if word.lower() not in _ALLOWED:
        raise DataError(
            f"allowed {one_field(word)[:40]!r}", "not yes, no or nothing", "write one of them"
        )
    return _ALLOWED[word.lower()]


def set_consents(path: Path, consents: Mapping[str, Consent]) -> None:
    """Write the consent of these recordings; without note and decision a line is removed."""
    new = {
        one_field(name): Consent(one.is_allowed, one_field(one.note.strip()))
        for name, one in consents.items()
    }
    found = read_consent(path) | new
    names = {value: name for name, value in _ALLOWED.items()}
    rows = [
        (name, names[one.is_allowed], one.note) for name, one in found.items() if one != Consent()
    ]
    write_atomic(path, "".join("\t".join(row) + "\n" for row in (HEADER, *rows)))


def match_consent(
    consents: Mapping[str, Consent], recordings: Iterable[str]
) -> Iterator[tuple[str, Consent]]:
    """Each recording with its consent. The longest matching end of its path counts.

    Composed and decomposed letters are equal, and upper and lower case of the file name, unless a
    line has its case.
    """
    exact = join_consents((normalize("NFC", name), one) for name, one in consents.items())
    folded = join_consents((_fold_name(name), one) for name, one in consents.items())
    for recording in recordings:
        parts = PurePath(normalize("NFC", one_field(recording))).parts  # as the file has it
        ends = [str(PurePath(*parts[start:])) for start in range(len(parts))]
        known = (exact.get(end) or folded.get(_fold_name(end)) for end in ends)
        yield recording, next(filter(None, known), Consent())


def find_unmatched(consents: Mapping[str, Consent], recordings: Iterable[str]) -> list[str]:
    """The names that are not allowed and match no recording: misspelt, or of one that is not there."""
    names = [PurePath(normalize("NFC", one_field(one))).parts for one in recordings]
    ends = {
        _fold_name(str(PurePath(*parts[start:]))) for parts in names for start in range(len(parts))
    }
    return [
        name
        for name, one in consents.items()
        if one.is_allowed is False and _fold_name(name) not in ends
    ]


def join_consents(consents: Iterable[tuple[str, Consent]]) -> dict[str, Consent]:
    """By name; of several with one name that which is not allowed, or the last one."""
    found = dict[str, Consent]()
    for name, one in consents:
        if found.setdefault(name, one).is_allowed is not False:
            found[name] = one
    return found


def _fold_name(path: str) -> str:
    """A path in NFC whose file name is folded."""
    found = PurePath(normalize("NFC", path))
    return str(found.with_name(fold_name(found.name))) if found.name else str(found)


def summarise_consent(consents: Iterable[Consent]) -> list[str]:
    """Sentences for a card: how many of the recordings are allowed, and each note with its number
    of recordings.
    """
    found = list(consents)
    if all(one == Consent() for one in found):
        return []
    num_allowed = sum(one.is_allowed is True for one in found)
    notes = Counter(one.note for one in found if one.note)
    lines = [f"Recordings in the training: {len(found):,}. Stated as allowed: {num_allowed:,}."]
    return lines + [f"{number:,} of them: {note}" for note, number in notes.most_common()]
