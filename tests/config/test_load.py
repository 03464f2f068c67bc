# SPDX-License-Identifier: Apache-2.0
"""Configs and their YAML: every fault at once with file, line and key; overrides; scalars, limits,
syntax errors.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wenet_hs.config.heads import HEADS, HSoftmaxHeadConf
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import (
    config_changes,
    dump_config,
    load_config,
    make_config,
    written_setting,
)
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import (
    MAX_BYTES,
    MAX_VALUES,
    Place,
    parse_yaml,
    read_yaml,
    resolve_scalar,
)
from wenet_hs.tree.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write `a.yaml` into the working folder, so that messages begin with that name."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str) -> Path:
        Path("a.yaml").write_text(text, "utf-8")
        return Path("a.yaml")

    return write_text


def faults(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "encoder_conf:\n  dropout_rate: 1",
            "2: encoder_conf.dropout_rate: must be less than 1, got 1",
        ),
        ("optim_conf: {lr: 1e999}", "1: optim_conf.lr: must be a finite number, got inf"),
        (
            "encoder_conf: {output_size: 31}",
            "1: encoder_conf.output_size: must be a multiple of 2, got 31",
        ),
        ("encoder_conf: 3", "1: encoder_conf: must be a section of `key: value` lines, got 3"),
        (
            "seed: 1\nhead: hsoftmax",
            "2: head_conf.tree: missing; make one with `wenet-hs tree build`",
        ),
        ("head: hsoftmax\nhead_conf:\n  tree: 3", "3: head_conf.tree: must be text, got 3"),
        ("head_conf:\n  tree: a", "2: head_conf.tree: not a key of this head; remove it"),
        ("tokeniser: char", "1: tokeniser: unknown key; did you mean `tokenizer`?"),
        ("ctc_weight: 0.3", "1: ctc_weight: unknown key; did you mean `model_conf.ctc_weight`?"),
        ("zzz: 1", "1: zzz: unknown key; remove it"),
        ('"a\\nb": 1', "1: a\\nb: unknown key; remove it"),
        ("optim_conf:\n  lr: 0,002", "2: optim_conf.lr: must be a valid number, got '0,002'"),
        ("optim_conf: {betas: 0.9}", "1: optim_conf.betas: must be a list, got 0.9"),
        (
            "optim_conf:\n  betas:\n  - 0.9\n  - 2",
            "4: optim_conf.betas[1]: must be less than 1, got 2",
        ),
        ("optim_conf: {betas: [0.9]}", "1: optim_conf.betas[1]: missing"),
        ("optim_conf: {betas: [0, 0, 0]}", "1: optim_conf.betas: must have 2 values, got 3"),
        (
            "model_conf: {reverse_weight: -1}",
            "1: model_conf.reverse_weight: must be at least 0, got -1",
        ),
        ("model_conf: {ctc_weight: 2}", "1: model_conf.ctc_weight: must be at most 1, got 2"),
        (
            "dataset_conf: {spec_aug: on}",
            "1: dataset_conf.spec_aug: must be true or false, got 'on'",
        ),
        (
            "tokenizer_conf:\n  special_tokens:\n    <bl>: 0",
            "3: tokenizer_conf.special_tokens.<bl>: unknown key; did",
        ),
        (
            "ctc_conf:\n  head: class",
            "2: ctc_conf.head_conf.tree: missing; make one with `wenet-hs tree build`",
        ),
        (
            "ctc_conf:\n  head_conf:\n    tree: t",
            "3: ctc_conf.head_conf.tree: not a key of this head; remove it",
        ),
        (
            "head: class\nhead_conf: {tree: t, num_clases: 3}",
            "2: head_conf.num_clases: unknown key; did you mean `num_classes`?",
        ),
        (
            "head: class\nhead_conf: {tree: t, num_classes: 0}",
            "2: head_conf.num_classes: must be greater than 0, got 0",
        ),
    ],
)
def test_one_fault_is_one_line_with_file_line_and_key(write: Write, text: str, fault: str) -> None:
    (line,) = faults(write(text))
    assert line.startswith(f"a.yaml:{fault}")


def test_all_faults_come_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        "head: hsoft\nencoder_conf:\n  num_block: 3\n  conv_bias: false\nseed: x\nseed: 1\noptim: {}\n"
    )
    assert faults(path, "max_epoch=none", "nope") == [
        f"a.yaml:1: head: must be one of {', '.join(HEADS)}, got 'hsoft'",
        "a.yaml:3: encoder_conf.num_block: unknown key; did you mean `num_blocks`?",
        "a.yaml:4: encoder_conf.conv_bias: false is not supported (layers are WeNet's standard ones); "
        "remove it or set true",
        "a.yaml:5: seed: must be a whole number, got 'x'",
        "a.yaml:6: seed: duplicate of the key at a.yaml:5; keep one",
        "a.yaml:7: optim: must be one of adam, adamw, got a section",
        "--override_config nope: no value; write it as section.key=value",
        "--override_config max_epoch=none: max_epoch: must be a whole number, got 'none'",
    ]


def test_overrides_change_add_and_replace(write: Write) -> None:
    path = write("encoder_conf: {num_blocks: 12}\nseed: 1\n")
    overrides = [
        "encoder_conf.num_blocks=3",
        "decoder_conf.num_blocks 2",  # WeNet's spelling
        "dataset_conf.batch_conf={batch_type: bucket, bucket_boundaries: [5], bucket_batch_sizes: [4, 2]}",
        *("optim_conf.lr = 1e-3", "tokenizer_conf.bpe_path=it's fine"),
        *("seed=2", "seed=3", "max_minutes="),
    ]
    config = load_config(path, overrides)
    assert (config.encoder_conf.num_blocks, config.decoder_conf.num_blocks) == (3, 2)
    assert config.dataset_conf.batch_conf.bucket_batch_sizes == (4, 2)
    assert (config.optim_conf.lr, config.seed, config.max_minutes) == (0.001, 3, None)
    text = "encoder_conf: &conf {attention_heads: 2, linear_units: 8}\ndecoder_conf: *conf\n"
    config = load_config(write(text), ["encoder_conf.linear_units=16"])
    assert (config.encoder_conf.linear_units, config.decoder_conf.linear_units) == (16, 8)


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("=3", "no value; write it as section.key=value"),
        ("max_epock=3", "max_epock: unknown key; did you mean `max_epoch`?"),
        ("seed.x=3", "seed.x: seed is not a section; write it as section.key=value"),
        ("encoder_conf..x=3", "encoder_conf.: unknown key; remove it"),
        ("max_epoch=[", "not YAML: expected the node content, but found '<stream end>'"),
        ("max_epoch=!!int 3", "tag 'tag:yaml.org,2002:int' is not supported; remove it"),
        (
            "encoder_conf.attention_heads=3",
            "encoder_conf.attention_heads: output_size 256 is not divisible by 3 heads",
        ),
    ],
)
def test_faults_of_an_override_name_the_override(write: Write, override: str, fault: str) -> None:
    (line,) = faults(write("seed: 1\n"), override)
    assert line.startswith(f"--override_config {override}: {fault}")


def test_a_key_of_wenet_is_a_fault_of_a_language_model(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("rnn: gru\ntrain_engine: torch_ddp\n"), (), LmConfig)
    assert str(caught.value) == "a.yaml:2: train_engine: not a key of this config; remove it"


def test_a_written_config_reads_back_equal(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "head: hsoftmax\nhead_conf: {tree: '010', bias: true}\ncmvn: global_cmvn\ncmvn_conf: {cmvn_file: 'no'}\n"
    config = load_config(
        write(text), ["encoder=transformer", "tokenizer_conf.special_tokens={<blank>: 0, <eos>: 2}"]
    )
    assert config.head_conf == HSoftmaxHeadConf(tree="010", bias=True)
    dump_config(config, tmp_path / "folder" / "train.yaml")
    assert load_config(tmp_path / "folder" / "train.yaml") == config
    assert caplog.records == []


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_survives_the_resolved_file(tmp_path: Path, text: str) -> None:
    config = ExperimentConfig(
        tokenizer_conf={"symbol_table_path": text},
    )  # type: ignore[arg-type]
    dump_config(config, tmp_path / "train.yaml")
    assert load_config(tmp_path / "train.yaml") == config


def test_changes_between_two_configs() -> None:
    old = ExperimentConfig(seed=1)
    new = ExperimentConfig(seed=2, tokenizer_conf={"special_tokens": {"<sos>": 2}})  # type: ignore[arg-type]
    assert config_changes(old, old) == []
    assert config_changes(old, new) == [
        ("seed", 1, 2),
        ("tokenizer_conf.special_tokens.<sos>", None, 2),
    ]


# ---- YAML

A_YAML = Place("a.yaml", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            (text, text)
            for text in (
                "no",
                "on",
                "yes",
                "y",
                "1_000",
                "0x1f",
                "12:30:45",
                "2024-01-01",
                ".",
                ".inf",
            )
        ),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("010", 10),
        ("-7", -7),
        ("1e-3", 0.001),
        ("5e-05", 0.00005),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.0E+2", 100.0),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    resolved = resolve_scalar(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_quoted_values_and_words_are_text() -> None:
    quoted = "a: '1'\nb: \"true\"\nc: |\n  3\nd: ''\nlangs: [no, en]\n"

    assert parse_yaml(quoted, A_YAML).values == {
        "a": "1",
        "b": "true",
        "c": "3\n",
        "d": "",
        "langs": ["no", "en"],
    }


def test_an_alias_has_the_value_of_its_anchor() -> None:
    settings = parse_yaml("a: &long 1206\nb: {c: *long}\n", A_YAML)

    assert settings.values == {"a": 1206, "b": {"c": 1206}}


def test_values_have_the_line_of_their_key() -> None:
    settings = parse_yaml("# a comment\na:\n  b: 1\n  c:\n    - 2\n    - 3\n", A_YAML)

    lines = {location: place.line for location, place in settings.places.items() if location}
    assert lines == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
    }


def test_the_first_of_two_equal_keys_counts_and_the_other_is_a_fault() -> None:
    settings = parse_yaml("a: 1\nb: 2\na: 3\n", A_YAML)

    assert settings.faults == [
        (Place("a.yaml", 3), "a: duplicate of the key at a.yaml:1; keep one")
    ]
    assert settings.values == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "tagged",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!str 3",
        "!mine {a: 1}",
    ],
)
def test_tags_are_refused_and_build_no_object(tagged: str) -> None:
    ((place, fault),) = parse_yaml(f"x: 1\na: {tagged}\n", A_YAML).faults
    assert str(place) == "a.yaml:2"
    assert fault.startswith("tag '")
    assert fault.endswith("is not supported; remove it")


def nested_aliases() -> str:
    """Ten lists, each of ten aliases of the one before: 10^10 values."""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for previous, name in itertools.pairwise("abcdefghij"):
        aliases = ", ".join([f"*{previous}"] * 10)
        lines.append(f"{name}: &{name} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a:\n\t- b",
            "a.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces",
        ),
        (
            "a: 1\nb: c: d",
            "a.yaml:2: not YAML: mapping values are not allowed here; quote a text with `: ` in it",
        ),
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
        (
            nested_aliases(),
            f"a.yaml:1: more than {MAX_VALUES} values, counting what aliases repeat",
        ),
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
        (
            "a: 1".encode("utf-16"),
            ":1: not UTF-8; check that it is a YAML file, and save it as UTF-8",
        ),
        (
            b"#" * (MAX_BYTES + 1),
            f":1: {MAX_BYTES + 1} bytes; a config has at most {MAX_BYTES}: check the path",
        ),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}{message}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"/b: cannot be read \(No such file or directory\); check the path of the",
    ):
        read_yaml(tmp_path / "b")


def test_a_file_of_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(tmp_path / "a.yaml").values == {"a": 1, "b": 2}


def test_each_config_of_a_file_that_is_read_once_has_only_its_own_overrides(write: Write) -> None:
    text = "cmvn_file: old\nmodel_conf: {ctc_weight: 0.3}\n"
    file_settings = read_yaml(write(text))
    changed = make_config(
        file_settings,
        ["model_conf.ctc_weight=0.5", "encoder_conf.dropout_rate=0"],
        ExperimentConfig,
    )
    unchanged = make_config(file_settings, [], ExperimentConfig)
    assert unchanged == load_config("a.yaml")
    assert config_changes(unchanged, changed) == [
        ("encoder_conf.dropout_rate", 0.1, 0.0),
        ("model_conf.ctc_weight", 0.3, 0.5),
    ]
    wrong = read_yaml(write(f"{text}encoder_conf: {{lr: 1}}\n"))
    for _ in range(2):
        with pytest.raises(
            ConfigError, match="^a.yaml:3: encoder_conf.lr: not a key of this encoder; remove it$"
        ):
            make_config(wrong, [], ExperimentConfig)


def test_a_written_setting_is_that_of_the_last_override(write: Write) -> None:
    file_settings = read_yaml(write("encoder: conformer\n"))
    assert written_setting(file_settings, [], "encoder") == "conformer"
    overrides = ["encoder=transformer", "encoder_conf.dropout_rate=0", "encoder  pretrained "]
    assert written_setting(file_settings, overrides, "encoder") == "pretrained"
    assert written_setting(file_settings, [], "decoder") is None
