# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: files that do not belong together, damaged lines of files, scores of other utterances."""

import json
import random
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from agreement import SCRIPTS, check_pairs, edit_distance, random_pair
from harness import Ended, Tally, call
from made_up_release import Row, write_language
from tiny_corpus import LETTERS, write_tiny_corpus

from wenet_hs.bin import align, cmvn, compare, embed, prepare, recognize, report, score, shards, train, tree, units
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import read_cmvn, write_cmvn
from wenet_hs.manifest import read_data_list, write_text
from wenet_hs.score import Rules, split_units
from wenet_hs.text.units import UnitTable
from wenet_hs.train.model_folder import FREE_TO_CHANGE
from wenet_hs.tree import Tree


def user_mistakes(folder: Path, tally: Tally, mismatches: int, mistakes: int = 500) -> str:
    """Files that do not belong together are refused before step 1; no mistake of a user ends in a traceback.

    Mismatches: units, trees, statistics, settings and weights that do not belong to a training. Mistakes: damaged
    lines in every kind of file. Each command ends with exit code 2, or 0 if the damage means nothing, and every line
    on stderr names a file, a flag or an utterance. The tests of each command have tables of wrong flags.
    """
    check_mismatches(folder / "mismatches", mismatches, tally)
    codes = make_mistakes((folder / "mistakes").resolve(), mistakes, tally)
    ended = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    return (
        f"{mismatches} mismatches refused by name before step 1 or the first utterance | {mistakes} mistakes ({ended}),"
        f" tracebacks and nameless lines {len(tally.violations)}"
    )


# ---- files that do not belong together


