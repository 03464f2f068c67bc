# SPDX-License-Identifier: Apache-2.0
"""What a user adds to the lists of own recordings, and leaves out: OUT/added.tsv and
OUT/exclude.txt.

The user or `wenet-hs app` writes these files. The rows of added.tsv are training speech and never
enter dev or test, so the dev and test lists are the same with and without this file. Its first line
names the columns: audio (a path) and text are needed; start and end in seconds, speaker, lang and
channel are optional. If the speakers of dev or test are named, each row needs its speaker too.
"""

import logging
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from wenet_hs.base.files import file_sha256, one_field, read_lines
from wenet_hs.corpus.output import Rejected
from wenet_hs.data.media import fold_name
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

EXCLUDED = "exclude.txt"
"""A file in the output folder: keys of utterances to leave out, one per line."""
ADDED = "added.tsv"
"""A file in the output folder of `prepare`: utterances to train with too, one per line."""
COLUMNS = ("audio", "text", "start", "end", "speaker", "lang", "channel")
_NEEDED = COLUMNS[:2]


# ---- added.tsv


def read_added(path: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of added.tsv below its header: the number of each line, and its values by column.

    Empty lines are left out. There are no rows if the file does not exist. Raises DataError for
    columns that are unknown, repeated or missing, and for a row with another number of cells.
    """
    if not path.is_file():
        return []
    table = [line.split("\t") for line in read_lines(path)]
    if not table:
        return []
    header, *lines = table
    _check_header(path, header)
    rows = list[tuple[int, dict[str, str]]]()
    for number, line in enumerate(lines, start=2):
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        if len(cells) != len(header):
            found = f"{len(cells)} cells, the first line has {len(header)}"
            raise DataError(f"{path}:{number}", found, "separate the cells by tabs")
        rows.append((number, dict(zip(header, cells, strict=True))))
    return rows


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Raise DataError if a needed column is absent, or one is unknown or repeated."""
    are_known = set(header) <= set(COLUMNS)
    are_different = len(set(header)) == len(header)
    has_needed = set(_NEEDED) <= set(header)
    if are_known and are_different and has_needed:
        return
    found = f"has the columns {' '.join(header)}"
    to_do = f"write audio and text, and any of {' '.join(COLUMNS[2:])}"
    raise DataError(f"{path}:1", one_field(found)[:200], to_do)


def write_added(
    path: Path, rows: Sequence[Mapping[str, str]], *, recordings: Collection[str] | None = None
) -> None:
    """Write the file from rows of values by column; other keys of a row are ignored.

    Args:
        recordings: values of `audio` whose earlier rows are replaced; those of other audio files
            stay, before the new ones. None: all rows are replaced.
    """
    kept = list[Mapping[str, str]]()
    if recordings is not None:
        kept = [row for _, row in read_added(path) if row["audio"] not in recordings]
    lines = ["\t".join(COLUMNS)]
    for row in (*kept, *rows):
        lines.append("\t".join(one_field(row.get(name, "")) for name in COLUMNS))
    write_atomic(path, "".join(f"{line}\n" for line in lines))


def utterances_of(rows: Iterable[Mapping[str, str]]) -> list[Utterance]:
    """An utterance per row with its audio, text and speaker, without a look at the audio.

    Times, language and channel are left out: `leave_out_held` needs only these values.
    """
    return [
        Utterance(
            key=f"added-{number}",
            wav=row["audio"],
            txt=row["text"],
            speaker=row.get("speaker") or None,
        )
        for number, row in enumerate(rows)
    ]


def leave_out_held(
    added: Sequence[Utterance], splits: Mapping[str, Sequence[Utterance]]
) -> tuple[list[Utterance], list[Rejected]]:
    """The added utterances that may be trained with, and the others with the reason.

    The first of these reasons is stated; none of them is a fault:
    1. Its recording is in dev or test: the same file, a copy, or a file of the same name in another
       form or folder.
    2. Its speaker is in dev or test. Upper and lower case of names are equal.
    3. Speakers of dev or test are named, and it has no speaker.
    4. Its name is in a list already, or an earlier added utterance has it.
    """
    if not added:
        return [], []
    held_out = {name: splits.get(name, ()) for name in ("test", "dev")}
    recordings = _HeldOutRecordings(held_out)
    set_of_speaker = {
        fold_speaker(u.speaker): name
        for name, utterances in held_out.items()
        for u in utterances
        if u.speaker
    }
    known_keys = {u.key for utterances in splits.values() for u in utterances}
    kept = list[Utterance]()
    rejected = list[Rejected]()
    for utterance in added:
        set_of_recording = recordings.find_set(utterance.wav)
        speaker = utterance.speaker
        reason = None
        if set_of_recording is not None:
            reason = f"its recording is in the {set_of_recording} set"
        elif speaker and fold_speaker(speaker) in set_of_speaker:
            reason = f"its speaker is in the {set_of_speaker[fold_speaker(speaker)]} set"
        elif set_of_speaker and not speaker:
            reason = "no speaker: it may be one of dev or test, which have names; name who speaks"
        elif utterance.key in known_keys:
            reason = "repeated: the lists have an utterance of this name already"
        known_keys.add(utterance.key)  # also that of a rejected one: its name may not come again
        if reason is None:
            kept.append(utterance)
        else:
            rejected.append(
                Rejected(
                    key=utterance.key,
                    path=utterance.wav,
                    reason=reason,
                    lang=utterance.lang or "",
                    is_fault=False,
                )
            )
    return kept, rejected


class _HeldOutRecordings:
    """The recordings of dev and test. `find_set` tells whether a file is one of them or a copy."""

    def __init__(self, held_out: Mapping[str, Sequence[Utterance]]) -> None:
        """Look for the files of the recordings. `held_out`: name of a set → its utterances."""
        self._set_of_path: dict[Path, str] = {}
        """Real path of a recording → its set."""
        for name, utterances in held_out.items():
            wavs = {utterance.wav for utterance in utterances}
            for wav in wavs:
                self._set_of_path[Path(wav).resolve()] = name
        self._set_of_stem = {fold_name(path.stem): name for path, name in self._set_of_path.items()}
        self._paths_of_size: dict[int, list[Path]] = {}
        """Size in bytes → the recordings of this size: only such files can be copies."""
        for path in filter(Path.is_file, self._set_of_path):
            self._paths_of_size.setdefault(path.stat().st_size, []).append(path)
        # Cached, because many utterances have one recording: each file is read only once.
        self._sha256 = cache(file_sha256)
        self.find_set = cache(self._find_set)

    def _find_set(self, wav: str) -> str | None:
        """The set that has this recording: a file of its name, or a file with the same content.

        The folder and suffix of the name do not count. None: it is in no set. The file must exist.
        """
        path = Path(wav).resolve()
        set_of_name = self._set_of_stem.get(fold_name(path.stem))
        if set_of_name is not None:
            return set_of_name
        for other in self._paths_of_size.get(path.stat().st_size, []):
            if other == path or self._sha256(other) == self._sha256(path):
                return self._set_of_path[other]
        return None


# ---- names of speakers


def fold_speaker(name: str) -> str:
    """The form of a person's name by which names are compared: NFC, without case, single spaces.

    Weiß and WEISS have the same form.
    """
    folded = unicodedata.normalize("NFC", name).casefold()
    composed = unicodedata.normalize("NFC", folded)  # `casefold` decomposes some letters
    return " ".join(composed.split())


def join_names(names: Iterable[str | None]) -> dict[str, str]:
    """Each name → the spelling that is used for this person: the first one, in NFC.

    Names are of one person if they differ only in case, spaces or the form of Unicode. (macOS
    writes names in another form than NFC.) None and empty names are left out. Names that are
    replaced by another spelling are logged.
    """
    first_spelling = dict[str, str]()
    spelling_of = dict[str, str]()
    joined = set[str]()
    for name in filter(None, names):
        normal = normalize_phones(name)
        spelling = first_spelling.setdefault(fold_speaker(normal), normal)
        spelling_of[name] = spelling
        if normal != spelling:
            joined.add(f"{name!r} as {spelling!r}")
    if joined:
        listed = list_names(sorted(joined), most=8)
        logger.info("speakers whose names differ only in case are one: %s", listed)
    return spelling_of


# ---- exclude.txt


def reject_excluded(utterances: Sequence[Utterance], path: Path) -> list[Rejected]:
    """The utterances whose key is in the file, as rejected; there are none if it does not exist.

    Their number is logged, and the number of keys that no utterance has.
    """
    if not path.is_file():
        return []
    keys = {line.strip() for line in read_lines(path)} - {""}
    reason = f"excluded: listed in {path.name}"
    excluded = [Rejected.of(u, reason, is_fault=False) for u in utterances if u.key in keys]
    if keys:
        num_unknown = len(keys) - len(excluded)  # keys of utterances are unique
        message = "%s: %d utterances left out; %d of its keys are not in the data"
        logger.info(message, path, len(excluded), num_unknown)
    return excluded
