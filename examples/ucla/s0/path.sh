# shellcheck shell=bash
# Sourced by run.sh: finds `wenet-hs` in the checkout's own environment if it is not on the PATH already.
if ! command -v wenet-hs > /dev/null; then
  PATH="$(cd ../../.. && pwd)/.venv/bin:$PATH"
  command -v wenet-hs > /dev/null || { echo "$0: no wenet-hs on the PATH; run 'make setup' first" >&2; exit 2; }
fi
export PYTHONIOENCODING=UTF-8
