# SPDX-License-Identifier: Apache-2.0
"""Held-out sets that share no speaker and no sentence with the other utterances, where the data
allow it.

Every choice is an order by a hash of the seed and a name. It depends neither on the order of the
corpus's files nor on Python's random generator.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import normalize

_Speaker = tuple[bool, str]
"""(True, speaker) or, for an unknown speaker, (False, key of the utterance)."""


UNKNOWN = "\0unknown"
"""A speaker who may be several, or one of the others: the last to be held out."""


def rank(seed: int, purpose: str, name: str) -> bytes:
    """A random but reproducible sort key for a name; each purpose has an independent order."""
    return hashlib.blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8).digest()


def shuffled(utterances: Iterable[Utterance], seed: int, purpose: str) -> list[Utterance]:
    """The utterances in the order of their ranks."""
    return sorted(
        utterances, key=lambda utterance: (rank(seed, purpose, utterance.key), utterance.key)
    )


def hold_out(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float = 0.5
) -> tuple[list[Utterance], list[Utterance], list[tuple[Utterance, str]]]:
    """Choose at most `size` utterances as the set `purpose`.

    Whole speakers are chosen, those with few utterances first. Then the sentences of the chosen set
    are removed from the rest. Each step may cost at most a share `max_loss` of the utterances. If
    it would cost more, one speaker is shared between both sets, and sentences that too many others
    read are left out of the chosen set. Both sets share sentences only if every chosen sentence is
    that frequent.

    Returns: the chosen set, the rest, and the utterances in neither with the reason: they would put
        a chosen speaker or sentence into the rest.
    """
    speakers, shared = _choose_speakers(
        utterances, size, seed=seed, purpose=purpose, max_loss=max_loss
    )
    order = {speaker: position for position, speaker in enumerate(speakers)}
    chosen = shuffled(
        (utterance for utterance in utterances if _speaker(utterance) in order), seed, purpose
    )
    chosen.sort(
        key=lambda utterance: order[_speaker(utterance)]
    )  # stable, so only the last speaker is cut
    held = chosen[:size]
    left_out = [(utterance, f"its speaker is in the {purpose} set") for utterance in chosen[size:]]
    rest = [utterance for utterance in utterances if _speaker(utterance) not in order]
    if shared is not None:
        of_speaker = shuffled(
            (utterance for utterance in rest if _speaker(utterance) == shared), seed, purpose
        )
        # Sentence by sentence: both sets then share few of them.
        of_speaker.sort(
            key=lambda utterance: (rank(seed, f"{purpose} sentence", utterance.txt), utterance.txt)
        )
        held += of_speaker[: size - len(held)]
        keys = {utterance.key for utterance in held}
        rest = [utterance for utterance in rest if utterance.key not in keys]
    sentences = _affordable_sentences(
        held, rest, int(max_loss * len(rest)), seed=seed, purpose=purpose
    )
    if sentences:
        reason = f"too many others read its sentence for the {purpose} set"
        left_out += [(utterance, reason) for utterance in held if utterance.txt not in sentences]
        reason = f"its sentence is in the {purpose} set"
        left_out += [(utterance, reason) for utterance in rest if utterance.txt in sentences]
        held = [utterance for utterance in held if utterance.txt in sentences]
        rest = [utterance for utterance in rest if utterance.txt not in sentences]
    return held, rest, left_out


def hold_out_groups(
    utterances: Sequence[Utterance],
    size: int,
    group_of: Callable[[Utterance], str],
    *,
    keep: int,
    seed: int,
    purpose: str,
) -> tuple[list[Utterance], list[Utterance]]:
    """Choose whole groups with about `size` utterances in total as the set `purpose`, the smallest
    groups first.

    The `keep` largest groups are never chosen, one for each set that is still to be filled, and
    train.
    Returns: the chosen set and the rest.
    """
    counts = Counter(map(group_of, utterances))
    groups = sorted(counts, key=lambda group: (counts[group], rank(seed, purpose, group), group))[
        :-keep
    ]
    chosen: set[str] = set()
    num_chosen = 0
    for group in groups:
        if num_chosen and num_chosen + counts[group] / 2 > size:
            break
        chosen.add(group)
        num_chosen += counts[group]
    held = [utterance for utterance in utterances if group_of(utterance) in chosen]
    return held, [utterance for utterance in utterances if group_of(utterance) not in chosen]


def plain_text(utterance: Utterance, unit: str) -> str:
    """The sentence to compare: upper case and punctuation make no other one.

    Phones are as they are.
    """
    return utterance.txt if unit == "phone" else normalize(utterance.txt, utterance.lang)


def count_shared(
    splits: Mapping[str, Sequence[Utterance]], unit: str = "char"
) -> dict[str, dict[str, int]]:
    """For each pair of sets, such as `train-test`: the number of speakers and sentences in both."""
    speakers = {
        name: {u.speaker for u in utterances} - {None} for name, utterances in splits.items()
    }
    sentences = {
        name: {plain_text(u, unit) for u in utterances} for name, utterances in splits.items()
    }
    return {
        f"{a}-{b}": {
            "speakers": len(speakers[a] & speakers[b]),
            "sentences": len(sentences[a] & sentences[b]),
        }
        for a, b in combinations(splits, 2)
    }


def _speaker(utterance: Utterance) -> _Speaker:
    return (True, utterance.speaker) if utterance.speaker is not None else (False, utterance.key)


def _choose_speakers(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float
) -> tuple[list[_Speaker], _Speaker | None]:
    """Whole speakers with at least `size` utterances in total, or as many as may be lost, and one
    speaker to share.
    """
    counts = Counter(_speaker(utterance) for utterance in utterances)
    chosen: list[_Speaker] = []
    num_chosen = 0
    order = sorted(
        counts,
        key=lambda s: (s[1] == UNKNOWN, counts[s], rank(seed, f"{purpose} speaker", s[1]), s),
    )
    for speaker in order:
        if num_chosen >= size:
            break
        if num_chosen + counts[speaker] > max(size, max_loss * len(utterances)):
            return chosen, speaker
        chosen.append(speaker)
        num_chosen += counts[speaker]
    return chosen, None


def _affordable_sentences(
    held: Sequence[Utterance], rest: Sequence[Utterance], budget: int, *, seed: int, purpose: str
) -> set[str]:
    """The sentences of `held` that the fewest of the rest read, at most `budget` utterances in
    total.
    """
    costs = Counter(utterance.txt for utterance in rest)
    kept: set[str] = set()
    for sentence in sorted(
        {u.txt for u in held}, key=lambda t: (costs[t], rank(seed, f"{purpose} sentence", t), t)
    ):
        budget -= costs[sentence]
        if budget < 0:
            break
        kept.add(sentence)
    return kept
