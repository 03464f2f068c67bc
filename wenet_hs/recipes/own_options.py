# SPDX-License-Identifier: Apache-2.0
"""The options of examples/own and of `wenet-hs own`, with types.

`parse_own_options` reads them from the texts of a command line, `option_texts` writes such texts.
`own_record` and `read_own_record` write and read them as JSON.
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from wenet_hs.recipes.conf_files import OWN, conf_file
from wenet_hs.recipes.option_values import check_option_values
from wenet_hs.recipes.prepare_words import split_words
from wenet_hs.recipes.record_faults import describe_first_fault
from wenet_hs.recipes.sizes import AUTO
from wenet_hs.tree.errors import ConfigError

LAST_STAGE = 8
DEFAULT_SEED = 777
"""The names of experiments leave this seed out."""
CorpusForm = Literal["corpus", "elan", "praat", "kaldi", "folder"]
"""The options that name recordings, one per form; `corpus` is a table of clips."""
FORMS: tuple[CorpusForm, ...] = get_args(CorpusForm)
EvalSet = Literal["test", "dev"]


@dataclass(frozen=True, kw_only=True)
class ChunkSizes:
    """Decoding in chunks, of a model that streams."""

    size: int
    """Encoder frames per chunk."""
    left_chunks: int
    """Chunks before it that the encoder sees."""


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """The options; None: not given. Paths are as the user wrote them."""

    corpus: Path | None = None
    elan: Path | None = None
    praat: Path | None = None
    kaldi: Path | None = None
    folder: Path | None = None
    lang: str = "und"
    prepare: tuple[str, ...] = ()
    """More arguments of `wenet-hs prepare`."""
    min_minutes: float = 10.0
    size: str = AUTO
    base_steps: int | None = None
    """Steps of the first part of training; 0: there is none; None: by the size."""
    base: Path | None = None
    """Folder of a trained model from which the trainings start."""
    encoder: Path | None = None
    """Folder of a pretrained encoder from which the trainings start."""
    only_time: bool = False
    """Whether stage 4 only measures how long a training takes."""
    head: tuple[str, ...] = ("softmax",)
    modes: tuple[str, ...] = ("auto",)
    config: Path | None = None
    """None: conf/own.yaml of wenet_hs."""
    stage: int = 0
    stop_stage: int = LAST_STAGE
    tree: str = "huffman"
    """A kind of tree, or the path of a tree.json."""
    unit: str = "char"
    """char, phone, or bpe:N with N pieces."""
    seeds: tuple[int, ...] = (DEFAULT_SEED,)
    data_seed: int = 0
    override: tuple[str, ...] = ()
    """More settings for training, as KEY=VALUE."""
    average_num: int = 5
    eval_set: EvalSet = "test"
    chunk: ChunkSizes | None = None
    nproc: int = 1
    """Processes that share the work of a training, of the statistics and of decoding."""
    jobs: int = 2
    """Trainings at a time."""
    threads: int = 1
    """CPU threads of each training."""
    data: Path = Path("data")
    """Folder for lists, units, trees and statistics."""
    exp: Path = Path("exp")
    """Folder for the experiments."""
    results: Path | None = None
    """Folder for a small results file of each experiment."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a record with other fields is refused

    @property
    def config_path(self) -> Path:
        """The YAML of the experiment."""
        return conf_file(OWN) if self.config is None else self.config

    @property
    def unit_kind(self) -> str:
        """char, phone or bpe."""
        return self.unit.partition(":")[0]

    @property
    def num_pieces(self) -> str:
        """The number of word pieces as it was written; empty for other units."""
        return self.unit.partition(":")[2]


OPTION_NAMES = tuple(field.name for field in fields(OwnOptions))

# ---- texts of a command line


def parse_own_options(texts: Mapping[str, str]) -> OwnOptions:
    """The options of a command line.

    Args:
        texts: name of an option → its text; those that are missing have their default.
    Raises: ConfigError for the first text that is wrong. Names of heads, trees, sizes and modes are
        not checked: `wenet-hs check-options` does that.
    """
    default_texts = option_texts(OwnOptions())
    all_texts = default_texts | dict(texts)
    check_option_values(all_texts, LAST_STAGE)
    values = {name: parse(all_texts[name]) for name, parse in _TEXT_PARSERS.items()}
    return OwnOptions(**values)


