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
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
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
"""The characters of --padding-symbol by name."""
_TAG = re.compile("<[^<>]*>")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare WeNet's flags, for `compute-cer` and for `compute-wer`, whose units are words."""
    add = parser.add_argument
    splits_into_letters = not parser.prog.endswith("compute-wer")
    char_help = f"units are 1: letters; 0: words (default: {splits_into_letters:d})"
    add("--char", type=switch, metavar="0|1", default=splits_into_letters, help=char_help)
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
    """Score the hypotheses and print the report in WeNet's layout.

    Lines on stderr count the missing hypotheses, and name the surplus ones. Raises ConfigError or
    DataError for wrong flags or files.
    """
    if args.maxw < 1:
        raise ConfigError(f"--maxw {args.maxw}", "must be at least 1")
    metric = "cer" if args.char else "wer"
    normalization = "nfc" if args.cs else "nfc+lower"
    rules = Rules(metric=metric, normalization=normalization)
    clusters = {} if args.cluster is None else read_clusters(args.cluster, rules)
    ref_texts = read_transcripts(args.ref)
    hyp_texts = read_transcripts(args.hyp)
    refuse_keys_in_brackets(args.ref, ref_texts, args.hyp, hyp_texts)
    report = score(
        rewrite(ref_texts, args, rules),
        rewrite(hyp_texts, args, rules),
        rules=rules,
        names=(str(args.ref), str(args.hyp)),
        allow_extra=True,
        num_resamples=0,
    )
    text = format_wenet(
        report,
        verbose=args.v,
        max_units=args.maxw,
        padding=PADDING[args.padding_symbol],
        clusters=clusters,
    )
    print(text, end="")
    if report.missing:
        counts = f"{len(report.missing)} of {len(report.utterances)}"
        print(f"{args.hyp}: {counts} missing", file=sys.stderr)
    if report.extra:
        number = count_of(len(report.extra), "hypothesis", "hypotheses")
        keys = list_names(report.extra)
        print(f"{args.hyp}: {number} without reference left out: {keys}", file=sys.stderr)


def rewrite(texts: Mapping[str, str], args: argparse.Namespace, rules: Rules) -> dict[str, str]:
    """The transcripts by key after --rt, --splitfile and --ig, in this order.

    --rt removes tags, --splitfile replaces a word by its parts, and --ig removes units. Without
    these flags the texts stay as they are.
    """
    if not (args.rt or args.splitfile or args.ig):
        return dict(texts)
    parts_of_word: dict[str, list[str]] = {}
    if args.splitfile:
        for line in read_lines(args.splitfile):
            words = line.split()
            if len(words) > 1:
                parts_of_word[_normalize(words[0], rules)] = words[1:]
    ignored_units: set[str] = set()
    if args.ig:
        ignored_units = {_normalize(line, rules) for line in read_lines(args.ig)}

    def rewrite_text(text: str) -> str:
        if args.rt:
            text = _TAG.sub("", text)
        words: list[str] = []
        for word in normalize_words(text, rules):
            words += parts_of_word.get(word, [word])
        text = " ".join(words)
        if not ignored_units:
            return text
        units = [unit for unit in split_units(text, rules) if unit not in ignored_units]
        return " ".join(units)

    return {key: rewrite_text(text) for key, text in texts.items()}


def _normalize(text: str, rules: Rules) -> str:
    """The text as the rules normalize transcripts, with single spaces between its words."""
    return " ".join(normalize_words(text, rules))


def read_clusters(path: Path, rules: Rules) -> dict[str, frozenset[str]]:
    """The units between <NAME> and </NAME>, by name: `<vowels> a e i </vowels>`.

    Raises DataError for a name without an end or a unit without a name.
    """
    clusters: dict[str, frozenset[str]] = {}
    name = ""  # of the cluster that is being read; empty: none
    units: set[str] = set()
    for line_number, line in enumerate(read_lines(path), start=1):
        for token in line.split():
            if name and token == f"</{name}>":
                clusters[name] = frozenset(units)
                name = ""
                units = set()
            elif name:
                units.add(_normalize(token, rules))
            elif _is_begin_of_cluster(token):
                name = token[1:-1]
            else:
                fault = f"{token} is in no cluster"
                raise DataError(f"{path}:{line_number}", fault, "write <NAME> units </NAME>")
    if name:
        raise DataError(path, f"cluster <{name}> has no end", f"write </{name}>")
    return clusters


def _is_begin_of_cluster(token: str) -> bool:
    """Whether a word of a file of clusters is <NAME>, and neither <> nor </NAME>."""
    is_tag = len(token) > 2 and token[0] == "<" and token[-1] == ">"
    return is_tag and token[1] != "/"


# ---- WeNet's layout

_RULE = "=" * 75
"""A line between parts of the report."""
_SCRIPTS = {
    "DIGIT": "Number",
    "CJK UNIFIED IDEOGRAPH": "Mandarin",
    "CJK COMPATIBILITY IDEOGRAPH": "Mandarin",
    "LATIN CAPITAL LETTER": "English",
    "LATIN SMALL LETTER": "English",
    "HIRAGANA LETTER": "Japanese",
}
"""Begin of the Unicode name of a character → WeNet's name of its script."""
_OTHER = "Other"


