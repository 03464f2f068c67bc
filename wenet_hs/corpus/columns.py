# SPDX-License-Identifier: Apache-2.0
"""Columns of a table: what they contain, by their usual names, and which others have names that are
near.
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from wenet_hs.data.containers import RAW_SUFFIXES
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_OTHER_TEXTS = ("normalized_text", "words", "annotation")
"""Names of transcripts, if no other column is one."""
COLUMNS = {
    "audio": (
        *(
            "audio",
            "path",
            "wav",
            "file_name",
            "file",
            "audio_path",
            "audio_file",
            "audio_file_path",
            "wav_path",
        ),
        *(
            "wav_file",
            "wav_file_name",
            "audio_file_name",
            "file_path",
            "sound",
            "sound_file",
            "media",
            "media_file",
        ),
        *("recording", "recording_id"),
    ),
    "text": (
        "text",
        "sentence",
        "transcript",
        "transcription",
        "txt",
        "wrd",
        "orthography",
        *_OTHER_TEXTS,
    ),
    "speaker": (
        "speaker",
        "client_id",
        "speaker_id",
        "spk",
        "spk_id",
        "speaker_name",
        "participant",
        "participant_id",
    ),
    "lang": ("language", "lang", "locale", "language_code", "lang_code"),
    "start": (
        *(
            "start",
            "begin",
            "start_time",
            "begin_time",
            "onset",
            "offset",
            "segment_start",
            "t_start",
            "time_start",
        ),
        *("start_timestamp", "tmin", "xmin"),
    ),
    "end": (
        *(
            "end",
            "stop",
            "end_time",
            "stop_time",
            "segment_end",
            "t_end",
            "time_end",
            "end_timestamp",
            "tmax",
            "xmax",
        ),
    ),
    "duration": ("duration", "dur", "audio_duration", "length"),
    "channel": (
        "channel",
        "audio_channel",
        "channel_id",
        "channel_index",
        "channel_selector",
        "chan",
    ),
    "split": ("split", "set", "subset", "partition"),
    "key": ("id", "key", "utterance_id", "utt_id", "utt", "segment_id"),
}
"""What a column contains → the names by which it is found, the most usual first: in any case, with
any signs or none between the words, and with a unit of time.
"""
TIMES = ("start", "end", "duration")
_UNIT = re.compile(
    r"(?P<name>.+?)_(in_)?((?P<ms>ms|msecs?|millis|milliseconds?)|s|secs?|seconds?|ss_msec|(hh?_)?mm_ss(_ms(ec)?)?|hms)"
)
_HINTED = ("speaker", "lang", "start", "end", "channel", "split")
_FACTS = {
    *("age", "gender", "sex", "native", "first", "mother", "family"),
    *("count", "num", "number", "probability", "confidence", "score"),
}
"""Words of columns that state something about a content, such as `speaker_age` and
`native_language`.
"""
_NO_TIMES = {
    *(
        "date",
        "day",
        "month",
        "year",
        "user",
        "page",
        "line",
        "index",
        "char",
        "chars",
        "character",
        "token",
        "tokens",
    ),
}
"""Words of columns that have another start or end than one in seconds, such as `start_date` and
`end_user`.
"""
_MIN_MISSPELT, _MIN_SIMILARITY = 6, 0.85
"""Letters and similarity of misspelt words.

