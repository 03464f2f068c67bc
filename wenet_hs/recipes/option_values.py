# SPDX-License-Identifier: Apache-2.0
"""Rules for the values of a recipe's options, such as `--jobs` and `--chunk`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wenet_hs.recipes.prepare_words import has_open_quote
from wenet_hs.tree.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """What the whole value of an option must match, and how that is said."""

    pattern: str
    requirement: str


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
"""Option → its rule. `stage`, `stop_stage`, `chunk`, `seeds` and `prepare` are checked apart."""
CHUNK = r"([1-9][0-9]* [0-9]+)?"
STAGE = r"[0-9]{1,9}"


def check_option_values(values: Mapping[str, str], last_stage: int) -> None:
    """Raise ConfigError for the first option whose value is wrong.

    Options without a rule may have any value, and those that are not given are not checked.

    Args:
        values: options by name.
        last_stage: of the recipe; its first stage is 0.
    """
    if "stage" in values:
        _check_stages(values, last_stage)
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


def _check_stages(values: Mapping[str, str], last_stage: int) -> None:
    """Raise ConfigError unless 0 <= stage <= last_stage and stage <= stop_stage."""
    stage = values["stage"]
    if not re.fullmatch(STAGE, stage) or int(stage) > last_stage:
        raise ConfigError(f"--stage {stage}", f"must be from 0 to {last_stage}")
    stop_stage = values.get("stop_stage", str(last_stage))
    if not re.fullmatch(STAGE, stop_stage) or int(stop_stage) < int(stage):
        requirement = f"must be a stage from {stage} on"
        raise ConfigError(f"--stop_stage {stop_stage}", requirement)
