# SPDX-License-Identifier: Apache-2.0
"""The code that stands in a page, as its readers copy it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = "```"


def code_blocks(page: str, heading: str, language: str = "python") -> list[str]:
    """The code of a language below a heading, up to the next heading that is not below it.

    Args:
        page: relative to the checkout.
        heading: its whole line, with `#`.
    Raises ValueError if the page lacks this heading, or has no such code below it.
    """
    blocks: list[str] = []
    level = heading.partition(" ")[0]
    is_below = False
    open_block: list[str] | None = None
    open_language = ""
    for line in (ROOT / page).read_text("utf-8").splitlines():
        if open_block is not None and line == FENCE:
            if is_below and open_language == language:
                blocks.append("\n".join(open_block) + "\n")
            open_block = None
        elif open_block is not None:
            open_block.append(line)
        elif line.startswith(FENCE):
            open_block = []
            open_language = line.removeprefix(FENCE)
        elif line == heading:
            is_below = True
        elif line.startswith("#") and len(line.partition(" ")[0]) <= len(level):
            is_below = False
    if not blocks:
        raise ValueError(f"{page}: no code in {language} below {heading!r}")
    return blocks
