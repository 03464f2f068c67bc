# SPDX-License-Identifier: Apache-2.0
"""Language models over units, and word vectors.

Text becomes either one sequence of ids for the training of a recurrent model (`text`, `recurrent`,
`sampled`), or counts of n-grams that are smoothed and written as an ARPA file (`ngram`).
A trained model scores and draws text (`score`). For recognition, `loader` loads a recurrent model,
an ARPA file (`backoff`) or a binary file of KenLM (`kenlm_file`) behind the interfaces that
decoding uses (`language_model`).
Word vectors are trained with the same output heads as the recurrent models (`word2vec`,
`word2vec_numba`).
"""
