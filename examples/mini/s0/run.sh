#!/usr/bin/env bash
# Mini: six languages of SIMULATED speech (espeak-ng), and two recognisers that differ in the output head alone.
#   ./run.sh                                      everything, in about ten minutes on two cores
#   ./run.sh --stage 2 --head "class adaptive"    other heads on the same speech; --tree brown: another tree
#   ./run.sh --head hsoftmax --langs "es it"      one head, two languages (with --data and --exp of their own)
#   ./run.sh --nproc 2                            by torchrun: the processes share each batch, steps are as many as ever
# Stages: 0 speech, 1 units, 2 tree, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stage=0
stop_stage=8
langs="cs es it ky tr uk"
head="softmax hsoftmax"       # softmax, hsoftmax, class, adaptive: one experiment each
tree=huffman                  # of the heads other than softmax: brown, embedding, … (wenet-hs tree build --help)
hours=2.0                     # of training speech, over all languages
config=$here/../../../conf/mini.yaml
override=                     # more settings for training, as "key=value key=value"
modes="ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring"
average_num=3
seed=0
nproc=1                       # processes of training, statistics and decoding; above 1 by torchrun, head after head
data=$here/data
exp=$here/exp
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"
# shellcheck source=examples/mini/s0/path.sh
. "$here/path.sh"

at() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && echo "$(date +%T) stage $1: $2"; }
folder() { if [ "$1" = softmax ] || [ "$tree" = huffman ]; then echo "$exp/$1"; else echo "$exp/$1-$tree"; fi; }
for h in $head; do [[ $h =~ ^(softmax|hsoftmax|class|adaptive)$ ]] || { echo "$0: --head: no head $h" >&2; exit 2; }; done
[[ $nproc =~ ^[1-9][0-9]*$ ]] || { echo "$0: --nproc $nproc: must be a whole number from 1 on" >&2; exit 2; }
ranks=(wenet-hs)              # what starts a command that shares its work: alone, or a process for each rank
[ "$nproc" = 1 ] || ranks=(python -m torch.distributed.run --standalone --nproc_per_node "$nproc" -m wenet_hs.bin.main)
read -ra more <<< "$override"; read -ra mode_list <<< "$modes"

if at 0 "simulated speech of six languages"; then
  wenet-hs prepare synthetic --langs "$langs" --sentences "$here/sentences" --hours "$hours" --seed "$seed" --out "$data"
fi
if at 1 "units"; then wenet-hs units --data_list "$data/train/data.list" --kind char --out "$data/units.txt"; fi
if at 2 "tree"; then
  wenet-hs tree build --kind "$tree" --units "$data/units.txt" --data_list "$data/train/data.list" \
    --out "$data/tree-$tree.json"
fi
if at 3 "feature statistics"; then
  "${ranks[@]}" cmvn --data_list "$data/train/data.list" --config "$config" --out "$data/global_cmvn"
fi
shown=$((nproc > 1 ? 60 : 3))  # lines of a log where training fails: torchrun writes many behind the one that says why
wait_for_all() { for _ in "${logs[@]}"; do wait -n || { tail -n $shown "${logs[@]}" >&2; exit 2; }; done; logs=(); }
mkdir -p "$exp"; logs=(); trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT  # no training outlives this script
for one in $head; do
  dir=$(folder "$one")
  if at 4 "training with the $one head, a core a process (its log: $dir.log)"; then
    settings=("head=$one" "tokenizer_conf.symbol_table_path=$data/units.txt" "cmvn_conf.cmvn_file=$data/global_cmvn")
    [ "$nproc" = 1 ] || settings+=("dataset_conf.batch_conf.max_frames_in_batch=$((1500 / nproc))")
    [ "$one" = softmax ] || settings+=("head_conf.tree=$data/tree-$tree.json")
    OMP_NUM_THREADS=1 "${ranks[@]}" train --config "$config" --train_data "$data/train/data.list" --model_dir "$dir" \
      --cv_data "$data/dev/data.list" --override_config "${settings[@]}" "${more[@]}" > "$dir.log" 2>&1 &
    logs+=("$dir.log"); [ "$nproc" = 1 ] || wait_for_all
  fi
done
wait_for_all; for one in $head; do
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
