#!/usr/bin/env bash
# UCLA Phonetic Corpus: phones of languages never heard in training, softmax against H-Softmax (PER per language).
#   ./run.sh --corpus /data/ucla                        all stages
#   ./run.sh --corpus /data/ucla --stage 2 --head "hsoftmax class" --tree articulatory   phones by their features
#   ./run.sh --corpus /data/ucla --dev_langs "wuu cpn ell" --eval_set dev --data data-dev --exp exp-dev   for choices
#   ./run.sh --corpus /data/ucla --pretrain 14 --base_steps 3000 --data data-simulated-14 --exp exp-simulated-14
# The last one is real + simulated: the first part of training on 14 hours of simulated words.
# Stages: 0 lists, 1 units, 2 trees, 3 feature statistics, 4 training, 5 averaging, 6 decoding, 7 scores, 8 report.
# shellcheck disable=SC2086  # lists of names are words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tools/recipe.sh
. "$root/tools/recipe.sh"
corpus=                       # one folder for each language: text.txt, audio/
test_langs="bin sbc mal kea klu aeb mak fin abk ace"  # held out from training and units
dev_langs=                    # languages held out for choices, such as "wuu cpn ell col eus" (README); else 5 % of the words
train_share=1                 # share of the training utterances, for learning curves; 0.25 is a part of 0.5
pretrain=0                    # hours of simulated words for the first part of training; 0: the real speech
exclude_langs="dra sem cus poz map roa la ht ia lfn fi et smj"  # voices that do not speak: relatives of the test languages
encoder=                      # folder of Whisper's encoder (docs/pretrained.md); --config is conf/ucla_whisper.yaml then
config=$root/conf/ucla.yaml   # YAML of the experiment
base_steps=1500               # of the first part of training, with CTC alone, from which all heads start; 0: none
ctc_tree=                     # H-Softmax for CTC too, over this tree.json (wenet-hs tree build --blank_share 0.7); "": softmax
inventory=                    # known units of each language (wenet-hs units --inventory): no other unit is recognised
place_unseen=                 # where units of --inventory are placed that the model does not have: articulatory
modes="ctc_greedy_search ctc_prefix_beam_search attention attention_rescoring joint"  # of decoding; the results are of joint
unit=phone                    # char, phone, or bpe:N with N pieces
OF_DATA="corpus test_langs dev_langs train_share pretrain exclude_langs" OF_EXP="base_steps ctc_tree encoder"
read_options "$@"
yaml=$config cmvn=(--cmvn "$data/global_cmvn") kept=dataset_conf.cache_features=true not_kept=dataset_conf.cache_features=false
if [ -n "$encoder" ]; then  # no statistics; kept are the encoder's outputs, of simulated words (19 GB for 14 h) at one speed only
  cmvn=() kept=encoder_conf.cache=$data/encoder_outputs not_kept=dataset_conf.speed_perturb=false
  [ "$config" != "$root/conf/ucla.yaml" ] || yaml=$root/conf/ucla_whisper.yaml
  more=("encoder_conf.path=$encoder" "$kept" "${more[@]}")
fi
wenet-hs check-options --config "$yaml" --head $head --tree "$tree" --modes $modes --unit "$unit" \
  --seeds $seeds ${ctc_tree:+--ctc_head hsoftmax --ctc_tree "$ctc_tree"} ${inventory:+--inventory "$inventory"} \
  ${place_unseen:+--place_unseen "$place_unseen"} --override_config "${more[@]}" "model_conf.ctc_only_steps=$base_steps"
[[ $pretrain = 0 || ($base_steps != 0 && $unit = phone) ]] || fail "--pretrain $pretrain: needs --base_steps above 0, and --unit phone"
first=$data lists=("$data/train/data.list")  # the lists of the first part of training, and those whose units the model has
[ "$pretrain" = 0 ] || { first=$data/simulated; lists+=("$first/train/data.list"); }

