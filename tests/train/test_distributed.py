# SPDX-License-Identifier: Apache-2.0
"""Training with two real processes: collectives, equal steps, resume, and errors of one rank."""

import gc
import json
import logging
import math
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest import mock

import pytest
import torch
from small_models import row_of, small_batch, small_config, small_model
from tiny_corpus import TinyCorpus, bits, cut_back, metrics
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wenet_hs.compute import distributed, heartbeat
from wenet_hs.compute.distributed import TIMEOUT_VARIABLE, RankLost, World, join_process_group
from wenet_hs.data import features
from wenet_hs.data.batching import Batch
from wenet_hs.runs.record import read_run
from wenet_hs.train import speech, state, training
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.speech_steps import run_epoch, validate
from wenet_hs.train.start import TrainOptions
from wenet_hs.train.state import TrainState
from wenet_hs.tree.errors import ConfigError, WenetHsError

CPU = torch.device("cpu")
NO_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
PLAIN: dict[str, Any] = {
    "encoder_conf": NO_DROPOUT,
    "decoder_conf": NO_DROPOUT,
    "accum_grad": 2,
    "grad_clip": 1e9,
}
CHECKPOINTED = {"encoder_conf": {**NO_DROPOUT, "gradient_checkpointing": True}}
SPARSE = {"head": "hsoftmax", "head_conf": {"tree": "t", "sparse_grad": True}}
BIDIRECTIONAL = {"decoder": "bitransformer", "decoder_conf": {**NO_DROPOUT, "r_num_blocks": 1}}
CASES: dict[str, dict[str, Any]] = {
    "batch norm": {},
    "a cluster that only one early batch needs": {"head": "adaptive", "head_conf": {"tree": "t"}},
    "sparse rows": {**SPARSE, "model_conf": {"lsm_kind": "node"}},
    "only CTC, with gradient checkpointing": {**CHECKPOINTED, "model_conf": {"ctc_only_steps": 5}},
    "a right-to-left decoder of weight 0": BIDIRECTIONAL,
}
ROWS = small_batch([60, 41, 33, 52], [5, 2, 4, 6])
ROWS = replace(
    ROWS, targets=ROWS.targets.where(ROWS.targets < 0, torch.tensor([[6], [10], [10], [10]]))
)
"""Unit 6 has its own cluster, which only the first utterance needs."""
ALTERED = "config: rank 1 has another one than rank 0; start every rank with the same files, flags and versions"


def gradients_of_a_step(
    name: str, micro_batches: list[Batch], world: World
) -> tuple[dict[str, torch.Tensor], Any]:
    """The gradients of a step (sparse rows made dense), and its SpeechStats."""
    sections = {**PLAIN, **CASES[name]}
    config, model = small_config(**sections), small_model(seed=1, **sections)
    model.encoder.embed.requires_grad_(False)
    optimizer: Any = mock.Mock(
        param_groups=build_optimizer(model, config).param_groups
    )  # keeps the gradients
    state = TrainState(model, optimizer, CPU, world=world)
    (stats,) = run_epoch(state, micro_batches, config)
    found = {
        key: value.grad.to_dense()
        for key, value in model.named_parameters()
        if value.grad is not None
    }
    found |= {key: value for key, value in model.state_dict().items() if "running" in key}
    return found, stats


def check_step(name: str, world: World) -> None:
    """The gradients of two ranks are equal, and those of one process with the batches of both."""
    found, stats = gradients_of_a_step(
        name, [row_of(ROWS, world.rank), row_of(ROWS, 2 + world.rank)], world
    )
    expected, of_one = gradients_of_a_step(name, [row_of(ROWS, 0, 1), row_of(ROWS, 2, 3)], World())
    other = world.all_gather(found)[1 - world.rank]
    assert found.keys() == other.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], other[key]), f"{name}: {key}"
        torch.testing.assert_close(found[key], value, rtol=2e-5, atol=2e-6, msg=f"{name}: {key}")
    for fact in ("loss", "num_targets", "grad_norm"):
        assert getattr(stats, fact) == pytest.approx(getattr(of_one, fact), rel=1e-5), (
            f"{name}: {fact}"
        )


