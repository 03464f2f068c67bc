# SPDX-License-Identifier: Apache-2.0
"""YAML by the rules of 1.2, with lines, and without any of YAML's surprises."""

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wenet_hs.config.yaml_source import MAX_VALUES, Place, describe, one_line, parse_yaml, read_yaml, resolve_scalar
from wenet_hs.errors import ConfigError


def parse(text: str) -> object:
    node, faults = parse_yaml(text, Place("a.yaml", 1))
    assert faults == []
    return node.plain()


def fault_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, Place("a.yaml", 1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("010", 10),
        ("-7", -7),
        ("1_000", "1_000"),
        ("0x1f", "0x1f"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1e-3", 0.001),
        ("5e-05", 0.00005),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.0E+2", 100.0),
        ("-.inf", -math.inf),
        (".", "."),
        ("e5", "e5"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    resolved = resolve_scalar(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_quoted_scalars_are_text() -> None:
    assert parse("a: '1'\nb: \"true\"\nc: |\n  3\nd: ''") == {"a": "1", "b": "true", "c": "3\n", "d": ""}


def test_a_list_of_languages_keeps_norwegian() -> None:
    assert parse("langs: [no, en]") == {"langs": ["no", "en"]}


def test_nodes_know_the_line_of_their_key() -> None:
    root, _ = parse_yaml("# what it is\na:\n  b: 1\n  c:\n    - 2\n    - 3\n", Place("a.yaml", 1))
    assert str(root.value["a"].place) == "a.yaml:2"  # type: ignore[index,call-overload]
    inner = root.value["a"].value["c"]  # type: ignore[index,call-overload]
    assert str(inner.place) == "a.yaml:4"
    assert [str(item.place) for item in inner.value] == ["a.yaml:5", "a.yaml:6"]


def test_aliases_stand_for_their_anchor() -> None:
    assert parse("a: &long 1206\nb: {c: *long}\n") == {"a": 1206, "b": {"c": 1206}}


def test_duplicate_keys_name_both_lines_and_the_first_wins() -> None:
    root, faults = parse_yaml("a: 1\nb: 2\na: 3\n", Place("a.yaml", 1))
    assert [str(fault) for fault in faults] == ["a.yaml:3: a: stands already on line 1; keep one"]
    assert root.plain() == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "tagged", ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!int '3'", "!mine {a: 1}"]
)
def test_tags_are_refused_and_build_nothing(tagged: str) -> None:
    root, faults = parse_yaml(f"x: 1\na: {tagged}\n", Place("a.yaml", 1))
    assert len(faults) == 1
    assert str(faults[0]).startswith("a.yaml:2: tag '")
    assert str(faults[0]).endswith("is not supported; remove it")
    assert isinstance(root.plain(), dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\t- b", "a.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces"),
        ("a: 1\nb: c: d", "a.yaml:2: not YAML: mapping values are not allowed here; quote a text with `: ` in it"),
        ("a: [1, 2", "a.yaml:1: not YAML: expected ',' or ']'"),
        ("a: 1\n b: 2", "a.yaml:2: not YAML: mapping values are not allowed here"),
        ("a: 'b", "a.yaml:1: not YAML: found unexpected end of stream"),
        ("a: 1\nb: \x00", "a.yaml:2: not YAML: character U+0000 is not allowed"),
        ('a: "\\UFFFFFFFF"', "a.yaml:1: not YAML: "),
        ('a: "\\ud800"', "a.yaml:1: half of a surrogate pair is not text"),
        ("a: *b", "a.yaml:1: alias *b has no anchor &b before it"),
        ("a: &a [*a]", "a.yaml:1: alias *a has no anchor &a before it"),
        ("a: 1\n---\nb: 2", "a.yaml:2: a second document begins here; keep one"),
        ("? [a]\n: 1", "a.yaml:1: a key must be one word, here is a list, a section or an alias"),
        ("[" * 3000, "a.yaml:1: more than 20 sections or lists inside each other"),
        ("{a: " * 3000, "a.yaml:1: more than 20 sections or lists inside each other"),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1", "a.yaml:1: not YAML: "),
    ],
)
def test_syntax_errors_are_one_line_with_the_place(text: str, message: str) -> None:
    fault = fault_of(text)
    assert fault.startswith(message)
    assert "\n" not in fault


def test_an_alias_bomb_stops_at_the_limit() -> None:
    letters = "abcdefghij"
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip(letters, letters[1:], strict=False)]
    assert f"more than {MAX_VALUES} values, those that aliases repeat included" in fault_of("\n".join(lines))


def test_files_that_are_no_config(tmp_path: Path) -> None:
    def fault(content: bytes) -> str:
        path = tmp_path / "a.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            read_yaml(path)
        return str(caught.value).removeprefix(str(path))

    assert fault(b"") == ":1: empty; a config has lines of `key: value`"
    assert fault(b"# only a remark\n") == ":1: empty; a config has lines of `key: value`"
    assert fault(b"- a\n- b\n") == ":1: a config has lines of `key: value`, here is a list"
    assert fault(b"just text") == ":1: a config has lines of `key: value`, here is 'just text'"
    assert fault(b"a: 1\nb: \xff\n") == ":2: not UTF-8; is this a YAML file?"
    assert fault("a: 1".encode("utf-16")) == ":1: not UTF-8; is this a YAML file?"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"b\.yaml: cannot be read \(No such file or directory\); check the path"):
        read_yaml(tmp_path / "b.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); check the path of the config"):
        read_yaml(tmp_path)


def test_a_byte_order_mark_and_crlf_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    root, faults = read_yaml(tmp_path / "a.yaml")
    assert (root.plain(), faults) == ({"a": 1, "b": 2}, [])


def test_values_in_messages_are_short_and_on_one_line() -> None:
    assert [describe(value) for value in (None, True, 3, "x", [1], {})] == [
        *("null", "true", "3", "'x'", "a list", "a section"),
    ]
    assert len(describe("x" * 1000)) == 60
    assert one_line("a\nb\u2028ж") == "a\\nb\\u2028ж"


@given(st.text(max_size=40))
@example("a: 1\n\x85: 2")
@example("!<tag:x> a")
@example("%TAG ! x\n---\n!y a")
@example("&a : *a")
def test_any_text_parses_or_is_one_fault(text: str) -> None:
    try:
        parse_yaml(text, Place("a.yaml", 1))
    except ConfigError as error:
        assert str(error).startswith("a.yaml:")
        assert "\n" not in str(error)
