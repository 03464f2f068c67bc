# SPDX-License-Identifier: Apache-2.0
"""Model cards that exist: a card that a person has edited, and that of a packed model.

The front matter of a card is a section of YAML between two lines `---` at its beginning. The hub
reads it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from wenet_hs.base.files import read_lines
from wenet_hs.model.packed import WEIGHTS, is_packed
from wenet_hs.runs.record import RunRecord
from wenet_hs.share.card import quote_yaml
from wenet_hs.share.options import PackOptions
from wenet_hs.tree.errors import DataError, one_line

_SPDX = re.compile(r"[A-Za-z0-9.+-]+")
"""The name of a licence."""
_WEIGHTS_KEY = "weights_sha256"
"""Key of the front matter: the SHA-256 of the weights that the error rates of the card belong to."""
_CONSENT_TITLE = "## Consent and access"


def read_edited_card(
    path: Path, options: PackOptions, published: RunRecord, license_id: str
) -> str:
    """The text of an edited card, with the name of the model in place of its own file name.

    Args:
        published: the run record of the packed model.
        license_id: of the model on the hub, as `write_card`.

    Raises DataError if the card names other weights, whose error rates are not those of this model,
    or if it differs from a flag.
    """
    text = "\n".join(read_lines(path)).rstrip() + "\n"
    front = _parse_front_matter(path, text)
    weights_sha256 = published.files[WEIGHTS]
    if front.get(_WEIGHTS_KEY, weights_sha256) != weights_sha256:
        raise DataError(
            path,
            "was made for other weights",
            "make it again with --out FILE.md, and edit it again",
        )
    _check_flags(path, front, options, license_id)
    if options.data and options.data not in text:
        raise DataError(path, "has not the text of --data", "write it there, or leave --data out")
    return _rename_model(text, draft=path.stem, options=options)


def _check_flags(
    path: Path, front: Mapping[str, Any], options: PackOptions, license_id: str
) -> None:
    """Raises DataError if a flag that was given differs from the front matter of a card."""
    if options.license and str(front.get("license")).lower() != license_id:
        raise _flag_error(path, "license", front.get("license"), "--license")
    languages = _as_list(front.get("language"))
    if options.languages and languages != [*options.languages]:
        raise _flag_error(path, "language", languages, "--languages")
    datasets = _as_list(front.get("datasets"))
    if options.datasets and datasets != [*options.datasets]:
        raise _flag_error(path, "datasets", datasets, "--datasets")
    if options.base_model and front.get("base_model") != options.base_model:
        raise _flag_error(path, "base_model", front.get("base_model"), "--base_model")


def _flag_error(path: Path, key: str, stated: object, flag: str) -> DataError:
    """The error for a key of the front matter that differs from a flag."""
    return DataError(path, f"has {key}: {stated}, not that of {flag}", "change one of them")


def _as_list(stated: object) -> object:
    """A single text as a list of one: YAML has `language: mdw` and `language: [mdw]`."""
    return [stated] if isinstance(stated, str) else stated


def _rename_model(text: str, *, draft: str, options: PackOptions) -> str:
    """The text of a card in which the model gets its own name.

    `draft`: the name that `write_card` took from the file of the card. It is replaced in the title,
    in the model index and, as DRAFT.zip, in commands.
    """
    name = options.model_name
    text = text.replace(f"\n# {draft}\n", f"\n# {name}\n", 1)
    in_index = f"\n- name: {quote_yaml(draft)}"
    text = text.replace(in_index, f"\n- name: {quote_yaml(name)}", 1)
    draft_zip = re.compile(rf"(?<![\w.-]){re.escape(draft)}\.zip(?![\w-])")
    return draft_zip.sub(lambda match: options.reference, text)


def renew_consent(card: str, lines: Sequence[str]) -> str:
    """A card with these lines as its section on consent.

    The section replaces an earlier one, or is added at the end. Without lines there is none.
    """
    before, title, after = card.partition(_CONSENT_TITLE + "\n")
    _, next_heading, rest = after.partition("\n## ")
    items = [f"- {line}" for line in lines]
    section = "\n".join([_CONSENT_TITLE, "", *items]) + "\n"
    has_section = title != ""
    if has_section and lines:
        return f"{before}{section}{next_heading}{rest}"
    if has_section:
        return f"{before}{next_heading.lstrip()}{rest}"
    if lines:
        return f"{card}\n{section}"
    return card


def is_card(path: Path) -> bool:
    """Whether a Markdown file is the card of a model of wenet_hs, by its front matter."""
    try:
        front = read_front_matter(path)
    except DataError:
        return False
    return front.get("library_name") == "wenet_hs"


def find_license(model_dir: Path, card: Path | None) -> str | None:
    """The licence of a model that is packed without --license; None if none is stated.

    It is that of the edited card `card`, otherwise that of a packed model which is packed again: an
    SPDX name, or the path of the LICENSE of the packed model. `other`: a licence whose text is not
    here.

    Raises DataError if a card states something else. So a card cannot name a file on this machine,
    which would then be published as the licence.
    """
    cards = list[Path]()
    if card is not None:
        cards.append(card)
    is_packed_again = is_packed(model_dir)
    if is_packed_again:
        cards.append(model_dir / "README.md")
    for path in cards:
        stated = _read_license(path)
        if stated is None:
            continue
        license_file = model_dir / "LICENSE"
        if stated == "other" and is_packed_again and license_file.is_file():
            return str(license_file)
        if stated != "other" and not is_license_name(stated):
            raise DataError(
                path, f"license {stated[:80]!r} is no SPDX name", "correct it, or give --license"
            )
        return stated
    return None


def _read_license(card: Path) -> str | None:
    """The licence in the front matter of a card; None if it has none, or there is no card."""
    if not card.is_file():
        return None
    stated = read_front_matter(card).get("license")
    return None if stated in (None, "unknown") else str(stated)


def is_license_name(stated: str) -> bool:
    """Whether a licence is an SPDX name such as `cc-by-4.0`, and not a file in this folder."""
    return bool(_SPDX.fullmatch(stated)) and not Path(stated).is_file()


def read_front_matter(card: Path) -> dict[str, Any]:
    """The front matter of a card; empty if it has none. Raises DataError if it is no YAML."""
    return _parse_front_matter(card, "\n".join(read_lines(card)))


def _parse_front_matter(path: Path, text: str) -> dict[str, Any]:
    """The front matter of the text of a card, as `read_front_matter`; `path` is for errors."""
    if not text.startswith("---\n"):
        return {}
    front_text, _, _ = text.removeprefix("---\n").partition("\n---")
    try:
        front = yaml.safe_load(front_text)
    except (yaml.YAMLError, RecursionError) as error:
        raise DataError(
            path, f"its front matter is no YAML ({one_line(error)})", "correct it"
        ) from error
    return front if isinstance(front, dict) else {}
