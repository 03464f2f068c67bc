# SPDX-License-Identifier: Apache-2.0
"""Rules for the values of a recipe's options, and the words of --prepare."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.recipes.option_values import check_option_values
from wenet_hs.recipes.prepare_words import has_open_quote, split_words
from wenet_hs.tree.errors import ConfigError

RIGHT = {
    "stage": "0",
    "stop_stage": "8",
    "average_num": "5",
    "nproc": "1",
    "jobs": "12",
    "threads": "1",
    "eval_set": "dev",
    "base_steps": "0",
    "shards": "1000",
    "chunk": "16 0",
    "seeds": "777 778",
    "prepare": "--tier 'utterance @*'",
    "override": "anything",
}


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"base_steps": "", "shards": "", "chunk": "", "prepare": ""},
        {"stage": "8"},
        {"stage": "3", "stop_stage": "3"},
        {"stop_stage": "99"},
    ],
)
def test_right_values(others: dict[str, str]) -> None:
    check_option_values(RIGHT | others, last_stage=8)


def test_options_that_a_recipe_lacks_are_not_checked() -> None:
    check_option_values({"stage": "0", "stop_stage": "4"}, last_stage=4)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("stage", "9", "--stage 9: must be from 0 to 8"),
        ("stage", "-1", "--stage -1: must be from 0 to 8"),
        ("stage", "x", "--stage x: must be from 0 to 8"),
        ("stage", "", "--stage : must be from 0 to 8"),
        ("stop_stage", "3", "--stop_stage 3: must be a stage from 4 on"),
        ("stop_stage", "a[$(id)]", "--stop_stage a[$(id)]: must be a stage from 4 on"),
        ("average_num", "x", "--average_num x: must be a whole number from 1 on"),
        ("nproc", "0", "--nproc 0: must be a whole number from 1 on"),
        ("jobs", "1.5", "--jobs 1.5: must be a whole number from 1 on"),
        ("threads", "", "--threads : must be a whole number from 1 on"),
        ("jobs", "1\n", "--jobs 1\n: must be a whole number from 1 on"),
        ("eval_set", "train", "--eval_set train: must be test or dev"),
        ("base_steps", "a[$(id)]", "--base_steps a[$(id)]: must be a whole number"),
        ("shards", "0", "--shards 0: must be a whole number from 1 on, or empty"),
        ("chunk", "16", "--chunk '16': must be two numbers, as '16 4'"),
        ("chunk", "0 4", "--chunk '0 4': must be two numbers, as '16 4'"),
        ("seeds", " ", "--seeds: give at least one seed"),
        ("prepare", "--tier 'a", "--prepare --tier 'a: a quote has no end"),
    ],
)
def test_wrong_values_are_one_line(name: str, value: str, line: str) -> None:
    values = RIGHT | {"stage": "4"} | {name: value}
    with pytest.raises(ConfigError) as caught:
        check_option_values(values, last_stage=8)
    assert str(caught.value) == line


TEXTS = st.text(st.sampled_from("ab=*#\\ \t'\""), max_size=12)


@given(st.lists(TEXTS))
def test_quoted_words_are_split_again(words: list[str]) -> None:
    # shlex.join writes an apostrophe as '"'"', which has no backslash.
    assert split_words(shlex.join(words)) == words


@pytest.mark.parametrize(
    "text",
    ["", "  ", "--tier 'utt @*' -x", '"a\\" b"c" \'d\'"e"', "a\\ b \\'c", "#a b", "a\nb"],
)
def test_words_are_those_of_xargs(text: str) -> None:
    command = ["xargs", "-r", "-n", "1", "printf", "%s\\n"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert split_words(text) == done.stdout.splitlines()


def test_a_quote_without_an_end() -> None:
    assert has_open_quote("'a") and has_open_quote('b "a')
    assert not has_open_quote("") and not has_open_quote("'it' \"a\"")
