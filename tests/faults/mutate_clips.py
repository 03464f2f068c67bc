# SPDX-License-Identifier: Apache-2.0
"""Damage clips in every way a disk, a download or an attacker does, and count what becomes of each.

Example: python tests/faults/mutate_clips.py --clips 2000 --seed 1

Each clip goes through `prepare`'s check and through the batches of a training. It prints one line of figures and exits
with 1 if a clip is neither used nor quarantined, or both; if training quarantines what `prepare` let pass; if a decoder
crashes, hangs or takes more than 500 MB; or if anything but a clip's own fault is raised.

"Lost audio" are the clips that lost more than 2 % and 100 ms of their audio to a cut or a hole. What a flipped bit or
a zeroed block does inside intact frames changes no length: only a hash beside each file would find it.
"""

import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import soundfile
from fault_script import Tally, one_thread, result_of_child, script_parser

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf
from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

RATE = 16000
FORMATS = ("WAV", "FLAC", "MP3")
MAX_GROWTH_MB = 500
HANG_S = 300
_EDGES_S = 0.05  # headers are no audio, and an mp3 begins and ends within frames
CONF = DatasetConf(
    max_bad_clips=1.0, spec_aug=False, fbank_conf=FbankConf(num_mel_bins=23), batch_conf=BatchConf(batch_size=8)
)


@dataclass(frozen=True)
class Whole:
    """A clip as it was."""

    format: str
    content: bytes
    duration_s: float


@dataclass(frozen=True)
class Damaged:
    """A clip as it is now."""

    kind: str
    whole: Whole
    content: bytes
    lost_s: float = 0.0
    """Seconds of audio whose bytes are gone."""

    @property
    def lost_audio(self) -> bool:
        """Whether more is gone than coding and rounding explain."""
        return self.lost_s > max(0.1, 0.02 * self.whole.duration_s) + _EDGES_S


Mutation = Callable[[random.Random, Whole], Damaged]


def main(arguments: Sequence[str] | None = None) -> int:
    """Damage, read, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--clips", type=int, default=2000)
    args = parser.parse_args(arguments)
    one_thread()
    tally, rng = Tally(args.seed), random.Random(args.seed)
    wholes = [whole_clip(name, seconds, args.seed) for name in FORMATS for seconds in (0.8, 1.3, 2.1)]
    clips = [MUTATIONS[i % len(MUTATIONS)](rng, rng.choice(wholes)) for i in range(args.clips)]
    with tempfile.TemporaryDirectory() as scratch, quiet_decoders():
        utterances = write_clips(args.scratch or Path(scratch), clips)
        rejected = check_all(args.scratch or Path(scratch), utterances)
        trained = result_of_child(lambda: train_over(utterances))
    return report(tally, clips, rejected, trained)


@contextlib.contextmanager
def quiet_decoders() -> Iterator[None]:
    """libmpg123 writes to the process's stderr, past Python, what it thinks of each damaged frame."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def whole_clip(name: str, seconds: float, seed: int) -> Whole:
    """Noise with a tone, so that neither silence nor compression makes it small."""
    times = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(size=len(times))
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * 440 * times) + 0.05 * noise, RATE, format=name)
    return Whole(name, file.getvalue(), len(times) / RATE)


# How a clip is damaged


def _truncated(rng: random.Random, whole: Whole) -> Damaged:
    end = rng.randrange(len(whole.content))
    return Damaged("truncated", whole, whole.content[:end], _seconds(whole, len(whole.content) - end))


def _holed(rng: random.Random, whole: Whole) -> Damaged:
    """Bytes taken out of the middle."""
    start, end = _stretch(rng, len(whole.content))
    return Damaged("holed", whole, whole.content[:start] + whole.content[end:], _seconds(whole, end - start))


def _zeroed(rng: random.Random, whole: Whole) -> Damaged:
    start, end = _stretch(rng, len(whole.content))
    return Damaged("zeroed", whole, whole.content[:start] + bytes(end - start) + whole.content[end:])


def _flipped(rng: random.Random, whole: Whole) -> Damaged:
    """One bit."""
    content = bytearray(whole.content)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return Damaged("flipped", whole, bytes(content))


def _scribbled(rng: random.Random, whole: Whole) -> Damaged:
    """Random bytes over a stretch."""
    start, end = _stretch(rng, len(whole.content))
    return Damaged("scribbled", whole, whole.content[:start] + rng.randbytes(end - start) + whole.content[end:])


def _header(rng: random.Random, whole: Whole) -> Damaged:
    """One to four bytes of the first 64, where sizes, rates and channels are declared."""
    content = bytearray(whole.content)
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(64)] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return Damaged("header", whole, bytes(content))


def _huge(rng: random.Random, whole: Whole) -> Damaged:
    """A header that declares far more than there is."""
    content = bytearray(whole.content)
    match whole.format:
        case "WAV":
            place = rng.choice((4, 16, 22, 24, 40))  # of the file, of `fmt `, channels, rate, of `data`
            content[place : place + (2 if place == 22 else 4)] = b"\xff\xff\xff\x7f"[: 2 if place == 22 else 4]
        case "FLAC":
            fields = int.from_bytes(content[18:26], "big")  # rate, channels, bits, and 36 bits of length
            content[18:26] = (fields >> 36 << 36 | rng.randrange(1 << 30, 1 << 36)).to_bytes(8, "big")
        case _:
            place = content.find(b"Xing") if b"Xing" in content else content.find(b"Info")
            place = place + 8 if place >= 0 else 0  # the number of frames
            content[place : place + 4] = b"\x7f\xff\xff\xff"
    return Damaged("huge", whole, bytes(content))


