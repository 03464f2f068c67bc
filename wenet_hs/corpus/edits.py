# SPDX-License-Identifier: Apache-2.0
"""What a user adds to the lists of own recordings, and leaves out: OUT/added.tsv and
OUT/exclude.txt.

The user writes the files, or `wenet-hs app`. The rows of added.tsv are training speech and never
enter dev or test. Its first line names the columns: audio (a path) and text; if wanted start and
end in seconds, speaker, lang and channel. Where the speakers of dev or test are named, a row needs
its speaker. The dev and test lists are the same with and without it.
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
"""Name of the file in the output folder of `prepare`."""
COLUMNS = ("audio", "text", "start", "end", "speaker", "lang", "channel")
_NEEDED = COLUMNS[:2]


def read_added(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line number and values by column of each row; none without the file.

    Raises DataError for another form.
    """
    header, *lines = [
        line.split("\t") for line in (read_lines(path) if path.is_file() else [])
    ] or [list(_NEEDED)]
    unknown = [name for name in header if name not in COLUMNS]
    if unknown or len({*header}) < len(header) or not {*_NEEDED} <= {*header}:
        found = f"has the columns {' '.join(header)}"
        to_do = f"write audio and text, and any of {' '.join(COLUMNS[2:])}"
        raise DataError(f"{path}:1", one_field(found)[:200], to_do)
    rows = list[tuple[int, dict[str, str]]]()
    for number, cells in enumerate(lines, start=2):
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != len(header):
            found = f"{len(cells)} cells, the first line has {len(header)}"
            raise DataError(f"{path}:{number}", found, "separate the cells by tabs")
        rows.append((number, dict(zip(header, map(str.strip, cells), strict=True))))
    return rows


def write_added(
    path: Path, rows: Sequence[Mapping[str, str]], *, recordings: Collection[str] | None = None
) -> None:
    """Write the file from rows of values by column.

    `recordings`: their rows are replaced, and those of other audio files stay; None: all rows are
    replaced.
    """
    kept = (
        []
        if recordings is None
        else [row for _, row in read_added(path) if row["audio"] not in recordings]
    )
    lines = (
        "\t".join(one_field(row.get(name, "")) for name in COLUMNS) + "\n" for row in (*kept, *rows)
    )
    write_atomic(path, "\t".join(COLUMNS) + "\n" + "".join(lines))


def utterances_of(rows: Iterable[Mapping[str, str]]) -> list[Utterance]:
    """An utterance per row, without a look at its audio."""
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
    """The utterances that may be trained with, and those whose recording or speaker is or may be in
    dev or test.

    A copy of a recording counts as the recording, and so does a file of the same name in another
    form or folder. Upper and lower case of names are equal. Where speakers of dev or test are
    named, an utterance without a speaker is left out. Those whose name is in a list already are
    left out too.
    """
    held = {name: splits.get(name, ()) for name in ("test", "dev")}
    if not added:
        return [], []
    recordings = {
        Path(wav).resolve(): name for name, us in held.items() for wav in {u.wav for u in us}
    }
    stems = {fold_name(path.stem): name for path, name in recordings.items()}
    speakers = {fold_speaker(u.speaker): name for name, us in held.items() for u in us if u.speaker}
    by_size = dict[int, list[Path]]()
    for path in filter(Path.is_file, recordings):
        by_size.setdefault(path.stat().st_size, []).append(path)
    sha256 = cache(file_sha256)

    @cache
    def find_set(wav: str) -> str | None:
        path = Path(wav).resolve()
        if found := stems.get(fold_name(path.stem)):
            return found
        alike = by_size.get(path.stat().st_size, [])
        same = next((one for one in alike if one == path or sha256(one) == sha256(path)), None)
        return recordings[same] if same else None

    kept, rejected = list[Utterance](), list[Rejected]()
    known = {u.key for us in splits.values() for u in us}
    for u in added:
        reason = f"its recording is in the {name} set" if (name := find_set(u.wav)) else ""
        if not reason and u.speaker and (name := speakers.get(fold_speaker(u.speaker))):
            reason = f"its speaker is in the {name} set"
        if not reason and speakers and not u.speaker:
            reason = "no speaker: it may be one of dev or test, which have names; name who speaks"
        if not reason and u.key in known:
            reason = "repeated: the lists have an utterance of this name already"
        known.add(u.key)
        if reason:
            rejected.append(Rejected(u.key, u.wav, reason, u.lang or "", is_fault=False))
        else:
            kept.append(u)
    return kept, rejected


def fold_speaker(name: str) -> str:
    """The name of a person to compare: composed letters, without case (Weiß is WEISS), single
    spaces.
    """
    return " ".join(
        unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).split()
    )


def join_names(names: Iterable[str | None]) -> dict[str, str]:
    """Each name → the first one that differs only in case or in the form of Unicode (macOS writes
    another one).
    """
    first, found = dict[str, str](), dict[str, str]()
    for name in filter(None, names):
        normal = normalize_phones(name)
        found[name] = first.setdefault(fold_speaker(normal), normal)
    if joined := sorted(
        {f"{name!r} as {one!r}" for name, one in found.items() if normalize_phones(name) != one}
    ):
        logger.info(
            "speakers whose names differ only in case are one: %s", list_names(joined, most=8)
        )
    return found


def leave_out_excluded(
    utterances: Sequence[Utterance], path: Path
) -> tuple[list[Utterance], list[Rejected]]:
    """The utterances that are used, and those whose key is in the file."""
    keys = {*map(str.strip, read_lines(path))} - {""} if path.is_file() else set[str]()
    reason = f"excluded: listed in {path.name}"
    excluded = [Rejected.of(u, reason, is_fault=False) for u in utterances if u.key in keys]
    if keys:
        unknown = len(keys) - len(excluded)
        logger.info(
            "%s: %d utterances left out; %d of its keys are not in the data",
            path,
            len(excluded),
            unknown,
        )
    return [u for u in utterances if u.key not in keys], excluded
