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
from typing import Any

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
"""Commands that decode a file, may resample it, and may take one channel, counted from 1, or the
mean of all.
"""
_UNSUPPORTED = (
    (
        "commands",
        re.compile(r"\|$"),
        "run each once, and write the path of the file that it makes; or move the folder away, "
        "if it only has changed copies of another one (train_sp)",
    ),
    (
        "pieces of Kaldi archives",
        re.compile(r"\.ark:\d+(\[.*\])?$"),
        "write audio files, and their paths",
    ),
)
"""Entries of wav.scp that are no files: name, pattern, and what to do."""


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

    A subfolder whose utterances another one of its set has too is not used: `train_hires` beside
    `train`, or `train_100` beside `train_960`.

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
    """Folder → another one of its set that has all its utterances and is used itself.

    Of folders with the same utterances the first one is the original.

    Args:
        only_sets: whether the folders are sets; otherwise all of them are compared.
    """
    keys_of = {folder: {entry.key for entry in entries} for folder, entries in entries_of.items()}
    original_of = dict[Path, Path]()
    # The largest ones first: so an original is known before its copies, whatever their names are.
    by_size = sorted(keys_of, key=lambda folder: len(keys_of[folder]), reverse=True)
    for number, folder in enumerate(by_size):
        for other in by_size[:number]:
            is_comparable = not only_sets or _are_one_set(other, folder)
            is_copy = bool(keys_of[folder]) and keys_of[folder] <= keys_of[other]
            if is_comparable and is_copy and other not in original_of:
                original_of[folder] = other
                break
    return original_of


def _choose_folders(corpus: Path, only_sets: bool) -> list[Path]:
    """The subfolders that are data folders; what is not used is stated in the log."""
    folders = sorted(path.parent for path in corpus.glob("*/wav.scp"))
    if not folders:
        raise _make_no_data_folder_error(corpus)
    others = [folder for folder in folders if find_split(folder.name) is None]
    if not only_sets:
        without_text = [folder for folder in others if not (folder / "text").is_file()]
        if len(without_text) == len(folders):
            return folders  # the first one is refused
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
    """The utterances of one folder. `split`: the set that they are given to.

    Raises DataError when a file is missing or has a name twice, or audio is the output of a command
    that does more than to decode a file.
    """
    if not (folder / "text").is_file():
        to_do = "write `key transcript` lines there, or move the folder away if it is no set"
        raise DataError(folder, "no transcripts, it has no file text", to_do)
    files = ("wav.scp", "text", "segments", "utt2spk", "utt2lang", "reco2file_and_channel")
    maps = {
        name: read_text(folder / name)
        for name in files
        if name in files[:2] or (folder / name).is_file()
    }
    recordings, segments = (
        _read_recordings(folder / "wav.scp", maps["wav.scp"]),
        maps.get("segments", {}),
    )
    speakers, langs = maps.get("utt2spk", {}), maps.get("utt2lang", {})
    sides = {name: _side(value) for name, value in maps.get("reco2file_and_channel", {}).items()}
    if "segments" in maps and not segments:
        raise DataError(
            folder / "segments", "empty", "remove it if each recording is one utterance"
        )
    for key, txt in maps["text"].items():
        where = f"{folder.name}/text: {key}"
        try:
            recording, start, end, channel = (
                _read_segment(segments[key]) if segments else (key, None, None, None)
            )
            audio, side = recordings[recording]
        except KeyError as error:
            missing = "segments" if segments and key not in segments else "wav.scp"
            yield Rejected(key, "", f"missing: {error.args[0]} is not in {missing}", "")
            continue
        except ValueError:
            yield Rejected(
                key,
                "",
                f"segments: expected `recording start end [channel]`, found {segments[key]!r}",
                "",
            )
            continue
        if side and channel:
            yield Rejected(
                key,
                audio,
                f"outside the audio: channel {channel} of a command that gives only one",
                "",
            )
            continue
        # Kaldi's paths are relative to the folder in which its recipe runs, two levels above
        # data/train.
        audio_paths = (audio,) if Path(audio).is_absolute() else (audio, str(Path.cwd() / audio))
        yield Entry(
            where=where,
            audio=audio_paths,
            folder=folder,
            txt=txt,
            key=key,
            lang=langs.get(key),
            speaker=speakers.get(key) or None,
            start=start,
            end=end,
            channel=side or (sides.get(recording) if channel is None else channel),
            split=split,
        )
    _report_unused(folder, maps)
    for key in sorted((segments or recordings).keys() - maps["text"].keys()):
        yield Rejected(key, "", "no transcript: it is not in text", "", is_fault=False)


def _read_recordings(path: Path, lines: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Name → file of a recording, and the channel of it, as `_decoded_file` gives them.

    Raises DataError.
    """
    decoded = {name: file for name, value in lines.items() if (file := _decoded_file(value))}
    files = {name: decoded.get(name, (value, "")) for name, value in lines.items()}
    if decoded:
        logger.info("%s: %d commands only decode a file, which is read", path, len(decoded))
    for what, pattern, remedy in _UNSUPPORTED:
        if found := [name for name, (file, _) in files.items() if pattern.search(file)]:
            counted = f"{len(found)} of {len(lines)} recordings are {what}"
            raise DataError(
                path, f"{counted}, such as {found[0]}: {files[found[0]][0][:60]!r}", remedy
            )
    return files


def _report_unused(folder: Path, maps: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of lines without a speaker, and of speakers and recordings that no utterance has."""
    speakers, segments = maps.get("utt2spk", {}), maps.get("segments", {})
    in_segments = {line.split(maxsplit=1)[0] for line in segments.values() if line}
    if unnamed := [key for key, speaker in speakers.items() if not speaker]:
        logger.warning(
            "%s: %d lines have no speaker, such as that of %r",
            folder / "utt2spk",
            len(unnamed),
            unnamed[0],
        )
    unused = {"utt2spk": speakers.keys() - maps["text"].keys() - {*unnamed}}
    unused["wav.scp"] = maps["wav.scp"].keys() - in_segments if segments else set()
    for name, keys in unused.items():
        if keys:
            logger.warning(
                "%s: %d lines are not used, such as that of %r", folder / name, len(keys), min(keys)
            )


def _read_segment(line: str) -> tuple[str, float, float | None, int | None]:
    """`recording start end [channel]`; an end of -1 is the end of the recording, a channel of -1 is
    none.
    """
    recording, start, end, *rest = line.split()
    channel = int(rest[0]) if rest else -1
    return (
        recording,
        float(start),
        None if float(end) < 0.0 else float(end),
        None if channel < 0 else channel,
    )


def _decoded_file(command: str) -> tuple[str, str] | None:
    """The file that a command decodes, and the channel that it gives: ch1, mono for the mean, ""
    for all.

    None: it is no command, or does something else.
    """
    words = re.sub(r"^\S*/| 2> ?/dev/null$", "", " ".join(command.removesuffix("|").split()))
    matches = (re.fullmatch(pattern, words) for pattern in _DECODERS if command.endswith("|"))
    if (match := next(filter(None, matches), None)) is None:
        return None
    found = {name: value for name, value in match.groupdict().items() if value}
    path = found.get("double") or found.get("single") or found["plain"]
    return path, f"ch{found['channel']}" if "channel" in found else "mono" if {"mix", "mean"} & {
        *found
    } else ""


def _side(line: str) -> str:
    """The channel of `file channel`: A and B, or 1 and 2."""
    *_, side = line.split() or [""]
    return f"ch{side}" if side.isdecimal() else side
