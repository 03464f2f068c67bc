# SPDX-License-Identifier: Apache-2.0
"""Models to share: `wenet-hs pack`.

`pack` writes the folder or ZIP, or uploads it, without anything that is private (`privacy`). It
asks first whether each recording of the training may be used so (`trained_on`). The model card is
made from what the folder of the model knows (`card`), or is one that a person has edited
(`edited_card`).
"""
