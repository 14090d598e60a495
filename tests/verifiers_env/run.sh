#!/usr/bin/env bash
# The tests beside this file, in the environment that setup.sh makes (kept in DIR for the next time).
#   tests/verifiers_env/run.sh DIR [arguments for pytest]
set -euo pipefail
dir=${1:?usage: run.sh DIR [arguments for pytest]}
shift
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -e "$dir/.complete" ]; then
  rm -rf "$dir"
  timeout --kill-after=30 900 "$here/setup.sh" "$dir"
  touch "$dir/.complete"
fi
timeout --kill-after=60 600 "$dir/bin/python" -m pytest -m slow -p no:cacheprovider "$here" "$@"
