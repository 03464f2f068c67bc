#!/usr/bin/env bash
# Mini with language models of the training sentences: an n-gram and a recurrent one, both over characters. Run it after
# ./run.sh. The weight of each is chosen on the dev set, for each recogniser and mode; the test set is decoded with it.
#   ./fusion.sh                                        about 10 minutes on two cores; writes results/fusion.md
#   ./fusion.sh --data D --exp E --out F.md            other folders of ./run.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$here/data               # folder of ./run.sh with lists and units
exp=$here/exp                 # folder of ./run.sh with the recognisers
head="softmax hsoftmax"       # the recognisers
modes="ctc_prefix_beam_search attention_rescoring joint"
weights="0.05 0.1 0.2 0.3 0.5"  # of the language model, tried on the dev set
override=                     # more settings of the recurrent model, as "key=value key=value"
out=$here/results/fusion.md
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
PATH="$here/../../../.venv/bin:$PATH"

cut -d ' ' -f 2- "$data/dev/text" > "$data/dev.txt"
cut -d ' ' -f 2- "$data/train/text" | python -c '  # the lists are in the order of the languages
import random, sys
sentences = sys.stdin.readlines()
random.Random(0).shuffle(sentences)
sys.stdout.writelines(sentences)' > "$data/train.txt"
wenet-hs lm ngram --data_list "$data/train/data.list" --order 5 --discount_fallback --out "$data/units.arpa"
# shellcheck disable=SC2086  # settings are words
wenet-hs lm train --config "$here/../../../conf/lm.yaml" --train_text "$data/train.txt" --valid_text "$data/dev.txt" \
  --model_dir "$exp/lm" --override_config "tokenizer_conf.symbol_table_path=$data/units.txt" $override
wenet-hs lm score --model_dir "$exp/lm" --text "$data/dev.txt"
# shellcheck disable=SC2086  # names are words
python "$here/../../../tools/fusion.py" --exp "$exp" --head $head --data "$data" --lm "$data/units.arpa" "$exp/lm" --modes $modes \
  --weights $weights --out "$out"
