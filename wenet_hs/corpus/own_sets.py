# SPDX-License-Identifier: Apache-2.0
"""Sets of a user's own recordings (--split_by), where the data name none.

Whole groups of utterances, such as those of one speaker, are held out from train. With `auto` the
rules of a list are tried, and the first that leaves out few utterances is used.

Utterances of one recording may overlap. A chain of overlaps has all utterances that share audio: if
a overlaps b, and b overlaps c, then a, b and c are one chain.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from wenet_hs.corpus.output import Rejected, find_overlaps
from wenet_hs.corpus.splits import UNKNOWN, hold_out, hold_out_groups
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError

SplitBy = Literal["auto", "speaker", "sentence", "none", "off"]
MAX_LOSS = 0.1
"""Share of the utterances that `--split_by auto` may leave out so that sets share no sentence and
few speakers.
"""
_Chains = Mapping[str, str]
"""Key of an utterance that overlaps another one → key of the first utterance of its chain."""


# ---- rules: which utterances belong into one set


def _group_alone(utterance: Utterance, _chains: _Chains) -> str:
    """Each utterance is a group of its own."""
    return utterance.key


def _group_by_speaker(utterance: Utterance, _chains: _Chains) -> str | None:
    """The utterances of one speaker are a group; those without a speaker are in none."""
    return utterance.speaker or None


def _group_by_sentence(utterance: Utterance, _chains: _Chains) -> str:
    """The utterances with one transcript are a group."""
    return utterance.txt


def _group_by_overlap(utterance: Utterance, chains: _Chains) -> str:
    """The utterances of a chain of overlaps are a group, and so is each other utterance."""
    return chains.get(utterance.key, utterance.key)


@dataclass(frozen=True, kw_only=True)
class SetRule:
    """A rule by which sets are made: all utterances of a group are in one set."""

    name: str
    """As in --split_by; `overlaps` is only used by `auto`."""
    groups: str
    """What the groups are, for messages."""
    group_of: Callable[[Utterance, _Chains], str | None]
    """Returns the group of an utterance; None: its group is not known, so it is in train."""
    is_audio_apart: bool = False
    """Whether utterances are left out if they share audio with another set."""

    def find_groups(self, utterances: Sequence[Utterance], chains: _Chains) -> dict[str, str]:
        """Key of each utterance that has a group → its group."""
        groups = dict[str, str]()
        for utterance in utterances:
            group = self.group_of(utterance, chains)
            if group is not None:
                groups[utterance.key] = group
        return groups


SPEAKERS_AND_SENTENCES = SetRule(
    name="auto", groups="utterances", group_of=_group_alone, is_audio_apart=True
)
"""No common sentence and audio, and few common speakers; see `splits.hold_out`.

