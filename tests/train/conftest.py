# SPDX-License-Identifier: Apache-2.0
"""A tiny corpus, and trainings of it that tests copy or read but never change."""

from pathlib import Path

import pytest
from tiny_corpus import TinyCorpus, write_tiny_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def trained(tiny_corpus: TinyCorpus) -> Path:
    """A finished folder of the softmax head, with a checkpoint of each of its 8 steps."""
    return tiny_corpus.train(tiny_corpus.folder / "trained-softmax")


@pytest.fixture(scope="session")
def trained_tree(tiny_corpus: TinyCorpus) -> Path:
    """The same with the tree head."""
    return tiny_corpus.train(tiny_corpus.folder / "trained-hsoftmax", head="hsoftmax")
