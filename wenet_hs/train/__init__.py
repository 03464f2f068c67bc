# SPDX-License-Identifier: Apache-2.0
"""Training: from the options of a command to `final.pt`, of recognisers and of language models.

`start` reads what the options name, `start_record` and `model_folder` prepare the model folder, and
`speech` or `language_model` builds the task: model, optimizer and data, with the weights that
`finetune` takes from a trained model.
`training` then runs the steps of the task with its validations and checkpoints; a step is in
`speech_steps` or `language_model`, its shared parts are in `step` and `optim`, and `state` has all
that a checkpoint saves.
After each step `monitor` and `run_recorder` write what a user sees; at the end `average` chooses
the checkpoints of which `final.pt` is made.
"""
