# SPDX-License-Identifier: Apache-2.0
"""Models of other toolkits as models of ours, with the same outputs.

`huggingface` is `wenet-hs import`: it writes a fine-tuned CTC model of transformers as a model
folder. The units of that folder are made of the tokens of its tokenizer (`vocabulary`). `wenet`
loads the config and weights of a WeNet model.
"""
