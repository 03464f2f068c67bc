# SPDX-License-Identifier: Apache-2.0
"""Form and contents of a folder or file of recordings, before anything is written.

`recognise` says which of the forms of `wenet-hs prepare` it is, and shows its tiers, columns or
transcripts with examples, so that the user can choose.
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
from wenet_hs.corpus.languages import UNDETERMINED
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.praat import read_praat
from wenet_hs.corpus.table_files import read_table_file
from wenet_hs.data.media import ALL_SUFFIXES, MediaFinder, find_files
from wenet_hs.manifest.file_forms import refuse_annotations, refuse_known_forms
from wenet_hs.text.normalize import normalize_counted
from wenet_hs.tree.errors import DataError

FormName = Literal["elan", "praat", "kaldi", "folder", "corpus"]
_ANNOTATION_FORMS: dict[str, Literal["elan", "praat"]] = {".eaf": "elan", ".textgrid": "praat"}
"""Suffix of annotation files in lower case → their form."""
_TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
_MAX_EXAMPLES = 3
"""Texts that are shown per tier or column."""
_MAX_LETTERS = 60
"""Characters of an example that are shown."""
_MAX_FILES = 5000
"""A folder with more files is refused."""
_MAX_SNIFFED = 100
"""Files that are read to name their form, where a folder has nothing that can be read."""


@dataclass
class Choice:
    """A tier, a column, or all transcripts, with what the user needs to choose."""

    name: str
    kind: str = ""
    """Linguistic type of a tier, or the content of a column."""
    participant: str = ""
    """Of a tier; empty if it names none."""
    count: int = 0
    """Texts that were counted."""
    num_letters: int = 0
    """Letters of these texts."""
    is_possible: bool = True
    """Whether it can have transcripts; a tier of points in time cannot."""
    is_likely: bool = False
    """Whether it seems to have the transcripts."""
    examples: list[str] = field(default_factory=list)
    """The first different texts."""
    removed: Counter[str] = field(default_factory=Counter)
    """The characters that normalisation would remove."""

    def add(self, text: str, lang: str) -> None:
        """Count a text, its letters and the characters that normalisation would remove.

        The first texts are kept as examples, each once; long ones are cut.
        """
        self.count += 1
        self.num_letters += sum(map(str.isalpha, text))
        _, removed = normalize_counted(text, lang)
        self.removed.update(removed)
        has_room = len(self.examples) < _MAX_EXAMPLES
        if has_room and text.strip() and text not in self.examples:
            is_short = len(text) <= _MAX_LETTERS
            self.examples.append(text if is_short else f"{text[:_MAX_LETTERS]}…")


@dataclass
class Source:
    """Recordings with transcripts in one of the forms of `wenet-hs prepare`."""

    path: Path
    form: FormName
    choices: list[Choice]
    faults: list[str] = field(default_factory=list)
    """Messages about files that cannot be read, or about the columns of a table."""
    columns: Sequence[str] = ()
    """The names of the columns of a table."""
    num_files: int = 1


def recognise(path: Path, lang: str) -> Source:
    """The form of a folder or file and its contents, by the first of the rules that holds.

    `lang`: the code of the language by whose rules the removed characters are counted. Raises
    DataError if no rule holds, or if a file that has to be read is damaged.
    """
    files = [path] if path.is_file() else [*islice(find_files(path), _MAX_FILES + 1)]
    if len(files) > _MAX_FILES:
        raise DataError(path, f"has more than {_MAX_FILES:,} files", "choose a folder below it")
    for rule in (_read_annotations, _read_kaldi, _read_table, _read_audio_folder):
        source = rule(path, files, lang)
        if source is not None:
            return source
    refuse_annotations(*files[:_MAX_SNIFFED])  # raises if a file has another known form
    raise DataError(path, "no annotations, no table and no recordings", "choose another folder")


# ---- rules, in their order


def _read_annotations(path: Path, files: Sequence[Path], lang: str) -> Source | None:
    """Rule: some files are of ELAN or Praat: `talk.eaf`. Only the files of the more usual form count.

    Raises DataError if none of these files can be read, or they have no tiers.
    """
    files_of_form = defaultdict[Literal["elan", "praat"], list[Path]](list)
    for file in files:
        form_of_file = _ANNOTATION_FORMS.get(file.suffix.lower())
        if form_of_file is not None:
            files_of_form[form_of_file].append(file)
    if not files_of_form:
        return None
    # Of forms with as many files, that of the first file.
    form, annotation_files = max(files_of_form.items(), key=lambda item: len(item[1]))
    read = read_elan if form == "elan" else read_praat
    tiers, faults = _read_tiers(annotation_files, read, lang)
    if not tiers:
        if faults:
            raise DataError(faults[0])
        raise DataError(path, "no tiers", "choose another folder")
    return Source(path, form, _sort_tiers(tiers), faults, num_files=len(annotation_files))


def _read_kaldi(path: Path, _files: Sequence[Path], lang: str) -> Source | None:
    """Rule: a folder or its subfolders have Kaldi's wav.scp: `data/train/wav.scp`."""
    if not path.is_dir():
        return None
    if not (path / "wav.scp").is_file() and not any(path.glob("*/wav.scp")):
        return None
    return Source(path, "kaldi", [_summarise_transcripts(kaldi.read_folders(path), lang)])


