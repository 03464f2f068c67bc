# SPDX-License-Identifier: Apache-2.0
"""A stub of `wenet-hs` and `python`: records its arguments, and makes files and lines that recipes
read.

Called as `stub_program.py NAME ARGUMENT…`. It appends one JSON object per call to the file
$STUB_RECORD. It imports nothing of the project, so it starts in a few milliseconds.
"""

import json
import os
import sys

HOURS = 1.0
"""Hours of training speech in the lists that `prepare` makes."""
HEADS_WITHOUT_TREE = ("softmax", "cosine")
"""`cosine` is of the package in tests/extension_package."""


def main() -> None:
    name = sys.argv[1]
    arguments = sys.argv[2:]
    record = {
        "program": name,
        "arguments": arguments,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }
    append_line(os.environ["STUB_RECORD"], json.dumps(record))
    write_outputs(arguments)
    if arguments[0] == "heads-without-tree":
        print_heads_without_tree(arguments[1:])


def print_heads_without_tree(heads: list[str]) -> None:
    for head in heads:
        if head in HEADS_WITHOUT_TREE:
            sys.stdout.write(f"{head}\n")


def append_line(path: str, line: str) -> None:
    """Append with one write: trainings run side by side."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def write_outputs(arguments: list[str]) -> None:
    """Write the files of a command that a recipe looks for."""
    command = arguments[0]
    if command == "prepare" and arguments[1] != "synthetic":
        stats = {"total": {"hours": {"train": HOURS}}}
        write(f"{value_of(arguments, '--out')}/stats.json", json.dumps(stats))
    elif command == "shards":
        write(f"{value_of(arguments, '--out')}/data.list")
    elif command == "embed" or arguments[:2] == ["tree", "build"]:
        write(value_of(arguments, "--out"))
    elif command == "plan" and "--only_time" not in arguments:
        write_plan(arguments)
    elif "train" in arguments and "--model_dir" in arguments:
        write(f"{value_of(arguments, '--model_dir')}/final.pt")


def write_plan(arguments: list[str]) -> None:
    """Write a plan, and a first part unless the training starts from other weights or has none."""
    folder = value_of(arguments, "--out")
    write(f"{folder}/plan.yaml")
    has_start = value_of(arguments, "--base") or value_of(arguments, "--encoder")
    if not has_start and value_of(arguments, "--base_steps") != "0":
        write(f"{folder}/first_part.yaml")


def value_of(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def write(path: str, text: str = "") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "w") as file:  # noqa: PTH123
        file.write(text)


if __name__ == "__main__":
    main()
