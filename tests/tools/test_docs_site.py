# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: it loads nothing from a network, has no source files, and its search works from the disk."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, find_browser

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SEARCH = """new Promise(done => {
    document.querySelector("[data-md-toggle=search]").click();
    const input = document.querySelector("input.md-search__input");
    input.value = "TextGrid";
    input.dispatchEvent(new Event("keyup"));
    const found = () => [...document.querySelectorAll(".md-search-result__link")].map(link => link.href);
    const wait = setInterval(() => { if (found().length) { clearInterval(wait); done(found()); } }, 50);
    setTimeout(() => done([]), 10000);
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site, built by the commands of the Makefile in a copy of the repository."""
    mkdocs = shutil.which("mkdocs", path=str(Path(sys.executable).parent)) or shutil.which("mkdocs")
    if mkdocs is None:
        pytest.skip("no mkdocs; `make docs` installs it")
    folder = tmp_path_factory.mktemp("docs")
    target = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert target is not None
    commands = [
        line.strip().replace("$(BIN)/mkdocs", mkdocs) for line in target[1].splitlines() if "uv pip" not in line
    ]
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder / "copy"], check=True)
    for name in ("Makefile", "docs", "README.md"):
        source, copy = ROOT / name, folder / "copy" / name
        shutil.copytree(source, copy, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, copy)
    for command in ("git add --all docs", *commands):
        subprocess.run(["bash", "-c", command], cwd=folder / "copy", check=True, capture_output=True)
    yield folder / "copy/build/site"


def test_the_site_is_complete_and_loads_nothing_from_elsewhere(site: Path) -> None:
    suffixes = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert ".html" in suffixes and not suffixes & {".py", ".sh", ".toml", ".npz", ".md"}
    for path in (site / "index.html", site / "docs/heads.html"):
        page = path.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img)[^>]* src="([^"]*)"|<link rel="stylesheet" href="([^"]*)"', page)
        assert len(loaded) > 3 and not [url for url in map("".join, loaded) if ":" in url]
    start = (site / "index.html").read_text("utf-8")
    assert start.index('id="install"') < start.index("<img"), "the text is before the picture"


def test_the_search_works_from_the_disk(site: Path, tmp_path: Path) -> None:
    with Page(find_browser(), tmp_path / "profile") as page:
        page.open(site / "docs/heads.html")
        found = page.run(SEARCH)
        assert page.console == []
    assert any("docs/own-data.html" in url for url in found), found
