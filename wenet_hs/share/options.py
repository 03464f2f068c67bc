# SPDX-License-Identifier: Apache-2.0
"""The flags of `wenet-hs pack`."""

from dataclasses import dataclass
from pathlib import Path

from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.consent import CONSENT


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The flags of `wenet-hs pack`."""

    model_dir: Path = option(REQUIRED, "experiment folder, ours or WeNet's")
    out: Path = option(
        REQUIRED,
        "folder to write, a file that ends with .zip, or with .md: only the card",
        metavar="DIR|ZIP|MD",
    )
    overwrite: bool = option(False, "replace an earlier result of this command, also on the hub")
    license: str | None = option(
        None, "of the model: its SPDX name, such as cc-by-4.0, or a file with its text"
    )
    data: str | None = option(
        None, "what the training data are, in a sentence for the card", metavar="TEXT"
    )
    datasets: tuple[str, ...] = option(
        (), "names of the data sets on the hub, such as mozilla-foundation/common_voice"
    )
    languages: tuple[str, ...] = option(
        (), "codes of its languages (default: those of the lists and scores)"
    )
    card: Path | None = option(
        None, "edited text of the card; its section on consent is renewed", metavar="MD"
    )
    consent: Path | None = option(
        None,
        f"consent per recording (default: {CONSENT} in the folder of the project)",
        metavar="TSV",
    )
    base_model: str | None = option(
        None, "the model from which the training started, by its name on the hub"
    )
    push: str | None = option(
        None, "also upload it as private, after `hf auth login`", metavar="hf://USER/NAME"
    )

    @property
    def is_zip(self) -> bool:
        """Whether `out` is a ZIP."""
        return self.out.suffix.lower() == ".zip"

    @property
    def is_only_card(self) -> bool:
        """Whether only the card is written: `out` is a Markdown file."""
        return self.out.suffix.lower() == ".md"

    @property
    def model_name(self) -> str:
        """The name of the model in its card: that of `out`, without `.zip` or `.md`."""
        return self.out.stem if self.is_zip or self.is_only_card else self.out.name

    @property
    def reference(self) -> str:
        """How a command names the model: hf://…, a ZIP or a folder.

        A card alone is that of a ZIP of the same name.
        """
        if self.push:
            return self.push
        return f"{self.out.stem}.zip" if self.is_only_card else self.out.name
