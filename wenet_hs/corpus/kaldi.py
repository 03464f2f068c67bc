# SPDX-License-Identifier: Apache-2.0
"""A data folder of Kaldi: wav.scp, text, and further files where they exist.

Example: wenet-hs prepare kaldi --corpus data/train --lang mdw --out lists

The further files are utt2spk, utt2lang, segments (with channels) and reco2file_and_channel.

Either the folder itself has wav.scp, or its subfolders train, dev (valid, …) and test do, which
then are the sets; train_clean belongs to train, test1 to test. Other subfolders, such as local, are
not used unless --ignore_sets is given; nor is one whose utterances another one of its set has too,
such as train_hires beside train, or train_100 beside train_960.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.entries import Entry, RecordingOptions, find_split
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.own_recordings import prepare_entries
from wenet_hs.manifest.data_list import read_text
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

_PATH = r"""(?:"(?P<double>[^"$`]+)"|'(?P<single>[^']+)'|(?P<plain>(?!-)[^\s"'|;&<>$`*?()\\]+))"""
_DECODERS = (
    rf"cat {_PATH}",
    rf"flac (?:(?:-[cds]+|--decode|--stdout|--(?:totally-)?silent) )+{_PATH}(?: -[cds]+)*",
    rf"sph2pipe (?:-p |-f \w+ |-c (?P<channel>[1-9]) )*{_PATH}(?: -)?",
    rf"sox (?:-t (?!raw)\w+ )?{_PATH}(?: -[tbre] \S+|(?P<mix> -c 1))* -"
    r"(?: remix (?P<channel>[1-9]\d?)|(?P<mean> channels 1))?(?: rate (?:-\w )*\w+)?",
    rf"ffmpeg (?:-nostdin |-hide_banner |-y |-(?:v|loglevel) \S+ )*-i {_PATH}"
    r"(?: -vn| -nostdin| -y|(?P<mix> -ac 1)| -(?:f|ar|acodec|c:a|v|loglevel) \S+)* (?:-|pipe:1?)",
)
"""Commands that only decode a file. They may also resample it, and take one or all channels.

