# SPDX-License-Identifier: Apache-2.0
"""Tiers that seem to have codes, labels or titles in place of transcripts.

Toolbox and FLEx number or name the sentences in the tier with the times; the text is in tiers that
depend on it. Other tiers have codes because they annotate something else, such as gestures.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from os.path import commonprefix

from wenet_hs.annotation.tiers import AnnotationFile, Tier
from wenet_hs.corpus.pauses import is_pause_label
from wenet_hs.corpus.tier_facts import find_ancestors, find_parents
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_MIN_BEGINNING = 2
"""Letters that labels such as `story_a` have in common at their beginning."""
_MIN_ANNOTATIONS = 10
"""A tier with fewer annotations is not tested for codes: too few to tell."""
_MAX_CODES = 10
"""Different texts of a tier of codes, such as `LH`, `RH`, `BH` for the hands of a signer."""
_MIN_REPETITIONS = 5
"""How often each text of a tier of codes occurs on average."""


# ---- codes, labels or titles above the tiers of the transcripts


@dataclass(frozen=True)
class TierTexts:
    """The texts of the wanted tiers, and of the tiers that depend on them."""

    names: Sequence[str]
    """Of the wanted tiers, in the order of the files."""
    by_file: Sequence[Sequence[str]]
    """The texts of the wanted tiers of each file. Texts may be empty, and so may a file's list."""
    transcripts: Mapping[str, Sequence[str]]
    """Name → texts, of each dependent tier that has letters."""

    @property
    def texts(self) -> list[str]:
        """The texts of the wanted tiers in all files."""
        return list(chain.from_iterable(self.by_file))


def describe_identifiers(
    files: Sequence[AnnotationFile], is_wanted: Callable[[Tier], bool]
) -> str | None:
    """A message if the wanted tiers only identify sentences whose text is in tiers below them.

    This is so if one of `IDENTIFIER_RULES` holds. The message has an example of at most 40
    characters, and names the tiers below. None: no rule holds, the wanted tiers have no
    annotations, or no tier below has letters.
    """
    tiers = collect_texts(files, is_wanted)
    if not tiers.texts or not tiers.transcripts:
        return None
    if not any(rule(tiers) for rule in IDENTIFIER_RULES):
        return None
    names = list_names([repr(name) for name in tiers.names])
    dependent_tiers = _describe_transcripts(tiers.transcripts)
    return (
        f"tier {names} seems to have no transcripts but {tiers.texts[0]!r:.40}; "
        f"name the tiers of the transcripts with --tier; those that depend on it: {dependent_tiers}"
    )


def collect_texts(files: Sequence[AnnotationFile], is_wanted: Callable[[Tier], bool]) -> TierTexts:
    """The texts of the wanted tiers, and of the tiers at any depth below them."""
    wanted_names = dict[str, None]()  # a dict as a set that keeps the order
    texts_by_file = list[list[str]]()
    dependent = defaultdict[str, list[str]](list)
    for file in files:
        parents = find_parents(file)
        wanted_in_file = {tier.name for tier in file.tiers if is_wanted(tier)}
        texts_of_file = list[str]()
        for tier in file.tiers:
            texts = [text for _, _, text in tier.spans]
            if tier.name in wanted_in_file:
                wanted_names[tier.name] = None
                texts_of_file += texts
            elif wanted_in_file.intersection(find_ancestors(tier.name, parents)):
                dependent[tier.name] += texts
        texts_by_file.append(texts_of_file)
    transcripts = {name: texts for name, texts in dependent.items() if _have_letters(texts)}
    return TierTexts(names=list(wanted_names), by_file=texts_by_file, transcripts=transcripts)


def _have_letters(texts: Sequence[str]) -> bool:
    """Whether any of the texts has a letter."""
    return any(map(str.isalpha, "".join(texts)))


def _describe_transcripts(transcripts: Mapping[str, Sequence[str]]) -> str:
    """The dependent tiers, each with its first text of at most 40 characters: `'tx' ('mo lu')`."""
    descriptions = list[str]()
    for name, texts in transcripts.items():
        first_text = next(filter(str.strip, texts))  # there is one: the tier has letters
        descriptions.append(f"'{name}' ({first_text!r:.40})")
    return list_names(descriptions, most=12)


def have_codes(tiers: TierTexts) -> bool:
    """Rule: more than half of the texts are codes.

    Example: Toolbox numbers the sentences `001`, `002`; the text is in the dependent tier `tx`.
    """
    return look_like_codes(tiers.texts)


def have_labels(tiers: TierTexts) -> bool:
    """Rule: most files have labels, and a dependent tier mostly has several words per annotation.

    Example: the annotations of a file are `story_a`, `story_b`; the text below is `mo lu ke`.
    Files with one annotation do not count: a single text has nothing in common with others.
    Words of a language may begin with the same letters too, as verbs with a prefix do; `are_labels`
    tells them from labels.
    """
    filled_by_file = [list(filter(str.strip, texts)) for texts in tiers.by_file]
    files_with_several = [texts for texts in filled_by_file if len(texts) > 1]
    num_labelled = sum(map(are_labels, files_with_several))
    if num_labelled <= len(files_with_several) / 2:
        return False
    return any(map(_mostly_have_several_words, tiers.transcripts.values()))


