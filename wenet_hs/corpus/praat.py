# SPDX-License-Identifier: Apache-2.0
"""Recordings that were annotated with Praat: .TextGrid files, one utterance per interval with text.

Example: wenet-hs prepare praat --corpus fieldwork --tier sentence --lang mdw --out data

The audio is the file of the same name with a suffix of audio, beside the TextGrid or in --audio_dir. Long and short
text files in UTF-8 and UTF-16 are read; binary ones are not.
"""

import argparse
from pathlib import Path
from typing import Any

from wenet_hs.corpus import entries
from wenet_hs.corpus.elan import AnnotationFile, Tier, add_tier_arguments, find_files, matches_any, tier_entries
from wenet_hs.data.annotations import read_textgrid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare praat`."""
    entries.add_arguments(parser, "a .TextGrid file, or a folder that is searched for them with its subfolders")
    add_tier_arguments(parser)
    speaker_help = "what names the speaker: nothing, the tier, or the file (default: %(default)s)"
    parser.add_argument("--speaker_from", choices=("none", "tier", "file"), default="none", help=speaker_help)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of Praat files. Returns the content of `stats.json`."""
    files = [_read(path) for path in find_files(args.corpus, ".TextGrid", "Praat")]
    if args.speaker_from == "file":
        files = [
            AnnotationFile(
                path=one.path,
                media=one.media,
                tiers=[Tier(name=t.name, participant=one.path.stem, spans=t.spans) for t in one.tiers],
            )
            for one in files
        ]
    is_chosen = (lambda tier: matches_any(tier.name, args.tier)) if args.tier else None
    rows = tier_entries(
        files, is_chosen, args.tier, lambda tier: tier.name if args.speaker_from == "tier" else tier.participant or None
    )
    return entries.prepare_entries(args, "praat", rows, {"tiers": args.tier})


def _read(path: Path) -> AnnotationFile:
    """The interval tiers of a TextGrid, without empty intervals."""
    _, grid = read_textgrid(path)
    tiers = [
        Tier(name=tier.name, spans=[span for span in tier.spans if span[2].strip()])
        for tier in grid.tiers
        if tier.is_interval
    ]
    return AnnotationFile(path=path, media=(path.stem,), tiers=tiers)
