# SPDX-License-Identifier: Apache-2.0
"""When a plan is written, kept, made again or refused, and what its files contain."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from model_folders import write_model_folder
from recipe_projects import write_description, write_stats

from wenet_hs.base.files import file_sha256
from wenet_hs.config.load import load_config
from wenet_hs.recipes import plan_files
from wenet_hs.recipes.conf_files import conf_file
from wenet_hs.recipes.expected_time import ExpectedTime, PartTime
from wenet_hs.recipes.plan import PlanOptions
from wenet_hs.recipes.plan_files import describe_plan, update_plan
from wenet_hs.tree.errors import ConfigError, DataError

OWN = conf_file("own.yaml")
SIZE_LINE = "0.25 hours of training speech: size tiny, 3000 + 3000 steps"


@dataclass
class Experiment:
    """A project whose plan is made again and again."""

    folder: Path
    measured: list[int] = field(default_factory=list)
    """The steps of the first part of each measurement."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def exp(self) -> Path:
        return self.folder / "exp"

    @property
    def plan(self) -> Path:
        return self.exp / "plan.yaml"

    @property
    def first_part(self) -> Path:
        return self.exp / "first_part.yaml"

    def options(self, **changed: Any) -> PlanOptions:
        values = {"config": OWN, "size": "auto", "data": self.data, "out": self.exp, **changed}
        return PlanOptions(**values)

    def update(self, **changed: Any) -> list[str]:
        return update_plan(self.options(**changed))

    def refusal(self, **changed: Any) -> str:
        with pytest.raises((ConfigError, DataError)) as caught:
            self.update(**changed)
        line = str(caught.value)
        assert "\n" not in line
        return line

    def begin_training(self) -> None:
        (self.exp / "softmax").mkdir()
        (self.exp / "softmax" / "train.yaml").write_text("")

    def edit(self, old: str = "grad_clip: 5.0", new: str = "grad_clip: 7.0") -> None:
        text = self.plan.read_text("utf-8")
        assert old in text
        self.plan.write_text(text.replace(old, new), "utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """A project with 0.25 hours of speech, on a machine without a GPU where nothing takes time."""
    experiment = Experiment(folder=tmp_path)
    write_stats(experiment.data, 0.25)

    def measure(*_: object, first_steps: int, num_threads: int, **__: object) -> ExpectedTime:
        experiment.measured.append(first_steps)
        return ExpectedTime(
            parts=(PartTime(steps=10, seconds=len(experiment.measured) * 60),),
            outputs=None,
            checkpoint_gigabytes=0.5,
            has_time_limit=False,
            num_clips=2,
            machine=f"M, threads: {num_threads}",
        )

    monkeypatch.setattr(plan_files, "measure_expected_time", measure)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return experiment


# ---- written


def test_the_first_plan_is_written_with_its_record(project: Experiment) -> None:
    lines = project.update(unit="char", overrides=["seed=3"], num_threads=2)
    assert lines[0] == SIZE_LINE
    assert lines[1].startswith("expected time of a training: 1.0 min for 10 steps (measured")
    assert "M, threads: 2" in lines[1]
    assert lines[2] == f"{project.plan}: the config of the trainings, to read and to edit"
    record = json.loads((project.exp / "plan.json").read_text("utf-8"))
    assert record == {
        "format": "wenet_hs.plan/1",
        "inputs": {
            "data": "../data",
            "hours": 0.25,
            "size": "auto",
            "base": None,
            "encoder": None,
            "base_steps": None,
            "config": str(OWN),
            "config_sha256": file_sha256(OWN),
            "unit": "char",
            "overrides": ["seed=3"],
        },
        "decisions": {"config": str(OWN), "size": "tiny", "first_steps": 3000, "steps": 3000},
        "expected_time": lines[1],
        "plan_sha256": file_sha256(project.plan),
    }
    config = load_config(project.plan)
    assert (config.seed, config.scheduler_conf.total_steps, config.save_interval) == (3, 3000, 250)


def test_the_first_part_is_the_plan_with_ctc_only_and_its_steps(project: Experiment) -> None:
    project.update(base_steps=500)
    changes = ["model_conf.ctc_only_steps=500", "scheduler_conf.total_steps=500"]
    assert load_config(project.first_part) == load_config(project.plan, changes)


def test_there_is_no_first_part_without_steps(project: Experiment) -> None:
    project.update()
    assert project.first_part.is_file()
    project.update(base_steps=0)
    assert not project.first_part.exists(), "it was of the plan before"
    assert project.measured == [3000, 0]


def test_only_the_time_is_told_and_nothing_written(project: Experiment) -> None:
    lines = describe_plan(project.options())
    assert lines[0] == SIZE_LINE
    assert lines[1].startswith("expected time of a training: ")
    assert len(lines) == 2
    assert not project.exp.exists()


def test_options_that_are_wrong_write_nothing(project: Experiment) -> None:
    assert "--size huge: must be tiny" in project.refusal(size="huge")
    assert "all in the warm-up" in project.refusal(base_steps=20)
    assert not project.plan.exists() and not (project.exp / "plan.json").exists()


# ---- kept


def test_the_same_inputs_keep_the_plan(project: Experiment) -> None:
    project.update()
    before = project.plan.read_bytes()
    assert project.update() == [f"{project.plan}: kept as it was made"]
    assert project.plan.read_bytes() == before
    project.begin_training()
    assert project.update() == [f"{project.plan}: kept as it was made"]
    assert len(project.measured) == 1


def test_an_edited_plan_is_kept_and_its_first_part_follows(project: Experiment) -> None:
    project.update()
    project.edit()
    assert project.update() == [f"{project.plan}: kept as it was edited"]
    assert load_config(project.first_part).grad_clip == 7.0
    assert load_config(project.first_part).scheduler_conf.total_steps == 3000


def test_the_first_part_of_an_edited_head_is_a_softmax(project: Experiment) -> None:
    project.update()
    project.edit("\nhead: softmax\n", "\nhead: hsoftmax\n")
    project.edit("head_conf: {}\n\n# What a unit", "head_conf: {tree: t.json}\n\n# What a unit")
    project.update()
    assert load_config(project.plan).head == "hsoftmax"
    assert load_config(project.first_part).head == "softmax"


def test_an_edited_plan_with_a_fault_names_its_line(project: Experiment) -> None:
    project.update()
    project.edit("grad_clip: 5.0", "grad_clip: much")
    line = project.refusal()
    assert line.startswith(f"{project.plan}:")
    assert line.endswith(": grad_clip: must be a valid number, got 'much'")


def test_an_edited_warmup_that_is_longer_than_the_first_part(project: Experiment) -> None:
    project.update(base_steps=500)
    project.edit("  warmup_steps: 400", "  warmup_steps: 500")
    assert "--base_steps 500: all in the warm-up of 500 steps" in project.refusal(base_steps=500)


def test_paths_may_be_written_in_another_way(
    project: Experiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = write_description(project.folder / "e", "hubert")
    project.update(encoder=encoder)
    project.begin_training()
    monkeypatch.chdir(project.folder)
    relative = {"encoder": Path("e"), "out": Path("exp"), "data": Path("data")}
    kept = "exp/plan.yaml: kept as it was made"
    assert project.update(**relative) == [f"{kept}, with the new paths of its files"]
    assert project.update(**relative) == [kept]
    conf = load_config(project.plan).encoder_conf
    assert (conf.path, conf.cache) == ("e", "data/encoder_outputs")
    assert len(project.measured) == 1


def test_a_project_that_was_moved_keeps_its_plan(project: Experiment, tmp_path: Path) -> None:
    write_description(project.folder / "old" / "e", "hubert")
    write_stats(project.folder / "old" / "data", 0.25)

    def update(folder: Path) -> list[str]:
        return project.update(encoder=folder / "e", out=folder / "exp", data=folder / "data")

    update(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    new = tmp_path / "new"
    plan = new / "exp" / "plan.yaml"
    assert update(new) == [f"{plan}: kept as it was made, with the new paths of its files"]
    assert load_config(plan).encoder_conf.path == str(new / "e")
    plan.write_text(plan.read_text("utf-8") + "# edited\n", "utf-8")
    new.rename(tmp_path / "newer")
    plan = tmp_path / "newer" / "exp" / "plan.yaml"
    kept, *stale = update(tmp_path / "newer")
    assert kept == f"{plan}: kept as it was edited"
    newer = tmp_path / "newer"
    of_path = f"encoder_conf.path is '{new}/e', but of this project '{newer}/e'; correct it there"
    assert f"{plan}: {of_path}" in stale
    assert load_config(plan).encoder_conf.path == str(new / "e"), "the paths are those of the user"


def test_a_config_at_another_path_with_the_same_content_is_the_same(
    project: Experiment,
    tmp_path: Path,
) -> None:
    configs = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in configs:
        path.write_bytes(OWN.read_bytes())
    project.update(config=configs[0])
    assert project.update(config=configs[1]) == [f"{project.plan}: kept as it was made"]


def test_other_settings_are_left_to_trainings_that_have_begun(project: Experiment) -> None:
    project.update()
    project.begin_training()
    assert project.update(overrides=["max_epoch=5"]) == [
        f"{project.plan}: kept as it was made",
        f"{project.plan}: max_epoch is 100000, but --override gives 5, which counts",
        f"{project.plan}: since it was made: --override_config max_epoch=5",
    ]


def test_settings_of_an_edited_plan_that_the_options_replace_are_named(project: Experiment) -> None:
    overrides = ["grad_clip=4.0", "head_conf.bias=true"]
    project.update(overrides=overrides)
    text = project.plan.read_text("utf-8")
    assert "grad_clip: 4.0" in text
    project.plan.write_text(text.replace("grad_clip: 4.0", "grad_clip: 9.0"), "utf-8")
    assert project.update(overrides=overrides) == [
        f"{project.plan}: kept as it was edited",
        f"{project.plan}: grad_clip is 9.0, but --override gives 4.0, which counts",
    ]


def test_other_lists_with_equal_hours_are_another_input(
    project: Experiment, tmp_path: Path
) -> None:
    project.update()
    write_stats(tmp_path / "others", 0.25)
    again, *_ = project.update(data=tmp_path / "others")
    assert again.startswith(f"{project.plan}: made again, for --data ")
    project.begin_training()
    assert "was made with --data" in project.refusal()


def test_a_plan_with_a_wrong_option_leaves_no_folder(project: Experiment) -> None:
    assert "--size huge" in project.refusal(size="huge")
    assert not project.exp.exists()


def test_a_plan_without_a_first_part_removes_that_of_an_earlier_plan(project: Experiment) -> None:
    project.update()
    project.begin_training()
    project.plan.unlink()
    assert project.first_part.is_file()
    project.update(base_steps=0)
    assert not project.first_part.exists()


def test_a_config_that_the_user_named_is_not_the_choice_for_the_encoder(
    project: Experiment, tmp_path: Path
) -> None:
    write_description(tmp_path / "e", "whisper")
    named = tmp_path / "finetune_wav2vec2.yaml"
    named.write_bytes(conf_file("finetune_wav2vec2.yaml").read_bytes())
    project.update(encoder=tmp_path / "e", config=named)
    project.update(encoder=tmp_path / "e")
    record = json.loads((project.exp / "plan.json").read_text("utf-8"))
    assert Path(record["decisions"]["config"]).name == "finetune_whisper.yaml"


# ---- made again


def test_a_first_part_that_goes_on_has_the_other_settings(project: Experiment) -> None:
    project.update()
    project.begin_training()
    plan = project.plan.read_bytes()
    project.update(overrides=["log_interval=3", "scheduler_conf.total_steps=900"])
    first_part = load_config(project.first_part)
    assert (first_part.log_interval, first_part.scheduler_conf.total_steps) == (3, 3000)
    assert project.plan.read_bytes() == plan
    project.update(overrides=["head_conf.bias=true"])  # of a head that the first part does not have
    assert load_config(project.first_part).log_interval == load_config(project.plan).log_interval


def test_other_inputs_make_the_plan_again(project: Experiment) -> None:
    project.update()
    lines = project.update(size="small")
    assert lines[0] == f"{project.plan}: made again, for --size small instead of --size auto"
    assert lines[1] == "0.25 hours of training speech: size small, 6000 + 4800 steps"
    assert load_config(project.plan).encoder_conf.output_size == 144
    assert project.update(size="small") == [f"{project.plan}: kept as it was made"]
    write_stats(project.data, 2.0)
    lines = project.update(size="small")
    again = "made again, for 2.0 hours of training speech instead of 0.25 hours"
    assert lines[0] == f"{project.plan}: {again}"


def test_a_removed_plan_is_made_again(project: Experiment) -> None:
    project.update()
    project.begin_training()
    project.plan.unlink()
    assert project.update(size="small")[0].startswith("0.25 hours of training speech: size small")


def test_trainings_without_a_plan_get_one(project: Experiment) -> None:
    project.exp.mkdir()
    project.begin_training()
    assert project.update()[0] == SIZE_LINE


def test_a_plan_whose_writing_was_interrupted_is_made_again(project: Experiment) -> None:
    project.update()
    project.plan.unlink()  # it is written after its record
    assert project.update()[0] == SIZE_LINE
    assert project.update() == [f"{project.plan}: kept as it was made"]


# ---- refused


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ({}, {"size": "tiny"}, "--size tiny: PLAN was made with --size auto; TO_DO --size auto"),
        (
            {},
            {"base_steps": 500},
            "--base_steps 500: PLAN was made with no --base_steps; give another --exp, remove "
            "PLAN to plan again, or leave out --base_steps",
        ),
        (
            {"base_steps": 500},
            {},
            "no --base_steps: PLAN was made with --base_steps 500; TO_DO --base_steps 500",
        ),
        (
            {"unit": "char"},
            {"unit": "phone"},
            "--unit phone: PLAN was made with --unit char; TO_DO --unit char",
        ),
    ],
)
@pytest.mark.parametrize("is_edited", [True, False])
def test_a_plan_that_is_used_is_not_replaced(
    before: dict[str, Any],
    now: dict[str, Any],
    line: str,
    is_edited: bool,
    project: Experiment,
) -> None:
    project.update(**before)
    if is_edited:
        project.edit()
    else:
        project.begin_training()
    content = project.plan.read_bytes()
    to_do = "give another --exp, remove PLAN to plan again, or repeat"
    expected = line.replace("TO_DO", to_do).replace("PLAN", str(project.plan))
    assert project.refusal(**now) == expected
    assert project.plan.read_bytes() == content
    assert len(project.measured) == 1


def test_hours_configs_and_folders_that_have_changed(project: Experiment, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_bytes(OWN.read_bytes())
    project.update(config=config)
    project.begin_training()
    config.write_text(config.read_text("utf-8") + "\n# changed\n", "utf-8")
    now = file_sha256(config)
    assert project.update(config=config) == [
        f"{project.plan}: kept as it was made",
        f"{project.plan}: since it was made: --config {config} with SHA-256 {now[:12]}",
    ]
    other = tmp_path / "other.yaml"
    other.write_bytes(config.read_bytes())
    line = project.refusal(config=other)
    assert line.startswith(f"--config {other}: {project.plan} was made with --config {config}; ")
    assert line.endswith(f"to plan again, or repeat --config {config}")
    write_stats(project.data, 0.3)
    line = project.refusal(config=config)
    assert line.startswith(f"0.3 hours of training speech: {project.plan} was made with 0.25 hours")
    assert line.endswith("to plan again, or restore the lists")


def test_another_base_is_named_as_it_is_seen_from_here(project: Experiment) -> None:
    bases = [write_model_folder(project.folder / name) for name in ("one", "two")]
    project.update(base=bases[0])
    project.begin_training()
    line = project.refusal(base=bases[1])
    expected = f"--base {bases[1]}: {project.plan} was made with --base {bases[0]}; give another"
    assert line.startswith(expected)


def test_other_settings_do_not_replace_an_edited_plan(project: Experiment) -> None:
    project.update()
    project.edit()
    expected = f"--override_config seed=3: {project.plan} was made with no --override_config; "
    assert project.refusal(overrides=["seed=3"]).startswith(expected)


def test_a_plan_of_unknown_inputs_is_not_replaced(project: Experiment) -> None:
    project.update()
    record = project.exp / "plan.json"
    record.unlink()
    to_do = f"give another --exp, or remove {project.plan} to plan again"
    unknown = f"{project.plan}: its inputs are unknown, as plan.json is missing; {to_do}"
    assert project.refusal() == unknown


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "damaged (Expecting property name"),
        ("[]", "damaged (content: "),
        ('{"format": "wenet_hs.plan/1"}', "damaged (inputs: Field required)"),
        ('{"format": "wenet_hs.plan/2"}', "has the format wenet_hs.plan/2 of a newer version; "),
        ('{"format": "other/2"}', "damaged ("),
    ],
)
def test_a_record_that_cannot_be_read(content: str, fault: str, project: Experiment) -> None:
    project.update()
    (project.exp / "plan.json").write_text(content)
    line = project.refusal()
    assert line.startswith(f"{project.exp}/plan.json: {fault}")
    assert line.endswith(f"remove {project.plan} to plan again")


# ---- several machines and processes


def test_another_machine_keeps_the_config_of_an_encoder(
    project: Experiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = write_description(project.folder / "e", "hubert")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    project.update(encoder=encoder)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert project.update(encoder=encoder) == [f"{project.plan}: kept as it was made"]
    assert "finetune_wav2vec2.yaml" in describe_plan(project.options(encoder=encoder))[0]
    other = write_description(project.folder / "other", "hubert")
    lines = project.update(encoder=other)
    assert f"made again, for --encoder {other} instead of --encoder {encoder}" in lines[0]
    assert "finetune_whisper.yaml" in lines[1], "the choice was for another encoder"


@pytest.mark.slow
def test_processes_that_plan_at_once_wait_for_each_other(
    project: Experiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = plan_files.measure_expected_time

    def slow_measure(*arguments: Any, **options: Any) -> ExpectedTime:
        expected = measure(*arguments, **options)
        time.sleep(0.2)
        return expected

    monkeypatch.setattr(plan_files, "measure_expected_time", slow_measure)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: project.update(), range(3)))
    assert sorted(map(len, results)) == [1, 1, 3]
    assert len(project.measured) == 1
    assert project.update() == [f"{project.plan}: kept as it was made"]


def test_the_plan_of_a_base_has_the_steps_of_the_hours(project: Experiment) -> None:
    write_stats(project.data, 1.0)
    base = write_model_folder(project.folder / "base")
    size_line, *_ = project.update(base=base)
    assert size_line.endswith(f"size small, 0 + 4800 steps from {base}, whose layers stay")
    config = load_config(project.plan)
    assert (config.scheduler_conf.total_steps, config.save_interval) == (4800, 400)


def reads_of_files(reads: list[Path], *files: Path) -> list[int]:
    """How often each file was read. Forgets all reads."""
    counts = [reads.count(file) for file in files]
    reads.clear()
    return counts


def test_each_config_is_read_once(project: Experiment, yaml_reads: list[Path]) -> None:
    """Of a plan that is written, kept as it was made, replaced by settings, and edited."""
    project.update()
    assert reads_of_files(yaml_reads, OWN, project.plan) == [1, 1]
    project.update()
    assert reads_of_files(yaml_reads, OWN, project.plan) == [1, 1]
    project.begin_training()
    lines = project.update(overrides=["grad_clip=3"])
    assert "grad_clip is 5.0, but --override gives 3.0" in "\n".join(lines)
    assert reads_of_files(yaml_reads, OWN, project.plan) == [1, 1]
    project.edit()
    project.update()
    assert reads_of_files(yaml_reads, OWN, project.plan) == [1, 1]
    describe_plan(project.options())
    assert reads_of_files(yaml_reads, OWN, project.plan) == [1, 0]


def test_the_config_of_an_encoder_is_read_once(project: Experiment, yaml_reads: list[Path]) -> None:
    encoder = write_description(project.folder / "encoder", "hubert")
    describe_plan(project.options(encoder=encoder, base_steps=400))
    assert reads_of_files(yaml_reads, conf_file("finetune_whisper.yaml")) == [1]
