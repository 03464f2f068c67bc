# SPDX-License-Identifier: Apache-2.0
"""The texts of plan.yaml and of first_part.yaml."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from wenet_hs.config.commented_yaml import SettingSource, comment_lines, write_commented
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.recipes.plan import Draft, PlanOptions, first_part_overrides
from wenet_hs.recipes.plan_names import BASE_NAME
from wenet_hs.recipes.sizes import NO_LIMIT

USE = (
    "The plan of an experiment: every setting of its trainings. Change what you like before the "
    "first training. A plan that was changed is never replaced. It is used by:"
)
REMARKS = (
    "A comment after a value says who decided it, and what the default of wenet_hs is. The flags "
    "of the command count before the settings here."
)
FIRST_PART_USE = (
    "The first part of training, by CTC only. Derived from {plan}, which is the file to edit: "
    "`wenet-hs plan` writes this one anew each time."
)


def plan_text(draft: Draft, options: PlanOptions, plan: Path, time_line: str) -> str:
    """The text of plan.yaml: a header of comments, and then every setting.

    The header has the command that uses the plan, what was decided and why, and the expected time.

    Args:
        draft: what was decided.
        options: by which it was decided.
        plan: the path of plan.yaml, for the command.
        time_line: the sentence about the expected time, without a capital and a full stop.
    """
    header = comment_lines(USE)
    header.append("#")
    header += _command_lines(draft, options, plan)
    header += ["#", "# What was decided:", "#"]
    for sentence in _decision_sentences(draft, options, plan):
        header += comment_lines(f"- {sentence}", later="  ")
    header.append("#")
    time_sentence = f"{time_line[:1].upper()}{time_line[1:]}."  # str.capitalize changes the rest
    header += comment_lines(time_sentence)
    header.append("#")
    header += comment_lines(REMARKS)
    settings = write_commented(
        draft.config,
        written_in=draft.choice.path.name,
        sources=draft.sources,
    )
    return "\n".join(header) + "\n" + settings


def first_part_text(first_part: ExperimentConfig, plan: Path, steps: int) -> str:
    """The text of first_part.yaml, the config of the first part of training.

    Args:
        first_part: the config.
        plan: the path of plan.yaml, from which it follows.
        steps: the number of steps of the first part.
    """
    header = comment_lines(FIRST_PART_USE.format(plan=plan.name))
    settings = write_commented(
        first_part,
        written_in=plan.name,
        sources=[SettingSource(name="first part", overrides=first_part_overrides(steps))],
    )
    return "\n".join(header) + "\n" + settings


def _command_lines(draft: Draft, options: PlanOptions, plan: Path) -> Iterator[str]:
    """The command of a training with the plan, one part per line, as comments.

    Each line but the last one ends with a backslash, and those after the first are indented, so
    that the command can be copied to a shell.
    """
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
    if draft.decisions.first_steps > 0:
        start = plan.parent / BASE_NAME
    if start is not None:
        parts.append(f"--checkpoint {quote(str(start))}")
    parts.append(f"--head softmax --model_dir {quote(str(plan.parent / 'softmax'))}")
    first, *others = parts
    lines = [f"#  {first}", *(f"#    {part}" for part in others)]
    for line in lines[:-1]:
        yield f"{line} \\"
    yield lines[-1]


def _decision_sentences(draft: Draft, options: PlanOptions, plan: Path) -> Sequence[str]:
    """What was decided and why: the size, the steps, the config, and from what trainings start."""
    return [
        f"{draft.hours} hours of training speech: {_size_sentence(draft, options)}",
        _steps_sentence(draft, options, plan),
        f"Config: {draft.choice.path}, {draft.choice.reason}.",
        _start_sentence(draft, options),
    ]


def _size_sentence(draft: Draft, options: PlanOptions) -> str:
    """Which size was decided and why, as a clause after the hours of speech.

    With a pretrained encoder there is no size, and only the steps of its config were decided.
    """
    decisions = draft.decisions
    if draft.choice.start == "pretrained encoder":
        return f"the steps of {decisions.size} follow from them."
    if options.size == decisions.size:
        return f"size {decisions.size}, as --size asks for."
    if decisions.below_hours == NO_LIMIT:
        return f"size {decisions.size}, which is for the largest amounts."
    return f"size {decisions.size}, which is for less than {decisions.below_hours:g} hours."


def _steps_sentence(draft: Draft, options: PlanOptions, plan: Path) -> str:
    """How many steps the one or two parts of a training have."""
    decisions = draft.decisions
    if decisions.first_steps == 0:
        return f"{decisions.steps} steps in one part."
    cause = ", as --base_steps asks for" if options.base_steps is not None else ""
    first = f"a first part by CTC only{cause}, with first_part.yaml, from which every head starts"
    return f"{decisions.first_steps} + {decisions.steps} steps: {first}; then {plan.name}."


def _start_sentence(draft: Draft, options: PlanOptions) -> str:
    """From which weights the trainings start."""
    if draft.choice.start == "trained model":
        return f"The trainings start from the model {options.base}, whose layers stay."
    if draft.choice.start == "pretrained encoder":
        return f"The trainings start from the encoder {options.encoder}."
    return "The trainings start from random weights."
