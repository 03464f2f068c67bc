# SPDX-License-Identifier: Apache-2.0
"""Files of a trained folder that no longer belong to each other: refused before a step or an utterance, by name."""

import io
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from fault_script import Ended, Tally, call, fresh_copy
from tiny_corpus import LETTERS, TinyCorpus, write_tiny_corpus

from wenet_hs.bin import recognize as recognize_command
from wenet_hs.bin import train as train_command
from wenet_hs.config.load import load_config
from wenet_hs.data.cmvn import read_cmvn, write_cmvn
from wenet_hs.text.units import UnitTable
from wenet_hs.train.folder import FREE_TO_CHANGE
from wenet_hs.tree import Tree

_PATHS = ("symbol_table_path", "cmvn_file", "tree", "bpe_path")


class TrainedFolder:
    """A finished training of the tree head over units of which some have two Unicode forms."""

    def __init__(self, scratch: Path, tally: Tally) -> None:
        self.scratch, self.tally = scratch, tally
        self.corpus: TinyCorpus = write_tiny_corpus(scratch / "corpus")
        self.table = UnitTable.from_units(LETTERS + "éüñ")
        self.table.write(self.corpus.folder / "units.txt")
        Tree.huffman(range(1, len(self.table) + 1), units=self.table.units).save(self.corpus.folder / "tree.json")
        self.whole = self.corpus.train(scratch / "whole", "max_epoch=1", head="hsoftmax")
        self.metrics = (self.whole / "metrics.jsonl").read_bytes()

    def recognize(self, model_dir: Path) -> Ended:
        """Decode with it."""
        line = ("--model_dir", model_dir, "--test_data", self.corpus.cv_data, "--result_dir", self.scratch / "result")
        return call(recognize_command, *line, "--modes", "ctc_greedy_search", "--device", "cpu")

    def resume(self, corpus: Path, *overrides: str) -> Ended:
        """Go on with it, the config's files being those of `corpus`."""
        files = (f"tokenizer_conf.symbol_table_path={corpus / 'units.txt'}", f"head_conf.tree={corpus / 'tree.json'}")
        more = (f"cmvn_conf.cmvn_file={corpus / 'global_cmvn'}", "head=hsoftmax", "max_epoch=2", *overrides)
        return call(train_command, *self.corpus.arguments(self.whole, *files, *more))

    def refused(self, ended: Ended, what: str, *named: str) -> None:
        """Check that it stopped before the first step or utterance, and named each of `named`."""
        self.tally.check(ended.clean_fault(), f"{what}: {ended.shown()}")
        missing = [name for name in named if name not in ended.err]
        self.tally.check(not missing, f"{what}: {missing} not named in {ended.err!r}")
        done = (self.whole / "metrics.jsonl").read_bytes() != self.metrics or (self.scratch / "result").exists()
        if not self.tally.check(not done, f"{what}: it had begun"):
            shutil.rmtree(self.scratch / "result", ignore_errors=True)
            self.metrics = (self.whole / "metrics.jsonl").read_bytes()