Example: Ana reads the sentences 1 to 50, Ben reads 51 to 100, and only Ben is in test. The rule is
tried if any speaker is known. It is the only one that keeps no groups together: its groups are only
counted.
"""
SENTENCES_AND_AUDIO = SetRule(
    name="sentence", groups="different sentences", group_of=_group_by_sentence, is_audio_apart=True
)
"""Whole sentences, and no common audio. Example: all recordings of `mo lu` are in one set."""
OVERLAPS = SetRule(name="overlaps", groups="utterances without overlap", group_of=_group_by_overlap)
"""Whole chains of overlaps. Example: question and answer of two people who interrupt each other."""
SENTENCES = SetRule(name="sentence", groups="different sentences", group_of=_group_by_sentence)
"""Whole sentences. The same audio may be in two sets. Example: all of a recording overlaps."""
SPEAKERS = SetRule(name="speaker", groups="known speakers", group_of=_group_by_speaker)
"""Whole speakers. Utterances without a speaker are in train. It is used if the user names it."""
UTTERANCES = SetRule(name="none", groups="utterances", group_of=_group_alone)
"""Single utterances, at random."""

AUTO_RULES = (SPEAKERS_AND_SENTENCES, SENTENCES_AND_AUDIO, OVERLAPS, SENTENCES, UTTERANCES)
"""The rules that `--split_by auto` tries, in this order."""
_NAMED_RULES: dict[SplitBy, SetRule] = {
    "speaker": SPEAKERS,
    "sentence": SENTENCES,
    "none": UTTERANCES,
}


def _list_rules(split_by: SplitBy, utterances: Sequence[Utterance]) -> list[SetRule]:
    """The rules to try for a value of --split_by, in order."""
    if split_by != "auto":
        return [_NAMED_RULES[split_by]]
    has_speakers = any(utterance.speaker for utterance in utterances)
    return [rule for rule in AUTO_RULES if has_speakers or rule is not SPEAKERS_AND_SENTENCES]


# ---- sets


class HeldOutSets(NamedTuple):
    """The sets that were made."""

    splits: dict[str, list[Utterance]]
    """Name of the set → its utterances; train is the last one."""
    left_out: list[Rejected]
    """The utterances in none of the sets, with the reason."""
    rule: str
    """The rule that was used, for the user: `speaker`, or `auto: sentence`."""


def hold_out_sets(
    utterances: Sequence[Utterance], shares: Mapping[str, float], *, split_by: SplitBy, seed: int
) -> HeldOutSets:
    """Divide utterances into the sets of `shares` and train, by the first rule that can be used.

    A rule cannot be used if its groups are fewer than the sets, or if it leaves out more than the
    share `MAX_LOSS` of the utterances.

    Args:
        shares: name of each set but train → about which share of all utterances it gets.
        split_by: not `off`, which makes no sets.
        seed: of the order in which speakers, sentences and utterances are held out.
    Raises ConfigError if no rule can be used.
    """
    num_sets = len(shares) + 1  # train is not in `shares`
    sizes = {name: max(1, round(share * len(utterances))) for name, share in shares.items()}
    chains = _find_chains(utterances)  # which utterances share audio
    cause = ""  # why the last rule that was tried cannot be used
    for rule in _list_rules(split_by, utterances):
        groups = rule.find_groups(utterances, chains)
        num_groups = len({*groups.values()})
        # This is all that the last rule of `auto`, and each rule that the user names, requires:
        # they leave out nothing.
        if num_groups < num_sets:
            cause = f"{num_groups} {rule.groups} for {num_sets} sets"
            continue
        splits, left_out = _divide_by_rule(utterances, rule, groups, sizes, chains, seed)
        if len(left_out) <= MAX_LOSS * len(utterances):
            used_rule = rule.name if rule.name == split_by else f"{split_by}: {rule.name}"
            return HeldOutSets(splits, left_out, used_rule)
    raise ConfigError(f"--split_by {split_by}", cause, "use another way, such as none")


def _divide_by_rule(
    utterances: Sequence[Utterance],
    rule: SetRule,
    groups: Mapping[str, str],
    sizes: Mapping[str, int],
    chains: _Chains,
    seed: int,
) -> tuple[dict[str, list[Utterance]], list[Rejected]]:
    """The sets by one rule, with train as the last one, and the utterances in none of them.

    Args:
        groups: key of each utterance that has a group → its group. The others are in train.
        sizes: name of each set but train → about how many utterances it gets.
        chains: chains of overlaps, for a rule by which sets share no audio.
        seed: of the order in which utterances and groups are held out.
    """
    remaining = [utterance for utterance in utterances if utterance.key in groups]
    without_group = [utterance for utterance in utterances if utterance.key not in groups]
    splits = dict[str, list[Utterance]]()
    left_out = list[tuple[Utterance, str]]()
    for index, (name, size) in enumerate(sizes.items()):
        if rule is SPEAKERS_AND_SENTENCES:
            splits[name], remaining, in_neither = _hold_out_speakers(
                remaining, size, seed=seed, purpose=name
            )
            left_out += in_neither
        else:
            splits[name], remaining = hold_out_groups(
                remaining,
                size,
                lambda utterance: groups[utterance.key],
                keep=len(sizes) - index,  # a group for each set that is filled later, and for train
                seed=seed,
                purpose=name,
            )
        if rule.is_audio_apart:
            remaining, with_common_audio = _divide_by_audio(remaining, splits[name], chains)
            reason = f"its audio is in the {name} set"
            left_out += [(utterance, reason) for utterance in with_common_audio]
    splits["train"] = remaining + without_group
    rejected = [Rejected.of(utterance, reason, is_fault=False) for utterance, reason in left_out]
    return splits, rejected


def _hold_out_speakers(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str
) -> tuple[list[Utterance], list[Utterance], list[tuple[Utterance, str]]]:
    """What `hold_out` returns, where all utterances without a speaker count as those of one person.

    This may indeed be so. The utterances that are returned have no speaker, as before.
    """
    utterance_of_key = {utterance.key: utterance for utterance in utterances}
    filled = [_fill_speaker(utterance) for utterance in utterances]
    held_out, rest, in_neither = hold_out(
        filled, size, seed=seed, purpose=purpose, max_loss=MAX_LOSS
    )
    return (
        [utterance_of_key[utterance.key] for utterance in held_out],
        [utterance_of_key[utterance.key] for utterance in rest],
        [(utterance_of_key[utterance.key], reason) for utterance, reason in in_neither],
    )


def _fill_speaker(utterance: Utterance) -> Utterance:
    """The utterance, with the speaker `UNKNOWN` if it has none."""
    return utterance if utterance.speaker else replace(utterance, speaker=UNKNOWN)


def _divide_by_audio(
    rest: Sequence[Utterance], held_out: Sequence[Utterance], chains: _Chains
) -> tuple[list[Utterance], list[Utterance]]:
    """The utterances of `rest` that share no audio with those held out, and those that share some.

    Utterances share audio if they are of one chain of overlaps.
    """
    used_chains = {chains[utterance.key] for utterance in held_out if utterance.key in chains}
    with_other_audio = [u for u in rest if chains.get(u.key) not in used_chains]
    with_common_audio = [u for u in rest if chains.get(u.key) in used_chains]
    return with_other_audio, with_common_audio


def _find_chains(utterances: Sequence[Utterance]) -> dict[str, str]:
    """Key of each utterance that overlaps another one → key of the first utterance of its chain.

    The overlaps of a recording are in the order of their beginnings, and an utterance is the later
    one of at most one of them. So when an earlier utterance is met, its chain is known already, or
    it is the first one of a new chain.
    """
    first_of_chain = dict[str, str]()
    for overlap in find_overlaps(utterances):
        first_key = first_of_chain.setdefault(overlap.earlier.key, overlap.earlier.key)
        first_of_chain[overlap.later.key] = first_key
    return first_of_chain


# ---- what the sets have in common


def describe_common(splits: Mapping[str, Sequence[Utterance]]) -> str:
    """The numbers of speakers, sentences and chains of overlaps that are in several sets.

    Example: `0 of 4 speakers (3 utterances have no speaker), 1 of 20 sentences, no overlaps`.
    """
    all_utterances = list(itertools.chain.from_iterable(splits.values()))
    chains = _find_chains(all_utterances)
    speakers = [{u.speaker for u in utterances} for utterances in splits.values()]
    sentences = [{u.txt for u in utterances} for utterances in splits.values()]
    overlaps = [{chains.get(u.key) for u in utterances} for utterances in splits.values()]
    common_speakers = _count_common(speakers, "speakers", none="no known speakers")
    num_unknown = sum(u.speaker is None for u in all_utterances)
    if 0 < num_unknown < len(all_utterances):
        common_speakers += f" ({num_unknown} utterances have no speaker)"
    common_sentences = _count_common(sentences, "sentences", none="no sentences")
    common_overlaps = _count_common(overlaps, "overlaps", none="no overlaps")
    return f"{common_speakers}, {common_sentences}, {common_overlaps}"


def _count_common(values_of_sets: Sequence[Set[str | None]], what: str, *, none: str) -> str:
    """How many values are in several sets, as `1 of 20 sentences`; without values the text `none`.

    None does not count: it is the speaker of utterances without a speaker, and the chain of those
    that overlap no other utterance.
    """
    num_sets_of_value = Counter(itertools.chain.from_iterable(values_of_sets))
    num_sets_of_value.pop(None, None)
    if not num_sets_of_value:
        return none
    num_common = sum(num > 1 for num in num_sets_of_value.values())
    return f"{num_common} of {len(num_sets_of_value)} {what}"
