# SPDX-License-Identifier: Apache-2.0
"""A folder of audio files: Hugging Face's AudioFolder, or each recording with its transcript beside it.

Example: wenet-hs prepare folder --corpus recordings --lang mdw --out data

AudioFolder: metadata.csv or metadata.jsonl with the columns file_name and transcription (or other names that
`prepare table` knows), in the folder or in subfolders such as train, validation and test, which then are the sets.
Otherwise every x.wav has its transcript in x.txt; again, subfolders with the names of sets are the sets.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wenet_hs.corpus import entries
from wenet_hs.corpus.entries import SPLIT_NAMES, Entry
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.table import add_column_arguments, read_table
from wenet_hs.data.media import AUDIO_SUFFIXES
from wenet_hs.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare folder`."""
    entries.add_arguments(parser, "folder with the audio files, also in subfolders")
    add_column_arguments(parser)
    suffix_help = "of the transcripts beside the audio files (default: %(default)s)"
    parser.add_argument("--text_suffix", default=".txt", metavar=".SUFFIX", help=suffix_help)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of a folder. Returns the content of `stats.json`."""
    metadata = sorted(path for name in ("metadata.csv", "metadata.jsonl") for path in args.corpus.rglob(name))
    if metadata:
        rows = (row for path in metadata for row in read_table(path, args, _split_of(args.corpus, path)))
        return entries.prepare_entries(args, "folder", rows, {"layout": "metadata"})
    return entries.prepare_entries(args, "folder", _read_pairs(args.corpus, args.text_suffix), {"layout": "pairs"})


def _read_pairs(corpus: Path, text_suffix: str) -> Iterator[Entry | Rejected]:
    """Each audio file with the transcript beside it."""
    audio = sorted(path for path in corpus.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES)
    if not audio:
        found = "no such folder" if not corpus.is_dir() else f"no audio file ({' '.join(AUDIO_SUFFIXES)})"
        raise DataError(f"{corpus}: {found}; --corpus is the folder with the recordings")
    texts = {path.with_suffix("") for path in corpus.rglob(f"*{text_suffix}")}
    if not texts:
        raise DataError(
            f"{corpus}: no metadata.csv, and no x{text_suffix} beside x{audio[0].suffix}; see --text_suffix"
        )
    for path in audio:
        text = path.with_suffix(text_suffix)
        if path.with_suffix("") not in texts:
            yield Rejected(str(path.relative_to(corpus)), str(path), f"missing: no {text.name} beside it", "")
            continue
        try:
            txt = " ".join(text.read_text("utf-8-sig").split())
        except UnicodeDecodeError as error:
            yield Rejected(
                str(path.relative_to(corpus)), str(path), f"not UTF-8: byte {error.start} of {text.name}", ""
            )
            continue
        where = str(text.relative_to(corpus))
        yield Entry(where=where, audio=(str(path),), folder=path.parent, txt=txt, split=_split_of(corpus, path))
    for stem in sorted(texts - {path.with_suffix("") for path in audio}):
        yield Rejected(str(stem.relative_to(corpus)) + text_suffix, "", "missing: no audio beside it", "")


def _split_of(corpus: Path, path: Path) -> str | None:
    """The first folder on the way to the file that has the name of a set."""
    return next((part for part in path.relative_to(corpus).parts[:-1] if part.lower() in SPLIT_NAMES), None)
