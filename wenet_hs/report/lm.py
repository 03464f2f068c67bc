# SPDX-License-Identifier: Apache-2.0
"""Results files of language models, small enough to commit, and their tables in Markdown.

A table is a folder of results files `SYSTEM-seedN.json`. Its `texts.json` has the statistics of the texts. A
`table.yaml` may give it a title, a text and the names of its rows: the settings of `LmTable`.
"""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import config_changes, load_config, read_yaml
from wenet_hs.curves import read_curves
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.lm.text import read_running_text
from wenet_hs.score.tables import markdown_table
from wenet_hs.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FORMAT = "wenet_hs.lm_results/1"
SETS = ("valid", "test")
"""Names of the scores `MODEL_DIR/SET.json`, which `lm score --json` writes."""
TEXTS = "texts.json"
_FOLDERS = re.compile(r"""(?<![^\s"'=])/[^\s"']*/""")
"""The folders of absolute paths, which are of one machine and are not in results files."""


class LmTable(BaseModel):
    """The settings of a table, in its `table.yaml`."""

    model_config = ConfigDict(extra="forbid")

    title: str
    text: str = ""
    """Markdown before the numbers."""
    results: str = "."
    """The folder of the results files, relative to that of the `table.yaml`."""
    systems: dict[str, str]
    """System → its name in the table, in the order of the rows."""
    published: dict[str, tuple[float, float]] = {}
    """System → perplexities on valid and test in the paper."""


def write_lm_results(model_dir: Path, folder: Path) -> Path:
    """Write the results file of a trained and scored language model. Its folder is named `SYSTEM-seedN`.

    Raises DataError if a file of the folder is missing or damaged.
    """
    config = load_config(model_dir / "train.yaml", (), LmConfig)
    curve = read_curves(model_dir / "metrics.jsonl").get("valid")
    if not curve:
        raise DataError(f"{model_dir / 'metrics.jsonl'}: has no validation; train to the end of an epoch")
    paths = {name: model_dir / f"{name}.json" for name in SETS}
    remedy = "run `wenet-hs lm score --json` again"
    scores = {name: _read_json(path, remedy) for name, path in paths.items() if path.is_file()}
    if not scores:
        raise DataError(f"{model_dir}: has no valid.json or test.json; run `wenet-hs lm score --json` first")
    facts = {
        "format": FORMAT,
        "system": model_dir.name.removesuffix(f"-seed{config.seed}"),
        "seed": config.seed,
        "settings": {key: value for key, _, value in config_changes(LmConfig(), config) if key != "seed"},
        "provenance": config.provenance,
        "steps": int(curve[-1]["step"]),
        "seconds": curve[-1]["seconds"],
        "curve": [{"step": int(one["step"]), "loss": one["loss"], "perplexity": one["perplexity"]} for one in curve],
        "scores": scores,
    }
    target = folder / f"{facts['system']}-seed{config.seed}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(target, _FOLDERS.sub("", json.dumps(facts, indent=1, ensure_ascii=False)) + "\n")
    return target