def _read_table(path: Path, files: Sequence[Path], lang: str) -> Source | None:
    """Rule: it is a table, or a folder with one table and no .txt: `metadata.csv`.

    Raises DataError for a single file that is no table.
    """
    tables = [file for file in files if file.suffix.lower() in _TABLE_SUFFIXES]
    if path.is_file() and not tables:
        refuse_known_forms(path)
        raise DataError(
            path,
            "no annotation file and no table",
            "choose an .eaf, a .TextGrid, a table or a folder",
        )
    has_text = any(file.suffix.lower() == ".txt" for file in files)
    if len(tables) != 1 or has_text:
        return None
    return _read_columns(tables[0], lang)


def _read_audio_folder(path: Path, files: Sequence[Path], lang: str) -> Source | None:
    """Rule: some files are audio: `talk.wav`. The transcripts are beside them: `talk.txt`.

    Raises DataError if there are no transcripts.
    """
    if not any(file.suffix.lower() in ALL_SUFFIXES for file in files):
        return None
    rows, _ = folder.read_folder(folder.RecordingFolderOptions(corpus=path, out=path, lang=lang))
    return Source(path, "folder", [_summarise_transcripts(rows, lang)], num_files=len(files))


# ---- contents


def _summarise_transcripts(rows: Iterable[Entry | Rejected], lang: str) -> Choice:
    """All transcripts as one choice, which has no name; rows that are rejected are not counted."""
    choice = Choice("", is_likely=True)
    for row in rows:
        if isinstance(row, Entry):
            choice.add(row.txt, lang)
    return choice


def _read_tiers(
    files: Iterable[Path], read: Callable[[Path], AnnotationFile], lang: str
) -> tuple[list[Choice], list[str]]:
    """The tiers of all files, and the faults of files that cannot be read.

    Tiers of one name are one choice. Its type, and whether it is possible, are those of the last
    file; its participant is the last one that is named.
    """
    choice_of_name = dict[str, Choice]()
    faults = list[str]()
    for file in files:
        try:
            tiers = read(file).tiers
        except DataError as error:
            faults.append(str(error))
            continue
        for tier in tiers:
            choice = choice_of_name.setdefault(tier.name, Choice(tier.name))
            choice.kind = tier.kind
            choice.participant = tier.participant or choice.participant
            choice.is_possible = tier.is_interval
            for *_, text in tier.spans:
                choice.add(text, lang)
    return list(choice_of_name.values()), faults


def _sort_tiers(tiers: Sequence[Choice]) -> list[Choice]:
    """The tiers in the order in which they are offered; marks the likely ones, which come first.

    Likely is the tier with the most letters, and each tier with letters of the same linguistic type
    and name. ELAN's names are TIER@PARTICIPANT; only TIER is compared.
    """
    by_letters = sorted(tiers, key=lambda tier: (not tier.is_possible, -tier.num_letters))
    best = by_letters[0]
    for tier in by_letters:
        has_same_name = tier.name.partition("@")[0] == best.name.partition("@")[0]
        is_alike = has_same_name and tier.kind == best.kind
        tier.is_likely = is_alike and tier.is_possible and tier.num_letters > 0
    return sorted(by_letters, key=lambda tier: not tier.is_likely)


def _read_columns(path: Path, lang: str) -> Source:
    """The columns of a table, with what they contain by their names, and with examples.

    If the names say too little, or are ambiguous, the source has a fault, and the columns have no
    content. Characters that normalisation removes are counted only for the column of the
    transcripts, which is the likely one.
    """
    finder = MediaFinder(None)

    def is_audio(cell: str) -> bool:
        return isinstance(finder.find((cell,), path.parent), Path)

    table = read_table_file(path, None, is_usual_name, is_audio)
    faults = list[str]()
    content_of = dict[str, str]()
    try:
        columns_by_content = find_columns(path, table.header, "")  # "": without --columns
        content_of = {name: content for content, name in columns_by_content.items()}
    except DataError as error:
        faults.append(str(error))
    columns = [
        Choice(name, kind=content_of.get(name, ""), is_likely=content_of.get(name) == "text")
        for name in table.header
    ]
    for _, row in table.rows:
        if not isinstance(row, dict):
            continue
        for column in columns:
            text = str(row.get(column.name) or "")
            if text:
                column.add(text, lang if column.is_likely else UNDETERMINED)
    for column in columns:
        if not column.is_likely:
            column.removed = Counter()
    return Source(path, "corpus", columns, faults, columns=table.header)