def _page(rng: random.Random, whole: Whole) -> Damaged:
    """What a server sends in place of the file."""
    return Damaged("page", whole, b"<html><body>404 Not Found</body></html>\n" * rng.randint(1, 200), whole.duration_s)


def _noise(rng: random.Random, whole: Whole) -> Damaged:
    return Damaged("noise", whole, rng.randbytes(len(whole.content)), whole.duration_s)


def _empty(rng: random.Random, whole: Whole) -> Damaged:
    return Damaged("empty", whole, bytes(rng.choice((0, 0, 1, 44, 4096))), whole.duration_s)


MUTATIONS: tuple[Mutation, ...] = (
    *(_truncated, _holed, _zeroed, _flipped, _scribbled),
    *(_header, _huge, _page, _noise, _empty),
)


def _stretch(rng: random.Random, size: int) -> tuple[int, int]:
    """Begin and end of at most half of it."""
    start = rng.randrange(size)
    return start, min(size, start + rng.randint(1, size // 2))


def _seconds(whole: Whole, num_bytes: int) -> float:
    return whole.duration_s * num_bytes / len(whole.content)


# Who reads it


def write_clips(folder: Path, clips: Sequence[Damaged]) -> list[Utterance]:
    """The files, under the names that their formats have, and the list that speaks of them as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    utterances = []
    for number, clip in enumerate(clips):
        path = folder / f"{number}.{clip.whole.format.lower()}"
        path.write_bytes(clip.content)
        utterances.append(Utterance(key=str(number), wav=str(path), txt="a", duration=clip.whole.duration_s))
    return utterances


def check_all(folder: Path, utterances: Sequence[Utterance]) -> dict[str, str]:
    """Key → reason of the clips that `prepare` rejects; in a worker, which a crash or a hang ends alone."""
    checker = ClipChecker(folder / "checked.jsonl", num_workers=1)
    return {clip.key: clip.reason for clip in checker.check(utterances, "clips")[1]}


def train_over(utterances: Sequence[Utterance]) -> dict[str, Any]:
    """What an epoch of training makes of them: used keys, quarantined keys, and how much memory grew."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(HANG_S)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokenizer = make_tokenizer("char", UnitTable.from_units(("a",)))
    dataset = SpeechDataset(utterances, tokenizer, CONF, training=True, seed=0)
    used, quarantined, finite = set(), set(), True
    for batch in batches(dataset, dataset.plan(0), 0):
        used.update(batch.keys)
        quarantined.update(clip.key for clip in batch.quarantined)
        finite &= bool(batch.features.isfinite().all())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "used": sorted(used),
        "quarantined": sorted(quarantined),
        "left_out": [key for key, _ in dataset.rejected],
        "finite": finite,
        "grown_mb": grown // 1024,
    }


def report(tally: Tally, clips: Sequence[Damaged], rejected: dict[str, str], trained: dict[str, Any] | None) -> int:
    """The line of figures. Returns the exit code."""
    crashes = sum(reason.startswith("crash") for reason in rejected.values()) + (trained is None)
    tally.check(not crashes, f"{crashes} decoders crashed or hung")
    trained = trained or {"used": [], "quarantined": [], "left_out": [], "finite": True, "grown_mb": 0}
    used, quarantined = set(trained["used"]), set(trained["quarantined"])
    keys = {str(number) for number in range(len(clips))}
    tally.check(not trained["left_out"], f"left out before anybody read them: {trained['left_out']}")
    tally.check(used | quarantined == keys, f"neither used nor quarantined: {sorted(keys - used - quarantined)}")
    tally.check(not used & quarantined, f"both used and quarantined: {sorted(used & quarantined)}")
    tally.check(quarantined <= set(rejected), f"prepare let pass: {sorted(quarantined - set(rejected))}")
    tally.check(trained["finite"], "features that are not finite")
    tally.check(trained["grown_mb"] <= MAX_GROWTH_MB, f"memory grew by {trained['grown_mb']} MB")
    total = Counter(clip.kind for clip in clips)
    caught = Counter(clips[int(key)].kind for key in rejected)
    lost = [str(number) for number, clip in enumerate(clips) if clip.lost_audio]
    found = sum(key in rejected for key in lost)
    tally.check(found == len(lost), f"lost audio, not caught: {sorted(set(lost) - set(rejected))}")
    return tally.conclude(
        f"{len(clips)} clips = {len(used)} used + {len(quarantined)} quarantined",
        f"{crashes} crashes or hangs",
        f"lost audio caught {found}/{len(lost)}",
        "caught of all: " + ", ".join(f"{kind} {caught[kind]}/{total[kind]}" for kind in sorted(total)),
        f"prepare rejects {len(rejected)}",
        f"memory +{trained['grown_mb']} MB",
    )


if __name__ == "__main__":
    sys.exit(main())
