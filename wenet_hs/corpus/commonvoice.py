# SPDX-License-Identifier: Apache-2.0
"""Common Voice, prepared as in the paper (section 3.1): a test set per language, then downsampling
by λ_i.

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
_DEV_SHARE, _DEV_LIMIT = 0.05, 1000
_MOST_REMOVED = 30


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
        super().__post_init__()
        check_langs(self.langs)
        for name, value, least in (
            ("max_test", self.max_test, 1),
            ("dev_utterances", self.dev_utterances or 0, 0),
        ):
            if value < least:
                raise ValueError(f"{name} {value}: must be at least {least}")
        if not 0.0 < self.test_fraction < 1.0 and self.split == "paper":
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
    """The tables that have no row, by the name of their set."""
    removed: Counter[str] = field(default_factory=Counter)
    """Characters that the normaliser removed from the transcripts."""

    def reject(self, utterance: Utterance, reason: str, *, is_fault: bool = True) -> None:
        """Leave an utterance out."""
        self.rejected.append(Rejected(utterance.key, utterance.wav, reason, self.lang, is_fault))


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
    ratio = (
        options.ratio if options.hours is None else ratio_for(sum(hours.values()), options.hours)
    )
    ratios = sampling_ratios(hours, alpha=options.alpha, ratio=ratio)
    splits: dict[str, list[Utterance]] = {name: [] for name in SPLITS}
    rejected: list[Rejected] = []
    langs: dict[str, dict[str, Any]] = {}
    for lang, language in languages.items():
        wanted_h = ratios[lang] * hours[lang]
        test_wanted = _divide(language, wanted_h, options, checker)
        sizes = {"hours_before": hours[lang], "lambda": ratios[lang], "hours_wanted": wanted_h}
        langs[lang] = {name: round(value, 6) for name, value in sizes.items()}
        langs[lang]["test_wanted"] = test_wanted
        langs[lang]["removed_characters"] = most_frequent(language.removed, _MOST_REMOVED)
        for name, utterances in language.splits.items():
            splits[name] += sorted(utterances, key=lambda utterance: utterance.key)
        rejected += language.rejected
    if options.dev_utterances == 0 and not splits["dev"]:
        del splits["dev"]
    for name in splits:
        if not splits[name]:
            _refuse_tables_without_rows(name, languages.values())
    num_incomplete = checker.count_incomplete(splits)
    facts = {
        "corpus": "commonvoice",
        "options": recorded_options(options),
        "num_incomplete": num_incomplete,
    }
    return write_corpus(
        options.out, splits, rejected, facts, langs, max_rejected=options.max_rejected
    )


def _check_test_fraction(test_fraction: float, *, most: int) -> None:
    """Raise ConfigError if no language gets a test clip; `most`: the clips of the largest one."""
    if int(most * test_fraction) > 0:
        return
    found = f"no test clip, a language has at most {most} usable clips"
    to_do = "give more clips"
    if most > 1:
        to_do += f", or at least --test_fraction {math.ceil(100 / most) / 100:g}"
    raise ConfigError(f"--test_fraction {test_fraction:g}", found, to_do)


def _refuse_tables_without_rows(name: str, languages: Iterable[Language]) -> None:
    """Raise DataError if tables of a release without rows are the reason why a set is empty."""
    of_languages = (language.without_rows.get(name) for language in languages)
    tables = [table for table in of_languages if table]
    if tables:
        without_dev = "leave the dev set out with --dev_utterances 0, or " if name == "dev" else ""
        to_do = f"{without_dev}divide validated.tsv with --split paper"
        names = list_names([*map(str, tables)])
        raise DataError(names, f"no row, so no utterance is left for the {name} set", to_do)


def find_language_folders(corpus: Path, langs: Sequence[str]) -> dict[str, Path]:
    """The folder of each language: CORPUS/<lang> or CORPUS/cv-corpus-*/<lang>.

    Raises DataError, one line for each language that is missing or found twice.
    """
    if not corpus.is_dir():
        layout = "one folder per language that contains validated.tsv and clips/"
        raise DataError(
            corpus,
            "no such folder",
            f"--corpus is the folder of a Common Voice release, with {layout}",
        )
    if (corpus / "validated.tsv").is_file():
        to_do = f"give the folder above: --corpus {corpus.parent} --langs {corpus.name}"
        raise DataError(corpus, "the folder of one language", to_do)
    folders, faults = {}, []
    for lang in langs:
        candidates = [corpus / lang, *sorted(corpus.glob(f"cv-corpus-*/{lang}"))]
        found = [folder for folder in candidates if folder.is_dir()]
        if len(found) == 1:
            folders[lang] = found[0]
        elif found:
            names = [folder.name for folder in found]
            faults.append(
                f"{corpus}: language {lang!r} is there {len(found)} times ({names}); keep one release"
            )
        else:
            names = [folder.parent.name for folder in sorted(corpus.glob("*/validated.tsv"))]
            names = names or [path.name for path in sorted(corpus.iterdir())]
            found_names = list_names(names) or "nothing"
            faults.append(
                f"{corpus}: no folder {lang!r} of a Common Voice release; found: {found_names}"
            )
    if faults:
        raise DataError("\n".join(faults))
    return folders


def read_release_table(path: Path, language: Language) -> list[Utterance]:
    """The rows of one table with normalised transcripts; unusable rows are rejected with a reason.

    Durations are None if the release does not give them. Raises DataError when the table is
    missing, or lacks a column.
    """
    clips = path.parent / "clips"
    durations = _read_durations(path.parent / "clip_durations.tsv")
    header, rows = _read_tsv(path)
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        found = f"no column {missing[0]!r} (has: {', '.join(header)})"
        raise DataError(f"{path}:1", found, "check that --corpus is a Common Voice release")
    utterances: dict[str, Utterance] = {}
    lang, rejected = language.lang, language.rejected
    for number, row in enumerate(rows, start=2):
        where = f"{lang}:{path.name}:{number}"
        if isinstance(row, str):
            rejected.append(Rejected(where, "", row, lang))
            continue
        client_id, name, sentence = (row[header.index(column)] for column in COLUMNS)
        name = (
            name if "." in name or not name else f"{name}.mp3"
        )  # the first releases omit the suffix
        text, removed = normalize_counted(sentence, lang)
        language.removed += removed
        key = _make_key(name, lang)
        reason = _row_fault(name, sentence, text)
        if reason is None and key in utterances:
            reason = "repeated: this clip is on an earlier line"
        if reason is not None:
            own_key = key if name and key not in utterances else where
            rejected.append(Rejected(own_key, str(clips / name) if name else "", reason, lang))
            continue
        wav, seconds, speaker = str(clips / name), durations.get(name), client_id or None
        utterances[key] = Utterance(
            key=key, wav=wav, txt=text, lang=lang, duration=seconds, speaker=speaker
        )
    return [*utterances.values()]


def _read_tsv(path: Path) -> tuple[list[str], Iterator[list[str] | str]]:
    """The names of the columns, and the values of each row or why the row cannot be read."""
    try:
        with path.open("rb") as file:
            lines = [raw.removesuffix(b"\n").removesuffix(b"\r") for raw in file] or [b""]
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
        raise DataError(path, fault, "check that --corpus is a Common Voice release") from error
    if found := describe_binary(lines[0]):
        raise DataError(path, found)
    header = (
        lines[0]
        .removeprefix(b"\xef\xbb\xbf")
        .decode("utf-8", errors="backslashreplace")
        .split("\t")
    )

    def read_row(raw: bytes) -> list[str] | str:
        try:
            row = raw.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            return f"not UTF-8: byte {error.start} of the line"
        if len(row) != len(header):
            return f"wrong number of columns: {len(row)}, the header has {len(header)}"
        return row

    return header, map(read_row, lines[1:])


def _row_fault(name: str, sentence: str, text: str) -> str | None:
    """Why a row cannot be used, apart from its audio."""
    if not name:
        return "no path"
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        return "path is not a file name"
    if len(sentence) > _MAX_SENTENCE:
        return f"transcript too long: {len(sentence)} characters, at most {_MAX_SENTENCE}"
    if not sentence.strip():
        return "empty transcript"
    return None if text else f"empty transcript after normalisation: {sentence!r}"


def _make_key(name: str, lang: str) -> str:
    """The clip's name without suffix; it contains the language, because two languages may use the
    same name.
    """
    stem = "_".join(name.rpartition(".")[0].split())
    return stem if stem.startswith(f"common_voice_{lang}_") else f"{lang}_{stem}"


def _read_durations(path: Path) -> dict[str, float]:
    """Seconds per clip, where the release gives them; an invalid value counts as not given."""
    if not path.is_file():
        return {}
    header, rows = _read_tsv(path)
    if len(header) != 2 or header[0] != "clip" or not header[1].startswith("duration"):
        found = f"expected columns clip and duration[ms], found {', '.join(header)}"
        to_do = "restore the file, or remove it: then the clips give their durations"
        raise DataError(f"{path}:1", found, to_do)
    durations: dict[str, float] = {}
    for row in rows:
        try:
            seconds = round(float(row[1]) / 1000.0, 3) if isinstance(row, list) else math.nan
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds > 0.0:
            durations[row[0]] = seconds
    return durations


def _read_language(folder: Path, lang: str, split: str, checker: ClipChecker) -> Language:
    """All utterances of the tables, with durations: in `train` for `paper`, in the three sets for
    `released`.
    """
    files = (
        {"train": "validated"}
        if split == "paper"
        else {name: name for name in ("test", "dev", "train")}
    )
    language = Language(lang)
    seen: set[str] = set()
    for name, file in files.items():
        path = folder / f"{file}.tsv"
        if split == "released" and not path.exists() and (folder / "validated.tsv").is_file():
            raise DataError(path, "no such file", "divide validated.tsv with --split paper")
        num_rejected = len(language.rejected)
        found = read_release_table(path, language)
        if not found and len(language.rejected) == num_rejected:
            language.without_rows[name] = path
        utterances, rejected = checker.check(found, f"{lang}: durations", mode="none")
        language.rejected += rejected
        for utterance in utterances:
            if utterance.key in seen:
                language.reject(
                    utterance, f"repeated: this clip is in two of {', '.join(sorted(files))}"
                )
            else:
                language.splits[name].append(utterance)
        seen.update(utterance.key for utterance in language.splits[name])
    if not language.splits["train"]:
        if split == "released":
            _refuse_tables_without_rows("train", [language])
        raise _make_no_usable_clip_error(folder, language)
    return language


def _make_no_usable_clip_error(folder: Path, language: Language) -> DataError:
    kinds = count_kinds(language.rejected)
    shown = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "it has none"
    to_do = f"leave {language.lang} out of --langs"
    if [*kinds] == ["missing"]:
        to_do = f"unpack the clips of the release into {folder / 'clips'}, or {to_do}"
    return DataError(folder, f"no clip of this language can be used ({shown})", to_do)


def _divide(
    language: Language, wanted_h: float, options: CommonVoiceOptions, checker: ClipChecker
) -> int:
    """Make the three sets of a language: clips checked, `wanted_h` hours in train.

    Returns: how many test clips were wanted. Fewer are a warning.
    """
    splits = language.splits
    num_wanted = len(splits["test"])
    if options.split == "paper":
        num_wanted = min(int(len(splits["train"]) * options.test_fraction), options.max_test)
        _hold_out(language, "test", num_wanted, options.seed, max_loss=0.5)
        share = min(1.0, wanted_h / hours_of(splits["train"])) if splits["train"] else 0.0
        size = min(_DEV_LIMIT, max(1, round(_DEV_SHARE * share * len(splits["train"]))))
        size = size if options.dev_utterances is None else options.dev_utterances
        # At most 10 % of the training pool are given up so that dev shares no sentence with train.
        _hold_out(language, "dev", size, options.seed, max_loss=0.1)
    for name in ("test", "dev"):
        splits[name], rejected = checker.check(splits[name], f"{language.lang}: {name} clips")
        language.rejected += rejected
    ordered = shuffled(splits["train"], options.seed, "train")
    splits["train"] = _take_hours(ordered, wanted_h, language, checker)
    if len(splits["test"]) < num_wanted:
        message = "%s: %d of %d test clips; the others would put their sentence into the training set, or are faulty"
        logger.warning(f"{message} (rejected.tsv)", language.lang, len(splits["test"]), num_wanted)
    return num_wanted


def _hold_out(language: Language, name: str, size: int, seed: int, *, max_loss: float) -> None:
    found = hold_out(language.splits["train"], size, seed=seed, purpose=name, max_loss=max_loss)
    language.splits[name], language.splits["train"], left_out = found
    for utterance, reason in left_out:
        language.reject(utterance, reason, is_fault=False)


def _take_hours(
    ordered: Sequence[Utterance], wanted_h: float, language: Language, checker: ClipChecker
) -> list[Utterance]:
    """The first usable utterances up to the hours, to the nearest utterance; faulty ones are
    replaced.
    """
    taken: list[Utterance] = []
    position = 0
    while True:
        wanted_s = (wanted_h - hours_of(taken)) * 3600.0
        batch = []
        while position < len(ordered) and wanted_s >= (ordered[position].duration or 0.0) / 2:
            batch.append(ordered[position])
            wanted_s -= ordered[position].duration or 0.0
            position += 1
        if not batch:
            break
        usable, rejected = checker.check(batch, f"{language.lang}: train clips")
        taken += usable
        language.rejected += rejected
    for utterance in ordered[position:]:
        language.reject(
            utterance, "not sampled: the hours of this language are reached", is_fault=False
        )
    return taken
