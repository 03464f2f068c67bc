# SPDX-License-Identifier: Apache-2.0
"""Multilingual low-resource speech recognition with a tree as output layer.

    import wenet_hs
    wenet_hs.load_model("exp/hsoftmax").transcribe("clip.mp3").text

What is needed to recognise is loaded at first use, so `import wenet_hs` and the commands start at
once.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wenet_hs.version import VERSION

if TYPE_CHECKING:
    from wenet_hs.decode import DecodeOptions
    from wenet_hs.decode.endpoints import EndpointRules
    from wenet_hs.recognizer import Recognizer, Transcript, load_model

__version__ = VERSION
__all__ = [
    "DecodeOptions",
    "EndpointRules",
    "Recognizer",
    "Transcript",
    "__version__",
    "load_model",
]

_MODULES = {
    "DecodeOptions": "wenet_hs.decode",
    "EndpointRules": "wenet_hs.decode.endpoints",
    "Recognizer": "wenet_hs.recognizer",
    "Transcript": "wenet_hs.recognizer",
    "load_model": "wenet_hs.recognizer",
}
"""Public name → the module that has it."""


def __getattr__(name: str) -> Any:
    """The object of this name, whose module is imported now. Python calls this for unknown names.

    Raises AttributeError for a name that is not in `_MODULES`.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'wenet_hs' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet, for `dir` and for completion."""
    return sorted(__all__)
