# SPDX-License-Identifier: Apache-2.0
"""Facts of tiers: which other tiers they depend on, and how many annotations they have."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from wenet_hs.annotation.tiers import AnnotationFile
from wenet_hs.tree.errors import list_names


def find_parents(file: AnnotationFile) -> dict[str, str]:
    """Name of each tier → name of the tier that it depends on; empty if it is independent."""
    return {tier.name: tier.parent for tier in file.tiers}


def find_ancestors(name: str, parents: Mapping[str, str]) -> list[str]:
    """The tiers that a tier depends on, its parent first. `parents`: see `find_parents`.

    In a damaged file tiers may depend on each other in a circle; then each is in the list once.
    """
    ancestors = list[str]()
    parent = parents.get(name, "")
    while parent and parent not in ancestors:
        ancestors.append(parent)
        parent = parents.get(parent, "")
    return ancestors


def find_root(name: str, parents: Mapping[str, str]) -> str:
    """The independent tier above a tier, or the tier itself if it is independent."""
    return [name, *find_ancestors(name, parents)][-1]


def count_annotations(files: Sequence[AnnotationFile]) -> dict[str, int]:
    """Name of each tier with annotations → their number in all files, the largest number first."""
    counts = Counter[str]()
    for file in files:
        for tier in file.tiers:
            if tier.spans:
                counts[tier.name] += len(tier.spans)
    return dict(counts.most_common())


def describe_tiers(files: Sequence[AnnotationFile]) -> str:
    """The tiers with annotations, for a message: name, types and participants, and number.

    Example: `'text@A' (utterance, Ana, 12 annotations)`. Of a tier at most three types and
    participants are named. If no tier has annotations, the result is the names of the tiers, and if
    there is no tier, `none`.
    """
    facts_by_name = defaultdict[str, set[str]](set)
    for file in files:
        for tier in file.tiers:
            known_facts = {"", tier.name}  # they would add nothing
            facts_by_name[tier.name] |= {tier.kind, tier.participant} - known_facts
    descriptions = list[str]()
    for name, count in count_annotations(files).items():
        facts = [*sorted(facts_by_name[name])[:3], f"{count} annotations"]
        descriptions.append(f"'{name}' ({', '.join(facts)})")
    if descriptions:
        return list_names(descriptions, "; ", most=12)
    if facts_by_name:
        quoted_names = [f"'{name}'" for name in facts_by_name]
        return f"{list_names(sorted(quoted_names))}, without annotations"
    return "none"
