# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs pack`: what a packed model contains, its card, and that nothing private is in it."""

import json
import logging
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import sentencepiece
import torch
import yaml
from command_line import Capsys, error_line, run_line
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import HSOFTMAX, TABLE, write_model_folder
from pretrained_folders import write_folder
from safetensors import SafetensorError
from tiny_corpus import write_tiny_corpus

from wenet_hs.base.files import LFS_POINTER, file_sha256
from wenet_hs.bin import pack as command
from wenet_hs.config.load import dump_config, load_config
from wenet_hs.data.shards import DataType
from wenet_hs.manifest.data_list import Utterance, read_data_list, write_data_list
from wenet_hs.model.checkpoint import weights_path
from wenet_hs.model.experiment import load_experiment
from wenet_hs.model.packed import MODEL_FILES, WEIGHTS
from wenet_hs.recognizer import load_model
from wenet_hs.results.scorings import read_scorings
from wenet_hs.runs.record import (
    DataFile,
    DataLists,
    End,
    FirstWeights,
    RunProgress,
    RunRecord,
    RunWarning,
    Start,
    Steps,
    read_run,
    write_run,
)
from wenet_hs.score import Rules, report_to_json, score
from wenet_hs.share.card import write_card
from wenet_hs.share.edited_card import find_license
from wenet_hs.share.options import PackOptions
from wenet_hs.share.pack import pack_model
from wenet_hs.share.privacy import BPE_PATHS, PRIVATE_PATH, blank_texts, without_folders
from wenet_hs.text.tokenizer import bpe_units, train_bpe
from wenet_hs.tree import load_tree
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError

PRIVATE = "/home/jane.doe/speech"
BOTH = {
    "decoder": "bitransformer",
    "decoder_conf": {"r_num_blocks": 1},
    "model_conf": {"reverse_weight": 0.3},
}


def front_matter(folder: Path) -> dict[str, Any]:
    text = (folder / "README.md").read_text("utf-8")
    assert text.startswith("---\n")
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


