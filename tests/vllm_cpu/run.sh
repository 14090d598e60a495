#!/usr/bin/env bash
# The tests beside this file, in the environment that setup.sh makes (kept in DIR for the next time).
#   tests/vllm_cpu/run.sh DIR [arguments for pytest]
set -euo pipefail
dir=${1:?usage: run.sh DIR [arguments for pytest]}
shift
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -e "$dir/.complete" ]; then
  rm -rf "$dir"
  timeout --kill-after=30 900 "$here/setup.sh" "$dir"
  touch "$dir/.complete"
fi
# one torch thread everywhere; the tests have their own deadlines, this one is for what those do not see
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
timeout --kill-after=60 "${RUFUS_VLLM_TIMEOUT_S:-2700}" "$dir/bin/python" -m pytest -m slow -p no:cacheprovider "$here" "$@"
