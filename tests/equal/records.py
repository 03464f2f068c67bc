# SPDX-License-Identifier: Apache-2.0
"""A record: a folder with `record.json`, and a folder of text files per case."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

HEADER = "record.json"
PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class Header:
    """On what a record was made. The bits of results depend on it."""

    processor: str
    python: str
    packages: dict[str, str]
    """Name → version."""
    cases: list[str]


def current_header(cases: Sequence[str]) -> Header:
    """The header of a record of these cases on this machine."""
    return Header(
        processor=processor_name(),
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        cases=list(cases),
    )


def processor_name() -> str:
    """The model of the processor as Linux names it, or what Python knows elsewhere.

    Virtual machines often hide the name, so the numbers of family, model and stepping belong to it.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor() or platform.machine()
    facts: dict[str, str] = {}
    for line in cpuinfo.read_text("utf-8").partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    name = facts.get("model name", platform.machine())
    numbers = [facts.get(part, "?") for part in ("cpu family", "model", "stepping")]
    return f"{name} ({'/'.join(numbers)})"


def write_header(folder: Path, header: Header) -> None:
    """Write `record.json`."""
    text = json.dumps(asdict(header), indent=2, ensure_ascii=False)
    (folder / HEADER).write_text(f"{text}\n", "utf-8")


def read_header(folder: Path) -> Header:
    """Read `record.json`. Raises SystemExit with one line if the folder is no record."""
    path = folder / HEADER
    if not path.is_file():
        raise SystemExit(f"{path}: missing; make the record with `run.py record --out {folder}`")
    return Header(**json.loads(path.read_text("utf-8")))


def check_same_processor(before: Header, now: Header, folder: Path) -> None:
    """Raise SystemExit with one line if the bits of the record cannot be expected here."""
    if before.processor == now.processor:
        return
    raise SystemExit(
        f"{folder}: recorded on {before.processor}, and this processor is {now.processor}: "
        "floating-point results differ; record the earlier commit again on this machine, "
        "or use `run.py against COMMIT`"
    )


def changed_versions(before: Header, now: Header) -> list[str]:
    """A line per version that may change results and differs."""
    lines = []
    if before.python != now.python:
        lines.append(f"Python {before.python} before, {now.python} now")
    for name, earlier in before.packages.items():
        if now.packages.get(name) != earlier:
            lines.append(f"{name} {earlier} before, {now.packages.get(name)} now")
    return lines


def read_files(folder: Path) -> dict[str, str]:
    """Path in the folder of a case → text."""
    texts = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            texts[path.relative_to(folder).as_posix()] = path.read_text("utf-8")
    return texts
