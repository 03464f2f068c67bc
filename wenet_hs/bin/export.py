# SPDX-License-Identifier: Apache-2.0
"""Write a model as ONNX files, for onnxruntime, sherpa-onnx or WeNet's runtime.

Example: wenet-hs export --model_dir exp/hsoftmax --out exported --for sherpa --test_data data/test/data.list
         wenet-hs export --model_dir exp/causal --out streaming --for sherpa --streaming --chunk 16 --left 4

The files are compared with PyTorch.

OUT/README.md has the command that runs the files; docs/export.md says what runs where.
"""

import argparse

from wenet_hs.base.options import add_options, read_options
from wenet_hs.bin.main import main_of
from wenet_hs.export.job import export_model
from wenet_hs.export.options import ExportOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ExportOptions)


def run(args: argparse.Namespace) -> None:
    options = read_options(args, ExportOptions)
    for line in export_model(options):
        print(line)
    names = ", ".join(
        f"{path.name} {path.stat().st_size / 1e6:.1f} MB"
        for path in sorted(options.out.glob("*.onnx"))
    )
    print(f"{options.out}: {names}; its README.md has the command that runs it")


if __name__ == "__main__":
    main_of(__name__)
