# SPDX-License-Identifier: Apache-2.0
"""Recognisers with and without language models: each weight is chosen on the dev set, and the test
set decoded with it.

Example: python tools/fusion.py --exp exp --head softmax hsoftmax --data data --lm data/units.arpa exp/lm \\
             --modes attention_rescoring joint --weights 0.1 0.2 0.3 0.5 --out results/fusion.md
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from wenet_hs.runs.record import RunRecord, read_run
from wenet_hs.runs.sentences import describe_facts
from wenet_hs.score.report_file import read_report
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.atomic import write_atomic


def main() -> None:
    """Decode, score and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--exp", type=Path, required=True, help="folder of the recognisers")
    add("--head", nargs="+", required=True, help="names of the recognisers")
    add("--data", type=Path, required=True, help="folder with dev/ and test/: data.list and text")
    add("--lm", type=Path, nargs="+", required=True, help="language models: ARPA files or folders")
    add("--modes", nargs="+", required=True, help="decoding modes")
    add("--weights", nargs="+", required=True, help="weights to try on the dev set")
    add("--out", type=Path, required=True, help="Markdown to write")
    args = parser.parse_args()
    names = [_name(lm) for lm in args.lm]
    if len({*names}) < len(names):
        parser.error(
            f"--lm: {' '.join(names)}: give at most one n-gram model and one recurrent model"
        )
    rows = [_row(args, head, mode) for head in args.head for mode in args.modes]
    run = read_run(args.exp / args.head[0]) or RunRecord()
    facts = describe_facts(run)
    made = ", ".join(
        f"{name} {facts.get(name, 'unknown')}" for name in ("processor", "torch", "git")
    )
    header = ["recogniser", "mode", "no language model", *(f"{name} (weight)" for name in names)]
    text = (
        "## With language models of the training sentences (simulated speech)\n\n"
        "`snakemake --profile ../../profile fusion`. Character error rates of the test set in %, macro average over "
        "the languages. The weight of a "
        f"language model was chosen on the dev set, out of {', '.join(args.weights)}; ngram: 5-gram model, recurrent: "
        f"one GRU layer; both over characters, from the training sentences. One training of each: a difference of a "
        f"few tenths is no finding. Recognisers: {made}.\n\n{markdown_table(header, rows)}\n"
    )
    write_atomic(args.out, text)
    print(text)


def _row(args: argparse.Namespace, head: str, mode: str) -> list[str]:
    cells = [head, mode, f"{_rate(args, head, mode, 'test', None, None):.2f}"]
    for lm in args.lm:
        tried = {weight: _rate(args, head, mode, "dev", lm, weight) for weight in args.weights}
        best = min(tried, key=lambda weight: (tried[weight], float(weight)))
        cells.append(f"{_rate(args, head, mode, 'test', lm, best):.2f} ({best})")
    return cells


def _rate(
    args: argparse.Namespace, head: str, mode: str, part: str, lm: Path | None, weight: str | None
) -> float:
    """The macro average of a decoding, in %; what was decoded before is used again."""
    data = args.data / part
    result = (
        args.exp / head / f"{part}-{'no-lm' if lm is None else f'{_name(lm)}-{weight}'}"
    )  # not that of run.sh
    options = ["--modes", *args.modes] + (
        [] if lm is None else ["--lm", str(lm), "--lm_weight", str(weight)]
    )
    score = result / mode / "fusion.json"
    sources = [
        args.exp / head / "final.pt",
        data / "data.list",
        *([] if lm is None else [_file_of(lm)]),
    ]
    if not _is_newer(result / mode / "text", *sources):
        model = ["--model_dir", str(args.exp / head), "--test_data", str(data / "data.list")]
        _run("recognize", *model, "--result_dir", str(result), *options)
    if not _is_newer(score, result / mode / "text"):
        files = [
            "--ref",
            str(data / "text"),
            "--hyp",
            str(result / mode / "text"),
            "--json",
            str(score),
        ]
        _run(
            "score",
            "--metric",
            "cer",
            "--by",
            "lang",
            "--data_list",
            str(data / "data.list"),
            *files,
        )
    rate = read_report(score).macro.rate
    assert rate is not None, "a list with text has a rate"
    return 100 * rate


def _is_newer(path: Path, *sources: Path) -> bool:
    """Whether the file exists and was written after its sources."""
    return path.is_file() and all(
        path.stat().st_mtime >= source.stat().st_mtime for source in sources
    )


def _file_of(lm: Path) -> Path:
    return lm / "final.pt" if lm.is_dir() else lm


def _name(lm: Path) -> str:
    return "recurrent" if lm.is_dir() else "ngram"


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", f"wenet_hs.bin.{arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}:\n{done.stderr}")


if __name__ == "__main__":
    main()
