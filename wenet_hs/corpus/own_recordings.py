# SPDX-License-Identifier: Apache-2.0
"""Data lists of a user's own recordings, from the entries of any form.

`prepare_entries` makes utterances of the entries, checks their audio, leaves out what the user
excludes or what overlaps, divides the rest into sets and writes the lists. Sets that the data give
are kept. Where test or dev is absent, it is held out from train (`own_sets.py`).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import normpath
from typing import Any

from wenet_hs.base.options import recorded_options
from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.corpus.edits import ADDED, EXCLUDED, leave_out_held, read_added, reject_excluded
from wenet_hs.corpus.entries import Entry, RecordingOptions, find_split, make_utterances
from wenet_hs.corpus.output import (
    SPLITS,
    Rejected,
    count_kinds,
    find_overlaps,
    plain_text,
    record_corpus,
    write_corpus,
    write_rejected,
)
from wenet_hs.corpus.own_sets import describe_common, hold_out_sets
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

_REMEDY_OF_EQUAL_TEXTS = {
    "table": 'name the column of the transcripts: --columns "text=…"',
    "elan": "name the tier of the transcripts with --tier",
    "praat": "name the tier of the transcripts with --tier",
}
"""What to do if all transcripts are equal, by the form of the data."""


def prepare_entries(
    options: RecordingOptions,
    form: str,
    entries: Iterable[Entry | Rejected],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the lists of the entries. Returns the content of `stats.json`.

    The usable utterances are collected and divided into sets. The utterances that the user adds
    go into train, except those of recordings or speakers of test and dev. rejected.tsv
    is written before the sets are made and again with the lists, because making them may raise.

    Args:
        form: name of the form, such as `elan`.
        facts: what `stats.json` also contains.
    Raises DataError when all transcripts are equal, too few utterances are left, no utterance of a
        set of the data can be used, or `--out` has another corpus.
    """
    source = normpath(options.corpus)
    record_corpus(options.out, f"{form} {source}")
    entries = list(entries)
    named = make_utterances(options, entries)
    checker = options.make_checker()
    collected = _collect_utterances(options, checker, named.utterances)
    rejected = [*named.rejected, *collected.rejected]
    write_rejected(options.out, rejected)

    _refuse_equal_transcripts(collected.usable, form, source)
    if not options.ignore_sets:
        _refuse_unusable_sets(options, entries, collected.usable, named.set_of_key)
    sets = _divide_into_sets(options, collected.usable, named.set_of_key, rejected)
    added, not_for_training = leave_out_held(collected.added, sets.splits)
    facts_of_added = dict[str, int]()
    if (options.out / ADDED).is_file():
        facts_of_added = {"num_added": len(added)}
        sets = _add_to_training(options, sets, added)

    all_rejected = [*rejected, *sets.left_out, *not_for_training]
    # This is the order of the languages in `stats.json`. A language may be repeated here.
    langs = [u.lang or "" for u in (*collected.usable, *named.utterances, *added)]
    langs += [clip.lang for clip in all_rejected]
    return write_corpus(
        options.out,
        sets.splits,
        all_rejected,
        facts={
            "corpus": form,
            "source": source,
            **facts,
            "options": recorded_options(options, RecordingOptions),
            **facts_of_added,
            "sets": sets.summary,
            "made_sets": sets.made_names,
            "num_incomplete": checker.count_incomplete(sets.splits),
        },
        langs={lang: {} for lang in langs},  # there are no facts of single languages
        max_rejected=options.max_rejected,
        unit=options.unit,
    )


# ---- utterances that can be used


@dataclass(frozen=True)
class _CollectedUtterances:
    """The utterances whose audio can be used, without those that the user does not want."""

    usable: list[Utterance]
    """The utterances of the data."""
    added: list[Utterance]
    """The utterances of added.tsv."""
    rejected: list[Rejected]
    """The others of both."""


