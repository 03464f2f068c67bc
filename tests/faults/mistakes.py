# SPDX-License-Identifier: Apache-2.0
"""Make the mistakes that users make: each is refused by name before any work, and none ends in a traceback.

First files that no longer belong to each other (mismatches.py): two units swapped, one deleted or added, NFC and NFD,
another tree, other statistics, other settings at a resume, other weights. Each must be refused before the first step
or utterance; where the old file is at hand, at a resume, with the first difference.

Then configs, data lists, tables of Common Voice, unit tables, trees, statistics and transcripts with damage in a line,
and flags with values that make no sense, through the real commands in one process. Each command ends with exit code 2
(or 0, where the damage means nothing), every line on stderr names a file, a flag or an utterance, and there is no
traceback.

Example: python tests/faults/mistakes.py --mismatches 200 --mistakes 500
"""

import contextlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_script import Ended, Tally, call, forget_fsync, one_thread, script_parser
from mismatches import check_mismatches
from tiny_corpus import write_tiny_corpus

from wenet_hs.bin import align, average, cmvn, compare, prepare, recognize, report, score, shards, train, tree, units
from wenet_hs.manifest import read_data_list, write_text

SHORT = ("max_epoch=1", "max_minutes=0.000001")
"""So that a training whose config is still one ends after a step."""


