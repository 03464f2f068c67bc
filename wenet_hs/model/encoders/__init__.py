# SPDX-License-Identifier: Apache-2.0
"""Encoders of speech: the input of a frontend becomes the memory of a model.

All encoders have one interface (`base`). Ours are stacks of Conformer or Transformer layers, which
can also encode a stream chunk by chunk (`stack`, `stream`). Pretrained encoders use the modules of
`transformers`: a folder is recognised and described (`other_forms`, `description`), the encoder is
made (`kinds`, `pretrained`) and its weights are loaded (`weights`); the outputs of a frozen one can
be the features of a training (`outputs`).
"""
