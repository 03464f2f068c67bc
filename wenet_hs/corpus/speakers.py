# SPDX-License-Identifier: Apache-2.0
"""Speakers of annotation files, by the names of tiers, files and folders (--speaker_from)."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from wenet_hs.corpus.entries import find_split
from wenet_hs.text.normalize import normalize_phones

logger = logging.getLogger(__name__)


SPEAKER_HELP = "what names the speaker: %(choices)s"


def name_speakers(paths: Iterable[Path], corpus: Path, source: str) -> dict[Path, str | None]:
    """The speaker of each file by its name, or by its folder; None: the file is in no folder below
    `corpus`.

    Names that are in several folders have those before them, because they may be of two people. The
    folders of sets are left out: a speaker may be in two sets.

    Args:
        source: `file` or `folder`; no other one has names.
    """
    if source not in ("file", "folder"):
        return {}
    places, same = dict[Path, tuple[str, ...]](), defaultdict[str, set[tuple[str, ...]]](set)
    for path in paths:
        *folders, stem = (
            path.relative_to(corpus if corpus.is_dir() else corpus.parent).with_suffix("").parts
        )
        parts = [normalize_phones(folder) for folder in folders if not find_split(folder)]
        places[path] = (*parts, normalize_phones(stem)) if source == "file" else tuple(parts)
        same["".join(places[path][-1:])].add(places[path])
    if several := [name for name, found in same.items() if len(found) > 1]:
        example = "_".join(min(same[several[0]]))
        message = "--speaker_from %s: %r is in several folders; speakers have the folder in their name, such as %r"
        logger.info(message, source, several[0], example)
    return {
        path: "_".join(parts if len(same[parts[-1]]) > 1 else parts[-1:]) if parts else None
        for path, parts in places.items()
    }
