# SPDX-License-Identifier: Apache-2.0
"""Sentences about the record of a training: for the log, the live line of a recipe, the report."""

import shlex

from wenet_hs.runs.record import Resources, RunRecord, Steps

SHA256_OF = "sha256 of "
"""Beginning of the names of facts that are the SHA-256 of a file or of weights."""
_GB = 1e9
"""Bytes."""


def describe_resources(resources: Resources) -> str:
    """The data, the memory and the disk of a training, in one line.

    Data and memory are left out for a language model, whose resources have no lists.
    """
    parts = [
        f"{size.name} {size.utterances:,} utterances, {size.hours:,.2f} h"
        for size in resources.lists
    ]
    if resources.lists:
        memory = f"memory: lists {resources.list_bytes / _GB:.2f} GB"
        if resources.feature_bytes:
            memory += f", features {resources.feature_bytes / _GB:.2f} GB that all processes share"
        parts.append(memory)
    all_checkpoints = f"checkpoints at most {resources.kept_bytes / _GB:.2f} GB"
    each_checkpoint = f"{resources.checkpoint_bytes / _GB:.2f} GB each"
    free = f"free {resources.free_bytes / _GB:.2f} GB"
    parts.append(f"disk: {all_checkpoints} ({each_checkpoint}), {free}")
    return f"resources: {' | '.join(parts)}"


def describe_duration(steps: Steps, seconds_per_step: float) -> str:
    """The expected time of a step, of an epoch and of the whole training, in one line.

    A limit of time (`max_minutes`) may make the whole training shorter than its planned steps.
    """
    seconds = seconds_per_step * steps.planned
    if steps.max_minutes is not None:
        seconds = min(seconds, 60 * steps.max_minutes)
    minutes_per_epoch = seconds_per_step * steps.per_epoch / 60
    step = f"{seconds_per_step:.3g} s per step"
    epoch = f"{minutes_per_epoch:.1f} min per epoch ({steps.per_epoch} steps)"
    whole = f"{seconds / 3600:.2f} h in all ({describe_limit(steps)})"
    return f"duration without validations: {step} | {epoch} | {whole}"


def describe_limit(steps: Steps) -> str:
    """The number of planned steps; it begins with `at most` if the training has a limit of time."""
    if steps.max_minutes is None:
        return f"{steps.planned}"
    return f"at most {steps.planned}"


def describe_facts(record: RunRecord) -> dict[str, str]:
    """What a training was started with, as texts by name, for tables that people read.

    Command, commit, machine and packages are those of the last start; processors and ranks are
    those of all starts. Facts that are not recorded are left out. The SHA-256 of the checkpoint is
    `none` if the training began with random weights.
    """
    start = record.last_start
    facts: dict[str, str | None] = {
        "command": shlex.join(start.command),
        "git": start.commit,
        "python": start.python,
        "machine": start.machine,
        "processor": "; ".join(record.processors),
        "ranks": "; ".join(map(str, record.rank_numbers)),
    }
    facts |= start.packages
    for file_name, sha256 in record.files.items():
        facts[f"{SHA256_OF}{file_name}"] = sha256
    facts[f"{SHA256_OF}training list"] = " ".join(record.lists.train_sums)
    if record.first_weights is not None:
        is_random = record.first_weights.kind == "random"
        facts[f"{SHA256_OF}checkpoint"] = "none" if is_random else record.first_weights.sha256
        facts["checkpoint"] = record.first_weights.name
    facts[f"{SHA256_OF}encoder weights"] = record.encoder_sha256
    return {name: escape_bytes(text) for name, text in facts.items() if text}


def escape_bytes(text: str) -> str:
    """The text with escapes for bytes that are not UTF-8, which a command line may contain."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
