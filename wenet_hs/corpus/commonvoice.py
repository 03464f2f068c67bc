# SPDX-License-Identifier: Apache-2.0
"""Common Voice as in the paper (section 3.1): a test set per language, then downsampling by λ_i.

Example: wenet-hs prepare commonvoice --corpus cv-corpus-11.0 --langs "ca es fr it pt" --out data

https://commonvoice.mozilla.org, CC0. Releases 5 to 25 as downloaded, one folder per language:
`<lang>/validated.tsv`: tab-separated with a header, no quoting (a quotation mark is text), lines
end at `\\n` only. `<lang>/clip_durations.tsv` (from release 16.1): milliseconds per clip.
`<lang>/clips/`: the audio.

Train, dev and test are made from the validated clips. The sets of a release use each sentence only
once, so they leave out most clips; `split="released"` takes them nevertheless.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wenet_hs.base.files import describe_binary
from wenet_hs.base.options import REQUIRED, option, recorded_options
from wenet_hs.corpus.audio_check import AudioOptions, ClipChecker
from wenet_hs.corpus.output import (
    SPLITS,
    Rejected,
    check_langs,
    count_kinds,
    hours_of,
    most_frequent,
    split_names,
    write_corpus,
)
from wenet_hs.corpus.splits import hold_out, shuffled
from wenet_hs.corpus.subset import ratio_for, sampling_ratios
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize_counted
from wenet_hs.tree.errors import ConfigError, DataError, list_names

logger = logging.getLogger(__name__)

COLUMNS = ("client_id", "path", "sentence")
"""Found by their exact names: from release 17 on, `sentence_id` precedes `sentence`."""
_MAX_SENTENCE = 1000
"""Characters of a sentence; a longer one is a fault of the table."""
_DEV_SHARE = 0.05
"""The dev set has this share of the training utterances."""
_DEV_LIMIT = 1000
"""The dev set has at most so many utterances."""
_MAX_LOSS_TEST = 0.5
"""Share of the training utterances that may be left out so that test and train share no sentence."""
_MAX_LOSS_DEV = 0.1
"""Share of the training utterances that may be left out so that dev and train share no sentence."""
_MOST_REMOVED = 30
"""So many removed characters of a language are in `stats.json`: the most frequent ones."""


@dataclass(frozen=True, kw_only=True)
class CommonVoiceOptions(AudioOptions):
    """Options of `prepare commonvoice`."""

    langs: tuple[str, ...] = option(
        REQUIRED, 'languages, named as their folders: "ca es"', type=split_names
    )
    alpha: float = option(0.5, "smoothing of the languages' sizes: 1 keeps them")
    ratio: float = option(0.082, "share of all hours to train on", group="size")
    hours: float | None = option(None, "hours to train on, sum of all languages", group="size")
    split: Literal["paper", "released"] = option(
        "paper",
        "paper: divide validated.tsv (default); released: take train.tsv, dev.tsv and test.tsv",
    )
    test_fraction: float = option(0.1, "test set: share of a language's utterances")
    max_test: int = option(10_000, "test set: maximum number of utterances per language")
    dev_utterances: int | None = option(
        None, "per language; 0: no dev set (default: 5 %% of the training utterances, at most 1000)"
    )

    def __post_init__(self) -> None:
        """Raises ValueError for values out of range, and for no or repeated languages."""
        super().__post_init__()
        check_langs(self.langs)
        if self.max_test < 1:
            raise ValueError(f"max_test {self.max_test}: must be at least 1")
        if self.dev_utterances is not None and self.dev_utterances < 0:
            raise ValueError(f"dev_utterances {self.dev_utterances}: must be at least 0")
        is_test_set_made = self.split == "paper"  # otherwise the fraction has no effect
        if is_test_set_made and not 0.0 < self.test_fraction < 1.0:
            raise ValueError(
                f"test_fraction {self.test_fraction:g}: must be between 0 and 1; the paper uses 0.1"
            )


@dataclass
class Language:
    """The sets of one language, and the clips that are in none of them."""

    lang: str
    splits: dict[str, list[Utterance]] = field(
        default_factory=lambda: {name: [] for name in SPLITS}
    )
    """Until it is divided, `train` contains everything that may be trained on."""
    rejected: list[Rejected] = field(default_factory=list)
    without_rows: dict[str, Path] = field(default_factory=dict)
    """Name of a set → its table, if the table has no row."""
    removed: Counter[str] = field(default_factory=Counter)
    """Characters that the normaliser removed from the transcripts."""

    def reject(self, utterance: Utterance, reason: str, *, is_fault: bool = True) -> None:
        """Add an utterance to the rejected clips, with the reason."""
        self.rejected.append(
            Rejected(
                key=utterance.key,
                path=utterance.wav,
                reason=reason,
                lang=self.lang,
                is_fault=is_fault,
            )
        )


def prepare(options: CommonVoiceOptions) -> dict[str, Any]:
    """Write the lists of a release. Returns the content of `stats.json`.

    Raises DataError when a language is missing or has too many faulty clips, ConfigError for
        impossible hours.
    """
    checker = options.make_checker()
    folders = find_language_folders(options.corpus, options.langs)
    languages = {
        lang: _read_language(folder, lang, options.split, checker)
        for lang, folder in folders.items()
    }
    if options.split == "paper":
        nums_clips = [len(language.splits["train"]) for language in languages.values()]
        _check_test_fraction(options.test_fraction, most=max(nums_clips))
    hours = {lang: hours_of(language.splits["train"]) for lang, language in languages.items()}
    ratio = options.ratio
    if options.hours is not None:
        ratio = ratio_for(sum(hours.values()), options.hours)
    ratios = sampling_ratios(hours, alpha=options.alpha, ratio=ratio)
    splits: dict[str, list[Utterance]] = {name: [] for name in SPLITS}
    rejected: list[Rejected] = []
    facts_of_lang: dict[str, dict[str, Any]] = {}
    for lang, language in languages.items():
        wanted_h = ratios[lang] * hours[lang]  # hours of training speech
        num_test_wanted = _divide_into_sets(language, wanted_h, options, checker)
        facts_of_lang[lang] = {
            "hours_before": round(hours[lang], 6),
            "lambda": round(ratios[lang], 6),
            "hours_wanted": round(wanted_h, 6),
            "test_wanted": num_test_wanted,
            "removed_characters": most_frequent(language.removed, _MOST_REMOVED),
        }
        for name, utterances in language.splits.items():
            splits[name] += sorted(utterances, key=lambda utterance: utterance.key)
        rejected += language.rejected
    if options.dev_utterances == 0 and not splits["dev"]:  # the user wants no dev set
        del splits["dev"]
    for name, utterances in splits.items():
        if not utterances:
            _refuse_tables_without_rows(name, languages.values())
    return write_corpus(
        options.out,
        splits,
        rejected,
        facts={
            "corpus": "commonvoice",
            "options": recorded_options(options),
            "num_incomplete": checker.count_incomplete(splits),
        },
        langs=facts_of_lang,
        max_rejected=options.max_rejected,
    )


def _check_test_fraction(test_fraction: float, *, most: int) -> None:
    """Raise ConfigError if no language gets a test clip.

    `most`: the number of clips of the language that has the most.
    """
    if int(most * test_fraction) > 0:
        return
    found = f"no test clip, a language has at most {most} usable clips"
    to_do = "give more clips"
    if most > 1:
        # The smallest fraction of two decimals by which the largest language gets a test clip.
        min_fraction = math.ceil(100 / most) / 100
        to_do += f", or at least --test_fraction {min_fraction:g}"
    raise ConfigError(f"--test_fraction {test_fraction:g}", found, to_do)


def _refuse_tables_without_rows(name: str, languages: Iterable[Language]) -> None:
    """Raise DataError if the set `name` is empty because its tables in the release have no rows.

    The error names all of these tables.
    """
    tables = [
        language.without_rows[name] for language in languages if name in language.without_rows
    ]
    if tables:
        without_dev = "leave the dev set out with --dev_utterances 0, or " if name == "dev" else ""
        to_do = f"{without_dev}divide validated.tsv with --split paper"
        names = list_names([*map(str, tables)])
        raise DataError(names, f"no row, so no utterance is left for the {name} set", to_do)


# ---- the tables of a release


def find_language_folders(corpus: Path, langs: Sequence[str]) -> dict[str, Path]:
    """The folder of each language: CORPUS/<lang> or CORPUS/cv-corpus-*/<lang>.

    Raises DataError, one line for each language that is missing or found twice.
    """
    if not corpus.is_dir():
        layout = "one folder per language that contains validated.tsv and clips/"
        to_do = f"--corpus is the folder of a Common Voice release, with {layout}"
        raise DataError(corpus, "no such folder", to_do)
    if (corpus / "validated.tsv").is_file():
        to_do = f"give the folder above: --corpus {corpus.parent} --langs {corpus.name}"
        raise DataError(corpus, "the folder of one language", to_do)
    folders = {}
    faults = []
    for lang in langs:
        candidates = [corpus / lang, *sorted(corpus.glob(f"cv-corpus-*/{lang}"))]
        existing = [folder for folder in candidates if folder.is_dir()]
        if len(existing) == 1:
            folders[lang] = existing[0]
        elif existing:
            names = [folder.name for folder in existing]
            found = f"language {lang!r} is there {len(existing)} times ({names})"
            faults.append(f"{corpus}: {found}; keep one release")
        else:
            listed = list_names(_list_languages(corpus)) or "nothing"
            found = f"no folder {lang!r} of a Common Voice release"
            faults.append(f"{corpus}: {found}; found: {listed}")
    if faults:
        raise DataError("\n".join(faults))
    return folders


def _list_languages(corpus: Path) -> list[str]:
    """The names of folders with a validated.tsv; if there is none, of all files and folders."""
    languages = [table.parent.name for table in sorted(corpus.glob("*/validated.tsv"))]
    return languages or [path.name for path in sorted(corpus.iterdir())]


def _read_language(folder: Path, lang: str, split: str, checker: ClipChecker) -> Language:
    """All utterances of a language, with durations: all in `train`, or in the sets of the release.

    Args:
        split: `paper`: the rows of validated.tsv are `train`; `released`: test.tsv, dev.tsv and
            train.tsv are the sets. A clip in two of them is rejected in the later one.
    Raises DataError when a table is missing, or no clip can be used to train.
    """
    table_of_set = {"train": "validated"}
    if split == "released":
        table_of_set = {name: name for name in ("test", "dev", "train")}
    language = Language(lang)
    used_keys: set[str] = set()
    for name, table in table_of_set.items():
        path = folder / f"{table}.tsv"
        if split == "released" and not path.exists() and (folder / "validated.tsv").is_file():
            raise DataError(path, "no such file", "divide validated.tsv with --split paper")
        num_rejected_before = len(language.rejected)
        rows = read_release_table(path, language)
        has_rejected_rows = len(language.rejected) > num_rejected_before
        if not rows and not has_rejected_rows:
            language.without_rows[name] = path
        utterances, rejected = checker.check(rows, f"{lang}: durations", mode="none")
        language.rejected += rejected
        for utterance in utterances:
            if utterance.key in used_keys:
                tables = ", ".join(sorted(table_of_set))
                language.reject(utterance, f"repeated: this clip is in two of {tables}")
            else:
                language.splits[name].append(utterance)
        used_keys.update(utterance.key for utterance in language.splits[name])
    if not language.splits["train"]:
        if split == "released":
            _refuse_tables_without_rows("train", [language])
        raise _make_no_usable_clip_error(folder, language)
    return language


def _make_no_usable_clip_error(folder: Path, language: Language) -> DataError:
    """The error for a language without a usable clip, by the reasons why they cannot be used."""
    kinds = count_kinds(language.rejected)
    listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "it has none"
    to_do = f"leave {language.lang} out of --langs"
    are_all_missing = list(kinds) == ["missing"]
    if are_all_missing:
        to_do = f"unpack the clips of the release into {folder / 'clips'}, or {to_do}"
    return DataError(folder, f"no clip of this language can be used ({listed})", to_do)


def read_release_table(path: Path, language: Language) -> list[Utterance]:
    """The rows of one table with normalised transcripts.

    Unusable rows are added to the rejected clips of the language with a reason, removed characters
    to its count. Durations are None if the release does not give them. Raises DataError when the
    table is missing, or lacks a column.
    """
    clips = path.parent / "clips"
    durations = _read_durations(path.parent / "clip_durations.tsv")
    header, rows = _read_tsv(path)
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        found = f"no column {missing[0]!r} (has: {', '.join(header)})"
        raise DataError(f"{path}:1", found, "check that --corpus is a Common Voice release")
    utterances: dict[str, Utterance] = {}
    lang = language.lang
    for number, row in enumerate(rows, start=2):
        where = f"{lang}:{path.name}:{number}"
        if isinstance(row, str):  # why the row cannot be read
            language.rejected.append(Rejected(key=where, path="", reason=row, lang=lang))
            continue
        client_id, name, sentence = (row[header.index(column)] for column in COLUMNS)
        if name and "." not in name:  # the first releases omit the suffix
            name += ".mp3"
        wav = str(clips / name) if name else ""
        text, removed = normalize_counted(sentence, lang)
        language.removed += removed
        key = _make_key(name, lang)
        is_repeated = key in utterances
        reason = _find_row_fault(name, sentence, text)
        if reason is None and is_repeated:
            reason = "repeated: this clip is on an earlier line"
        if reason is not None:
            # The clip is named by its line if it has no name, or one that another clip has.
            has_own_name = bool(name) and not is_repeated
            name_of_rejected = key if has_own_name else where
            language.rejected.append(
                Rejected(key=name_of_rejected, path=wav, reason=reason, lang=lang)
            )
            continue
        utterances[key] = Utterance(
            key=key,
            wav=wav,
            txt=text,
            lang=lang,
            duration=durations.get(name),
            speaker=client_id or None,
        )
    return [*utterances.values()]


def _read_tsv(path: Path) -> tuple[list[str], Iterator[list[str] | str]]:
    """The names of the columns, and the rows, which are read when they are asked for.

    A row is the list of its values, or a text that says why it cannot be read: it is no UTF-8, or
    has another number of values than the first line.

    Raises DataError when the file is missing or no text.
    """
    try:
        with path.open("rb") as file:
            lines = [raw.removesuffix(b"\n").removesuffix(b"\r") for raw in file]
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
        raise DataError(path, fault, "check that --corpus is a Common Voice release") from error
    lines = lines or [b""]  # an empty file has one column without a name
    binary_kind = describe_binary(lines[0])
    if binary_kind:
        raise DataError(path, binary_kind)
    first_line = lines[0].removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="backslashreplace")
    header = first_line.split("\t")

    def read_row(raw: bytes) -> list[str] | str:
        try:
            row = raw.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            return f"not UTF-8: byte {error.start} of the line"
        if len(row) != len(header):
            return f"wrong number of columns: {len(row)}, the header has {len(header)}"
        return row

    return header, map(read_row, lines[1:])


def _find_row_fault(name: str, sentence: str, text: str) -> str | None:
    """Why a row cannot be used, apart from its audio; None: it can be.

    Args:
        name: file name of the clip.
        sentence: the transcript as it is in the row.
        text: the transcript after normalisation.
    """
    if not name:
        return "no path"
    has_folder = any(separator in name for separator in "/\\")
    if has_folder or "\0" in name or name.startswith("."):
        return "path is not a file name"
    if len(sentence) > _MAX_SENTENCE:
        return f"transcript too long: {len(sentence)} characters, at most {_MAX_SENTENCE}"
    if not sentence.strip():
        return "empty transcript"
    if not text:
        return f"empty transcript after normalisation: {sentence!r}"
    return None


def _make_key(name: str, lang: str) -> str:
    """The clip's name without suffix, and with the language: two languages may use the same name."""
    stem = "_".join(name.rpartition(".")[0].split())
    return stem if stem.startswith(f"common_voice_{lang}_") else f"{lang}_{stem}"


