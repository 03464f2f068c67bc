# SPDX-License-Identifier: Apache-2.0
"""Faulty corpora: damaged tables of Common Voice, damaged clips."""

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
from made_up_release import parse_prepare
from model_folders import write_clip

from wenet_hs.config.dataset import BatchConf, DatasetConf, FbankConf
from wenet_hs.corpus import commonvoice
from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.text.tokenizer import make_tokenizer
from wenet_hs.text.units import UnitTable

HEADER = b"client_id\tpath\tsentence\tlocale\n"
NUM_CLIPS = 40
"""Clips that exist; rows may name others."""
_PIECES = (
    *(b'"', b"''", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85", b"\x0b", b"\x0c", b"\x1c", b"\0", b"\x1b[31m"),
    *(b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\x8b", b""),
)
_NAMES = (b"", b".", b"../up.mp3", b"a/b.mp3", b"-y", b"$(x).mp3", b"c1.mp3", b"x" * 300, b"\xff.mp3", b"c 2.mp3")
_SENTENCES = (b"", b"   ", b"?!", "né à Gènes".encode(), b"word " * 300, b'"quoted', b"NA", b"\xe2\x80\x8b", b"hola")


# ---- tables


def mutate_tables(folder: Path, tally: Tally, tables: int) -> str:
    """Every row of a table is used or rejected with a reason.

    `prepare commonvoice` accounts for every row of a damaged table, or refuses the table in one line.
    """
    language, out = folder / "corpus" / "ca", folder / "out"
    (language / "clips").mkdir(parents=True)
    names = [f"c{number}.mp3" for number in range(NUM_CLIPS)]
    for name in names:
        (language / "clips" / name).touch()
    (language / "clip_durations.tsv").write_text("clip\tduration[ms]\n" + "".join(f"{n}\t2000\n" for n in names))
    flags = "--langs ca --ratio 1 --max_rejected 1 --check_audio exists --num_workers 0"
    args = parse_prepare(f"commonvoice --corpus '{folder}/corpus' --out '{out}' {flags}")
    counts: Counter[str] = Counter()
    for number in range(tables):
        ids = tally.generator.sample(range(NUM_CLIPS + 3), NUM_CLIPS - 3)
        rows = [b"s%d\tc%d.mp3\tfrase %d\tca\n" % (n, n, n) for n in ids]
        content = _mutate_table(TABLE_DAMAGES[number % len(TABLE_DAMAGES)], tally.generator, rows)
        (language / "validated.tsv").write_bytes(content)
        where, lines = f"table {number}: {content[:200]!r}", content.split(b"\n")[1:]
        num_rows = len(lines) - (bool(lines) and not lines[-1])
        try:
            stats = commonvoice.prepare(args)
        except DataError as error:
            counts["refused"] += 1
            tally.check("\n" not in str(error), f"{where}: a message of several lines: {error}")
            continue
        used = [u.key for name in ("train", "dev", "test") for u in read_data_list(out / name / "data.list")]
        rejected = read_lines(out / "rejected.tsv")[1:]
        is_complete = len(used) + len(rejected) == stats["num_in"] == num_rows and all(
            line.split("\t")[2] for line in rejected
        )
        tally.check(is_complete, f"{where}: {num_rows} rows, {len(used)} in the lists, rejected {rejected}")
        tally.check(len(set(used)) == len(used), f"{where}: a key twice")
        counts.update(used=len(used), rejected=len(rejected))
    tally.check(tables < 10 or counts["refused"] < tables / 2, f"only {tables - counts['refused']} tables are used")
    rows_in = f"{counts['used'] + counts['rejected']} rows = {counts['used']} used + {counts['rejected']} rejected"
    return f"{tables} tables | {rows_in} | {counts['refused']} tables refused"


TABLE_DAMAGES = ("pieces", "fields", "Windows", "cut", "overwritten", "header")


def _mutate_table(kind: str, rng: random.Random, rows: list[bytes]) -> bytes:
    content = bytearray(HEADER + b"".join(rows))
    match kind:
        case "pieces":  # separators, quotes and broken bytes
            for _ in range(rng.randint(1, 6)):
                place = rng.randrange(len(HEADER), len(content) + 1)
                content[place:place] = rng.choice(_PIECES)
        case "fields":  # another number of columns, hostile names, empty sentences
            for _ in range(rng.randint(1, 4)):
                fields = rng.choice(rows).removesuffix(b"\n").split(b"\t")
                name, sentence, place = rng.choice(_NAMES), rng.choice(_SENTENCES), rng.randrange(len(fields))
                changes = ((place, place + 1, []), (place, place, [sentence]), (1, 2, [name]), (0, 0, []))
                start, end, new = rng.choice(changes)  # the last one repeats the row
                fields[start:end] = new
                rows.insert(rng.randrange(len(rows) + 1), b"\t".join(fields) + b"\n")
            return HEADER + b"".join(rows)
        case "Windows":
            whole = b"\xef\xbb\xbf" * rng.randint(0, 2) + content.replace(b"\n", b"\r\n")
            return whole if rng.random() < 0.5 else whole.removesuffix(b"\r\n")
        case "cut":
            return bytes(content[: rng.randrange(len(content))])
        case "overwritten":  # random bytes, also in the header and over all
            for _ in range(rng.choice((1, 3, 10, len(content)))):
                content[rng.randrange(len(content))] = rng.randrange(256)
        case "header":  # columns in another order, missing, twice, quoted
            names = HEADER.removesuffix(b"\n").split(b"\t")
            other = rng.sample(names, len(names))
            changed = (other, other[1:], [*names, other[0]], [b'"' + name + b'"' for name in names])
            return b"\t".join(rng.choice(changed)) + b"\n" + b"".join(rows)
    return bytes(content)


# ---- clips

_EDGES_S = 0.05  # headers contain no audio, and an mp3 begins and ends within frames


class Clip(NamedTuple):
    """A clip of a format, before or after the damage of a kind."""

    format: str
    content: bytes
    duration_s: float
    """Before the damage."""
    kind: str = ""
    lost_s: float = 0.0
    """Seconds of audio whose bytes are missing. A flipped or zeroed byte in a frame changes no length."""


def mutate_clips(folder: Path, tally: Tally, clips: int) -> str:
    """Every clip is used or quarantined with a reason.

    `prepare` and training read damaged clips. Nothing crashes, hangs or fills the memory.
    """
    wholes = []
    for suffix, seconds in product(("wav", "flac", "mp3"), (0.8, 1.3, 2.1)):
        written = write_clip(folder / f"whole.{suffix}", seconds, tally.seed)
        wholes.append(Clip(suffix, Path(written.wav).read_bytes(), seconds))
    damaged = [_damage(KINDS[i % len(KINDS)], tally.generator, tally.generator.choice(wholes)) for i in range(clips)]
    utterances = []
    for number, clip in enumerate(damaged):
        path = folder / f"{number}.{clip.format}"
        path.write_bytes(clip.content)
        utterances.append(Utterance(key=str(number), wav=str(path), txt="a", duration=clip.duration_s))
    read, code = run_child(lambda: _read_clips(folder, utterances))
    if not tally.check(read is not None, f"training crashed or hung: exit code {code}"):
        return f"{clips} clips | training crashed or hung"
    rejected, used, quarantined, keys = read["rejected"], read["used"], read["quarantined"], {u.key for u in utterances}
    num_crashes = sum(reason.startswith("crash") for reason in rejected.values())
    tally.check(not num_crashes, f"{num_crashes} decoders crashed or hung")
    tally.check(not read["left_out"], f"left out before they were read: {read['left_out']}")
    tally.check(used ^ quarantined == keys, f"used and quarantined, or neither: {sorted(keys - (used ^ quarantined))}")
    tally.check(quarantined <= set(rejected), f"prepare accepted: {sorted(quarantined - set(rejected))}")
    is_sound = read["finite"] and read["grown_mb"] <= 500
    tally.check(is_sound, f"features are not finite, or memory grew by {read['grown_mb']} MB")
    total, caught = Counter(clip.kind for clip in damaged), Counter(damaged[int(key)].kind for key in rejected)
    noticed_s = [max(0.1, 0.02 * clip.duration_s) + _EDGES_S for clip in damaged]
    lost = {str(number) for number, clip in enumerate(damaged) if clip.lost_s > noticed_s[number]}
    tally.check(lost <= set(rejected), f"lost audio, not caught: {sorted(lost - set(rejected))}")
    by_kind = ", ".join(f"{kind} {caught[kind]}/{total[kind]}" for kind in sorted(total))
    return (
        f"{clips} clips = {len(used)} used + {len(quarantined)} quarantined | {num_crashes} crashes or hangs | "
        f"lost audio caught {len(lost & set(rejected))}/{len(lost)} | caught of all: {by_kind} | prepare rejects "
        f"{len(rejected)} | memory +{read['grown_mb']} MB"
    )


KINDS = ("truncated", "holed", "zeroed", "flipped", "scribbled", "header", "huge", "page", "noise", "empty")


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
            content[start:end] = bytes(end - start) if kind == "zeroed" else rng.randbytes(end - start)
        case "header":  # the first 64 bytes declare sizes, rates and channels
            for _ in range(rng.randint(1, 4)):
                content[rng.randrange(64)] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case "huge":  # far more audio is declared than there is
            frames = max(content.find(b"Xing"), content.find(b"Info")) + 8
            sizes = {"wav": rng.choice((4, 16, 24, 40)), "flac": 22, "mp3": frames}  # WAV: of the file, of `fmt `, …
            place = sizes[whole.format]
            content[place : place + 4] = b"\xff\xff\xff\x7f"
        case "page" | "noise" | "empty":  # page: a server's answer instead of the file
            page, empty = b"<html><body>404 Not Found</body></html>\n", bytes(rng.choice((0, 0, 1, 44, 4096)))
            content = bytearray({"page": page * 20, "noise": rng.randbytes(size), "empty": empty}[kind])
            lost_s = whole.duration_s
    return whole._replace(content=bytes(content), kind=kind, lost_s=lost_s)


def _read_clips(folder: Path, utterances: Sequence[Utterance]) -> dict[str, Any]:
    """What `prepare` rejects, and of an epoch of training data the used and quarantined keys and the memory."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libmpg123 writes to it
    checker = ClipChecker(folder / "checked.jsonl", num_workers=1)
    rejected = {clip.key: clip.reason for clip in checker.check(utterances, "clips")[1]}
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = DatasetConf(
        max_bad_clips=1.0, spec_aug=False, fbank_conf=FbankConf(num_mel_bins=23), batch_conf=BatchConf(batch_size=8)
    )
    tokenizer = make_tokenizer("char", UnitTable.from_units(("a",)))
    dataset = SpeechDataset(utterances, tokenizer, config, training=True, seed=0, subsampled_length=lambda n: n // 4)
    made = list(batches(dataset, dataset.plan(0), 0))
    return {
        "rejected": rejected,
        "used": {key for batch in made for key in batch.keys},
        "quarantined": {clip.key for batch in made for clip in batch.quarantined},
        "left_out": [key for key, _ in dataset.rejected],
        "finite": all(bool(batch.features.isfinite().all()) for batch in made),
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
    }
