# shellcheck shell=bash disable=SC2154
# Sourced by run.sh, which sets $here: finds `wenet-hs` in the checkout's environment if it is not on the PATH already.
if ! command -v wenet-hs > /dev/null; then
  PATH="$here/../../../.venv/bin:$PATH"
  command -v wenet-hs > /dev/null || { echo "$0: no wenet-hs on the PATH; run 'make setup' first" >&2; exit 2; }
fi
export PYTHONIOENCODING=UTF-8
