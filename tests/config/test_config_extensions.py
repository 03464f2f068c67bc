# SPDX-License-Identifier: Apache-2.0
"""Configs with names of installed packages: their settings, the list of packages in a file, and
what is refused.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_extension import importable, install_sample, write_metadata

from wenet_hs.base.extensions import Extension
from wenet_hs.config.heads import HEADS, has_tree, head_settings
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import config_changes, dump_config, load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.recipes.plan import drop_settings_of_other_heads
from wenet_hs.tree.errors import ConfigError

COSINE = "head: cosine\nhead_conf: {scale: 8}\nctc_conf: {head: cosine}\n"
OWN_HEADS = ", ".join(HEADS)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The train.yaml of a model with a head of the package, which is not installed any more."""
    source, path = tmp_path / "source.yaml", tmp_path / "train.yaml"
    source.write_text(COSINE, "utf-8")
    with importable(install_sample(tmp_path / "site")):
        dump_config(load_config(source), path)
    return path


def write(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text, "utf-8")
    return path


def error_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(path, overrides)
    return str(error.value).replace(f"{path}:", "x:")


def test_settings_of_a_head_of_a_package(installed: Path, tmp_path: Path) -> None:
    config = load_config(write(tmp_path, COSINE), ["ctc_conf.head_conf.scale=4"])
    assert config.head_conf.model_dump() == {"scale": 8.0}
    assert config.ctc_conf.model_dump()["head_conf"] == {"scale": 4.0}
    assert config.extensions() == [
        Extension(kind="head", name="cosine", package="wenet-hs-sample", version="1.2"),
    ]
    assert ExperimentConfig(head="cosine").head_conf.model_dump() == {"scale": 16.0}
    changes = config_changes(
        load_config(write(tmp_path, "head: softmax")), load_config(write(tmp_path, COSINE))
    )
    assert ("head", "softmax", "cosine") in changes and ("head_conf.scale", None, 8.0) in changes
    assert not has_tree("cosine") and has_tree("hsoftmax") and not has_tree("softmax")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head: cosin", f"x:1: head: must be one of {OWN_HEADS}, cosine, got 'cosin'"),
        ("head: 3", f"x:1: head: must be one of {OWN_HEADS}, cosine, got 3"),
        (
            "head: cosine\nhead_conf: {tree: t.json}",
            "x:2: head_conf.tree: not a key of this head; remove it",
        ),
        (
            "head: cosine\nhead_conf: {scale: -1}",
            "x:2: head_conf.scale: must be greater than 0, got -1",
        ),
    ],
)
def test_wrong_settings(installed: Path, tmp_path: Path, text: str, message: str) -> None:
    assert error_of(write(tmp_path, text)) == message


def test_without_the_package_its_name_is_unknown(tmp_path: Path) -> None:
    assert error_of(write(tmp_path, COSINE)) == (
        f"x:1: head: must be one of {OWN_HEADS}, got 'cosine'\nx:3: ctc_conf.head: must be one of {OWN_HEADS}, "
        "got 'cosine'"
    )


