#!/usr/bin/env bash
# Common Voice, neighbouring languages, one model: characters, softmax against H-Softmax (CER a language).
#   ./run.sh --corpus /data/cv-corpus-11.0-2022-09-21 --langs "ca es fr it pt"   all stages, one family
#   ./run.sh --corpus /data/cv --stage 2 --head "hsoftmax class" --tree brown  other heads, another tree
#   ./run.sh --corpus /data/cv --alpha 0.5 --ratio 0.082                   the downsampling of Liu et al. 2023
#   ./run.sh --corpus /data/cv --nproc 4       by torchrun: a step has the batches of 4 processes, 4 times the speech
# Stages: 0 lists, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stage=0
stop_stage=8
corpus=                       # a release as downloaded: one folder for each language, validated.tsv and clips/
langs="ca es fr it pt be cs pl ru uk ba ky tr tt uz"
alpha=0.5                     # smoothing of the languages' shares
ratio=0.082                   # share of all training hours to keep
seed=1
head="softmax hsoftmax"       # softmax, hsoftmax, class, adaptive: one experiment each
tree=huffman                  # of the heads other than softmax: brown, embedding, … (wenet-hs tree build --help)
config=$here/../../../conf/train_conformer.yaml
override=                     # more settings for training, as "key=value key=value"
modes="ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring"
average_num=10
nproc=1                       # processes of training, statistics and decoding; above 1 by torchrun
data=$here/data
exp=$here/exp
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
# shellcheck source=examples/commonvoice/s0/path.sh
. "$here/path.sh"

at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }
folder() { if [ "$1" = softmax ] || [ "$tree" = huffman ]; then echo "$exp/$1"; else echo "$exp/$1-$tree"; fi; }
for h in $head; do [[ $h =~ ^(softmax|hsoftmax|class|adaptive)$ ]] || { echo "$0: --head: no head $h" >&2; exit 2; }; done
[[ $nproc =~ ^[1-9][0-9]*$ ]] || { echo "$0: --nproc $nproc: must be a whole number from 1 on" >&2; exit 2; }
ranks=(wenet-hs)              # what starts a command that shares its work: alone, or a process for each rank
[ "$nproc" = 1 ] || ranks=(python -m torch.distributed.run --standalone --nproc_per_node "$nproc" -m wenet_hs.bin.main)
read -ra more <<< "$override"; read -ra mode_list <<< "$modes"

if at 0 "data lists"; then
  [ -n "$corpus" ] || { echo "$0: --corpus DIR is required (try --help)" >&2; exit 2; }
  wenet-hs prepare commonvoice --corpus "$corpus" --langs "$langs" --alpha "$alpha" --ratio "$ratio" --seed "$seed" --out "$data"
fi
if at 1 "units"; then wenet-hs units --data_list "$data/train/data.list" --kind char --out "$data/units.txt"; fi
if at 2 "tree"; then
  wenet-hs tree build --kind "$tree" --units "$data/units.txt" --data_list "$data/train/data.list" \
    --out "$data/tree-$tree.json"
fi
if at 3 "feature statistics"; then
  "${ranks[@]}" cmvn --data_list "$data/train/data.list" --config "$config" --out "$data/global_cmvn"
fi
mkdir -p "$exp"
for one in $head; do
  dir=$(folder "$one")
  if at 4 "training with the $one head"; then
    settings=("head=$one" "tokenizer_conf.symbol_table_path=$data/units.txt" "cmvn_conf.cmvn_file=$data/global_cmvn")
    [ "$one" = softmax ] || settings+=("head_conf.tree=$data/tree-$tree.json")
    "${ranks[@]}" train --config "$config" --train_data "$data/train/data.list" --model_dir "$dir" \
      --cv_data "$data/dev/data.list" --override_config "${settings[@]}" "${more[@]}"
  fi
done
for one in $head; do
  dir=$(folder "$one")
  if at 5 "averaging of the $one head"; then wenet-hs average --model_dir "$dir" --num "$average_num"; fi
  if at 6 "decoding with the $one head"; then
    "${ranks[@]}" recognize --model_dir "$dir" --test_data "$data/test/data.list" --result_dir "$dir/test" \
      --modes "${mode_list[@]}"
  fi
  if at 7 "scores of the $one head (in $dir/test/*/score.txt)"; then
    for mode in $modes; do
      wenet-hs score --metric cer --by lang --ref "$data/test/text" --hyp "$dir/test/$mode/text" \
        --data_list "$data/test/data.list" --json "$dir/test/$mode/score.json" --name "${dir##*/}, $mode" \
        --align "$dir/test/$mode/alignment.txt" > "$dir/test/$mode/score.txt"
    done
  fi
done
if at 8 "report"; then
  experiments=(); for one in $head; do experiments+=(--exp "$(folder "$one")"); done
  wenet-hs report "${experiments[@]}" --stats "$data/stats.json" --out "$exp/report.html"
fi