def _read_durations(path: Path) -> dict[str, float]:
    """File name of each clip → its seconds, if the release gives them.

    Invalid values and rows that cannot be read are left out. Raises DataError for a table with
    other columns.
    """
    if not path.is_file():
        return {}
    header, rows = _read_tsv(path)
    if len(header) != 2 or header[0] != "clip" or not header[1].startswith("duration"):
        found = f"expected columns clip and duration[ms], found {', '.join(header)}"
        to_do = "restore the file, or remove it: then the clips give their durations"
        raise DataError(f"{path}:1", found, to_do)
    durations: dict[str, float] = {}
    for row in rows:
        if isinstance(row, str):  # why the row cannot be read
            continue
        name, duration_ms = row
        try:
            seconds = round(float(duration_ms) / 1000.0, 3)
        except ValueError:
            continue
        if 0.0 < seconds < math.inf:  # False for NaN
            durations[name] = seconds
    return durations


# ---- the sets


def _divide_into_sets(
    language: Language, wanted_h: float, options: CommonVoiceOptions, checker: ClipChecker
) -> int:
    """Make the three sets of a language: clips checked, `wanted_h` hours in train.

    The sets of a release stay as they are, apart from these hours. Changes `language`.

    Returns: how many test clips were wanted. Fewer are a warning.
    """
    splits = language.splits
    num_test_wanted = len(splits["test"])
    if options.split == "paper":
        num_pool = len(splits["train"])
        num_test_wanted = min(int(num_pool * options.test_fraction), options.max_test)
        _hold_out(language, "test", num_test_wanted, options.seed, max_loss=_MAX_LOSS_TEST)
        num_dev = options.dev_utterances
        if num_dev is None:
            num_dev = _choose_dev_size(splits["train"], wanted_h)
        _hold_out(language, "dev", num_dev, options.seed, max_loss=_MAX_LOSS_DEV)
    for name in ("test", "dev"):
        splits[name], rejected = checker.check(splits[name], f"{language.lang}: {name} clips")
        language.rejected += rejected
    ordered = shuffled(splits["train"], options.seed, "train")
    splits["train"] = _take_hours(ordered, wanted_h, language, checker)
    num_test = len(splits["test"])
    if num_test < num_test_wanted:
        message = (
            "%s: %d of %d test clips; the others would put their sentence into the training set, "
            "or are faulty (rejected.tsv)"
        )
        logger.warning(message, language.lang, num_test, num_test_wanted)
    return num_test_wanted


