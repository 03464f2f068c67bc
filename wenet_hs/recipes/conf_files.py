# SPDX-License-Identifier: Apache-2.0
"""The configs of wenet_hs: `conf/` of a checkout, or its copy in an installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
OWN = "own.yaml"
"""The config of models of a user's own recordings, which are trained from random weights."""


def conf_folder() -> Path:
    """`conf/` beside the package, if it is that of a checkout; else `conf/` in the package."""
    beside = _PACKAGE.parent / "conf"
    is_checkout = (beside / OWN).is_file()
    return beside if is_checkout else _PACKAGE / "conf"


def conf_file(name: str) -> Path:
    """The path of a config of wenet_hs, such as `own.yaml`, whether the file exists or not."""
    return conf_folder() / name
