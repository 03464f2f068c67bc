#!/usr/bin/env bash
# Trainings of the paper's network (conf/paper_ucla.yaml, without a part of CTC alone) on the UCLA corpus that end within ten
# minutes on one GPU: softmax and a Huffman tree of one seed side by side, then a random tree beside softmax of the next seed, and so
# on while there is time. Each is decoded in every mode by examples/ucla/s0/run.sh. The paper's schedule would lie wholly in its
# warm-up at this size, so rate, warm-up, batch and epochs are others; the table names every change, and what is missing.
# OUT keeps results/NAME.json (of `report --results`), NAME.rtf.json, the end of the logs, gpu_trainings.md and .json.
#   benchmarks/gpu_trainings.sh --corpus /data/ucla --out benchmarks/notes/gpu_trainings       on a machine with a GPU
#   benchmarks/gpu_trainings.sh --corpus DIR --out /tmp/gpu --small     on a CPU: a tiny network, few steps; "not measured"
# It takes the `wenet-hs` of the PATH, or else the Python $PYTHON, that of .venv, or python3 with the packages of setup.py.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
corpus="" out="" small=""
while [ $# -gt 0 ]; do
  case $1 in
    --small) small=--small && shift ;;
    --corpus | --out) [ $# -ge 2 ] || { echo "$0: $1 needs a folder" >&2; exit 2; }; printf -v "${1#--}" '%s' "$2"; shift 2 ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    *) echo "$0: unknown option '$1' (try --help)" >&2; exit 2 ;;
  esac
done
[ -d "$corpus" ] || { echo "$0: --corpus '$corpus': no such folder; give that of the UCLA corpus (try --help)" >&2; exit 2; }
[ -n "$out" ] || { echo "$0: --out DIR is required (try --help)" >&2; exit 2; }
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
device=cuda
[ -z "$small" ] || { device=cpu && export CUDA_VISIBLE_DEVICES=; }
[ -n "$small" ] || "$python" -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null ||
  { echo "$0: PyTorch finds no GPU here; --small runs the small form on the CPU" >&2; exit 2; }

deadline=580 longest=0 failed=0 work=$(mktemp -d)  # seconds of all trainings; the table comes after them
trap 'jobs -p | xargs -r kill 2> /dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$out/results" "$work/bin"
out=$(cd "$out" && pwd) corpus=$(cd "$corpus" && pwd)
rm -f "$out"/results/*.json "$out"/*.rtf.json "$out"/*.log "$out"/gpu_trainings.{md,json}
command -v wenet-hs > /dev/null || {
  printf '#!/bin/sh\nexec "%s" -m wenet_hs.bin.main "$@"\n' "$(command -v "$python")" > "$work/bin/wenet-hs"
  ln -s "$(command -v "$python")" "$work/bin/python"
  chmod +x "$work/bin/wenet-hs" && PATH=$work/bin:$PATH
}

# The trainings in their order, two at a time: head, tree, seed.
trainings=("softmax huffman 777" "hsoftmax huffman 777" "hsoftmax random 777")
changes=(max_epoch=60 max_minutes=2.5 optim_conf.lr=0.0005 scheduler_conf.warmup_steps=500 save_interval=500 keep_checkpoints=3
  dataset_conf.batch_conf.max_frames_in_batch=4000 dataset_conf.cache_features=true num_workers=2 dtype=bf16)
if [ -n "$small" ]; then
  changes=(max_epoch=1 scheduler_conf.warmup_steps=2 save_interval=4 dtype=fp32 encoder_conf.num_blocks=1 encoder_conf.output_size=32
    encoder_conf.linear_units=32 decoder_conf.linear_units=32 decoder_conf.num_blocks=1)
else
  for seed in 778 779 780; do trainings+=("softmax huffman $seed" "hsoftmax huffman $seed" "hsoftmax random $seed"); done
fi

recipe() {  # OPTIONS…: the recipe, for at most the time that is left
  timeout -k 5 $((deadline > SECONDS ? deadline - SECONDS : 1)) "$root/examples/ucla/s0/run.sh" --corpus "$corpus" --data "$work/data" \
    --exp "$work/exp" --config "$root/conf/paper_ucla.yaml" --base_steps 0 --average_num 3 --override "${changes[*]}" \
    --modes "ctc_greedy_search ctc_prefix_beam_search attention joint attention_rescoring" "$@"
}
name_of() {  # HEAD TREE SEED: the folder of the experiment, as in the recipe
  local name=$1
  [ "$1 $2" != "hsoftmax random" ] || name=hsoftmax-random
  echo "$name$([ "$3" = 777 ] || echo "-seed$3")"
}
train() {  # HEAD TREE SEED: from its tree to its results
  local only=(--head "$1" --tree "$2" --seeds "$3") name code=0
  name=$(name_of "$@")
  { recipe "${only[@]}" --stage 2 --stop_stage 2 && recipe "${only[@]}" --stage 4 --stop_stage 7 &&
    wenet-hs report --exp "$work/exp/$name" --results "$out/results"; } > "$work/$name.out" 2>&1 || code=$?
  [ ! -f "$work/exp/$name/test/rtf.json" ] || cp "$work/exp/$name/test/rtf.json" "$out/$name.rtf.json"
  { tail -n 60 "$work/exp/$name.log" 2> /dev/null || true; tail -n 20 "$work/$name.out"; } > "$out/$name.log"
  return "$code"
}

recipe --stop_stage 3 > "$out/data.log" 2>&1 || { tail -n 3 "$out/data.log" >&2; exit 1; }
for ((first = 0; first < ${#trainings[@]}; first += 2)); do
  [ $((SECONDS + longest)) -le "$deadline" ] || break  # as long as the longest pair before
  begin=$SECONDS processes=()
  for training in "${trainings[@]:first:2}"; do
    # shellcheck disable=SC2086  # three words
    train $training & processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || failed=1; done
  longest=$((SECONDS - begin > longest ? SECONDS - begin : longest))
done
"$python" "$root/benchmarks/gpu_trainings_note.py" --out "$out" --device "$device" --planned "${trainings[@]}" --changes "${changes[@]}"
exit "$failed"
