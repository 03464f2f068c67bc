# SPDX-License-Identifier: Apache-2.0
"""The options of examples/own and of `wenet-hs own`, with types.

They are read from the texts of a command line, and written as such texts and as JSON.
"""

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from wenet_hs.recipes.conf_files import OWN, conf_file
from wenet_hs.recipes.option_values import check_option_values
from wenet_hs.recipes.prepare_words import split_words
from wenet_hs.recipes.sizes import AUTO
from wenet_hs.tree.errors import ConfigError

LAST_STAGE = 8
DEFAULT_SEED = 777
"""The seed that no name of an experiment has."""
CorpusForm = Literal["corpus", "elan", "praat", "kaldi", "folder"]
"""The options that name recordings; `corpus` is a table."""
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
    """The options; None: not given. Folders are as the user wrote them."""

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
    encoder: Path | None = None
    only_time: bool = False
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
    jobs: int = 2
    threads: int = 1
    data: Path = Path("data")
    exp: Path = Path("exp")
    results: Path | None = None

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
    texts = option_texts(OwnOptions()) | dict(texts)
    check_option_values(texts, LAST_STAGE)
    return OwnOptions(
        corpus=_parse_path(texts["corpus"]),
        elan=_parse_path(texts["elan"]),
        praat=_parse_path(texts["praat"]),
        kaldi=_parse_path(texts["kaldi"]),
        folder=_parse_path(texts["folder"]),
        lang=texts["lang"],
        prepare=tuple(split_words(texts["prepare"])),
        min_minutes=_parse_minutes(texts["min_minutes"]),
        size=texts["size"] or AUTO,
        base_steps=int(texts["base_steps"]) if texts["base_steps"] else None,
        base=_parse_path(texts["base"]),
        encoder=_parse_path(texts["encoder"]),
        only_time=texts["only_time"] != "",
        head=tuple(texts["head"].split()),
        modes=tuple(texts["modes"].split()),
        config=_parse_config(texts["config"]),
        stage=int(texts["stage"]),
        stop_stage=int(texts["stop_stage"]),
        tree=texts["tree"],
        unit=texts["unit"],
        seeds=tuple(_parse_seed("seeds", text) for text in texts["seeds"].split()),
        data_seed=_parse_seed("data_seed", texts["data_seed"]),
        override=tuple(texts["override"].split()),
        average_num=int(texts["average_num"]),
        eval_set=_parse_eval_set(texts["eval_set"]),
        chunk=_parse_chunk(texts["chunk"]),
        nproc=int(texts["nproc"]),
        jobs=int(texts["jobs"]),
        threads=int(texts["threads"]),
        data=Path(texts["data"]),
        exp=Path(texts["exp"]),
        results=_parse_path(texts["results"]),
    )


def option_texts(options: OwnOptions) -> dict[str, str]:
    """Name of each option → its text, as `parse_own_options` reads it; empty: not given."""
    texts = {name: _as_text(getattr(options, name)) for name in OPTION_NAMES}
    texts["prepare"] = shlex.join(options.prepare)
    texts["config"] = str(options.config_path)
    return texts


def changed_options(options: OwnOptions) -> list[str]:
    """The names of the options that do not have their default, in the order of the fields."""
    default = OwnOptions()
    return [name for name in OPTION_NAMES if getattr(options, name) != getattr(default, name)]


def _as_text(value: object) -> str:
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


def _parse_path(text: str) -> Path | None:
    return Path(text) if text else None


def _parse_config(text: str) -> Path | None:
    path = Path(text)
    return None if path == conf_file(OWN) else path


def _parse_minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes < math.inf:
        raise ConfigError(f"--min_minutes {text}", "must be a number from 0 on")
    return minutes


def _parse_seed(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ConfigError(f"--{name} {text}", "must be a whole number from 0 on")
    return int(text)


def _parse_eval_set(text: str) -> EvalSet:
    return "dev" if text == "dev" else "test"  # other texts were refused


def _parse_chunk(text: str) -> ChunkSizes | None:
    if not text:
        return None
    size, left_chunks = text.split()
    return ChunkSizes(size=int(size), left_chunks=int(left_chunks))


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
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "content"
        raise ValueError(f"{key}: {first['msg']}") from error
