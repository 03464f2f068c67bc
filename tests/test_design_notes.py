# SPDX-License-Identifier: Apache-2.0
"""Modules, files and flags that the design notes name exist, unless a commit is named beside them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTES = sorted((ROOT / "docs/design").glob("*.md"))
PACKAGES = "|".join(folder.parent.name for folder in (ROOT / "wenet_hs").glob("*/__init__.py"))
DATA = r"(?:\w+\.)?(?:html|json|list|md|safetensors|tsv|yaml)\b"
MODULE = re.compile(
    rf"(?<![\w./`-])`?(?:wenet_hs[./])?((?:{PACKAGES})[./](?!{DATA}|\w+\(|[A-Z])\w+)(?:\.py)?"
)
MODULE_FILE = re.compile(r"(?<![\w./-])wenet_hs/(\w+\.py)\b")
"""A module beside the rooms, which `MODULE` does not match."""
FILE = re.compile(r"(?<![\w./])((?:benchmarks|conf|docs|examples|tests|tools)/[\w./-]+\.\w+)")
SCRIPT = re.compile(r"(?<![\w./])([a-z]\w*\.py)\b")
FLAG = re.compile(r"(?<![\w-])--([a-z]\w*)")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7}\b")
SOURCES = [path for path in ROOT.glob("[!.]*/**/*.*") if path.suffix in (".py", ".sh")] + [
    ROOT / "examples/README.md"
]
SCRIPTS = {path.name for path in SOURCES} | {"setup.py"}
WORDS = {
    word
    for path in SOURCES
    if path.name != "test_design_notes.py"
    for word in re.findall(r"\w+", path.read_text("utf-8"))
}


def current_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, items and rows of today: neither they nor their heading nor the title name a
    commit.
    """
    title, _, _ = text.partition("\n")
    for section in re.split(r"\n(?=#)", text):
        if not COMMIT.search(title + section.partition("\n")[0]):
            yield from (
                part for part in re.split(r"\n(?=\n|- |\|)", section) if not COMMIT.search(part)
            )


def stale_names(text: str) -> list[str]:
    """What the text names and the repository does not have."""
    found = []
    for paragraph in current_paragraphs(text):
        for name in MODULE.findall(paragraph):
            path = ROOT / "wenet_hs" / name.replace(".", "/")
            if not (path.with_suffix(".py").exists() or path.is_dir()):
                found.append(name)
        at_top = MODULE_FILE.findall(paragraph)
        found += [name for name in at_top if not (ROOT / "wenet_hs" / name).exists()]
        found += [path for path in FILE.findall(paragraph) if not (ROOT / path).exists()]
        found += [name for name in SCRIPT.findall(paragraph) if name not in SCRIPTS]
        found += [f"--{flag}" for flag in FLAG.findall(paragraph) if flag not in WORDS]
    return found


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_names_in_a_note_exist_or_are_of_a_commit(note: Path) -> None:
    stale = stale_names(note.read_text("utf-8"))
    assert not stale, f"correct them, or write of which commit they are: {', '.join(stale)}"


def test_stale_names_are_found() -> None:
    stale = "`decode/no_such.py`, lm.no_such, `no_such.py`, `tools/no_such.sh` and `--no_such_flag`"
    names = ["decode/no_such", "lm.no_such", "tools/no_such.sh", "no_such.py", "--no_such_flag"]
    assert stale_names(f"# Note\n\n{stale}\n") == names
    assert (
        stale_names(f"# Note\n\n{stale} (of commit 568091f)\n\n- `tree/tree.py`, `--tree`\n") == []
    )
    assert stale_names(f"# Note at 568091f\n\n## Part\n\n{stale}\n") == []


def test_stale_modules_beside_the_rooms_are_found() -> None:
    assert stale_names("# Note\n\n`wenet_hs/setup.py` and `wenet_hs/version.py`\n") == ["setup.py"]
    assert stale_names("# Note\n\n`wenet_hs/setup.py` (of commit 568091f)\n") == []


def test_each_number_has_one_note() -> None:
    numbers = [note.name[:4] for note in NOTES]
    assert len({*numbers}) == len(numbers)
