# SPDX-License-Identifier: Apache-2.0
"""Models outside Python: ONNX files for onnxruntime, sherpa-onnx and WeNet's runtime."""
