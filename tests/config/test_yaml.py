# SPDX-License-Identifier: Apache-2.0
"""Reading YAML: the scalars of version 1.2, places of values, limits, and one line per syntax error."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wenet_hs.config.load import MAX_BYTES, MAX_VALUES, Place, parse_yaml, read_yaml, resolve_scalar
from wenet_hs.errors import ConfigError

A_YAML = Place("a.yaml", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in ("no", "on", "yes", "y", "1_000", "0x1f", "12:30:45", "2024-01-01", ".", ".inf")),
        *(("True", True), ("false", False), ("~", None), ("", None), ("null", None), ("010", 10), ("-7", -7)),
        *(("1e-3", 0.001), ("5e-05", 0.00005), (".5", 0.5), ("5.", 5.0), ("1.0E+2", 100.0)),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    resolved = resolve_scalar(text)
    assert resolved == value
    assert type(resolved) is type(value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: '1'\nb: \"true\"\nc: |\n  3\nd: ''", {"a": "1", "b": "true", "c": "3\n", "d": ""}),
        ("langs: [no, en]", {"langs": ["no", "en"]}),
        ("a: &long 1206\nb: {c: *long}\n", {"a": 1206, "b": {"c": 1206}}),
    ],
)
def test_values(text: str, values: object) -> None:
    settings = parse_yaml(text, A_YAML)
    assert (settings.values, settings.faults) == (values, [])


def test_each_value_has_the_line_of_its_key_and_the_first_duplicate_counts() -> None:
    places = parse_yaml("# a comment\na:\n  b: 1\n  c:\n    - 2\n    - 3\n", A_YAML).places
    assert {location: place.line for location, place in places.items() if location} == {
        **{("a",): 2, ("a", "b"): 3, ("a", "c"): 4},
        **{("a", "c", 0): 5, ("a", "c", 1): 6},
    }
    settings = parse_yaml("a: 1\nb: 2\na: 3\n", A_YAML)
    assert settings.faults == [(Place("a.yaml", 3), "a: duplicate of the key at a.yaml:1; keep one")]
    assert settings.values == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "tagged", ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!str 3", "!mine {a: 1}"]
)
def test_tags_are_refused_and_build_no_object(tagged: str) -> None:
    ((place, fault),) = parse_yaml(f"x: 1\na: {tagged}\n", A_YAML).faults
    assert str(place) == "a.yaml:2"
    assert fault.startswith("tag '") and fault.endswith("is not supported; remove it")


LETTERS = "abcdefghij"
BOMB = "\n".join(
    ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    + [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip(LETTERS, LETTERS[1:], strict=False)]
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\t- b", "a.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces"),
        ("a: 1\nb: c: d", "a.yaml:2: not YAML: mapping values are not allowed here; quote a text with `: ` in it"),
        ("a: [1, 2", "a.yaml:1: not YAML: expected ',' or ']'"),
        ("a: 'b", "a.yaml:1: not YAML: found unexpected end of stream"),
        ("a: 1\nb: \x00", "a.yaml:2: not YAML: character U+0000 is not allowed"),
        ('a: "\\UFFFFFFFF"', "a.yaml:1: not YAML: "),
        ('a: "\\ud800"', "a.yaml:1: half of a surrogate pair is not text"),
        ("a: *b", "a.yaml:1: not YAML: found undefined alias 'b'"),
        ("a: &a [*a]", "a.yaml:1: more than 20 sections or lists inside each other"),
        ("a: 1\n---\nb: 2", "a.yaml:2: not YAML: found another document; keep one document"),
        ("? [a]\n: 1", "a.yaml:1: a key must be one word, found a list or a section"),
        ("[" * 30 + "]" * 30, "a.yaml:1: more than 20 sections or lists inside each other"),
        ("{a: " * 3000, "a.yaml:1: more than 20 sections or lists inside each other"),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1", "a.yaml:1: not YAML: "),
        (BOMB, f"a.yaml:1: more than {MAX_VALUES} values, counting what aliases repeat"),
    ],
)
def test_syntax_errors_are_one_line_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, A_YAML)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1: a config has lines of `key: value`, found nothing; check the path"),
        (b"- a\n- b\n", ":1: a config has lines of `key: value`, found a list; check the path"),
        (b"a: 1\nb: \xff\n", ":2: not UTF-8; check that it is a YAML file, and save it as UTF-8"),
        ("a: 1".encode("utf-16"), ":1: not UTF-8; check that it is a YAML file, and save it as UTF-8"),
        (b"#" * (MAX_BYTES + 1), f":1: {MAX_BYTES + 1} bytes; a config has at most {MAX_BYTES}: check the path"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}{message}"


def test_a_missing_file_and_one_of_windows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/b: cannot be read \(No such file or directory\); check the path of the"):
        read_yaml(tmp_path / "b")
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(tmp_path / "a.yaml").values == {"a": 1, "b": 2}


@given(st.text(max_size=40))
@example("a: 1\n\x85: 2")
@example("!<tag:x> a")
@example("%TAG ! x\n---\n!y a")
@example("&a : *a")
def test_any_text_parses_or_is_one_fault(text: str) -> None:
    try:
        parse_yaml(text, A_YAML)
    except ConfigError as error:
        assert str(error).startswith("a.yaml:")
        assert "\n" not in str(error)
