# SPDX-License-Identifier: Apache-2.0
"""Frontends of installed packages: their settings, their features, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import write_model_folder
from sample_extension import importable, install_sample, write_metadata
from small_models import small_config, small_model

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.decode.endpoints import EndpointRules
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.stream import RecognitionStream
from wenet_hs.export.checks import check_model
from wenet_hs.export.options import ExportOptions
from wenet_hs.frontends import build_frontend
from wenet_hs.model.build import build_model
from wenet_hs.model.experiment import check_same_model, load_experiment
from wenet_hs.tree.errors import CheckpointError, ConfigError

STREAMING = {"encoder_conf": {"causal": True, "use_dynamic_chunk": True}}


def with_spectrum(window: int = 40) -> dict[str, Any]:
    """The section of a config whose features are those of the package: half as many as a window has
    samples.
    """
    return {"frontend": "spectrum", "frontend_conf": {"window": window}, "fbank_conf": None}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = install_sample(tmp_path / "site")
    with importable(folder):
        yield folder


def test_features_of_a_frontend_of_a_package() -> None:
    conf = DatasetConf(**with_spectrum(4), resample_conf={"resample_rate": 8000})
    frontend = build_frontend(conf)
    assert (frontend.rate, frontend.frame_s, frontend.width) == (8000, 0.0005, 2)
    features = frontend.compute(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))
    assert features.shape == (
        1,
        2,
    )  # an impulse has a flat spectrum; the last sample is no whole window
    torch.testing.assert_close(features, torch.zeros(1, 2), rtol=0, atol=1e-5)
    assert conf.feature_settings() == {"frontend": "spectrum", "resample_rate": 8000, "window": 4}
    assert small_config(dataset_conf=with_spectrum()).extensions()[0].name == "spectrum"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{frontend: mfcc}",
            "x:1: dataset_conf.frontend: must be one of fbank, spectrum, got 'mfcc'",
        ),
        (
            "{frontend: spectrum, frontend_conf: {hop: 1}}",
            "x:1: dataset_conf.frontend_conf.hop: unknown key; remove it",
        ),
        (
            "{frontend_conf: {window: 1}}",
            "x:1: dataset_conf.frontend_conf.window: unknown key; remove it",
        ),
        (
            "{frontend: spectrum, fbank_conf: {num_mel_bins: 40}}",
            "x:1: dataset_conf.fbank_conf: has no effect with frontend: spectrum; remove it, or set null",
        ),
    ],
)
def test_wrong_settings(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"dataset_conf: {text}\n", "utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value).replace(f"{path}:", "x:") == message


def test_too_few_features_for_the_encoder() -> None:
    config = small_config(dataset_conf=with_spectrum(12))
    found = "^dataset_conf.frontend_conf: 6 features per frame, but input_layer: conv2d needs at least 7; change one"
    with pytest.raises(ConfigError, match=found):
        build_model(config, 11, small_model().special)


def test_a_pretrained_encoder_has_its_own_frontend() -> None:
    found = "dataset_conf.frontend: the encoder computes its own input; remove it"
    with pytest.raises(ValueError, match=found):
        ExperimentConfig(
            encoder="pretrained",
            encoder_conf={"path": "x"},
            dataset_conf={**with_spectrum(), "spec_aug": False},
        )


def test_streams_and_other_runtimes_have_no_such_frontend(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "exp", dataset_conf=with_spectrum(), **STREAMING)
    experiment = load_experiment(folder)
    with pytest.raises(
        ConfigError, match="^stream: the frontend spectrum reads whole utterances; use a model with"
    ):
        RecognitionStream(experiment, "ctc_greedy_search", DecodeOptions(), None, EndpointRules())
    options = ExportOptions(model_dir=str(folder), out=tmp_path / "out", runtime="sherpa")
    found = "^--for sherpa: it has no frontend spectrum, which computes the input of this model; use --for onnxruntime$"
    with pytest.raises(ConfigError, match=found):
        check_model(experiment, options)


def test_weights_of_a_model_with_another_frontend(tmp_path: Path) -> None:
    own = load_experiment(write_model_folder(tmp_path / "own", dataset_conf=with_spectrum()))
    other = write_model_folder(tmp_path / "other")
    with pytest.raises(
        CheckpointError, match="a model with frontend fbank, not spectrum; give --model_dir"
    ):
        check_same_model(other / "final.pt", own.config, own.tokenizer.table, own.model_dir)


FRONTEND = """
from wenet_hs.config.section import Section

class Conf(Section):
    cutoffs: {type} = {value}

    def build(self, {arguments}):
        return {result}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            FRONTEND.format(type="int", value=1, arguments="rate", result="1 / 0"),
            "`build` failed (ZeroDivisionError: division by zero); install another version of odd, or remove it",
        ),
        (
            FRONTEND.format(type="int", value=1, arguments="", result="None"),
            "`build` failed (TypeError: Conf.build() takes 1 positional argument but 2 were given); "
            "install another version of odd, or remove it",
        ),
        (
            FRONTEND.format(type="int", value=1, arguments="rate", result="None"),
            "`build` returned NoneType, not a wenet_hs.frontends.base.Frontend; install another version of odd",
        ),
        (
            FRONTEND.format(type="list[int]", value=[1], arguments="rate", result="None"),
            "its settings are no key of a dictionary (TypeError: unhashable type: 'list'); "
            "install another version of odd, or remove it",
        ),
    ],
)
def test_mistakes_of_a_frontend_of_a_package(installed: Path, text: str, found: str) -> None:
    (installed / "odd_frontend.py").write_text(text, "utf-8")
    write_metadata(installed, "odd", "1", {"wenet_hs.frontends": {"odd": "odd_frontend:Conf"}})
    with pytest.raises(ConfigError) as error:
        build_frontend(DatasetConf(frontend="odd"))
    assert str(error.value) == f"frontend odd of the package odd 1: {found}"


def test_a_frontend_of_a_package_is_built_once() -> None:
    conf = DatasetConf(**with_spectrum())
    assert build_frontend(conf) is build_frontend(conf)
