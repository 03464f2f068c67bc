# SPDX-License-Identifier: Apache-2.0
"""Who speaks which sentence, how, and in what noise: a pure function of the seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from wenet_hs.corpus.synthetic_clip import ClipRequest
from wenet_hs.errors import ConfigError

Gender = Literal["male", "female"]

# espeak-ng variants that sound like different people. Of its 104, those are left out that whisper, croak, have an echo
# as of a hall, clip inside the engine, are muffled (spectral centroid < 400 Hz) or nearly repeat another one;
# `tests/corpus/test_synthetic.py` measures the rest.
VOICES: dict[str, Gender] = {
    **{f"m{number}": "male" for number in range(1, 9)},
    **{name: "male" for name in ("Alex", "Mario", "max", "pablo", "rob")},
    **{f"f{number}": "female" for number in range(1, 6)},
    **{name: "female" for name in ("Alicia", "Annie", "aunty", "belinda", "grandma", "shelby")},
}

_RATE_WPM = (140, 200)
_PITCH = (30, 70)
_PITCH_RANGE = (30, 70)
_TRACT = (0.9, 1.1)  # turns two dozen voices into as many speakers as there are clips
_SILENCE_S = (0.05, 0.15)
_PEAK_DB = (-15.0, -1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechPlan:
    """What the requests are drawn from."""

    seed: int
    train_voices: tuple[str, ...]
    test_voices: tuple[str, ...]
    """Voices of the dev and test set, none of them in training."""
    noise_snr_db: tuple[float, float]
    """Least and greatest signal-to-noise ratio."""

    def training_requests(self, lang: str, sentences: Sequence[str]) -> Iterator[ClipRequest]:
        """Endless: every sentence once, then every sentence again by other voices, and so on."""
        for turn in count():
            for sentence in sentences:
                yield self._request(lang, sentence, self.train_voices, turn)

    def held_out_requests(self, lang: str, sentences: Sequence[str], *, repeats: int = 1) -> list[ClipRequest]:
        """Each sentence `repeats` times, by the voices that training never hears."""
        turns = range(repeats)
        return [self._request(lang, sentence, self.test_voices, turn) for turn in turns for sentence in sentences]

    def _request(self, lang: str, sentence: str, voices: Sequence[str], turn: int) -> ClipRequest:
        """Drawn from the sentence, not from its place, so that a longer list of sentences keeps the clips there are."""
        order = random.Random(f"{self.seed}/{lang}/{sentence}").sample(voices, len(voices))
        draw = random.Random(f"{self.seed}/{lang}/{sentence}/{turn}")
        return ClipRequest(
            lang=lang,
            sentence=sentence,
            voice=order[turn % len(order)],
            rate_wpm=draw.randint(*_RATE_WPM),
            pitch=draw.randint(*_PITCH),
            pitch_range=draw.randint(*_PITCH_RANGE),
            lead_s=round(draw.uniform(*_SILENCE_S), 3),
            trail_s=round(draw.uniform(*_SILENCE_S), 3),
            peak_db=round(draw.uniform(*_PEAK_DB), 2),
            noise=draw.choice(("white", "pink")),
            snr_db=round(draw.uniform(*self.noise_snr_db), 2),
            noise_seed=draw.getrandbits(32),
            tract=round(draw.uniform(*_TRACT), 3),
        )


def choose_voices(num_test: int, *, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(training voices, held-out voices): `num_test` are held out, women and men by turns.

    Raises ConfigError when training would have no voice left, or the test none.
    """
    if not 1 <= num_test < len(VOICES):
        raise ConfigError(f"--test_voices: {num_test} of {len(VOICES)} voices; give 1 to {len(VOICES) - 1}")
    draw = random.Random(f"{seed}/voices")
    genders: list[Gender] = ["female", "male"]
    queues = {gender: [name for name, of in VOICES.items() if of == gender] for gender in genders}
    for gender in genders:
        draw.shuffle(queues[gender])
    held_out: list[str] = []
    while len(held_out) < num_test:
        queue = queues[genders[len(held_out) % 2]] or queues["male"] or queues["female"]
        held_out.append(queue.pop())
    return tuple(name for name in VOICES if name not in held_out), tuple(sorted(held_out))
