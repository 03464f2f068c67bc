# SPDX-License-Identifier: Apache-2.0
"""Scorer with the command line and output of WeNet's compute-cer.py.

Example: wenet-hs compute-cer --char=1 --v=1 data/test/text exp/test/attention_rescoring/text

The numbers are those of `wenet-hs score`.

Unlike WeNet's tool it splits every script into letters with their marks, keeps case by default,
never scores a key, counts `<unk>` as one unit, counts an utterance without a hypothesis as
deletions, and names hypotheses without a reference. `wenet-hs score` prints more.
"""

import argparse
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

from rich.cells import cell_len

from wenet_hs.base.files import read_lines
from wenet_hs.bin.main import main_of
from wenet_hs.score import Report, Rules, score
from wenet_hs.score.edit_distance import ErrorCounts, Run, align_runs
from wenet_hs.score.error_rate import count_of
from wenet_hs.score.rules import normalize_words, split_units
from wenet_hs.score.transcript_files import read_transcripts, refuse_keys_in_brackets
from wenet_hs.text.units import show_two, show_unit
from wenet_hs.tree.errors import ConfigError, DataError, list_names

PADDING = {"space": " ", "underline": "_"}
_TAG = re.compile("<[^<>]*>")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, char = (
        parser.add_argument,
        not parser.prog.endswith("compute-wer"),
    )  # whose units are words by default
    char_help = f"units are 1: letters; 0: words (default: {char:d})"
    add("--char", type=switch, metavar="0|1", default=char, help=char_help)
    add(
        "--v",
        type=verbosity,
        metavar="0|1|2",
        default=1,
        help="0: only the overall line; 2: with keys (default: 1)",
    )
    add(
        "--cs",
        type=switch,
        metavar="0|1",
        default=True,
        help="0: upper and lower case are the same (default: 1)",
    )
    add("--ig", type=Path, metavar="FILE", help="units to ignore, one per line")
    add(
        "--splitfile", type=Path, metavar="FILE", help="words to replace: `word part part` per line"
    )
    add(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="units with a line of their own: <NAME> unit unit </NAME>",
    )
    add(
        "--rt",
        type=switch,
        metavar="0|1",
        default=False,
        help="1: remove <tags>, also <unk> (default: 0)",
    )
    add("--maxw", type=int, default=sys.maxsize, metavar="N", help="units per line (default: all)")
    padding_help = "the character that fills columns (default: space)"
    add(
        "--padding-symbol",
        type=str.lower,
        choices=tuple(PADDING),
        default="space",
        help=padding_help,
    )
    add("ref", type=Path, help="reference: `key transcript` per line, or NIST's trn, ctm or stm")
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
    if args.maxw < 1:
        raise ConfigError(f"--maxw {args.maxw}", "must be at least 1")
    rules = Rules(
        metric="cer" if args.char else "wer", normalization="nfc" if args.cs else "nfc+lower"
    )
    clusters = {} if args.cluster is None else read_clusters(args.cluster, rules)
    ref_texts = read_transcripts(args.ref)
    hyp_texts = read_transcripts(args.hyp)
    refuse_keys_in_brackets(args.ref, ref_texts, args.hyp, hyp_texts)
    reference = rewrite(ref_texts, args, rules)
    hypothesis = rewrite(hyp_texts, args, rules)
    names = str(args.ref), str(args.hyp)
    report = score(
        reference, hypothesis, rules=rules, names=names, allow_extra=True, num_resamples=0
    )
    padding = PADDING[args.padding_symbol]
    print(
        format_wenet(
            report, verbose=args.v, max_units=args.maxw, padding=padding, clusters=clusters
        ),
        end="",
    )
    if report.missing:
        print(
            f"{args.hyp}: {len(report.missing)} of {len(report.utterances)} missing",
            file=sys.stderr,
        )
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        print(
            f"{args.hyp}: {number} without reference left out: {list_names(report.extra)}",
            file=sys.stderr,
        )


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
        return (
            " ".join(unit for unit in split_units(text, rules) if unit not in ignored)
            if ignored
            else text
        )

    return {key: rewrite_one(text) for key, text in texts.items()}


def _clean(text: str, rules: Rules) -> str:
    return " ".join(normalize_words(text, rules))


def read_clusters(path: Path, rules: Rules) -> dict[str, frozenset[str]]:
    """The units between <NAME> and </NAME>.

    Raises DataError for a name without an end or a unit without a name.
    """
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
                raise DataError(
                    f"{path}:{number}", f"{token} is in no cluster", "write <NAME> units </NAME>"
                )
    if name:
        raise DataError(path, f"cluster <{name}> has no end", f"write </{name}>")
    return clusters


# ---- WeNet's layout

