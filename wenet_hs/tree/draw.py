# SPDX-License-Identifier: Apache-2.0
"""A tree as SVG text: root on the left, one row a unit with its probability and code, readable on light and dark."""

from xml.sax.saxutils import escape

from wenet_hs.tree.layout import Layout, layout_tree, percent, unit_label
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

__all__ = ["tree_svg", "unit_label"]


def tree_svg(tree: Tree | NaryTree, *, max_leaves: int = 60) -> str:
    """The drawing of a tree as one self-contained `<svg>` element.

    A tree of at most `max_leaves` units is drawn whole. Of a larger one the most probable branches are opened until
    there are `max_leaves` rows; a branch that stays closed is a row "… 1,234 units". Lines are as thick as their
    branch is probable. Colours are the surrounding text's (`currentColor`).
    """
    layout = layout_tree(tree, max_leaves=max_leaves)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="sans-serif" font-size="13" fill="currentColor">',
        f"<title>{_xml(layout.title)}</title>",
        *_lines(layout),
        *_texts(layout),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lines(layout: Layout) -> list[str]:
    """A line from each drawn node to its parent, and a dotted one from an end to its label."""
    lines = [
        f'<path d="M{edge.x:g} {edge.y_parent:.1f}V{edge.y:.1f}H{edge.x_end:g}" fill="none" stroke="currentColor" '
        f'stroke-width="{edge.thickness:.2f}"/>'
        for edge in layout.edges
    ]
    lines += [
        f'<path d="M{row.x:g} {row.y:.1f}H{layout.x_end:g}" stroke="currentColor" stroke-dasharray="1 4" '
        'opacity="0.5"/>'
        for row in layout.rows
    ]
    return lines


def _texts(layout: Layout) -> list[str]:
    """Of each row its label, its percentage and its code."""
    texts = []
    for row in layout.rows:
        y = f"{row.y + 4.5:g}"
        style = "" if row.is_unit else ' font-style="italic" opacity="0.75"'
        texts += [
            f'<text x="{layout.x_label:g}" y="{y}"{style}>{_xml(row.label)}</text>',
            f'<text x="{layout.x_share:.0f}" y="{y}" text-anchor="end" opacity="0.75">{percent(row.share)}</text>',
            f'<text x="{layout.x_code:.0f}" y="{y}" font-family="monospace" opacity="0.75">{row.code}</text>',
        ]
    return texts


def _xml(text: str) -> str:
    """Text for XML: escaped, and the two non-characters that XML cannot hold as U+FFFD."""
    return escape(text.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))
