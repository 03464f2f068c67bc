# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: damaged lines of files."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from harness import Tally, call
from made_up_release import Row, write_language
from tiny_corpus import write_tiny_corpus

from wenet_hs.bin import (
    align,
    cmvn,
    compare,
    embed,
    prepare,
    recognize,
    report,
    score,
    shards,
    train,
    tree,
    units,
)
from wenet_hs.manifest.data_list import read_data_list, write_text

SIGNS = ("/", "--", "utterance ", "_conf.", "checkpoints: ", "the path in the config")
"""Signs of a path, a flag, an utterance or a key of the config."""


def user_mistakes(folder: Path, tally: Tally, mistakes: int) -> str:
    """No mistake of a user ends in a traceback.

    A line of a file of each command is damaged in turn. The command ends with exit code 2, or 0 if
    the damage means nothing, and every line on stderr names a file, a flag or an utterance. The
    tests of each command have tables of wrong flags.
    """
    folder = folder.resolve()
    commands = list(make_commands(folder))
    for module, line, _ in commands:
        ended = call(module, *line)
        tally.check(ended.code == 0, f"{module.__name__} of whole files: {ended.summary()}")
    inputs = [(module, line, path) for module, line, paths in commands for path in paths]
    codes: Counter[int] = Counter()
    for index in range(mistakes):
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
            tally.check(
                is_named and ended.is_user_error(), f"{where}: names no file or flag: {lines}"
            )
    by_code = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    return f"{mistakes} mistakes ({by_code}), tracebacks and nameless lines {len(tally.violations)}"


def make_commands(folder: Path) -> Iterator[tuple[ModuleType, Sequence[object], Sequence[Path]]]:
    """(module, arguments, files written by a user) of one small command of each kind."""
    corpus = write_tiny_corpus(folder / "corpus")
    model, inside, made = (
        corpus.train(folder / "model", "max_epoch=1", head="hsoftmax"),
        corpus.folder,
        folder / "made",
    )
    ref, hyp, unit_table, tree_file = (
        inside / name for name in ("ref", "hyp", "units.txt", "tree.json")
    )
    transcripts = {u.key: u.txt for u in read_data_list(corpus.cv_data)}
    write_text(ref, transcripts)
    write_text(hyp, {key: text[::-1] for key, text in transcripts.items()})
    rows = [
        Row(f"common_voice_ca_{n}.wav", f"Frase número {n}", f"speaker{n % 6}", 0.5)
        for n in range(12)
    ]
    release = folder / "release" / "ca"
    write_language(release, rows, clips="tone")
    config, train_data, cv_data = corpus.config, corpus.train_data, corpus.cv_data
    head = (
        "head=hsoftmax",
        f"head_conf.tree={tree_file}",
        "max_epoch=1",
        "max_minutes=0.000001",
    )  # one step
    rates = ("--metric", "cer", "--ref", ref, "--num_resamples", 9)
    of_train = ("--data_list", train_data, "--out")
    of_model = ("--model_dir", model, "--device", "cpu")
    yield (
        train,
        (*corpus.arguments(made / "new", *head),),
        (config, train_data, config, cv_data, config),
    )
    yield (
        cmvn,
        (*of_train, made / "c", "--config", config, "--num_workers", 0),
        (config, train_data),
    )
    yield units, (*of_train, made / "u", "--kind", "char"), (train_data,)
    yield tree, ("build", *of_train, made / "t", "--units", unit_table), (unit_table, train_data)
    yield tree, ("show", tree_file), (tree_file,)
    line = (
        *of_train,
        made / "v",
        "--tokenizer",
        "char",
        "--dim",
        4,
        "--epochs",
        1,
        "--tree",
        tree_file,
    )
    yield embed, (*line, "--units", unit_table), (train_data, unit_table, tree_file)
    line = (
        "commonvoice",
        "--corpus",
        release.parent,
        "--langs",
        "ca",
        "--out",
        made / "p",
        "--num_workers",
        0,
    )
    yield prepare, line, [release / name for name in ("validated.tsv", "clip_durations.tsv")]
    yield score, (*rates, "--hyp", hyp), (ref, hyp)
    yield compare, (*rates, "--hyp_a", ref, "--hyp_b", hyp), (hyp,)
    line = (
        *of_model,
        "--test_data",
        cv_data,
        "--result_dir",
        made / "r",
        "--modes",
        "attention_rescoring",
    )
    inputs = (cv_data, model / "units.txt", model / "train.yaml", model / "tree.json")
    yield recognize, (*line, "--beam_size", 2), inputs
    yield align, (*of_model, "--data_list", cv_data, "--out", made / "a"), (cv_data,)
    yield shards, ("--data_list", cv_data, "--out", made / "s"), (cv_data,)
    yield report, ("--exp", model, "--out", made / "page.html"), (model / "metrics.jsonl",)


TOKENS = [
    *b"\0 \xff\xfe \xc3 \xed\xa0\x80 \" ' { [ ] : - # &a *a !!x <<: NaN 1e999 -1 0 null true \\ \x1b[2J".split(
        b" "
    ),
    *(
        text.encode()
        for text in (
            "\ufeff",
            "\u2028",
            "\u0301",
            "\t",
            "\r",
            "\n",
            ": ",
            " ",
            "ü",
            "🎈",
            "x" * 5000,
        )
    ),
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
