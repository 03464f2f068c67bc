# SPDX-License-Identifier: Apache-2.0
"""The configs of wenet_hs: `conf/` of a checkout, or its copy in an installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
OWN = "own.yaml"
"""The config of models of a user's own recordings, which are trained from random weights."""


def conf_folder() -> Path:
    """The folder of the configs of wenet_hs.

    In a checkout it is `conf/` beside the package. An installed package has it inside.
    """
    conf_of_checkout = _PACKAGE.parent / "conf"
    is_checkout = (conf_of_checkout / OWN).is_file()
    return conf_of_checkout if is_checkout else _PACKAGE / "conf"


def conf_file(name: str) -> Path:
    """The path of a config of wenet_hs, such as `own.yaml`, whether the file exists or not."""
    return conf_folder() / name


def shipped_name(path: Path) -> str | None:
    """The name of a file if it is a config of wenet_hs, or an equal copy of one; else None.

    A copy has the same name and content. There may be one in the checkout of the recipe, while
    wenet_hs is installed elsewhere.
    """
    shipped = conf_file(path.name)
    if not path.is_file() or not shipped.is_file():
        return None
    return path.name if path.read_bytes() == shipped.read_bytes() else None