@pytest.mark.parametrize(
    "sections", [{}, HSOFTMAX, BOTH, {"wenet": True}], ids=["softmax", "tree", "both", "wenet"]
)
def test_it_is_the_same_model_in_hardly_more_bytes(
    sections: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_model_folder(tmp_path / "exp", **sections)
    packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed", license="MIT"))
    before, after = load_experiment(folder), load_experiment(packed)
    assert {name: value.tolist() for name, value in after.model.state_dict().items()} == {
        name: value.tolist() for name, value in before.model.state_dict().items()
    }
    assert (packed / "units.txt").read_bytes() == (folder / "units.txt").read_bytes()
    assert {path.name for path in packed.iterdir()} <= {*MODEL_FILES}
    weights = sum(
        value.numel() * value.element_size() for value in before.model.state_dict().values()
    )
    for out in (
        packed,
        pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed.zip", license="MIT")),
    ):
        size = sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out]))
        assert weights < size < weights + 30_000
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_nothing_private_is_published(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp", **HSOFTMAX)
    config = load_config(
        folder / "train.yaml", [f"dataset_conf.noise_conf.list={PRIVATE}/my noise/noise.list"]
    )
    dump_config(config, folder / "train.yaml")
    start = Start(
        command=("wenet-hs", "train", "--train_data", f"{PRIVATE}/a.list"),
        processors=("Intel(R) Xeon(R)",),
        machine="jane-laptop",
        packages={"torch": "2.11.0"},
        commit=PRIVATE,
    )
    lists = DataLists(train=(DataFile(path=f"{PRIVATE}/a.list"),))
    weights = FirstWeights(kind="random")
    write_run(folder, RunRecord(starts=(start,), lists=lists, first_weights=weights))
    tree = load_tree(folder / "tree.json")
    replace(tree, options={"text": "interview of jane.txt", "seed": 1}).save(folder / "tree.json")
    sizes = {"sizes": [1, 2.5, None]}
    encoder = {
        "config": {"_name_or_path": "janes_interviews/whisper-ft", "file": "jane/w.bin", **sizes}
    }
    (folder / "encoder.json").write_text(json.dumps(encoder), "utf-8")
    packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed", license="MIT"))
    for path in packed.iterdir():
        for word in ("jane", "/home", "wenet-hs train --train_data", str(tmp_path)):
            assert word.encode() not in path.read_bytes(), (path.name, word)
    found = load_config(packed / "train.yaml")
    assert (
        found.dataset_conf.noise_conf is not None
        and found.dataset_conf.noise_conf.list == "noise.list"
    )
    published = read_run(packed)
    assert published is not None
    assert (published.torch_versions, published.processors) == (["2.11.0"], ["Intel(R) Xeon(R)"])
    assert published.first_weights == FirstWeights(kind="random")
    assert published.last_start.commit is None, "it was a path"
    assert set(published.files) == {WEIGHTS, "units.txt", "tree.json", "encoder.json"}
    assert json.loads((packed / "encoder.json").read_text("utf-8")) == {
        "config": {"file": "w.bin", **sizes}
    }
    assert load_tree(packed / "tree.json").options == {"seed": 1}


def test_the_record_of_a_training_is_published_without_paths_and_hosts(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp")
    start = Start(
        time="2026-11-28T09:00:00Z",
        command=("wenet-hs", "train", "--train_data", f"{PRIVATE}/a.list"),
        processors=("Intel(R) Xeon(R)",),
        ranks=2,
        machine="x86_64 of jane-laptop",
        python="3.11.7",
        packages={"torch": "2.11.0", "wenet_hs": PRIVATE},
        commit="1a2b3c4",
    )
    lists = DataLists(
        train=(DataFile(path=f"{PRIVATE}/a.list", sha256="a" * 64),),
        valid=(DataFile(path=f"{PRIVATE}/b.list", sha256="b" * 64),),
    )
    warnings = (
        RunWarning(
            code="utterances_not_used", step=0, text=f"see {PRIVATE}/exp/train_rejected.tsv"
        ),
        RunWarning(code="step_skipped", step=3, text="step 3: skipped: with jane_0001"),
        RunWarning(
            code="ended_in_warmup",
            step=4,
            text="training ended at step 4, in the warm-up of 9 steps",
        ),
    )
    steps = Steps(planned=9, per_epoch=3, warmup=9)
    progress = RunProgress(step=4, epoch=1, seconds=7.5, losses={"loss": 1.0}, seconds_left=3.0)
    record = RunRecord(
        starts=(start, start.model_copy(update={"ranks": 1, "step": 2})),
        lists=lists,
        first_weights=FirstWeights(kind="checkpoint", name=f"{PRIVATE}/exp/base", sha256="c" * 64),
        files={"units.txt": file_sha256(folder / "units.txt")},
        head="softmax",
        seed=777,
        steps=steps,
        progress=progress,
        warnings=warnings,
        end=End(state="failed", text=f"{PRIVATE}: disk full", time="2026-11-28T10:00:00Z"),
    )
    write_run(folder, record)
    packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed", license="MIT"))
    for path in packed.iterdir():
        for word in ("jane", "/home", "2026-11-28", str(tmp_path)):
            assert word.encode() not in path.read_bytes(), (path.name, word)
    published = read_run(packed)
    assert published is not None
    versions = Start(
        processors=("Intel(R) Xeon(R)",),
        ranks=2,
        python="3.11.7",
        packages={"torch": "2.11.0"},
        commit="1a2b3c4",
    )
    assert published.starts == (versions, versions.model_copy(update={"ranks": 1, "step": 2}))
    assert published.lists == DataLists(train=(DataFile(path=None, sha256="a" * 64),))
    assert published.first_weights == FirstWeights(kind="checkpoint", sha256="c" * 64)
    assert (published.head, published.seed, published.steps) == ("softmax", 777, steps)
    assert published.progress == RunProgress(step=4, epoch=1, seconds=7.5)
    assert [warning.code for warning in published.warnings] == ["ended_in_warmup"]
    assert published.end is None and published.resources is None
    assert published.files.keys() == {WEIGHTS, "units.txt"}


def test_a_bpe_model_is_packed_without_the_paths_of_its_training(tmp_path: Path) -> None:
    (text := tmp_path / "jane_interviews.txt").write_text("ab ab abc cab bac\n" * 9, "utf-8")
    (tmp_path / "rules.tsv").write_text("41\t61\n")
    options = {
        "normalization_rule_tsv": str(tmp_path / "rules.tsv"),
        "model_type": "bpe",
        "minloglevel": 2,
    }
    prefix = str(tmp_path / "jane")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=prefix, vocab_size=12, **options
    )
    bpe = (tmp_path / "jane.model").read_bytes()
    assert bpe.count(str(tmp_path).encode()) >= 2
    folder = write_model_folder(tmp_path / "exp")
    (folder / "bpe.model").write_bytes(bpe)
    config = load_config(
        folder / "train.yaml", ["tokenizer=bpe", "tokenizer_conf.bpe_path=bpe.model"]
    )
    dump_config(config, folder / "train.yaml")
    packed = (
        pack_model(PackOptions(model_dir=folder, out=tmp_path / "p", license="MIT")) / "bpe.model"
    ).read_bytes()
    assert b"jane" not in packed and str(tmp_path).encode() not in packed
    before, after = (
        sentencepiece.SentencePieceProcessor(model_proto=model) for model in (bpe, packed)
    )
    for line in ("abc cab", "A b zz", ""):
        assert before.encode(line, out_type=str) == after.encode(line, out_type=str)
    assert bpe_units(packed) == bpe_units(bpe) and after.encode("A") == after.encode("a")
    ours = train_bpe(["ab ab abc", "cab bac"], 8)
    blank_texts(memoryview(copy := bytearray(ours)), BPE_PATHS)
    assert copy == ours, "has no paths"


TEXTS = st.text(st.sampled_from("ab/\\.~: "), max_size=12)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        TEXTS | st.integers() | st.none(),
        lambda of: st.lists(of) | st.dictionaries(TEXTS, of),
        max_leaves=6,
    )
)
def test_no_value_has_a_folder(value: Any) -> None:
    def texts(one: Any) -> list[str]:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
        return [one] if isinstance(one, str) else [text for part in inner for text in texts(part)]

    for text in texts(without_folders(value)):
        assert not PRIVATE_PATH.search(text) and text.count("/") <= 1 and "\\" not in text


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("see /home/jane/speech", True),
        ("~/speech/a.list", True),
        (r"C:\Users\jane", True),
        (r"\\server\jane", True),
        ("lists:/home/jane/x.list", True),
        ("file:///home/jane/x", True),
        ("~jane/speech", True),
        ("../jane/interviews", True),
        ("$HOME/jane", True),
        ("about ~3/4 of it, for $5/hour", False),
        ("(/data/cv-corpus)", True),
        ("https://example.org/home/jane", False),
        ("phones /p/, /b/ and /tʃ/", False),
        ("hf://user/name and user/name; 16 km/h", False),
    ],
)
def test_private_paths_are_recognized(text: str, is_private: bool) -> None:
    assert bool(PRIVATE_PATH.search(text)) is is_private


