# SPDX-License-Identifier: Apache-2.0
"""Damage the tables of Common Voice, and spell, sort and shorten what is in them in every way, and count every row.

Example: python tests/faults/mutate_tables.py --tables 2000 --spellings 2000 --seed 1

- Tables: quotes, columns, BOM, CRLF, U+2028, NUL, bytes that are not UTF-8, repeated and hostile names, cuts. Each goes
  through the reader and through the whole of `prepare commonvoice`: rows in = rows used + rows rejected with a reason,
  in memory and in the files; a table that is no table is refused in one line.
- Spellings: a text in NFC and in NFD has the same units, and no error against itself.
- CTC: which labels are left out before training is what torch's CTC loss says, for every label of up to four units.
- Repeats: `prepare` writes the same bytes in the locales C and C.UTF-8, with one worker and with two.

It prints one line of figures and exits with 1 if one of these does not hold.
"""

import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))

import torch
from fault_script import Tally, forget_fsync, one_thread, script_parser
from made_up_release import make_rows, write_language

from wenet_hs.config.dataset import FilterConf
from wenet_hs.corpus.audio_check import ClipChecker
from wenet_hs.corpus.commonvoice import CommonVoiceOptions, prepare_commonvoice, read_table
from wenet_hs.data.sampling import reason_to_reject
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.heads.ctc import ctc_feasible
from wenet_hs.manifest import read_data_list
from wenet_hs.score.error_rate import score
from wenet_hs.score.units import Rules
from wenet_hs.text.normalize import normalize_counted, normalize_phones
from wenet_hs.text.tokenizer import count_units

