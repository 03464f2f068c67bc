# SPDX-License-Identifier: Apache-2.0
"""Columns of a table: what they contain, by their usual names or by the user's choice (--columns).

The usual names give a first guess, the user's choice replaces it, and the result is checked. Names
that are similar to usual ones are not guesses: they are hints for the user.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from wenet_hs.data.containers import RAW_SUFFIXES
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import ConfigError, DataError, list_names

_LAST_TEXTS = ("normalized_text", "words", "annotation")
"""Names of a column of transcripts that are used only if no column has another name of these."""
COLUMNS = {
    "audio": (
        "audio",
        "path",
        "wav",
        "file_name",
        "file",
        "audio_path",
        "audio_file",
        "audio_file_path",
        "wav_path",
        "wav_file",
        "wav_file_name",
        "audio_file_name",
        "file_path",
        "sound",
        "sound_file",
        "media",
        "media_file",
        "recording",
        "recording_id",
    ),
    "text": (
        "text",
        "sentence",
        "transcript",
        "transcription",
        "txt",
        "wrd",
        "orthography",
        *_LAST_TEXTS,
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
    "lang": (
        "language",
        "lang",
        "locale",
        "language_code",
        "lang_code",
    ),
    "start": (
        "start",
        "begin",
        "start_time",
        "begin_time",
        "onset",
        "offset",
        "segment_start",
        "t_start",
        "time_start",
        "start_timestamp",
        "tmin",
        "xmin",
    ),
    "end": (
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
    "duration": (
        "duration",
        "dur",
        "audio_duration",
        "length",
    ),
    "channel": (
        "channel",
        "audio_channel",
        "channel_id",
        "channel_index",
        "channel_selector",
        "chan",
    ),
    "split": (
        "split",
        "set",
        "subset",
        "partition",
    ),
    "key": (
        "id",
        "key",
        "utterance_id",
        "utt_id",
        "utt",
        "segment_id",
    ),
}
"""What a column contains → the names by which it is found, the most usual one first.

Upper and lower case are equal, and so are all signs between words, or no sign. The name of a column
of `TIMES` may also have a unit of time.
"""
TIMES = ("start", "end", "duration")
"""Contents that are times."""
_NAME_WITH_UNIT = re.compile(
    r"(?P<name>.+?)_(in_)?"
    r"((?P<ms>ms|msecs?|millis|milliseconds?)"
    r"|s|secs?|seconds?|ss_msec|(hh?_)?mm_ss(_ms(ec)?)?|hms)"
)
"""The name of a column of times with its unit, as `_join_words` gives it: `begin_time_ss_msec`.

