# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs for `make docs`: which pages the search finds first, and titles."""

import re
from typing import Any

NOT_SEARCHED = r"CHANGELOG|benchmarks/notes/|docs/design/|tests/|examples/.*results/"
"""Pages that contain every term, and would be found before the page of the task."""
TASKS_BOOST = 3.0


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> None:
    """Set the metadata of a page that its Markdown file, which is also read on its own, does not
    have.
    """
    path = page.file.src_uri
    if re.match(NOT_SEARCHED, path):
        page.meta["search"] = {"exclude": True}
    elif path.startswith("docs/"):
        page.meta["search"] = {"boost": TASKS_BOOST}
    if recipe := re.match(r"examples/(\w+)/s0/RESULTS", path):
        page.meta["title"] = (
            f"Results: {recipe[1]}"  # the file begins with a comment, which hides its title
        )
