# SPDX-License-Identifier: Apache-2.0
"""Acoustic models, their weights, and the folders of trained models.

A model is built from a config: an encoder, CTC, and a decoder with its output head if it has one
(`build`, `encoders`, `asr_model`). Its weights are written as verified checkpoints, and are read
from these or from WeNet's files (`checkpoint`, `foreign_weights`). A trained model is loaded from
its folder, from a ZIP or from the Hugging Face Hub, after a check that all of its files belong
together (`packed`, `experiment`); which decoding modes it supports is in a table (`modes`).
"""
