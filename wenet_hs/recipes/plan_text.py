# SPDX-License-Identifier: Apache-2.0
"""The text of plan.yaml and of first_part.yaml."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from wenet_hs.config.commented_yaml import SettingSource, comment_lines, write_commented
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.recipes.plan import Draft, PlanOptions, first_part_overrides
from wenet_hs.recipes.plan_names import BASE_NAME
from wenet_hs.recipes.sizes import NO_LIMIT

REMARKS = (
    "A comment after a value says who decided it, and what the default of wenet_hs is. The flags of the "
    "command count before the settings here."
)


def plan_text(draft: Draft, options: PlanOptions, plan: Path, expected_time: str) -> str:
    """The text of plan.yaml: what was decided and why, the expected time, and every setting."""
    header = [
        *comment_lines(
            "The plan of an experiment: every setting of its trainings. Change what you like "
            "before the first training. A plan that was changed is never replaced. It is used by:"
        ),
        "#",
        *_command_lines(draft, options, plan),
        "#",
        "# What was decided:",
        "#",
    ]
    for decision in _decisions(draft, options, plan):
        header += comment_lines(f"- {decision}", later="  ")
    header += [
        "#",
        *comment_lines(expected_time[:1].upper() + expected_time[1:] + "."),
        "#",
        *comment_lines(REMARKS),
    ]
    settings = write_commented(
        draft.config,
        written_in=draft.choice.path.name,
        sources=draft.sources,
    )
    return "\n".join(header) + "\n" + settings


def first_part_text(first_part: ExperimentConfig, plan: Path, steps: int) -> str:
    """The text of first_part.yaml, the config of the first part of training."""
    header = comment_lines(
        f"The first part of training, by CTC only. Derived from {plan.name}, which is the file to "
        "edit: `wenet-hs plan` writes this one anew each time."
    )
    settings = write_commented(
        first_part,
        written_in=plan.name,
        sources=[SettingSource(name="first part", overrides=first_part_overrides(steps))],
    )
    return "\n".join(header) + "\n" + settings


def _command_lines(draft: Draft, options: PlanOptions, plan: Path) -> Iterator[str]:
    """The command of a training, one part per line, as comments."""
    data = options.data
    parts = [
        f"wenet-hs train --config {quote(str(plan))}",
        f"--train_data {quote(str(data / 'train' / 'data.list'))}",
        f"--cv_data {quote(str(data / 'dev' / 'data.list'))}",
        f"--units {quote(str(data / 'units.txt'))}",
    ]
    if draft.config.encoder != "pretrained":
        parts.append(f"--cmvn {quote(str(data / 'global_cmvn'))}")
    start = options.base
    if draft.decisions.first_steps:
        start = plan.parent / BASE_NAME
    if start is not None:
        parts.append(f"--checkpoint {quote(str(start))}")
    parts.append(f"--head softmax --model_dir {quote(str(plan.parent / 'softmax'))}")
    *others, last = parts
    indent = "  "
    for part in others:
        yield f"#{indent}{part} \\"
        indent = "    "
    yield f"#{indent}{last}"


def _decisions(draft: Draft, options: PlanOptions, plan: Path) -> Sequence[str]:
    """What was decided and why, a sentence each."""
    return [
        f"{draft.hours} hours of training speech: {_size_sentence(draft, options)}",
        _steps_sentence(draft, options, plan),
        f"Config: {draft.choice.path}, {draft.choice.reason}.",
        _start_sentence(draft, options),
    ]


def _size_sentence(draft: Draft, options: PlanOptions) -> str:
    decisions = draft.decisions
    if draft.choice.start == "pretrained encoder":
        return f"the steps of {decisions.size} follow from them."
    if options.size == decisions.size:
        return f"size {decisions.size}, as --size asks for."
    if decisions.below_hours == NO_LIMIT:
        return f"size {decisions.size}, which is for the largest amounts."
    return f"size {decisions.size}, which is for less than {decisions.below_hours:g} hours."


def _steps_sentence(draft: Draft, options: PlanOptions, plan: Path) -> str:
    decisions = draft.decisions
    if not decisions.first_steps:
        return f"{decisions.steps} steps in one part."
    by = ", as --base_steps asks for" if options.base_steps is not None else ""
    first = f"a first part by CTC only{by}, with first_part.yaml, from which every head starts"
    return f"{decisions.first_steps} + {decisions.steps} steps: {first}; then {plan.name}."


def _start_sentence(draft: Draft, options: PlanOptions) -> str:
    if draft.choice.start == "trained model":
        return f"The trainings start from the model {options.base}, whose layers stay."
    if draft.choice.start == "pretrained encoder":
        return f"The trainings start from the encoder {options.encoder}."
    return "The trainings start from random weights."