The group `name` is the name without the unit; the group `ms` matches if the unit is milliseconds.
"""
_OTHER_UNITS = {"frame", "frames", "sample", "samples", "ff", "min", "mins", "minutes", "hours"}
"""Words of units that are not read."""


# ---- content → column


def find_columns(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """The columns that are used: content → name of its column, in the order of `COLUMNS`.

    A duration is used only beside a start: otherwise it is the length of the file.

    Args:
        path: the table, for messages.
        header: the names of all columns.
        chosen: the value of --columns, such as `audio=File split=`; may be empty.
    Raises DataError if a column is missing, several can be the transcript, or times have a unit
        that is not read; ConfigError for wrong --columns.
    """
    candidates = _guess_columns(header)
    choice = _read_choice(path, header, chosen)
    for content, name in choice.items():
        candidates[content] = [name] if name else []  # no name: the user wants no such column
    if candidates["end"] and "duration" not in choice:
        candidates["duration"] = _drop_length(candidates["duration"])
    _refuse_several_texts(path, candidates["text"])
    columns = {content: names[0] for content, names in candidates.items() if names}
    _refuse_other_units(path, columns)
    missing = _find_missing(columns)
    if "start" not in columns:  # then a duration is the length of the file
        columns.pop("duration", None)
    if missing:
        raise _make_missing_error(path, header, missing, columns)
    return columns


def _guess_columns(header: Sequence[str]) -> dict[str, list[str]]:
    """Content → the columns that can have it by their usual names, the most usual first."""
    candidates = {
        content: _find_named(header, content, usual_names)
        for content, usual_names in COLUMNS.items()
    }
    if _begins_with_onset(candidates["start"]):
        candidates["end"] += _find_named(header, "end", ["offset"])
    candidates["text"] = _prefer_usual_texts(candidates["text"])
    return candidates


def _begins_with_onset(starts: Sequence[str]) -> bool:
    """Whether the first column of starts is named `onset`. Then `offset` is the name of the end.

    Without `onset`, `offset` is the name of a start, as in NeMo's manifests: `offset, duration`.
    """
    return bool(starts) and _join_words(starts[0]) == "onset"


def _prefer_usual_texts(texts: Sequence[str]) -> list[str]:
    """Rule: the columns with more usual names than `_LAST_TEXTS`, or else the first of these.

    Examples: of `text` and `normalized_text` the result is `text`; of `normalized_text` and `words`
    it is `normalized_text`.
    """
    last_texts = _find_named(texts, "text", _LAST_TEXTS)
    usual_texts = [name for name in texts if name not in last_texts]
    return usual_texts or last_texts[:1]


def _drop_length(durations: Sequence[str]) -> list[str]:
    """Rule: beside an end, `length` is no duration. It may be the number of letters of the text."""
    return [name for name in durations if not _is_called(name, "duration", "length")]


def _refuse_several_texts(path: Path, texts: Sequence[str]) -> None:
    """Raise DataError if several columns have usual names of a transcript."""
    if len(texts) > 1:
        names = list_names([repr(name) for name in texts])
        raise DataError(
            f"{path}:1",
            f"several columns can be the transcript: {names}",
            'name it: --columns "text=…"',
        )


def _refuse_other_units(path: Path, columns: Mapping[str, str]) -> None:
    """Raise DataError if a column of times has a unit that is not read, such as `start_frame`."""
    for content in TIMES:
        if content in columns and has_other_unit(columns[content]):
            raise DataError(
                f"{path}:1",
                f"{columns[content]!r} has another unit",
                "write seconds, milliseconds (name: start_ms) or h:mm:ss",
            )


def _find_missing(columns: Mapping[str, str]) -> list[str]:
    """The contents that have no column and are necessary.

    A start needs an end or a duration, and an end needs a start. Without any of these, each row is
    a whole file.
    """
    missing = [content for content in ("audio", "text") if content not in columns]
    has_end_or_duration = "end" in columns or "duration" in columns
    if "start" in columns and not has_end_or_duration:
        missing.append("end")
    if "end" in columns and "start" not in columns:
        missing.append("start")
    return missing


# ---- usual names


def is_usual_name(name: str, contents: Collection[str] = tuple(COLUMNS)) -> bool:
    """Whether a column of this name is found, with one of these contents."""
    return any(_find_named([name], content, COLUMNS[content]) for content in contents)


def is_in_milliseconds(name: str) -> bool:
    """Whether the name of a column of times says milliseconds, as `Begin Time - msec` of ELAN."""
    match = _NAME_WITH_UNIT.fullmatch(_join_words(name))
    return match is not None and match["ms"] is not None


def has_other_unit(name: str) -> bool:
    """Whether the name has the word of a unit that is not read, such as `start_frame`."""
    words = _join_words(name).split("_")
    return not _OTHER_UNITS.isdisjoint(words)


def _find_named(header: Sequence[str], content: str, usual_names: Iterable[str]) -> list[str]:
    """The columns with a usual name of a content, in the order of the usual names."""
    columns = list[str]()
    for usual in usual_names:
        columns += [name for name in header if _is_called(name, content, usual)]
    return columns


def _is_called(name: str, content: str, usual: str) -> bool:
    """Whether the name of a column is this usual name of a content, written in any way.

    Case and signs between words do not count, and neither does the unit of times: `Begin Time -
    msec` is `begin_time`, and `fileName` is `file_name`.
    """
    plain = _join_words(name)
    if content in TIMES:
        match = _NAME_WITH_UNIT.fullmatch(plain)
        if match is not None:
            plain = match["name"]  # without its unit
    return plain.replace("_", "") == usual.replace("_", "")


def _join_words(name: str) -> str:
    """The words in lower case, joined by `_`.

    Examples: `begin_time_ss_msec` of `Begin Time - ss.msec`, `file_name` of `fileName`.
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", separated).strip("_").lower()


