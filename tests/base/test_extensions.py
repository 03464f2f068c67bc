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
    ExtensionKind,
    calling_extension,
    find_extension,
    has_extension_name,
    is_installed,
    is_known_name,
    known_names,
    load_extension,
    package_versions,
    wrong_object,
)
from wenet_hs.tree.errors import ConfigError, DataError


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """The folder of the sample package, from which other packages can be imported too."""
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def test_without_packages_there_are_our_names_only() -> None:
    for kind in GROUPS:
        assert known_names(kind, ["b", "a"]) == ["b", "a"]
    with pytest.raises(
        ConfigError, match="^head cosine: no installed package declares it; install its package$"
    ):
        find_extension("head", "cosine")


def test_names_of_packages_follow_ours(installed: Path) -> None:
    write_metadata(
        installed, "other", "1", {"wenet_hs.heads": {"softmax": "json:loads", "a": "json:loads"}}
    )
    assert known_names("head", ["softmax", "hsoftmax"]) == ["softmax", "hsoftmax", "a", "cosine"]
    assert known_names("corpus", ["ucla"]) == ["ucla", "wav_txt"]
    assert known_names("mode", []) == ["confident"]
    assert known_names("frontend", []) == ["spectrum"]


def test_an_extension_is_imported_only_when_it_is_loaded(installed: Path) -> None:
    extension = find_extension("head", "cosine")
    assert extension == Extension(
        kind="head", name="cosine", package="wenet-hs-sample", version="1.2"
    )
    assert str(extension) == "head cosine of the package wenet-hs-sample 1.2"
    assert "wenet_hs_sample" not in sys.modules
    assert load_extension("head", "cosine").__name__ == "CosineHeadConf"
    assert "wenet_hs_sample" in sys.modules


def test_a_package_is_installed_under_any_spelling_of_its_name_and_in_any_version(
    installed: Path,
) -> None:
    for package in ("wenet-hs-sample", "Wenet_HS.sample"):
        assert is_installed(Extension(kind="head", name="cosine", package=package, version="0.1"))
    assert not is_installed(Extension(kind="head", name="cosine", package="other", version="1.2"))
    assert not is_installed(
        Extension(kind="mode", name="cosine", package="wenet-hs-sample", version="1.2")
    )


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
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
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


RULE = "letters, digits and . _ + ! -, at most 100, the first a letter or digit"


@pytest.mark.parametrize(
    ("kind", "name", "package", "version", "fault"),
    [
        ("head", "_cosine", "odd", "1", f"the name must be of {RULE}"),
        ("corpus", "my corpus", "odd", "1", f"the name must be of {RULE}"),
        ("head", "x" * 101, "odd", "1", f"the name must be of {RULE}"),
        ("frontend", "mfcc", "odd heads", "1", f"the package must be of {RULE}"),
        ("frontend", "mfcc", "odd", "1 beta", f"the version must be of {RULE}"),
        ("mode", "auto", "odd", "1", "the name is reserved"),
    ],
)
def test_names_that_cannot_be_used(
    installed: Path, kind: ExtensionKind, name: str, package: str, version: str, fault: str
) -> None:
    write_metadata(installed, package, version, {GROUPS[kind]: {name: "absent:Conf"}})
    assert name not in known_names(kind, [])
    for refuse in (
        find_extension,
        load_extension,
        lambda kind, name: is_known_name(kind, [], name),
    ):
        with pytest.raises(ConfigError) as error:
            refuse(kind, name)
        where = f"{kind} {name} of the package {package} {version}"
        assert str(error.value) == f"{where}: {fault}; install another version of {package}"


def test_control_characters_of_a_name_are_not_printed(installed: Path) -> None:
    write_metadata(installed, "odd", "1", {"wenet_hs.heads": {"bell\x07": "absent:Conf"}})
    with pytest.raises(
        ConfigError, match=r"^head bell\\x07 of the package odd 1: the name must be of"
    ):
        find_extension("head", "bell\x07")


def test_known_names(installed: Path) -> None:
    assert is_known_name("head", ["softmax"], "softmax") and is_known_name(
        "head", ["softmax"], "cosine"
    )
    assert not is_known_name("head", ["softmax"], "sine")
    assert has_extension_name("corpus", ["--help", "wav_txt"])
    assert not has_extension_name("corpus", ["--help", "ucla", "cosine"])
    assert "wenet_hs_sample" not in sys.modules


def test_a_name_of_ours_in_a_package_gives_one_warning(
    installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_metadata(installed, "other", "1", {"wenet_hs.heads": {"softmax": "absent:Conf"}})
    assert is_known_name("head", ["softmax", "class"], "class")
    assert caplog.messages == []
    assert is_known_name("head", ["softmax"], "softmax") and is_known_name(
        "head", ["softmax"], "softmax"
    )
    assert caplog.messages == [
        "head softmax of the package other 1: not used; wenet_hs has a head of this name"
    ]


def test_a_call_into_a_package(installed: Path) -> None:
    where = "head cosine of the package wenet-hs-sample 1.2"
    to_do = "install another version of wenet-hs-sample"
    reasons = {
        ValueError("bad\nscale"): "ValueError: bad scale",
        SystemExit(): "SystemExit: SystemExit",
    }
    for raised, reason in reasons.items():
        with (
            pytest.raises(ConfigError) as error,
            calling_extension("head", "cosine", "`build` failed"),
        ):
            raise raised
        assert str(error.value) == f"{where}: `build` failed ({reason}); {to_do}, or remove it"
    with (
        pytest.raises(DataError, match="^clip: too short$"),
        calling_extension("head", "cosine", "`build` failed"),
    ):
        raise DataError("clip", "too short")
    with pytest.raises(KeyboardInterrupt), calling_extension("head", "cosine", "`build` failed"):
        raise KeyboardInterrupt
    assert str(wrong_object("head", "cosine", "is no head")) == f"{where}: is no head; {to_do}"


def test_versions_of_packages(installed: Path) -> None:
    used = [find_extension("head", "cosine"), find_extension("mode", "confident")]
    assert package_versions(used) == {"wenet-hs-sample": "1.2"}
    assert package_versions([]) == {}
