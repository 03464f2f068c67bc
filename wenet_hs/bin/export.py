# SPDX-License-Identifier: Apache-2.0
"""Write a model as ONNX files, for onnxruntime, sherpa-onnx or WeNet's runtime.

Example: wenet-hs export --model_dir exp/hsoftmax --out exported --for sherpa \\
             --test_data data/test/data.list
         wenet-hs export --model_dir exp/causal --out streaming --for sherpa --streaming \\
             --chunk 16 --left 4

The files are compared with PyTorch. OUT/README.md has the command that runs them; docs/export.md
says what runs where.
"""

import argparse

from wenet_hs.base.options import add_options, read_options
from wenet_hs.bin.main import main_of
from wenet_hs.export.job import export_model
from wenet_hs.export.options import ExportOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a flag per field of ExportOptions."""
    add_options(parser, ExportOptions)


def run(args: argparse.Namespace) -> None:
    """Write the files, print how they differ from PyTorch, and print their sizes."""
    options = read_options(args, ExportOptions)
    for line in export_model(options):
        print(line)
    sizes = []
    for path in sorted(options.out.glob("*.onnx")):
        megabytes = path.stat().st_size / 1e6
        sizes.append(f"{path.name} {megabytes:.1f} MB")
    print(f"{options.out}: {', '.join(sizes)}; its README.md has the command that runs it")


if __name__ == "__main__":
    main_of(__name__)