def have_titles(tiers: TierTexts) -> bool:
    """Rule: there is at most one text per file, and a dependent tier has three times as many words.

    Example: each file has one annotation with the title of the story, and the sentences below it.
    """
    num_files = len(tiers.by_file)
    if len(tiers.texts) > num_files:
        return False
    most_words = max(map(_count_words, tiers.transcripts.values()))
    return most_words >= 3 * _count_words(tiers.texts)


IDENTIFIER_RULES = (have_codes, have_labels, have_titles)
"""Rules by which tiers only identify sentences; one that holds is enough.

They are asked only if the tiers have texts, and at least one dependent tier has letters.
"""


# ---- codes in a tier without dependent tiers


def report_codes(files: Sequence[AnnotationFile], used: Sequence[AnnotationFile]) -> None:
    """Warn of each used tier that seems to have codes, if no other tier depends on it.

    Codes are a few words that recur, or texts such as numbers. Labels of pauses do not count, and
    tiers with few annotations are not tested. Tiers on which others depend are left to
    `describe_identifiers`.

    `files`: with all tiers. `used`: the same files with only the tiers that are used.
    """
    names_of_parents = {tier.parent for file in files for tier in file.tiers}
    labels_by_name = defaultdict[str, list[str]](list)
    for file in used:
        for tier in file.tiers:
            if tier.name not in names_of_parents:
                labels_by_name[tier.name] += _list_labels(tier)
    for name, labels in labels_by_name.items():
        if len(labels) < _MIN_ANNOTATIONS:
            continue
        if recur_like_codes(labels) or look_like_codes(labels):
            counts = Counter(labels)
            examples = [f"{label!r:.40} ({num})" for label, num in counts.most_common()]
            logger.warning(
                "tier %r seems to have codes: %d annotations with %d different texts, %s; "
                "if they are not what is said, write the transcripts into a tier and name it with --tier",
                name,
                len(labels),
                len(counts),
                list_names(examples, most=4),
            )


def _list_labels(tier: Tier) -> list[str]:
    """The texts of a tier that are not empty, and no labels of pauses."""
    texts = [text.strip() for _, _, text in tier.spans]
    return [text for text in texts if text and not is_pause_label(text)]


def recur_like_codes(texts: Sequence[str]) -> bool:
    """Whether the texts are a few different single words that recur.

    There are at most `_MAX_CODES` different texts, and each occurs at least `_MIN_REPETITIONS`
    times on average. Example: 50 annotations of a signer's hands with `LH`, `RH` and `BH`.
    """
    different_texts = {*texts}
    max_different = min(_MAX_CODES, len(texts) / _MIN_REPETITIONS)
    if len(different_texts) > max_different:
        return False
    return all(map(_is_single_word, different_texts))


# ---- codes and labels


def look_like_codes(texts: Sequence[str]) -> bool:
    """Whether more than half of the texts are codes such as `12`, `text_03` or `***`."""
    num_codes = sum(map(is_code, texts))
    return num_codes > len(texts) / 2


def is_code(text: str) -> bool:
    """Whether a text has no letter, or has a digit and at most two words."""
    has_digit = any(map(str.isdigit, text))
    has_letter = any(map(str.isalpha, text))
    return not has_letter or (has_digit and len(text.split()) <= 2)


def are_labels(texts: Sequence[str]) -> bool:
    """Whether two or more texts are labels with a common beginning, and no words of a language.

    Labels are different single words that begin with the same letters, at least two. This beginning
    has an underscore (`story_intro`, `story_end`), or consecutive letters follow it (`story-a`,
    `story-b`, `story-c`).
    """
    are_different = len({*texts}) == len(texts)
    if not are_different or not all(map(_is_single_word, texts)):
        return False
    beginning = commonprefix([*texts])
    if sum(map(str.isalpha, beginning)) < _MIN_BEGINNING:
        return False
    rests = [text[len(beginning) :] for text in texts]
    return "_" in beginning or _are_consecutive_letters(rests)


def _are_consecutive_letters(texts: Sequence[str]) -> bool:
    """Whether three or more texts are letters such as a, b, c.

    Letters without upper and lower case, as those of Chinese, are words and do not count.
    """
    are_letters = all(len(text) == 1 and text.lower() != text.upper() for text in texts)
    if len(texts) < 3 or not are_letters:
        return False
    return all(ord(following) - ord(letter) == 1 for letter, following in pairwise(texts))


def _mostly_have_several_words(texts: Sequence[str]) -> bool:
    """Whether more than half of the texts have two or more words."""
    num_several = sum(len(text.split()) > 1 for text in texts)
    return num_several > len(texts) / 2


def _is_single_word(text: str) -> bool:
    return len(text.split()) == 1


def _count_words(texts: Sequence[str]) -> int:
    """The number of words in all texts together."""
    return len(" ".join(texts).split())
