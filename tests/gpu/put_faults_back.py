# SPDX-License-Identifier: Apache-2.0
"""Puts faults that the guard is for back into a copy of the tree, one by one, and shows that
tests/gpu then fails.

Example: python tests/gpu/put_faults_back.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = {  # what → file, code, the fault, the tests that see it
    "targets are selected by a mask": (
        "wenet_hs/model/asr_model.py",
        "    return values_BM.flatten(0, 1).index_select(0, rows_N)",
        "    mask = torch.zeros(values_BM.shape[0] * values_BM.shape[1], dtype=torch.bool, device=values_BM.device)\n"
        "    mask[rows_N] = True\n    return values_BM.flatten(0, 1)[mask]",
        "test_training_on_gpu.py -k softmax-fp32",
    ),
    "batches are not pinned": (
        "wenet_hs/train/speech.py",
        "        pin = is_gpu(self.state.device)",
        "        pin = False",
        "test_training_on_gpu.py -k resume",
    ),
    "gradients are clipped one by one": (
        "wenet_hs/train/optim.py",
        "    torch._foreach_mul_(values, ",
        "    for value in values:\n        value.mul_(",
        "test_training_on_gpu.py -k softmax-fp32",
    ),
    "a softmax of many units in the CPU's blocks": (
        "wenet_hs/heads/softmax.py",
        "        if is_gpu(hidden_ND.device):",
        "        if False:",
        "test_heads_on_gpu.py -k softmax",
    ),
    "a search reads the device at each unit": (
        "wenet_hs/decode/attention_search.py",
        "self.sync_is_free or self.num_units % _SYNC_EVERY_ON_GPU == 0",
        "True",
        "test_decoding_on_gpu.py -k waits_once",
    ),
    "a table stays on the CPU": (
        "wenet_hs/heads/hsoftmax.py",
        "(copy_to(device, nodes_VP), copy_to(device, turns_VP))",
        "(nodes_VP, turns_VP)",
        "test_heads_on_gpu.py -k hsoftmax",
    ),
    "rows of clusters are found one by one": (
        "wenet_hs/heads/adaptive.py",
        "torch.split(cluster_N.argsort(stable=True), num_rows)",
        "[torch.nonzero(cluster_N == cluster)[:, 0] for cluster in range(-1, len(self.cutoffs))]",
        "test_heads_on_gpu.py -k adaptive",
    ),
    "a kernel starts on the current device": (
        "wenet_hs/heads/kernels/triton_launch.py",
        "nullcontext() if is_interpreted else torch.get_device_module(device).device(device)",
        "nullcontext()",
        "test_kernels_on_gpu.py",
    ),
}


def main() -> None:
    """Exit code 1 if the guard does not see a fault."""
    unseen = []
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv*", ".git", "exp", "data", "build")
        )
        for what, (file, code, fault, tests) in FAULTS.items():
            text = (tree / file).read_text("utf-8")
            assert text.count(code) == 1, f"{file}: {code}"
            (tree / file).write_text(text.replace(code, fault), "utf-8")
            command = f"-m pytest -q -n 0 -m slow --show-capture=no -p no:cacheprovider tests/gpu/{tests}".split()
            environment = os.environ | {"PYTHONPATH": str(tree)}
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            (tree / file).write_text(text, "utf-8")
            sys.stdout.write(f"{what}: {done.stdout.strip().splitlines()[-1]}\n")
            unseen += [what] if done.returncode != 1 else []
    sys.exit(f"not seen: {', '.join(unseen)}" if unseen else 0)


if __name__ == "__main__":
    main()
