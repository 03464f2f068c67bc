# SPDX-License-Identifier: Apache-2.0
"""A tree as PNG, the same drawing as the SVG, with a font for each script that this machine has one for."""

import io
from collections.abc import Iterable

from wenet_hs.tree.layout import Layout, Row, layout_tree, percent
from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree

SCALE = 2
"""Pixels of the picture for one of the layout."""
MAX_SIDE = 2**16 - 1
"""Agg can draw no longer side."""
FIRST_FONTS = ("DejaVu Sans", "Noto Sans")
INK, QUIET, FAINT, PAPER = "#1c1e21", "#5c6370", "#9aa2af", "#ffffff"


def tree_png(tree: Tree | NaryTree, *, max_leaves: int = 60) -> bytes:
    """The drawing of `tree_svg` as a PNG file, dark on white, twice as fine; no screen is needed.

    A character that no font of this machine has is written as U+…, never as an empty box.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second, for this drawing alone
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    layout = layout_tree(tree, max_leaves=max_leaves)
    scale = min(SCALE, MAX_SIDE / max(layout.width, layout.height))
    figure = Figure(figsize=(round(layout.width) / 100, round(layout.height) / 100), facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.axis("off")
    point = 72 / 100  # a pixel of the layout in points
    bent = [[(e.x, e.y_parent), (e.x, e.y), (e.x_end, e.y)] for e in layout.edges]
    widths = [edge.thickness * point for edge in layout.edges]
    axes.add_collection(LineCollection(bent, colors=INK, linewidths=widths, capstyle="butt", joinstyle="miter"))
    straight = [[(row.x, row.y), (layout.x_end, row.y)] for row in layout.rows]
    axes.add_collection(LineCollection(straight, colors=FAINT, linewidths=0.8 * point, linestyles=(0, (1, 4))))
    _write(axes, layout, 13 * point)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100 * scale, metadata={"Title": layout.title})
    return buffer.getvalue()


def _write(axes: object, layout: Layout, size: float) -> None:
    families, missing = _fonts(row.label for row in layout.rows)
    text = getattr(axes, "text")  # noqa: B009 - matplotlib has no types here
    for row in layout.rows:
        label, y = _readable(row, missing), row.y + 4.5
        slant = "normal" if row.is_unit else "italic"
        common = {"fontsize": size, "parse_math": False, "verticalalignment": "baseline"}
        colour = INK if row.is_unit else QUIET
        text(layout.x_label, y, label, family=families, style=slant, color=colour, **common)
        text(layout.x_share, y, percent(row.share), family=families, color=QUIET, ha="right", **common)
        text(layout.x_code, y, row.code, family="DejaVu Sans Mono", color=QUIET, **common)


def _readable(row: Row, missing: frozenset[str]) -> str:
    return "".join(f"U+{ord(character):04X}" if character in missing else character for character in row.label)


def _fonts(labels: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The font families that have the characters of the labels, and the characters that none has.

    Opens other fonts only for what the first one lacks, in the order of their names.
    """
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    lacking = {ord(character) for label in labels for character in label}
    plain = {entry.name: entry.fname for entry in fontManager.ttflist if _is_plain(entry)}
    first = [name for name in FIRST_FONTS if name in plain]
    families = []
    for name in [*first, *sorted(set(plain) - set(first))]:
        if not lacking:
            break
        found = lacking & set(FT2Font(plain[name]).get_charmap())
        if found:
            families.append(name)
            lacking -= found
    return families or list(first), frozenset(map(chr, lacking))


def _is_plain(entry: object) -> bool:
    """An upright text font; matplotlib's fallback of last resort holds boxes alone."""
    name, style, weight = (getattr(entry, field) for field in ("name", "style", "weight"))
    return style == "normal" and weight in (400, "normal", "regular") and not name.startswith("Last Resort")