@dataclass(frozen=True)
class Command:
    """A command line that works, and which of its arguments are files that a user wrote or made."""

    module: ModuleType
    line: tuple[str, ...]
    inputs: tuple[Path, ...]

    def name(self) -> str:
        """As the user calls it."""
        return self.module.__name__.rpartition(".")[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Make them, look, count. Returns the exit code."""
    parser = script_parser(__doc__)
    parser.add_argument("--mismatches", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--mistakes", type=int, default=500, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    one_thread()
    back = forget_fsync()
    tally = Tally(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (args.scratch or Path(temporary)).resolve()
        check_mismatches(scratch / "mismatches", args.mismatches, tally)
        codes = make_mistakes(scratch / "mistakes", args.mistakes, tally)
    back()
    ended = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    return tally.conclude(
        f"{args.mismatches} mismatches refused by name before step 1 or the first utterance",
        f"{args.mistakes} mistakes ({ended}), tracebacks and nameless lines {len(tally.violations)}",
    )


def make_mistakes(scratch: Path, number: int, tally: Tally) -> Counter[int]:
    """Exit codes of `number` mistakes: two of three in a file, one in a flag."""
    generator, commands = random.Random(tally.seed), list(working_commands(scratch))
    codes: Counter[int] = Counter()
    with_inputs = [(command, path) for command in commands for path in command.inputs]
    for index in range(number):
        clear(scratch)
        if index % 3 < 2:
            command, path = with_inputs[(index - index // 3) % len(with_inputs)]
            ended, what = with_damaged_input(scratch, command, path, generator)
        else:
            ended, what = with_wrong_flag(scratch, commands[index // 3 % len(commands)], generator)
        codes[ended.code] += 1
        look_at(ended, what, tally)
    return codes


def look_at(ended: Ended, what: str, tally: Tally) -> None:
    """Check how it ended."""
    tally.check(ended.code in (0, 2) and ended.crash is None, f"{what}: {ended.shown()}")
    lines = [line for line in ended.err.splitlines() if line.strip()]
    if "usage:" in ended.err:  # argparse: the usage, then one line
        lines = lines[-1:]
    if ended.code == 2:
        tally.check(bool(lines), f"{what}: nothing said")
        nameless = [line for line in lines if not names_a_place(line, what)]
        tally.check(not nameless and "Traceback" not in ended.err, f"{what}: names no file or flag: {nameless}")


def names_a_place(line: str, what: str) -> bool:
    """Whether a line tells where to look: a path, a flag, an argument, a key of the config, an utterance, or the word
    that was wrong."""
    place = line.partition(": ")[0]
    signs = ("/", "--", "utterance ", "argument", "check the path", "_conf.")
    return any(sign in line for sign in signs) or place in (*what.split("\n"), ".", "checkpoints")


# ---- commands that work


def working_commands(scratch: Path) -> Iterator[Command]:
    """One of each kind, small."""
    corpus = write_tiny_corpus(scratch / "corpus")
    model = corpus.train(scratch / "model", "max_epoch=1", head="hsoftmax")
    inside = corpus.folder
    made, transcripts = scratch / "made", {u.key: u.txt for u in read_data_list(corpus.cv_data)}
    write_text(inside / "ref", transcripts)
    write_text(inside / "hyp", {key: text[::-1] for key, text in transcripts.items()})
    release = write_release(scratch / "release")
    head = ("--override_config", "head=hsoftmax", f"head_conf.tree={inside / 'tree.json'}", *SHORT)
    lists = ("--train_data", corpus.train_data, "--cv_data", corpus.cv_data)

    def command(module: ModuleType, *line: object, inputs: Sequence[Path]) -> Command:
        return Command(module, tuple(map(str, line)), tuple(inputs))

    tables = [inside / name for name in ("units.txt", "tree.json", "global_cmvn")]
    config = corpus.config
    yield command(
        *(train, "--config", config, *lists, "--model_dir", made / "new", "--device", "cpu", *head),
        inputs=(config, corpus.train_data, config, corpus.cv_data, config),
    )
    yield command(cmvn, "--config", config, "--data_list", corpus.train_data, "--num_workers", 0, "--out", made / "c",
                  inputs=(config, corpus.train_data))  # fmt: skip
    yield command(units, "--data_list", corpus.train_data, "--kind", "char", "--out", made / "u",
                  inputs=(corpus.train_data,))  # fmt: skip
    yield command(tree, "build", "--units", tables[0], "--data_list", corpus.train_data, "--out", made / "t",
                  inputs=(tables[0], corpus.train_data))  # fmt: skip
    yield command(tree, "show", tables[1], inputs=(tables[1],))
    yield command(prepare, "commonvoice", "--corpus", release, "--langs", "ca", "--out", made / "p", "--num_workers", 0,
                  inputs=[release / "ca" / name for name in ("validated.tsv", "clip_durations.tsv")])  # fmt: skip
    yield command(score, "--metric", "cer", "--ref", inside / "ref", "--hyp", inside / "hyp", "--num_resamples", 9,
                  inputs=(inside / "ref", inside / "hyp"))  # fmt: skip
    yield command(compare, "--metric", "cer", "--ref", inside / "ref", "--hyp_a", inside / "ref", "--hyp_b",
                  inside / "hyp", "--num_resamples", 9, inputs=(inside / "hyp",))  # fmt: skip
    yield command(recognize, "--model_dir", model, "--test_data", corpus.cv_data, "--result_dir", made / "r",
                  "--modes", "attention_rescoring", "--beam_size", 2, "--device", "cpu",
                  inputs=(corpus.cv_data, model / "units.txt", model / "train.yaml", model / "tree.json"))  # fmt: skip
    yield command(align, "--model_dir", model, "--data_list", corpus.cv_data, "--out", made / "a", "--device", "cpu",
                  inputs=(corpus.cv_data,))  # fmt: skip
    yield command(average, "--model_dir", model, "--num", 2, inputs=())
    yield command(shards, "--data_list", corpus.cv_data, "--out", made / "s", inputs=(corpus.cv_data,))
    yield command(report, "--exp", model, "--out", made / "page.html", inputs=(model / "metrics.jsonl",))


def write_release(folder: Path) -> Path:
    """A release of Common Voice with the clips of the tiny corpus' kind."""
    language = folder / "ca"
    clips = write_tiny_corpus(folder / "source", num_train=12, num_cv=1)
    (language / "clips").mkdir(parents=True)
    rows, lengths = ["client_id\tpath\tsentence\tup_votes"], ["clip\tduration[ms]"]
    for number, utterance in enumerate(read_data_list(clips.train_data)):
        name = f"common_voice_ca_{number}.wav"
        shutil.copy(utterance.wav, language / "clips" / name)
        rows.append(f"speaker{number % 6}\t{name}\tFrase número {number}\t2")
        lengths.append(f"{name}\t{round(1000 * (utterance.duration or 0))}")
    (language / "validated.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    (language / "clip_durations.tsv").write_text("\n".join(lengths) + "\n", "utf-8")
    return folder


def clear(scratch: Path) -> None:
    """Take away what the last command made."""
    shutil.rmtree(scratch / "made", ignore_errors=True)
    (scratch / "made").mkdir()


# ---- mistakes in files

TOKENS = (
    *("\0", "\ufeff", "\u2028", "\u0301", "\t", "\r", "\n", '"', "'", "{", "}", "[", "]", ":", ": ", "- ", "#", "&a "),
    *(
        "*a",
        "!!x ",
        "<<: ",
        "NaN",
        "1e999",
        "-1",
        "0",
        "null",
        "true",
        "ü",
        "🎈",
        " ",
        "\\",
        "%",
        "x" * 5000,
        "\x1b[2J",
    ),
)


def _delete_line(lines: list[bytes], at: int, generator: random.Random) -> None:
    del lines[at]


def _double_line(lines: list[bytes], at: int, generator: random.Random) -> None:
    lines.insert(generator.randrange(len(lines)), lines[at])


def _swap_lines(lines: list[bytes], at: int, generator: random.Random) -> None:
    other = generator.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]


def _cut(lines: list[bytes], at: int, generator: random.Random) -> None:
    lines[at:] = [lines[at][: generator.randrange(len(lines[at]) + 1)]]


def _insert(lines: list[bytes], at: int, generator: random.Random) -> None:
    where = generator.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:where] + generator.choice(TOKENS).encode() + lines[at][where:]


