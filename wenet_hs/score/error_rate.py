# SPDX-License-Identifier: Apache-2.0
"""Error rates of a set of utterances: a language, macro and micro average, with nothing left out silently."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from wenet_hs.errors import DataError
from wenet_hs.score.confusions import ConfusionReport
from wenet_hs.score.edit_distance import ErrorCounts, count_errors
from wenet_hs.score.summary import Grouping, LanguageScore, MacroScore, ScoredUtterance, summarize
from wenet_hs.score.units import Rules, units_of

ALL = "all"  # the one line of a report without languages
ALLOW_EXTRA = "score it against its own reference, or allow them (--allow_extra)"
_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that is known of one scoring; `wenet_hs.score.table` prints it, `wenet_hs.score.record` keeps it as JSON."""

    name: str
    """What was scored, in the user's words; may be empty."""
    rules: Rules
    signature: str
    languages: dict[str, LanguageScore]
    macro: MacroScore
    micro: LanguageScore
    missing: tuple[str, ...]
    """Keys without a hypothesis, which count as deletions."""
    extra: tuple[str, ...]
    """Keys of hypotheses without a reference, which count nowhere."""
    utterances: dict[str, ScoredUtterance]
    num_resamples: int
    by: dict[str, Grouping] = field(default_factory=dict)
    """The same by "speaker" or "length", where asked for (`wenet_hs.score.groups`)."""
    confusions: ConfusionReport | None = None
    """The most confused pairs, where asked for."""

    def format(self, tables: Sequence[str] = ()) -> str:
        """The report as plain text: a table for each of `tables` ("lang" and the names in `by`; default all)."""
        from wenet_hs.score.table import format_report

        return format_report(self, tables)

    def to_json(self) -> str:
        """The report as JSON text, which `wenet_hs.score.record.read_report` reads again."""
        from wenet_hs.score.record import to_json

        return to_json(self)


def error_rate(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> ErrorCounts:
    """The pooled counts of (reference units, hypothesis units) pairs; `.rate` is the error rate."""
    return sum((count_errors(ref, hyp) for ref, hyp in pairs), ErrorCounts())


def check_keys(
    reference: Set[str],
    hypothesis: Set[str],
    *,
    names: tuple[str, str],
    allow_extra: bool = False,
    remedy: str = ALLOW_EXTRA,
) -> None:
    """Refuse an empty reference, and hypotheses that no reference asks for.

    `names` are what a message calls the two, `remedy` is what it advises against hypotheses too many.

    Raises DataError: a rate over another set of utterances than asked for would look like a result.
    """
    check_same_test(reference, hypothesis, names=names)
    extra = sorted(hypothesis - reference)
    if extra and not allow_extra:
        raise DataError(extra_line(extra, names, remedy))


def check_same_test(reference: Set[str], hypothesis: Set[str], *, names: tuple[str, str]) -> None:
    """Refuse an empty reference, and one that has no utterance in common with the hypotheses."""
    if not reference:
        raise DataError(f"{names[0]}: no utterances in it; check that it is the reference")
    if hypothesis and not hypothesis & reference:
        raise DataError(
            f"{names[1]}: no utterance of {names[0]} among its {count_of(len(hypothesis), 'hypothesis', 'hypotheses')} "
            f"({name_some(sorted(hypothesis))}); score it against its own reference"
        )


def extra_line(extra: Sequence[str], names: tuple[str, str], remedy: str = ALLOW_EXTRA) -> str:
    """What is said of hypotheses, by key, that no reference asks for."""
    return (
        f"{names[1]}: {count_of(len(extra), 'hypothesis', 'hypotheses')} for utterances that {names[0]} lacks "
        f"({name_some(extra)}); {remedy}"
    )


def score(
    reference: Mapping[str, str],
    hypothesis: Mapping[str, str],
    *,
    rules: Rules,
    langs: Mapping[str, str] | None = None,
    name: str = "",
    allow_extra: bool = False,
    num_resamples: int = 1000,
) -> Report:
    """Score transcripts by key. Keys themselves are never scored.

    Args:
      reference, hypothesis: transcript of each key, normalised alike as `rules` say.
      langs: language of each key; without it there is one line, "all".
      num_resamples: of the bootstrap; 0 for no intervals.

    Raises DataError for an empty reference, a key without a language, and (unless `allow_extra`) a hypothesis too many.
    """
    check_keys(reference.keys(), hypothesis.keys(), names=("the reference", "the hypotheses"), allow_extra=allow_extra)
    if num_resamples < 0:
        raise ValueError(f"num_resamples is {num_resamples}, must be at least 0")
    of_key = _languages(reference, langs)
    utterances = {key: _scored(of_key[key], text, hypothesis.get(key), rules) for key, text in reference.items()}
    by_language = summarize(utterances, of_key, num_resamples)
    return Report(
        name=name,
        rules=rules,
        signature=rules.signature(by_language.groups if langs is not None else ()),
        languages=by_language.groups,
        macro=by_language.macro,
        micro=by_language.micro,
        missing=tuple(sorted(reference.keys() - hypothesis.keys())),
        extra=tuple(sorted(hypothesis.keys() - reference.keys())),
        utterances=utterances,
        num_resamples=num_resamples,
    )


def _scored(lang: str, ref: str, hyp: str | None, rules: Rules) -> ScoredUtterance:
    units = units_of(ref, rules, lang)
    others = units if hyp == ref else units_of(hyp or "", rules, lang)
    return ScoredUtterance(lang, ref, hyp, count_errors(units, others))


def _languages(reference: Mapping[str, str], langs: Mapping[str, str] | None) -> Mapping[str, str]:
    if langs is None:
        return dict.fromkeys(reference, ALL)
    unknown = sorted(key for key in reference if key not in langs)
    if unknown:
        raise DataError(
            f"the languages: {count_of(len(unknown), 'reference utterance')} without one ({name_some(unknown)}); "
            "take the data.list that the reference was made from"
        )
    return langs


def count_of(number: int, singular: str, plural: str = "") -> str:
    """A number and its noun: `1 utterance`, `1,200 utterances`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def name_some(keys: Sequence[str]) -> str:
    """The first few keys, for a message of one line."""
    return ", ".join(keys[:_MAX_NAMED]) + (f", and {len(keys) - _MAX_NAMED:,} more" if len(keys) > _MAX_NAMED else "")
