# SPDX-License-Identifier: Apache-2.0
"""Packed models in commands: a folder, a ZIP and a name on the hub; ZIPs that are refused."""

import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest
from command_line import Capsys, error_line, run_line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_folders import write_clip, write_model_folder
from tiny_corpus import write_tiny_corpus

from wenet_hs import load_model
from wenet_hs.base.files import file_sha256
from wenet_hs.bin import align, check_options, recognize, transcribe
from wenet_hs.manifest.data_list import write_data_list
from wenet_hs.model import packed as shared_model
from wenet_hs.model.packed import MODEL_FILES, WEIGHTS, resolve_model
from wenet_hs.share.options import PackOptions
from wenet_hs.share.pack import pack_model
from wenet_hs.tree.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "wenet_hs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("models") / "exp")


@pytest.fixture(scope="module")
def zipped(folder: Path) -> Path:
    return pack_model(
        PackOptions(model_dir=folder, out=folder.parent / "packed.zip", license="MIT")
    )


@pytest.fixture(scope="module")
def clip(folder: Path) -> Path:
    utterance = write_clip(folder.parent / "clip.wav", 1.0)
    write_data_list(folder.parent / "data.list", [utterance])
    return Path(utterance.wav)


@pytest.fixture
def hub(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, str | None]]]:
    """A stand-in for the download: the names and revisions that were asked for."""
    asked = list[tuple[str, str | None]]()
    module = pytest.importorskip("huggingface_hub")
    with ZipFile(zipped) as archive:
        archive.extractall(tmp_path / "hub")

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert set(allow_patterns) == {*MODEL_FILES}
        asked.append((name, revision))
        return str(tmp_path / "hub" / "packed")

    monkeypatch.setattr(module, "snapshot_download", snapshot_download)
    return asked


def test_a_zip_and_the_hub_give_the_same_text(
    folder: Path, zipped: Path, clip: Path, hub: list[tuple[str, str | None]], cache: Path
) -> None:
    expected = load_model(folder).transcribe(clip)
    assert expected.text
    for reference in (zipped, str(zipped), Path("hf://user/name"), "hf://user/name@refs/pr/1"):
        assert load_model(reference).transcribe(clip) == expected
    assert hub == [("user/name", None), ("user/name", "refs/pr/1")]
    (unpacked,) = cache.iterdir()
    assert {path.name for path in unpacked.iterdir()} == {
        "README.md",
        "run.json",
        "train.yaml",
        "units.txt",
        WEIGHTS,
    }


