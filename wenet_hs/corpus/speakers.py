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
"""Help of the flag --speaker_from; argparse fills in its choices."""


def name_speakers(paths: Iterable[Path], corpus: Path, source: str) -> dict[Path, str | None]:
    """The speaker of each file by its name, or by its folder; None: the file is in no folder below
    `corpus`.

    Names that are in several folders have those before them, because they may be of two people; the
    first such name is logged. The folders of sets are left out: a speaker may be in two sets.

    Args:
        corpus: the folder of the files, or a file in it.
        source: `file` or `folder`; no other one has names: the result is then empty.
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
    """The folders above a file, without those of sets; with the name of the file for `file`.

    The last part names the speaker, those before it tell speakers of one name apart.
    """
    *folders, stem = path.with_suffix("").parts
    parts = [normalize_phones(folder) for folder in folders if not find_split(folder)]
    if source == "file":
        parts.append(normalize_phones(stem))
    return tuple(parts)
