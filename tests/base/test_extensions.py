# SPDX-License-Identifier: Apache-2.0
"""Names of installed packages: listed without an import, loaded by name, and refused with one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_extension import importable, install_sample, write_metadata

from wenet_hs.base.extensions import (
    GROUPS,
    Extension,
    find_extension,
    is_installed,
    known_names,
    load_extension,
)
from wenet_hs.tree.errors import ConfigError


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """The folder of the sample package, from which other packages can be imported too."""
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def test_without_packages_there_are_our_names_only() -> None:
    for kind in GROUPS:
        assert known_names(kind, ["b", "a"]) == ["b", "a"]
    with pytest.raises(ConfigError, match="^head cosine: no installed package declares it; install its package$"):
        find_extension("head", "cosine")


def test_names_of_packages_follow_ours(installed: Path) -> None:
    write_metadata(installed, "other", "1", {"wenet_hs.heads": {"softmax": "json:loads", "a": "json:loads"}})
    assert known_names("head", ["softmax", "hsoftmax"]) == ["softmax", "hsoftmax", "a", "cosine"]
    assert known_names("corpus", ["ucla"]) == ["ucla", "wav_txt"]
    assert known_names("mode", []) == ["confident"]
    assert known_names("frontend", []) == ["spectrum"]


def test_an_extension_is_imported_only_when_it_is_loaded(installed: Path) -> None:
    extension = find_extension("head", "cosine")
    assert extension == Extension(kind="head", name="cosine", package="wenet-hs-sample", version="1.2")
    assert str(extension) == "head cosine of the package wenet-hs-sample 1.2"
    assert "wenet_hs_sample" not in sys.modules
    assert load_extension("head", "cosine").__name__ == "CosineHeadConf"
    assert "wenet_hs_sample" in sys.modules


def test_a_package_is_installed_under_any_spelling_of_its_name_and_in_any_version(installed: Path) -> None:
    for package in ("wenet-hs-sample", "Wenet_HS.sample"):
        assert is_installed(Extension(kind="head", name="cosine", package=package, version="0.1"))
    assert not is_installed(Extension(kind="head", name="cosine", package="other", version="1.2"))
    assert not is_installed(Extension(kind="mode", name="cosine", package="wenet-hs-sample", version="1.2"))


def test_two_packages_with_one_name(installed: Path) -> None:
    write_metadata(installed, "another", "3", {"wenet_hs.heads": {"cosine": "json:loads"}})
    assert known_names("head", []) == ["cosine"]
    found = "^head cosine: several packages declare it: another, wenet-hs-sample; keep one of them$"
    with pytest.raises(ConfigError, match=found):
        load_extension("head", "cosine")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("", "AttributeError: module 'broken' has no attribute 'Conf'"),
    ],
)
def test_a_package_that_cannot_be_imported(installed: Path, text: str, reason: str) -> None:
    (installed / "broken.py").write_text(text, "utf-8")
    write_metadata(installed, "broken-heads", "0.3", {"wenet_hs.heads": {"broken": "broken:Conf"}})
    where = "head broken of the package broken-heads 0.3"
    expected = f"{where}: cannot be imported ({reason}); install another version of broken-heads, or remove it"
    with pytest.raises(ConfigError) as error:
        load_extension("head", "broken")
    assert str(error.value) == expected
