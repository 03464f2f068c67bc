# SPDX-License-Identifier: Apache-2.0
"""The options of `wenet-hs own`: read from texts, written as texts and as JSON."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.bin import own as own_command
from wenet_hs.bin.main import run_command
from wenet_hs.bin.own import translate_arguments
from wenet_hs.recipes.conf_files import OWN, conf_file
from wenet_hs.recipes.own_options import (
    OPTION_NAMES,
    ChunkSizes,
    OwnOptions,
    changed_options,
    option_texts,
    own_record,
    parse_own_options,
    read_own_record,
)
from wenet_hs.tree.errors import ConfigError

WORDS = st.text(st.sampled_from("abé=*#\\'\" -"), max_size=8)
NAMES = st.from_regex(r"[a-z][a-z_=.0-9]{0,8}", fullmatch=True)
PATHS = st.none() | st.from_regex(r"[a-z]{1,3}(/[a-zé ]{1,4}[a-z])?", fullmatch=True).map(Path)
COUNTS = st.integers(1, 1000)
OPTIONS = st.builds(
    OwnOptions,
    corpus=PATHS,
    elan=PATHS,
    base=PATHS,
    results=PATHS,
    config=PATHS,
    lang=NAMES,
    prepare=st.lists(WORDS).map(tuple),
    min_minutes=st.integers(0, 9999).map(lambda number: number / 10),
    base_steps=st.none() | st.integers(0, 10**6),
    only_time=st.booleans(),
    head=st.lists(NAMES).map(tuple),
    stage=st.integers(0, 4),
    stop_stage=st.integers(4, 8),
    seeds=st.lists(st.integers(0, 10**6), min_size=1).map(tuple),
    override=st.lists(NAMES).map(tuple),
    eval_set=st.sampled_from(["test", "dev"]),
    chunk=st.none() | st.builds(ChunkSizes, size=COUNTS, left_chunks=st.integers(0, 9)),
    nproc=COUNTS,
    exp=st.just(Path("été 1")),
)


@given(OPTIONS)
def test_texts_and_json_have_all_options(options: OwnOptions) -> None:
    texts = option_texts(options)
    assert set(texts) == set(OPTION_NAMES)
    assert parse_own_options(texts) == options
    record = json.loads(json.dumps(own_record(options)))
    assert read_own_record(record) == options
    assert set(record) == set(changed_options(options))


def test_defaults_are_those_of_an_empty_command_line() -> None:
    assert parse_own_options({}) == OwnOptions()
    assert own_record(OwnOptions()) == {} and changed_options(OwnOptions()) == []
    assert OwnOptions().config_path == conf_file(OWN)
    assert parse_own_options({"config": str(conf_file(OWN))}).config is None


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("jobs", "x", "--jobs x: must be a whole number from 1 on"),
        ("chunk", "16", "--chunk '16': must be two numbers, as '16 4'"),
        ("seeds", "1 b", "--seeds b: must be a whole number from 0 on"),
        ("data_seed", "-1", "--data_seed -1: must be a whole number from 0 on"),
        ("min_minutes", "many", "--min_minutes many: must be a number from 0 on"),
        ("min_minutes", "inf", "--min_minutes inf: must be a number from 0 on"),
        ("prepare", "--tier 'a", "--prepare --tier 'a: a quote has no end"),
        ("stage", "9", "--stage 9: must be from 0 to 8"),
    ],
)
def test_a_wrong_text_is_one_line(
    name: str,
    text: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_own_options({name: text})
    assert str(caught.value) == line
    assert run_command(own_command, [f"--{name}", text]) == 2
    assert capsys.readouterr().err == f"wenet-hs own: {line}\n"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"log_dir": "/x"}, "log_dir: Unexpected keyword argument"),
        ({"seeds": "many"}, "seeds: Input should be a valid tuple"),
        ({"chunk": {"size": 1}}, "chunk.left_chunks: Field required"),
        ({"unit": 3}, "unit: Input should be a valid string"),
        ([], "content: Input should be a dictionary or an instance of OwnOptions"),
    ],
)
def test_another_record_is_refused(record: object, line: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_own_record(record)
    assert str(caught.value) == line


def test_arguments_are_read_as_run_sh_reads_them() -> None:
    words = ["--prepare", '--tier "a b"', "--stop-stage", "3", "--elan=x=y", "--other", "--unit"]
    translated = ['--prepare=--tier "a b"', "--stop_stage=3", "--elan=x=y", "--other", "--unit"]
    assert translate_arguments(words) == translated
