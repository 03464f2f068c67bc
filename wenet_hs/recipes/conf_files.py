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


def shipped_name(path: Path) -> str | None:
    """The name of a config of wenet_hs in `conf_folder`; None for another file.

    A copy with the same name and content is one too: a checkout has its own `conf/` beside that of
    an installed package.
    """
    shipped = conf_file(path.name)
    if not path.is_file() or not shipped.is_file():
        return None
    return path.name if path.read_bytes() == shipped.read_bytes() else None
