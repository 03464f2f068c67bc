# SPDX-License-Identifier: Apache-2.0
"""Sets of a user's own recordings (--split_by), where the data name none.

Utterances of one recording may overlap. A chain of overlaps is a set of utterances that share
audio, also by way of others.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from wenet_hs.corpus.output import Rejected, find_overlaps
from wenet_hs.corpus.splits import UNKNOWN, hold_out, hold_out_groups
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError

SplitBy = Literal["auto", "speaker", "sentence", "none", "off"]
MAX_LOSS = 0.1
"""Share of the utterances that `--split_by auto` may leave out so that sets share no sentence and
few speakers.
"""


def hold_out_sets(
    utterances: Sequence[Utterance], shares: Mapping[str, float], *, split_by: SplitBy, seed: int
) -> tuple[dict[str, list[Utterance]], list[Rejected], str]:
    """The sets of these shares and train, the utterances in none, and the rule that was used.

    `auto`: no common sentence and audio and few common speakers, if that costs at most `MAX_LOSS`
    of the utterances in all. Otherwise, and without known speakers, whole sentences and no common
    audio at this cost, whole chains of overlaps, whole sentences, single utterances.
    """
    chains = _chains(utterances)
    groups: dict[str, tuple[str, Callable[[Utterance], str]]] = {
        "speaker": ("known speakers", lambda u: u.speaker or ""),
        "sentence": ("different sentences", lambda u: u.txt),
        "overlaps": ("utterances without overlap", lambda u: chains.get(u.key, u.key)),
    }
    sizes = {name: max(1, round(share * len(utterances))) for name, share in shares.items()}
    rules: list[tuple[str, bool]] = [(split_by, False)]
    if split_by == "auto":
        rules = [("sentence", True), ("overlaps", False), ("sentence", False), ("none", False)]
        if any(u.speaker for u in utterances):
            rules.insert(0, ("auto", True))
    for rule, is_apart in rules:
        what, group_of = groups.get(rule, ("utterances", lambda u: u.key))
        unknown = [u for u in utterances if rule == "speaker" and not u.speaker]
        rest = [u for u in utterances if rule != "speaker" or u.speaker]
        num_groups = len({group_of(u) for u in rest})
        if num_groups <= len(shares):
            continue
        if rule == "auto":  # those without a name may all be one person
            rest = [u if u.speaker else replace(u, speaker=UNKNOWN) for u in rest]
        held, rest, lost = _hold_out_by(
            rule, rest, sizes, group_of, chains if is_apart else {}, seed
        )
        own = {u.key: u for u in utterances}
        held, rest = (
            {name: [own[u.key] for u in us] for name, us in held.items()},
            [own[u.key] for u in rest],
        )
        if len(lost) <= MAX_LOSS * len(utterances):
            used = rule if rule == split_by else f"{split_by}: {rule}"
            return {**held, "train": rest + unknown}, lost, used
    found = f"{num_groups} {what} for {1 + len(shares)} sets"
    raise ConfigError(f"--split_by {split_by}", found, "use another way, such as none")


def _hold_out_by(
    rule: str,
    utterances: Sequence[Utterance],
    sizes: Mapping[str, int],
    group_of: Callable[[Utterance], str],
    chains: Mapping[str, str],
    seed: int,
) -> tuple[dict[str, list[Utterance]], list[Utterance], list[Rejected]]:
    """The sets of these sizes, the rest, and the utterances in neither.

    No two share one of the `chains`.
    """
    held, rest, lost = dict[str, list[Utterance]](), list(utterances), list[Rejected]()
    for index, (name, size) in enumerate(sizes.items()):
        left_out = list[tuple[Utterance, str]]()
        if rule == "auto":
            held[name], rest, left_out = hold_out(
                rest, size, seed=seed, purpose=name, max_loss=MAX_LOSS
            )
        else:
            held[name], rest = hold_out_groups(
                rest, size, group_of, keep=len(sizes) - index, seed=seed, purpose=name
            )
        common = {chains.get(u.key) for u in held[name]} - {None}
        left_out += [
            (u, f"its audio is in the {name} set") for u in rest if chains.get(u.key) in common
        ]
        rest = [u for u in rest if chains.get(u.key) not in common]
        lost += [Rejected.of(u, reason, is_fault=False) for u, reason in left_out]
    return held, rest, lost


def _chains(utterances: Sequence[Utterance]) -> dict[str, str]:
    """Key of each utterance that overlaps others of its recording → key of the first one in their
    chain.
    """
    first = dict[str, str]()
    for earlier, later, _, _ in find_overlaps(utterances):
        first[later.key] = first.setdefault(earlier.key, earlier.key)
    return first


def describe_common(splits: Mapping[str, Sequence[Utterance]]) -> str:
    """The numbers of speakers, sentences and chains of overlapping utterances that several sets
    have.
    """
    chains = _chains([u for us in splits.values() for u in us])
    contents = {
        name: [(u.speaker, u.txt, chains.get(u.key)) for u in us] for name, us in splits.items()
    }
    common = []
    for index, (what, none) in enumerate(
        (("speakers", "known speakers"), ("sentences",) * 2, ("overlaps",) * 2)
    ):
        num_sets = Counter(
            one for us in contents.values() for one in {u[index] for u in us} - {None}
        )
        num_common = sum(num > 1 for num in num_sets.values())
        common.append(f"{num_common} of {len(num_sets)} {what}" if num_sets else f"no {none}")
    num_unknown = sum(u.speaker is None for us in splits.values() for u in us)
    if 0 < num_unknown < sum(map(len, splits.values())):
        common[0] += f" ({num_unknown} utterances have no speaker)"
    return ", ".join(common)
