#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Table 1 of Liu et al. (2023) in Markdown: hours of each language before and after downsampling.

Example: python table1.py data/stats.json                                 the lists of stage 0
         python table1.py cv-corpus-11.0-2022-09-21.json --langs "ca es"  official statistics of a release
         (https://github.com/common-voice/cv-dataset, datasets/): the hours of a test set are its number of utterances
         times the mean duration. Of a release make lists first: wenet-hs prepare commonvoice --check_audio none
"""

import argparse
import json
import sys
from pathlib import Path

from wenet_hs.corpus.subset import read_statistics, sampling_ratios
from wenet_hs.score.tables import markdown_table
from wenet_hs.tree.errors import WenetHsError

PAPER_HOURS = {
    "ca": (76.3, 15.3), "es": (37.6, 14.4), "fr": (55.7, 13.4), "it": (33.4, 15.0), "pt": (20.7, 11.4),
    "be": (63.0, 13.9), "cs": (42.5, 5.8), "pl": (37.8, 12.3), "ru": (27.3, 14.5), "uk": (23.4, 7.2),
    "ba": (29.6, 12.6), "ky": (11.3, 3.8), "tr": (16.9, 8.4), "tt": (10.0, 3.0), "uz": (18.1, 10.4),
}  # fmt: skip
"""Hours of training and test that the paper prints; docs/sources.md says which contradict its
formula.
"""
TEST_SHARE, MAX_TEST = 0.1, 10_000
"""Of the test set of a language: a share of its utterances, and the most."""
COLUMNS = {"validated h": 2, "λ": 4, "λ × validated h": 2, "training h": 2, "the paper's training h": 1, "test h": 2,
           "the paper's test h": 1, "released test h": 2}  # fmt: skip
"""Name of a column → decimals."""


def rows_of_lists(path: Path) -> dict[str, dict[str, float]]:
    """The columns of each language from the stats.json of `prepare commonvoice`."""
    return {
        lang: {
            "validated h": of["hours_before"],
            "λ": of["lambda"],
            "training h": of["hours"]["train"],
            "test h": of["hours"]["test"],
        }
        for lang, of in json.loads(path.read_text("utf-8"))["langs"].items()
    }


def rows_of_statistics(
    path: Path, langs: list[str], alpha: float, ratio: float
) -> dict[str, dict[str, float]]:
    """The columns of each language from official statistics."""
    found = read_statistics(path, langs)
    ratios = sampling_ratios(
        {lang: hours for lang, (hours, *_) in found.items()}, alpha=alpha, ratio=ratio
    )
    rows = {}
    for lang, (hours, mean_h, num_validated, num_released) in found.items():
        test_h = min(int(num_validated * TEST_SHARE), MAX_TEST) * mean_h
        rows[lang] = {
            "validated h": hours,
            "λ": ratios[lang],
            "test h": test_h,
            "released test h": num_released * mean_h,
        }
    return rows


def format_table(rows: dict[str, dict[str, float]]) -> str:
    """A row per language, and the sums."""
    for lang, row in rows.items():
        row["λ × validated h"] = row["λ"] * row["validated h"]
        row |= dict(
            zip(
                ("the paper's training h", "the paper's test h"),
                PAPER_HOURS.get(lang, ()),
                strict=False,
            )
        )
    columns = {
        name: digits
        for name, digits in COLUMNS.items()
        if any(name in row for row in rows.values())
    }
    cells = [
        [
            lang,
            *(f"{row[name]:.{digits}f}" if name in row else "" for name, digits in columns.items()),
        ]
        for lang, row in rows.items()
    ]
    sums = [
        "" if name == "λ" else f"{sum(row.get(name, 0.0) for row in rows.values()):.{digits}f}"
        for name, digits in columns.items()
    ]
    return markdown_table(["language", *columns], [*cells, ["all", *sums]])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", type=Path, help="stats.json of stage 0, or the statistics of a release"
    )
    parser.add_argument(
        "--langs", default=" ".join(PAPER_HOURS), help="of the statistics (default: the paper's)"
    )
    parser.add_argument("--alpha", type=float, default=0.5, help="as in run.sh (default: 0.5)")
    parser.add_argument("--ratio", type=float, default=0.082, help="as in run.sh (default: 0.082)")
    args = parser.parse_args()
    try:
        if args.file.name == "stats.json":
            rows = rows_of_lists(args.file)
        else:
            rows = rows_of_statistics(args.file, args.langs.split(), args.alpha, args.ratio)
    except WenetHsError as error:
        sys.exit(str(error))
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(
            f"{args.file}: neither a stats.json of `prepare commonvoice` nor statistics of a release ({error})"
        )
    print(format_table(rows))


if __name__ == "__main__":
    main()
