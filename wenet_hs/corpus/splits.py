# SPDX-License-Identifier: Apache-2.0
"""Held-out sets that share no speaker and no sentence with the other utterances, where the data
allow it.

Every choice is an order by a hash of the seed and a name. It depends neither on the order of the
corpus's files nor on Python's random generator.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from wenet_hs.manifest.data_list import Utterance

_Speaker = tuple[bool, str]
"""(True, name of the speaker), or (False, key of the utterance) if the speaker is not known.

So each utterance without a speaker has a speaker of its own, whose name equals no real name.
"""


UNKNOWN = "\0unknown"
"""Speaker of utterances that may be of several people, or of a named one. It is held out last."""


# ---- random orders


def rank(seed: int, purpose: str, name: str) -> bytes:
    """A random but reproducible sort key for a name; each purpose has an independent order."""
    return hashlib.blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8).digest()


def shuffled(utterances: Iterable[Utterance], seed: int, purpose: str) -> list[Utterance]:
    """The utterances in the order of their ranks."""
    return sorted(
        utterances, key=lambda utterance: (rank(seed, purpose, utterance.key), utterance.key)
    )


# ---- whole speakers and sentences


def hold_out(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float = 0.5
) -> tuple[list[Utterance], list[Utterance], list[tuple[Utterance, str]]]:
    """Choose at most `size` utterances as the set `purpose`.

    Two steps make the set: whole speakers are held out (`_hold_out_speakers`), and then sentences
    are kept apart (`_keep_sentences_apart`). Each step leaves out utterances, but not many: at most
    a share `max_loss` of the utterances has a speaker or sentence of the set without being in it.

    Returns: the set, the rest, and the utterances in neither, with the reason: they would put a
        speaker or sentence of the set into the rest.
    """
    by_speaker = _hold_out_speakers(utterances, size, seed=seed, purpose=purpose, max_loss=max_loss)
    by_sentence = _keep_sentences_apart(
        by_speaker.held_out, by_speaker.rest, seed=seed, purpose=purpose, max_loss=max_loss
    )
    left_out = by_speaker.left_out + by_sentence.left_out
    return by_sentence.held_out, by_sentence.rest, left_out


class _HoldOutStep(NamedTuple):
    """What one step of `hold_out` gives."""

    held_out: list[Utterance]
    rest: list[Utterance]
    left_out: list[tuple[Utterance, str]]
    """The utterances in neither, with the reason."""


def _hold_out_speakers(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float
) -> _HoldOutStep:
    """Hold out at most `size` utterances of the speakers that `_choose_speakers` chooses.

    The utterances of the chosen speakers beyond `size` are left out. If another speaker is to be
    divided, some of the utterances of this one are held out too, and the others are in the rest.
    """
    speakers, shared_speaker = _choose_speakers(
        utterances, size, seed=seed, purpose=purpose, max_loss=max_loss
    )
    position_of = {speaker: position for position, speaker in enumerate(speakers)}
    of_speakers = [
        utterance for utterance in utterances if _identify_speaker(utterance) in position_of
    ]
    candidates = shuffled(of_speakers, seed, purpose)
    # By speaker, and in random order within one (the sort is stable). So only utterances of the
    # last speaker are beyond `size`.
    candidates.sort(key=lambda utterance: position_of[_identify_speaker(utterance)])
    held_out = candidates[:size]
    left_out = [
        (utterance, f"its speaker is in the {purpose} set") for utterance in candidates[size:]
    ]
    rest = [
        utterance for utterance in utterances if _identify_speaker(utterance) not in position_of
    ]
    if shared_speaker is not None:
        of_shared = [
            utterance for utterance in rest if _identify_speaker(utterance) == shared_speaker
        ]
        by_sentence = _order_by_sentence(of_shared, seed, purpose)
        held_out += by_sentence[: size - len(held_out)]
        held_keys = {utterance.key for utterance in held_out}
        rest = [utterance for utterance in rest if utterance.key not in held_keys]
    return _HoldOutStep(held_out, rest, left_out)


def _keep_sentences_apart(
    held_out: Sequence[Utterance],
    rest: Sequence[Utterance],
    *,
    seed: int,
    purpose: str,
    max_loss: float,
) -> _HoldOutStep:
    """Leave out utterances until the set and the rest have no common sentence.

    A sentence in both is left out of the rest. If that would cost more than a share `max_loss` of
    the rest, the sentences that the most others read are left out of the set instead. If these are
    all sentences of the set, nothing is left out: the set and the rest have common sentences.
    """
    budget = int(max_loss * len(rest))  # utterances of the rest that may be left out
    sentences = _find_affordable_sentences(held_out, rest, budget, seed=seed, purpose=purpose)
    if not sentences:
        return _HoldOutStep(list(held_out), list(rest), [])
    kept, too_frequent = _divide_by_sentences(held_out, sentences)
    common, other_rest = _divide_by_sentences(rest, sentences)
    reason = f"too many others read its sentence for the {purpose} set"
    left_out = [(utterance, reason) for utterance in too_frequent]
    reason = f"its sentence is in the {purpose} set"
    left_out += [(utterance, reason) for utterance in common]
    return _HoldOutStep(kept, other_rest, left_out)


def _divide_by_sentences(
    utterances: Sequence[Utterance], sentences: Collection[str]
) -> tuple[list[Utterance], list[Utterance]]:
    """The utterances that have one of these sentences, and the others."""
    with_sentence = [utterance for utterance in utterances if utterance.txt in sentences]
    others = [utterance for utterance in utterances if utterance.txt not in sentences]
    return with_sentence, others


def _choose_speakers(
    utterances: Sequence[Utterance], size: int, *, seed: int, purpose: str, max_loss: float
) -> tuple[list[_Speaker], _Speaker | None]:
    """Speakers whose utterances are all held out, and one who is divided between both sets.

    Speakers are chosen until they have `size` utterances: those with the fewest ones first, and
    UNKNOWN last. A speaker with whom they would have more than `max_chosen` utterances is divided
    instead, and no further one is chosen. Otherwise no speaker is divided (None).
    """
    counts = Counter(_identify_speaker(utterance) for utterance in utterances)
    # Above `size`, the utterances of chosen speakers are lost: they are in no set. A loss is
    # allowed as long as all utterances of chosen speakers are a share `max_loss` at most.
    max_chosen = max(size, max_loss * len(utterances))

    def order(speaker: _Speaker) -> tuple[bool, int, bytes, _Speaker]:
        _, name = speaker
        return name == UNKNOWN, counts[speaker], rank(seed, f"{purpose} speaker", name), speaker

    chosen: list[_Speaker] = []
    num_chosen = 0
    for speaker in sorted(counts, key=order):
        if num_chosen >= size:
            break
        if num_chosen + counts[speaker] > max_chosen:
            return chosen, speaker
        chosen.append(speaker)
        num_chosen += counts[speaker]
    return chosen, None


def _identify_speaker(utterance: Utterance) -> _Speaker:
    """The speaker of an utterance; one of its own if it names none."""
    return (True, utterance.speaker) if utterance.speaker is not None else (False, utterance.key)


def _order_by_sentence(utterances: Sequence[Utterance], seed: int, purpose: str) -> list[Utterance]:
    """The utterances in a random order in which those of one sentence stand together.

    If the first ones are taken, they have few sentences in common with the rest: only the last
    sentence of them may be divided.
    """
    ordered = shuffled(utterances, seed, purpose)
    ordered.sort(  # stable: the order within a sentence stays random
        key=lambda utterance: (rank(seed, f"{purpose} sentence", utterance.txt), utterance.txt)
    )
    return ordered


def _find_affordable_sentences(
    held: Sequence[Utterance], rest: Sequence[Utterance], budget: int, *, seed: int, purpose: str
) -> set[str]:
    """The sentences of `held` that the fewest utterances of the rest have.

    So many sentences are taken that at most `budget` utterances of the rest have any of them.
    """
    costs = Counter(utterance.txt for utterance in rest)  # utterances to leave out per sentence

    def order(sentence: str) -> tuple[int, bytes, str]:
        return costs[sentence], rank(seed, f"{purpose} sentence", sentence), sentence

    affordable: set[str] = set()
    for sentence in sorted({utterance.txt for utterance in held}, key=order):
        budget -= costs[sentence]
        if budget < 0:
            break
        affordable.add(sentence)
    return affordable


# ---- whole groups


def hold_out_groups(
    utterances: Sequence[Utterance],
    size: int,
    group_of: Callable[[Utterance], str],
    *,
    keep: int,
    seed: int,
    purpose: str,
) -> tuple[list[Utterance], list[Utterance]]:
    """Choose whole groups with about `size` utterances in total as the set `purpose`.

    The smallest groups are chosen first, at least one. A further one is not chosen if more than
    half of its utterances would be beyond `size`.

    Args:
        keep: so many of the largest groups are never chosen: one for each set that is still to be
            filled, and one for train. At least 1.
    Returns: the chosen set and the rest.
    """
    counts = Counter(map(group_of, utterances))

    def order(group: str) -> tuple[int, bytes, str]:
        return counts[group], rank(seed, purpose, group), group

    candidates = sorted(counts, key=order)[:-keep]
    chosen: set[str] = set()
    num_chosen = 0
    for group in candidates:
        if num_chosen and num_chosen + counts[group] / 2 > size:
            break
        chosen.add(group)
        num_chosen += counts[group]
    held = [utterance for utterance in utterances if group_of(utterance) in chosen]
    rest = [utterance for utterance in utterances if group_of(utterance) not in chosen]
    return held, rest
