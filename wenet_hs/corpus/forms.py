# SPDX-License-Identifier: Apache-2.0
"""Which form a folder or file of recordings has, and its tiers or columns with examples, before
anything is written.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from wenet_hs.annotation.eaf import read_elan
from wenet_hs.annotation.tiers import AnnotationFile
from wenet_hs.corpus import folder, kaldi
from wenet_hs.corpus.columns import find_columns, is_usual_name
from wenet_hs.corpus.entries import Entry
from wenet_hs.corpus.praat import read_praat
from wenet_hs.corpus.table_files import read_table_file
from wenet_hs.data.media import ALL_SUFFIXES, MediaFinder, find_files
from wenet_hs.manifest.file_forms import refuse_annotations, refuse_known_forms
from wenet_hs.text.normalize import normalize_counted
from wenet_hs.tree.errors import DataError

FormName = Literal["elan", "praat", "kaldi", "folder", "corpus"]
_OF_SUFFIX: dict[str, FormName] = {
    ".eaf": "elan",
    ".textgrid": "praat",
    **dict.fromkeys((".csv", ".tsv"), "corpus"),
}
_OF_SUFFIX |= {".jsonl": "corpus", ".json": "corpus"}
_MAX_EXAMPLES, _MAX_FILES, _MAX_LETTERS = 3, 5000, 60
_MAX_SNIFFED = 100
"""Files that are read to name their form, where a folder has nothing that can be read."""


@dataclass
class Choice:
    """A tier, a column, or all transcripts, with what the user needs to choose."""

    name: str
    kind: str = ""
    """Linguistic type, or the content of a column."""
    participant: str = ""
    count: int = 0
    num_letters: int = 0
    is_possible: bool = True
    is_likely: bool = False
    examples: list[str] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    """The characters that normalisation would remove."""

    def add(self, text: str, lang: str) -> None:
        """Count a text."""
        self.count += 1
        self.num_letters += sum(map(str.isalpha, text))
        self.removed.update(normalize_counted(text, lang)[1])
        if text.strip() and len(self.examples) < _MAX_EXAMPLES and text not in self.examples:
            self.examples.append(text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…")


@dataclass
class Source:
    """Recordings with transcripts in one of the forms of `wenet-hs prepare`."""

    path: Path
    form: FormName
    choices: list[Choice]
    faults: list[str] = field(default_factory=list)
    """Of files that cannot be read."""
    columns: Sequence[str] = ()
    num_files: int = 1


def recognise(path: Path, lang: str) -> Source:
    """The form of a folder or file and its contents. Raises DataError if it is none of the forms.

    `lang`: the code by whose rules the removed characters are counted.
    """
    files = [path] if path.is_file() else [*islice(find_files(path), _MAX_FILES + 1)]
    if len(files) > _MAX_FILES:
        raise DataError(path, f"has more than {_MAX_FILES:,} files", "choose a folder below it")
    counts = Counter(
        form for one in files if (form := _OF_SUFFIX.get(one.suffix.lower())) and form != "corpus"
    )
    if counts:
        form = counts.most_common(1)[0][0]
        read = read_elan if form == "elan" else read_praat
        return _read_tiers(
            path,
            form,
            [one for one in files if _OF_SUFFIX.get(one.suffix.lower()) == form],
            read,
            lang,
        )
    if path.is_dir() and ((path / "wav.scp").is_file() or any(path.glob("*/wav.scp"))):
        entries = (one for one in kaldi.read_folders(path) if isinstance(one, Entry))
        return Source(path, "kaldi", [_count(entries, lang)])
    tables = [one for one in files if _OF_SUFFIX.get(one.suffix.lower()) == "corpus"]
    has_audio = any(one.suffix.lower() in ALL_SUFFIXES for one in files)
    if path.is_file() or (
        len(tables) == 1 and not any(one.suffix.lower() == ".txt" for one in files)
    ):
        if not tables:
            refuse_known_forms(path)
            raise DataError(
                path,
                "no annotation file and no table",
                "choose an .eaf, a .TextGrid, a table or a folder",
            )
        return _read_columns(tables[0], lang)
    if not has_audio:
        refuse_annotations(*files[:_MAX_SNIFFED])
        raise DataError(path, "no annotations, no table and no recordings", "choose another folder")
    rows, _ = folder.read_folder(folder.RecordingFolderOptions(corpus=path, out=path, lang=lang))
    return Source(
        path,
        "folder",
        [_count((one for one in rows if isinstance(one, Entry)), lang)],
        num_files=len(files),
    )


def _count(entries: Iterable[Entry], lang: str) -> Choice:
    choice = Choice("", is_likely=True)
    for entry in entries:
        choice.add(entry.txt, lang)
    return choice


def _read_tiers(
    path: Path,
    form: FormName,
    files: Sequence[Path],
    read: Callable[[Path], AnnotationFile],
    lang: str,
) -> Source:
    """The tiers of all annotation files by name, the likely ones first."""
    choices, faults = defaultdict[str, Choice](lambda: Choice("")), list[str]()
    for one in files:
        try:
            tiers = read(one).tiers
        except DataError as error:
            faults.append(str(error))
            continue
        for tier in tiers:
            known = choices[tier.name]
            known.name, known.kind, known.participant = (
                tier.name,
                tier.kind,
                tier.participant or known.participant,
            )
            known.is_possible = tier.is_interval
            for *_, text in tier.spans:
                known.add(text, lang)
    found = sorted(
        choices.values(), key=lambda choice: (not choice.is_possible, -choice.num_letters)
    )
    if not found:
        raise DataError(
            faults[0] if faults else path,
            *([] if faults else ["no tiers", "choose another folder"]),
        )
    best = found[0]
    for choice in found:  # ELAN's names are TIER@PARTICIPANT
        is_alike = (choice.kind, choice.name.partition("@")[0]) == (
            best.kind,
            best.name.partition("@")[0],
        )
        choice.is_likely = is_alike and choice.is_possible and choice.num_letters > 0
    return Source(
        path,
        form,
        sorted(found, key=lambda choice: not choice.is_likely),
        faults,
        num_files=len(files),
    )


def _read_columns(path: Path, lang: str) -> Source:
    """The columns of a table, with what they contain by their names."""
    finder = MediaFinder(None)
    table = read_table_file(
        path, None, is_usual_name, lambda cell: isinstance(finder.find((cell,), path.parent), Path)
    )
    faults, contents = list[str](), dict[str, str]()
    try:
        contents = {name: content for content, name in find_columns(path, table.header, "").items()}
    except DataError as error:
        faults.append(str(error))
    choices = [
        Choice(name, kind=contents.get(name, ""), is_likely=contents.get(name) == "text")
        for name in table.header
    ]
    for row in (row for _, row in table.rows if isinstance(row, dict)):
        for choice in choices:
            if text := str(row.get(choice.name) or ""):
                choice.add(text, lang if choice.is_likely else "und")
    for choice in choices:
        choice.removed = choice.removed if choice.is_likely else Counter()
    return Source(path, "corpus", choices, faults, columns=table.header)
