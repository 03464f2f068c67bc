# SPDX-License-Identifier: Apache-2.0
"""What every benchmark here shares: sides that alternate in one run, the machine they ran on,
tables as text and JSON.

A figure is a ratio of two sides measured in the same rounds: the median over the rounds of (time of
the baseline / time of the side), so that a machine that slows down for a while slows both. Absolute
times stand beside it for orientation.
"""

import argparse
import ctypes
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from wenet_hs.compute.devices import processor_name

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages, as in the commands

NOTES = Path(__file__).parent / "notes"

Side = Callable[[], object]
Facts = dict[str, Any]
"""What a note stores as JSON."""


def make_parser(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The flags that most benchmarks have; `doc` is the docstring of the script."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="CPU threads (default: all cores)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help="timed rounds of each side (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json (default: print only)")
    return parser


def body_of(doc: str | None) -> str:
    """A docstring without its first line and its example."""
    return (doc or "").partition("\n")[2].partition("Example:")[0].strip()


def alternate(
    sides: Mapping[str, Side], rounds: int, *, device: str = "cpu", seconds: float = 0.02
) -> dict[str, list[float]]:
    """Seconds per call of each side, `rounds` times, the sides taking turns; two first calls of
    each are not counted.

    Every other round runs in reverse order, so that no side always finds the caches that the same
    other side filled. A side quicker than `seconds` is called several times per round, so that the
    clock does not matter.
    """
    repeats = {}
    for name, side in sides.items():
        side()  # allocations and compilation
        repeats[name] = max(1, int(seconds / max(_timed(side, 1, device), 1e-7)))
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number_of_round in range(rounds):
        for name, side in list(sides.items())[:: -1 if number_of_round % 2 else 1]:
            times[name].append(_timed(side, repeats[name], device))
    return times


def _timed(side: Side, repeats: int, device: str) -> float:
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        side()
    _synchronize(device)
    return (time.perf_counter() - start) / repeats


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def ratios(times: Mapping[str, Sequence[float]], baseline: str) -> dict[str, float]:
    """How many times faster than the baseline each side is: the median over the rounds."""
    return {
        name: statistics.median(
            base / own for base, own in zip(times[baseline], values, strict=True)
        )
        for name, values in times.items()
    }


def quartiles(
    times: Mapping[str, Sequence[float]], baseline: str
) -> dict[str, tuple[float, float]]:
    """How many times faster than the baseline each side is: the first and third quartile over the
    rounds.
    """
    found = {}
    for name, values in times.items():
        of_rounds = [base / own for base, own in zip(times[baseline], values, strict=True)]
        single = len(of_rounds) == 1  # which has no quantiles before Python 3.13
        first, _, third = (
            of_rounds * 3 if single else statistics.quantiles(of_rounds, n=4, method="inclusive")
        )
        found[name] = first, third
    return found


def medians_ms(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Milliseconds per call of each side, the median over the rounds."""
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def peak_extra_bytes(step: Side, device: str) -> int:
    """The most memory that one call holds above what stood before it.

    On a CPU of the whole process (Linux).
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # sets the high-water mark to what is resident now
    before = _status("VmRSS")
    step()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def in_a_process_of_its_own(script: Path, *arguments: str) -> str:
    """The standard output of `python script arguments`: memory is measured where nothing was
    allocated before.
    """
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{script.name} {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}"
        )
    return done.stdout.strip().splitlines()[-1]


def conditions(device: str) -> dict[str, str]:
    """Date, hardware and versions, for the head of every note."""
    packages = {}
    for name in ("wenet_hs", "torch", "numba", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "absent"
    hardware = f"{processor_name(torch.device('cpu'))}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    hardware += "; GPU: not measured" if device == "cpu" else f"; {torch.cuda.get_device_name()}"
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": hardware,
        "python": platform.python_version(),
        **packages,
        "git": _git_hash(),
        "command": f"python {_script()} {' '.join(sys.argv[1:])}".strip(),
    }


def _script() -> str:
    """The program that runs, from the root of the repository where it stands in it."""
    script, root = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parents[1]
    return str(script.relative_to(root)) if script.is_relative_to(root) else script.name


def _git_hash() -> str:
    command = ["git", "-C", str(NOTES.parent), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def publish(
    title: str,
    text: str,
    facts: Mapping[str, object],
    *,
    device: str,
    out: Path | None,
    command: str | None = None,
) -> None:
    """Print a note, and write it as OUT.md and OUT.json where asked.

    `command`: another one than this program's.
    """
    where = conditions(device) | ({"command": command} if command else {})
    head = "\n".join(f"- {name}: {value}" for name, value in where.items())
    note = f"# {title}\n\n{head}\n\n{text}\n"
    print(note)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".md").write_text(note, encoding="utf-8")
        record = {"title": title, "conditions": where, **facts}
        out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