def write_record(
    folder: Path,
    train_list: Path,
    weights: FirstWeights | None = None,
    kind: DataType = "raw",
) -> None:
    """Write the run record of a training with this list."""
    file = DataFile(path=str(train_list), sha256=file_sha256(train_list))
    lists = DataLists(kind=kind, train=(file,))
    write_run(folder, RunRecord(starts=(Start(),), lists=lists, first_weights=weights))


# ---- the card


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scores of two languages in two modes, and its training list."""
    folder = write_model_folder(tmp_path_factory.mktemp("scored") / "exp")
    clips = [
        Utterance(key=lang, wav="a.wav", txt="ab", lang=lang, duration=1800.0)
        for lang in ("no", "es", "es2")
    ]
    write_data_list(folder.parent / "train.list", clips)
    base = FirstWeights(kind="checkpoint", name="hf://user/base@v1", sha256="a" * 64)
    write_record(folder, folder.parent / "train.list", base)
    reference, langs = {"a": "abcd", "b": "abc", "c": "ab"}, {"a": "no", "b": "es", "c": "es"}
    hypotheses = {
        "ctc_greedy_search": {"a": "abcd", "b": "axc", "c": "x"},
        "attention_rescoring": reference,
    }
    for mode, hypothesis in hypotheses.items():
        report = score(
            reference, hypothesis, rules=Rules(metric="cer"), langs=langs, num_resamples=100
        )
        path = folder / "test" / mode / "score.json"
        path.parent.mkdir(parents=True)
        path.write_text(report_to_json(report), "utf-8")
    speed = {
        "model": {"final.pt": file_sha256(folder / "final.pt")},
        "beam_size": 10,
        "lm_weight": 0.0,
    }
    speed["modes"] = {mode: {} for mode in hypotheses}
    (folder / "test" / "rtf.json").write_text(json.dumps(speed), "utf-8")
    return folder


def test_the_card_has_what_the_folder_knows(scored: Path, tmp_path: Path) -> None:
    options = {"license": "CC-BY-4.0", "datasets": ("user/data",), "data": "Read speech"}
    packed = pack_model(PackOptions(model_dir=scored, out=tmp_path / "no: {a} 'model'", **options))
    found = front_matter(packed)
    assert found["language"] == ["es", "es2", "no"]
    assert (found["license"], found["datasets"], found["base_model"]) == (
        "cc-by-4.0",
        ["user/data"],
        "user/base",
    )
    assert found["metrics"] == ["cer"] and found["pipeline_tag"] == "automatic-speech-recognition"
    (model,) = found["model-index"]
    assert model["name"] == packed.name and len(model["results"]) == 2
    greedy = model["results"][0]
    assert greedy["dataset"]["split"] == "test" and greedy["metrics"][0]["type"] == "cer"
    report = json.loads((scored / "test" / "ctc_greedy_search" / "score.json").read_text("utf-8"))
    assert greedy["metrics"][0]["value"] == round(100 * report["macro"]["rate"], 2) == 30.0
    low, high = (100 * bound for bound in report["macro"]["interval"])
    assert f"[{low:.2f}, {high:.2f}]" in greedy["metrics"][0]["name"]
    text = (packed / "README.md").read_text("utf-8")
    assert (
        f"| test | ctc_greedy_search | CER | 3 | 30.00 | [{low:.2f}, {high:.2f}] | 33.33 |" in text
    )
    assert "\n| es | 2 | 0.00 | [0.00, 0.00] |\n" in text, "languages of attention_rescoring"
    assert report["signature"] in text and "beam of 10" in text
    assert "Read speech; 1.50 hours in 3 utterances\n" in text
    assert f"Trained from: user/base, weights with SHA-256 {'a' * 64}" in text
    assert "identify or verify speakers" in text and "- Licence: cc-by-4.0\n" in text
    assert "\n\n\n" not in text


def test_scores_of_other_weights_are_left_out(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = load_experiment(scored)
    monkeypatch.setattr("wenet_hs.results.scorings.file_sha256", lambda path: "another")
    monkeypatch.setattr("wenet_hs.share.trained_on.file_sha256", lambda path: "another")
    card = write_card(experiment, PackOptions(model_dir=scored, out=tmp_path), RunRecord(), "mit")
    assert (
        "the folder of the model has no scores of these weights" in card
        and "model-index" not in card
    )
    assert "hours" not in card, "the list may have changed too"
    assert (
        "test: ctc_greedy_search, attention_rescoring: left out of the card: rtf.json does not show that"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("recorded", "kept"),
    [
        (None, set()),
        ({"model": {}, "modes": {"ctc_greedy_search": {}}}, set()),
        ({"model": {"model.pt": "b"}, "modes": {"ctc_greedy_search": {}}}, set()),
        ({"model": {"final.pt": "own"}, "modes": {"ctc_greedy_search": {}}}, {"ctc_greedy_search"}),
    ],
    ids=["no record", "unknown weights", "a checkpoint", "decoded again in one mode"],
)
def test_only_scores_of_these_weights_and_their_decoding_are_in_the_card(
    recorded: dict[str, Any] | None, kept: set[str], scored: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored, tmp_path / "exp"))
    (folder / "test" / "rtf.json").unlink()
    if recorded is not None:
        text = json.dumps(recorded).replace("own", file_sha256(folder / "final.pt"))
        (folder / "test" / "rtf.json").write_text(text, "utf-8")
    assert {one.mode for one in read_scorings(folder)} == kept


def test_a_test_set_of_silence_has_no_entry_in_the_model_index(
    scored: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(scored, tmp_path / "exp"))
    empty = score(
        {"a": ""}, {"a": ""}, rules=Rules(metric="cer"), langs={"a": "es"}, num_resamples=100
    )
    (folder / "test" / "ctc_greedy_search" / "score.json").write_text(
        report_to_json(empty), "utf-8"
    )
    packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed", license="MIT"))
    (model,) = front_matter(packed)["model-index"]
    assert [bool(one["metrics"]) for one in model["results"]] == [True]


def test_an_edited_card_gets_the_name_of_the_model_and_must_agree_with_the_flags(
    tmp_path: Path, capsys: Capsys, caplog: pytest.LogCaptureFixture
) -> None:
    folder, card = write_model_folder(tmp_path / "exp"), tmp_path / "card.md"
    options = PackOptions(
        model_dir=folder, out=card, license="cc-by-4.0", languages=("mdw",), data="Mboshi"
    )
    pack_model(options)
    card.write_text(card.read_text("utf-8") + "\nThe card of our village.\n", "utf-8")
    packed = pack_model(replace(options, out=tmp_path / "my-model-v1.0", card=card, license=None))
    assert front_matter(packed)["license"] == "cc-by-4.0" and "no --license" not in caplog.text
    text = (packed / "README.md").read_text("utf-8")
    assert "\n# my-model-v1.0\n" in text and "--model_dir my-model-v1.0 clip.wav" in text
    assert "card.zip" not in text and "our village" in text
    line = f"--model_dir {folder} --out {tmp_path / 'b.zip'} --card {card}"
    for flags, fault in {
        "--license mit": "has license: cc-by-4.0, not that of --license; change one of them",
        "--languages es": "has language: ['mdw'], not that of --languages; change one of them",
        "--base_model a/b": "has base_model: None, not that of --base_model; change one of them",
        "--data Bembe": "has not the text of --data; write it there, or leave --data out",
    }.items():
        assert error_line(run_line(command, f"{line} {flags}"), capsys) == f"{card}: {fault}"
    card.write_text(card.read_text("utf-8").replace("cc-by-4.0", "other"), "utf-8")
    fault = "--license: a licence without a name; give a file with its text"
    assert error_line(run_line(command, line), capsys) == fault
    card.write_text("---\na: [\n---\n", "utf-8")
    assert "card.md: its front matter is no YAML" in error_line(run_line(command, line), capsys)
    assert not (tmp_path / "b.zip").exists()


@pytest.mark.parametrize("license_id", ["cc-by-4.0", "other"])
def test_a_packed_model_that_is_packed_again_keeps_its_licence(
    license_id: str, tmp_path: Path
) -> None:
    (terms := tmp_path / "terms.txt").write_text("Ask us.\n")
    given = str(terms) if license_id == "other" else license_id
    first = pack_model(
        PackOptions(
            model_dir=write_model_folder(tmp_path / "exp"), out=tmp_path / "a", license=given
        )
    )
    again = pack_model(PackOptions(model_dir=first, out=tmp_path / "b"))
    assert front_matter(again)["license"] == license_id
    assert (again / "LICENSE").exists() is (license_id == "other")


def test_without_a_licence_the_card_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model_folder(tmp_path / "exp")
    with caplog.at_level(logging.WARNING):
        packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed"))
    assert "no --license" in caplog.text and front_matter(packed)["license"] == "unknown"
    assert "- Licence: unknown: ask the author\n" in (packed / "README.md").read_text("utf-8")
    (tmp_path / "terms.txt").write_text("Ask us.\n")
    packed = pack_model(
        PackOptions(
            model_dir=packed, out=packed, overwrite=True, license=str(tmp_path / "terms.txt")
        )
    )
    assert (
        front_matter(packed)["license"] == "other"
        and (packed / "LICENSE").read_text() == "Ask us.\n"
    )


def test_the_mark_of_an_overfitted_training_stays(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp")
    curve = [("train", 2.0), ("valid", 2.0), ("train", 0.1), ("valid", 3.0)]
    lines = [
        json.dumps({"kind": kind, "step": step, "loss": loss})
        for step, (kind, loss) in enumerate(curve)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines), "utf-8")
    assert load_experiment(folder).is_overfitted
    packed = pack_model(PackOptions(model_dir=folder, out=tmp_path / "packed", license="MIT"))
    assert load_experiment(packed).is_overfitted
    assert "has over-fitted" in (packed / "README.md").read_text("utf-8")


# ---- what is refused


def test_mistakes_have_one_line(tmp_path: Path, capsys: Capsys) -> None:
    folder, out = write_model_folder(tmp_path / "exp"), tmp_path / "packed"
    line = f"--model_dir {folder} --out {out}"

    def fault(arguments: str) -> str:
        return error_line(run_line(command, f"{line} {arguments}"), capsys)

    assert "the model card: would publish the path /home/jane/cv;" in fault(
        "--license mit --data 'from /home/jane/cv'"
    )
    assert "all mine: No such file or directory; check the path" in fault("--license 'all mine'")
    assert "names no model of the hub; write hf://user/name" in fault(
        "--license mit --push user/name"
    )
    assert not out.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["exp"]
    assert run_line(command, f"{line} --license mit") == 0
    assert f"{out}: 0.1 MB" in capsys.readouterr().out
    assert f"--out {out}: exists already; name another one; --overwrite replaces" in fault(
        "--license mit"
    )
    (out / "thesis.tex").write_text("")
    assert "exists already with thesis.tex; name another one" in fault("--license mit --overwrite")
    assert (out / "thesis.tex").exists()
    for name in ("thesis.zip", "notes.md", "repository/README.md"):
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_text("mine")
        target = path if path.parent == tmp_path else path.parent
        assert "exists already; name another one; --overwrite replaces only" in fault(
            f"--license mit --overwrite --out {target}"
        )
        assert path.read_text() == "mine"
    (folder / "final.pt").unlink()
    assert "final.pt: no such file; `wenet-hs average --model_dir" in fault(
        f"--license mit --out {tmp_path / 'b.zip'}"
    )


def test_a_failure_leaves_the_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = write_model_folder(tmp_path / "exp"), tmp_path / "packed.zip"
    pack_model(PackOptions(model_dir=folder, out=out, license="MIT"))
    before = out.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def full(*_: object) -> None:
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    for name, failure, message in (
        ("shutil.copyfileobj", fail, "No space"),
        (
            "save_file",
            full,
            r"--out .*packed.zip: cannot be written \(.*No space left .*\); free some space, or name",
        ),
    ):
        with monkeypatch.context() as patch, pytest.raises((OSError, DataError), match=message):
            patch.setattr(f"wenet_hs.share.pack.{name}", failure)
            pack_model(PackOptions(model_dir=folder, out=out, license="MIT", overwrite=True))
    assert out.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == [
        "exp",
        "packed.zip",
    ]


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was read",)


def test_only_the_safetensors_of_a_packed_model_are_read(tmp_path: Path) -> None:
    packed = pack_model(
        PackOptions(
            model_dir=write_model_folder(tmp_path / "exp"), out=tmp_path / "p", license="MIT"
        )
    )
    for name in ("final.pt", "model.pt"):
        (packed / name).write_bytes(pickle.dumps(Trap()))
    assert weights_path(packed).name == WEIGHTS
    assert load_experiment(packed).model.num_units == len(TABLE)
    assert load_experiment(tmp_path / "exp", checkpoint=packed).model.num_units == len(TABLE)
    content = bytearray((packed / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (packed / WEIGHTS).write_bytes(content)
    for options in ({"model_dir": packed}, {"model_dir": tmp_path / "exp", "checkpoint": packed}):
        with pytest.raises(
            CheckpointError, match=r"model.safetensors: changed since the training \(sha256 in run"
        ):
            load_experiment(**options)
    (packed / WEIGHTS).write_bytes(LFS_POINTER)
    with pytest.raises(
        CheckpointError, match="model.safetensors: a pointer of Git LFS; run `git lfs pull` in this"
    ):
        load_experiment(packed)


def test_weights_of_another_model_are_named(tmp_path: Path) -> None:
    packed = pack_model(
        PackOptions(
            model_dir=write_model_folder(tmp_path / "exp"), out=tmp_path / "p", license="MIT"
        )
    )
    text = (packed / "train.yaml").read_text("utf-8")
    (packed / "train.yaml").write_text(text.replace("output_size: 16", "output_size: 8"), "utf-8")
    with pytest.raises(CheckpointError, match="weights of another model: .*of another shape"):
        load_experiment(packed)
    (packed / "train.yaml").write_text(
        text.replace("linear_units: 24", f"linear_units: {10**15}"), "utf-8"
    )
    with pytest.raises(
        CheckpointError, match=r"train.yaml: describes a model that cannot be built \(.*; check its"
    ):
        load_experiment(packed)


def test_it_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, uploads = pytest.importorskip("huggingface_hub"), []

    def create_repo(name: str, *, private: bool, exist_ok: bool) -> None:
        assert private
        uploads.append((name, exist_ok))

    def upload_folder(
        *, repo_id: str, folder_path: str, revision: str | None, delete_patterns: list[str]
    ) -> None:
        assert set(delete_patterns) == {*MODEL_FILES}, "those of an earlier upload"
        uploads.append((repo_id, revision, {path.name for path in Path(folder_path).iterdir()}))

    monkeypatch.setattr(hub, "repo_exists", lambda name: name == "user/taken")
    monkeypatch.setattr(hub, "create_repo", create_repo)
    monkeypatch.setattr(
        hub, "create_branch", lambda name, *, branch, exist_ok: uploads.append((branch, exist_ok))
    )
    monkeypatch.setattr(hub, "upload_folder", upload_folder)
    folder = write_model_folder(tmp_path / "exp")
    for out in ("packed", "packed.zip"):
        options = PackOptions(
            model_dir=folder, out=tmp_path / out, license="MIT", push="hf://user/name@dev"
        )
        assert pack_model(options).exists()
        files = {"README.md", "run.json", "train.yaml", "units.txt", WEIGHTS}
        assert uploads == [("user/name", False), ("dev", True), ("user/name", "dev", files)]
        uploads.clear()
    options = PackOptions(
        model_dir=folder, out=tmp_path / "b", license="MIT", push="hf://user/taken"
    )
    with pytest.raises(
        DataError, match=r"^--push hf://user/taken: exists already; name another one, or add --over"
    ):
        pack_model(options)
    assert not options.out.exists() and not uploads
    pack_model(replace(options, overwrite=True))
    assert uploads == [("user/taken", True), ("user/taken", None, files)]

    def fail(name: str, *, private: bool, exist_ok: bool) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(hub, "create_repo", fail)
    with pytest.raises(
        CheckpointError, match=r"hf://user/name: cannot be uploaded \(no network\); check"
    ):
        pack_model(
            PackOptions(model_dir=folder, out=tmp_path / "c", license="MIT", push="hf://user/name")
        )
    assert (tmp_path / "c" / WEIGHTS).is_file()


def test_a_pretrained_encoder_is_packed_without_the_folders_of_its_training(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder, corpus = write_folder(tmp_path / "hf", "xls-r"), write_tiny_corpus(tmp_path)
    encoder = {
        "path": str(folder),
        "layers": "weighted",
        "freeze": "all",
        "cache": str(tmp_path / "cache"),
    }
    config = {
        **{"encoder": "pretrained", "encoder_conf": encoder, "decoder": "none", "max_epoch": 1},
        **{
            "tokenizer_conf": {"symbol_table_path": str(tmp_path / "units.txt")},
            "dataset_conf": {"spec_aug": False},
        },
    }
    corpus.config.write_text(yaml.safe_dump(config))
    model_dir = corpus.train(tmp_path / "m")
    packed = pack_model(PackOptions(model_dir=model_dir, out=tmp_path / "shared.zip"))
    expected, found = load_model(model_dir), load_model(packed)
    clip = tmp_path / "clips" / "cv0.wav"
    assert found.transcribe(clip).nbest == expected.transcribe(clip).nbest
    with ZipFile(packed) as zipped:
        content = {Path(name).name: zipped.read(name) for name in zipped.namelist()}
    assert (
        str(tmp_path).encode()
        not in content["train.yaml"] + content["README.md"] + content["encoder.json"]
    )
    assert (
        json.loads(content["run.json"])["encoder_sha256"]
        and b"cache: null" in content["train.yaml"]
    )
    assert (
        b"a pretrained encoder of the kind wav2vec2, weights with SHA-256" in content["README.md"]
    )
    assert sum(map(len, content.values())) < len(content["model.safetensors"]) + 1e6


def write_project(folder: Path, weights: FirstWeights | None = None) -> Path:
    """The model of a project that was trained with the recordings talk.wav and other.wav."""
    model = write_model_folder(folder / "exp/softmax")
    path = folder / "data/train/data.list"
    clips = [
        Utterance(key=f"u{n}", wav=f"/speech/{name}.wav", txt="a")
        for n, name in enumerate(["talk", "talk", "other"])
    ]
    write_data_list(path, clips)
    write_record(model, path, weights)
    return model


def test_a_recording_that_is_not_allowed_blocks_packing(tmp_path: Path, capsys: Capsys) -> None:
    model, consent = write_project(tmp_path), tmp_path / "consent.tsv"
    consent.write_text("talk.wav\tno\tnot before 2030\nunused.wav\tno\n", "utf-8")
    line = error_line(run_line(command, f"--model_dir {model} --out {tmp_path / 'm.zip'}"), capsys)
    found = "consent.tsv: 1 recording of the training not allowed (talk.wav); train without them, or change it there"
    assert line.endswith(found) and not (tmp_path / "m.zip").exists()
    given = tmp_path / "other.tsv"
    with pytest.raises(DataError, match=r"other.tsv: no such file"):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m", consent=given))
    given.write_text("talk.wav\tyes\tfor research\nunused.wav\tno\n", "utf-8")
    line = error_line(
        run_line(command, f"--model_dir {model} --out {tmp_path / 'm'} --consent {given}"), capsys
    )
    reason = "not allowed, but no recording of the lists has this name (unused.wav); correct the name, or remove the"
    assert line == f"{given}: {reason} line" and not (tmp_path / "m").exists()
    (tmp_path / "data/rejected.tsv").write_text(
        "key\tpath\treason\nx\t/speech/Unused.wav\texcluded\n", "utf-8"
    )
    packed = pack_model(PackOptions(model_dir=model, out=tmp_path / "m", consent=given))
    card = (packed / "README.md").read_text("utf-8")
    section = "## Consent and access\n\n- Recordings in the training: 2. Stated as allowed: 1.\n- 1 of them: for research\n"
    assert section in card and "talk" not in card and "other.wav" not in card


def test_recordings_of_the_model_that_it_started_from_block_it_too(tmp_path: Path) -> None:
    base = write_project(tmp_path / "first")
    (tmp_path / "first/consent.tsv").write_text("talk.wav\tno\n", "utf-8")
    weights = FirstWeights(kind="checkpoint", name=f"{base}/final.pt")
    model = write_project(tmp_path / "second", weights)
    with pytest.raises(DataError, match="1 recording of the training not allowed"):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))
    talk = next(
        one.wav
        for one in read_data_list(tmp_path / "first/data/train/data.list")
        if "talk.wav" in one.wav
    )
    for longer in (
        "talk.wav",
        talk,
    ):  # another recording of this name, or a line that names more of the path
        (tmp_path / "second/consent.tsv").write_text(f"{longer}\tyes\n", "utf-8")
        with pytest.raises(DataError, match="1 recording of the training not allowed"):
            pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))
    (tmp_path / "second/consent.tsv").unlink()
    base.rename(tmp_path / "first/exp/moved")
    pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))
    (tmp_path / "second/consent.tsv").write_text("elsewhere.wav\tno\n", "utf-8")
    with pytest.raises(
        DataError,
        match="consent.tsv: recordings are not allowed, and the training lists of .*final.pt are of shards",
    ):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m2"))


def test_lists_that_were_replaced_are_found_beside_them_or_block_packing(tmp_path: Path) -> None:
    model = write_project(tmp_path)
    (tmp_path / "data").rename(tmp_path / "data-old-1")
    (tmp_path / "consent.tsv").write_text("talk.wav\tno\n", "utf-8")
    with pytest.raises(DataError, match="1 recording of the training not allowed"):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))
    write_data_list(tmp_path / "data-old-1/train/data.list", [])
    with pytest.raises(
        DataError, match="exp/softmax are of shards, gone or changed; restore the lists"
    ):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))


def test_the_card_is_written_alone_edited_and_packed_with_the_consent_of_now(
    tmp_path: Path,
) -> None:
    model, card = write_project(tmp_path), tmp_path / "card.md"
    assert pack_model(PackOptions(model_dir=model, out=card)) == card and not list(
        tmp_path.glob(".card*")
    )
    made = card.read_text("utf-8")
    (tmp_path / "consent.tsv").write_text("talk.wav\tyes\tfor research\n", "utf-8")
    card.write_text(
        made.replace("## How to use it", "## Thanks\n\nto all speakers\n\n## How to use it"),
        "utf-8",
    )
    for number in range(2):
        packed = pack_model(PackOptions(model_dir=model, out=tmp_path / f"m{number}", card=card))
        text = (packed / "README.md").read_text("utf-8")
        assert (
            "to all speakers" in text
            and text.count("## Consent and access") == 1
            and "for research" in text
        )
        card.write_text(text + "\n## After it\n", "utf-8")
    other = write_project(tmp_path / "other")
    torch.save(
        {name: 2 * value for name, value in torch.load(other / "final.pt").items()},
        other / "final.pt",
    )
    with pytest.raises(
        DataError, match="card.md: was made for other weights; make it again with --out FILE.md"
    ):
        pack_model(PackOptions(model_dir=other, out=tmp_path / "n", card=card))
    (tmp_path / "consent.tsv").unlink()
    packed = pack_model(PackOptions(model_dir=model, out=tmp_path / "m3", card=card))
    text = (packed / "README.md").read_text("utf-8")
    assert "for research" not in text and text.endswith("\n\n## After it\n")
    card.write_text(f"made in {PRIVATE}/x", "utf-8")
    with pytest.raises(
        ConfigError, match="the model card: would publish the path /home/jane.doe/speech/x"
    ):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "m4", card=card))
    with pytest.raises(ConfigError, match="--push hf://a/b: only the card is written"):
        pack_model(
            PackOptions(model_dir=model, out=tmp_path / "n.md", push="hf://a/b", overwrite=True)
        )


@pytest.mark.parametrize("name", ["{folder}/secret", "secret", "CC BY 4.0"])
def test_the_licence_in_a_card_names_no_file_of_the_user(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("a key")
    packed = pack_model(
        PackOptions(
            model_dir=write_model_folder(tmp_path / "exp"), out=tmp_path / "a", license="mit"
        )
    )
    card = packed / "README.md"
    card.write_text(
        card.read_text("utf-8").replace('"mit"', f'"{name.format(folder=tmp_path)}"'), "utf-8"
    )
    again = PackOptions(model_dir=packed, out=tmp_path / "b")
    for options in (again, replace(again, model_dir=tmp_path / "exp", card=card)):
        with pytest.raises(
            DataError,
            match=r"README.md: license '.*' is no SPDX name; correct it, or give --license",
        ):
            pack_model(options)
    assert not (tmp_path / "b").exists()


def test_the_card_that_names_a_wrong_licence_is_named(tmp_path: Path) -> None:
    """The edited card names none, and that of the packed model is wrong."""
    model = write_model_folder(tmp_path / "exp")
    packed = pack_model(PackOptions(model_dir=model, out=tmp_path / "a", license="mit"))
    card = tmp_path / "card.md"
    card.write_text("---\nlicense: unknown\n---\n")
    assert find_license(packed, card) == "mit"
    readme = packed / "README.md"
    readme.write_text(readme.read_text("utf-8").replace('"mit"', '"our own"'), "utf-8")
    with pytest.raises(DataError, match=r"a/README.md: license 'our own' is no SPDX name"):
        find_license(packed, card)


@pytest.mark.parametrize(
    ("out", "push", "name", "reference"),
    [
        ("models/my.model-v1", None, "my.model-v1", "my.model-v1"),
        ("my-model.ZIP", None, "my-model", "my-model.ZIP"),
        ("my-model.md", None, "my-model", "my-model.zip"),
        ("my-model.zip", "hf://user/name", "my-model", "hf://user/name"),
    ],
)
def test_names_of_a_packed_model(out: str, push: str | None, name: str, reference: str) -> None:
    options = PackOptions(model_dir=Path("exp"), out=Path(out), push=push)
    assert (options.model_name, options.reference) == (name, reference)


def test_flags_that_agree_with_a_card_and_other_names_in_it(tmp_path: Path) -> None:
    folder, card = write_model_folder(tmp_path / "exp"), tmp_path / "card.md"
    pack_model(
        options := PackOptions(model_dir=folder, out=card, license="MIT", languages=("mdw",))
    )
    text = (
        card.read_text("utf-8").replace('license: "mit"', "license: MIT").replace('["mdw"]', "mdw")
    )
    card.write_text(text + "\nCompare scorecard.zip.\n", "utf-8")
    packed = pack_model(replace(options, out=tmp_path / "m", card=card))
    text = (packed / "README.md").read_text("utf-8")
    assert "Compare scorecard.zip." in text and "--model_dir m clip.wav" in text
    card.write_text("# Mine\n\n---\n[a\n", "utf-8")
    options = PackOptions(model_dir=folder, out=tmp_path / "n", card=card)
    assert (pack_model(options) / "README.md").read_text("utf-8").startswith("# Mine\n")
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(DataError, match="exists already; name another one"):
        pack_model(replace(options, out=tmp_path / "folder.zip", overwrite=True))


def test_a_model_that_was_trained_from_shards_is_packed_without_its_hours(tmp_path: Path) -> None:
    model, shards = write_project(tmp_path), tmp_path / "data/tars/data.list"
    shards.parent.mkdir()
    shards.write_text("/speech/0.tar\n")
    write_record(model, shards, kind="shard")
    packed = pack_model(PackOptions(model_dir=model, out=tmp_path / "m"))
    assert "hours" not in (packed / "README.md").read_text("utf-8")
    (tmp_path / "consent.tsv").write_text("recording\tallowed\tnote\nother.wav\tno\t\n", "utf-8")
    with pytest.raises(
        DataError,
        match=r"consent.tsv: recordings are not allowed, and the training lists of .* are of",
    ):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "n"))
    (tmp_path / "consent.tsv").write_text("recording\tallowed\tnote\nunused.wav\tno\t\n", "utf-8")
    with pytest.raises(
        DataError,
        match="are of shards, gone or changed; restore the lists, or train again from lists",
    ):
        pack_model(PackOptions(model_dir=model, out=tmp_path / "n"))
