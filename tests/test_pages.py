# SPDX-License-Identifier: Apache-2.0
"""How README and each page of the documentation begin."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted(
    [
        *(path for path in ROOT.glob("docs/*.md") if path.name != "findings.md"),
        *ROOT.glob("examples/*/s0/README.md"),
        *ROOT.glob("examples/*/README.md"),
        ROOT / "examples/README.md",
        ROOT / "benchmarks/README.md",
        ROOT / "CONTRIBUTING.md",
    ]
)
MAX_COLUMNS = 78
"""The site shows as many columns of code without scrolling at a width of 1,280 pixels."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_its_purpose_and_a_command(page: Path) -> None:
    text = re.sub(r"^<!--.*?-->\n+", "", page.read_text("utf-8"), flags=re.S)
    title, purpose, *_ = text.split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z\"`]", purpose), "the first paragraph says what the page is for"
    assert len(purpose.split()) <= 80, "the first paragraph is short"
    before_first_section = text.partition("\n## ")[0]
    commands = re.search(r"```bash\n(.*?)```", before_first_section, re.S)
    assert commands, "the first part has a command"
    assert max(map(len, commands[1].splitlines())) <= MAX_COLUMNS


def test_code_of_readme_does_not_scroll() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines and max(map(len, lines)) <= MAX_COLUMNS, [
        line for line in lines if len(line) > MAX_COLUMNS
    ]


def test_readme_has_the_order_of_a_reader() -> None:
    parts = [
        "# wenet_hs",
        "docs/overview.svg",
        "## Install",
        "mini/s0/run.sh\n",
        "## Your own recordings",
        "## The page",
    ]
    parts += [
        "## From Python",
        "## The head in your own model",
        "## Results",
        "## What you can rely on",
        "## More",
    ]
    positions = [README.index(part) for part in parts]
    assert positions == sorted(positions)
