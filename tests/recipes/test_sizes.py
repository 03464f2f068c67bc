# SPDX-License-Identifier: Apache-2.0
"""The table of sizes: the size and steps of an amount of speech, and the faults of a table."""

from pathlib import Path

import pytest

from wenet_hs.config.load import load_config
from wenet_hs.recipes.conf_files import conf_file, conf_folder
from wenet_hs.recipes.sizes import NO_LIMIT, SizeTable, StepsOfHours, read_size_table
from wenet_hs.tree.errors import ConfigError

ROOT = Path(__file__).parents[2]
GOOD = """sizes:
  little: {below_hours: 2, first_steps: 0, steps: 10, settings: {optim_conf.lr: 1.0e-4}}
  much: {below_hours: null, first_steps: 5, steps: 20, settings: {freeze: [], optim: adam}}
adapted: {max_minutes: null}
encoder_steps:
  mine.yaml: [{below_hours: 1.5, steps: 7}, {below_hours: null, steps: 8}]
"""


@pytest.fixture(scope="module")
def shipped() -> SizeTable:
    return read_size_table()


def read(tmp_path: Path, text: str) -> SizeTable:
    (tmp_path / "sizes.yaml").write_text(text, "utf-8")
    return read_size_table(tmp_path / "sizes.yaml")


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    table = read(tmp_path, GOOD)
    little, much = table.sizes
    assert (little.name, little.below_hours, little.first_steps, little.steps) == (
        "little",
        2,
        0,
        10,
    )
    assert (much.name, much.below_hours, much.first_steps, much.steps) == ("much", NO_LIMIT, 5, 20)
    assert little.settings == ("optim_conf.lr=0.0001",)
    assert much.settings == ("freeze=[]", "optim=adam")
    assert table.adapted == ("max_minutes=null",)
    first, last = table.steps_by_config["mine.yaml"]
    assert first == StepsOfHours(below_hours=1.5, steps=7)
    assert last == StepsOfHours(below_hours=NO_LIMIT, steps=8)


@pytest.mark.parametrize(
    ("hours", "name", "steps"),
    [(0.0, "little", 7), (1.5, "little", 8), (1.99, "little", 8), (2, "much", 8), (1e7, "much", 8)],
)
def test_a_limit_is_the_first_number_of_hours_that_is_too_much(
    hours: float, name: str, steps: int, tmp_path: Path
) -> None:
    table = read(tmp_path, GOOD)
    assert table.choose("auto", hours).name == name
    assert table.choose("little", hours).name == "little"
    assert (
        table.choose_encoder_steps(Path("conf/mine.yaml"), hours, named_config=Path("c.yaml"))
        == steps
    )


def test_names_and_configs_that_the_table_does_not_have(tmp_path: Path) -> None:
    table = read(tmp_path, GOOD)
    with pytest.raises(ConfigError) as caught:
        table.choose("tiny", 1.0)
    assert str(caught.value) == "--size tiny: must be little, much or auto"
    with pytest.raises(ConfigError) as caught:
        table.choose_encoder_steps(Path("conf/other.yaml"), 1.0, named_config=Path("conf/own.yaml"))
    expected = "--config conf/own.yaml: conf/own_sizes.yaml has no steps for other.yaml; add a line"
    assert str(caught.value) == expected


LAST = "{below_hours: null, steps: 8}"
MINE = "[{below_hours: 1.5, steps: 7}, {below_hours: null, steps: 8}]"
OF_MINE = "5: encoder_steps.mine.yaml"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("steps: 20", "stpes: 20", "3: sizes.much.stpes: unknown key; "),
        ("below_hours: 2", "below_hours: null", "3: sizes.much.below_hours: must be above that of"),
        (
            "below_hours: 2",
            "below_hours: -2",
            "2: sizes.little.below_hours: must be greater than 0",
        ),
        ("steps: 10", "steps: ten", "2: sizes.little.steps: must be a whole number, got 'ten'"),
        ("  much:", "  auto:", "3: sizes.auto: is the choice by hours; use another name"),
        (LAST, "{below_hours: 1, steps: 8}", f"{OF_MINE}: below_hours must be above that of the"),
        (LAST, "{below_hours: 9, steps: 8}", f"{OF_MINE}: below_hours is 9 in the last one; set"),
        (MINE, "[]", f"{OF_MINE}: there are no steps; add some, or remove it"),
        ("adapted: {max_minutes: null}\n", "", "1: adapted: missing"),
    ],
)
def test_a_fault_is_one_line_with_its_place(old: str, new: str, fault: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    lines = str(caught.value).split("\n")
    assert any(line.startswith(f"{tmp_path}/sizes.yaml:{fault}") for line in lines), lines


def test_a_table_without_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sizes.yaml:1: sizes: there is no size; add one"):
        read(tmp_path, "sizes: {}\nadapted: {}\nencoder_steps: {}\n")


# ---- the table that belongs to wenet_hs


@pytest.mark.parametrize(
    ("hours", "name", "width", "first_steps", "steps"),
    [
        (0.2, "tiny", 96, 3000, 3000),
        (1.0, "small", 144, 6000, 4800),
        (19.0, "medium", 192, 12000, 9600),
        (30.0, "large", 256, 20000, 16000),
    ],
)
def test_the_size_of_an_own_model_follows_the_hours(
    hours: float, name: str, width: int, first_steps: int, steps: int, shipped: SizeTable
) -> None:
    size = shipped.choose("auto", hours)
    assert (size.name, size.first_steps, size.steps) == (name, first_steps, steps)
    config = load_config(conf_file("own.yaml"), size.settings)
    assert config.encoder_conf.output_size == width


def test_the_settings_for_a_trained_model_load(shipped: SizeTable) -> None:
    config = load_config(
        conf_file("paper_cv.yaml"),
        ["freeze=[encoder]", *shipped.adapted, "scheduler_conf.total_steps=4800"],
    )
    assert (config.max_minutes, config.early_stopping, config.model_conf.ctc_only_steps) == (
        None,
        None,
        0,
    )
    assert (config.scheduler, config.optim_conf.lr, config.freeze) == ("warmup_cosine", 1e-3, ())


def test_each_config_of_a_pretrained_encoder_has_steps_that_load(shipped: SizeTable) -> None:
    configs = sorted(conf_folder().glob("finetune_*.yaml"))
    assert sorted(shipped.steps_by_config) == [path.name for path in configs]
    for path in configs:
        for row in shipped.steps_by_config[path.name]:
            load_config(path, [f"scheduler_conf.total_steps={row.steps}"])


def test_the_configs_are_those_of_the_checkout() -> None:
    assert conf_folder() == ROOT / "conf"
    assert conf_file("mini.yaml").is_file()


def test_the_configs_of_an_installed_package(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    package = tmp_path / "site-packages" / "wenet_hs"
    (tmp_path / "site-packages" / "conf").mkdir(parents=True)
    monkeypatch.setattr("wenet_hs.recipes.conf_files._PACKAGE", package)
    expected = package / "conf" / "own.yaml"
    assert conf_file("own.yaml") == expected, "another project has a folder conf too"
