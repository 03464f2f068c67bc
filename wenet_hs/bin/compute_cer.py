# SPDX-License-Identifier: Apache-2.0
"""Scorer with the command line and output layout of WeNet's compute-cer.py, and the numbers of `wenet-hs score`.

Example: wenet-hs compute-cer --char=1 --v=1 data/test/text exp/test/attention_rescoring/text

Unlike WeNet's tool it splits every script into letters with their marks, keeps case by default, never scores a key,
counts `<unk>` as one unit, counts an utterance without a hypothesis as deletions, and names hypotheses without a
reference. `wenet-hs score` prints more.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from wenet_hs.bin.main import main_of
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import read_lines
from wenet_hs.manifest import read_text
from wenet_hs.score import Rules, score
from wenet_hs.score.alignments import format_wenet
from wenet_hs.score.error_rate import count_of
from wenet_hs.score.units import normalize_words, split_units

PADDING = {"space": " ", "underline": "_"}
_TAG = re.compile("<[^<>]*>")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. The units of compute-wer are words by default."""
    add, char = parser.add_argument, not parser.prog.endswith("compute-wer")
    char_help = f"units are 1: letters; 0: words (default: {char:d})"
    add("--char", type=switch, metavar="0|1", default=char, help=char_help)
    add("--v", type=verbosity, metavar="0|1|2", default=1, help="0: only the overall line; 2: with keys (default: 1)")
    add("--cs", type=switch, metavar="0|1", default=True, help="0: upper and lower case are the same (default: 1)")
    add("--ig", type=Path, metavar="FILE", help="units to ignore, one per line")
    add("--splitfile", type=Path, metavar="FILE", help="words to replace: `word part part` per line")
    add("--cluster", type=Path, metavar="FILE", help="units with a line of their own: <NAME> unit unit </NAME>")
    add("--rt", type=switch, metavar="0|1", default=False, help="1: remove <tags>, also <unk> (default: 0)")
    add("--maxw", type=int, default=sys.maxsize, metavar="N", help="units per line (default: all)")
    padding_help = "the character that fills columns (default: space)"
    add("--padding-symbol", type=str.lower, choices=tuple(PADDING), default="space", help=padding_help)
    add("ref", type=Path, help="reference: `key transcript` per line")
    add("hyp", type=Path, help="hypotheses in the same format")


def switch(value: str) -> bool:
    """WeNet's rule: only 0 is off; every other text is on, even `false`."""
    return value != "0"


def verbosity(value: str) -> int:
    """WeNet's rule: any whole number; a word (`true`) is 1."""
    try:
        return int(value)
    except ValueError:
        return 1


def run(args: argparse.Namespace) -> None:
    """Score and print."""
    if args.maxw < 1:
        raise ConfigError(f"--maxw {args.maxw}: must be at least 1")
    rules = Rules(metric="cer" if args.char else "wer", normalization="nfc" if args.cs else "nfc+lower")
    clusters = {} if args.cluster is None else read_clusters(args.cluster, rules)
    reference, hypothesis = (rewrite(read_text(path), args, rules) for path in (args.ref, args.hyp))
    names = str(args.ref), str(args.hyp)
    report = score(reference, hypothesis, rules=rules, names=names, allow_extra=True, num_resamples=0)
    padding = PADDING[args.padding_symbol]
    print(format_wenet(report, verbose=args.v, max_units=args.maxw, padding=padding, clusters=clusters), end="")
    if report.missing:
        print(f"{args.hyp}: {len(report.missing)} of {len(report.utterances)} missing", file=sys.stderr)
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        print(f"{args.hyp}: {number} without reference left out: {list_names(report.extra)}", file=sys.stderr)


def rewrite(texts: Mapping[str, str], args: argparse.Namespace, rules: Rules) -> dict[str, str]:
    """Apply --rt, --splitfile and --ig to the transcripts."""
    if not (args.rt or args.splitfile or args.ig):
        return dict(texts)
    replaced = [line.split() for line in read_lines(args.splitfile)] if args.splitfile else []
    parts = {_clean(words[0], rules): words[1:] for words in replaced if len(words) > 1}
    ignored = {_clean(line, rules) for line in read_lines(args.ig)} if args.ig else set()

    def rewrite_one(text: str) -> str:
        words = normalize_words(_TAG.sub("", text) if args.rt else text, rules)
        text = " ".join(part for word in words for part in parts.get(word, [word]))
        return " ".join(unit for unit in split_units(text, rules) if unit not in ignored) if ignored else text

    return {key: rewrite_one(text) for key, text in texts.items()}


def _clean(text: str, rules: Rules) -> str:
    return " ".join(normalize_words(text, rules))


def read_clusters(path: Path, rules: Rules) -> dict[str, frozenset[str]]:
    """The units between <NAME> and </NAME>. Raises DataError for a name without an end or a unit without a name."""
    clusters: dict[str, frozenset[str]] = {}
    name, units = "", set[str]()
    for number, line in enumerate(read_lines(path), start=1):
        for token in line.split():
            if name and token == f"</{name}>":
                clusters[name] = frozenset(units)
                name, units = "", set()
            elif name:
                units.add(_clean(token, rules))
            elif len(token) > 2 and token[0] == "<" and token[-1] == ">" and token[1] != "/":
                name = token[1:-1]
            else:
                raise DataError(f"{path}:{number}: {token} is in no cluster; write <NAME> units </NAME>")
    if name:
        raise DataError(f"{path}: cluster <{name}> has no end; write </{name}>")
    return clusters


if __name__ == "__main__":
    main_of(__name__)
