# SPDX-License-Identifier: Apache-2.0
"""Rules for the values of a recipe's options, such as `--jobs` and `--chunk`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wenet_hs.recipes.prepare_words import has_open_quote
from wenet_hs.tree.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """The rule for the value of an option."""

    pattern: str
    """The regular expression that the whole value must match."""
    requirement: str
    """The same in words, for the error."""


FROM_ONE_ON = Rule(r"[1-9][0-9]*", "must be a whole number from 1 on")
RULES = {
    "average_num": FROM_ONE_ON,
    "nproc": FROM_ONE_ON,
    "jobs": FROM_ONE_ON,
    "threads": FROM_ONE_ON,
    "eval_set": Rule(r"test|dev", "must be test or dev"),
    "base_steps": Rule(r"[0-9]*", "must be a whole number"),
    "shards": Rule(r"([1-9][0-9]*)?", "must be a whole number from 1 on, or empty"),
}
"""Option → its rule. The options that need more than a pattern have functions below."""
CHUNK = r"([1-9][0-9]* [0-9]+)?"
"""Encoder frames per chunk, and chunks before it; or nothing."""
STAGE = r"[0-9]{1,9}"


def check_option_values(values: Mapping[str, str], last_stage: int) -> None:
    """Raise ConfigError for the first option whose value is wrong.

    Options without a rule may have any value, and those that are not given are not checked.

    Args:
        values: name of an option → its text on the command line.
        last_stage: the number of the recipe's last stage; its first stage is 0.
    """
    if "stage" in values:
        _check_stages(values["stage"], values.get("stop_stage", str(last_stage)), last_stage)
    for name, rule in RULES.items():
        value = values.get(name)
        if value is not None and not re.fullmatch(rule.pattern, value):
            raise ConfigError(f"--{name} {value}", rule.requirement)
    chunk = values.get("chunk", "")
    if not re.fullmatch(CHUNK, chunk):
        raise ConfigError(f"--chunk '{chunk}'", "must be two numbers, as '16 4'")
    if "seeds" in values and not values["seeds"].split():
        raise ConfigError("--seeds", "give at least one seed")
    prepare = values.get("prepare", "")
    if has_open_quote(prepare):
        raise ConfigError(f"--prepare {prepare}", "a quote has no end")


def _check_stages(stage: str, stop_stage: str, last_stage: int) -> None:
    """Raise ConfigError unless 0 <= stage <= last_stage and stage <= stop_stage.

    The last stage that runs may be above the last stage of the recipe.
    """
    if not re.fullmatch(STAGE, stage) or int(stage) > last_stage:
        raise ConfigError(f"--stage {stage}", f"must be from 0 to {last_stage}")
    if not re.fullmatch(STAGE, stop_stage) or int(stop_stage) < int(stage):
        requirement = f"must be a stage from {stage} on"
        raise ConfigError(f"--stop_stage {stop_stage}", requirement)