def option_texts(options: OwnOptions) -> dict[str, str]:
    """Name of each option → its text, as `parse_own_options` reads it; empty: not given."""
    texts = {name: _format_value(getattr(options, name)) for name in OPTION_NAMES}
    texts["prepare"] = shlex.join(options.prepare)
    texts["config"] = str(options.config_path)
    return texts


def changed_options(options: OwnOptions) -> list[str]:
    """The names of the options that do not have their default, in the order of the fields."""
    default = OwnOptions()
    return [name for name in OPTION_NAMES if getattr(options, name) != getattr(default, name)]


def _format_value(value: object) -> str:
    """The text of an option's value: its parts with spaces between them; empty for None and False.

    `--only_time`, the option that is True or False, is `yes` or empty.
    """
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, ChunkSizes):
        return f"{value.size} {value.left_chunks}"
    return str(value)


# Parsers of one text. `check_option_values` has refused texts without the right form before.


def _split_arguments(text: str) -> tuple[str, ...]:
    return tuple(split_words(text))


def _split_at_spaces(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _parse_path(text: str) -> Path | None:
    return Path(text) if text else None


def _parse_config(text: str) -> Path | None:
    """The YAML of `--config`; None if it is conf/own.yaml of wenet_hs, the default."""
    path = Path(text)
    return None if path == conf_file(OWN) else path


def _parse_minutes(text: str) -> float:
    """The minutes of `--min_minutes`.

    Raises ConfigError unless the text is a finite number from 0 on.
    """
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan  # refused below: no comparison with nan is true
    if not 0 <= minutes < math.inf:
        raise ConfigError(f"--min_minutes {text}", "must be a number from 0 on")
    return minutes


def _parse_size(text: str) -> str:
    return text or AUTO


def _parse_base_steps(text: str) -> int | None:
    return int(text) if text else None


def _is_not_empty(text: str) -> bool:
    return text != ""


def _parse_seeds(text: str) -> tuple[int, ...]:
    return tuple(_parse_seed("seeds", seed) for seed in text.split())


def _parse_data_seed(text: str) -> int:
    return _parse_seed("data_seed", text)


def _parse_seed(name: str, text: str) -> int:
    """A seed of the option `name`. Raises ConfigError unless the text is a whole number from 0 on.

    A number has at most 18 digits, so that it fits in 64 bits.
    """
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ConfigError(f"--{name} {text}", "must be a whole number from 0 on")
    return int(text)


def _parse_chunk(text: str) -> ChunkSizes | None:
    """The two numbers of `--chunk`, such as "16 4"; None if it is empty."""
    if not text:
        return None
    size, left_chunks = text.split()
    return ChunkSizes(size=int(size), left_chunks=int(left_chunks))


_TEXT_PARSERS: dict[str, Callable[[str], Any]] = {
    "corpus": _parse_path,
    "elan": _parse_path,
    "praat": _parse_path,
    "kaldi": _parse_path,
    "folder": _parse_path,
    "lang": str,
    "prepare": _split_arguments,
    "min_minutes": _parse_minutes,
    "size": _parse_size,
    "base_steps": _parse_base_steps,
    "base": _parse_path,
    "encoder": _parse_path,
    "only_time": _is_not_empty,
    "head": _split_at_spaces,
    "modes": _split_at_spaces,
    "config": _parse_config,
    "stage": int,
    "stop_stage": int,
    "tree": str,
    "unit": str,
    "seeds": _parse_seeds,
    "data_seed": _parse_data_seed,
    "override": _split_at_spaces,
    "average_num": int,
    "eval_set": str,
    "chunk": _parse_chunk,
    "nproc": int,
    "jobs": int,
    "threads": int,
    "data": Path,
    "exp": Path,
    "results": _parse_path,
}
"""Option → the function that gives its value for the text of a command line."""
assert tuple(_TEXT_PARSERS) == OPTION_NAMES


# ---- JSON

_ADAPTER = TypeAdapter(OwnOptions)


def own_record(options: OwnOptions) -> dict[str, Any]:
    """The options that do not have their default, as JSON."""
    record: dict[str, Any] = _ADAPTER.dump_python(options, mode="json", exclude_defaults=True)
    return record


def read_own_record(record: object) -> OwnOptions:
    """The options of `own_record`. Raises ValueError with one line for any other content."""
    try:
        return _ADAPTER.validate_python(record)
    except ValidationError as error:
        raise ValueError(describe_first_fault(error)) from error
