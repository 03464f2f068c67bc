# SPDX-License-Identifier: Apache-2.0
"""A table of recordings and transcripts: CSV, TSV or JSON, with the names of the columns in the first line.

Example: wenet-hs prepare table --table recordings.csv --audio_dir recordings --lang mdw --out data
         wenet-hs prepare table --table my.tsv --columns "audio=File text=Orthography" --out data

Columns are found by their usual names, in any case: path, audio, wav, file_name; sentence, text, transcript,
transcription; speaker, client_id; language, lang, locale; start, end or duration (seconds, mm:ss or h:mm:ss);
channel (left, right, A, B, or a number: from 0 if a 0 occurs, from 1 if the number of channels occurs); split; id.
`--columns "split="` ignores this column. Delimiter and quoting are detected and printed. Other columns are ignored.

Without names of columns a table or `key transcript` lines are read if their first line names an audio file; what was
assumed is printed. JSON has one object per line, or one array or object of objects. Of lhotse give the supervisions,
with the recordings beside them. Files may be compressed (.gz, .xz).
"""

import argparse
import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wenet_hs.corpus import entries
from wenet_hs.corpus.entries import Entry
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.table_files import Table, read_table_file
from wenet_hs.data.media import MediaFinder
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.text.normalize import normalize_phones

logger = logging.getLogger(__name__)

COLUMNS = {
    "audio": ("audio", "path", "wav", "file_name", "filename", "file", "audio_path", "audio_file", "audio_filepath"),
    "text": ("text", "sentence", "transcript", "transcription", "txt"),
    "speaker": ("speaker", "client_id", "speaker_id", "spk"),
    "lang": ("language", "lang", "locale"),
    "start": ("start", "begin", "start_time", "begin_time", "offset"),
    "end": ("end", "stop", "end_time", "stop_time"),
    "duration": ("duration", "dur"),
    "channel": ("channel", "audio_channel", "channel_id", "channel_index", "channel_selector", "chan"),
    "split": ("split", "set", "subset"),
    "key": ("id", "key", "utterance_id", "utt_id"),
}
"""What a column contains → the names by which it is found, the most usual first."""
_REQUIRED = ("audio", "text")
_TIMES = ("start", "end", "duration")
_MAX_REPEATED = 0.1
"""Share of the rows whose id another clip has too; up to it these are mistakes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare table`."""
    table_help = "table to read: .csv, .tsv or .jsonl"
    parser.add_argument(
        "--table", type=lambda path: Path(path).absolute(), required=True, metavar="FILE", help=table_help
    )
    add_column_arguments(parser)
    entries.add_arguments(parser, None)


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of how a table is read."""
    columns_help = f'names of columns, such as "audio=File text=Words"; contents: {" ".join(COLUMNS)}'
    parser.add_argument("--columns", default="", metavar='"CONTENT=NAME …"', help=columns_help)
    encoding_help = "of the text files (default: UTF-8, or UTF-16 with a byte order mark)"
    parser.add_argument("--encoding", help=encoding_help)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of a table. Returns the content of `stats.json`."""
    return entries.prepare_entries(args, "table", read_table(args.table, args), {})


def read_table(path: Path, args: argparse.Namespace, finder: MediaFinder | None = None) -> Iterator[Entry | Rejected]:
    """The rows of a table. `finder`: finds the audio, by which a table without names of columns is recognised.

    Raises DataError when the table cannot be read or lacks a column, ConfigError for wrong --columns.
    """
    finder = finder or MediaFinder(args.audio_dir)

    def is_audio(cell: str) -> bool:
        found = finder.find((cell,), path.parent)
        return isinstance(found, Path) or found.startswith("ambiguous")

    table = read_table_file(path, args.encoding, {name for names in COLUMNS.values() for name in names}, is_audio)
    if not table.header:
        found = f"no row can be read, line {table.rows[0][0]}: {table.rows[0][1]}" if table.rows else "empty"
        raise DataError(f"{path}: {found}; give a table with the names of the columns")
    columns = _find_columns(path, table.header, args.columns)
    used = ", ".join(f"{name!r} is the {content}" for content, name in columns.items())
    logger.info("%s: %s, %d rows; %s", path, table.form, len(table.rows), used)
    _drop_repeated_ids(path, table, columns)
    for number, row in table.rows:
        where = f"{path.name}:{number}"
        if isinstance(row, str):
            yield Rejected(where, "", row, "")
            continue
        given = {content: row[name] for content, name in columns.items() if row.get(name) not in (None, "")}
        value = {content: str(one).strip() for content, one in given.items()}
        try:
            if wrong := [content for content, one in given.items() if isinstance(one, list | dict)]:
                raise ValueError(f"{columns[wrong[0]]}: {value[wrong[0]][:40]} is no text or number")
            start, end = _read_times(value)
        except ValueError as error:
            yield Rejected(value.get("key", where), value.get("audio", ""), str(error), value.get("lang", ""))
            continue
        yield Entry(
            where=where,
            audio=(value.get("audio", ""),),
            folder=path.parent,
            txt=value.get("text", ""),
            start=start,
            end=end,
            **{name: value.get(name) for name in ("key", "lang", "speaker", "channel", "split")},
        )


