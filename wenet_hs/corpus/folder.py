# SPDX-License-Identifier: Apache-2.0
"""A folder of audio files with their transcripts beside them, or Hugging Face's AudioFolder.

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
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

_COMMAND = "prepare folder"
"""This command, by the name that `Form.readers` has for it."""
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
        """Put a dot before the suffix. Raises ValueError for flags that exclude each other."""
        super().__post_init__()
        if self.keep_names and self.take_names:
            raise ValueError("keep_names excludes --take_names: give one of them")
        object.__setattr__(self, "text_suffix", f".{self.text_suffix.lstrip('.')}")


def prepare(options: RecordingFolderOptions) -> dict[str, Any]:
    """Write the lists of a folder. Returns the content of `stats.json`."""
    rows, layout = read_folder(options)
    return prepare_entries(options, "folder", rows, {"layout": layout})


def read_folder(options: RecordingFolderOptions) -> tuple[Iterator[Entry | Rejected], str]:
    """The annotations of a folder, and its layout: `metadata` (tables) or `pairs` of files.

    The first of these rules that finds tables decides; otherwise the files are pairs:
    1. Files named metadata.csv or metadata.jsonl are the tables.
    2. Text files that list the transcripts of several audio files are the tables.
    """
    files = [path for path in find_files(options.corpus) if path.is_file()]
    audio = choose_audio(files)
    tables = [path for path in files if path.name in ("metadata.csv", "metadata.jsonl")]
    if not tables:
        tables = _find_listings(files, audio, options)
    if tables:
        return _read_tables(tables, audio, options), "metadata"
    return _read_pairs(files, audio, options), "pairs"


# ---- tables


def _find_listings(
    files: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> list[Path]:
    """Text files whose first line names an audio file, such as `84-121123.trans.txt` (LibriSpeech).

    Empty if an audio file has a text file of its own name: then the files are pairs.
    """
    stems = {_cut_suffix(Path(path.name), path.suffix) for path in audio}
    suffixes = (".txt", ".tsv", ".csv", options.text_suffix.lower())
    texts = [path for path in files if path.suffix.lower() in suffixes]
    if any(_cut_suffix(Path(path.name), path.suffix) in stems for path in texts):
        return []
    return [path for path in texts if _names_audio(path, stems)]


def _names_audio(text: Path, stems: Collection[str]) -> bool:
    """Whether a cell of the first line is one of the stems, with or without suffix and folders.

    Cells are separated by tabs, commas, semicolons or bars. The first word counts as a cell too.
    """
    try:
        with text.open("rb") as file:
            line = file.readline(4096).decode("utf-8-sig", "ignore").strip()
    except OSError:  # stated when the file is read as a transcript
        return False
    first_word = line.split(maxsplit=1)[:1]  # no word if the line is empty
    cells = re.split(r"[\t,;|]", line) + first_word
    for cell in cells:
        file_name = Path(cell.strip()).name
        suffix = Path(file_name).suffix
        is_stem = file_name in stems
        is_stem_with_suffix = suffix != "" and _cut_suffix(Path(file_name), suffix) in stems
        if is_stem or is_stem_with_suffix:
            return True
    return False


def _read_tables(
    tables: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> Iterator[Entry | Rejected]:
    """The rows of all tables, then the audio files that no row names, as rejected.

    A row without a set gets that of a folder above its audio file, or else of one above the table.
    A row without a speaker gets that of its audio file, by --speaker_from.
    """
    corpus = options.corpus
    finder = options.make_finder()
    # `finder` gives real paths too, so the audio file of a row is found in these tables by its path.
    set_of_audio = {real_path(path): _find_set_folder(corpus, path) for path in audio}
    names = name_speakers(audio, corpus, options.speaker_from)
    speaker_of_audio = {real_path(path): name for path, name in names.items()}
    named_audio = set[Path]()
    for table in tables:
        set_of_table = _find_set_folder(corpus, table)
        for row in read_entries(table, options, finder):
            if isinstance(row, Rejected):
                yield row
                continue
            path_or_reason = finder.find(row.audio, row.folder)
            if isinstance(path_or_reason, Path):
                named_audio.add(path_or_reason)
                split_by_audio = set_of_audio.get(path_or_reason)
                speaker_by_audio = speaker_of_audio.get(path_or_reason)
            else:  # `prepare_entries` rejects the row later
                split_by_audio = None
                speaker_by_audio = None
            yield replace(
                row,
                split=row.split or split_by_audio or set_of_table,
                speaker=row.speaker or speaker_by_audio,
            )
    for path in audio:
        if real_path(path) not in named_audio:
            yield _reject_file(path, corpus, "no transcript: no table names it")


# ---- pairs of files


def _read_pairs(
    files: Sequence[Path], audio: Sequence[Path], options: RecordingFolderOptions
) -> Iterator[Entry | Rejected]:
    """The annotations of audio files with one transcript each, and the files that are not used.

    These files are not used, and rejected:
    1. Other forms of a recording: x.mp3 beside x.wav.
    2. Audio without a transcript.
    3. Audio whose transcript cannot be read; this is also a warning.
    4. Transcripts without audio.

    All transcripts are read before the first one is given, because the names of speakers in them
    are found by all together. The forms of the transcripts, and these names, are logged.

    Raises DataError when there is no audio, no transcript, or none that can be read.
    """
    corpus = options.corpus
    suffix = options.text_suffix
    if not audio:
        raise _make_no_audio_error(corpus, files)
    texts = [path for path in files if path.name.lower().endswith(suffix.lower())]
    chosen_audio, other_forms = _choose_forms(audio, corpus)
    text_of = _pair(chosen_audio, texts, suffix)
    # The files may be x.transcript.vtt, and --text_suffix .vtt.
    is_suffix_incomplete = not text_of and bool(_find_beside(texts, audio))
    if not texts or is_suffix_incomplete:
        raise _make_transcript_error(options, files, audio)
    transcripts = _read_transcripts(chosen_audio, text_of, options)
    if transcripts.faults and not transcripts.usable:
        raise _make_unreadable_error(transcripts.faults)

    yield from other_forms
    yield from transcripts.rejected
    cue_names = CueNames(options.keep_names, options.take_names)
    for transcript in transcripts.usable:
        cue_names.add(transcript.labels, transcript.text)
    speakers = name_speakers(chosen_audio, corpus, options.speaker_from)
    all_labels = cue_names.assign_speakers()
    for transcript, labels in zip(transcripts.usable, all_labels, strict=True):
        # The speaker of a file, by --speaker_from, precedes those that its labels name.
        speaker = speakers.get(transcript.audio)
        split = _find_set_folder(corpus, transcript.audio)
        yield from _make_entries(transcript, labels, speaker, split)

    for fault in transcripts.faults:
        logger.warning("%s", fault)
    _report_forms(transcripts.usable)
    cue_names.report()
    for text in sorted({*texts} - {*text_of.values()}):
        yield _reject_file(text, corpus, "no audio: none of its name beside it")


def _choose_forms(audio: Sequence[Path], corpus: Path) -> tuple[list[Path], list[Rejected]]:
    """One file of each recording, and its other files as rejected: there may be x.wav and x.mp3.

    Files of a recording are those of one name in one folder. The file whose suffix comes first in
    `ALL_SUFFIXES` is used.
    """
    preferred = dict[Path, Path]()  # path without its suffix → the file that is used
    for path in sorted(audio, key=lambda path: ALL_SUFFIXES.index(path.suffix.lower())):
        preferred.setdefault(path.with_suffix(""), path)
    chosen = list[Path]()
    others = list[Rejected]()
    for path in audio:
        used = preferred[path.with_suffix("")]
        if path == used:
            chosen.append(path)
        else:
            others.append(_reject_file(path, corpus, f"another form: {used.name} is used"))
    return chosen, others


def _pair(audio: Sequence[Path], texts: Sequence[Path], suffix: str) -> dict[Path, Path]:
    """Audio file → its transcript, by the first rule that finds a pair; empty if none does."""
    for rule in (_pair_beside, _pair_by_name):
        text_of = rule(audio, texts, suffix)
        if text_of:
            return text_of
    return {}


def _pair_beside(audio: Sequence[Path], texts: Sequence[Path], suffix: str) -> dict[Path, Path]:
    """Rule: files of one name in one folder are pairs: `a/x.wav` and `a/x.txt`."""
    text_of_stem = {_cut_suffix(text, suffix): text for text in texts}
    stem_of = {path: _cut_suffix(path, path.suffix) for path in audio}
    return {path: text_of_stem[stem] for path, stem in stem_of.items() if stem in text_of_stem}


def _pair_by_name(audio: Sequence[Path], texts: Sequence[Path], suffix: str) -> dict[Path, Path]:
    """Rule: files of one name in any folders are pairs.

    Example: `wav48/p225/x.wav` and `txt/p225/x.txt` (VCTK). If two audio files or two transcripts
    have the same name, there are no pairs.
    """
    text_of_name = {_cut_suffix(Path(text.name), suffix): text for text in texts}
    name_of = {path: _cut_suffix(Path(path.name), path.suffix) for path in audio}
    if len(text_of_name) < len(texts) or len(set(name_of.values())) < len(name_of):
        return {}
    return {path: text_of_name[name] for path, name in name_of.items() if name in text_of_name}


@dataclass(frozen=True)
class _TranscriptOfRecording:
    """What the transcript of an audio file contains."""

    text: Path
    """Path of the transcript in the corpus."""
    audio: Path
    note: str
    """What the user is told about transcripts of its form, after "3 transcripts"; may be empty.

    Example: `are SRT, whose times are used`.
    """
    labels: list[Label]
    """One per utterance. A transcript without times is one label without times."""


@dataclass(frozen=True)
class _TranscriptsOfAudio:
    """The transcripts of some audio files."""

    usable: list[_TranscriptOfRecording]
    rejected: list[Rejected]
    """Audio files without a transcript that can be read, in their order."""
    faults: list[str]
    """Messages about transcripts that cannot be read."""


def _read_transcripts(
    audio: Sequence[Path], text_of: Mapping[Path, Path], options: RecordingFolderOptions
) -> _TranscriptsOfAudio:
    """The transcripts of all audio files. `text_of`: audio file → its transcript."""
    transcripts = _TranscriptsOfAudio(usable=[], rejected=[], faults=[])
    for path in audio:
        if path not in text_of:
            reason = f"no transcript: no {path.stem}{options.text_suffix} beside it"
            transcripts.rejected.append(_reject_file(path, options.corpus, reason))
            continue
        text = text_of[path]
        try:
            transcripts.usable.append(_read_transcript(text, path, options))
        except DataError as error:
            transcripts.faults.append(str(error))
            transcripts.rejected.append(_reject_unreadable(text, path, options.corpus, error))
    return transcripts


def _read_transcript(
    text: Path, audio: Path, options: RecordingFolderOptions
) -> _TranscriptOfRecording:
    """The content of a transcript: its labels with times if it has a known form, or else its text.

    The lines of a text are joined, and the text is one label of line 0. The note of the result says
    which form it has, or that lines were joined.

    Raises DataError for times in another form, phones of TIMIT without --unit phone, and content
    that is no text.
    """
    content, _ = decode_text(text, options.encoding, _COMMAND)
    if text.suffix.lower() == ".phn" and options.unit != "phone":
        raise DataError(text, "phones of TIMIT", "give --unit phone")
    timed = read_labels(text, content, audio)
    if timed is not None:
        note = f"are {timed.form}, whose times are used"
        labels = list(timed.labels)
    else:
        lines = [line for line in content.splitlines() if line.strip()]
        note = "have several lines, which are joined" if len(lines) > 1 else ""
        labels = [Label(line=0, start=None, end=None, text=" ".join(lines))]
    return _TranscriptOfRecording(text.relative_to(options.corpus), audio, note, labels)


def _make_entries(
    transcript: _TranscriptOfRecording,
    labels: Iterable[Label],
    speaker: str | None,
    split: str | None,
) -> Iterator[Entry]:
    """An entry per label of a transcript.

    Args:
        transcript: the file; its own labels are not used.
        labels: its labels, from whose texts the names of speakers were removed.
        speaker: of the file; None: each label has its own, or none.
        split: name of the set, or None.
    """
    for label in labels:
        # Line 0 is a label of the whole file.
        where = f"{transcript.text}:{label.line}" if label.line else str(transcript.text)
        yield Entry(
            where=where,
            audio=(str(transcript.audio),),
            folder=transcript.audio.parent,
            txt=label.text,
            speaker=speaker or label.speaker,
            start=label.start,
            end=label.end,
            split=split,
        )


def _report_forms(transcripts: Iterable[_TranscriptOfRecording]) -> None:
    """Log each note about the form of transcripts, with the number of transcripts and the first.

    Example: `3 transcripts are SRT, whose times are used, such as a/x.srt`.
    """
    with_note = defaultdict[str, list[Path]](list)
    for transcript in transcripts:
        if transcript.note:
            with_note[transcript.note].append(transcript.text)
    for note, texts in with_note.items():
        logger.info("%d transcripts %s, such as %s", len(texts), note, texts[0])


# ---- names of files


def _cut_suffix(path: Path, suffix: str) -> str:
    """The path without its suffix; in NFC, because macOS writes names in NFD.

    Only the length of `suffix` counts, so its letters may have another case: `x.TXT` with `.txt` is
    `x`. It must not be empty.
    """
    return unicodedata.normalize("NFC", str(path)[: -len(suffix)])


def _find_set_folder(corpus: Path, path: Path) -> str | None:
    """The name of the first folder from the corpus to the file that is named as a set: `test1`."""
    folders = path.relative_to(corpus).parts[:-1]
    return next((folder for folder in folders if find_split(folder)), None)


@dataclass(frozen=True)
class _FilesBeside:
    """The files beside audio files that have one suffix."""

    suffix: str
    """What follows the name of the audio: `.txt`, or `.transcript.vtt` as Zoom writes it."""
    count: int
    form: Form | None
    """Of the first file; None: not known."""

    @property
    def is_annotation(self) -> bool:
        """Whether their form has transcripts with times."""
        return self.form is not None and self.form.is_annotation

    @property
    def is_read_here(self) -> bool:
        """Whether `prepare folder` reads their form."""
        return self.form is not None and _COMMAND in self.form.readers


def _find_beside(files: Sequence[Path], audio: Sequence[Path]) -> list[_FilesBeside]:
    """The files that have the name of an audio file and other suffixes, by these suffixes.

    The most common suffix is the first one.
    """
    stems = {_cut_suffix(path, path.suffix) for path in audio}
    paths_of_suffix = defaultdict[str, list[Path]](list)
    for path in files:
        suffix = _find_suffix_beside(path, stems)
        if suffix is not None:
            paths_of_suffix[suffix].append(path)
    groups = [
        _FilesBeside(suffix, len(paths), find_form_of_file(paths[0]))
        for suffix, paths in paths_of_suffix.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def _find_suffix_beside(path: Path, stems: Collection[str]) -> str | None:
    """What follows the name of an audio file in the name of a file: `.transcript.vtt` beside x.mp4.

    It is the last suffix of the file, or several. None: the file has no name of an audio file.
    `stems`: the paths of the audio files without their suffixes.
    """
    suffix = ""
    for part in reversed(path.suffixes):
        suffix = part + suffix
        if _cut_suffix(path, suffix) in stems:
            return suffix
    return None


# ---- rejected files


def _reject_file(path: Path, corpus: Path, reason: str) -> Rejected:
    """A file that is not used, as rejected. This is no fault: it is usual in good data."""
    return Rejected(
        key=str(path.relative_to(corpus)), path=str(path), reason=reason, lang="", is_fault=False
    )


def _reject_unreadable(text: Path, audio: Path, corpus: Path, error: DataError) -> Rejected:
    """An audio file whose transcript cannot be read, as rejected. This is a fault."""
    fault = str(error).removeprefix(f"{text}:").strip()
    return Rejected(
        key=str(text.relative_to(corpus)), path=str(audio), reason=f"unreadable: {fault}", lang=""
    )


# ---- errors for a wrong folder or suffix


def _make_unreadable_error(faults: Sequence[str]) -> DataError:
    """The error if no transcript can be read: the first fault, and how many files have faults."""
    others = f" (the first of {len(faults)} files that cannot be read)" if len(faults) > 1 else ""
    return DataError(faults[0] + others)


def _make_no_audio_error(corpus: Path, files: Sequence[Path]) -> DataError:
    """The error for a folder without audio files, by the first rule that says where they may be."""
    for rule in (
        _explain_no_folder,
        _explain_packed_audio,
        _explain_archives,
        _explain_raw_samples,
    ):
        error = rule(corpus, files)
        if error is not None:
            return error
    found = f"no audio file ({list_names(ALL_SUFFIXES)})"
    return DataError(corpus, found, "--corpus is the folder with the recordings")


def _explain_no_folder(corpus: Path, _files: Sequence[Path]) -> DataError | None:
    """Rule: --corpus is a file, or does not exist."""
    if corpus.is_dir():
        return None
    found = "no such folder"
    if corpus.is_file():
        found = "a file, not a folder; unpack it if it is an archive"
    return DataError(corpus, found, "--corpus is the folder with the recordings")


def _explain_packed_audio(corpus: Path, files: Sequence[Path]) -> DataError | None:
    """Rule: the audio may be inside of tables: data of Hugging Face in .arrow or .parquet.

    Then the user has to write it to files. None: there are no such tables.
    """
    packed = [path for path in files if path.suffix in (".arrow", ".parquet")]
    if not packed:
        return None
    kind = describe_binary(packed[0].read_bytes()[:512])
    found = f"no audio file, but {packed[0].name}: {kind}"
    return DataError(
        corpus, found, "write the audio inside of it to files, and name them in the table"
    )


def _explain_archives(corpus: Path, files: Sequence[Path]) -> DataError | None:
    """Rule: the audio may be in archives: a `clips.tar.gz` that was not unpacked."""
    archives = [path.name for path in files if path.name.lower().endswith(_ARCHIVES)]
    if not archives:
        return None
    found = f"no audio file, but {list_names(archives)}"
    return DataError(corpus, found, "unpack it there, if it has the recordings")


def _explain_raw_samples(corpus: Path, files: Sequence[Path]) -> DataError | None:
    """Rule: the audio has no header: `x.raw`."""
    raw = [path for path in files if path.suffix.lower() in RAW_SUFFIXES]
    if not raw:
        return None
    return DataError(corpus, f"no audio file, but {raw[0].name}: {RAW_SAMPLES}", ADD_HEADER)


def _make_transcript_error(
    options: RecordingFolderOptions, files: Sequence[Path], audio: Sequence[Path]
) -> DataError:
    """The error for audio files without transcripts; it names the suffixes of files beside them.

    The remedy is that of the first rule that finds where the transcripts may be. `files`: all files
    of the folder.
    """
    others = sorted(set(files).difference(audio))
    beside = _find_beside(others, audio)
    found = f"no metadata.csv, and no x{options.text_suffix} beside x{audio[0].suffix}"
    if beside:
        listed = list_names([f"x{group.suffix} ({group.count})" for group in beside])
        found += f", but {listed}"
    for rule in (
        _remedy_for_readable_form,
        _remedy_for_annotations,
        _remedy_for_tables,
        _remedy_for_other_suffix,
    ):
        remedy = rule(beside, others)
        if remedy is not None:
            return DataError(options.corpus, found, remedy)
    remedy = (
        f"write the transcript of each x{audio[0].suffix} into x{options.text_suffix} beside it"
    )
    return DataError(options.corpus, found, remedy)


def _remedy_for_readable_form(
    beside: Sequence[_FilesBeside], _others: Sequence[Path]
) -> str | None:
    """Rule: this command reads the form of files beside the audio: `x.srt` beside `x.wav`."""
    for group in beside:
        if group.is_read_here:
            return f"add --text_suffix {group.suffix}"
    return None


def _remedy_for_annotations(beside: Sequence[_FilesBeside], _others: Sequence[Path]) -> str | None:
    """Rule: another command reads the form of files beside the audio: `x.eaf` beside `x.wav`."""
    for group in beside:
        if group.form is not None and group.is_annotation:
            return f"x{group.suffix} is {group.form.name}; {group.form.remedy}"
    return None


def _remedy_for_tables(_beside: Sequence[_FilesBeside], others: Sequence[Path]) -> str | None:
    """Rule: a table in the folder may have the transcripts: `transcripts.csv`."""
    tables = [path.name for path in others if path.suffix in (".tsv", ".csv", ".jsonl", ".json")]
    if not tables:
        return None
    return f"give one of {list_names(sorted(tables))} to `wenet-hs prepare table`"


def _remedy_for_other_suffix(beside: Sequence[_FilesBeside], _others: Sequence[Path]) -> str | None:
    """Rule: files of an unknown form are beside the audio: `x.trn` beside `x.wav`."""
    return "see --text_suffix" if beside else None
