# SPDX-License-Identifier: Apache-2.0
"""The tables of a Common Voice release as it is downloaded (releases 5 to 25): one folder a language.

`<lang>/validated.tsv`: tab-separated with a header, no quoting (a quotation mark is text), a line ends at `\\n` alone.
`<lang>/clip_durations.tsv` (from release 16.1): milliseconds of each clip. `<lang>/clips/`: the audio.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wenet_hs.corpus.output import Rejected
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.normalize import normalize_counted

COLUMNS = ("client_id", "path", "sentence")
"""Found by their exact names: from release 17 on, `sentence_id` stands before `sentence`."""
_MAX_SENTENCE = 1000
_REPEATED = "repeated: this clip stands on an earlier line"
_BOM = b"\xef\xbb\xbf"


@dataclass
class Table:
    """What one table of a language holds. The duration of an utterance is None where the release does not tell it."""

    utterances: list[Utterance] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    """Characters that the normaliser took out of the transcripts."""

    @property
    def num_rows(self) -> int:
        """Rows of the table, the header aside."""
        return len(self.utterances) + len(self.rejected)


def find_language_folders(corpus: Path, langs: tuple[str, ...]) -> dict[str, Path]:
    """The folder of each language: CORPUS/<lang> or CORPUS/cv-corpus-*/<lang>.

    Raises DataError, a line for each language that is not there or there twice.
    """
    if not corpus.is_dir():
        raise DataError(
            f"{corpus}: no such folder; --corpus is the folder of a Common Voice release, with one folder a language "
            "that holds validated.tsv and clips/"
        )
    folders, faults = {}, []
    for lang in langs:
        candidates = [corpus / lang, *sorted(corpus.glob(f"cv-corpus-*/{lang}"))]
        found = [folder for folder in candidates if folder.is_dir()]
        if len(found) == 1:
            folders[lang] = found[0]
        elif found:
            faults.append(
                f"{corpus}: language {lang!r} is there {len(found)} times ({_names(found)}); keep one release"
            )
        else:
            there = sorted(folder.parent.name for folder in corpus.glob("*/validated.tsv")) or _names(_entries(corpus))
            faults.append(f"{corpus}: no folder {lang!r} of a Common Voice release; found: {_shorten(there)}")
    if faults:
        raise DataError("\n".join(faults))
    return folders


def read_table(path: Path, lang: str) -> Table:
    """The rows of one table with normalised transcripts; a row that is of no use is rejected with its reason.

    Raises DataError when the table is not there, or lacks a column.
    """
    clips = path.parent / "clips"
    durations = _read_durations(path.parent / "clip_durations.tsv")
    table = Table()
    seen: set[str] = set()
    for line, row in _rows(path):
        if isinstance(row, str):
            table.rejected.append(Rejected(f"{lang}:{path.name}:{line}", "", row, lang))
            continue
        client_id, name, sentence = row
        name = name if "." in name or not name else f"{name}.mp3"  # the first releases left the ending out
        text, removed = normalize_counted(sentence, lang)
        table.removed += removed
        key = _key(name, lang)
        reason = _fault(name, sentence, text) or (_REPEATED if key in seen else None)
        if reason is not None:
            where = f"{lang}:{path.name}:{line}" if not name or key in seen else key
            table.rejected.append(Rejected(where, str(clips / name) if name else "", reason, lang))
            continue
        seen.add(key)
        table.utterances.append(
            Utterance(
                key=key,
                wav=str(clips / name),
                txt=text,
                lang=lang,
                duration=durations.get(name),
                speaker=client_id or None,
            )
        )
    return table


def _rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str] | str]]:
    """Line number and (client_id, path, sentence), or why the line cannot be read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); is this a Common Voice release?") from error
    with file:
        header = _decode(file.readline().removeprefix(_BOM)).split("\t")
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            has = ", ".join(header)
            raise DataError(
                f"{path}:1: no column {missing[0]!r} (has: {has}); is this a table of a Common Voice release?"
            )
        places = [header.index(column) for column in COLUMNS]
        for number, raw in enumerate(file, start=2):
            try:
                fields = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8").split("\t")
            except UnicodeDecodeError as error:
                yield number, f"not UTF-8: byte {error.start} of the line"
                continue
            if len(fields) != len(header):
                yield number, f"wrong number of columns: {len(fields)}, the header has {len(header)}"
                continue
            client_id, name, sentence = (fields[place] for place in places)
            yield number, (client_id, name, sentence)


def _decode(raw: bytes) -> str:
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="backslashreplace")


def _fault(name: str, sentence: str, text: str) -> str | None:
    """Why a row is of no use, its audio aside."""
    if not name:
        return "no path"
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        return "path is not a file name"
    if len(sentence) > _MAX_SENTENCE:
        return f"transcript too long: {len(sentence)} characters, at most {_MAX_SENTENCE}"
    if not sentence.strip():
        return "empty transcript"
    return None if text else f"empty transcript after normalisation: {sentence!r}"


def _key(name: str, lang: str) -> str:
    """The clip's name without its ending; it must tell the language too, for two may have a clip of one name."""
    stem = "_".join(name.rpartition(".")[0].split())
    return stem if stem.startswith(f"common_voice_{lang}_") else f"{lang}_{stem}"


def _read_durations(path: Path) -> dict[str, float]:
    """Seconds of each clip, where the release tells them; a value that is no duration counts as not told."""
    durations: dict[str, float] = {}
    if not path.is_file():
        return durations
    with path.open("rb") as file:
        header = _decode(file.readline().removeprefix(_BOM)).split("\t")
        if len(header) != 2 or header[0] != "clip" or not header[1].startswith("duration"):
            raise DataError(
                f"{path}:1: expected columns clip and duration[ms], found {', '.join(header)}; restore the file"
            )
        for raw in file:
            name, _, milliseconds = _decode(raw).partition("\t")
            try:
                seconds = round(float(milliseconds) / 1000.0, 3)
            except ValueError:
                continue
            if math.isfinite(seconds) and seconds > 0.0:
                durations[name] = seconds
    return durations


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def _shorten(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit]) or "nothing"
    return f"{shown}, and {len(names) - limit} more" if len(names) > limit else shown
