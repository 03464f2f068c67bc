# SPDX-License-Identifier: Apache-2.0
"""Heads of installed packages that cannot be built: one line for each mistake."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_extension import importable, install_sample, write_metadata
from small_models import small_model

from wenet_hs.tree.errors import ConfigError

HEAD = """
from wenet_hs.config.section import Section
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.tree.errors import ConfigError

class NoInit(SoftmaxHead):
    def __init__(self):
        pass

def refuse():
    raise ConfigError("head_conf.scale", "does not fit", "change it")

class Conf(Section):
    def build(self, {arguments}):
        return {result}
"""
ARGUMENTS = "dim, num_units, tree"
AGAIN = "install another version of odd-heads"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def error_of_head(site: Path, text: str) -> str:
    """The error of a model of width 16 over 11 units with such a head."""
    (site / "odd_head.py").write_text(text, "utf-8")
    write_metadata(site, "odd-heads", "1", {"wenet_hs.heads": {"odd": "odd_head:Conf"}})
    with pytest.raises(ConfigError) as error:
        small_model(head="odd", head_conf=None)
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "result", "found"),
    [
        (
            ARGUMENTS,
            "1 / 0",
            f"`build` failed (ZeroDivisionError: division by zero); {AGAIN}, or remove it",
        ),
        (
            "dim",
            "None",
            "`build` failed (TypeError: Conf.build() takes 2 positional arguments but 4 were given); "
            f"{AGAIN}, or remove it",
        ),
        (
            ARGUMENTS,
            "None",
            f"`build` returned NoneType, not a wenet_hs.heads.base.OutputHead; {AGAIN}",
        ),
        (
            ARGUMENTS,
            "SoftmaxHead(dim, num_units + 1)",
            f"`build` returned a head with dim 16 and num_units 12, not 16 and 11; {AGAIN}",
        ),
        (
            ARGUMENTS,
            "SoftmaxHead(8, num_units)",
            f"`build` returned a head with dim 8 and num_units 11, not 16 and 11; {AGAIN}",
        ),
        (
            ARGUMENTS,
            "NoInit()",
            f"`build` returned a head with dim None and num_units None, not 16 and 11; {AGAIN}",
        ),
    ],
)
def test_mistakes_of_a_head(installed: Path, arguments: str, result: str, found: str) -> None:
    text = HEAD.format(arguments=arguments, result=result)
    assert error_of_head(installed, text) == f"head odd of the package odd-heads 1: {found}"


def test_an_error_that_a_head_raises_about_the_config_stays(installed: Path) -> None:
    text = HEAD.format(arguments=ARGUMENTS, result="refuse()")
    assert error_of_head(installed, text) == "head_conf.scale: does not fit; change it"