if at 0 "data lists"; then
  [ -n "$corpus" ] || fail "--corpus DIR is required (try --help)"
  wenet-hs prepare ucla --corpus "$corpus" --test_langs "$test_langs" --dev_langs "$dev_langs" --train_share "$train_share" \
    --seed "$data_seed" --out "$data"
  [ "$pretrain" = 0 ] || wenet-hs prepare synthetic --unit phone --hours "$pretrain" --exclude_langs "$exclude_langs" \
    --match_list "$data/train/data.list" --seed "$data_seed" --out "$data/simulated"
  keep_options data
fi

if at 1 "units"; then wenet-hs units --data_list "${lists[@]}" --kind "$kind" "${pieces[@]}" "${bpe[@]}" --out "$data/units.txt"; fi
if at 2 "trees"; then
  for seed in $seeds; do
    [[ $tree = *.json ]] || wenet-hs tree build --kind "$tree" --seed "$seed" --tokenizer "$kind" "${bpe[@]}" \
      --units "$data/units.txt" --data_list "$data/train/data.list" --out "$(tree_of "$seed")"
  done
fi

if [ -z "$encoder" ] && at 3 "feature statistics"; then "${wenet_hs[@]}" cmvn --data_list "$data/train/data.list" --config "$yaml" --out "$data/global_cmvn" --override_config "${more[@]}"; fi

if at 4 "training (logs: $exp/*.log)"; then
  keep_options exp
  train=("${wenet_hs[@]}" train --config "$yaml" "${cmvn[@]}" --units "$data/units.txt" --tokenizer "$kind" "${bpe[@]}"
    ${ctc_tree:+--ctc_head hsoftmax --ctc_tree "$ctc_tree"})
  for seed in $seeds; do  # the first part
    name=$(name_of base "$seed")
    [ "$base_steps" = 0 ] || beside "$exp/$name.log" "${train[@]}" --model_dir "$exp/$name" --seed "$seed" --head softmax \
      --train_data "$first/train/data.list" --cv_data "$first/dev/data.list" --override_config scheduler_conf.warmup_steps=400 \
      "${more[@]}" "$([ "$pretrain" = 0 ] && echo "$kept" || echo "$not_kept")" \
      "model_conf.ctc_only_steps=$base_steps" "scheduler_conf.total_steps=$base_steps"
  done
  wait_below 1  # the heads start from the first part
  for seed in $seeds; do
    start=(); [ "$base_steps" = 0 ] || start=(--checkpoint "$exp/$(name_of base "$seed")")
    for one in $head; do
      name=$(name_of "$one" "$seed")
      beside "$exp/$name.log" "${train[@]}" --model_dir "$exp/$name" --seed "$seed" --head "$one" --tree "$(tree_of "$seed")" \
        "${start[@]}" --train_data "$data/train/data.list" --cv_data "$data/dev/data.list" --override_config "${more[@]}"
    done
  done
  wait_for_trainings
fi

decoded+=${inventory:+-inventory}${place_unseen:+-$place_unseen}
for dir in "${experiments[@]}"; do
  if at 5 "average of $dir"; then wenet-hs average --model_dir "$dir" --num "$average_num"; fi
  if at 6 "decoding with $dir"; then
    "${wenet_hs[@]}" recognize --model_dir "$dir" --test_data "$data/$eval_set/data.list" --result_dir "$dir/$decoded" "${chunks[@]}" --modes $modes \
      ${inventory:+--inventory "$inventory"} ${place_unseen:+--place_unseen "$place_unseen"}
  fi
  if at 7 "scores of $dir ($decoded/MODE/score.txt)"; then
    wenet-hs score --metric "$metric" --by lang --ref "$data/$eval_set/text" --data_list "$data/$eval_set/data.list" \
      --hyp "$dir/$decoded" --name "${dir##*/}" > /dev/null
  fi
done

if at 8 "report"; then
  wenet-hs report "${experiments[@]/#/--exp=}" --stats "$data/stats.json" --data_list "$data/$eval_set/data.list" \
    --test "$decoded" --out "$exp/report.html" ${results:+--results "$results"}
fi
