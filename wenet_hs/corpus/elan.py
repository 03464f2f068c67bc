# SPDX-License-Identifier: Apache-2.0
"""Recordings that were annotated with ELAN: .eaf files, one utterance per annotation of a tier.

Example: wenet-hs prepare elan --corpus fieldwork --tier "utterance@*" --lang mdw --out data
         wenet-hs prepare elan --corpus fieldwork --tier_type phonetic --unit phone --lang mdw --out data

The audio is the file's linked media, also where the link is of another computer, or the file of the
same name with a suffix of audio. The speaker is the participant of the tier, or of the one that it
depends on. Annotations without times of their own have those of the annotation that they belong to;
several of one (words of an utterance) become one utterance.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wenet_hs.annotation.eaf import read_elan
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.speakers import SPEAKER_HELP
from wenet_hs.corpus.tier_choice import TierSelection
from wenet_hs.corpus.tier_files import TierOptions, prepare_tier_files


@dataclass(frozen=True, kw_only=True)
class ElanOptions(TierOptions):
    """Options of `prepare elan`."""

    corpus: Path = option(
        REQUIRED, "an .eaf file, or a folder that is searched for them with its subfolders"
    )
    tier_type: tuple[str, ...] = option(
        (),
        "linguistic types of the tiers with the transcripts, with * for any characters",
        metavar="TYPE",
    )
    participant: tuple[str, ...] = option((), "only tiers of these participants", metavar="NAME")
    speaker_from: Literal["participant", "tier", "file", "folder"] = option(
        "participant", SPEAKER_HELP
    )


def prepare(options: ElanOptions) -> dict[str, Any]:
    """Write the data lists of ELAN files. Returns the content of `stats.json`."""
    selection = TierSelection(
        names=options.tier, types=options.tier_type, participants=options.participant
    )
    return prepare_tier_files(
        options, form="elan", suffix=".eaf", read=read_elan, selection=selection
    )
