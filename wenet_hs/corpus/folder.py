# SPDX-License-Identifier: Apache-2.0
"""A folder of audio files: Hugging Face's AudioFolder, or each recording with its transcript beside
it.

Example: wenet-hs prepare folder --corpus recordings --lang mdw --out data

AudioFolder: metadata.csv or metadata.jsonl with the columns file_name and transcription (or other
names that `prepare table` knows), in the folder or in subfolders such as train, validation and
test, which then are the sets. Otherwise every x.wav has its transcript in x.txt, beside it or, if
none is, in another folder; or text files list the transcripts, as `prepare table` reads them
(LibriSpeech, MLS, AISHELL). Again, subfolders with the names of sets are the sets. A transcript may
have times: labels of Audacity, SRT, WebVTT, SBV and tables with start, end and text (as Whisper
writes them) are one utterance per label, TIMIT's .TXT, .WRD and .PHN (with `--text_suffix .PHN
--unit phone`) one per file. Times in other forms are refused.
"""

import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wenet_hs.base.files import describe_binary
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.cue_names import CueNames
from wenet_hs.corpus.entries import Entry, find_split
from wenet_hs.corpus.labels import Label, read_labels
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.own_recordings import prepare_entries
from wenet_hs.corpus.speakers import SPEAKER_HELP, name_speakers
from wenet_hs.corpus.table import ColumnOptions, read_entries
from wenet_hs.corpus.table_files import decode_text
from wenet_hs.data.containers import ADD_HEADER, RAW_SAMPLES, RAW_SUFFIXES
from wenet_hs.data.media import ALL_SUFFIXES, choose_audio, find_files, real_path
from wenet_hs.manifest.file_forms import Form, find_form_of_file
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

_READER = "prepare folder"
"""This command, as in `Form.readers`."""
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".rar", ".7z")


