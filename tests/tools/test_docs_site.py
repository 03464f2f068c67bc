# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: nothing loaded from a network, no source files but one for users, and
its search.
"""

import os
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
    const toggle = document.querySelector("[data-md-toggle=search]");
    const input = document.querySelector("input.md-search__input");
    if (!toggle.checked) toggle.click();
    const items = () => [...document.querySelectorAll(".md-search-result__item")];
    items().forEach(item => item.remove());
    input.value = "QUERY";
    input.dispatchEvent(new Event("keyup"));
    const found = () => items().map(item => item.querySelector("a").href);
    const wait = setInterval(() => { if (found().length > 2) { clearInterval(wait); done(found()); } }, 50);
    setTimeout(() => done(found()), 10000);
})"""
WANTED = {
    "TextGrid": {"own-data"},
    "label smoothing": {"heads"},
    "ELAN": {"own-data"},
    "export torch": {"heads"},
    "beam size": {"recognition"},
    "word error rate": {"scoring"},
    "resume": {"training"},
    "GPU memory": {"training", "heads"},
}
"""The pages one of which the search must have among its first three."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site, built by the commands of the Makefile in a copy of the repository."""
    folders = os.pathsep.join(map(str, (ROOT / ".venv-docs/bin", Path(sys.executable).parent)))
    mkdocs = shutil.which("mkdocs", path=folders) or shutil.which("mkdocs")
    if mkdocs is None:
        pytest.skip("no mkdocs; `make docs` installs it")
    folder = tmp_path_factory.mktemp("docs")
    target = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert target is not None
    commands = [
        line.strip().replace(".venv-docs/bin/mkdocs", mkdocs) for line in target[1].splitlines()
    ]
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder / "copy"], check=True)
    for name in ("Makefile", "docs", "tools", "README.md"):
        source, copy = ROOT / name, folder / "copy" / name
        shutil.copytree(source, copy, dirs_exist_ok=True) if source.is_dir() else shutil.copy(
            source, copy
        )
    for command in ("git add --all docs", *commands):
        subprocess.run(
            ["bash", "-c", command], cwd=folder / "copy", check=True, capture_output=True
        )
    yield folder / "copy/build/site"


def test_the_site_is_complete_and_loads_nothing_from_elsewhere(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    sources = {path.name for path in files if path.suffix in {".py", ".sh", ".toml", ".npz", ".md"}}
    assert (site / "index.html") in files and sources == {"decode_wav.py"}, (
        "a program that users are to copy"
    )
    for path in (site / "index.html", site / "docs/heads.html"):
        page = path.read_text("utf-8")
        loaded = re.findall(
            r'<(?:script|img)[^>]* src="([^"]*)"|<link rel="stylesheet" href="([^"]*)"', page
        )
        assert len(loaded) > 3 and not [url for url in map("".join, loaded) if ":" in url]
    start = (site / "index.html").read_text("utf-8")
    assert start.index("for languages with little data") < start.index("<img"), (
        "a sentence is before the picture"
    )


def test_the_search_works_from_the_disk(site: Path, tmp_path: Path) -> None:
    with Page(find_browser(), tmp_path / "profile") as page:
        page.open(site / "docs/heads.html")
        for query, wanted in WANTED.items():
            found = [re.sub(r"[?#].*", "", url) for url in page.run(SEARCH.replace("QUERY", query))]
            assert wanted & {Path(url).stem for url in found[:3] if "/docs/" in url}, (query, found)
            assert not [
                url for url in found if re.search("CHANGELOG|/notes/|/design/|/results/", url)
            ], query
        assert page.console == []


def test_what_scrolls_has_a_shadow_at_the_edge(site: Path, tmp_path: Path) -> None:
    with Page(find_browser(), tmp_path / "profile") as page:
        page.resize(480)
        page.open(site / "docs/heads.html")
        for selector in (".md-typeset__scrollwrap", ".md-typeset pre > code"):
            shadows = f"""(() => {{
                const all = [...document.querySelectorAll("{selector}")];
                const style = getComputedStyle(all.find(one => one.scrollWidth > one.clientWidth));
                return style.backgroundAttachment + style.backgroundColor; }})()"""
            found = page.run(shadows)
            assert found.startswith("local, local, scroll, scroll") and "rgba" not in found, found


def test_titles(site: Path) -> None:
    for page, title in (("RESULTS", "Results"), ("examples/ucla/s0/RESULTS", "Results: ucla")):
        assert f"<title>{title} - wenet_hs</title>" in (site / f"{page}.html").read_text("utf-8")
    assert not (site / "docs/findings.html").exists()


def test_code_of_the_first_page_does_not_scroll(site: Path, tmp_path: Path) -> None:
    wider = """[...document.querySelectorAll(".md-typeset pre > code")]
        .filter(block => block.scrollWidth > block.clientWidth).map(block => block.textContent)"""
    with Page(find_browser(), tmp_path / "profile") as page:
        page.resize(1280)
        page.open(site / "index.html")
        assert page.run("""document.querySelectorAll(".md-typeset pre > code").length""") > 5
        assert page.run(wider) == []