def _drop_repeated_ids(path: Path, table: Table, columns: dict[str, str]) -> None:
    """Use no column of ids that many rows share with other audio: these are of sentences (FLEURS) or recordings."""
    if "key" not in columns:
        return
    selecting = [columns[name] for name in ("audio", *_TIMES, "channel") if name in columns]
    rows = [row for _, row in table.rows if isinstance(row, dict) and row.get(columns["key"]) not in (None, "")]
    names = [str(row[columns["key"]]) for row in rows]
    clips = {(name, *(str(row.get(column)) for column in selecting)) for name, row in zip(names, rows, strict=True)}
    if len(clips) - len(set(names)) > _MAX_REPEATED * len(rows):
        found = f"{len(clips)} clips have {len(set(names))} different ids"
        logger.info("%s: column %r names no clips: %s; it is not used", path, columns.pop("key"), found)


def _read_times(value: Mapping[str, str]) -> tuple[float | None, float | None]:
    """Begin and end of a row in seconds; neither: the whole file. Raises ValueError if one of them is missing."""
    start, end, duration = (read_seconds(value[name]) if name in value else None for name in _TIMES)
    if end is None and start is not None and duration is not None:
        end = start + duration
    if (start is None) != (end is None and duration is None):
        missing = "start" if start is None else "end"
        raise ValueError(f"times: the row has no {missing}; add it, or leave out all times for the whole file")
    return start, end


def read_seconds(text: str) -> float:
    """Of `83.5`, `83,5`, `1:23.5` or `0:01:23.5`."""
    *before, last = text.replace(",", ".").split(":")
    try:
        if len(before) > 2 or (before and not 0.0 <= float(last) < 60.0):
            raise ValueError
        return sum((int(value) * 60**power for power, value in enumerate(reversed(before), start=1)), float(last))
    except ValueError:
        raise ValueError(f"times: {text!r} is not a number of seconds, mm:ss or h:mm:ss") from None


def _find_columns(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """Content → name of its column."""
    by_lower = {name.strip().lower(): name for name in reversed(header)}
    fitting = {content: [by_lower[name] for name in names if name in by_lower] for content, names in COLUMNS.items()}
    for pair in filter(None, re.split(r"\s+(?=[^\s=]*=)", normalize_phones(chosen))):  # a name may have spaces
        content, equals, name = pair.partition("=")
        if content not in COLUMNS or not equals:
            raise ConfigError(f"--columns {pair!r}: expected CONTENT=NAME with a content of {', '.join(COLUMNS)}")
        if name and name not in header:
            guess = _guess([name], by_lower)
            raise ConfigError(f"--columns {pair!r}: {guess}{path.name} has the columns: {list_names(header, most=20)}")
        fitting[content] = [name] if name else []
    if len(fitting["text"]) > 1:
        of_text = list_names([repr(name) for name in fitting["text"]])
        raise DataError(f'{path}:1: several columns can be the transcript: {of_text}; name it: --columns "text=…"')
    found = {content: names[0] for content, names in fitting.items() if names}
    missing = [content for content in _REQUIRED if content not in found]
    if "start" in found and not {"end", "duration"} & found.keys():
        missing.append("end")
    if "end" in found and "start" not in found:
        missing.append("start")
    if "start" not in found:
        found.pop("duration", None)  # that of the file
    if missing:
        others = {lower: name for lower, name in by_lower.items() if name not in found.values()}
        guess = _guess([name for content in missing for name in COLUMNS[content]], others)
        flag = " ".join(f"{content}=…" for content in missing)
        has = list_names(header, most=20)
        if any(re.fullmatch(r"[\d:.,]*\d", name) for name in header):
            guess = "if the first line has no names, write them, or put the audio beside it; otherwise "
        raise DataError(f'{path}:1: no column of {", ".join(missing)}; {guess}name them: --columns "{flag}", of: {has}')
    return found


def _guess(names: Sequence[str], by_lower: Mapping[str, str]) -> str:
    """`did you mean …? ` with the columns that have similar names, or nothing."""
    near = {by_lower[one] for name in names for one in difflib.get_close_matches(name.lower(), by_lower, 1, 0.65)}
    return f"did you mean {list_names(sorted(near))}? " if near else ""