def test_an_unpacked_model_is_on_the_disk_before_it_has_its_name_and_a_damaged_one_is_named(
    zipped: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(shared_model, "fsync_path", lambda path: written.append(path.name))
    folder = resolve_model(zipped)
    assert set(written[:-2]) == {path.name for path in folder.iterdir()} and written[-2:] == [
        "model",
        "wenet_hs",
    ]
    (folder / "units.txt").write_text("")
    to_do = f"delete {cache / folder.name} and load the ZIP again"
    with pytest.raises(
        CheckpointError, match=f"units.txt: changed since the training .*; {to_do}$"
    ):
        load_model(zipped)
    (folder / "units.txt").unlink()
    assert load_model(zipped) is not None, "unpacked again"


def test_a_zip_is_read_from_the_file_that_was_hashed(
    zipped: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = Path(shutil.copy(zipped, tmp_path / "m.zip")), hashlib.file_digest

    def replace_after(file: Any, name: str) -> Any:
        found = digest(file, name)
        pack_files(tmp_path / "other.zip", "train.yaml", WEIGHTS).rename(path)
        return found

    monkeypatch.setattr("wenet_hs.model.packed.hashlib.file_digest", replace_after)
    folder = resolve_model(path)
    assert folder.name == file_sha256(zipped)
    with ZipFile(zipped) as archive:
        assert (folder / "train.yaml").read_bytes() == archive.read("packed/train.yaml")


def test_what_a_killed_process_left_is_deleted_after_a_day(zipped: Path, cache: Path) -> None:
    for name, age_s in (("old", 2 * 86400), ("new", 60)):
        (folder := cache / f".unpack-{name}").mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    resolve_model(zipped)
    assert {path.name for path in cache.glob(".unpack-*")} == {".unpack-new"}


def test_other_entries_of_a_zip_may_have_a_colon(zipped: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(zipped, tmp_path / "m.zip"))
    with ZipFile(path, "a") as archive:
        archive.writestr("packed/notes 12:30.txt", b"x")
    assert load_model(path) is not None


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["zip", "hf://user/name"])
def test_commands_take_it(
    reference: str,
    folder: Path,
    zipped: Path,
    clip: Path,
    hub: object,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    data, outputs = clip.with_name("data.list"), list[str]()
    for model in (folder, zipped if reference == "zip" else reference):
        common, out = f"--model_dir {model} --device cpu", tmp_path / f"out{len(outputs)}"
        assert run_line(transcribe, f"{common} {clip}") == 0
        modes = "--modes ctc_greedy_search attention"
        assert run_line(recognize, f"{common} --test_data {data} --result_dir {out} {modes}") == 0
        assert (
            run_line(
                recognize,
                f"{common} --checkpoint {model} --test_data {data} --result_dir {out}c {modes}",
            )
            == 0
        )
        assert run_line(align, f"{common} --data_list {data} --out {out}/align.jsonl") == 0
        texts = [
            (out / "attention" / "text"),
            Path(f"{out}c") / "attention" / "text",
            out / "align.jsonl",
        ]
        outputs.append(
            capsys.readouterr().out.splitlines()[0] + "".join(path.read_text() for path in texts)
        )
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_training_starts_from_a_zip(tmp_path: Path, capsys: Capsys) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", num_train=3, num_cv=1)
    options = {"model_dir": corpus.train(tmp_path / "base", "max_epoch=1"), "license": "MIT"}
    zipped = pack_model(PackOptions(out=tmp_path / "base.zip", **options))
    tuned = corpus.train(tmp_path / "tuned", "max_epoch=1", checkpoint=zipped)
    report = (tuned / "fine_tune.json").read_text("utf-8")
    assert '"parameters_new": []' in report and '"units_new": []' in report
    assert run_line(check_options, f"--config {corpus.config} --checkpoint {zipped}") == 0
    packed = pack_model(
        PackOptions(out=tmp_path / "tuned.packed", **options | {"model_dir": tuned})
    )
    assert "Trained from: another model, weights with SHA-256" in (packed / "README.md").read_text(
        "utf-8"
    )


@pytest.mark.slow
def test_another_process_transcribes_the_same_with_only_the_zip(
    folder: Path, zipped: Path, clip: Path, tmp_path: Path
) -> None:
    alone = shutil.copy(zipped, tmp_path / "model.zip")
    expected = load_model(folder).transcribe(clip).text
    line = [
        sys.executable,
        "-m",
        "wenet_hs.bin.transcribe",
        "--model_dir",
        alone,
        "--device",
        "cpu",
        str(clip),
    ]
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=100
    )
    assert done.stdout == f"{clip}: {expected}\n"


def rename_entries(source: Path, target: Path, change: Callable[[str], str]) -> Path:
    """A ZIP with the files of another one under other names."""
    with ZipFile(source) as old, ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(change(info.filename), old.read(info))
    return target


def test_a_zip_that_was_made_on_windows(
    folder: Path, zipped: Path, clip: Path, tmp_path: Path
) -> None:
    """Some programs there write `\\` between the names of folders and files."""
    expected = load_model(folder).transcribe(clip).text
    of_windows = rename_entries(
        zipped, tmp_path / "model.zip", lambda name: name.replace("/", "\\")
    )
    with ZipFile(of_windows) as archive:
        assert all("\\" in name and "/" not in name for name in archive.namelist())
    assert shared_model.is_packed(of_windows)
    unpacked = shared_model.resolve_model(of_windows)
    assert {path.name for path in unpacked.iterdir()} == {
        path.name for path in zipped_files(zipped)
    }
    assert load_model(of_windows).transcribe(clip).text == expected


def zipped_files(archive: Path) -> list[Path]:
    with ZipFile(archive) as zipped:
        return [Path(name) for name in zipped.namelist() if not name.endswith("/")]


# ---- what is refused


def entry(name: str, mode: int = 0) -> ZipInfo:
    info = ZipInfo(name)
    info.external_attr = mode << 16
    return info


def with_entry(
    name: str, mode: int = 0, content: bytes = b"/etc/passwd"
) -> Callable[[ZipFile], None]:
    return lambda archive: archive.writestr(entry(name, mode), content)


def with_many(archive: ZipFile) -> None:
    for number in range(shared_model.MAX_ENTRIES):
        archive.writestr(str(number), b"")


def with_bomb(archive: ZipFile) -> None:
    archive.writestr("packed/global_cmvn", bytes(50 * 10**6), ZIP_DEFLATED)


def with_large_text(archive: ZipFile) -> None:
    archive.writestr("packed/global_cmvn", bytes(shared_model.MAX_SMALL_BYTES + 1), ZIP_DEFLATED)
    archive.writestr("packed/ballast", random.Random(0).randbytes(2 * 10**6))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (with_entry("../evil.txt"), r"has entries outside of its folder \('../evil.txt'\)"),
        (with_entry("packed/../../evil.txt"), "has entries outside of its folder"),
        (with_entry("/tmp/evil.txt"), "has entries outside of its folder"),
        (with_entry("..\\evil.txt"), "has entries outside of its folder"),
        (with_entry("packed\\..\\..\\evil.txt"), "has entries outside of its folder"),
        (with_entry("\\\\server\\evil.txt"), "has entries outside of its folder"),
        (with_entry("C:\\evil.txt"), "has entries outside of its folder"),
        (with_entry("packed\\train.yaml"), "has two entries of one name"),
        (with_entry("C:/evil.txt"), "has entries outside of its folder"),
        (with_entry("packed/tree.json", stat.S_IFLNK | 0o777), "has links or devices"),
        (with_entry("packed/fifo", stat.S_IFIFO | 0o777), "has links or devices"),
        (with_many, r"1,00\d entries, at most 1,000 are read"),
        (with_large_text, "has more than 100 MB of global_cmvn"),
        (with_bomb, r"unpacks to 50\.\d MB, at most 20 GB and 100 times its size"),
        (with_entry("other/train.yaml"), "has 2 train.yaml, not one in at most one folder"),
    ],
)
def test_unsafe_zips_are_refused(
    change: Callable[[ZipFile], None], fault: str, zipped: Path, tmp_path: Path, capsys: Capsys
) -> None:
    bad = Path(shutil.copy(zipped, tmp_path / "bad.zip"))
    with ZipFile(bad, "a") as archive:
        change(archive)
    before = {*tmp_path.parent.iterdir()}
    with pytest.raises(CheckpointError, match=rf"bad\.zip: .*{fault}.*; ask for a model"):
        load_model(bad)
    line = error_line(run_line(transcribe, f"--model_dir {bad} clip.wav"), capsys)
    assert line.startswith(f"{bad}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"] and {
        *tmp_path.parent.iterdir()
    } == before


