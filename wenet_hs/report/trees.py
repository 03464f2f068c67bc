# SPDX-License-Identifier: Apache-2.0
"""The trees of the output layers, drawn with their most probable units; equal ones once."""

from html import escape

from wenet_hs.report.markup import missing, section
from wenet_hs.report.material import Material
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.plot import tree_svg
from wenet_hs.tree.tree import Tree

MAX_LEAVES = 60


def trees_section(material: Material) -> str:
    """A drawing for each tree; where no experiment has one it says so."""
    owners: dict[Tree | NaryTree, list[str]] = {}
    for experiment in material.experiments:
        if experiment.tree is not None:
            owners.setdefault(experiment.tree, []).append(experiment.name)
    drawn = [_tree(tree, ", ".join(names)) for tree, names in owners.items()]
    drawn[:1] = [fold.replace("<details>", "<details open>", 1) for fold in drawn[:1]]
    return section("tree", "Tree of the output layer", *(drawn or [missing("No tree: no experiment has a tree.json.")]))


def _tree(tree: Tree | NaryTree, names: str) -> str:
    part = f", its {MAX_LEAVES} most probable branches drawn" if tree.num_units > MAX_LEAVES else ""
    caption = (
        f"{names}: {tree.kind}, {tree.num_units:,} units{part}; depth {tree.depth}, mean code length "
        f"{tree.mean_code_length():.2f} bits, entropy of the units {tree.entropy():.2f} bits. "
        "Of each unit its probability in % and its code."
    )
    svg = tree_svg(tree, max_leaves=MAX_LEAVES)
    return (
        f"<details><summary>{escape(names)}</summary><figure><figcaption>{escape(caption)}</figcaption>"
        f'<div class="tree" role="region" tabindex="0" aria-label="{escape(names)}: the tree">'
        f"{svg[svg.index('<svg') :]}</div></figure></details>"
    )