@dataclass(frozen=True, kw_only=True)
class RecordingFolderOptions(ColumnOptions):
    """Options of `prepare folder`."""

    corpus: Path = option(REQUIRED, "folder with the audio files, also in subfolders")
    text_suffix: str = option(
        ".txt", "of the transcripts beside the audio files", metavar=".SUFFIX"
    )
    speaker_from: Literal["none", "file", "folder"] = option("none", SPEAKER_HELP)
    keep_names: bool = option(
        False,
        "names with a colon at the beginning of subtitles are spoken, and not the name of the speaker",
    )
    take_names: bool = option(
        False,
        "names with a colon at the beginning of subtitles and transcripts are the speakers, also where few begin so",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_names and self.take_names:
            raise ValueError("keep_names excludes --take_names: give one of them")
        object.__setattr__(self, "text_suffix", f".{self.text_suffix.lstrip('.')}")


def prepare(options: RecordingFolderOptions) -> dict[str, Any]:
    """Write the lists of a folder. Returns the content of `stats.json`."""
    rows, layout = read_folder(options)
    return prepare_entries(options, "folder", rows, {"layout": layout})


def read_folder(options: RecordingFolderOptions) -> tuple[Iterator[Entry | Rejected], str]:
    """The annotations of a folder, and whether they are `metadata` or `pairs` of files."""
    files = [path for path in find_files(options.corpus) if path.is_file()]
    audio = choose_audio(files)
    metadata = [path for path in files if path.name in ("metadata.csv", "metadata.jsonl")]
    metadata = metadata or _find_listings(files, audio, options)
    rows = (
        _read_metadata(metadata, audio, options) if metadata else _read_pairs(files, audio, options)
    )
    return rows, "metadata" if metadata else "pairs"


def _find_listings(
    files: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> list[Path]:
    """Text files whose first line names an audio file, where no audio file has a transcript of its
    own name.
    """
    names = {_stem(Path(path.name), path.suffix) for path in audio}
    texts = [
        path
        for path in files
        if path.suffix.lower() in (".txt", ".tsv", ".csv", options.text_suffix.lower())
    ]
    if any(_stem(Path(path.name), path.suffix) in names for path in texts):
        return []

    def names_audio(path: Path) -> bool:
        try:
            with path.open("rb") as file:
                line = file.readline(4096).decode("utf-8-sig", "ignore").strip()
        except OSError:  # read_table says so if it is used
            return False
        cells = [
            Path(Path(cell.strip()).name)
            for cell in (*re.split(r"[\t,;|]", line), *line.split(maxsplit=1)[:1])
        ]
        return any(cell.name in names or _stem(cell, cell.suffix) in names for cell in cells)

    return [path for path in texts if names_audio(path)]


def _read_metadata(
    metadata: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> Iterator[Entry | Rejected]:
    """The rows of all tables, with the sets of their audio, and the audio files that no row names."""
    finder = options.make_finder()
    sets = {real_path(path): _split_of(options.corpus, path) for path in audio}
    named = set[Path | str]()
    speakers: dict[Path | str, str | None] = {
        real_path(path): name
        for path, name in name_speakers(audio, options.corpus, options.speaker_from).items()
    }
    for path in metadata:
        for row in read_entries(path, options, finder):
            if isinstance(row, Entry):
                found = finder.find(row.audio, row.folder)
                named.add(found)
                of_audio = sets.get(found) if isinstance(found, Path) else None
                split, speaker = of_audio or _split_of(options.corpus, path), speakers.get(found)
                row = replace(row, split=row.split or split, speaker=row.speaker or speaker)
            yield row
    for path in audio:
        if real_path(path) not in named:
            yield _without_partner(path, options.corpus, "no transcript: no table names it")


def _make_no_audio_error(corpus: Path, files: Sequence[Path]) -> DataError:
    """The error for a folder without audio files, which may have them in tables or archives."""
    if not corpus.is_dir():
        is_archive = "a file, not a folder; unpack it if it is an archive"
        found = is_archive if corpus.is_file() else "no such folder"
        return DataError(corpus, found, "--corpus is the folder with the recordings")
    if packed := [path for path in files if path.suffix in (".arrow", ".parquet")]:
        kind = describe_binary(packed[0].read_bytes()[:512])
        found = f"no audio file, but {packed[0].name}: {kind}"
        return DataError(corpus, found, "audio inside of it goes to files, which the table names")
    if archives := [path.name for path in files if path.name.lower().endswith(_ARCHIVES)]:
        found = f"no audio file, but {list_names(archives)}"
        return DataError(corpus, found, "unpack it there, if it has the recordings")
    if raw := [path for path in files if path.suffix.lower() in RAW_SUFFIXES]:
        return DataError(corpus, f"no audio file, but {raw[0].name}: {RAW_SAMPLES}", ADD_HEADER)
    found = f"no audio file ({list_names(ALL_SUFFIXES)})"
    return DataError(corpus, found, "--corpus is the folder with the recordings")


def _make_transcript_error(
    options: RecordingFolderOptions, files: Sequence[Path], audio: Sequence[Path]
) -> DataError:
    """The error for audio files without transcripts, which may be in other files.

    The remedy is that of a form beside the audio, first of those that this command reads. Otherwise
    it names tables, or the suffixes of the other files.
    """
    corpus, suffix = options.corpus, options.text_suffix
    others = sorted(set(files).difference(audio))
    beside = _find_beside(others, audio)
    found = f"no metadata.csv, and no x{suffix} beside x{audio[0].suffix}"
    if beside:
        found += f", but {list_names([f'x{group.suffix} ({group.count})' for group in beside])}"
    if group := next((group for group in beside if group.is_read_here), None):
        return DataError(corpus, found, f"add --text_suffix {group.suffix}")
    if group := next((group for group in beside if group.is_annotation), None):
        assert group.form is not None
        return DataError(
            corpus, found, f"x{group.suffix} is {group.form.name}; {group.form.remedy}"
        )
    tables = [path.name for path in others if path.suffix in (".tsv", ".csv", ".jsonl", ".json")]
    if tables:
        names = list_names(sorted(tables))
        return DataError(corpus, found, f"give one of {names} to `wenet-hs prepare table`")
    if beside:
        return DataError(corpus, found, "see --text_suffix")
    remedy = f"write the transcript of each x{audio[0].suffix} into x{suffix} beside it"
    return DataError(corpus, found, remedy)


@dataclass(frozen=True)
class _FilesBeside:
    """The files beside audio files that have one suffix."""

    suffix: str
    """What follows the name of the audio: `.txt`, or `.transcript.vtt` as Zoom writes it."""
    count: int
    form: Form | None
    """Of the first file."""

    @property
    def is_annotation(self) -> bool:
        return self.form is not None and self.form.is_annotation

    @property
    def is_read_here(self) -> bool:
        """Whether `prepare folder` reads their form."""
        return self.form is not None and _READER in self.form.readers


def _find_beside(files: Sequence[Path], audio: Sequence[Path]) -> list[_FilesBeside]:
    """The files whose names begin with that of an audio file, by suffix, the most common ones
    first.
    """
    stems = {_stem(path, path.suffix) for path in audio}
    by_suffix = defaultdict[str, list[Path]](list)
    for path in files:
        suffix = _suffix_beside(path, stems)
        if suffix is not None:
            by_suffix[suffix].append(path)
    groups = [
        _FilesBeside(suffix, len(paths), find_form_of_file(paths[0]))
        for suffix, paths in by_suffix.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def _suffix_beside(path: Path, stems: Collection[str]) -> str | None:
    """What follows the name of an audio file in the name of a file: its last suffix, or more of
    them.
    """
    parts = path.suffixes
    suffixes = ["".join(parts[-count:]) for count in range(1, len(parts) + 1)]
    return next((suffix for suffix in suffixes if _stem(path, suffix) in stems), None)


@dataclass(frozen=True)
class _TranscribedAudio:
    """A transcript with its audio."""

    where: str
    """Path of the transcript in the corpus."""
    audio: Path
    speaker: str | None
    """By --speaker_from."""
    split: str | None


def _read_pairs(
    files: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> Iterator[Entry | Rejected]:
    """Each audio file with the transcript beside it, and the files without the other one."""
    corpus, suffix = options.corpus, options.text_suffix
    if not audio:
        raise _make_no_audio_error(corpus, files)
    texts = [path for path in files if path.name.lower().endswith(suffix.lower())]
    if not texts:
        raise _make_transcript_error(options, files, audio)
    audio, left_out = _choose_forms(audio, corpus)
    yield from left_out
    speakers = name_speakers(audio, corpus, options.speaker_from)
    faults, forms = list[str](), defaultdict[str, list[str]](list)
    cue_names = CueNames(options.keep_names, options.take_names)
    sources = list[_TranscribedAudio]()
    pairs = _pair(audio, texts, suffix)
    if not pairs and _find_beside(texts, audio):  # x.transcript.vtt, and --text_suffix .vtt
        raise _make_transcript_error(options, files, audio)
    for path in audio:
        text = pairs.get(path)
        if text is None:
            yield _without_partner(path, corpus, f"no transcript: no {path.stem}{suffix} beside it")
            continue
        where = str(text.relative_to(corpus))
        try:
            form, labels = _read_transcript(text, path, options)
        except DataError as error:
            faults.append(str(error))
            yield Rejected(
                where, str(path), f"unreadable: {str(error).removeprefix(f'{text}:').strip()}", ""
            )
            continue
        forms[form].append(where)
        cue_names.add(labels, text.relative_to(corpus))
        sources.append(_TranscribedAudio(where, path, speakers.get(path), _split_of(corpus, path)))
    for source, labels in zip(sources, cue_names.split(), strict=True):
        for label in labels:
            yield Entry(
                where=source.where + (f":{label.line}" if label.line else ""),
                audio=(str(source.audio),),
                folder=source.audio.parent,
                txt=label.text,
                speaker=source.speaker or label.speaker,
                start=label.start,
                end=label.end,
                split=source.split,
            )
    if faults and not forms:
        others = (
            f" (the first of {len(faults)} files that cannot be read)" if len(faults) > 1 else ""
        )
        raise DataError(faults[0] + others)
    for fault in faults:
        logger.warning("%s", fault)
    for form in filter(None, forms):
        logger.info("%d transcripts %s, such as %s", len(forms[form]), form, forms[form][0])
    cue_names.report()
    for text in sorted({*texts} - {*pairs.values()}):
        yield _without_partner(text, corpus, "no audio: none of its name beside it")


def _pair(audio: Sequence[Path], texts: Sequence[Path], suffix: str) -> dict[Path, Path]:
    """Audio file → the transcript beside it; if none has one, that of its name in any folder
    (VCTK).
    """
    of_stem = {_stem(text, suffix): text for text in texts}
    pairs = {path: of_stem[stem] for path in audio if (stem := _stem(path, path.suffix)) in of_stem}
    of_name = {_stem(Path(text.name), suffix): text for text in texts}
    names = Counter(_stem(Path(path.name), path.suffix) for path in audio)
    if pairs or len(of_name) < len(texts) or names.total() > len(names):
        return pairs
    return {path: of_name[name] for path, name in zip(audio, names, strict=True) if name in of_name}


def _read_transcript(
    text: Path, audio: Path, options: RecordingFolderOptions
) -> tuple[str, list[Label]]:
    """What is to be stated of a transcript, and its parts; one without times is one part.

    Raises DataError.
    """
    content = decode_text(text, options.encoding, _READER)[0]
    if text.suffix.lower() == ".phn" and options.unit != "phone":
        raise DataError(text, "phones of TIMIT", "give --unit phone")
    timed = read_labels(text, content, audio)
    if timed is not None:
        return f"are {timed.form}, whose times are used", list(timed.labels)
    lines = list(filter(str.strip, content.splitlines()))
    return "have several lines, which are joined" if len(lines) > 1 else "", [
        Label(0, None, None, " ".join(lines))
    ]


def _stem(path: Path, suffix: str) -> str:
    """The path without the suffix; in NFC, because macOS writes names in NFD."""
    return unicodedata.normalize("NFC", str(path)[: -len(suffix)])


def _choose_forms(audio: Sequence[Path], corpus: Path) -> tuple[list[Path], list[Rejected]]:
    """One file of each recording, and the others: an archive may deliver x.wav and x.mp3."""
    best = dict[Path, Path]()
    for path in sorted(audio, key=lambda one: ALL_SUFFIXES.index(one.suffix.lower())):
        best.setdefault(path.with_suffix(""), path)
    of_path = {path: best[path.with_suffix("")] for path in audio}
    others = {path: kept for path, kept in of_path.items() if kept != path}
    reasons = [
        _without_partner(path, corpus, f"another form: {kept.name} is used")
        for path, kept in others.items()
    ]
    return [path for path in audio if path not in others], reasons


def _without_partner(path: Path, corpus: Path, reason: str) -> Rejected:
    return Rejected(str(path.relative_to(corpus)), str(path), reason, "", is_fault=False)


def _split_of(corpus: Path, path: Path) -> str | None:
    """The first folder on the way to the file that has the name of a set."""
    return next((part for part in path.relative_to(corpus).parts[:-1] if find_split(part)), None)