def check_collectives(world: World, folder: Path) -> None:
    values = torch.full((2,), 1.0 + world.rank, requires_grad=True)
    stacked = world.stack(values)
    ((stacked**2).sum() * (1 + world.rank)).backward()
    assert stacked.tolist() == [[1, 1], [2, 2]]
    # The loss of both together is 3 * (1 + 1 + 4 + 4); each rank gets 6 times its own values.
    assert values.grad is not None and values.grad.tolist() == [6.0 * (1 + world.rank)] * 2
    with world.first_before_others():
        time.sleep(0.2 * world.is_first)
        assert world.is_first or (folder / "turn").exists()
        (folder / "turn").touch()
    deadline = time.monotonic() + 60
    while world.rank and not (folder / "0 went on").exists():  # rank 0 does not wait for the others
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with world.first_before_others():
        pass
    (folder / f"{world.rank} went on").touch()
    world.barrier()
    with pytest.raises(ConfigError, match=f"^{ALTERED}$"):
        world.check_equal_across_ranks({"units.txt": "abc", "config": "x" if world.rank else "y"})
    assert world.sum([1.5, world.rank]) == [3.0, 1.0]
    assert [world.any(False), world.any(world.rank == 1)] == [False, True]
    assert world.all_gather("é".encode() * world.rank) == [b"", "é".encode()]


def check_skipped_step(world: World) -> None:
    """A feature of rank 1 is not finite: neither rank takes the step."""
    batch = small_batch([40, 30], [5, 3], seed=world.rank)
    features = batch.features.clone()
    features[0, 3, 5] = math.nan if world.rank else 0.0
    batch = replace(
        batch, features=features, keys=[f"rank {world.rank} {key}" for key in batch.keys]
    )
    model, config = small_model(seed=1), small_config()
    state = TrainState(model, build_optimizer(model, config), CPU, world=world)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (stats,) = run_epoch(state, [batch], config)
    assert (stats.suspects, state.progress.skipped_steps) == (("rank 1 utt0",), 1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def check_validation(world: World) -> None:
    batches = [small_batch([40, 33], [5, 2], seed=seed) for seed in range(3)]
    own, whole = (
        validate(small_model(), part, small_config(), CPU)
        for part in (batches[world.rank :: 2], batches)
    )
    assert own.over_ranks(world).per_target() == pytest.approx(whole.per_target(), rel=1e-6)


def check_rank(rank: int, folder: Path) -> None:
    """Collectives, steps, a skipped step, validation; then rank 1 ends in the middle of a step."""
    with join_process_group(CPU) as world:
        check_collectives(world, folder)
        for name in CASES:
            check_step(name, world)
        with mock.patch.object(state, "GATHER_SHARE", math.inf):
            check_step("sparse rows", world)
        check_skipped_step(world)
        check_validation(world)

    def die() -> None:
        with join_process_group(CPU) as world:
            world.sum([1.0])
            if rank:
                os._exit(9)
            world.sum([1.0])

    (folder / "died").write_text(ending(die))  # only rank 0 comes back from it


def count_wrappers_at_the_end(
    counts: list[int], destroy: Callable[[], None] = dist.destroy_process_group
) -> None:
    """Destroy the process group; append the number of DistributedDataParallel objects alive at that
    time.
    """
    counts.append(sum(isinstance(value, DistributedDataParallel) for value in gc.get_objects()))
    destroy()


def train_together(rank: int, folder: Path, corpus: TinyCorpus) -> None:
    """Trainings of both ranks in the same folder."""
    wrappers: list[int] = []
    dist.destroy_process_group = partial(count_wrappers_at_the_end, wrappers)
    reserved, reserve = [], features._reserve
    features._reserve = lambda path, *more: (reserved.append(path), reserve(path, *more))  # type: ignore[func-returns-value]

    def options(model_dir: Path, *overrides: str, **flags: Any) -> TrainOptions:
        return corpus.options(model_dir, "dataset_conf.cache_features=true", *overrides, **flags)

    speech.train(options(folder / "whole"))
    if rank == 0:
        cut_back(folder / "whole", folder / "cut", 1)
    speech.train(options(folder / "cut"))
    if rank == 0:  # two ranks, then one, then two
        cut_back(folder / "whole", folder / "alone", 1)
        os.environ["WORLD_SIZE"] = "1"
        speech.train(options(folder / "alone"))
        os.environ["WORLD_SIZE"] = "2"
        cut_back(folder / "alone", folder / "changed", 2)
    speech.train(options(folder / "changed"))
    save = training.save_checkpoint
    os.environ[TIMEOUT_VARIABLE] = "8"
    with mock.patch.object(
        training, "save_checkpoint", lambda *given: (time.sleep(10), save(*given))[1]
    ):
        slow = options(folder / "slow", "save_interval=100", "max_epoch=1")
        slow_end = ending(
            partial(speech.train, slow)
        )  # the first rank saves for longer than a collective may last
    os.environ[TIMEOUT_VARIABLE] = "60"
    altered = ("optim_conf.lr=0.1",) if rank else ()
    found: dict[str, Any] = {
        "slow": slow_end,
        "altered": ending(partial(speech.train, options(folder / "altered", *altered))),
    }
    config = folder / "nowhere.yaml" if rank else corpus.config
    found["missing"] = ending(partial(speech.train, options(folder / "missing", config=config)))
    (folder / f"found{rank}.json").write_text(
        json.dumps({**found, "wrappers": wrappers, "reserved": len(reserved)})
    )


def ending(run: Callable[[], object]) -> str:
    try:
        run()
    except WenetHsError as error:
        return f"{type(error).__name__}: {error}"
    except SystemExit as error:
        return f"exit {error.code}"
    return "done"


def run_rank(rank: int, port: int, work: Callable[..., None], folder: Path, *more: object) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        TIMEOUT_VARIABLE: "60",
    }
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.fsync = lambda descriptor: None
    distributed._GRACE_S = 0.0
    torch.set_num_threads(1)
    logging.basicConfig(filename=folder / f"log{rank}", level=logging.INFO, force=True)
    work(rank, folder, *more)