def test_a_written_config_names_its_packages(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    config = load_config(write(tmp_path, COSINE))
    dump_config(config, path)
    assert read_yaml(path).values["extensions"] == [
        {"kind": "head", "name": "cosine", "package": "wenet-hs-sample", "version": "1.2"},
    ]
    assert load_config(path) == config
    dump_config(ExperimentConfig(), path)
    assert "extensions" not in path.read_text("utf-8")


def test_a_config_whose_package_is_not_installed(written: Path) -> None:
    assert error_of(written) == (
        "x: needs the head cosine of the package wenet-hs-sample 1.2, which is not installed; "
        "run `pip install wenet-hs-sample` if you trust it"
    )


def test_another_package_with_the_name_is_not_used(written: Path, tmp_path: Path) -> None:
    write_metadata(
        tmp_path / "other", "other-heads", "3", {"wenet_hs.heads": {"cosine": "absent:Conf"}}
    )
    with importable(tmp_path / "other"):
        assert "wenet-hs-sample 1.2, which is not installed" in error_of(written)


def test_a_language_model_has_such_a_head_too(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    config = load_config(write(tmp_path, "rnn: lstm\nhead: cosine\n"), (), LmConfig)
    dump_config(config, path)
    assert load_config(path, (), LmConfig) == config
    assert [extension.name for extension in config.extensions()] == ["cosine"]


@pytest.mark.parametrize("value", ["json:loads", "wenet_hs.config.heads:TreeHeadConf"])
def test_a_head_that_cannot_be_built(installed: Path, tmp_path: Path, value: str) -> None:
    write_metadata(installed, "broken-heads", "0.3", {"wenet_hs.heads": {"broken": value}})
    assert error_of(write(tmp_path, "head: broken")) == (
        "head broken of the package broken-heads 0.3: is no subclass of wenet_hs.config.section.Section with a method "
        "`build`; install another version of broken-heads"
    )


def test_our_heads_cannot_be_replaced(installed: Path) -> None:
    write_metadata(installed, "broken-heads", "0.3", {"wenet_hs.heads": {"softmax": "absent:Conf"}})
    assert head_settings("softmax") is HEADS["softmax"]
    assert ExperimentConfig(head="softmax").extensions() == []


def test_settings_of_other_heads_are_left_out_of_a_plan(installed: Path, tmp_path: Path) -> None:
    overrides = ("head_conf.scale=8", "head_conf.bias=true", "seed=3")
    softmax = read_yaml(write(tmp_path, "head: softmax"))
    assert drop_settings_of_other_heads(softmax, overrides) == ("seed=3",)
    cosine = read_yaml(write(tmp_path, "head: cosine"))
    assert drop_settings_of_other_heads(cosine, overrides) == ("head_conf.scale=8", "seed=3")


def test_a_name_that_no_file_can_hold_is_refused(installed: Path, tmp_path: Path) -> None:
    write_metadata(installed, "odd-heads", "0.3", {"wenet_hs.heads": {"_cosine": "absent:Conf"}})
    rule = "the name must be of letters, digits and . _ + ! -, at most 100, the first a letter or digit"
    expected = (
        f"head _cosine of the package odd-heads 0.3: {rule}; install another version of odd-heads"
    )
    assert error_of(write(tmp_path, "head: _cosine")) == expected
    assert (
        error_of(write(tmp_path, "head: cosin"))
        == f"x:1: head: must be one of {OWN_HEADS}, cosine, got 'cosin'"
    )


def test_one_warning_for_a_name_of_ours_in_a_package(
    installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_metadata(
        installed, "other", "1", {"wenet_hs.heads": {"class": "absent:C", "softmax": "absent:C"}}
    )
    for _ in range(2):
        load_config(write(tmp_path, "head: softmax"))
    assert caplog.messages == [
        "head softmax of the package other 1: not used; wenet_hs has a head of this name"
    ]


@pytest.mark.parametrize(
    ("listed", "faults"),
    [
        ("3", ["x:2: extensions: must be a list, got 3"]),
        ("null", ["x:2: extensions: must be a list, got null"]),
        ("[a]", ["x:2: extensions[0]: must be a section of `key: value` lines, got 'a'"]),
        (
            "\n- {kind: head, name: x, package: a; rm b, version: '1'}",
            ["x:3: extensions[0].package: must be of letters, digits and . _ + ! -, got 'a; rm b'"],
        ),
        (
            '[{kind: head, name: "x\\n", package: a, version: "1"}]',
            ["x:2: extensions[0].name: must be of letters, digits and . _ + ! -, got 'x\\n'"],
        ),
        (
            "[{kind: head, name: x, package: --index-url, version: '1'}]",
            [
                "x:2: extensions[0].package: must be of letters, digits and . _ + ! -, got '--index-url'"
            ],
        ),
        (
            "\n- {kind: lens, name: x, package: a, version: '1'}\n- {kind: head, name: x, package: a}",
            [
                "x:3: extensions[0].kind: must be one of head, frontend, corpus, mode, got 'lens'",
                "x:4: extensions[1].version: missing",
            ],
        ),
    ],
)
def test_faults_in_a_list_of_packages(tmp_path: Path, listed: str, faults: list[str]) -> None:
    assert error_of(write(tmp_path, f"head: softmax\nextensions: {listed}")).splitlines() == faults


def test_a_package_is_not_needed_for_a_name_that_an_override_replaces(written: Path) -> None:
    overrides = [
        "head=softmax",
        "head_conf=null",
        "ctc_conf.head=softmax",
        "ctc_conf.head_conf=null",
    ]
    assert load_config(written, overrides).head == "softmax"
    assert "needs the head cosine" in error_of(written, *overrides[:2])