def _collect_utterances(
    options: RecordingOptions, checker: ClipChecker, utterances: Sequence[Utterance]
) -> _CollectedUtterances:
    """The usable ones of the utterances of the data, and the usable ones that the user adds.

    Two files of the user in the output folder are read, if they exist: added.tsv has utterances to
    add to the training set, and exclude.txt names utterances of both kinds to leave out. With
    --drop_overlaps, utterances of the data that overlap others are rejected too.
    """
    usable, faulty = checker.check(utterances, "clips")
    added, unusable_added = _make_added(options, checker)
    excluded = reject_excluded([*usable, *added], options.out / EXCLUDED)
    usable = _remove_rejected(usable, excluded)
    added = _remove_rejected(added, excluded)
    overlapping = _find_overlapping(usable, options)
    usable = _remove_rejected(usable, overlapping)
    rejected = [*faulty, *unusable_added, *excluded, *overlapping]
    return _CollectedUtterances(usable, added, rejected)


def _remove_rejected(
    utterances: Sequence[Utterance], rejected: Sequence[Rejected]
) -> list[Utterance]:
    """The utterances that are not among the rejected ones."""
    rejected_keys = {clip.key for clip in rejected}
    return [utterance for utterance in utterances if utterance.key not in rejected_keys]


# ---- speech that the user adds


def _make_added(
    options: RecordingOptions, checker: ClipChecker
) -> tuple[list[Utterance], list[Rejected]]:
    """The usable utterances of OUT/added.tsv, and the rows that cannot be used.

    Their audio is checked. Keys begin with `added-`, so that they differ from those of the corpus.
    """
    rows = read_added(options.out / ADDED)
    entries = [_read_added_row(options, number, row) for number, row in rows]
    named = make_utterances(options, entries)
    utterances = [replace(u, key=f"added-{u.key}") for u in named.utterances]
    usable, faulty = checker.check(utterances, "added clips")
    return usable, named.rejected + faulty


def _read_added_row(
    options: RecordingOptions, number: int, row: Mapping[str, str]
) -> Entry | Rejected:
    """The entry of one line of added.tsv, or why the line cannot be used; an empty cell is absent."""
    where = f"{ADDED}:{number}"
    try:
        start = float(row["start"]) if row.get("start") else None
        end = float(row["end"]) if row.get("end") else None
    except ValueError:
        reason = "times: start and end must be numbers of seconds"
        return Rejected(key=where, path=row["audio"], reason=reason, lang=row.get("lang", ""))
    return Entry(
        where=where,
        audio=(row["audio"],),
        folder=options.out,
        txt=row["text"],
        lang=row.get("lang") or None,
        speaker=row.get("speaker") or None,
        start=start,
        end=end,
        channel=row.get("channel") or None,
    )


# ---- checks of all utterances together


def _find_overlapping(utterances: Sequence[Utterance], options: RecordingOptions) -> list[Rejected]:
    """The utterances to leave out because they overlap others, as rejected.

    Both utterances of a pair are left out with --drop_overlaps, and none without it. In both cases
    overlapping.tsv is written, one line per overlap, and the number of its utterances is logged.
    """
    overlaps = list(find_overlaps(utterances))
    keys = {overlap.earlier.key for overlap in overlaps}
    keys |= {overlap.later.key for overlap in overlaps}
    table = options.out / "overlapping.tsv"
    lines = [
        f"{overlap.earlier.key}\t{overlap.later.key}\t{overlap.start:.3f}\t{overlap.end:.3f}\n"
        for overlap in overlaps
    ]
    write_atomic(table, "key\tother\tfrom\tto\n" + "".join(lines))
    if keys:
        what_is_done = "they are kept; --drop_overlaps leaves them out"
        if options.drop_overlaps:
            what_is_done = "they are left out"
        message = "%s: %d annotations overlap others of their recording; %s"
        logger.info(message, table, len(keys), what_is_done)
    if not options.drop_overlaps:
        return []
    overlapping = [utterance for utterance in utterances if utterance.key in keys]
    reason = "overlaps another annotation"
    return [Rejected.of(utterance, reason, is_fault=False) for utterance in overlapping]


def _refuse_equal_transcripts(utterances: Sequence[Utterance], form: str, source: str) -> None:
    """Raise DataError if all of several utterances have the same text.

    Then the transcripts are probably in another tier or column. `source` is the corpus.
    """
    texts = {utterance.txt for utterance in utterances}
    if len(utterances) > 1 and len(texts) == 1:
        remedy = _REMEDY_OF_EQUAL_TEXTS.get(form, "give the transcript of each clip")
        raise DataError(source, f"all {len(utterances)} transcripts are {texts.pop()!r}", remedy)


