# SPDX-License-Identifier: Apache-2.0
"""Run `wenet-hs prepare` in a test of any corpus, and read what it wrote."""

import argparse
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

from wenet_hs.base.options import read_options
from wenet_hs.bin import prepare
from wenet_hs.manifest.data_list import Utterance, read_data_list


def parse_prepare(line: str) -> Any:
    """The options of a command line after `wenet-hs prepare`."""
    return _parse(line)[1]


def prepare_line(line: str) -> dict[str, Any]:
    """Prepare the corpus of a command line after `wenet-hs prepare`; the content of stats.json."""
    module, options = _parse(line)
    stats: dict[str, Any] = module.prepare(options)
    return stats


def rejected(out: Path) -> dict[str, str]:
    """Name → reason of what `prepare` left out."""
    rows = [line.split("\t") for line in (out / "rejected.tsv").read_text("utf-8").splitlines()[1:]]
    return {key: reason for key, _, reason, *_ in rows}


def _parse(line: str) -> tuple[ModuleType, Any]:
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    args = parser.parse_args(shlex.split(line))
    return args.module, read_options(args, prepare.options_class(args.module))


def read_lists(out: Path) -> dict[str, list[Utterance]]:
    """The lists that `prepare` wrote."""
    return {name: read_data_list(out / name / "data.list") for name in ("train", "dev", "test")}
