# SPDX-License-Identifier: Apache-2.0
"""Speakers of annotation files, by the names of tiers, files and folders (--speaker_from)."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from wenet_hs.corpus.entries import find_split
from wenet_hs.text.normalize import normalize_spelling

logger = logging.getLogger(__name__)


SPEAKER_HELP = "what names the speaker: %(choices)s"
"""Help of the flag --speaker_from; argparse fills in its choices."""


def name_speakers(paths: Iterable[Path], corpus: Path, source: str) -> dict[Path, str | None]:
    """Each file → its speaker, by the name of the file or of its folder.

    A speaker by folder is None if the file is in no folder below `corpus`.

    The same name in two folders may be that of two people. So such a name gets the names of the
    folders above it, as `village_ana`; the first such name is logged. Folders that are named as
    sets are left out, because a speaker may be in two sets.

    Args:
        corpus: the folder of the files, or a file in it.
        source: value of --speaker_from: `file` or `folder`. For other values the result is empty.
    """
    if source not in ("file", "folder"):
        return {}
    root = corpus if corpus.is_dir() else corpus.parent
    parts_of = {path: _find_name_parts(path.relative_to(root), source) for path in paths}
    places_of_name = defaultdict[str, set[tuple[str, ...]]](set)
    for parts in parts_of.values():
        if parts:
            places_of_name[parts[-1]].add(parts)
    ambiguous = [name for name, places in places_of_name.items() if len(places) > 1]
    if ambiguous:
        example = "_".join(min(places_of_name[ambiguous[0]]))
        message = "--speaker_from %s: %r is in several folders; speakers have the folder in their name, such as %r"
        logger.info(message, source, ambiguous[0], example)
    speakers = dict[Path, str | None]()
    for path, parts in parts_of.items():
        if not parts:
            speakers[path] = None
        elif len(places_of_name[parts[-1]]) > 1:
            speakers[path] = "_".join(parts)
        else:
            speakers[path] = parts[-1]
    return speakers


def _find_name_parts(path: Path, source: str) -> tuple[str, ...]:
    """The names of the folders above a file, and for the source `file` that of the file too.

    The last name is that of the speaker. The names before it tell speakers of one name apart.
    Folders that are named as sets are left out; the result may be empty.
    """
    *folders, stem = path.with_suffix("").parts
    parts = [normalize_spelling(folder) for folder in folders if not find_split(folder)]
    if source == "file":
        parts.append(normalize_spelling(stem))
    return tuple(parts)