_RULE = "=" * 75
_SCRIPTS = {
    "DIGIT": "Number",
    "CJK UNIFIED IDEOGRAPH": "Mandarin",
    "CJK COMPATIBILITY IDEOGRAPH": "Mandarin",
    "LATIN CAPITAL LETTER": "English",
    "LATIN SMALL LETTER": "English",
    "HIRAGANA LETTER": "Japanese",
}
_OTHER = "Other"


def format_wenet(
    report: Report,
    *,
    verbose: int = 1,
    max_units: int = sys.maxsize,
    padding: str = " ",
    clusters: Mapping[str, Set[str]] | None = None,
) -> str:
    """The report in WeNet's layout: each utterance, the overall line, one line per script and
    cluster.

    An undefined rate is 0.00. A substitution and a deletion belong to the cluster of the
    reference's unit, an insertion to the cluster of the inserted unit.

    Args:
        verbose: 0: only the overall line; 1: also every utterance and the clusters; 2: with the key
            on each line.
        max_units: per line.
        padding: the character that fills the narrower of two units.
        clusters: units by name of their cluster.
    """
    overall = f"Overall -> {_wenet_counts(report.micro.counts)}"
    if not verbose:
        return f"{overall}\n\n"
    lines: list[str] = []
    units: dict[str, list[str]] = {"C": [], "S": [], "D": [], "I": []}
    for key, utterance in report.utterances.items():
        runs = list(align_runs(*utterance.split(report.rules)))
        for refs, hyps in runs:
            units["C" if refs == hyps else "I" if not refs else "S" if hyps else "D"] += (
                refs or hyps
            )
        lines += ["", f"utt: {key}", f"WER: {_wenet_counts(utterance.counts)}"]
        names = [f"{name}({key})" if verbose > 1 else name for name in ("lab", "rec")]
        both = _aligned_cells(runs, padding)
        for start in range(0, max(1, len(both[0])), max_units):
            parts = (" ".join(cells[start : start + max_units]) for cells in both)
            lines += [
                *(f"{name}: {part}".rstrip() for name, part in zip(names, parts, strict=True)),
                "",
            ]
    lines += [_RULE, "", overall, *_wenet_clusters(units, clusters or {}), "", _RULE]
    return "\n".join(lines) + "\n"


def _wenet_clusters(
    units: Mapping[str, Sequence[str]], clusters: Mapping[str, Set[str]]
) -> Iterator[str]:
    """The counts of each script and of each cluster."""
    correct, substituted, deleted, inserted = (Counter(units[kind]) for kind in "CSDI")
    of_scripts: dict[str, ErrorCounts] = {}
    of_clusters = dict.fromkeys(clusters, ErrorCounts())
    for unit in dict.fromkeys([*correct, *substituted, *deleted, *inserted]):
        num_units = correct[unit] + substituted[unit] + deleted[unit]
        counts = ErrorCounts(num_units, substituted[unit], deleted[unit], inserted[unit])
        script = script_cluster(unit)
        of_scripts[script] = of_scripts.get(script, ErrorCounts()) + counts
        for name in (name for name, members in clusters.items() if unit in members):
            of_clusters[name] += counts
    for name, counts in [*of_scripts.items(), *of_clusters.items()]:
        yield f"{name} -> {_wenet_counts(counts)}"


@lru_cache(maxsize=2**14)
def script_cluster(unit: str) -> str:
    """WeNet's name of the script of a unit.

    English is any Latin; Other is mixed or any other script.
    """
    names = set()
    for character in unit:
        name = unicodedata.name(character, "")
        if unicodedata.category(character)[0] in "MPS":
            continue  # marks and signs belong to their letter or word
        names.add(
            next((cluster for start, cluster in _SCRIPTS.items() if name.startswith(start)), _OTHER)
        )
    return names.pop() if len(names) == 1 else _OTHER


def _wenet_counts(counts: ErrorCounts) -> str:
    correct = counts.num_units - counts.substitutions - counts.deletions
    numbers = f"N={counts.num_units} C={correct} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    return f"{100 * (counts.rate or 0.0):4.2f} % {numbers}"


def _aligned_cells(runs: Iterable[Run], padding: str) -> tuple[list[str], list[str]]:
    """The units of both sides, each pair padded to equal width on a terminal."""
    refs: list[str] = []
    hyps: list[str] = []
    for ref_run, hyp_run in runs:
        if ref_run == hyp_run:
            shown = [*map(show_unit, ref_run)]
            refs += shown
            hyps += shown
            continue
        for ref_unit, hyp_unit in zip_longest(ref_run, hyp_run, fillvalue=""):
            ref, hyp = show_two(ref_unit, hyp_unit)
            excess = cell_len(ref) - cell_len(hyp)
            refs.append(ref + padding * -excess)
            hyps.append(hyp + padding * excess)
    return refs, hyps


if __name__ == "__main__":
    main_of(__name__)
