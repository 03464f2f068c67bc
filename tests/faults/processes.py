# SPDX-License-Identifier: Apache-2.0
"""Faults of running programs: SIGKILL and other signals at random instants, of a process or of one
rank.
"""

import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from harness import PATIENCE_S, Program, Tally, last_step, start_training
from model_folders import write_clip, write_model_folder
from tiny_corpus import TinyCorpus, outcome, write_tiny_corpus

from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.model.checkpoint import list_checkpoints, step_of, verification_error

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
MODES = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring")


def check_equal(tally: Tally, whole: Path, other: Path, where: str) -> None:
    """Two trainings ended with the same bits and metrics."""
    expected, found = outcome(whole), outcome(other)
    different = [name for name in expected if expected[name] != found[name]]
    tally.check(not different, f"{where}: differs in {', '.join(different)}")


def kill_training(folder: Path, tally: Tally, kills: int) -> str:
    """Real trainings killed at random and started again end with the same bits."""
    overrides = ("max_epoch=12", "save_interval=3", "num_workers=0")  # 48 steps
    corpus = write_tiny_corpus(folder / "corpus")
    start_training(corpus, folder / "whole", *overrides).finish()
    num_steps, killed = last_step(folder / "whole"), folder / "killed"
    at = []
    for instant in sorted(tally.generator.uniform(0, num_steps) for _ in range(kills)):
        program, before = start_training(corpus, killed, *overrides), last_step(killed)
        wanted = max(int(instant), before + 1)
        # If the step was reached before this start, the kill comes somewhere in the start.
        patience_s = PATIENCE_S if before < int(instant) else tally.generator.uniform(0.2, 4.0)
        program.wait_until(lambda: last_step(killed) >= wanted, patience_s)  # noqa: B023
        time.sleep((instant - int(instant)) * 0.1)  # a step with its checkpoint takes about as long
        tally.check(
            program.process.poll() is None,
            f"it ended before it was killed: {program.log.read_text()[-300:]}",
        )
        program.process.kill()
        program.process.wait()
        at.append(last_step(killed) or "start")
    start_training(corpus, killed, *overrides).finish()
    check_equal(tally, folder / "whole", killed, f"after {kills} kills")
    tally.check(
        not list((killed / "checkpoints").glob("*.bad")), "a kill left a damaged checkpoint"
    )
    return f"{num_steps} steps | {kills} kills (after step {', '.join(map(str, at))}) | {kills} restarts"


def kill_ranks(folder: Path, tally: Tally, runs: int, kills: int = 2, epochs: int = 8) -> str:
    """Kill a rank: torchrun starts again and the result is the same bits."""
    overrides, num_steps = (f"max_epoch={epochs}", "save_interval=2", "num_workers=0"), 2 * epochs
    corpus = write_tiny_corpus(folder / "corpus")
    start_training(corpus, folder / "whole", *overrides, ranks=2).finish()
    killed: Counter[int] = Counter()
    for number in range(runs):
        model_dir = folder / f"run-{number}"
        program = start_training(corpus, model_dir, *overrides, ranks=2, max_restarts=kills)
        steps = sorted(tally.generator.randrange(1, num_steps) for _ in range(kills))
        for num_restarts, step in enumerate(steps):
            rank = tally.generator.randrange(2)

            def is_reached(
                step: int = step, rank: int = rank, num_restarts: int = num_restarts
            ) -> bool:
                has_started = program.log.read_text().count("--train_data: all") > num_restarts  # noqa: B023
                is_late = last_step(model_dir) >= step  # noqa: B023
                return has_started and is_late and rank in program.rank_processes()  # noqa: B023

            if not program.wait_until(is_reached):
                break
            with suppress(KeyError, ProcessLookupError):
                os.kill(program.rank_processes()[rank], signal.SIGKILL)
                killed[rank] += 1
        if tally.check(
            program.wait() == 0, f"run {number} did not end: {program.log.read_text()[-300:]}"
        ):
            check_equal(tally, folder / "whole", model_dir, f"run {number}")
    times = f"rank 0 killed {killed[0]} times, rank 1 {killed[1]} times"
    return f"2 ranks | {num_steps} steps | {runs} runs | {times}"


def signal_training(folder: Path, tally: Tally, signals: int, epochs: int = 100) -> str:
    """A signal ends a training after its step, with a checkpoint of that step."""
    overrides = (f"max_epoch={epochs}", "save_interval=7", "keep_checkpoints=2", "num_workers=0")
    corpus = write_tiny_corpus(folder / "corpus")
    start_training(corpus, folder / "whole", *overrides).finish()
    num_steps, ends = last_step(folder / "whole"), Counter[str]()
    for number in range(signals):
        instant = num_steps * (number + tally.generator.random()) / (signals + 1)
        ends[_send_signal(corpus, folder / "signalled", overrides, instant, tally)] += 1
    start_training(corpus, folder / "signalled", *overrides).finish()
    check_equal(tally, folder / "whole", folder / "signalled", f"after {signals} signals")
    kept = [
        [path.name for path in list_checkpoints(folder / name / "checkpoints")]
        for name in ("whole", "signalled")
    ]
    tally.check(kept[0] == kept[1], f"kept checkpoints differ: {kept}")
    return f"{num_steps} steps | {signals} signals | {', '.join(f'{count} {end}' for end, count in ends.items())}"


