#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Table 2 of Liu et al.

(2023) in Markdown: languages, hours and phones of each set, and the paper's numbers.

Example: python table2.py data/stats.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from wenet_hs.score.tables import markdown_table

PAPER = {"train": ("87", "1.86"), "test": ("10", "0.14")}
"""Languages and hours that the paper prints."""


def format_table(stats: dict[str, Any]) -> str:
    """A row per set, from the stats.json of `prepare ucla`."""
    phones, rows = stats["phones"], []
    for split, utterances in stats["total"]["utterances"].items():
        num_langs = sum(of_lang["utterances"][split] > 0 for of_lang in stats["langs"].values())
        cells = [f"{num_langs}", f"{stats['total']['hours'][split]:.2f}", f"{utterances:,}"]
        cells += [f"{phones['types'][split]}", f"{phones['tokens'][split]:,}"]
        cells.append(f"{len(phones['unseen_in_test'])}" if split == "test" else "")
        rows.append([split, *cells, *PAPER.get(split, ("", ""))])
    header = [
        "set",
        "languages",
        "hours",
        "utterances",
        "distinct phones",
        "phones",
        "distinct phones not in training",
    ]
    return markdown_table([*header, "the paper's languages", "the paper's hours"], rows)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "data/stats.json")
    try:
        print(format_table(json.loads(path.read_text("utf-8"))))
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"{path}: not the stats.json of `prepare ucla` ({error}); run stage 0 first")
