# SPDX-License-Identifier: Apache-2.0
"""Faulty corpora: damaged clips."""

import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from harness import Tally, run_child
from model_folders import write_clip

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf
from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

_EDGES_S = 0.05  # headers contain no audio, and an mp3 begins and ends within frames


class Clip(NamedTuple):
    """A clip of a format, before or after the damage of a kind."""

    format: str
    content: bytes
    duration_s: float
    """Before the damage."""
    kind: str = ""
    lost_s: float = 0.0
    """Seconds of audio whose bytes are missing.

    A flipped or zeroed byte in a frame changes no length.
    """


def mutate_clips(folder: Path, tally: Tally, clips: int) -> str:
    """Every clip is used or quarantined with a reason.

    `prepare` and training read damaged clips. Nothing crashes, hangs or fills the memory.
    """
    wholes = []
    for suffix, seconds in product(("wav", "flac", "mp3"), (0.8, 1.3, 2.1)):
        written = write_clip(folder / f"whole.{suffix}", seconds, tally.seed)
        wholes.append(Clip(suffix, Path(written.wav).read_bytes(), seconds))
    damaged = [
        _damage(KINDS[i % len(KINDS)], tally.generator, tally.generator.choice(wholes))
        for i in range(clips)
    ]
    utterances = []
    for number, clip in enumerate(damaged):
        path = folder / f"{number}.{clip.format}"
        path.write_bytes(clip.content)
        utterances.append(
            Utterance(key=str(number), wav=str(path), txt="a", duration=clip.duration_s)
        )
    read, code = run_child(lambda: _read_clips(folder, utterances))
    if not tally.check(read is not None, f"training crashed or hung: exit code {code}"):
        return f"{clips} clips | training crashed or hung"
    rejected, used, quarantined, keys = (
        read["rejected"],
        read["used"],
        read["quarantined"],
        {u.key for u in utterances},
    )
    num_crashes = sum(reason.startswith("crash") for reason in rejected.values())
    tally.check(not num_crashes, f"{num_crashes} decoders crashed or hung")
    tally.check(not read["left_out"], f"left out before they were read: {read['left_out']}")
    tally.check(
        used ^ quarantined == keys,
        f"used and quarantined, or neither: {sorted(keys - (used ^ quarantined))}",
    )
    tally.check(
        quarantined <= set(rejected), f"prepare accepted: {sorted(quarantined - set(rejected))}"
    )
    is_sound = read["finite"] and read["grown_mb"] <= 500
    tally.check(is_sound, f"features are not finite, or memory grew by {read['grown_mb']} MB")
    total, caught = (
        Counter(clip.kind for clip in damaged),
        Counter(damaged[int(key)].kind for key in rejected),
    )
    noticed_s = [max(0.1, 0.02 * clip.duration_s) + _EDGES_S for clip in damaged]
    lost = {str(number) for number, clip in enumerate(damaged) if clip.lost_s > noticed_s[number]}
    tally.check(lost <= set(rejected), f"lost audio, not caught: {sorted(lost - set(rejected))}")
    by_kind = ", ".join(f"{kind} {caught[kind]}/{total[kind]}" for kind in sorted(total))
    return (
        f"{clips} clips = {len(used)} used + {len(quarantined)} quarantined | {num_crashes} crashes or hangs | "
        f"lost audio caught {len(lost & set(rejected))}/{len(lost)} | caught of all: {by_kind} | prepare rejects "
        f"{len(rejected)} | memory +{read['grown_mb']} MB"
    )


KINDS = (
    "truncated",
    "holed",
    "zeroed",
    "flipped",
    "scribbled",
    "header",
    "huge",
    "page",
    "noise",
    "empty",
)


def _damage(kind: str, rng: random.Random, whole: Clip) -> Clip:
    """Damage as by a disk, a download or an attacker."""
    content, size, lost_s = bytearray(whole.content), len(whole.content), 0.0
    start = rng.randrange(size)
    end = min(size, start + rng.randint(1, size // 2))
    match kind:
        case "truncated" | "holed":
            end = size if kind == "truncated" else end
            del content[start:end]
            lost_s = whole.duration_s * (end - start) / size
        case "flipped":
            content[start] ^= 1 << rng.randrange(8)
        case "zeroed" | "scribbled":
            content[start:end] = (
                bytes(end - start) if kind == "zeroed" else rng.randbytes(end - start)
            )
        case "header":  # the first 64 bytes declare sizes, rates and channels
            for _ in range(rng.randint(1, 4)):
                content[rng.randrange(64)] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case "huge":  # far more audio is declared than there is
            frames = max(content.find(b"Xing"), content.find(b"Info")) + 8
            sizes = {
                "wav": rng.choice((4, 16, 24, 40)),
                "flac": 22,
                "mp3": frames,
            }  # WAV: of the file, of `fmt `, …
            place = sizes[whole.format]
            content[place : place + 4] = b"\xff\xff\xff\x7f"
        case "page" | "noise" | "empty":  # page: a server's answer instead of the file
            page, empty = (
                b"<html><body>404 Not Found</body></html>\n",
                bytes(rng.choice((0, 0, 1, 44, 4096))),
            )
            content = bytearray(
                {"page": page * 20, "noise": rng.randbytes(size), "empty": empty}[kind]
            )
            lost_s = whole.duration_s
    return whole._replace(content=bytes(content), kind=kind, lost_s=lost_s)


def _read_clips(folder: Path, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """What `prepare` rejects, and of an epoch of training data the used and quarantined keys and
    the memory.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libmpg123 writes to it
    checker = ClipChecker(folder / "checked.jsonl", num_workers=1)
    rejected = {clip.key: clip.reason for clip in checker.check(utterances, "clips")[1]}
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = DatasetConf(
        max_bad_clips=1.0,
        spec_aug=False,
        fbank_conf=FbankConf(num_mel_bins=23),
        batch_conf=BatchConf(batch_size=8),
    )
    tokenizer = make_tokenizer("char", UnitTable.from_units(("a",)))
    dataset = SpeechDataset(
        utterances, tokenizer, config, training=True, seed=0, output_length=lambda n: n // 4
    )
    made = list(batches(dataset, dataset.plan(0), 0))
    return {
        "rejected": rejected,
        "used": {key for batch in made for key in batch.keys},
        "quarantined": {clip.key for batch in made for clip in batch.quarantined},
        "left_out": [key for key, _ in dataset.rejected],
        "finite": all(bool(batch.features.isfinite().all()) for batch in made),
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
    }
