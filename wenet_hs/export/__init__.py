# SPDX-License-Identifier: Apache-2.0
"""Models outside Python: ONNX files for onnxruntime, sherpa-onnx and WeNet's runtime.

`job` is `wenet-hs export`: it checks that the runtime can run the model (`options`, `checks`),
writes its files and renames their folder when all of them are right. The parts of the model become
modules of tensors (`modules`), these become files with the names that the runtime reads (`graphs`,
`onnx_files`), and a README says how to run them (`readme`). Before that, onnxruntime runs the files
on clips (`clips`), and its outputs are compared with those of PyTorch (`compare`, `int8`).
"""