# ---- the user's choice


def _read_choice(path: Path, header: Sequence[str], chosen: str) -> dict[str, str]:
    """The value of --columns: content → name of its column, or an empty name for no such column.

    Args:
        chosen: pairs such as `audio=File start=Start time`. A name may have spaces, so pairs are
            divided only at spaces before a word with an equals sign.
    Raises ConfigError for a content or name that does not exist. For a name, the error suggests
        what the user may have meant.
    """
    choice = dict[str, str]()
    spaces_before_next_pair = r"\s+(?=[^\s=]*=)"
    for pair in re.split(spaces_before_next_pair, normalize_phones(chosen)):
        if not pair:
            continue
        content, equals, name = pair.partition("=")
        if content not in COLUMNS or not equals:
            fault = f"expected CONTENT=NAME with a content of {', '.join(COLUMNS)}"
            raise ConfigError(f"--columns {pair!r}", fault)
        if name and name not in header:
            fault = f"{path.name} has the columns: {list_names(header, most=20)}"
            hint = _find_unquoted(content, name, header) or _guess_similar(name, header)
            raise ConfigError(f"--columns {pair!r}", f"{hint}{fault}")
        choice[content] = name
    return choice


def _find_unquoted(content: str, name: str, header: Sequence[str]) -> str:
    """What to write if a name is that of a column except for quotation marks or backslashes.

    Otherwise the result is empty. The shell removes the marks that it reads; further ones stay in
    the name.
    """
    unquoted = re.sub(r"[\\'\"]", "", name)
    if unquoted == name or unquoted not in header:
        return ""
    return f'write --columns "{content}={unquoted}", without other quotation marks or backslashes; '


# ---- hints for columns that are missing


_MIN_SIMILARITY_OF_GUESS = 0.65
"""Similarity of names that a message suggests, as `difflib` measures it, from 0 to 1."""


def _make_missing_error(
    path: Path, header: Sequence[str], missing: Sequence[str], columns: Mapping[str, str]
) -> DataError:
    """The error for contents without a column, with guesses and the flags that name the columns.

    If the first line seems to be a row, it says so in place of the guesses. If only times are
    missing, it also says how to use whole files.

    Args:
        missing: the contents without a column.
        columns: content → name of the columns that were found.
    """
    is_end_missing = "end" in missing  # a duration would do as well
    contents = ["end or duration" if content == "end" else content for content in missing]
    if any(map(_is_content, header)):  # the first line is a row
        hint = (
            "if the first line has no names, write them, or put the audio beside it "
            "or give --audio_dir; otherwise "
        )
    else:
        unused = [name for name in header if name not in columns.values()]
        hint = _guess_missing([*missing, "duration"] if is_end_missing else missing, unused)
    flag = " ".join(f"{content}=…" for content in missing)
    alternative = ' (or "duration=…")' if is_end_missing else ""
    to_do = f'{hint}name them: --columns "{flag}"{alternative}, of: {list_names(header, most=20)}'
    are_only_times_missing = "audio" not in missing and "text" not in missing
    present_time = next((content for content in ("start", "end") if content in columns), None)
    if present_time is not None and are_only_times_missing:
        to_do += f'; or use whole files: --columns "{present_time}="'  # which ignores this column
    return DataError(f"{path}:1", f"no column of {', '.join(contents)}", to_do)


def _is_content(cell: str) -> bool:
    """Whether a cell is a number, a time or an audio file, and so no name of a column."""
    is_number_or_time = re.fullmatch(r"[\d:.,]*\d", cell) is not None
    return is_number_or_time or cell.lower().endswith((*ALL_SUFFIXES, *RAW_SUFFIXES))


def _guess_similar(name: str, header: Sequence[str]) -> str:
    """`did you mean …? ` with the column that has the most similar name, or nothing."""
    lower_names = _map_lower_names(header)
    similar = _find_most_similar(name.lower(), lower_names)
    return _format_suggestion({lower_names[lower] for lower in similar})