def write_text_statistics(texts: Sequence[Path], tokenizer: Tokenizer, folder: Path) -> Path:
    """Write what the texts of a study contain (Table 1 of Jiang et al. 2017), with empty lines.

    Raises DataError if the folder has the statistics of other texts.
    """
    found = []
    for path in texts:
        text = read_running_text([path], tokenizer, keep_empty_lines=True)
        distinct = int((text.counts(len(tokenizer.table)) > 0).sum())
        counts = {"lines": text.num_sentences, "empty lines": text.num_empty, "units with line ends": len(text)}
        counts |= {"distinct units": distinct, "characters": text.num_characters, "<unk>": text.num_unknown}
        found.append({"text": path.name, **counts})
    target = folder / TEXTS
    if target.is_file() and _read_texts(target) != found:
        raise DataError(f"{folder}: has results of other texts; give --results a folder of its own for this text")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(target, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return target


def write_lm_tables(target: Path, folders: Sequence[Path], *, command: str, intro: str) -> None:
    """Write the tables of results folders as Markdown. A folder without results is left out.

    Raises ConfigError if a `table.yaml` is damaged, DataError if no folder has results.
    """
    tables = [table for folder in folders if (table := _table(folder))]
    if not tables:
        found = list_names([*map(str, folders)])
        raise DataError(f"{found}: no results of the systems in table.yaml; run the recipe with --results")
    text = "\n\n".join([intro.rstrip(), *tables]).lstrip()
    write_atomic(target, f"{text}\n\nGenerated by `{command}`.\n")


def _table(folder: Path) -> str:
    spec = _read_spec(folder)
    found = [_read(path) for path in sorted((folder / spec.results).glob("*-seed*.json"))]
    results = [one for one in found if one["system"] in spec.systems]
    names = {one["system"] for one in found}
    for what, missing in (
        ("results, but are not in it", names - {*spec.systems}),
        ("no results", {*spec.systems} - names),
    ):
        if missing:
            logger.info("%s: systems that have %s: %s", folder / "table.yaml", what, list_names(sorted(missing)))
    if not results:
        return ""
    of_system = {name: [one for one in results if one["system"] == name] for name in spec.systems}
    header = ["", "valid perplexity", "test perplexity", "bits per word, test", "steps", "hours", "seeds"]
    header += ["paper: valid", "paper: test"] if spec.published else []
    rows = [
        [*_row(label, of_system[name]), *([f"{value:.2f}" for value in spec.published.get(name, ())] or ["–", "–"])]
        for name, label in spec.systems.items()
        if of_system[name]
    ]
    rows = [row[: len(header)] for row in rows]
    conditions = sorted({_conditions(one["provenance"]) for one in results})
    note = "Perplexity: mean and standard deviation over the seeds. " + "; ".join(conditions)
    if differing := _differing_settings(results):
        note += f". Not equal in all trainings: {', '.join(differing)}"
    texts = _texts_table(folder / TEXTS) if (folder / TEXTS).is_file() else ""
    return f"## {spec.title}\n\n{spec.text.strip()}\n\n{texts}{markdown_table(header, rows)}\n\n{note}."


def _read_spec(folder: Path) -> LmTable:
    """The content of `table.yaml`; without one, all systems of the folder under their own names."""
    path = folder / "table.yaml"
    if not path.is_file():
        names = sorted({one.stem.rpartition("-seed")[0] for one in folder.glob("*-seed*.json")})
        return LmTable(title=folder.resolve().name, systems={name: name for name in names})
    try:
        return LmTable.model_validate(read_yaml(path).values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}; correct it") from error


def _differing_settings(results: Sequence[dict[str, Any]]) -> list[str]:
    """The settings, besides those of the output layer, that are not equal in all results."""
    names = sorted({name for one in results for name in one["settings"]})
    values = {name: {json.dumps(one["settings"].get(name)) for one in results} for name in names}
    return [name for name in names if len(values[name]) > 1 and not name.startswith(("head", "loss", "sampling_conf"))]


def _read_texts(path: Path) -> list[dict[str, Any]]:
    remedy = "remove it, and run `wenet-hs lm report --texts` again"
    texts: list[dict[str, Any]] = _read_json(path, remedy)
    if not texts:
        raise DataError(f"{path}: has no text; {remedy}")
    return texts


def _texts_table(path: Path) -> str:
    texts = _read_texts(path)
    header = ["", *(text["text"] for text in texts)]
    names = [name for name in texts[0] if name != "text"]
    rows = [[name, *(f"{text[name]:,}" for text in texts)] for name in names]
    shares = [f"{100 * text['<unk>'] / text['units with line ends']:.1f} %" for text in texts]
    return f"{markdown_table(header, [*rows, ['share of <unk>', *shares]])}\n\n"


def _read(path: Path) -> dict[str, Any]:
    remedy = "write it with `wenet-hs lm report`"
    found: dict[str, Any] = _read_json(path, remedy)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{path}: no results file of a language model; {remedy}")
    return found


def _read_json(path: Path, remedy: str) -> Any:
    try:
        return json.loads("\n".join(read_lines(path)))
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); {remedy}") from error


def _row(label: str, results: Sequence[dict[str, Any]]) -> list[str]:
    cells = [label]
    for name, key in (("valid", "perplexity"), ("test", "perplexity"), ("test", "bits_per_unit")):
        values = [one["scores"][name][key] for one in results if name in one["scores"]]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.2f}{spread}" if values else "–")
    hours = fmean(one["seconds"] for one in results) / 3600
    seeds = " ".join(str(one["seed"]) for one in results)
    return [*cells, f"{fmean(one['steps'] for one in results):,.0f}", f"{hours:.1f}", seeds]


def _conditions(provenance: dict[str, str]) -> str:
    names = ("processor", "torch", "git")
    return ", ".join(f"{name} {provenance.get(name, 'unknown')}" for name in names)
