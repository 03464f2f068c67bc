# SPDX-License-Identifier: Apache-2.0
"""Write a model to share, as a folder or a ZIP file.

Example: wenet-hs pack --model_dir exp/hsoftmax --out my-model.zip --license cc-by-4.0 \\
             --data "Common Voice 17 of six languages, read speech" \\
             --datasets mozilla-foundation/common_voice_17_0

The packed model has weights as safetensors, settings without private paths, units and a model card.

The card has the error rates of MODEL_DIR/*/*/score.json, and hours and languages of the training
lists, if these still exist. --model_dir and --checkpoint of the other commands take the folder, the
ZIP or hf://user/name (docs/sharing.md).
"""

import argparse

from wenet_hs.base.options import add_options, read_options
from wenet_hs.bin.main import main_of
from wenet_hs.share.options import PackOptions
from wenet_hs.share.pack import pack_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a flag per field of PackOptions."""
    add_options(parser, PackOptions)


def run(args: argparse.Namespace) -> None:
    """Pack the model, and print its size and the next step.

    The output is a folder, a ZIP file, or only the model card, to edit it: a .md file.
    """
    out = pack_model(read_options(args, PackOptions))
    files = out.iterdir() if out.is_dir() else [out]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    to_do = "read its README.md before you share it"
    if out.suffix == ".md":
        to_do = "edit it, and give it with --card"
    print(f"{out}: {megabytes:.1f} MB; {to_do}")


if __name__ == "__main__":
    main_of(__name__)
