# SPDX-License-Identifier: Apache-2.0
"""The facts about a training in the train.yaml, or the results file, of an earlier version.

Until 2026-11 a training wrote them as texts below the key `provenance`: the command as one line, and the
parts of several starts separated by `; `. This is the only place that divides such texts.
"""

import shlex
from collections.abc import Mapping
from typing import Any

SHA256_OF = "sha256 of "
"""Beginning of the keys with the SHA-256 of a file or of weights."""
_NO_FILES = ("training list", "checkpoint", "encoder weights")
"""Sums that are not those of files in the model folder."""
_PACKAGES = ("wenet_hs", "torch", "torchaudio", "transformers")


class Provenance:
    """The facts by key, and what they mean."""

    def __init__(self, facts: Mapping[Any, Any]) -> None:
        self._facts = {str(key): str(value) for key, value in facts.items()}

    def text(self, key: str) -> str | None:
        """A fact as it was written; None if it is not there."""
        return self._facts.get(key)

    def sum_of(self, name: str) -> str | None:
        """The SHA-256 of something; `none` of the checkpoint means random weights."""
        return self.text(f"{SHA256_OF}{name}")

    def file_sums(self) -> dict[str, str]:
        """The SHA-256 of the files of the model folder by name."""
        sums = {}
        for key, text in self._facts.items():
            name = key.removeprefix(SHA256_OF)
            if key.startswith(SHA256_OF) and name not in _NO_FILES:
                sums[name] = text
        return sums

    def list_sums(self) -> list[str]:
        """The SHA-256 of each training list."""
        return (self.sum_of("training list") or "").split()

    def processors(self) -> tuple[str, ...]:
        """The kinds of processors of all starts."""
        text = self.text("processor")
        return () if text is None else tuple(text.split("; "))

    def rank_numbers(self) -> list[int]:
        """The numbers of ranks of all starts; those that are no numbers are left out."""
        parts = (self.text("ranks") or "").split("; ")
        return [int(part) for part in parts if part.isdecimal()]

    def packages(self) -> dict[str, str]:
        """Versions by name."""
        return {name: self._facts[name] for name in _PACKAGES if name in self._facts}

    @property
    def is_overfitted(self) -> bool:
        """Whether a packed model is marked so."""
        return self.text("overfitted") == "yes"

    @property
    def is_language_model(self) -> bool:
        """Whether the command was `lm train`."""
        return bool(self.flag_values("--train_text"))

    def command(self) -> tuple[str, ...]:
        """The words of the last command; empty if it cannot be divided, as with an edited quote."""
        try:
            return tuple(shlex.split(self.text("command") or ""))
        except ValueError:
            return ()

    def flag_values(self, *flags: str) -> list[str]:
        """The values of these flags in the command."""
        values = []
        is_asked = False
        for word in self.command():
            flag, value = _divide_word(word)
            if flag:
                is_asked = flag in flags
            if is_asked and value:
                values.append(value)
        return values

    def first_weights(self) -> str | None:
        """The --checkpoint with which the training started, as it was written.

        The last command may be a resume without it; then the key `checkpoint` has it.
        """
        recorded = self.text("checkpoint")
        if recorded is not None:
            return recorded
        return next(iter(self.flag_values("--checkpoint")), None)


def _divide_word(word: str) -> tuple[str, str]:
    """The flag and the value in a word of a command: `--flag`, `--flag=value`, or a value without a flag."""
    if not word.startswith("--"):
        return "", word
    flag, _, value = word.partition("=")
    return flag, value
