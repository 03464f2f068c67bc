# SPDX-License-Identifier: Apache-2.0
"""Runs two commits of the package on this machine and compares their results: trees, weights, texts, scores.

    python benchmarks/compare_commits.py --base b912059 --work ../compare --ucla /data/ucla

Each side runs the same commands in a folder of its own, one core each, side by side. The base side is checked out with
`git worktree` and its results are kept in --work for the next comparison. Compared are the data lists, units, trees of
every kind, feature statistics, weights after a short training with both heads, the texts of all five decoding modes and
score.json. Exit code 1 and one line per difference if any result differs.
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
MODES = ("attention", "ctc_greedy_search", "ctc_prefix_beam_search", "attention_rescoring", "joint")
KINDS = ("huffman", "fano", "balanced", "alphabetical", "random", "brown", "embedding", "articulatory", "classes")
HEADS = ("softmax", "hsoftmax")


class Side:
    """One commit's package, run in one folder."""

    def __init__(self, package: Path, folder: Path, *, quick: bool) -> None:
        self.package, self.folder, self.quick = package, folder, quick
        self.env = os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        folder.mkdir(parents=True, exist_ok=True)
        self.log = (folder / "log.txt").open("w", encoding="utf-8")

    def call(self, *arguments: object) -> None:
        """Runs one `wenet-hs` command in the folder; raises with the end of the log if it fails."""
        command = [sys.executable, "-m", "wenet_hs.bin.main", *map(str, arguments)]
        print("$", *command[3:], file=self.log, flush=True)
        done = subprocess.run(command, cwd=self.folder, env=self.env, stdout=self.log, stderr=self.log, check=False)
        if done.returncode:
            tail = "\n".join((self.folder / "log.txt").read_text("utf-8").splitlines()[-15:])
            raise SystemExit(f"{self.package}: wenet-hs {' '.join(map(str, arguments[:2]))} failed:\n{tail}")

    def run(self, ucla: Path | None, speech: Path | None) -> None:
        """All commands of one side."""
        if speech is None:
            sentences = ROOT / "examples/mini/s0/sentences"
            langs, hours = "cs es it ky tr uk", 0.4
            self.call("prepare", "synthetic", "--langs", langs, "--sentences", sentences, "--hours", hours,
                      "--test_sentences", 10, "--out", "mini", "--num_workers", 1)  # fmt: skip
        else:
            shutil.copytree(speech, self.folder / "mini", dirs_exist_ok=True)
        self._system("mini", "conf/mini.yaml", "char", "cer", 30 if self.quick else 300)
        if ucla is not None:
            self.call("prepare", "ucla", "--corpus", ucla, "--out", "ucla", "--test_langs", "bin sbc mal")
            self._system("ucla", "conf/ucla.yaml", "phone", "per", 20 if self.quick else 200)
        (self.folder / "complete").touch()

    def _system(self, name: str, config: str, unit: str, metric: str, steps: int) -> None:
        data, train = Path(name), Path(name) / "train/data.list"
        test = data / "compared.list"
        lines = (self.folder / data / "test/data.list").read_text("utf-8").splitlines(keepends=True)
        (self.folder / test).write_text("".join(lines[:: max(1, len(lines) // 60)]), "utf-8")
        self.call("units", "--data_list", train, "--kind", unit, "--out", data / "units.txt")
        for kind in KINDS:
            if kind == "articulatory" and unit != "phone":
                continue
            self.call("tree", "build", "--kind", kind, "--tokenizer", unit, "--units", data / "units.txt",
                      "--data_list", train, "--out", data / f"tree-{kind}.json")  # fmt: skip
        self.call("cmvn", "--data_list", train, "--config", self.package / config, "--out", data / "global_cmvn")
        settings = (f"tokenizer_conf.symbol_table_path={data}/units.txt", f"cmvn_conf.cmvn_file={data}/global_cmvn",
                    f"model_conf.ctc_only_steps={steps // 3}", f"scheduler_conf.total_steps={steps}", "num_workers=0",
                    "scheduler_conf.warmup_steps=10", f"save_interval={steps // 2}", "log_interval=10",
                    "dataset_conf.batch_conf.max_frames_in_batch=1500")  # fmt: skip
        for head in HEADS:
            folder = data / head
            tree = () if head == "softmax" else (f"head_conf.tree={data}/tree-huffman.json",)
            self.call("train", "--config", self.package / config, "--train_data", train, "--cv_data",
                      data / "dev/data.list", "--model_dir", folder, "--override_config", f"head={head}", *tree,
                      *settings)  # fmt: skip
            self.call("average", "--model_dir", folder, "--num", 2)
            self.call("recognize", "--model_dir", folder, "--test_data", test, "--result_dir", folder / "test",
                      "--modes", *MODES)  # fmt: skip
            for mode in MODES:
                self.call("score", "--metric", metric, "--by", "lang", "--ref", data / "test/text", "--data_list", test,
                          "--hyp", folder / "test" / mode / "text", "--name", mode,
                          "--json", folder / "test" / mode / "score.json")  # fmt: skip


def results(folder: Path) -> Iterator[Path]:
    """The results of a side that are compared, as paths relative to its folder."""
    patterns = ("*/*/data.list", "*/units.txt", "*/tree-*.json", "*/global_cmvn", "*/*/final.pt",
                "*/*/test/*/text", "*/*/test/*/hyps.jsonl", "*/*/test/*/score.json")  # fmt: skip
    for pattern in patterns:
        yield from sorted(path.relative_to(folder) for path in folder.glob(pattern))


def difference(base: Path, new: Path) -> str | None:
    """How two results differ in a few words; None if they are equal."""
    if not new.exists():
        return "missing"
    if base.suffix == ".pt":
        old_state, new_state = (torch.load(path, weights_only=True) for path in (base, new))
        if old_state.keys() != new_state.keys():
            return f"other parameters: {sorted(old_state.keys() ^ new_state.keys())[:4]}"
        unequal = [name for name in old_state if not torch.equal(old_state[name], new_state[name])]
        return f"{len(unequal)} of {len(old_state)} tensors differ, e.g. {unequal[0]}" if unequal else None
    if base.suffix == ".json":
        old_json, new_json = (_without_paths(json.loads(path.read_text("utf-8"))) for path in (base, new))
        return None if old_json == new_json else "other JSON"
    return None if _relative_text(base) == _relative_text(new) else "other text"


def _relative_text(path: Path) -> str:
    """The text of a result with the absolute path of its side's folder taken out: data lists name their audio so."""
    side = next(parent for parent in path.parents if (parent / "log.txt").exists())
    return path.read_text("utf-8").replace(str(side), "")


def _without_paths(value: Any) -> Any:
    """score.json names the commit that wrote it; that is the one difference expected."""
    return (
        {key: item for key, item in value.items() if key not in ("git", "created")}
        if isinstance(value, dict)
        else value
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="commit to compare with")
    parser.add_argument("--work", type=Path, required=True, help="folder for both sides' results")
    parser.add_argument("--ucla", type=Path, help="UCLA Phonetic Corpus; without it only mini is compared")
    parser.add_argument("--speech", type=Path, help="prepared mini data to use instead of simulating speech again")
    parser.add_argument("--quick", action="store_true", help="30 and 20 steps instead of 300 and 200")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout of the new side (default: this one)")
    parser.add_argument("--name", default="new", help="name of the new side's folder in --work")
    args = parser.parse_args()
    suffix = "-quick" if args.quick else ""
    work = args.work.resolve()  # git runs in another folder
    checkout, base = (work / name.replace("/", "-") for name in (f"checkout-{args.base}", args.base + suffix))
    new = work / args.name
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(new, ignore_errors=True)
    corpora = args.ucla and args.ucla.resolve(), args.speech and args.speech.resolve()

    def run_base() -> None:
        with (work / f"{checkout.name}.lock").open("w") as lock:  # another comparison may be computing it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not checkout.exists():
                subprocess.run(["git", "worktree", "add", "--detach", checkout, args.base], cwd=ROOT, check=True)
            if not (base / "complete").exists():
                shutil.rmtree(base, ignore_errors=True)
                Side(checkout, base, quick=args.quick).run(*corpora)

    with ThreadPoolExecutor(2) as pool:
        of_base = pool.submit(run_base)
        Side(args.package.resolve(), new, quick=args.quick).run(*corpora)
        of_base.result()
    paths = list(results(base))
    differences = [(path, text) for path in paths if (text := difference(base / path, new / path))]
    for path, text in differences:
        print(f"{path}: {text}")
    print(f"{len(paths) - len(differences)} of {len(paths)} results are equal ({args.base} and {args.package})")
    sys.exit(1 if differences or not paths else 0)


if __name__ == "__main__":
    main()