The path is in one of the groups `double`, `single` and `plain`. The group `channel` is the channel
that the command takes, counted from 1. If a group `mix` or `mean` matches, the command takes the
mean of all channels.
"""


class _UnsupportedAudio(NamedTuple):
    """A kind of values in wav.scp that are no files, so that they cannot be used."""

    name: str
    pattern: re.Pattern[str]
    remedy: str


_UNSUPPORTED = (
    _UnsupportedAudio(
        "commands",
        re.compile(r"\|$"),
        "run each once, and write the path of the file that it makes; or move the folder away, "
        "if it only has changed copies of another one (train_sp)",
    ),
    _UnsupportedAudio(
        "pieces of Kaldi archives",
        re.compile(r"\.ark:\d+(\[.*\])?$"),
        "write audio files, and their paths",
    ),
)
_NEEDED_FILES = ("wav.scp", "text")
_OPTIONAL_FILES = ("segments", "utt2spk", "utt2lang", "reco2file_and_channel")
"""Files of a data folder that are read."""


@dataclass(frozen=True, kw_only=True)
class KaldiOptions(RecordingOptions):
    """Options of `prepare kaldi`."""

    corpus: Path = option(REQUIRED, "Kaldi's data folder, or the folder of train, dev and test")


def prepare(options: KaldiOptions) -> dict[str, Any]:
    """Write the lists of a Kaldi folder. Returns the content of `stats.json`."""
    entries = read_folders(options.corpus, only_sets=not options.ignore_sets)
    return prepare_entries(options, "kaldi", entries, {})


def read_folders(corpus: Path, *, only_sets: bool = False) -> Iterator[Entry | Rejected]:
    """The utterances of a data folder, or of its subfolders, which then are the sets.

    A subfolder is not used if another subfolder of its set has all its utterances: `train_hires`
    beside `train`, or `train_100` beside `train_960`. This is a warning.

    Args:
        only_sets: use no subfolder whose name is not that of a set, such as `local`.

    Raises DataError when there is no data folder, no set, or one that cannot be read.
    """
    if (corpus / "wav.scp").is_file():
        yield from read_kaldi(corpus)
        return
    entries_of = dict[Path, list[Entry | Rejected]]()
    for folder in _choose_folders(corpus, only_sets):
        entries_of[folder] = list(read_kaldi(folder, folder.name))
    original_of = _find_copies(entries_of, only_sets)
    for folder, entries in entries_of.items():
        if folder in original_of:
            original = original_of[folder]
            logger.warning("%s: %s has all its utterances; it is not used", folder, original)
        else:
            yield from entries


def _find_copies(
    entries_of: Mapping[Path, Sequence[Entry | Rejected]],
    only_sets: bool,
) -> dict[Path, Path]:
    """Folder that is a copy → its original: a folder with all its utterances, which is used.

    Of folders with the same utterances the first one is the original. A folder without utterances
    is no copy.

    Args:
        entries_of: folder → its utterances.
        only_sets: whether only folders of the same set are compared; otherwise all folders are.
    """
    keys_of = {folder: {entry.key for entry in entries} for folder, entries in entries_of.items()}
    original_of = dict[Path, Path]()
    # The largest folders first: so an original is known before its copies.
    by_size = sorted(keys_of, key=lambda folder: len(keys_of[folder]), reverse=True)
    for number, folder in enumerate(by_size):
        for larger in by_size[:number]:  # or equally large, and earlier
            is_comparable = not only_sets or _are_one_set(larger, folder)
            is_copy = bool(keys_of[folder]) and keys_of[folder] <= keys_of[larger]
            if is_comparable and is_copy and larger not in original_of:
                original_of[folder] = larger
                break
    return original_of


def _choose_folders(corpus: Path, only_sets: bool) -> list[Path]:
    """The subfolders that are data folders and are used; the others get a warning.

    With `only_sets`, those whose name is that of a set are used. Otherwise all are used, except
    those that are named as no set and have no transcripts.

    Raises DataError if there is no data folder, or no set with `only_sets`.
    """
    folders = sorted(path.parent for path in corpus.glob("*/wav.scp"))
    if not folders:
        raise _make_no_data_folder_error(corpus)
    others = [folder for folder in folders if find_split(folder.name) is None]
    if not only_sets:
        without_text = [folder for folder in others if not (folder / "text").is_file()]
        if len(without_text) == len(folders):
            return folders  # `read_kaldi` raises the error for the first one
        _report_not_used(without_text, "no transcripts, it has no file text")
        return [folder for folder in folders if folder not in without_text]
    if len(others) == len(folders):
        names = list_names([folder.name for folder in others])
        found = f"no folder is named as a set (train, dev or test): {names}"
        to_do = f"use all of them with --ignore_sets, or one of them: --corpus {others[0]}"
        raise DataError(corpus, found, to_do)
    _report_not_used(others, "not named as a set (train, dev or test); --ignore_sets uses it")
    return [folder for folder in folders if folder not in others]


def _make_no_data_folder_error(corpus: Path) -> DataError:
    """The error for a folder without data folders of Kaldi; it names one below, if there is one."""
    if not corpus.exists():
        return DataError(corpus, "no such folder", "--corpus is a data folder of Kaldi")
    found = "no wav.scp here or in its subfolders"
    below = min((path.parent.parent for path in corpus.glob("*/*/wav.scp")), default=None)
    if below:
        return DataError(corpus, f"{found}, but below {below}", f"give --corpus {below}")
    return DataError(corpus, found, "--corpus is a data folder of Kaldi")


def _report_not_used(folders: Iterable[Path], reason: str) -> None:
    for folder in folders:
        logger.warning("%s: %s; it is not used", folder, reason)


def _are_one_set(folder: Path, other: Path) -> bool:
    return find_split(folder.name) == find_split(other.name)


def read_kaldi(folder: Path, split: str | None = None) -> Iterator[Entry | Rejected]:
    """The utterances of one folder, the lines that cannot be used, and audio without a transcript.

    Lines of other files that no utterance uses are warnings.

    Args:
        split: the set that the utterances are given to.
    Raises DataError when a file is missing or has a name twice, or audio is the output of a command
        that does more than to decode a file.
    """
    if not (folder / "text").is_file():
        to_do = "write `key transcript` lines there, or move the folder away if it is no set"
        raise DataError(folder, "no transcripts, it has no file text", to_do)
    lines_of = {name: read_text(folder / name) for name in _NEEDED_FILES}
    for name in _OPTIONAL_FILES:
        if (folder / name).is_file():
            lines_of[name] = read_text(folder / name)
    data = _KaldiFolder(
        folder=folder,
        recordings=_read_recordings(folder / "wav.scp", lines_of["wav.scp"]),
        segments=lines_of.get("segments", {}),
        speakers=lines_of.get("utt2spk", {}),
        langs=lines_of.get("utt2lang", {}),
        channels={
            name: _read_channel_name(line)
            for name, line in lines_of.get("reco2file_and_channel", {}).items()
        },
    )
    if "segments" in lines_of and not data.segments:
        to_do = "remove it if each recording is one utterance"
        raise DataError(folder / "segments", "empty", to_do)
    transcripts = lines_of["text"]
    for key, txt in transcripts.items():
        yield data.make_entry(key, txt, split)
    _report_unused(folder, lines_of)
    utterances = data.segments or data.recordings  # without segments, recordings are utterances
    for key in sorted(utterances.keys() - transcripts.keys()):
        reason = "no transcript: it is not in text"
        yield Rejected(key=key, path="", reason=reason, lang="", is_fault=False)


class _WavScpAudio(NamedTuple):
    """The audio of a line of wav.scp."""

    path: str
    channel: str
    """The channel that a command takes: `ch1`, or `mono` for the mean of all; "": it takes none, or
    the audio is a file.
    """


@dataclass(frozen=True)
class _KaldiFolder:
    """The files of a data folder, by the names at the beginning of their lines."""

    folder: Path
    recordings: Mapping[str, _WavScpAudio]
    segments: Mapping[str, str]
    """Key of an utterance → its part of a recording. Empty: each recording is one utterance."""
    speakers: Mapping[str, str]
    langs: Mapping[str, str]
    channels: Mapping[str, str]
    """Name of a recording → its channel, by reco2file_and_channel."""

    def make_entry(self, key: str, txt: str, split: str | None) -> Entry | Rejected:
        """The entry of a line of the file text, or the reason why the line cannot be used.

        The channel is that of the command in wav.scp, otherwise that of the segment, otherwise that
        of the recording. A command gives audio with one channel. So its segment may name only the
        channel 0.

        Args:
            key: first word of the line.
            txt: the rest of the line.
            split: name of the set, or None.
        """
        segment = _PartOfRecording(recording=key)
        if self.segments:
            if key not in self.segments:
                return Rejected(
                    key=key, path="", reason=f"missing: {key} is not in segments", lang=""
                )
            line = self.segments[key]
            try:
                segment = _read_segment(line)
            except ValueError:
                expected = "expected `recording start end [channel]`"
                return Rejected(
                    key=key, path="", reason=f"segments: {expected}, found {line!r}", lang=""
                )
        if segment.recording not in self.recordings:
            return Rejected(
                key=key, path="", reason=f"missing: {segment.recording} is not in wav.scp", lang=""
            )
        path, channel_of_command = self.recordings[segment.recording]
        if channel_of_command and segment.channel not in (None, 0):
            reason = (
                f"outside the audio: channel {segment.channel} of a command that gives only one"
            )
            return Rejected(key=key, path=path, reason=reason, lang="")
        channel: int | str | None = segment.channel
        if channel_of_command:
            channel = channel_of_command
        elif segment.channel is None:
            channel = self.channels.get(segment.recording)
        return Entry(
            where=f"{self.folder.name}/text: {key}",
            audio=_list_paths(path),
            folder=self.folder,
            txt=txt,
            key=key,
            lang=self.langs.get(key),
            speaker=self.speakers.get(key) or None,
            start=segment.start,
            end=segment.end,
            channel=channel,
            split=split,
        )


def _list_paths(path: str) -> tuple[str, ...]:
    """The path; a relative path also from the current folder, after the one from the data folder.

    Kaldi's paths are relative to the folder in which its recipe runs, two levels above data/train.
    """
    return (path,) if Path(path).is_absolute() else (path, str(Path.cwd() / path))


@dataclass(frozen=True)
class _PartOfRecording:
    """The part of a recording that is an utterance."""

    recording: str
    start: float | None = None
    """Seconds; None: the beginning of the recording."""
    end: float | None = None
    """Seconds; None: the end of the recording."""
    channel: int | None = None
    """From 0; None: not given."""


def _read_segment(line: str) -> _PartOfRecording:
    """The part of `recording start end [channel]`. Raises ValueError for another line.

    A negative end is the end of the recording, and a negative channel is no channel: Kaldi writes
    both as -1.
    """
    recording, start, end, *rest = line.split()
    end_s = float(end)
    channel = int(rest[0]) if rest else -1
    return _PartOfRecording(
        recording=recording,
        start=float(start),
        end=None if end_s < 0.0 else end_s,
        channel=None if channel < 0 else channel,
    )


def _read_channel_name(line: str) -> str:
    """The channel of `file channel`, its last word; empty for an empty line.

    Letters such as A stay as they are. A number such as 1 becomes `ch1`, which counts from 1.
    """
    words = line.split()
    channel = words[-1] if words else ""
    return f"ch{channel}" if channel.isdecimal() else channel


def _read_recordings(path: Path, lines: Mapping[str, str]) -> dict[str, _WavScpAudio]:
    """Name of each recording → its audio file. Logs how many are commands that only decode a file.

    Raises DataError for audio that is no file: commands that do more, and pieces of archives.
    """
    recordings = dict[str, _WavScpAudio]()
    num_commands = 0
    for name, value in lines.items():
        decoded_file = _find_decoded_file(value)
        if decoded_file is None:
            recordings[name] = _WavScpAudio(path=value, channel="")
        else:
            recordings[name] = decoded_file
            num_commands += 1
    if num_commands:
        logger.info("%s: %d commands only decode a file, which is read", path, num_commands)
    for kind in _UNSUPPORTED:
        names = [name for name, audio in recordings.items() if kind.pattern.search(audio.path)]
        if names:
            counted = f"{len(names)} of {len(lines)} recordings are {kind.name}"
            example = f"{names[0]}: {recordings[names[0]].path[:60]!r}"
            raise DataError(path, f"{counted}, such as {example}", kind.remedy)
    return recordings


def _find_decoded_file(command: str) -> _WavScpAudio | None:
    """The file that a command decodes, and the channel that it takes.

    None: the text is no command, because it does not end with `|`, or the command does more than to
    decode a file.
    """
    if not command.endswith("|"):
        return None
    plain_command = " ".join(command.removesuffix("|").split())
    # Without the folder of the program, and without `2> /dev/null` at the end.
    plain_command = re.sub(r"^\S*/| 2> ?/dev/null$", "", plain_command)
    for pattern in _DECODERS:
        match = re.fullmatch(pattern, plain_command)
        if match is not None:
            return _read_decoder(match)
    return None


def _read_decoder(match: re.Match[str]) -> _WavScpAudio:
    """The file and the channel in a command, by the names of the groups in `_DECODERS`."""
    groups = {name: value for name, value in match.groupdict().items() if value}
    path = groups.get("double") or groups.get("single") or groups["plain"]
    if "channel" in groups:
        return _WavScpAudio(path, f"ch{groups['channel']}")
    takes_mean = "mix" in groups or "mean" in groups
    return _WavScpAudio(path, "mono" if takes_mean else "")


def _report_unused(folder: Path, lines_of: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of lines of utt2spk without a speaker, and of lines that no utterance uses.

    The latter are lines of utt2spk whose key is not in text, and lines of wav.scp whose recording
    is not in segments. `lines_of`: name of a file → first word of each line → the rest of the line.
    """
    speakers = lines_of.get("utt2spk", {})
    segments = lines_of.get("segments", {})
    without_speaker = [key for key, speaker in speakers.items() if not speaker]
    if without_speaker:
        message = "%s: %d lines have no speaker, such as that of %r"
        logger.warning(message, folder / "utt2spk", len(without_speaker), without_speaker[0])
    unused = {"utt2spk": speakers.keys() - lines_of["text"].keys() - set(without_speaker)}
    if segments:
        in_segments = {line.split(maxsplit=1)[0] for line in segments.values() if line}
        unused["wav.scp"] = lines_of["wav.scp"].keys() - in_segments
    for name, keys in unused.items():
        if keys:
            message = "%s: %d lines are not used, such as that of %r"
            logger.warning(message, folder / name, len(keys), min(keys))