def check_mismatches(scratch: Path, number: int, tally: Tally) -> None:
    """`number` mismatches: units, tree and statistics in the folder and at a resume, settings, weights."""
    generator, bed = random.Random(tally.seed), TrainedFolder(scratch, tally)
    settings = list(changed_settings(bed))
    generator.shuffle(settings)
    weights = list(CHANGED_WEIGHTS)
    for index in range(number):
        match index % 5:
            case 0:
                _in_the_folder(bed, generator, ("units.txt", "tree.json")[index // 5 % 2])
            case 1 | 2:
                _at_a_resume(bed, generator, ("units.txt", "units.txt", "tree.json", "global_cmvn")[index // 5 % 4])
            case 3:
                override = settings[index // 5 % len(settings)]
                key = override.partition("=")[0].rpartition(".")[2]
                bed.refused(bed.resume(bed.corpus.folder, override), f"resume with {override}", key)
            case _:
                _with_weights(bed, generator, weights[index // 5 % len(weights)])


def _in_the_folder(bed: TrainedFolder, generator: random.Random, name: str) -> None:
    copy = fresh_copy(bed.whole, bed.scratch / "copy")
    what = CHANGE_OF[name](copy / name, generator)
    bed.refused(bed.recognize(copy), f"{name} of the folder, {what}", name)


def _at_a_resume(bed: TrainedFolder, generator: random.Random, name: str) -> None:
    copy = fresh_copy(bed.corpus.folder, bed.scratch / "other")
    what = CHANGE_OF[name](copy / name, generator)
    bed.refused(bed.resume(copy), f"{name} at a resume, {what}", name, "(line ")


# ---- units, trees, statistics


def change_units(path: Path, generator: random.Random) -> str:
    """Change a unit table on disk; what was done."""
    lines = path.read_text("utf-8").splitlines()
    first, other = generator.sample(range(3, len(lines)), 2)
    (unit, _), (another, _) = lines[first].split(), lines[other].split()
    kind = generator.choice(("swapped", "moved", "deleted", "added", "NFD", "renamed"))
    match kind:
        case "swapped":
            lines[first], lines[other] = f"{another} {first}", f"{unit} {other}"
        case "moved":
            lines.insert(other, lines.pop(first))
        case "deleted":
            lines = [*lines[:first], *(f"{line.split()[0]} {i}" for i, line in enumerate(lines[first + 1 :], first))]
        case "added":
            lines.append(f"ж {len(lines)}")
        case "NFD":
            lines = [unicodedata.normalize("NFD", line) for line in lines]
        case "renamed":
            lines[first] = f"ж {first}"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return kind


def change_tree(path: Path, generator: random.Random) -> str:
    """Put another tree there; what it is."""
    tree = Tree.load(path)
    kind = generator.choice(("other counts", "other size", "other order", "NFD"))
    units = list(tree.units or ())
    match kind:
        case "other size":
            units.append("ж")
        case "other order":
            units[4], units[5] = units[5], units[4]
        case "NFD":
            units = [unicodedata.normalize("NFD", unit) for unit in units]
    counts = [generator.randrange(1, 99) for _ in units]
    Tree.huffman(counts, units=units).save(path)
    return kind


def change_cmvn(path: Path, generator: random.Random) -> str:
    """Change the statistics; what was done."""
    mean_F, istd_F = (values.double() for values in read_cmvn(path))
    kind = generator.choice(("one value", "another size"))
    mean_F[generator.randrange(len(mean_F))] += 0.5
    size = len(mean_F) - (kind == "another size")
    sums, squares = (100 * mean_F)[:size], (100 * (istd_F**-2 + mean_F**2))[:size]
    write_cmvn(path, torch.cat([sums, squares, torch.tensor([100.0])]))
    return kind


CHANGE_OF: dict[str, Callable[[Path, random.Random], str]] = {
    "units.txt": change_units,
    "tree.json": change_tree,
    "global_cmvn": change_cmvn,
}


# ---- settings


def changed_settings(bed: TrainedFolder) -> Iterator[str]:
    """An override for each setting of the training that a resume may not change."""
    settings = load_config(bed.whole / "train.yaml").model_dump(mode="json", exclude={"provenance"})
    for key, value in _flat(settings):
        if key not in FREE_TO_CHANGE and key.rpartition(".")[2] not in _PATHS and value is not None:
            yield f"{key}={yaml.safe_dump(_another(value), default_flow_style=True).split(chr(10))[0]}"


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else value / 2 + 0.125
    return "another" if isinstance(value, str) else [*value, 3]


# ---- weights


def _delete(state: dict[str, Any], name: str) -> None:
    del state[name]


def _rename(state: dict[str, Any], name: str) -> None:
    state[name + ".other"] = state.pop(name)


def _add(state: dict[str, Any], name: str) -> None:
    state["decoder.more." + name] = torch.zeros(3)


def _shorten(state: dict[str, Any], name: str) -> None:
    state[name] = state[name].reshape(-1)[:-1]


def _widen(state: dict[str, Any], name: str) -> None:
    state[name] = torch.cat([state[name].reshape(-1), torch.zeros(3)])


def _number(state: dict[str, Any], name: str) -> None:
    state[name] = 1.0


def _unit_more(state: dict[str, Any], name: str) -> None:
    embedding = "decoder.embed.0.weight"
    state[embedding] = torch.cat([state[embedding], state[embedding][:1]])


CHANGED_WEIGHTS: tuple[Callable[[dict[str, Any], str], None], ...] = (
    *(_delete, _rename, _add, _shorten),
    *(_widen, _number, _unit_more),
)


def _with_weights(bed: TrainedFolder, generator: random.Random, change: Callable[[dict[str, Any], str], None]) -> None:
    copy = fresh_copy(bed.whole, bed.scratch / "copy")
    state: dict[str, Any] = torch.load(copy / "final.pt", weights_only=True)
    name = generator.choice([name for name, value in state.items() if value.dim() > 0])
    change(state, name)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    (copy / "final.pt").write_bytes(buffer.getvalue())
    (copy / "final.json").unlink(missing_ok=True)  # so that the weights themselves must give it away
    bed.refused(bed.recognize(copy), f"final.pt, {change.__name__} {name}", "final.pt")