def check_mismatches(folder: Path, number: int, tally: Tally) -> None:
    """Decode with a changed copy of a finished training, or resume it with changed files and settings."""
    generator, corpus, copy = tally.generator, write_tiny_corpus(folder / "corpus"), folder / "copy"
    table = UnitTable.from_units(LETTERS + "éüñ")  # some have two Unicode forms
    table.write(corpus.folder / "units.txt")
    Tree.huffman(range(1, len(table) + 1), units=table.units).save(corpus.folder / "tree.json")
    whole = corpus.train(folder / "whole", "max_epoch=1", head="hsoftmax")
    metrics = (whole / "metrics.jsonl").read_bytes()
    settings = list(change_settings(whole))
    generator.shuffle(settings)

    def decode() -> Ended:
        line = ("--model_dir", copy, "--test_data", corpus.cv_data, "--result_dir", folder / "result")
        return call(recognize, *line, "--modes", "ctc_greedy_search", "--device", "cpu")

    def resume(files: Path, *overrides: str) -> Ended:
        paths = (f"tokenizer_conf.symbol_table_path={files / 'units.txt'}", f"head_conf.tree={files / 'tree.json'}")
        more = (f"cmvn_conf.cmvn_file={files / 'global_cmvn'}", "head=hsoftmax", "max_epoch=2", *overrides)
        return call(train, *corpus.arguments(whole, *paths, *more))

    for index in range(number):
        turn, is_resume = index // 2, index % 2 == 1
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(corpus.folder if is_resume else whole, copy)
        if not is_resume:
            name = ("units.txt", "tree.json", "final.pt")[turn % 3]
            what, named = f"{name} of the folder, {change_file(copy / name, generator)}", [name]
            ended = decode()
        elif turn % 2:
            what = settings[turn // 2 % len(settings)]
            named = [what.partition("=")[0].rpartition(".")[2]]
            ended = resume(corpus.folder, what)
        else:
            name = ("units.txt", "tree.json", "global_cmvn")[turn // 2 % 3]
            what, named = f"{name} at a resume, {change_file(copy / name, generator)}", [name, "(line "]
            ended = resume(copy)
        is_named = all(name in ended.err for name in named)
        tally.check(ended.is_user_error() and is_named, f"{what}: {named}: {ended.summary()}")
        has_begun = (whole / "metrics.jsonl").read_bytes() != metrics or (folder / "result").exists()
        tally.check(not has_begun, f"{what}: it had begun")


CHANGES = {
    "units.txt": ("swapped", "deleted", "added", "NFD", "renamed"),
    "tree.json": ("other counts", "added", "swapped", "NFD"),
    "global_cmvn": ("one value", "another size"),
    "final.pt": ("deleted", "renamed", "shortened", "a number"),
}


def change_file(path: Path, generator: random.Random) -> str:
    """Change a file of a model so that it no longer fits the others. Returns what was done."""
    kind = generator.choice(CHANGES[path.name])
    match path.name:
        case "units.txt":
            units_ = change_units(list(UnitTable.read(path).units), kind, generator)
            path.write_text("".join(f"{unit} {number}\n" for number, unit in enumerate(units_)), "utf-8")
        case "tree.json":
            units_ = change_units(list(Tree.load(path).units or ()), kind, generator)
            Tree.huffman([generator.randrange(1, 99) for _ in units_], units=units_).save(path)
        case "global_cmvn":
            mean_F, istd_F = (values.double() for values in read_cmvn(path))
            mean_F[generator.randrange(len(mean_F))] += 0.5
            size = len(mean_F) - (kind == "another size")
            sums, squares = (100 * mean_F)[:size], (100 * (istd_F**-2 + mean_F**2))[:size]
            write_cmvn(path, torch.cat([sums, squares, torch.tensor([100.0])]))
        case "final.pt":
            change_weights(path, kind, generator)
    return kind


def change_units(names: list[str], kind: str, generator: random.Random) -> list[str]:
    first, other = generator.sample(range(3, len(names)), 2)
    match kind:
        case "swapped":
            names[first], names[other] = names[other], names[first]
        case "deleted":
            del names[first]
        case "added":
            names.append("ж")
        case "renamed":
            names[first] = "ж"
        case "NFD":
            return [unicodedata.normalize("NFD", name) for name in names]
    return names


def change_weights(path: Path, kind: str, generator: random.Random) -> None:
    """Change final.pt; only the weights may tell."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    name = generator.choice([name for name, value in state.items() if value.dim() > 0])
    weight = state.pop(name)
    others = {"renamed": {name + ".other": weight}, "shortened": {name: weight.reshape(-1)[:-1]}, "a number": {name: 1}}
    state |= others.get(kind, {})
    torch.save(state, path)
    path.with_suffix(".json").unlink()


def change_settings(model_dir: Path) -> Iterator[str]:
    """An override for each setting of the training that a resume may not change."""
    sections = [("", load_config(model_dir / "train.yaml").model_dump(mode="json", exclude={"provenance"}))]
    for prefix, section in sections:  # grows as it is read
        sections += [(f"{prefix}{key}.", value) for key, value in section.items() if isinstance(value, dict)]
        for key, value in section.items():
            is_path = key in ("symbol_table_path", "cmvn_file", "tree", "bpe_path")
            if prefix + key in FREE_TO_CHANGE or is_path or value is None or isinstance(value, dict):
                continue
            if isinstance(value, bool):
                other: Any = not value
            elif isinstance(value, int | float):
                other = value + 1 if isinstance(value, int) else value / 2 + 0.125
            else:
                other = "another" if isinstance(value, str) else [*value, 3]
            yield f"{prefix}{key}={yaml.safe_dump(other, default_flow_style=True).splitlines()[0]}"


# ---- damaged lines


SIGNS = ("/", "--", "utterance ", "_conf.", "checkpoints: ", "the path in the config")
"""Signs of a path, a flag, an utterance or a key of the config."""


def make_mistakes(folder: Path, number: int, tally: Tally) -> Counter[int]:
    """Damage a line of a file of each command in turn. Returns the exit codes."""
    commands = list(make_commands(folder))
    for module, line, _ in commands:
        ended = call(module, *line)
        tally.check(ended.code == 0, f"{module.__name__} of whole files: {ended.summary()}")
    inputs = [(module, line, path) for module, line, paths in commands for path in paths]
    codes: Counter[int] = Counter()
    for index in range(number):
        shutil.rmtree(folder / "made", ignore_errors=True)
        module, line, path = inputs[index % len(inputs)]
        original = path.read_bytes()
        content, what = damage_line(original, tally.generator)
        path.write_bytes(content)
        ended = call(module, *line)
        path.write_bytes(original)
        where = f"{module.__name__}: {path.name}:{what}"
        codes[ended.code] += 1
        tally.check(ended.code in (0, 2) and ended.crash is None, f"{where}: {ended.summary()}")
        if ended.code == 2:
            lines = [text for text in ended.err.splitlines() if text.strip()]
            is_named = all(any(sign in text for sign in SIGNS) for text in lines)
            tally.check(is_named and ended.is_user_error(), f"{where}: names no file or flag: {lines}")
    return codes


def make_commands(folder: Path) -> Iterator[tuple[ModuleType, Sequence[object], Sequence[Path]]]:
    """(module, arguments, files written by a user) of one small command of each kind."""
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
    of_train = ("--data_list", train_data, "--out")
    of_model = ("--model_dir", model, "--device", "cpu")
    yield train, (*corpus.arguments(made / "new", *head),), (config, train_data, config, cv_data, config)
    yield cmvn, (*of_train, made / "c", "--config", config, "--num_workers", 0), (config, train_data)
    yield units, (*of_train, made / "u", "--kind", "char"), (train_data,)
    yield tree, ("build", *of_train, made / "t", "--units", unit_table), (unit_table, train_data)
    yield tree, ("show", tree_file), (tree_file,)
    line = (*of_train, made / "v", "--tokenizer", "char", "--dim", 4, "--epochs", 1, "--tree", tree_file)
    yield embed, (*line, "--units", unit_table), (train_data, unit_table, tree_file)
    line = ("commonvoice", "--corpus", release.parent, "--langs", "ca", "--out", made / "p", "--num_workers", 0)
    yield prepare, line, [release / name for name in ("validated.tsv", "clip_durations.tsv")]
    yield score, (*rates, "--hyp", hyp), (ref, hyp)
    yield compare, (*rates, "--hyp_a", ref, "--hyp_b", hyp), (hyp,)
    line = (*of_model, "--test_data", cv_data, "--result_dir", made / "r", "--modes", "attention_rescoring")
    inputs = (cv_data, model / "units.txt", model / "train.yaml", model / "tree.json")
    yield recognize, (*line, "--beam_size", 2), inputs
    yield align, (*of_model, "--data_list", cv_data, "--out", made / "a"), (cv_data,)
    yield shards, ("--data_list", cv_data, "--out", made / "s"), (cv_data,)
    yield report, ("--exp", model, "--out", made / "page.html"), (model / "metrics.jsonl",)


TOKENS = [
    *b"\0 \xff\xfe \xc3 \xed\xa0\x80 \" ' { [ ] : - # &a *a !!x <<: NaN 1e999 -1 0 null true \\ \x1b[2J".split(b" "),
    *(text.encode() for text in ("\ufeff", "\u2028", "\u0301", "\t", "\r", "\n", ": ", " ", "ü", "🎈", "x" * 5000)),
]
LINE_CHANGES = ("delete", "double", "cut", "insert", "insert", "shorten", "replace", "replace")


def damage_line(content: bytes, generator: random.Random) -> tuple[bytes, str]:
    """Damage one line of a file. Returns the new content and what was done."""
    lines = content.split(b"\n")
    kind, at = generator.choice(LINE_CHANGES), generator.randrange(max(1, len(lines) - 1))
    before, token = lines[at], generator.choice(TOKENS)
    place = generator.randrange(len(before) + 1)
    match kind:
        case "delete":
            del lines[at]
        case "double":
            lines.insert(generator.randrange(len(lines)), before)
        case "cut":
            lines[at:] = [before[:place]]
        case "insert":
            lines[at] = before[:place] + token + before[place:]
        case "shorten":
            lines[at] = before[:place] + before[place + generator.randint(1, 5) :]
        case "replace":
            sign = next((sign for sign in (b": ", b"\t", b" ") if sign in before), b" ")
            lines[at] = before.rpartition(sign)[0] + sign + token
    return b"\n".join(lines), f"{at + 1} {kind}: {before[:60]!r}"


# ---- scores of other utterances

HYPOTHESIS_CHANGES = ("drop", "double", "add", "empty")


def scored_sets(folder: Path, tally: Tally, mutations: int, pairs: int = 5000) -> str:
    """A score is never printed over a different set of utterances than asked for.

    `score` refuses double keys by name. It counts and names missing keys, which are deletions, and keys without a
    reference (exit code 2). `compare` refuses systems that cover other utterances. Random pairs in twenty scripts have
    the counts of a textbook implementation and of jiwer.
    """
    generator = tally.generator
    texts = {f"utt{index:03d}": random_pair([*SCRIPTS][index % len(SCRIPTS)], generator) for index in range(40)}
    reference = {key: ref for key, (ref, _) in texts.items()}
    hypothesis = {key: hyp for key, (_, hyp) in texts.items()}
    write_text(folder / "ref", reference)
    write_text(folder / "whole", hypothesis)
    num_refused = 0
    for _ in range(mutations):
        changes = generator.choices(HYPOTHESIS_CHANGES, k=generator.randint(1, 6))
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
    lines = list(hypothesis.items())
    for change in changes:
        at = generator.randrange(len(lines))
        key, text = lines[at]
        match change:
            case "drop":
                del lines[at]
            case "double":
                lines.insert(generator.randrange(len(lines)), (key, generator.choice((text, "other"))))
            case "add":
                lines.insert(at, (generator.choice((key.upper(), key + "0", key[:-1], "ü" + key)), text))
            case "empty":
                lines[at] = (key, "")
    return lines


def check_score(
    folder: Path, lines: Sequence[tuple[str, str]], where: str, reference: dict[str, str], tally: Tally
) -> bool:
    """Score a hypothesis file. Returns whether it was refused."""
    (folder / "hyp").write_text("".join(f"{key} {text}".rstrip() + "\n" for key, text in lines), "utf-8")
    common, rules = ("--metric", "cer", "--ref", folder / "ref"), Rules(metric="cer")
    files = ("--hyp", folder / "hyp", "--json", folder / "score.json")
    ended, found = call(score, *common, "--num_resamples", 0, *files), dict(lines)
    if len(found) < len(lines):
        double = [key for key, count in Counter(key for key, _ in lines).items() if count > 1]
        is_named = any(key in ended.err for key in double) and "hyp" in ended.err
        is_refused = ended.is_user_error() and not ended.out
        tally.check(is_refused and is_named, f"{where}: a rate of some of them: {ended.out[-200:]} {ended.err}")
        return True
    missing, extra = reference.keys() - found.keys(), found.keys() - reference.keys()
    tally.check(ended.is_user_error() if extra else ended.code == 0, f"{where}: {ended.summary()}")
    record = json.loads((folder / "score.json").read_text("utf-8"))
    for what, wrong, text in (("missing", missing, ended.out), ("extra", extra, ended.err)):
        is_named = not wrong or (str(len(wrong)) in text and any(key in text for key in wrong))
        tally.check(set(record[what]) == wrong and is_named, f"{where}: {len(wrong)} {what}, printed {text}")
    expected = {key: split_units(text, rules) for key, text in reference.items()}
    errors = sum(edit_distance(ref, split_units(found.get(key, ""), rules)) for key, ref in expected.items())
    rate = f"{100 * errors / sum(map(len, expected.values())):.2f}"
    tally.check(rate in ended.out, f"{where}: a rate over other utterances: not {rate}, but {ended.out}")
    if missing or extra:
        ended = call(compare, *common, "--hyp_a", folder / "whole", "--hyp_b", folder / "hyp")
        tally.check(ended.is_user_error(), f"{where}: compare: {ended.summary()}")
    return False
