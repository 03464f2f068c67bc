# SPDX-License-Identifier: Apache-2.0
"""Recordings that were annotated with Praat: .TextGrid files, one utterance per interval with text.

Example: wenet-hs prepare praat --corpus fieldwork --tier sentence --lang mdw --out data

The audio is the file of the same name with a suffix of audio, beside the TextGrid or in
--audio_dir. Long and short text files in UTF-8 and UTF-16 are read; binary ones are not. A TextGrid
of a part of a recording may have the times of the recording; the length of the audio decides.
"""

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wenet_hs.annotation.textgrid import read_textgrid
from wenet_hs.annotation.tiers import AnnotationFile, Tier
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.speakers import SPEAKER_HELP
from wenet_hs.corpus.tier_choice import TierSelection
from wenet_hs.corpus.tier_files import TierOptions, prepare_tier_files
from wenet_hs.text.normalize import normalize_spelling

logger = logging.getLogger(__name__)

_CODE = re.compile(r"\\[A-Za-z:?^'`.|][A-Za-z0-9:^'`~,.|/]")
"""A letter by Praat's backslash codes: `\\ng` is ŋ."""


@dataclass(frozen=True, kw_only=True)
class PraatOptions(TierOptions):
    """Options of `prepare praat`."""

    corpus: Path = option(
        REQUIRED, "a .TextGrid file, or a folder that is searched for them with its subfolders"
    )
    speaker_from: Literal["none", "tier", "file", "folder"] = option("none", SPEAKER_HELP)


def prepare(options: PraatOptions) -> dict[str, Any]:
    """Write the data lists of Praat files. Returns the content of `stats.json`."""
    selection = TierSelection(names=options.tier)
    return prepare_tier_files(
        options, form="praat", suffix=".TextGrid", read=read_praat, selection=selection
    )


def read_praat(path: Path) -> AnnotationFile:
    """The tiers of a TextGrid, without empty intervals.

    Names of tiers get one form of Unicode. Texts with Praat's backslash codes are kept as they are;
    a warning states their number and the first one. Raises DataError if the file cannot be read.
    """
    grid = read_textgrid(path)
    tiers = [_clean_tier(tier) for tier in grid.tiers]
    texts = [text for tier in tiers for _, _, text in tier.spans]
    coded = [text for text in texts if _CODE.search(text)]
    if coded:
        logger.warning(
            "%s: %d texts have codes of Praat, such as %s; use Convert to Unicode in Praat",
            path,
            len(coded),
            coded[0],
        )
    return replace(grid, tiers=tiers)


def _clean_tier(tier: Tier) -> Tier:
    """The tier without empty intervals, and with a name in one form of Unicode."""
    filled = [(begin, end, text) for begin, end, text in tier.spans if text.strip()]
    return replace(tier, name=normalize_spelling(tier.name), spans=filled)
