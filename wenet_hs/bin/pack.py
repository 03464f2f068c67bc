# SPDX-License-Identifier: Apache-2.0
"""Write a model to share, as a folder or a ZIP file.

Example: wenet-hs pack --model_dir exp/hsoftmax --out my-model.zip --license cc-by-4.0 \\
             --data "Common Voice 17 of six languages, read speech" --datasets
             mozilla-foundation/common_voice_17_0

It has weights as safetensors, settings without private paths, units and a model card.

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
    add_options(parser, PackOptions)


def run(args: argparse.Namespace) -> None:
    out = pack_model(read_options(args, PackOptions))
    size = sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out]))
    to_do = (
        "edit it, and give it with --card"
        if out.suffix == ".md"
        else "read its README.md before you share it"
    )
    print(f"{out}: {size / 1e6:.1f} MB; {to_do}")


if __name__ == "__main__":
    main_of(__name__)
