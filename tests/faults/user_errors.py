# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: files that do not belong together, damaged lines, wrong flags, scores of other utterances."""

import contextlib
import io
import json
import random
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from agreement import SCRIPTS, check_pairs, random_pair
from harness import Ended, Tally, call, without_fsync
from made_up_release import Row, write_language
from textbook import edit_distance
from tiny_corpus import LETTERS, TinyCorpus, write_tiny_corpus

from wenet_hs.bin import align, average, cmvn, compare, prepare, recognize, report, score, shards, train, tree, units
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import read_cmvn, write_cmvn
from wenet_hs.manifest import read_data_list, write_text
from wenet_hs.score import Rules, split_units
from wenet_hs.text.units import UnitTable
from wenet_hs.train.setup import FREE_TO_CHANGE
from wenet_hs.tree import Tree


def user_mistakes(folder: Path, tally: Tally, mismatches: int, mistakes: int = 500) -> str:
    """Mistakes of users are refused before any work, by name and without a traceback.

    Mismatches: units, trees, statistics, settings and weights that do not belong to a training. Mistakes: damaged
    lines in every kind of file, and wrong flags. Each command ends with exit code 2, or 0 if the damage means nothing,
    and every line on stderr names a file, a flag or an utterance.
    """
    with without_fsync():
        check_mismatches(folder / "mismatches", mismatches, tally)
        codes = make_mistakes((folder / "mistakes").resolve(), mistakes, tally)
    ended = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    return (
        f"{mismatches} mismatches refused by name before step 1 or the first utterance | {mistakes} mistakes ({ended}),"
        f" tracebacks and nameless lines {len(tally.violations)}"
    )


# ---- files that do not belong together