@dataclass
class _UnitsByResult:
    """The units of all alignments by their result, each as often as it occurs."""

    correct: list[str] = field(default_factory=list)
    substituted: list[str] = field(default_factory=list)
    """Units of the reference."""
    deleted: list[str] = field(default_factory=list)
    inserted: list[str] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Add the units of one run of an alignment."""
        ref_units, hyp_units = run
        if ref_units == hyp_units:
            self.correct += ref_units
        elif not ref_units:
            self.inserted += hyp_units
        elif hyp_units:
            self.substituted += ref_units
        else:
            self.deleted += ref_units

    def count(self) -> dict[str, ErrorCounts]:
        """The counts of each unit: first the correct units, each in order of occurrence."""
        correct = Counter(self.correct)
        substituted = Counter(self.substituted)
        deleted = Counter(self.deleted)
        inserted = Counter(self.inserted)
        counts = {}
        for unit in [*correct, *substituted, *deleted, *inserted]:
            counts[unit] = ErrorCounts(
                num_units=correct[unit] + substituted[unit] + deleted[unit],
                substitutions=substituted[unit],
                deletions=deleted[unit],
                insertions=inserted[unit],
            )
        return counts


def format_wenet(
    report: Report,
    *,
    verbose: int = 1,
    max_units: int = sys.maxsize,
    padding: str = " ",
    clusters: Mapping[str, Set[str]] | None = None,
) -> str:
    """The report in WeNet's layout: utterances, the overall line, then scripts and clusters.

    An undefined rate is 0.00. A substitution and a deletion belong to the cluster of the
    reference's unit, an insertion to the cluster of the inserted unit.

    Args:
        verbose: 0: only the overall line; 1: also every utterance and the clusters; 2: with the key
            on each line.
        max_units: per line.
        padding: the character that fills the narrower of two units.
        clusters: units by name of their cluster.
    """
    overall = f"Overall -> {_format_counts(report.micro.counts)}"
    if not verbose:
        return f"{overall}\n\n"
    lines: list[str] = []
    units_by_result = _UnitsByResult()
    for key, utterance in report.utterances.items():
        runs = list(align_runs(*utterance.split(report.rules)))
        for run in runs:
            units_by_result.add(run)
        lines += ["", f"utt: {key}", f"WER: {_format_counts(utterance.counts)}"]
        suffix = f"({key})" if verbose > 1 else ""
        ref_cells, hyp_cells = _aligned_cells(runs, padding)
        for start in range(0, max(1, len(ref_cells)), max_units):  # an empty pair has lines, too
            end = start + max_units
            lines.append(f"lab{suffix}: {' '.join(ref_cells[start:end])}".rstrip())
            lines.append(f"rec{suffix}: {' '.join(hyp_cells[start:end])}".rstrip())
            lines.append("")
    lines += [_RULE, "", overall, *_cluster_lines(units_by_result, clusters or {}), "", _RULE]
    return "\n".join(lines) + "\n"


def _cluster_lines(
    units_by_result: _UnitsByResult, clusters: Mapping[str, Set[str]]
) -> Iterator[str]:
    """The counts of each script that occurs, and of each cluster."""
    counts_of_scripts: dict[str, ErrorCounts] = {}
    # All begin with the same object, which `+=` replaces and does not change.
    counts_of_clusters = dict.fromkeys(clusters, ErrorCounts())
    for unit, counts in units_by_result.count().items():
        script = script_cluster(unit)
        counts_of_scripts[script] = counts_of_scripts.get(script, ErrorCounts()) + counts
        for name, members in clusters.items():
            if unit in members:
                counts_of_clusters[name] += counts
    for name, counts in [*counts_of_scripts.items(), *counts_of_clusters.items()]:
        yield f"{name} -> {_format_counts(counts)}"


@lru_cache(maxsize=2**14)
def script_cluster(unit: str) -> str:
    """WeNet's name of the script of a unit.

    English is any Latin; Other is mixed or any other script.
    """
    scripts = set()
    for character in unit:
        category = unicodedata.category(character)[0]
        # Marks, punctuation and symbols belong to their letter or word.
        if category not in ("M", "P", "S"):
            scripts.add(_script_of_character(character))
    return scripts.pop() if len(scripts) == 1 else _OTHER


def _script_of_character(character: str) -> str:
    """WeNet's name of the script of a character; Other if it has none."""
    unicode_name = unicodedata.name(character, "")
    for begin, script in _SCRIPTS.items():
        if unicode_name.startswith(begin):
            return script
    return _OTHER


def _format_counts(counts: ErrorCounts) -> str:
    """The error rate in percent, and the numbers of units: all (N), correct, and with errors."""
    num_correct = counts.num_units - counts.substitutions - counts.deletions
    percent = 100 * (counts.rate or 0.0)  # None without units
    return (
        f"{percent:4.2f} % N={counts.num_units} C={num_correct} S={counts.substitutions} "
        f"D={counts.deletions} I={counts.insertions}"
    )


def _aligned_cells(runs: Iterable[Run], padding: str) -> tuple[list[str], list[str]]:
    """The units of both sides, each pair padded to equal width on a terminal.

    Opposite a deleted or inserted unit stands an empty one.
    """
    ref_cells: list[str] = []
    hyp_cells: list[str] = []
    for ref_run, hyp_run in runs:
        if ref_run == hyp_run:
            cells = [show_unit(unit) for unit in ref_run]
            ref_cells += cells
            hyp_cells += cells
            continue
        for ref_unit, hyp_unit in zip_longest(ref_run, hyp_run, fillvalue=""):
            ref_cell, hyp_cell = show_two(ref_unit, hyp_unit)
            excess = cell_len(ref_cell) - cell_len(hyp_cell)
            # A string times a negative number is empty: only the narrower cell is padded.
            ref_cells.append(ref_cell + padding * -excess)
            hyp_cells.append(hyp_cell + padding * excess)
    return ref_cells, hyp_cells


if __name__ == "__main__":
    main_of(__name__)
