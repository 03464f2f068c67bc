# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of CTC: costs and gradients as of torch's loss, through the interpreter, and
their compilation.
"""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch on Linux only")
pytestmark = pytest.mark.slow


def test_interpreted() -> None:
    """Runs this file: Triton decides when it is imported whether kernels are interpreted."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def check(frames: list[int], labels: list[list[int]], num_classes: int, scale: float) -> None:
    from wenet_hs.heads.kernels.ctc_triton import ctc_cost

    torch.manual_seed(len(frames))
    scores = (scale * torch.randn(len(frames), max(frames), num_classes)).requires_grad_()
    sizes = torch.tensor([len(one) for one in labels])
    targets = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(one, dtype=torch.int64) for one in labels], batch_first=True
    )
    weights = torch.randn(len(frames)).abs()
    wide = scores.detach().double().requires_grad_()
    expected = torch.nn.functional.ctc_loss(
        wide.log_softmax(-1).transpose(0, 1),
        targets,
        torch.tensor(frames),
        sizes,
        reduction="none",
        zero_infinity=True,
    )
    (expected * weights).sum().backward()
    costs = ctc_cost(scores.log_softmax(-1), torch.tensor(frames), targets, sizes)
    (costs * weights).sum().backward()
    torch.testing.assert_close(costs.double(), expected, rtol=1e-4, atol=1e-4)
    assert scores.grad is not None and wide.grad is not None
    torch.testing.assert_close(scores.grad.double(), wide.grad, rtol=1e-3, atol=1e-4)


def main() -> None:
    torch.set_num_threads(1)
    check(
        [7, 4, 2, 1, 5], [[1, 2, 2], [3], [1, 1], [2], []], 4, 1.0
    )  # the third needs 3 frames: a blank between
    check([12, 9], [[1, 2, 3, 1, 2], [2, 2, 2, 2]], 5, 4.0)
    check([3, 0, 6], [[1], [], [4, 4, 1]], 6, 30.0)
    check([5], [[1, 2, 3, 4, 5]], 6, 1.0)  # one alignment only
    from wenet_hs.heads.kernels.ctc_triton import ctc_cost

    log_probs = torch.randn(2, 4, 3).log_softmax(-1)
    log_probs[1, 2, 1] = torch.nan
    costs = ctc_cost(
        log_probs, torch.tensor([4, 4]), torch.tensor([[1], [1]]), torch.tensor([1, 1])
    )
    assert costs.isnan().tolist() == [False, True], "a step whose loss is NaN is skipped"


TYPES = {
    **{
        "log_probs": "*fp32",
        "frame_counts": "*i64",
        "targets": "*i64",
        "label_counts": "*i64",
        "alphas": "*fp32",
    },
    **{
        "costs": "*fp32",
        "betas": "*fp32",
        "max_frames": "i32",
        "num_classes": "i32",
        "max_labels": "i32",
    },
    "max_states": "i32",
}


@pytest.mark.skipif(
    "TRITON_INTERPRET" in os.environ, reason="kernels are interpreted in this process"
)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("ones", [(), ("max_labels", "max_frames")])
def test_compile_without_a_gpu(capability: int, ones: tuple[str, ...]) -> None:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from wenet_hs.heads.kernels import ctc_triton

    for kernel in (ctc_triton.forward_kernel, ctc_triton.backward_kernel):
        constants: dict[str, Any] = {
            "BLOCK": 256,
            **dict.fromkeys(ones, 1),
        }  # Triton compiles sizes of 1 as constants
        types = {
            name: "constexpr" if name in constants else TYPES[name] for name in kernel.arg_names
        }
        source = ASTSource(kernel, types, constexprs=constants)
        assert compile_kernel(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


if __name__ == "__main__":
    main()