def _refuse_unusable_sets(
    options: RecordingOptions,
    entries: Iterable[Entry | Rejected],
    usable: Sequence[Utterance],
    set_of_key: Mapping[str, str],
) -> None:
    """Raise DataError if the data have a test or dev set of which no utterance can be used.

    Otherwise another set would be held out in its place, and the user would not notice.
    """
    written_names = {entry.split for entry in entries if isinstance(entry, Entry) and entry.split}
    data_names = {find_split(name) for name in written_names}
    usable_names = {set_of_key.get(utterance.key) for utterance in usable}
    for name in ("test", "dev"):
        if name in data_names and name not in usable_names:
            raise DataError(
                normpath(options.corpus),
                f"no utterance of the {name} set of the data can be used",
                f"see {options.out / 'rejected.tsv'}, or make sets with --ignore_sets",
            )


# ---- sets


@dataclass(frozen=True)
class _DividedSets:
    """The sets of own recordings."""

    splits: dict[str, list[Utterance]]
    """The utterances of each set, in the order of their keys."""
    left_out: list[Rejected]
    """The utterances in no set."""
    made_names: list[str]
    """The names of the sets that were held out from train; the others are sets of the data."""
    summary: str
    """How the sets were made and what they have in common, in one line."""


def _divide_into_sets(
    options: RecordingOptions,
    utterances: Sequence[Utterance],
    set_of_key: Mapping[str, str],
    rejected: Sequence[Rejected],
) -> _DividedSets:
    """Divide utterances into train, dev and test. Logs how it was done.

    Sets of the data are kept; test and dev are held out from train where they are absent. If the
    data give sets, utterances without a set are left out. With `--split_by off` there is one set,
    train.

    Args:
        set_of_key: key of an utterance → its set, where the data give it; empty: they give none.
        rejected: what was left out before; named if too few utterances are left.
    Raises DataError when train has too few utterances, after rejected.tsv is written, and when
        `--split_by off` excludes sets of the data.
    """
    if options.split_by == "off":
        return _make_one_set(options, utterances, set_of_key)
    splits, without_set = _use_sets_of_data(utterances, set_of_key)
    left_out = _leave_out_without_set(without_set)
    absent_names = [name for name in ("test", "dev") if not splits[name]]
    min_utterances = len(absent_names) + 1  # one for each absent set, and one to train on
    if len(splits["train"]) < min_utterances:
        all_rejected = [*rejected, *left_out]
        write_rejected(options.out, all_rejected)  # the error names this file
        raise _make_too_few_error(options, splits, set_of_key, all_rejected)

    # Sentences that differ only in case and punctuation are one sentence. So the texts are compared
    # without them, and the result has the texts as they were.
    plain_splits = _make_texts_plain(splits, options.unit)
    rule = "given"  # all sets are those of the data
    left_out_as_common = list[Rejected]()  # so that sets have no sentence or speaker in common
    if absent_names:
        share_of = {"test": options.test_share, "dev": options.dev_share}
        made_splits, left_out_as_common, rule = hold_out_sets(
            plain_splits["train"],
            {name: share_of[name] for name in absent_names},
            split_by=options.split_by,
            seed=options.seed,
        )
        plain_splits |= made_splits  # they also have the rest of train
    summary = (
        f"sets ({rule}): {describe_common(plain_splits)} in several sets; "
        f"{len(left_out_as_common)} utterances left out for that"
    )
    logger.info(summary)
    return _DividedSets(
        splits=_restore_texts(plain_splits, utterances),
        left_out=left_out + left_out_as_common,
        made_names=absent_names,
        summary=summary,
    )


def _use_sets_of_data(
    utterances: Sequence[Utterance], set_of_key: Mapping[str, str]
) -> tuple[dict[str, list[Utterance]], list[Utterance]]:
    """The sets that the data give, and the utterances for which they give none.

    If the data give no sets at all (`set_of_key` is empty), all utterances are in train.
    """
    splits: dict[str, list[Utterance]] = {name: [] for name in SPLITS}
    without_set = list[Utterance]()
    for utterance in utterances:
        if not set_of_key:
            splits["train"].append(utterance)
        elif utterance.key in set_of_key:
            splits[set_of_key[utterance.key]].append(utterance)
        else:
            without_set.append(utterance)
    return splits, without_set


