# SPDX-License-Identifier: Apache-2.0
"""Speak sentences until there are enough hours, and lay the clips out like a release of Common Voice.

CORPUS/<lang>/{validated,train,dev,test}.tsv, clip_durations.tsv and clips/.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from wenet_hs.corpus.synthetic_clip import Clip, ClipMaker, ClipRequest
from wenet_hs.corpus.synthetic_plan import VOICES, SpeechPlan
from wenet_hs.corpus.synthetic_sentences import Split
from wenet_hs.errors import DataError
from wenet_hs.files import write_atomic

PARTS = ("train", "dev", "test")
_COLUMNS = ("client_id", "path", "sentence", "up_votes", "down_votes", "age", "gender", "accents", "locale", "segment")


@dataclass(kw_only=True, slots=True)
class SpokenLanguage:
    """The clips of one language; those of `train` grow until they are long enough."""

    lang: str
    requests: Iterator[ClipRequest]
    """Endless requests for training."""
    num_sentences: int
    """Training sentences: requests a round."""
    target_s: float
    clips: dict[str, list[Clip]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def seconds(self, part: str) -> float:
        """Length of what is spoken so far."""
        return sum(clip.duration_s or 0.0 for clip in self.clips[part])

    def missing(self) -> list[ClipRequest]:
        """The next training requests, as many as seem to be missing; empty when there is enough."""
        missing_s = self.target_s - self.seconds("train")
        wanted: list[ClipRequest] = []
        pace = self._seconds_per_letter()
        while missing_s > 0:
            wanted.append(next(self.requests))
            missing_s -= pace * len(wanted[-1].sentence)
        return wanted

    def _seconds_per_letter(self) -> float:
        heard = [clip for clip in chain.from_iterable(self.clips.values()) if clip.duration_s is not None]
        return sum(clip.duration_s or 0.0 for clip in heard) / sum(len(clip.request.sentence) for clip in heard)

    def check_sound(self, part: str) -> None:
        """Raise DataError when a part was spoken and nothing can be heard."""
        enough = len(self.clips[part]) >= (self.num_sentences if part == "train" else 1)
        if enough and not self.seconds(part):
            example = self.clips[part][0].request.sentence
            raise DataError(f"{self.lang}: espeak-ng gives no sound for any {part} sentence, such as {example!r}")

    def trim(self) -> None:
        """Keep the shortest beginning of `train` that is long enough: it does not depend on how the clips were made."""
        total_s = 0.0
        for number, clip in enumerate(self.clips["train"], start=1):
            total_s += clip.duration_s or 0.0
            if total_s >= self.target_s:
                del self.clips["train"][number:]
                return


def speak_corpus(
    plan: SpeechPlan, splits: Mapping[str, Split], maker: ClipMaker, *, hours: float, test_repeats: int = 1
) -> dict[str, SpokenLanguage]:
    """Speak dev and test whole, and training sentences in turn until each language has its share of `hours`."""
    target_s = hours * 3600 / len(splits)
    languages = {
        lang: SpokenLanguage(
            lang=lang,
            requests=plan.training_requests(lang, split.train),
            num_sentences=len(split.train),
            target_s=target_s,
        )
        for lang, split in splits.items()
    }
    for part, repeats in (("dev", 1), ("test", test_repeats)):
        wanted = [plan.held_out_requests(lang, getattr(split, part), repeats=repeats) for lang, split in splits.items()]
        for clip in maker.make(list(chain.from_iterable(wanted)), f"speak {part}"):
            languages[clip.request.lang].clips[part].append(clip)
        for language in languages.values():
            language.check_sound(part)
    _speak_training(languages, maker)
    return languages


def _speak_training(languages: Mapping[str, SpokenLanguage], maker: ClipMaker) -> None:
    """Grow every language to its target; the estimate of what is missing gets better in each round."""
    while requests := [request for language in languages.values() for request in language.missing()]:
        for clip in maker.make(requests, "speak train"):
            languages[clip.request.lang].clips["train"].append(clip)
        for language in languages.values():
            language.check_sound("train")
    for language in languages.values():
        language.trim()


def write_corpus(corpus: Path, languages: Mapping[str, SpokenLanguage]) -> None:
    """Write the tables of each language beside its clips, and remove clips of earlier requests."""
    for lang, language in languages.items():
        spoken = {part: [clip for clip in language.clips[part] if clip.duration_s is not None] for part in PARTS}
        every = list(chain.from_iterable(spoken.values()))
        for name, clips in (*spoken.items(), ("validated", every)):
            write_atomic(corpus / lang / f"{name}.tsv", _table(_COLUMNS, [_row(clip) for clip in clips]))
        durations = [[clip.name, str(round(1000 * (clip.duration_s or 0.0)))] for clip in every]
        write_atomic(corpus / lang / "clip_durations.tsv", _table(["clip", "duration[ms]"], durations))
        _remove_others(corpus / lang / "clips", {clip.name for clip in every})


def _row(clip: Clip) -> list[str]:
    request = clip.request
    speaker = f"{request.lang}-{request.voice}"
    gender = VOICES[request.voice]
    return [speaker, clip.name, request.sentence, "2", "0", "", gender, "simulated", request.lang, ""]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in (header, *rows))


def _remove_others(folder: Path, names: set[str]) -> None:
    """Only files that this command made are touched."""
    for pattern in ("simulated_*", ".simulated_*.tmp"):
        for path in folder.glob(pattern):
            if path.name not in names:
                path.unlink()
