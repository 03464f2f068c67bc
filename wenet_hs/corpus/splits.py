# SPDX-License-Identifier: Apache-2.0
"""Hold out utterances so that no speaker and no sentence of theirs is left among the others, where the data allow it.

Every choice is an order by a hash of the seed and a name, so it depends neither on the order of the corpus's files nor
on Python's random generator.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from wenet_hs.manifest import Utterance


@dataclass(frozen=True)
class HeldOut:
    """Utterances shared out; together they are the input."""

    held: list[Utterance]
    rest: list[Utterance]
    left_out: list[tuple[Utterance, str]]
    """Neither: with the reason. They would carry a held-out speaker or sentence into the rest."""


def rank(seed: int, purpose: str, name: str) -> bytes:
    """A random but reproducible sort key for a name; another purpose gives an independent order."""
    return hashlib.blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8).digest()


def shuffled(utterances: Iterable[Utterance], seed: int, purpose: str) -> list[Utterance]:
    """The utterances in the order of their ranks."""
    return sorted(utterances, key=lambda utterance: (rank(seed, purpose, utterance.key), utterance.key))


def hold_out(utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float = 0.5) -> HeldOut:
    """Choose about `size` utterances, at most that many, as the set `purpose`.

    Whole speakers are chosen, those with few utterances before the others; then the sentences of the chosen set are
    taken from the rest. Each of the two may cost at most a share `max_loss` of the utterances. Where it would cost
    more, a speaker is shared between both sets, and sentences that too many others read are left out of the chosen set.
    Only when every chosen sentence is as common as that do sentences stand in both.
    """
    speakers, shared = _choose_speakers(utterances, size, seed=seed, purpose=purpose, max_loss=max_loss)
    order = {speaker: position for position, speaker in enumerate(speakers)}
    chosen = shuffled((utterance for utterance in utterances if _speaker(utterance) in order), seed, purpose)
    chosen.sort(key=lambda utterance: order[_speaker(utterance)])  # stable, so only the last speaker is cut
    held = chosen[:size]
    left_out = [(utterance, f"its speaker is in the {purpose} set") for utterance in chosen[size:]]
    rest = [utterance for utterance in utterances if _speaker(utterance) not in order]
    if shared is not None:
        more, rest = _from_shared_speaker(rest, shared, size - len(held), seed=seed, purpose=purpose)
        held += more
    sentences = _affordable_sentences(held, rest, int(max_loss * len(rest)), seed=seed, purpose=purpose)
    if sentences:
        left_out += [
            (u, f"too many others read its sentence for the {purpose} set") for u in held if u.txt not in sentences
        ]
        left_out += [(u, f"its sentence is in the {purpose} set") for u in rest if u.txt in sentences]
        held = [utterance for utterance in held if utterance.txt in sentences]
        rest = [utterance for utterance in rest if utterance.txt not in sentences]
    return HeldOut(held=held, rest=rest, left_out=left_out)


def overlaps(splits: Mapping[str, Sequence[Utterance]]) -> dict[str, dict[str, int]]:
    """For each two sets, as `train-test`: how many speakers and sentences stand in both."""
    result = {}
    for first, second in combinations(splits, 2):
        speakers = _speakers(splits[first]) & _speakers(splits[second])
        sentences = {u.txt for u in splits[first]} & {u.txt for u in splits[second]}
        result[f"{first}-{second}"] = {"speakers": len(speakers), "sentences": len(sentences)}
    return result


def _speakers(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.speaker for utterance in utterances if utterance.speaker is not None}


def _speaker(utterance: Utterance) -> tuple[bool, str]:
    """Who speaks; an utterance of an unknown speaker stands for itself."""
    return (True, utterance.speaker) if utterance.speaker is not None else (False, utterance.key)


def _choose_speakers(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float
) -> tuple[list[tuple[bool, str]], tuple[bool, str] | None]:
    """Whole speakers with at least `size` utterances together, or as many as may be lost and one speaker to share."""
    counts = Counter(_speaker(utterance) for utterance in utterances)
    chosen: list[tuple[bool, str]] = []
    num_chosen = 0
    for speaker in sorted(counts, key=lambda s: (counts[s], rank(seed, f"{purpose} speaker", s[1]), s)):
        if num_chosen >= size:
            break
        if num_chosen + counts[speaker] > max(size, max_loss * len(utterances)):
            return chosen, speaker
        chosen.append(speaker)
        num_chosen += counts[speaker]
    return chosen, None


def _from_shared_speaker(
    others: Sequence[Utterance], speaker: tuple[bool, str], size: int, *, seed: int, purpose: str
) -> tuple[list[Utterance], list[Utterance]]:
    """Utterances of one speaker who stays in the rest as well; by sentences, so that few of these are shared."""
    by_sentence: dict[str, list[Utterance]] = defaultdict(list)
    for utterance in others:
        if _speaker(utterance) == speaker:
            by_sentence[utterance.txt].append(utterance)
    taken: list[Utterance] = []
    for sentence in sorted(by_sentence, key=lambda txt: (rank(seed, f"{purpose} sentence", txt), txt)):
        if len(taken) >= size:
            break
        taken += shuffled(by_sentence[sentence], seed, purpose)[: size - len(taken)]
    keys = {utterance.key for utterance in taken}
    return taken, [utterance for utterance in others if utterance.key not in keys]


def _affordable_sentences(
    held: Sequence[Utterance], rest: Sequence[Utterance], budget: int, *, seed: int, purpose: str
) -> set[str]:
    """The sentences of `held` that fewest of the rest read, together at most `budget` utterances."""
    costs = Counter(utterance.txt for utterance in rest)
    kept: set[str] = set()
    for sentence in sorted({u.txt for u in held}, key=lambda t: (costs[t], rank(seed, f"{purpose} sentence", t), t)):
        budget -= costs[sentence]
        if budget < 0:
            break
        kept.add(sentence)
    return kept
