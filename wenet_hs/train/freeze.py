# SPDX-License-Identifier: Apache-2.0
"""Parts of a model that training leaves as they are."""

import difflib
import itertools
import logging
from collections.abc import Iterable, Sequence

from wenet_hs.config.schema import ModelConf
from wenet_hs.errors import ConfigError
from wenet_hs.model import AsrModel

logger = logging.getLogger(__name__)

_MOST_NAMES = 5


def freeze(model: AsrModel, names: Sequence[str], *, where: str) -> None:
    """Keep the parameters whose names are, or begin with, one of `names`; call it before the optimizer is made.

    They get no gradient and no optimizer state. A module that is named, and all inside it, also stays in evaluation
    mode: its batch normalisation uses its running statistics and does not change them, and its dropout is off, so that
    it computes what it computed where it was trained.

    Args:
        names: beginnings of names in the state_dict, up to a dot: `encoder.encoders.1` is not the eleventh layer.
        where: the file of the config, for error messages.

    Raises: ConfigError where a name is none of the model's, or nothing is left to train; see also `check_reached`.
    """
    if not names:
        return
    known = list(dict.fromkeys(_beginnings(name for name, _ in model.named_parameters())))
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: freeze: no parameter is called {name!r} or begins so; {_near(name, known)}")
    parameters = dict(model.named_parameters())
    chosen = [name for name in parameters if any(beginning in names for beginning in _beginnings([name]))]
    if len(chosen) == len(parameters):
        raise ConfigError(f"{where}: freeze: holds every parameter, so that nothing is left to train; remove a name")
    for name in chosen:
        parameters[name].requires_grad_(False)
    modules = {name for name, _ in model.named_modules()}
    model.frozen = tuple(name for name in names if name in modules)
    model.train(model.training)
    num_frozen = sum(parameters[name].numel() for name in chosen)
    num_all = sum(parameter.numel() for parameter in parameters.values())
    logger.info("frozen: %s: %d of %d parameters are not trained", ", ".join(names), num_frozen, num_all)


def check_reached(model: AsrModel, conf: ModelConf, *, where: str) -> None:
    """Raise ConfigError if at some step no trained parameter has a part in the loss: there would be no gradient."""
    final = conf.ctc_weight if conf.ctc_weight_final is None else conf.ctc_weight_final
    shares = {"ctc_weight": conf.ctc_weight, "ctc_weight_final": final}
    if conf.ctc_only_steps:
        shares["ctc_only_steps"] = 1.0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    right = ("decoder.right_decoder.", "right_head.")
    for key, share in shares.items():
        parts: tuple[str, ...] = ("encoder.",)
        parts += ("ctc.",) if share > 0 else ()
        parts += ("decoder.", "head.") if share < 1 else ()
        left_out = () if share < 1 and conf.reverse_weight > 0 else right
        reached = [name for name in trained if name.startswith((*parts, *right)) and not name.startswith(left_out)]
        if not reached:
            raise ConfigError(
                f"{where}: freeze: nothing that is left to train has a part in the loss while model_conf.{key} makes "
                f"CTC's share {share:g}; remove a name"
            )


def _beginnings(names: Iterable[str]) -> Iterable[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    for name in names:
        yield from itertools.accumulate(name.split("."), lambda start, part: f"{start}.{part}")


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=_MOST_NAMES)
    *above, _ = ["", *_beginnings([name])]
    inside = next(start for start in reversed(above) if start in known or not start)
    depth = inside.count(".") + 1 + bool(inside)
    beside = [other for other in known if other.startswith(f"{inside}." if inside else "")]
    near = near or [other for other in beside if other.count(".") + 1 == depth][:_MOST_NAMES]
    return f"did you mean {' or '.join(near)}?"