def _guess_missing(missing: Sequence[str], unused: Sequence[str]) -> str:
    """`did you mean …? ` with the unused columns that may have the missing contents, or nothing.

    A column may have times if a word of its name is a usual name, or nearly one: see
    `_may_contain`. It may have audio or text if its name is similar to a usual one and begins with
    the same letter: `tekst`.
    """
    lower_names = _map_lower_names(unused)
    guesses = set[str]()
    for content in missing:
        if content in TIMES:
            guesses |= {name for name in lower_names.values() if _may_contain(name, content)}
            continue
        for usual in COLUMNS[content]:
            with_same_first_letter = [lower for lower in lower_names if lower[:1] == usual[0]]
            similar = _find_most_similar(usual, with_same_first_letter)
            guesses |= {lower_names[lower] for lower in similar}
    return _format_suggestion(guesses)


def _map_lower_names(header: Sequence[str]) -> dict[str, str]:
    """Name in lower case → the name as it is written. Of names that differ in case, the first."""
    return {name.strip().lower(): name for name in reversed(header)}  # the first one is set last


def _find_most_similar(name: str, others: Iterable[str]) -> list[str]:
    """The most similar one of the others, or none if it is not similar enough."""
    return difflib.get_close_matches(name, others, n=1, cutoff=_MIN_SIMILARITY_OF_GUESS)


def _format_suggestion(names: Collection[str]) -> str:
    """The question whether the user meant one of the names; empty if there are none."""
    return f"did you mean {list_names(sorted(names))}? " if names else ""


# ---- hints for columns that are not used


_HINTED = ("speaker", "lang", "start", "end", "channel", "split")
"""Contents that a table may have, and that are missed if their column is not used."""
_FACTS = {
    "age",
    "gender",
    "sex",
    "native",
    "first",
    "mother",
    "family",
    "count",
    "num",
    "number",
    "probability",
    "confidence",
    "score",
}
"""A column with such a word in its name has no content of `COLUMNS`, but a fact about it.

Examples are `speaker_age` and `native_language`.
"""
_NO_TIMES = {
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
}
"""A column with such a word in its name has no times in the audio: `start_date`, `end_user`."""
_MIN_MISSPELT = 6
"""Letters from which on a word may be a misspelt one. Shorter words are too similar: `state` and
`start`.
"""
_MIN_SIMILARITY = 0.85
"""Similarity from which on a word is a misspelt one, as `difflib` measures it, from 0 to 1."""


def suggest_columns(unused: Sequence[str], known: Collection[str]) -> list[str]:
    """A hint for each content that is not `known` and seems to be in a column that is not used.

    Example: `'langue' looks like the lang: --columns "lang=langue"`.
    """
    hints = list[str]()
    for content in _HINTED:
        if content in known:
            continue
        name = next((name for name in unused if _may_contain(name, content)), None)
        if name is not None:
            hints.append(f'{name!r} looks like the {content}: --columns "{content}={name}"')
    return hints


def _may_contain(name: str, content: str) -> bool:
    """Whether a word of the name of a column is a usual name of the content, or nearly one.

    Not if another word of the name says that the column only states a fact about the content
    (`speaker_age`), that its unit is not read (`start_frame`), or that it is the start or end of
    something else (`start_date`).
    """
    words = _join_words(name).split("_")
    if has_other_unit(name) or _FACTS.intersection(words):
        return False
    if content in TIMES and _NO_TIMES.intersection(words):
        return False
    usual_names = COLUMNS[content]
    return any(_is_nearly_a(word, usual_names) for word in words)


def _is_nearly_a(word: str, usual_names: Sequence[str]) -> bool:
    """Whether a word is a usual name, its plural, or a misspelt long one, such as `speeker`."""
    for usual in usual_names:
        if word in (usual, f"{usual}s"):
            return True
        if min(len(word), len(usual)) < _MIN_MISSPELT:
            continue
        if difflib.SequenceMatcher(None, word, usual).ratio() >= _MIN_SIMILARITY:
            return True
    return False
