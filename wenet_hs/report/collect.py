# SPDX-License-Identifier: Apache-2.0
"""What is known of an experiment, read from its folder. What is not there is listed, not guessed."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.config.load import read_yaml
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.manifest import read_text
from wenet_hs.score import Report, read_report
from wenet_hs.tree.nary import NaryTree, load_tree
from wenet_hs.tree.tree import Tree

logger = logging.getLogger(__name__)

MODES = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring", "joint")
PROVENANCE = "provenance"  # the section of train.yaml that `train` adds


@dataclass(frozen=True, kw_only=True)
class ExperimentResults:
    """An experiment folder as the page needs it."""

    name: str
    """The shortest end of the folder's path that no other experiment of the page has."""
    folder: Path
    settings: dict[str, Any]
    """train.yaml without its provenance; empty where absent."""
    provenance: dict[str, Any]
    """Command, commit and versions of the training; empty where absent."""
    curves: dict[str, list[dict[str, float]]]
    """Records of metrics.jsonl by kind, "train" and "valid"; empty where absent."""
    tree: Tree | NaryTree | None
    scores: dict[str, Report]
    """Scoring of each decoding mode, in the order of `MODES`."""
    speeds: dict[str, dict[str, Any]]
    """`audio_seconds`, `wall_seconds` and `rtf` of each mode."""
    speed_conditions: dict[str, Any]
    """Device, number of threads, beam size, as rtf.json has them."""
    speed_parts: dict[str, float]
    """Wall seconds of each part of the decoding (features, encoder, …), as rtf.json has them."""
    absent: tuple[str, ...]
    """What the folder lacks, each as a phrase."""
    stale: tuple[str, ...] = ()
    """What no longer belongs together: a phrase for each mode whose text is not the one that was scored."""
    test: str = "test"
    """The sub-folder of the decoding results."""

    @property
    def head(self) -> str:
        """The output head, as train.yaml names it."""
        return str(self.settings.get("head", "unknown"))


def collect(folders: Sequence[Path], *, test: str = "test") -> list[ExperimentResults]:
    """Read experiment folders, whose decoding results are in the sub-folder `test`.

    Raises DataError for a folder given twice, not there, without anything to report, or with a damaged file.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such experiment folder; check --exp")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise DataError(f"{folders[-1]}: the same experiment twice; give each --exp once")
    return [_collect(folder, name, test) for folder, name in zip(folders, short_names(folders), strict=True)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """The shortest path ends that tell the folders apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _collect(folder: Path, name: str, test: str) -> ExperimentResults:
    settings = _read_settings(folder / "train.yaml")
    curves = read_curves(folder / "metrics.jsonl")
    scores, unreadable = _read_scores(folder / test, test)
    if not (settings or curves or scores or unreadable):
        raise DataError(
            f"{folder}: no train.yaml, metrics.jsonl or {test}/<mode>/score.json; is it an experiment folder?"
        )
    stale = tuple(_stale(folder / test, scores))
    for phrase in stale:
        logger.warning("%s, %s", name, phrase)
    tree = load_tree(folder / "tree.json") if (folder / "tree.json").is_file() else None
    speeds, speed_conditions, speed_parts = _read_speeds(folder / test / "rtf.json")
    missing = {
        "train.yaml (settings, versions)": settings,
        "metrics.jsonl (training curves)": curves,
        "tree.json (the tree)": tree or settings.get("head") == "softmax",
        f"{test}/<mode>/score.json (error rates)": scores or unreadable,
        f"{test}/rtf.json (speed)": speeds,
    }
    return ExperimentResults(
        name=name,
        folder=folder,
        provenance=settings.pop(PROVENANCE, None) or {},
        settings=settings,
        curves=curves,
        tree=tree,
        scores=scores,
        speeds=speeds,
        speed_conditions=speed_conditions,
        speed_parts=speed_parts,
        absent=(*(what for what, found in missing.items() if not found), *unreadable),
        stale=stale,
        test=test,
    )


def read_curves(path: Path) -> dict[str, list[dict[str, float]]]:
    """The records of metrics.jsonl by kind, numbers alone. A last line cut off by a kill is left out."""
    if not path.is_file():
        return {}
    curves: dict[str, list[dict[str, float]]] = {}
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kind, step = record["kind"], record["step"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise DataError(f"{path}:{number}: not a record of a training with `kind` and `step`") from error
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
        curves.setdefault(str(kind), []).append(numbers | {"step": float(step)})
    return curves


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    settings = read_yaml(path).values
    return dict(settings)


def _read_scores(folder: Path, test: str) -> tuple[dict[str, Report], list[str]]:
    """The scorings by mode, and a phrase for each file that is of another version or damaged."""
    scores, unreadable = {}, []
    for mode in in_order(path.parent.name for path in folder.glob("*/score.json")):
        try:
            scores[mode] = read_report(folder / mode / "score.json")
        except DataError as error:
            logger.warning("%s; the mode is left out", error)
            unreadable.append(f"{test}/{mode}/score.json that this version can read (run `wenet-hs score` again)")
    return scores, unreadable


def _stale(folder: Path, scores: Mapping[str, Report]) -> Iterator[str]:
    """A phrase for each mode whose text has changed since it was scored: speed and confidences are of the new one."""
    for mode, report in scores.items():
        path = folder / mode / "text"  # what is scored, read as `score` reads it
        texts = read_text(path) if path.is_file() else None
        if texts is not None and any(found.hyp != texts.get(key) for key, found in report.utterances.items()):
            yield f"{mode}: scored before it was decoded again, for its text has changed; run `wenet-hs score` again"


def _read_speeds(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any], dict[str, float]]:
    """The figures of each mode; the conditions, which the file says once for all of them; the seconds of the parts."""
    if not path.is_file():
        return {}, {}, {}
    record = read_json(path)
    modes = record.get("modes") if isinstance(record, dict) else None
    if not isinstance(modes, dict) or not all(isinstance(mode, dict) for mode in modes.values()):
        raise DataError(f"{path}: not the rtf.json of `recognize`; decode again")
    common = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
    if isinstance(record.get("lm"), dict):
        common["lm"] = ", ".join(record["lm"])  # names of files; their hashes stay in rtf.json
    audio_seconds = common.pop("audio_seconds", None)
    parts = record.get("seconds")
    known = parts.items() if isinstance(parts, dict) else ()
    speeds = {mode: {"audio_seconds": audio_seconds, **modes[mode]} for mode in in_order(modes)}
    return speeds, common, {name: float(value) for name, value in known if isinstance(value, int | float)}


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises DataError naming the file."""
    try:
        return json.loads("\n".join(read_lines(path)))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); make it again") from error


def in_order(modes: Iterable[str]) -> list[str]:
    """Decoding modes as `MODES` orders them, others after them by name."""
    return sorted(modes, key=lambda mode: (MODES.index(mode) if mode in MODES else len(MODES), mode))