def _insert_bytes(lines: list[bytes], at: int, generator: random.Random) -> None:
    where = generator.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:where] + generator.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + lines[at][where:]


def _delete_letters(lines: list[bytes], at: int, generator: random.Random) -> None:
    where = generator.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:where] + lines[at][where + generator.randint(1, 5) :]


def _replace_value(lines: list[bytes], at: int, generator: random.Random) -> None:
    for sign in (b": ", b"\t", b" "):
        if sign in lines[at]:
            lines[at] = lines[at].rpartition(sign)[0] + sign + generator.choice(TOKENS).encode()
            return


CHANGES: tuple[Callable[[list[bytes], int, random.Random], None], ...] = (
    *(_delete_line, _double_line, _swap_lines, _cut, _insert, _insert, _insert_bytes),
    *(_delete_letters, _replace_value, _replace_value),
)


def with_damaged_input(scratch: Path, command: Command, path: Path, generator: random.Random) -> tuple[Ended, str]:
    """Run a command whose file has a fault, and put the file back; also what was done."""
    original = path.read_bytes()
    lines = original.split(b"\n")
    change = generator.choice(CHANGES)
    at = generator.randrange(max(1, len(lines) - 1))
    before = lines[at]
    change(lines, at, generator)
    path.write_bytes(b"\n".join(lines))
    try:
        ended = call(command.module, *command.line)
    finally:
        path.write_bytes(original)
    now = lines[at] if at < len(lines) else b""
    return ended, f"{command.name()}: {path.name}:{at + 1} {change.__name__[1:]}: {before[:60]!r} → {now[:80]!r}"


# ---- mistakes in flags

VALUES = ("", " ", "/dev/null", "nowhere/at/all", "-1", "0", "1e99", "nan", "x", "été x", "a\x1b[2Jb", "--")


def with_wrong_flag(scratch: Path, command: Command, generator: random.Random) -> tuple[Ended, str]:
    """Run a command with a wrong value, without a flag, or with an unknown one; also what was done."""
    line = list(command.line)
    at = generator.choice([index for index, word in enumerate(line) if not word.startswith("--")])
    kind = generator.choice(("value", "value", "value", "folder", "other file", "dropped", "unknown"))
    match kind:
        case "value":
            line[at] = generator.choice(VALUES)
        case "folder":
            line[at] = str(scratch)
        case "other file":
            line[at] = str(scratch / "corpus" / generator.choice(("units.txt", "tree.json", "train.list", "tiny.yaml")))
        case "dropped":
            del line[at]
        case "unknown":
            line.insert(at, "--no_such_flag")
    wrong = line[at] if at < len(line) else ""
    with contextlib.chdir(scratch / "made"):  # a path that is no path of this script's may be written to
        return call(command.module, *line), f"{command.name()}: {kind} of\n{wrong}\nin {' '.join(line)[-300:]!r}"


if __name__ == "__main__":
    sys.exit(main())