def pack_files(path: Path, *names: str) -> Path:
    with ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["a.txt"], "has 0 train.yaml, not one in at most one folder"),
        (["a/b/train.yaml", f"a/b/{WEIGHTS}"], "has 1 train.yaml, not one in at most one folder"),
        (["m/train.yaml", "m/final.pt"], f"contains no {WEIGHTS} beside train.yaml"),
        (["m/train.yaml", WEIGHTS], f"contains no {WEIGHTS} beside train.yaml"),
    ],
)
def test_other_zips_are_no_models(names: list[str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        resolve_model(pack_files(tmp_path / "m.zip", *names))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_zips_are_refused(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    bad = pack_files(tmp_path / "twice.zip", "train.yaml", WEIGHTS, WEIGHTS)
    with pytest.raises(CheckpointError, match="has two entries of one name"):
        resolve_model(bad)
    bad.write_bytes(zipped.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="not a readable ZIP .*; copy it again"):
        resolve_model(bad)
    content = bytearray(zipped.read_bytes())
    content[10000] ^= 1
    bad.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not a readable ZIP \(Bad CRC"):
        resolve_model(bad)
    assert not cache.exists() or not [*cache.iterdir()]
    monkeypatch.setattr(shared_model, "MAX_BYTES", 10)
    with pytest.raises(CheckpointError, match="unpacks to"):
        resolve_model(zipped)


NAMES = st.lists(
    st.sampled_from(["train.yaml", WEIGHTS, "units.txt", "x", "..", "", ".", "m", "C:"]), max_size=3
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(names=st.lists(NAMES.map("/".join), max_size=4))
def test_no_zip_writes_outside_of_its_folder(names: list[str], tmp_path: Path, cache: Path) -> None:
    path = pack_files(tmp_path / "m.zip", *filter(None, names), "train.yaml", WEIGHTS)
    try:
        found = resolve_model(path)
        assert found.parent == cache and {one.name for one in found.iterdir()} <= {*MODEL_FILES}
    except CheckpointError as error:
        assert str(error).count("\n") == 0
    assert {one.name for one in tmp_path.iterdir()} <= {"m.zip", "cache"}


@pytest.mark.parametrize(
    "reference", ["hf://name", "hf:user/name", "hf://a/b/c", "hf://user/name@", "hf://../name/x"]
)
def test_a_wrong_name_of_the_hub_is_refused(reference: str) -> None:
    with pytest.raises(ConfigError, match="names no model of the hub; write hf://user/name or"):
        resolve_model(reference)


def test_failures_of_the_hub_have_one_line(
    hub: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub" / "packed" / WEIGHTS).unlink()
    with pytest.raises(
        CheckpointError, match=f"hf://user/name: contains no {WEIGHTS}; ask for a model"
    ):
        resolve_model("hf://user/name")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        CheckpointError,
        match=r"hf://user/name: cannot be downloaded \(no network\); check the name",
    ):
        resolve_model(Path("hf://user/name"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ConfigError, match=r"huggingface_hub is not installed; run pip install '.\[pretrained\]' in"
    ):
        resolve_model("hf://user/name")
