#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""WeNet's scorer command line and layout, with wenet-hs's numbers.

Example: tools/compute-cer.py --char=1 --v=1 data/test/text exp/test/attention_rescoring/text

Unlike WeNet's tool it splits every script into letters with their marks, keeps case unless told otherwise, never scores
a key, takes `<unk>` for one unit, counts an utterance without a hypothesis as deletions, and names hypotheses that no
utterance has. `wenet-hs score` tells more.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from wenet_hs.bin.command import run_command
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import read_lines
from wenet_hs.manifest import read_text
from wenet_hs.score import Rules, score
from wenet_hs.score.error_rate import check_same_test, count_of, name_some
from wenet_hs.score.units import clean, split_by
from wenet_hs.score.wenet_layout import WenetLayout, format_wenet

PADDING = {"space": " ", "underline": "_"}
_TAG = re.compile("<[^<>]*>")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.prog = Path(__file__).name
    add = parser.add_argument
    add("--char", type=switch, metavar="0|1", default=True, help="1: letters; 0: between spaces (default: 1)")
    add("--v", type=verbosity, metavar="0|1|2", default=1, help="0: the overall line; 2: keys beside all (default: 1)")
    add("--cs", type=switch, metavar="0|1", default=True, help="0: upper and lower case are the same (default: 1)")
    add("--ig", type=Path, metavar="FILE", help="units to leave out, one a line")
    add("--splitfile", type=Path, metavar="FILE", help="words to write otherwise: `word part part` a line")
    add("--cluster", type=Path, metavar="FILE", help="units to count apart: <NAME> unit unit </NAME>")
    add("--rt", type=switch, metavar="0|1", default=False, help="1: leave out <tags>, <unk> too (default: 0)")
    add("--maxw", type=int, default=sys.maxsize, metavar="N", help="units in a line (default: all)")
    add(
        "--padding-symbol",
        type=str.lower,
        choices=tuple(PADDING),
        default="space",
        help="what fills up columns (default: space)",
    )
    add("ref", type=Path, help="reference: `key transcript` a line")
    add("hyp", type=Path, help="hypotheses: the same")


def switch(value: str) -> bool:
    """WeNet's rule: only 0 is off, so that `true` and 2 are on, and `false` too."""
    return value != "0"


def verbosity(value: str) -> int:
    """WeNet's rule: any whole number, and a word (`true`) is 1."""
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
    layout = WenetLayout(verbose=args.v, most=args.maxw, padding=PADDING[args.padding_symbol], clusters=clusters)
    reference, hypothesis = (rewrite(read_text(path), args, rules) for path in (args.ref, args.hyp))
    check_same_test(reference.keys(), hypothesis.keys(), names=(str(args.ref), str(args.hyp)))
    report = score(reference, hypothesis, rules=rules, allow_extra=True, num_resamples=0)
    print(format_wenet(report, layout), end="")
    if report.missing:
        print(f"{args.hyp}: {len(report.missing)} of {len(report.utterances)} missing", file=sys.stderr)
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        print(f"{args.hyp}: {number} without reference left out: {name_some(report.extra)}", file=sys.stderr)


def rewrite(texts: Mapping[str, str], args: argparse.Namespace, rules: Rules) -> dict[str, str]:
    """The transcripts as --rt, --splitfile and --ig want them."""
    if not (args.rt or args.splitfile or args.ig):
        return dict(texts)
    written = [line.split() for line in read_lines(args.splitfile)] if args.splitfile else []
    parts = {clean(words[0], rules): words[1:] for words in written if len(words) > 1}
    ignored = {clean(line, rules) for line in read_lines(args.ig)} if args.ig else set()

    def rewritten(text: str) -> str:
        words = clean(_TAG.sub("", text) if args.rt else text, rules).split()
        text = " ".join(part for word in words for part in parts.get(word, [word]))
        return " ".join(unit for unit in split_by(text, rules) if unit not in ignored) if ignored else text

    return {key: rewritten(text) for key, text in texts.items()}


def read_clusters(path: Path, rules: Rules) -> dict[str, frozenset[str]]:
    """The units between <NAME> and </NAME>. Raises DataError where a name has no end, or a unit no name."""
    clusters: dict[str, frozenset[str]] = {}
    name, units = "", set[str]()
    for number, line in enumerate(read_lines(path), start=1):
        for token in line.split():
            if name and token == f"</{name}>":
                clusters[name] = frozenset(units)
                name, units = "", set()
            elif name:
                units.add(clean(token, rules))
            elif len(token) > 2 and token[0] == "<" and token[-1] == ">" and token[1] != "/":
                name = token[1:-1]
            else:
                raise DataError(f"{path}:{number}: {token} stands in no cluster; write <NAME> units </NAME>")
    if name:
        raise DataError(f"{path}: cluster <{name}> has no end; write </{name}>")
    return clusters


if __name__ == "__main__":
    sys.exit(run_command(sys.modules[__name__]))
