# SPDX-License-Identifier: Apache-2.0
"""Reading weights: each fault of a file is one line, and no code in a file ever runs."""

import contextlib
import io
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model

from wenet_hs.model.checkpoint import load_weights, read_weights
from wenet_hs.tree.errors import CheckpointError


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


GOOD = saved({"a": torch.arange(6.0), "b": torch.zeros((), dtype=torch.int64)})


def load_bytes(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    path.write_bytes(content)
    return read_weights(path)


def test_a_file_and_a_checkpoint_folder_are_read(tmp_path: Path) -> None:
    assert list(load_bytes(tmp_path / "x.pt", GOOD)) == ["a", "b"]
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "model.pt").write_bytes(GOOD)
    assert read_weights(tmp_path / "step-1")["a"].tolist() == [0, 1, 2, 3, 4, 5]
    old = io.BytesIO()
    torch.save(OrderedDict(a=torch.ones(2)), old, _use_new_zipfile_serialization=False)
    assert load_bytes(tmp_path / "x.pt", old.getvalue())["a"].tolist() == [1, 1]
    for path, message in (
        (
            tmp_path / "y.pt",
            "y.pt: no such file; `wenet-hs train` writes checkpoints, `wenet-hs aver",
        ),
        (tmp_path, "/final.pt: no such file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_weights(path)


class Hostile:
    """Its unpickling would make a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def test_a_damaged_or_hostile_file_is_one_line_and_runs_nothing(tmp_path: Path) -> None:
    marker, rng = tmp_path / "marker", random.Random(0)
    with zipfile.ZipFile(tmp_path / "z.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": Hostile(marker)}))
        archive.writestr("x/version", "3\n")
    contents = [pickle.dumps({"a": Hostile(marker)}, protocol=0), saved(Hostile(marker))]
    contents += [
        (tmp_path / "z.pt").read_bytes(),
        b"cos\nsystem\n(S'touch x'\ntR.",
        b"",
        b"no checkpoint",
        GOOD[:-1],
    ]
    contents += [GOOD[: rng.randrange(len(GOOD))] for _ in range(10)]
    contents += [rng.randbytes(rng.randrange(1, 300)) for _ in range(10)]
    for content in contents:
        with pytest.raises(
            CheckpointError, match=r"x.pt: not a readable checkpoint [^\n]*$"
        ) as caught:
            load_bytes(tmp_path / "x.pt", content)
        assert len(str(caught.value)) < 400
    assert not marker.exists()
    for _ in range(30):  # a flipped bit may load; the SHA-256 of a manifest finds it
        flipped = bytearray(GOOD)
        flipped[rng.randrange(len(GOOD))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CheckpointError):
            load_bytes(tmp_path / "x.pt", bytes(flipped))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model": {"a": torch.zeros(1)}, "epoch": 3},
        [torch.zeros(1)],
        {1: torch.zeros(1)},
        {"a": torch.zeros(1).to_sparse()},
        {"a": torch.zeros(1, dtype=torch.complex64)},
        {"a": torch.zeros(1, device="meta")},
    ],
)
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"x.pt: contains no state_dict \(parameter names with tensors\); give",
    ):
        load_bytes(tmp_path / "x.pt", saved(content))


def test_weights_of_another_model_are_named_and_not_loaded() -> None:
    model = small_model()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    load_weights(model, state, "x.pt")
    changed = {name: value + 1 for name, value in state.items()}
    fewer = {
        name: value for name, value in changed.items() if not name.startswith("decoder.decoders.1.")
    }
    missing = "x.pt: weights of another model: missing decoder.decoders.1.self_attn.linear_q.weight, .*, and 21 more"
    for wrong, message in (
        (fewer, missing),
        (
            changed | {"extra": torch.zeros(1), "more": torch.zeros(1)},
            "unexpected extra, more; use",
        ),
        (
            changed | {"head.output.weight": torch.zeros(7, 16)},
            r"output.weight \(7, 16\), expected \(11, 16\); use",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_weights(model, wrong, "x.pt")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