Of shorter words many are near: `state` and `start`, `send` and `end`.
"""
_OTHER_UNITS = {"frame", "frames", "sample", "samples", "ff", "min", "mins", "minutes", "hours"}


def is_usual_name(name: str, contents: Collection[str] = tuple(COLUMNS)) -> bool:
    """Whether a column of this name is found, with one of these contents."""
    return any(_fits(name, content, usual) for content in contents for usual in COLUMNS[content])


def is_in_milliseconds(name: str) -> bool:
    """Whether the name of a column of times says that it has milliseconds, as `Begin Time - msec`
    of ELAN.
    """
    found = _UNIT.fullmatch(_join_words(name))
    return bool(found and found["ms"])


def has_other_unit(name: str) -> bool:
    """Whether the name has the word of a unit that is not read."""
    return bool(_OTHER_UNITS & {*_join_words(name).split("_")})


def _fits(name: str, content: str, usual: str) -> bool:
    plain = _join_words(name)
    found = _UNIT.fullmatch(plain) if content in TIMES else None
    return (found["name"] if found else plain).replace("_", "") == usual.replace("_", "")


def _join_words(name: str) -> str:
    """The words in lower case: `begin_time_ss_msec` of `Begin Time - ss.msec`, `file_name` of
    `fileName`.
    """
    return re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()


def find_columns(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """Content → name of its column. `chosen`: --columns.

    Raises DataError if a column is missing or may be one of several, ConfigError for wrong
    --columns.
    """
    fitting = {
        content: [name for usual in names for name in header if _fits(name, content, usual)]
        for content, names in COLUMNS.items()
    }
    if "onset" in map(
        _join_words, fitting["start"][:1]
    ):  # then an offset is the end; NeMo's is the start
        fitting["end"] += [name for name in header if _fits(name, "end", "offset")]
    other = [name for usual in _OTHER_TEXTS for name in header if _fits(name, "text", usual)]
    fitting["text"] = [name for name in fitting["text"] if name not in other] or other[:1]
    chosen_names = _read_chosen(path, header, chosen)
    for content, name in chosen_names.items():
        fitting[content] = [name] if name else []
    if fitting["end"] and "duration" not in chosen_names:  # then a length may be that of the text
        fitting["duration"] = [
            name for name in fitting["duration"] if not _fits(name, "duration", "length")
        ]
    if len(fitting["text"]) > 1:
        of_text = list_names([repr(name) for name in fitting["text"]])
        raise DataError(
            f"{path}:1",
            f"several columns can be the transcript: {of_text}",
            'name it: --columns "text=…"',
        )
    found = {content: names[0] for content, names in fitting.items() if names}
    if units := [
        found[content] for content in TIMES if content in found and has_other_unit(found[content])
    ]:
        fault = f"{units[0]!r} has another unit"
        raise DataError(
            f"{path}:1", fault, "write seconds, milliseconds (name: start_ms) or h:mm:ss"
        )
    missing = [content for content in ("audio", "text") if content not in found]
    if "start" in found and not {"end", "duration"} & found.keys():
        missing.append("end")
    if "end" in found and "start" not in found:
        missing.append("start")
    if "start" not in found:
        found.pop("duration", None)  # that of the file
    if missing:
        raise _make_missing_error(path, header, missing, found)
    return found


def _read_chosen(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """Content → name of its column, of --columns; an empty name for a content that is not used.

    Raises ConfigError for another content or name.
    """
    names = dict[str, str]()
    for pair in re.split(r"\s+(?=[^\s=]*=)", normalize_phones(chosen)):  # a name may have spaces
        if not pair:
            continue
        content, equals, name = pair.partition("=")
        if content not in COLUMNS or not equals:
            fault = f"expected CONTENT=NAME with a content of {', '.join(COLUMNS)}"
            raise ConfigError(f"--columns {pair!r}", fault)
        if name and name not in header:
            fault = f"{path.name} has the columns: {list_names(header, most=20)}"
            hint = _find_unquoted(content, name, header) or _guess([name], _by_lower(header))
            raise ConfigError(f"--columns {pair!r}", f"{hint}{fault}")
        names[content] = name
    return names


def _find_unquoted(content: str, name: str, header: Sequence[str]) -> str:
    """What to write for a name in quotation marks or with backslashes, or nothing.

    Those of the shell are gone; others are a part of the name.
    """
    unquoted = re.sub(r"[\\'\"]", "", name)
    if unquoted == name or unquoted not in header:
        return ""
    return f'write --columns "{content}={unquoted}", without other quotation marks or backslashes; '


def _make_missing_error(
    path: Path, header: Sequence[str], missing: Sequence[str], found: Mapping[str, str]
) -> DataError:
    """The error for contents without a column. Its line has guesses and the flags that name them.

    found: content → name of the columns that were found.
    """
    others = _by_lower([name for name in header if name not in found.values()])
    guess = _guess_missing([*missing, "duration"] if "end" in missing else missing, others)
    if any(map(_is_content, header)):
        no_names = "if the first line has no names, write them, or put the audio beside it"
        guess = f"{no_names} or give --audio_dir; otherwise "
    contents = ["end or duration" if content == "end" else content for content in missing]
    flag = " ".join(f"{content}=…" for content in missing)
    either = ' (or "duration=…")' if "end" in missing else ""
    to_do = f'{guess}name them: --columns "{flag}"{either}, of: {list_names(header, most=20)}'
    only_time = next((name for name in ("start", "end") if name in found), None)
    if only_time and not {"audio", "text"} & {*missing}:
        to_do += f'; or use whole files: --columns "{only_time}="'
    return DataError(f"{path}:1", f"no column of {', '.join(contents)}", to_do)


def _by_lower(header: Sequence[str]) -> dict[str, str]:
    """Name in lower case → name of the first such column."""
    return {name.strip().lower(): name for name in reversed(header)}


def _is_content(cell: str) -> bool:
    """Whether a cell is a number, a time or an audio file, and so no name of a column."""
    is_number = re.fullmatch(r"[\d:.,]*\d", cell) is not None
    return is_number or cell.lower().endswith((*ALL_SUFFIXES, *RAW_SUFFIXES))


def _guess(names: Sequence[str], by_lower: Mapping[str, str]) -> str:
    """`did you mean …? ` with the columns that have similar names, or nothing."""
    near = {
        by_lower[one]
        for name in names
        for one in difflib.get_close_matches(name.lower(), by_lower, 1, 0.65)
    }
    return _ask(near)


def _guess_missing(missing: Sequence[str], by_lower: Mapping[str, str]) -> str:
    """`did you mean …? ` with the columns that may have the missing contents, or nothing.

    Columns of times have a word that is near. Of audio and text the names may only begin with the
    same letter and be similar, as `tekst`.
    """
    near = set[str]()
    for content in missing:
        if content in TIMES:
            near |= {name for name in by_lower.values() if _has_near_word(name, content)}
            continue
        for usual in COLUMNS[content]:
            same_begin = [lower for lower in by_lower if lower[:1] == usual[0]]
            near |= {
                by_lower[lower] for lower in difflib.get_close_matches(usual, same_begin, 1, 0.65)
            }
    return _ask(near)


def _ask(names: Collection[str]) -> str:
    return f"did you mean {list_names(sorted(names))}? " if names else ""


def find_near_names(unused: Sequence[str], known: Collection[str]) -> list[str]:
    """A hint for each content that is not `known` and seems to be in a column that is not used."""
    hints = []
    for content in _HINTED:
        if content in known:
            continue
        name = next((name for name in unused if _has_near_word(name, content)), None)
        if name is not None:
            hints.append(f'{name!r} looks like the {content}: --columns "{content}={name}"')
    return hints


def _has_near_word(name: str, content: str) -> bool:
    """Whether a whole word of the name of a column is a usual name of the content, in the plural,
    or misspelt.

    Not if another word says that the column only states something about the content, has a unit
    that is not read, or is a start or end of something else.
    """
    words = _join_words(name).split("_")
    if has_other_unit(name) or _FACTS.intersection(words):
        return False
    if content in TIMES and _NO_TIMES.intersection(words):
        return False
    return any(_is_near(word, usual) for word in words for usual in COLUMNS[content])


def _is_near(word: str, usual: str) -> bool:
    """Whether a word is the usual name, its plural, or nearly a long one, such as `speeker`."""
    if word in (usual, f"{usual}s"):
        return True
    if min(len(word), len(usual)) < _MIN_MISSPELT:
        return False
    return difflib.SequenceMatcher(None, word, usual).ratio() >= _MIN_SIMILARITY