def _make_texts_plain(
    splits: Mapping[str, Sequence[Utterance]], unit: str
) -> dict[str, list[Utterance]]:
    """The sets with texts that can be compared, without upper case and punctuation."""
    plain_splits = dict[str, list[Utterance]]()
    for name, utterances in splits.items():
        plain_splits[name] = [replace(u, txt=plain_text(u, unit)) for u in utterances]
    return plain_splits


def _restore_texts(
    plain_splits: Mapping[str, Sequence[Utterance]], utterances: Sequence[Utterance]
) -> dict[str, list[Utterance]]:
    """The sets in the order of their keys, with the texts that `utterances` have."""
    utterance_of_key = {u.key: u for u in utterances}
    splits = dict[str, list[Utterance]]()
    for name, plain_utterances in plain_splits.items():
        keys = sorted(u.key for u in plain_utterances)
        splits[name] = [utterance_of_key[key] for key in keys]
    return splits


def _make_one_set(
    options: RecordingOptions, utterances: Sequence[Utterance], set_of_key: Mapping[str, str]
) -> _DividedSets:
    """All utterances as train, and no other set.

    Raises DataError if the data give sets: utterances to test on would be trained on.
    """
    if set_of_key:
        counts = Counter(set_of_key.values())
        listed = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        raise DataError(
            normpath(options.corpus),
            f"--split_by off: the data give sets ({listed})",
            "leave it out, or add --ignore_sets for one list of all",
        )
    summary = "sets (off): one list of all utterances"
    logger.info(summary)
    train = sorted(utterances, key=lambda utterance: utterance.key)
    return _DividedSets(splits={"train": train}, left_out=[], made_names=[], summary=summary)


def _leave_out_without_set(without_set: Sequence[Utterance]) -> list[Rejected]:
    """The utterances without a set, where others have one, as lines of rejected.tsv; logs them."""
    reason = "no set: other utterances have one; give each a set, or none"
    left_out = [Rejected.of(utterance, reason, is_fault=False) for utterance in without_set]
    if left_out:
        message = "%d utterances have no set, others have one: they are left out; --ignore_sets makes sets of all"
        logger.info(message, len(left_out))
    return left_out


def _make_too_few_error(
    options: RecordingOptions,
    splits: Mapping[str, Sequence[Utterance]],
    set_of_key: Mapping[str, str],
    rejected: Sequence[Rejected],
) -> DataError:
    """The error if train has too few utterances to train on, and to hold out the absent sets.

    It names the sets of the data, what was left out, and --audio_dir if audio was not found.
    """
    names_to_fill = ["train", *(name for name in ("test", "dev") if not splits[name])]
    num_train = len(splits["train"])
    sets_of_data = ""
    if set_of_key:
        sizes = ", ".join(f"{name} {len(utterances)}" for name, utterances in splits.items())
        sets_of_data = f"the data give sets ({sizes}); --ignore_sets makes others; "
    name_folder = ""
    if any(clip.reason.startswith("missing") for clip in rejected):
        name_folder = "name the folder of the audio with --audio_dir; "
    repair = ""
    if rejected:
        kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(rejected).items())
        repair = f"left out: {kinds}, see {options.out / 'rejected.tsv'}; repair these, or "
    usable = f"{num_train} usable utterances for {', '.join(names_to_fill)}"
    return DataError(
        normpath(options.corpus),
        f"{sets_of_data}{usable}: too few for a recogniser",
        f"{name_folder}{repair}give more data",
    )


def _add_to_training(
    options: RecordingOptions, sets: _DividedSets, added: Sequence[Utterance]
) -> _DividedSets:
    """The sets with the added utterances at the end of train; logs their number.

    The summary then also states what the sets have in common after the utterances are added.
    """
    message = "%s: %d utterances are added to the training set; the others are in rejected.tsv"
    logger.info(message, options.out / ADDED, len(added))
    if not added:
        return sets
    splits = sets.splits | {"train": [*sets.splits["train"], *added]}
    common = describe_common(_make_texts_plain(splits, options.unit))
    summary = f"{sets.summary}; with the {len(added)} added: {common} in several sets"
    return replace(sets, splits=splits, summary=summary)