HEADER = b"client_id\tpath\tsentence\tlocale\n"
NUM_CLIPS = 12
"""Clips that are there; rows may name others."""
LANGS = (None, "ca", "fr", "ko", "pt", "tr", "vi")
_TEXT_PIECES = (
    *(b'"', b"''", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85", b"\x0b", b"\x0c", b"\x1c", b"\0", b"\x1b[31m"),
    *(b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\x8b", b""),
)
_NAMES = (b"", b".", b"../up.mp3", b"a/b.mp3", b"-y", b"$(x).mp3", b"c1.mp3", b"x" * 300, b"\xff.mp3", b"c 2.mp3")
_SENTENCES = (b"", b"   ", b"?!", "né à Gènes".encode(), b"word " * 300, b'"quoted', b"NA", b"\xe2\x80\x8b", b"hola")

Mutation = Callable[[random.Random, list[bytes]], bytes]


def main(argv: Sequence[str] | None = None) -> int:
    """Damage, read, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--spellings", type=int, default=2000)
    parser.add_argument("--no_repeats", action="store_true", help="leave out what starts programs")
    args = parser.parse_args(argv)
    one_thread()
    tally, rng = Tally(args.seed), random.Random(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.scratch or Path(scratch)
        back = forget_fsync()
        try:
            rows, refused = mutate_tables(tally, rng, folder / "tables", args.tables)
        finally:
            back()
        spell(tally, rng, args.spellings)
        labels = compare_ctc(tally)
        runs = 0 if args.no_repeats else repeat(tally, folder / "été x")
    return tally.conclude(
        f"{args.tables} tables",
        f"{rows.total()} rows = {rows['used']} used + {rows['rejected']} rejected",
        f"{refused} tables refused",
        f"{args.spellings} spellings",
        f"{labels} CTC cases",
        f"{runs} preparations",
    )


# Tables


def mutate_tables(tally: Tally, rng: random.Random, folder: Path, count: int) -> tuple[Counter[str], int]:
    """How many rows were used and rejected by the reader, and how many tables were refused as a whole."""
    language = folder / "corpus" / "ca"
    (language / "clips").mkdir(parents=True, exist_ok=True)
    for number in range(NUM_CLIPS):
        (language / "clips" / f"c{number}.mp3").touch()
    durations = "".join(f"c{number}.mp3\t2000\n" for number in range(NUM_CLIPS))
    (language / "clip_durations.tsv").write_text("clip\tduration[ms]\n" + durations)
    found: Counter[str] = Counter()
    refused = 0
    for number in range(count):
        content = MUTATIONS[number % len(MUTATIONS)](rng, table_rows(rng))
        (language / "validated.tsv").write_bytes(content)
        try:
            refused += not read_one(tally, number, language / "validated.tsv", content, found)
            prepare_one(tally, number, folder, content)
        except Exception as error:
            tally.check(False, f"table {number}: {type(error).__name__}: {error}: {content[:200]!r}")
    return found, refused


def table_rows(rng: random.Random) -> list[bytes]:
    """Good rows, some of them of clips that are not there."""
    numbers = rng.sample(range(NUM_CLIPS + 3), rng.randint(3, NUM_CLIPS))
    return [b"s%d\tc%d.mp3\tfrase %d\tca\n" % (n % 5, n, n) for n in numbers]


def num_rows(content: bytes) -> int:
    """Lines behind the header, as everybody would count them: `\\n` alone ends a line."""
    lines = content.split(b"\n")[1:]
    return len(lines) - (bool(lines) and not lines[-1])


def read_one(tally: Tally, number: int, path: Path, content: bytes, found: Counter[str]) -> bool:
    """Count what the reader makes of a table. Returns whether it took it for one."""
    try:
        table = read_table(path, "ca")
    except DataError as error:
        tally.check("\n" not in str(error), f"table {number}: a message of several lines: {error}")
        return False
    used, rejected = len(table.utterances), len(table.rejected)
    tally.check(used + rejected == num_rows(content), f"table {number}: {num_rows(content)} rows, {used} + {rejected}")
    tally.check(all(row.reason for row in table.rejected), f"table {number}: a row without a reason")
    tally.check(len({u.key for u in table.utterances}) == used, f"table {number}: a key twice")
    found["used"] += used
    found["rejected"] += rejected
    return True


def prepare_one(tally: Tally, number: int, folder: Path, content: bytes) -> None:
    """The same rows in the files of `prepare`: lists and `rejected.tsv`, a line each."""
    out = folder / "out"
    options = CommonVoiceOptions(corpus=folder / "corpus", langs=("ca",), out=out, ratio=1.0, max_rejected=1.0)
    try:
        stats = prepare_commonvoice(options, ClipChecker(folder / "checked.jsonl", mode="exists"))
    except DataError as error:
        tally.check("\n" not in str(error), f"table {number}: a message of several lines: {error}")
        return
    kept = sum(len(read_data_list(out / name / "data.list")) for name in ("train", "dev", "test"))
    rejected = len(read_lines(out / "rejected.tsv")) - 1
    tally.check(
        kept + rejected == stats["num_in"] == num_rows(content),
        f"table {number}: {num_rows(content)} rows, {kept} in the lists and {rejected} in rejected.tsv",
    )


def _with_pieces(rng: random.Random, rows: list[bytes]) -> bytes:
    """Separators, quotes and broken bytes anywhere behind the header."""
    body = bytearray(b"".join(rows))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(body) + 1)
        body[place:place] = rng.choice(_TEXT_PIECES)
    return HEADER + bytes(body)


def _with_fields(rng: random.Random, rows: list[bytes]) -> bytes:
    """Rows of another number of columns, of hostile names, of sentences that are none."""
    for _ in range(rng.randint(1, 4)):
        fields = rng.choice(rows).removesuffix(b"\n").split(b"\t")
        place = rng.randrange(len(fields))
        match rng.randrange(4):
            case 0:
                del fields[place]
            case 1:
                fields.insert(place, rng.choice(_SENTENCES))
            case 2:
                fields[1:2] = [rng.choice(_NAMES)]
            case _:
                fields[2:3] = [rng.choice(_SENTENCES)]
        rows.insert(rng.randrange(len(rows) + 1), b"\t".join(fields) + b"\n")
    return HEADER + b"".join(rows)


def _repeated(rng: random.Random, rows: list[bytes]) -> bytes:
    rows += rng.choices(rows, k=rng.randint(1, 5))
    rng.shuffle(rows)
    return HEADER + b"".join(rows)


def _windows(rng: random.Random, rows: list[bytes]) -> bytes:
    content = b"\xef\xbb\xbf" * rng.randint(0, 2) + (HEADER + b"".join(rows)).replace(b"\n", b"\r\n")
    return content if rng.random() < 0.5 else content.removesuffix(b"\r\n")


def _cut(rng: random.Random, rows: list[bytes]) -> bytes:
    content = HEADER + b"".join(rows)
    return content[: rng.randrange(len(content))]


def _random_bytes(rng: random.Random, rows: list[bytes]) -> bytes:
    """Some bytes anywhere, the header too; or nothing that was there."""
    content = bytearray(HEADER + b"".join(rows))
    for _ in range(rng.choice((1, 3, 10, len(content)))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)


def _header(rng: random.Random, rows: list[bytes]) -> bytes:
    """Columns in another order, missing, twice, quoted."""
    names = HEADER.removesuffix(b"\n").split(b"\t")
    match rng.randrange(4):
        case 0:
            rng.shuffle(names)
        case 1:
            names.remove(rng.choice(names))
        case 2:
            names.append(rng.choice(names))
        case _:
            names = [b'"' + name + b'"' for name in names]
    return b"\t".join(names) + b"\n" + b"".join(rows)


MUTATIONS: tuple[Mutation, ...] = (_with_pieces, _with_fields, _repeated, _windows, _cut, _random_bytes, _header)


# Spellings


def spell(tally: Tally, rng: random.Random, count: int) -> None:
    """NFC and NFD of the same text are one text: at preparation, as units, when scored."""
    for number in range(count):
        text, lang = "".join(rng.choices(_LETTERS, k=rng.randint(1, 20))), LANGS[number % len(LANGS)]
        forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
        one, other = (normalize_counted(form, lang) for form in forms)
        tally.check(one[0] == other[0], f"{lang}: {ascii(text)}: {ascii(one[0])} and {ascii(other[0])}")
        units = [count_units("char", [normalized]) for normalized, _ in (one, other)]
        phones = [count_units("phone", [normalize_phones(form)]) for form in forms]
        tally.check(units[0] == units[1] and phones[0] == phones[1], f"{lang}: {ascii(text)}: other units")
        for metric in ("cer", "wer", "per"):
            rates = score({"k": forms[0]}, {"k": forms[1]}, rules=Rules(metric=metric), num_resamples=0)
            tally.check(not rates.micro.counts.errors, f"{ascii(text)}: errors against itself by {metric}")


def _letters() -> list[str]:
    """Letters with marks as one character and as several, in several scripts, with spaces and punctuation."""
    blocks = (
        range(0xC0, 0x180),
        range(0x1E00, 0x1F00),
        range(0x300, 0x330),
        range(0x410, 0x460),
        range(0x1F00, 0x2000),
    )
    asian = (range(0xAC00, 0xD7A4, 97), range(0x915, 0x960), range(0x3041, 0x3097), range(0x621, 0x656))
    letters = [chr(code) for block in (*blocks, *asian) for code in block if unicodedata.category(chr(code)) != "Cn"]
    return [*letters, *"abcdefghijklmnopqrstuvwxyzIİ", *"      '’-.,?!", "\u212b", "\u2126", "\u1100\u1161", "ʰ", "ɛ̃"]


_LETTERS = _letters()


# CTC


def compare_ctc(tally: Tally, *, max_frames: int = 8) -> int:
    """Which labels have no alignment, for all labels of up to four of two units, against torch. Returns how many."""
    labels = [ids for length in range(5) for ids in product((1, 2), repeat=length)]
    targets = torch.tensor([[*ids, *(0,) * (4 - len(ids))] for ids in labels])
    target_lengths = torch.tensor([len(ids) for ids in labels])
    for frames in range(max_frames + 1):
        log_probs = torch.zeros(max(1, frames), len(labels), 3).log_softmax(-1)
        lengths = torch.full((len(labels),), frames)
        costs = torch.nn.functional.ctc_loss(log_probs, targets, lengths, target_lengths, reduction="none")
        for ids, cost in zip(labels, costs.tolist(), strict=True):
            possible = cost < float("inf")
            tally.check(ctc_feasible(ids, frames) == possible, f"ctc_feasible: {ids} in {frames} frames: {cost}")
            if ids and frames:
                reason = reason_to_reject(ids, 1.0, frames, FilterConf(min_length=0))
                tally.check((reason is None) == possible, f"{ids} in {frames} frames: {cost}, but {reason}")
    return len(labels) * (max_frames + 1)


# Repeats


def repeat(tally: Tally, folder: Path) -> int:
    """Prepare a release with real clips four times. Returns how often."""
    rows = make_rows("ca", 60, 0.02, num_speakers=12, num_sentences=40)
    write_language(folder / "corpus" / "ca", rows, clips="tone")
    seen: dict[str, dict[str, bytes]] = {}
    for locale, workers in product(("C", "C.UTF-8"), (1, 2)):
        out = folder / f"out-{locale}-{workers}"
        line = [sys.executable, "-m", "wenet_hs.bin.prepare", "commonvoice", "--corpus", str(folder / "corpus")]
        line += ["--langs", "ca", "--out", str(out), "--ratio", "0.5", "--num_workers", str(workers)]
        done = subprocess.run(line, env=os.environ | {"LC_ALL": locale}, capture_output=True, check=False)
        tally.check(
            done.returncode == 0, f"{locale}, {workers} workers: exit {done.returncode}: {done.stderr[-300:]!r}"
        )
        files = sorted(path for path in out.rglob("*") if path.is_file() and not path.name.startswith("."))
        seen[f"{locale}, {workers} workers"] = {str(path.relative_to(out)): path.read_bytes() for path in files}
    first = next(iter(seen.values()))
    tally.check(len(first) == 8, f"prepare wrote {sorted(first)}")
    for name, files in seen.items():
        different = [file for file in first.keys() | files.keys() if first.get(file) != files.get(file)]
        tally.check(not different, f"{name}: other bytes in {sorted(different)}")
    return len(seen)


if __name__ == "__main__":
    sys.exit(main())