def _choose_dev_size(pool: Sequence[Utterance], wanted_h: float) -> int:
    """The number of utterances of the dev set: 5 % of the training utterances, 1 to 1000.

    Training uses `wanted_h` hours of the pool, or all of it if it has fewer hours.
    """
    share = min(1.0, wanted_h / hours_of(pool)) if pool else 0.0
    num_dev = round(_DEV_SHARE * share * len(pool))
    return min(_DEV_LIMIT, max(1, num_dev))


def _hold_out(language: Language, name: str, size: int, seed: int, *, max_loss: float) -> None:
    """Move at most `size` utterances from `train` to the set `name`; see `hold_out`.

    Others are rejected, because they would put a speaker or sentence of this set into `train`.
    """
    held, rest, left_out = hold_out(
        language.splits["train"], size, seed=seed, purpose=name, max_loss=max_loss
    )
    language.splits[name] = held
    language.splits["train"] = rest
    for utterance, reason in left_out:
        language.reject(utterance, reason, is_fault=False)


def _take_hours(
    ordered: Sequence[Utterance], wanted_h: float, language: Language, checker: ClipChecker
) -> list[Utterance]:
    """The first usable utterances with `wanted_h` hours in total, to the nearest utterance.

    Clips are checked in batches that would fill the hours. In place of faulty clips the next ones
    are taken. Faulty clips, and all clips after the hours are reached, are rejected.
    """
    taken: list[Utterance] = []
    position = 0
    while True:
        missing_s = (wanted_h - hours_of(taken)) * 3600.0
        batch = list[Utterance]()
        while position < len(ordered):
            utterance = ordered[position]
            duration_s = utterance.duration or 0.0
            if missing_s < duration_s / 2:  # without it the sum is nearer to the hours
                break
            batch.append(utterance)
            missing_s -= duration_s
            position += 1
        if not batch:
            break
        usable, rejected = checker.check(batch, f"{language.lang}: train clips")
        taken += usable
        language.rejected += rejected
    reason = "not sampled: the hours of this language are reached"
    for utterance in ordered[position:]:
        language.reject(utterance, reason, is_fault=False)
    return taken
