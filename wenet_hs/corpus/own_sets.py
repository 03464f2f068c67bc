# SPDX-License-Identifier: Apache-2.0
"""Sets of a user's own recordings (--split_by), where the data name none.

Whole groups of utterances, such as those of one speaker, are held out from train. With `auto` the
rules of a list are tried, and the first that leaves out few utterances is used.

Utterances of one recording may overlap. A chain of overlaps is a set of utterances that share
audio, also by way of others.
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


def _own_group(utterance: Utterance, chains: _Chains) -> str:
    return utterance.key


def _speaker_group(utterance: Utterance, chains: _Chains) -> str | None:
    return utterance.speaker or None


def _sentence_group(utterance: Utterance, chains: _Chains) -> str:
    return utterance.txt


def _overlap_group(utterance: Utterance, chains: _Chains) -> str:
    return chains.get(utterance.key, utterance.key)


@dataclass(frozen=True, kw_only=True)
class SetRule:
    """A rule by which sets are made: all utterances of a group are in one set."""

    name: str
    """As in --split_by; `overlaps` is only used by `auto`."""
    groups: str
    """What the groups are, for messages."""
    group_of: Callable[[Utterance, _Chains], str | None]
    """The group of an utterance; None: it may be of any group, so it is in train."""
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
    name="auto", groups="utterances", group_of=_own_group, is_audio_apart=True
)
"""No common sentence and audio, and few common speakers; see `splits.hold_out`.

It is the only rule without groups. Example: Ana reads 1 to 50, Ben reads 51 to 100, and only Ben is
in test. It holds if any speaker is known.
"""
SENTENCES_AND_AUDIO = SetRule(
    name="sentence", groups="different sentences", group_of=_sentence_group, is_audio_apart=True
)
"""Whole sentences, and no common audio. Example: all recordings of `mo lu` are in one set."""
OVERLAPS = SetRule(name="overlaps", groups="utterances without overlap", group_of=_overlap_group)
"""Whole chains of overlaps. Example: question and answer of two people who interrupt each other."""
SENTENCES = SetRule(name="sentence", groups="different sentences", group_of=_sentence_group)
"""Whole sentences. Audio may be in two sets, as where all of a recording overlaps."""
SPEAKERS = SetRule(name="speaker", groups="known speakers", group_of=_speaker_group)
"""Whole speakers. Utterances without a speaker are in train. It is used if the user names it."""
UTTERANCES = SetRule(name="none", groups="utterances", group_of=_own_group)
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

    A rule cannot be used if it has fewer groups than there are sets, or if it leaves out more than
    `MAX_LOSS` of the utterances.

    Args:
        shares: name of each set but train → about which share of all utterances it gets.
        split_by: not `off`, which makes no sets.
        seed: of the order in which speakers, sentences and utterances are held out.
    Raises ConfigError if no rule can be used.
    """
    num_sets = len(shares) + 1  # train is not in `shares`
    sizes = {name: max(1, round(share * len(utterances))) for name, share in shares.items()}
    chains = _find_chains(utterances)
    rules = _list_rules(split_by, utterances)
    for rule in rules:
        groups = rule.find_groups(utterances, chains)
        num_groups = len({*groups.values()})
        if num_groups < num_sets:
            continue
        splits, left_out = _divide(utterances, rule, groups, sizes, chains, seed)
        if len(left_out) <= MAX_LOSS * len(utterances):
            used = rule.name if rule.name == split_by else f"{split_by}: {rule.name}"
            return HeldOutSets(splits, left_out, used)
    found = f"{num_groups} {rules[-1].groups} for {num_sets} sets"
    raise ConfigError(f"--split_by {split_by}", found, "use another way, such as none")


def _divide(
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
    utterance_of_key = {utterance.key: utterance for utterance in utterances}
    rest = [utterance for utterance in utterances if utterance.key in groups]
    without_group = [utterance for utterance in utterances if utterance.key not in groups]
    if rule is SPEAKERS_AND_SENTENCES:
        rest = list(map(_with_a_speaker, rest))
    splits = dict[str, list[Utterance]]()
    left_out = list[tuple[Utterance, str]]()
    for index, (name, size) in enumerate(sizes.items()):
        if rule is SPEAKERS_AND_SENTENCES:  # without groups: speakers are only kept apart if cheap
            held, rest, without_set = hold_out(
                rest, size, seed=seed, purpose=name, max_loss=MAX_LOSS
            )
            left_out += without_set
        else:
            held, rest = hold_out_groups(
                rest,
                size,
                lambda utterance: groups[utterance.key],
                keep=len(sizes) - index,  # one group for each set that follows, and for train
                seed=seed,
                purpose=name,
            )
        if rule.is_audio_apart:
            rest, with_common_audio = _divide_by_audio(rest, held, chains)
            reason = f"its audio is in the {name} set"
            left_out += [(utterance, reason) for utterance in with_common_audio]
        splits[name] = [utterance_of_key[utterance.key] for utterance in held]
    train = [utterance_of_key[utterance.key] for utterance in rest]  # with their own speakers
    splits["train"] = train + without_group
    rejected = [Rejected.of(utterance, reason, is_fault=False) for utterance, reason in left_out]
    return splits, rejected


def _with_a_speaker(utterance: Utterance) -> Utterance:
    """The utterance; if it has no speaker, with `UNKNOWN`: one person may speak all of these."""
    return utterance if utterance.speaker else replace(utterance, speaker=UNKNOWN)


def _divide_by_audio(
    rest: Sequence[Utterance], held: Sequence[Utterance], chains: _Chains
) -> tuple[list[Utterance], list[Utterance]]:
    """The utterances that share no audio with the held-out set, and those that do."""
    held_chains = {chains[utterance.key] for utterance in held if utterance.key in chains}
    apart = [utterance for utterance in rest if chains.get(utterance.key) not in held_chains]
    common = [utterance for utterance in rest if chains.get(utterance.key) in held_chains]
    return apart, common


def _find_chains(utterances: Sequence[Utterance]) -> dict[str, str]:
    """Key of each utterance that overlaps another one → key of the first utterance of its chain."""
    first_of_chain = dict[str, str]()
    for earlier, later, _, _ in find_overlaps(utterances):
        first_key = first_of_chain.setdefault(earlier.key, earlier.key)
        first_of_chain[later.key] = first_key
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

    The value None, of utterances without a speaker or overlap, does not count.
    """
    num_sets = Counter(itertools.chain.from_iterable(values_of_sets))
    del num_sets[None]
    if not num_sets:
        return none
    num_common = sum(num > 1 for num in num_sets.values())
    return f"{num_common} of {len(num_sets)} {what}"