def run_pair(work: Callable[..., None], folder: Path, *more: object) -> list[int | None]:
    """The exit codes of two processes that do this work; None: it hangs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Threads of this process do not survive a fork; a server that has imported everything has none.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["wenet_hs.train.speech", "tiny_corpus", "torch._dynamo"])
    ranks = [
        server.Process(target=run_rank, args=(rank, store.port, work, folder, *more))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(
            250
        )  # the two processes take 10 s on two idle cores, and many times as long on busy ones
    exit_codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    return exit_codes


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: TinyCorpus) -> Path:
    """The folder of two ranks that have trained; only for slow tests."""
    folder = tmp_path_factory.mktemp("pair")
    assert run_pair(train_together, folder, tiny_corpus) == [0, 0]
    return folder


@pytest.mark.slow
def test_two_ranks_compute_what_one_process_does_and_a_dead_rank_is_reported(
    tmp_path: Path,
) -> None:
    assert run_pair(check_rank, tmp_path) == [0, 9], "rank 1 dies at the end; see its message above"
    line = (tmp_path / "died").read_text()
    assert line.startswith("RankLost: rank 0: another rank has died (")
    assert line.endswith("read its message, then run the same command again to resume")
    assert "\n" not in line


@pytest.mark.slow
def test_two_ranks_resume_with_the_same_bits_and_only_rank_0_writes_and_logs(pair: Path) -> None:
    assert bits(pair / "cut") == bits(pair / "whole")
    assert metrics(pair / "cut") == metrics(pair / "whole")
    assert bits(pair / "whole")["step"] == 4
    assert "resuming from" in (pair / "log0").read_text()
    lines = (pair / "log1").read_text().splitlines()
    assert all(":rank 1: " in line for line in lines), lines
    assert not list((pair / "whole").rglob("*.tmp"))


@pytest.mark.slow
def test_the_record_of_two_ranks_has_one_entry_per_start_with_its_number_of_ranks(
    pair: Path,
) -> None:
    whole = read_run(pair / "whole")
    cut = read_run(pair / "cut")
    changed = read_run(pair / "changed")
    assert whole is not None and cut is not None and changed is not None
    assert [(start.ranks, start.step) for start in whole.starts] == [(2, 0)]
    assert [start.ranks for start in cut.starts] == [2, 2]
    assert [start.ranks for start in changed.starts][-2:] == [1, 2], "one process, then two"
    assert whole.end is not None and whole.end.state == "trained"
    assert whole.progress is not None and whole.progress.step == 4


@pytest.mark.slow
def test_the_order_of_batches_is_that_of_one_process(pair: Path, trained: Path) -> None:
    one, whole, changed = (
        [record["num_targets"] for record in metrics(folder) if record["kind"] == "train"]
        for folder in (trained, pair / "whole", pair / "changed")
    )
    assert whole == [sum(one[0:2]), sum(one[2:4]), sum(one[4:6]), sum(one[6:8])]
    assert changed[:2] == [sum(one[0:2]), one[2]]
    assert changed[2] in [one[3] + filler for filler in one[:4]], (
        "the last batch, and one to fill the step"
    )
    assert changed[3:] == whole[2:]
    log = (pair / "log0").read_text()
    assert (
        "step-00000001: number of ranks was 2, is now 1: the order of batches is the same, batches per step"
        in log
    )
    assert "step-00000002: number of ranks was 1, is now 2: " in log


@pytest.mark.slow
def test_an_error_of_one_rank_ends_both_and_no_model_outlives_its_process_group(pair: Path) -> None:
    """Torch may otherwise wait for ever at the end of a training: gloo is closed while Python's
    lock is held.
    """
    results = [json.loads((pair / f"found{rank}.json").read_text()) for rank in range(2)]
    assert [one["reserved"] for one in results] == [10, 0], (
        "of five trainings, training and validation set"
    )
    assert sorted(one["altered"] for one in results) == [f"ConfigError: {ALTERED}", "exit 2"]
    assert [one["slow"] for one in results] == ["done", "done"]
    assert results[0]["missing"] == "exit 2"
    assert (
        results[1]["missing"].startswith("ConfigError: ")
        and "nowhere.yaml" in results[1]["missing"]
    )
    for one in results:
        assert len(one["wrappers"]) >= 4
        assert set(one["wrappers"]) == {0}


@pytest.mark.slow
def test_the_first_rank_may_take_any_time_as_long_as_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "1")
    store, turns = dist.HashStore(), list[int]()

    def take_turn(rank: int) -> None:
        with World(rank, 2, CPU, store).first_before_others():
            time.sleep(1.5 * (rank == 0))  # longer than the limit
            turns.append(rank)

    other = Thread(target=take_turn, args=(1,))
    other.start()
    take_turn(0)
    other.join(20)
    assert turns == [0, 1]
    lost = pytest.raises(
        RankLost, match=r"rank 1: another rank has not answered for 1 s; .* to resume"
    )
    with lost, World(1, 2, CPU, store).first_before_others():
        pytest.fail("the first rank was killed, and did not take its turn")


@pytest.mark.slow
def test_a_rank_that_shows_no_life_or_reports_an_error_ends_the_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    monkeypatch.setattr(heartbeat, "LOST_S", 0.4)
    for key, lasts in (
        ("beat/1", False),
        ("beat/1", True),
        ("error", True),
        ("store", True),
        ("left", False),
    ):
        store, lost = dist.HashStore(), Event()
        watch = heartbeat.Watch(0, 2, store, lost.set)
        with watch:
            for _ in range(30):
                store.add("beat/1", 1)
                time.sleep(0.02)
            assert not lost.is_set()
            if key == "store":
                watch._store = mock.Mock(
                    add=mock.Mock(side_effect=RuntimeError("the launcher has ended"))
                )
            elif key == "left":
                with heartbeat.Watch(1, 2, store, lost.set):
                    pass
                time.sleep(3 * heartbeat.LOST_S)
            if lasts:
                store.add(key, 1) if key != "store" else None
                assert lost.wait(10), key
        assert lost.is_set() == lasts


def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(device.index))
    for count, variables in (
        (4, {"LOCAL_RANK": "3"}),
        (4, {"SLURM_LOCALID": "2"}),
        (1, {"SLURM_LOCALID": "2"}),
        (4, {}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "device_count", lambda count=count: count)
            for name, value in variables.items():
                patch.setenv(name, value)
            distributed._device_of_rank(torch.device("cuda"))
    assert chosen == [3, 2, 0, 0]


def test_wrong_variables_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value, device, message in (
        (
            "WORLD_SIZE",
            "two",
            "cpu",
            "WORLD_SIZE=two: must be a whole number of at least 1; set it so, or unset it$",
        ),
        (
            "WORLD_SIZE",
            "2",
            "cpu",
            "WORLD_SIZE=2 without MASTER_ADDR and MASTER_PORT; start it with torchrun$",
        ),
        (
            "WORLD_SIZE",
            "2",
            "cuda:1",
            "--device cuda:1: is one GPU for several processes; use --device cuda",
        ),
        (
            "LOCAL_RANK",
            "99",
            "cuda",
            r"LOCAL_RANK=99: there are \d+ CUDA devices here; use --nproc_per_node",
        ),
    ):
        monkeypatch.setenv(name, value)
        with (
            pytest.raises(ConfigError, match=f"^{message}"),
            join_process_group(torch.device(device)),
        ):
            pass


@pytest.mark.slow
def test_a_missing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    line = rf"^rank 0: cannot reach all ranks through 127.0.0.1:{port} .rank 1 did not connect.; check the launch"
    with pytest.raises(WenetHsError, match=line), join_process_group(CPU):
        pass