def _send_signal(
    corpus: TinyCorpus, model_dir: Path, overrides: tuple[str, ...], instant: float, tally: Tally
) -> str:
    """Start, signal at an instant in steps, and check what is left.

    Returns how the training ended.
    """
    generator = tally.generator
    number, to_group, at_start = (
        generator.choice(SIGNALS),
        generator.random() < 0.5,
        generator.random() < 0.1,
    )
    wanted = 0 if at_start else max(int(instant), last_step(model_dir) + 1)
    (model_dir / "train.log").unlink(missing_ok=True)
    program = start_training(
        corpus, model_dir, *overrides, f"num_workers={generator.choice((0, 1))}"
    )
    program.wait_until(lambda: last_step(model_dir) >= wanted)
    time.sleep(
        generator.uniform(0, 2 if at_start else 0.05)
    )  # somewhere in a step, a validation or a checkpoint
    if program.process.poll() is None:
        os.killpg(program.process.pid, number) if to_group else program.process.send_signal(number)
    code, log = program.wait(), program.log.read_text()
    where = f"{number.name} at step {wanted}{' to the group' if to_group else ''}: exit {code}, {log[-300:]!r}"
    if code == 0:
        return "finished before the signal"
    if "stopped by" not in log:  # its handler was not installed yet, and it had done nothing
        early = code in (-number, 128 + number) or (
            number == signal.SIGINT and "KeyboardInterrupt" in log
        )
        tally.check(early, f"{where}: neither stopped in good order nor ended by the signal")
        return "ended before the first step"
    newest = list_checkpoints(model_dir / "checkpoints")[-1]
    line = f"{newest}: stopped by {number.name} after step {step_of(newest)}, which is saved; run the same"
    tally.check(
        code == 128 + number and line in log and "Traceback" not in log, f"{where}: not as expected"
    )
    tally.check(
        verification_error(newest) is None and step_of(newest) == last_step(model_dir),
        f"{where}: {newest.name}",
    )
    return "stopped in good order"


def kill_recognition(
    folder: Path, tally: Tally, kills: int, ranks: int = 1, batches: int = 60
) -> str:
    """A killed recognition resumes, and its results are the same bytes.

    No saved batch is decoded again.
    """
    write_model_folder(folder / "model", encoder_conf={"num_blocks": 2})
    rng = random.Random(0)
    clips = [
        write_clip(folder / f"clips/u{i}.wav", rng.uniform(0.5, 3.0), seed=i)
        for i in range(4 * batches)
    ]
    write_data_list(folder / "data.list", clips)
    _start_recognition(folder, "whole", ranks).finish()
    whole, num_killed, num_lists, num_saved = _read_results(folder / "whole"), 0, 0, 0
    while num_killed < kills:
        name, saved = f"killed-{num_lists}", 0
        result_dir = folder / name
        num_lists += 1
        for wanted in sorted(
            tally.generator.sample(range(batches - 3), min(10, kills - num_killed))
        ):
            program = _start_recognition(folder, name, ranks)
            program.wait_until(lambda wanted=wanted: _count_saved(result_dir) >= wanted)  # type: ignore[misc] # noqa: B023
            time.sleep(tally.generator.uniform(0, 0.02))
            if ranks > 1:
                program.wait_until(lambda: bool(program.rank_processes()))  # noqa: B023
            if program.process.poll() is None:
                victims = sorted(program.rank_processes().values()) or [program.process.pid]
                with suppress(ProcessLookupError):
                    os.kill(tally.generator.choice(victims), signal.SIGKILL)
            num_killed += program.wait() != 0
            saved = max(saved, _count_saved(result_dir))
        _start_recognition(folder, name, ranks).finish()
        found = _read_results(result_dir)
        tally.check(
            found == whole,
            f"{name}: other bytes in {[key for key in whole if found[key] != whole[key]]}",
        )
        tally.check(not (result_dir / "partial").exists(), f"{name}: partial results are left")
        log = (folder / f"{name}.log").read_text("utf-8")
        restored = max(
            map(int, re.findall(r"(\d+) of \d+ batches are decoded already", log)), default=0
        )
        tally.check(
            saved <= restored, f"{name}: {saved} batches were saved, {restored} were reused"
        )
        num_saved += saved
    label = f"{ranks} ranks | " if ranks > 1 else ""
    return (
        f"{label}{4 * batches} clips in {batches} batches | {num_killed} kills in {num_lists} lists | "
        f"{num_saved} batches kept over the last kills"
    )


def _start_recognition(folder: Path, name: str, ranks: int) -> Program:
    line = [
        "--model_dir",
        folder / "model",
        "--test_data",
        folder / "data.list",
        "--device",
        "cpu",
        "--modes",
        *MODES,
    ]
    line += ["--result_dir", folder / name, "--batch_size", "4"]
    return Program(folder / f"{name}.log", "recognize", *line, ranks=ranks)


def _count_saved(result_dir: Path) -> int:
    """Complete lines in the files of partial results."""
    with suppress(FileNotFoundError):  # it has just finished
        return sum(
            file.read_bytes().count(b"\n")
            for file in (result_dir / "partial").glob("batches-*.jsonl")
        )
    return 0


def _read_results(result_dir: Path) -> dict[str, bytes]:
    names = [f"{mode}/{name}" for mode in MODES for name in ("text", "hyps.jsonl")]
    return {name: (result_dir / name).read_bytes() for name in names}
