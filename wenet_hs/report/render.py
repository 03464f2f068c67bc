# SPDX-License-Identifier: Apache-2.0
"""The templates of the pages."""

from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wenet_hs.report.aligned import align_columns
from wenet_hs.report.page_table import format_counts, score_of, table_parts
from wenet_hs.score.error_rate import format_interval, percent, sortable_rate
from wenet_hs.score.tables import format_p, format_points, format_signed


def render_page(template: str, **values: Any) -> str:
    """The HTML of a file in `templates/`.

    The template gets `values`, the date as `date`, and the version of wenet_hs as `version`. Raises
    jinja2.UndefinedError if it uses another name.
    """
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    page = _environment().get_template(template)
    return page.render(date=date, version=version("wenet_hs"), **values)


@cache
def _environment() -> Environment:
    """The templates, compiled once, with the filters for numbers and alignments.

    Templates escape all text. An undefined name is an error.
    """
    environment = Environment(
        loader=PackageLoader("wenet_hs.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "count": "{:,}".format,
        "columns": align_columns,
        "counts": format_counts,
        "first_sentence": _first_sentence,
        "interval": format_interval,
        "p_value": format_p,
        "percent": percent,
        "points": format_points,
        "score": score_of,
        "signed": format_signed,
        "sort_rate": sortable_rate,
        "table_parts": table_parts,
    }
    return environment


def _first_sentence(html: str) -> str:
    """The first sentence of HTML as plain text, without its full stop unless it is the only one."""
    text = Markup(html).striptags()
    return text.split(". ")[0]
