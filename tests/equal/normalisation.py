# SPDX-License-Identifier: Apache-2.0
"""What may differ between two runs of the same code, one named rule each. All else is compared."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

FOLDER = "CASE_FOLDER"
"""Stands for the folder of a case."""
NUMBER = r"\d[\d.e+-]*"
HEX = "[0-9a-f]"
TIME_KEYS = r"(?:wait_|compute_|warmup_)?seconds|\w+_per_second|wait_share|outside_share"
ERROR_LINES = "lines.set.txt"
"""The error lines of the test suite."""


@dataclass(frozen=True)
class Rule:
    """A regular expression whose matches are replaced in the texts of a record."""

    name: str
    pattern: str
    replacement: str
    reason: str
    file: str = "*"
    """Only in files of the record that fit this pattern."""
    within: str = ""
    """Only in the parts of a text that fit this regular expression. Empty: in the whole text."""


@dataclass(frozen=True)
class IgnoredFile:
    """Files that are not recorded."""

    pattern: str
    reason: str


IGNORED_FILES = (
    IgnoredFile(
        "*/events.out.tfevents.*",
        "TensorBoard: name and content have times; metrics.jsonl has the same numbers",
    ),
    IgnoredFile(
        "outputs/*.bin",
        "outputs of a frozen encoder: the name is a hash of times; losses show the content",
    ),
)
RULES = (
    Rule(
        name="time of a log line",
        pattern=r"(?m)^\d\d:\d\d:\d\d (?=[A-Z]+ )",
        replacement="",
        reason="the clock",
    ),
    Rule(
        name="process of a lock",
        pattern=r"process \d+ on \S+",
        replacement="process PID on HOST",
        reason="each run has another process id, and each machine another name",
        file="*.lock",
    ),
    Rule(
        name="modification time in a cache",
        pattern=r" \d{19}(?=[ \"])",
        replacement=" MODIFIED_NS",
        reason="prepare keeps the modification time of each clip that it has read",
        file="*/.checked_clips.jsonl",
    ),
    Rule(
        name="modification time of a shard",
        pattern=r" \d{19}(?=\")",
        replacement=" MODIFIED_NS",
        reason="the index of a list of shards keeps the modification time of each shard",
        file="*/shards.json",
    ),
    Rule(
        name="speed in a log line of a training",
        pattern=r"\| [\d,]+ audio s/s \| wait \d+ %",
        replacement="| SPEED",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="speed of a language model or of word vectors",
        pattern=r"\| [\d,]+ (units|words)/s( \| wait \d+ %)?",
        replacement=r"| SPEED \1/s",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="time of a training in a log line",
        pattern=r"\| \d+ s of training",
        replacement="| TIME of training",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="time that is left",
        pattern=r"\| [\d.,]+ (s|min|h) left",
        replacement="| TIME left",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="time to the first batch",
        pattern=r"first batch after [\d.]+ s",
        replacement="first batch after TIME",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="free space",
        pattern=r"free [\d.,]+ [GM]B",
        replacement="free SPACE",
        reason="other programs use the disk too",
        file="*.txt",
    ),
    Rule(
        name="size of an ONNX file",
        pattern=r"(\w+\.onnx) [\d.]+ MB",
        replacement=r"\1 SIZE MB",
        reason="it has the paths of the source code, and the compared checkouts have other folders",
        file="*/printed.txt",
    ),
    Rule(
        name="real-time factor of a decoding",
        pattern=r"RTF \d\S*",
        replacement="RTF SPEED",
        reason="the clock",
        file="*/printed.txt",
    ),
    Rule(
        name="temporary file of features",
        pattern=rf"/\S*/wenet_hs-features-\S+-{HEX}{{32}}-",
        replacement="TEMPORARY/wenet_hs-features-",
        reason="a random name, which has the name of the machine",
        file="*/printed.txt",
    ),
    Rule(
        name="file of encoder outputs",
        pattern=rf"outputs/{HEX}{{16}}-{HEX}{{32}}\.bin",
        replacement="outputs/CACHE.bin",
        reason="its name is a hash of the modification times of the clips",
        file="*/printed.txt",
    ),
    Rule(
        name="time in metrics.jsonl and state.json",
        pattern=rf'"({TIME_KEYS})": {NUMBER}',
        replacement=r'"\1": TIME',
        reason="the clock",
        file="*.json*",
    ),
    Rule(
        name="time of a start or an end in a run record",
        pattern=r'"time": "[^"]*"',
        replacement='"time": "TIME"',
        reason="the clock",
        file="*/run.json",
    ),
    Rule(
        name="speed and memory in a run record",
        pattern=rf'"((?:first_)?seconds_per_step|seconds_left|speed|list_bytes|free_bytes)": ({NUMBER}|null)',
        replacement=r'"\1": NUMBER',
        reason="the clock, and other programs",
        file="*/run.json",
    ),
    Rule(
        name="time in the run record of a packed model",
        pattern=rf'(?m)^  "seconds": {NUMBER}',
        replacement='  "seconds": TIME',
        reason="the clock",
        file="*.zip",
    ),
    Rule(
        name="commit of a training",
        pattern=r'("commit": ?)"[^"]*"',
        replacement=r'\1"COMMIT"',
        reason="the compared code has another one",
        file="*.json",
    ),
    Rule(
        name="memory in metrics.jsonl",
        pattern=rf'"peak_memory_mb": {NUMBER}',
        replacement='"peak_memory_mb": MEMORY',
        reason="it has the memory of earlier work of the process",
        file="*/metrics.jsonl",
    ),
    Rule(
        name="size of metrics.jsonl",
        pattern=r'"metrics_bytes": \d+',
        replacement='"metrics_bytes": SIZE',
        reason="the times in it have more or fewer digits",
        file="*/state.json",
    ),
    Rule(
        name="hash of state.json",
        pattern=rf'("state.json": {{\s+"sha256": )"{HEX}{{64}}",(\s+"bytes": )\d+',
        replacement=r"\1HASH,\2SIZE",
        reason="state.json has times; it is compared itself",
        file="*/manifest.json",
    ),
    Rule(
        name="time in rtf.json",
        pattern=rf"(?<=: ){NUMBER}",
        replacement="TIME",
        reason="the clock",
        file="*/rtf.json",
        within=r'(?s)\n  "(?:seconds|modes)": \{.*?\n  \}',
    ),
    Rule(
        name="time in a partial result",
        pattern=rf"(?<=: ){NUMBER}",
        replacement="TIME",
        reason="the clock",
        file="*/partial/*",
        within=r'"seconds": \{[^}]*\}',
    ),
    Rule(
        name="begin of a partial result",
        pattern=rf'"started_at": {NUMBER}',
        replacement='"started_at": TIME',
        reason="the clock",
        file="*/partial/*",
    ),
    Rule(
        name="date of an ELAN file",
        pattern=r'DATE="\d[^"]*"',
        replacement='DATE="DATE"',
        reason="the clock",
        file="*.eaf",
    ),
    Rule(
        name="date of a page",
        pattern=r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d| UTC)",
        replacement="DATE",
        reason="the clock, and the modification times of files",
        file="*.html",
    ),
    Rule(
        name="temporary folder of a test",
        pattern=r"CASE_FOLDER/t2?(/popen-gw\d+)?/[\w.-]+",
        replacement="TEST_FOLDER",
        reason="it has the name of the test and the number of the process",
        file=ERROR_LINES,
    ),
    Rule(
        name="folder of the environment",
        pattern=r"[^\s:'\"]*/site-packages/",
        replacement="SITE_PACKAGES/",
        reason="each checkout may have another environment",
        file=ERROR_LINES,
    ),
    Rule(
        name="port that is in use",
        pattern=r"--port \d+: cannot be used \(Address already",
        replacement="--port PORT: cannot be used (Address already",
        reason="the test takes a free one",
        file=ERROR_LINES,
    ),
    Rule(
        name="temporary file that is being written",
        pattern=rf"\.{HEX}{{8}}\.tmp",
        replacement=".RANDOM.tmp",
        reason="a random name",
        file=ERROR_LINES,
    ),
    Rule(
        name="temporary folder that is being written",
        pattern=r"/\.(import|pack|export)\.[\w]{8}/",
        replacement=r"/.\1.RANDOM/",
        reason="a random name",
        file=ERROR_LINES,
    ),
    Rule(
        name="size of a video that a test writes",
        pattern=r"audio of \d+ bytes: no sound: a video",
        replacement="audio of SIZE bytes: no sound: a video",
        reason="the encoder writes the date",
        file=ERROR_LINES,
    ),
    Rule(
        name="version of wenet_hs",
        pattern=r"(wenet_hs\"?:? \"?|\|v:)\d+\.\d+\.\d+(?:\.dev\d+)?",
        replacement=r"\1VERSION",
        reason="a release changes it",
    ),
)


def is_ignored_file(name: str) -> bool:
    """Whether a file of this path in the folder of a case is not recorded."""
    return any(fnmatchcase(name, ignored.pattern) for ignored in IGNORED_FILES)


def normalise(name: str, text: str, folder: Path) -> str:
    """The text of the file NAME of a record by all rules. `folder` is where the case ran."""
    text = text.replace(str(folder), FOLDER)
    for rule in RULES:
        if fnmatchcase(name, rule.file):
            text = _apply(rule, text)
    return text


def _apply(rule: Rule, text: str) -> str:
    if not rule.within:
        return re.sub(rule.pattern, rule.replacement, text)
    return re.sub(rule.within, lambda part: re.sub(rule.pattern, rule.replacement, part[0]), text)