class TrainedFolder:
    """A finished training of the tree head. Some units have two Unicode forms."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally = folder, tally
        self.corpus: TinyCorpus = write_tiny_corpus(folder / "corpus")
        table = UnitTable.from_units(LETTERS + "éüñ")
        table.write(self.corpus.folder / "units.txt")
        Tree.huffman(range(1, len(table) + 1), units=table.units).save(self.corpus.folder / "tree.json")
        self.whole = self.corpus.train(folder / "whole", "max_epoch=1", head="hsoftmax")
        self.metrics = (self.whole / "metrics.jsonl").read_bytes()

    def recognize(self, model_dir: Path) -> Ended:
        """Decode with a model."""
        line = ("--model_dir", model_dir, "--test_data", self.corpus.cv_data, "--result_dir", self.folder / "result")
        return call(recognize, *line, "--modes", "ctc_greedy_search", "--device", "cpu")

    def resume(self, files: Path, *overrides: str) -> Ended:
        """Continue the training with units, tree and statistics of a folder."""
        paths = (f"tokenizer_conf.symbol_table_path={files / 'units.txt'}", f"head_conf.tree={files / 'tree.json'}")
        more = (f"cmvn_conf.cmvn_file={files / 'global_cmvn'}", "head=hsoftmax", "max_epoch=2", *overrides)
        return call(train, *self.corpus.arguments(self.whole, *paths, *more))

    def check_refused(self, ended: Ended, what: str, *named: str) -> None:
        """It stopped before the first step or utterance, and named each of `named`."""
        is_named = all(name in ended.err for name in named)
        self.tally.check(ended.is_user_error() and is_named, f"{what}: {named}: {ended.summary()}")
        has_begun = (self.whole / "metrics.jsonl").read_bytes() != self.metrics or (self.folder / "result").exists()
        self.tally.check(not has_begun, f"{what}: it had begun")


def check_mismatches(folder: Path, number: int, tally: Tally) -> None:
    """Mismatches in a folder and at a resume: units, tree, statistics, settings, weights."""
    generator, bed = tally.generator, TrainedFolder(folder, tally)
    settings = list(change_settings(bed))
    generator.shuffle(settings)
    copy = folder / "copy"
    for index in range(number):
        shutil.rmtree(copy, ignore_errors=True)
        match index % 5:
            case 0:
                name = ("units.txt", "tree.json")[index // 5 % 2]
                shutil.copytree(bed.whole, copy)
                what = CHANGES[name](copy / name, generator)
                bed.check_refused(bed.recognize(copy), f"{name} of the folder, {what}", name)
            case 1 | 2:
                name = ("units.txt", "units.txt", "tree.json", "global_cmvn")[index // 5 % 4]
                shutil.copytree(bed.corpus.folder, copy)
                what = CHANGES[name](copy / name, generator)
                bed.check_refused(bed.resume(copy), f"{name} at a resume, {what}", name, "(line ")
            case 3:
                override = settings[index // 5 % len(settings)]
                key = override.partition("=")[0].rpartition(".")[2]
                bed.check_refused(bed.resume(bed.corpus.folder, override), f"resume with {override}", key)
            case _:
                shutil.copytree(bed.whole, copy)
                what = change_weights(copy, WEIGHT_CHANGES[index // 5 % len(WEIGHT_CHANGES)], generator)
                bed.check_refused(bed.recognize(copy), f"final.pt, {what}", "final.pt")


def change_units(path: Path, generator: random.Random) -> str:
    """Change a unit table on disk. Returns what was done."""
    lines = path.read_text("utf-8").splitlines()
    first, other = generator.sample(range(3, len(lines)), 2)
    (unit, _), (another, _) = lines[first].split(), lines[other].split()
    kind = generator.choice(("swapped", "moved", "deleted", "added", "NFD", "renamed"))
    match kind:
        case "swapped":
            lines[first], lines[other] = f"{another} {first}", f"{unit} {other}"
        case "moved":
            lines.insert(other, lines.pop(first))
        case "deleted":
            lines = [*lines[:first], *(f"{line.split()[0]} {i}" for i, line in enumerate(lines[first + 1 :], first))]
        case "added":
            lines.append(f"ж {len(lines)}")
        case "NFD":
            lines = [unicodedata.normalize("NFD", line) for line in lines]
        case "renamed":
            lines[first] = f"ж {first}"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return kind


def change_tree(path: Path, generator: random.Random) -> str:
    """Write another tree. Returns what it is."""
    units = list(Tree.load(path).units or ())
    kind = generator.choice(("other counts", "other size", "other order", "NFD"))
    match kind:
        case "other size":
            units.append("ж")
        case "other order":
            units[4], units[5] = units[5], units[4]
        case "NFD":
            units = [unicodedata.normalize("NFD", unit) for unit in units]
    Tree.huffman([generator.randrange(1, 99) for _ in units], units=units).save(path)
    return kind


def change_cmvn(path: Path, generator: random.Random) -> str:
    """Change the statistics. Returns what was done."""
    mean_F, istd_F = (values.double() for values in read_cmvn(path))
    kind = generator.choice(("one value", "another size"))
    mean_F[generator.randrange(len(mean_F))] += 0.5
    size = len(mean_F) - (kind == "another size")
    sums, squares = (100 * mean_F)[:size], (100 * (istd_F**-2 + mean_F**2))[:size]
    write_cmvn(path, torch.cat([sums, squares, torch.tensor([100.0])]))
    return kind


CHANGES = {"units.txt": change_units, "tree.json": change_tree, "global_cmvn": change_cmvn}


def change_settings(bed: TrainedFolder) -> Iterator[str]:
    """An override for each setting of the training that a resume may not change."""

    def flatten(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in section.items():
            if isinstance(value, dict):
                yield from flatten(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    settings = load_config(bed.whole / "train.yaml").model_dump(mode="json", exclude={"provenance"})
    for key, value in flatten(settings):
        is_path = key.rpartition(".")[2] in ("symbol_table_path", "cmvn_file", "tree", "bpe_path")
        if key in FREE_TO_CHANGE or is_path or value is None:
            continue
        if isinstance(value, bool):
            other: Any = not value
        elif isinstance(value, int | float):
            other = value + 1 if isinstance(value, int) else value / 2 + 0.125
        else:
            other = "another" if isinstance(value, str) else [*value, 3]
        yield f"{key}={yaml.safe_dump(other, default_flow_style=True).splitlines()[0]}"


WEIGHT_CHANGES = ("delete", "rename", "add", "shorten", "widen", "replace by a number", "add a unit")


def change_weights(model_dir: Path, kind: str, generator: random.Random) -> str:
    """Change final.pt. Returns what was done."""
    state: dict[str, Any] = torch.load(model_dir / "final.pt", weights_only=True)
    name = generator.choice([name for name, value in state.items() if value.dim() > 0])
    flat, embedding = state[name].reshape(-1), "decoder.embed.0.weight"
    match kind:
        case "delete":
            del state[name]
        case "rename":
            state[name + ".other"] = state.pop(name)
        case "add":
            state["decoder.more." + name] = torch.zeros(3)
        case "shorten":
            state[name] = flat[:-1]
        case "widen":
            state[name] = torch.cat([flat, torch.zeros(3)])
        case "replace by a number":
            state[name] = 1.0
        case _:
            state[embedding] = torch.cat([state[embedding], state[embedding][:1]])
    buffer = io.BytesIO()
    torch.save(state, buffer)
    (model_dir / "final.pt").write_bytes(buffer.getvalue())
    (model_dir / "final.json").unlink(missing_ok=True)  # only the weights may tell
    return f"{kind} {name}"


# ---- mistakes in files and flags


@dataclass(frozen=True)
class Command:
    """A working command line, and its arguments that are files written by a user."""

    module: ModuleType
    line: tuple[object, ...]
    inputs: Sequence[Path]

    @property
    def name(self) -> str:
        """The command without `wenet-hs`."""
        return self.module.__name__.rpartition(".")[2]


def make_mistakes(folder: Path, number: int, tally: Tally) -> Counter[int]:
    """Make mistakes, two of three in a file, one in a flag. Returns the exit codes."""
    commands = list(make_commands(folder))
    codes: Counter[int] = Counter()
    with_inputs = [(command, path) for command in commands for path in command.inputs]
    for index in range(number):
        shutil.rmtree(folder / "made", ignore_errors=True)
        (folder / "made").mkdir()
        if index % 3 < 2:
            command, path = with_inputs[(index - index // 3) % len(with_inputs)]
            ended, what, wrong = run_with_damaged_input(command, path, tally.generator)
        else:
            ended, what, wrong = run_with_wrong_flag(folder, commands[index // 3 % len(commands)], tally.generator)
        codes[ended.code] += 1
        tally.check(ended.code in (0, 2) and ended.crash is None, f"{what}: {ended.summary()}")
        if ended.code == 2:
            lines = [line for line in ended.err.splitlines() if line.strip()]
            lines = lines[-1:] if "usage:" in ended.err else lines  # argparse: the usage, then one line
            is_named = bool(lines) and all(names_a_place(line, wrong) for line in lines)
            tally.check(is_named and ended.is_user_error(), f"{what}: names no file or flag: {lines}")
    return codes


def names_a_place(line: str, wrong: str) -> bool:
    """Whether a message names a path, a flag, an argument, a key of the config, an utterance, or the wrong word."""
    signs = ("/", "--", "utterance ", "argument", "check the path", "_conf.")
    return any(sign in line for sign in signs) or line.partition(": ")[0] in (wrong, ".", "checkpoints")


def make_commands(folder: Path) -> Iterator[Command]:
    """One small command of each kind."""
    corpus = write_tiny_corpus(folder / "corpus")
    model, inside, made = corpus.train(folder / "model", "max_epoch=1", head="hsoftmax"), corpus.folder, folder / "made"
    ref, hyp, unit_table, tree_file = (inside / name for name in ("ref", "hyp", "units.txt", "tree.json"))
    transcripts = {u.key: u.txt for u in read_data_list(corpus.cv_data)}
    write_text(ref, transcripts)
    write_text(hyp, {key: text[::-1] for key, text in transcripts.items()})
    rows = [Row(f"common_voice_ca_{n}.wav", f"Frase número {n}", f"speaker{n % 6}", 0.5) for n in range(12)]
    release = folder / "release" / "ca"
    write_language(release, rows, clips="tone")
    config, train_data, cv_data = corpus.config, corpus.train_data, corpus.cv_data
    head = ("head=hsoftmax", f"head_conf.tree={tree_file}", "max_epoch=1", "max_minutes=0.000001")  # one step
    rates = ("--metric", "cer", "--ref", ref, "--num_resamples", 9)
    decode = ("--modes", "attention_rescoring", "--beam_size", 2, "--device", "cpu")
    lines: list[tuple[ModuleType, tuple[object, ...], Sequence[Path]]] = [
        (train, tuple(corpus.arguments(made / "new", *head)), (config, train_data, config, cv_data, config)),
        (
            cmvn,
            ("--config", config, "--data_list", train_data, "--num_workers", 0, "--out", made / "c"),
            (config, train_data),
        ),
        (units, ("--data_list", train_data, "--kind", "char", "--out", made / "u"), (train_data,)),
        (
            tree,
            ("build", "--units", unit_table, "--data_list", train_data, "--out", made / "t"),
            (unit_table, train_data),
        ),
        (tree, ("show", tree_file), (tree_file,)),
        (
            prepare,
            ("commonvoice", "--corpus", release.parent, "--langs", "ca", "--out", made / "p", "--num_workers", 0),
            [release / name for name in ("validated.tsv", "clip_durations.tsv")],
        ),
        (score, (*rates, "--hyp", hyp), (ref, hyp)),
        (compare, (*rates, "--hyp_a", ref, "--hyp_b", hyp), (hyp,)),
        (
            recognize,
            ("--model_dir", model, "--test_data", cv_data, "--result_dir", made / "r", *decode),
            (cv_data, model / "units.txt", model / "train.yaml", model / "tree.json"),
        ),
        (align, ("--model_dir", model, "--data_list", cv_data, "--out", made / "a", "--device", "cpu"), (cv_data,)),
        (average, ("--model_dir", model, "--num", 2), ()),
        (shards, ("--data_list", cv_data, "--out", made / "s"), (cv_data,)),
        (report, ("--exp", model, "--out", made / "page.html"), (model / "metrics.jsonl",)),
    ]
    yield from (Command(*line) for line in lines)


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
LINE_CHANGES = ("delete", "double", "swap", "cut", "insert", "insert", "insert bytes", "shorten", "replace", "replace")


def run_with_damaged_input(command: Command, path: Path, generator: random.Random) -> tuple[Ended, str, str]:
    """Run a command with a fault in one line of a file. Returns how it ended, what was done, the wrong word."""
    original = path.read_bytes()
    lines = original.split(b"\n")
    kind, at = generator.choice(LINE_CHANGES), generator.randrange(max(1, len(lines) - 1))
    other, before = generator.randrange(len(lines)), lines[at]
    place, token = generator.randrange(len(before) + 1), generator.choice(TOKENS).encode()
    match kind:
        case "delete":
            del lines[at]
        case "double":
            lines.insert(other, before)
        case "swap":
            lines[at], lines[other] = lines[other], before
        case "cut":
            lines[at:] = [before[:place]]
        case "insert":
            lines[at] = before[:place] + token + before[place:]
        case "insert bytes":
            broken = generator.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"))
            lines[at] = before[:place] + broken + before[place:]
        case "shorten":
            lines[at] = before[:place] + before[place + generator.randint(1, 5) :]
        case "replace":
            sign = next((sign for sign in (b": ", b"\t", b" ") if sign in before), b" ")
            lines[at] = before.rpartition(sign)[0] + sign + token
    path.write_bytes(b"\n".join(lines))
    try:
        ended = call(command.module, *command.line)
    finally:
        path.write_bytes(original)
    now = lines[at] if at < len(lines) else b""
    return ended, f"{command.name}: {path.name}:{at + 1} {kind}: {before[:60]!r} → {now[:80]!r}", ""


VALUES = ("", " ", "/dev/null", "nowhere/at/all", "-1", "0", "1e99", "nan", "x", "été x", "a\x1b[2Jb", "--")


def run_with_wrong_flag(folder: Path, command: Command, generator: random.Random) -> tuple[Ended, str, str]:
    """Run a command with a wrong, missing or unknown flag. Returns how it ended, what was done, the wrong word."""
    line = list(map(str, command.line))
    at = generator.choice([index for index, word in enumerate(line) if not word.startswith("--")])
    kind = generator.choice(("value", "value", "value", "folder", "other file", "dropped", "unknown"))
    match kind:
        case "value":
            line[at] = generator.choice(VALUES)
        case "folder":
            line[at] = str(folder)
        case "other file":
            line[at] = str(folder / "corpus" / generator.choice(("units.txt", "tree.json", "train.list", "tiny.yaml")))
        case "dropped":
            del line[at]
        case "unknown":
            line.insert(at, "--no_such_flag")
    with contextlib.chdir(folder / "made"):  # a wrong path may be written to
        ended = call(command.module, *line)
    return ended, f"{command.name}: {kind} in {' '.join(line)[-300:]!r}", line[at] if at < len(line) else ""


# ---- scores of other utterances

NUM_UTTERANCES = 40
HYPOTHESIS_CHANGES = ("drop", "double", "rename", "add", "shuffle", "empty")


def scored_sets(folder: Path, tally: Tally, mutations: int, pairs: int = 5000) -> str:
    """Score hypotheses that do not belong to the reference: never a rate over another set of utterances.

    `score` refuses double keys by name. It counts and names missing keys, which are deletions, and keys without a
    reference (exit code 2). `compare` refuses systems that cover other utterances. Random pairs in twenty scripts have
    the counts of a textbook implementation and of jiwer.
    """
    generator, folder_pairs = tally.generator, []
    for index in range(NUM_UTTERANCES):
        folder_pairs.append(random_pair([*SCRIPTS][index % len(SCRIPTS)], generator))
    reference = {f"utt{index:03d}": ref for index, (ref, _) in enumerate(folder_pairs)}
    hypothesis = {f"utt{index:03d}": hyp for index, (_, hyp) in enumerate(folder_pairs)}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "ref", reference)
    write_text(folder / "whole", hypothesis)
    num_refused = 0
    for number in range(mutations):
        changes = [HYPOTHESIS_CHANGES[number % 6], *generator.sample(HYPOTHESIS_CHANGES, generator.randrange(3))]
        lines = change_hypothesis(hypothesis, changes, generator)
        num_refused += check_score(folder, lines, " and ".join(changes), reference, tally)
    num_silent = len(tally.violations)
    try:
        check_pairs(pairs)
    except AssertionError as error:
        tally.check(False, f"random pairs: {error}")
    return (
        f"{mutations} hypothesis files ({num_refused} refused, {mutations - num_refused} with a rate of all) | silent "
        f"rates {num_silent}/{mutations} | {pairs} random pairs as the textbook and jiwer count them"
    )


def change_hypothesis(
    hypothesis: dict[str, str], changes: Sequence[str], generator: random.Random
) -> list[tuple[str, str]]:
    """The lines of a changed hypothesis file."""
    lines = list(hypothesis.items())
    for change in changes:
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(lines))
            key, text = lines[at]
            match change:
                case "drop":
                    del lines[at]
                case "double":
                    lines.insert(generator.randrange(len(lines)), (key, generator.choice((text, "other"))))
                case "rename":
                    lines[at] = (generator.choice((key.upper(), key + "0", key[:-1], "ü" + key)), text)
                case "add":
                    lines.insert(at, (f"new{generator.randrange(99)}", text))
                case "shuffle":
                    generator.shuffle(lines)
                case "empty":
                    lines[at] = (key, "")
    return lines


def check_score(
    folder: Path, lines: Sequence[tuple[str, str]], where: str, reference: dict[str, str], tally: Tally
) -> bool:
    """Score a hypothesis file. Returns whether it was refused."""
    (folder / "hyp").write_text("".join(f"{key} {text}".rstrip() + "\n" for key, text in lines), "utf-8")
    common = ("--metric", "cer", "--ref", folder / "ref")
    files = ("--hyp", folder / "hyp", "--json", folder / "score.json")
    ended = call(score, *common, "--num_resamples", 0, *files)
    double = {key for key, count in Counter(key for key, _ in lines).items() if count > 1}
    if double:
        is_named = any(key in ended.err for key in double) and "hyp" in ended.err
        is_refused = ended.is_user_error() and not ended.out
        tally.check(is_refused and is_named, f"{where}: a rate of some of them: {ended.out[-200:]} {ended.err}")
        return True
    found = dict(lines)
    missing, extra = reference.keys() - found.keys(), found.keys() - reference.keys()
    tally.check(ended.is_user_error() if extra else ended.code == 0, f"{where}: {ended.summary()}")
    record = json.loads((folder / "score.json").read_text("utf-8"))
    for what, wrong, text in (("missing", missing, ended.out), ("extra", extra, ended.err)):
        is_named = not wrong or (str(len(wrong)) in text and any(key in text for key in wrong))
        tally.check(set(record[what]) == wrong and is_named, f"{where}: {len(wrong)} {what}, printed {text}")
    errors, num_units = 0.0, 0
    for key, text in reference.items():
        expected = split_units(text, Rules(metric="cer"))
        errors += edit_distance(expected, split_units(found.get(key, ""), Rules(metric="cer")))
        num_units += len(expected)
    rate = f"{100 * errors / num_units:.2f}"
    tally.check(rate in ended.out, f"{where}: a rate over other utterances: not {rate}, but {ended.out}")
    if missing or extra:
        ended = call(compare, *common, "--hyp_a", folder / "whole", "--hyp_b", folder / "hyp")
        tally.check(ended.is_user_error(), f"{where}: compare: {ended.summary()}")
    return False
