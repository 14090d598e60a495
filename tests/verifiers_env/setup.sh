#!/usr/bin/env bash
# A virtual environment with the real `verifiers` and this repository (about 700 MB, a minute).
#   tests/verifiers_env/setup.sh DIR        (run.sh makes it and runs the tests: `make verifiers`)
set -euo pipefail
dir=${1:?usage: setup.sh DIR}
here=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$(command -v python3.11 || command -v python3.12 || echo python3)}
"$python" -m venv "$dir"
pip="$dir/bin/python -m pip --disable-pip-version-check -qq"
$pip install 'verifiers==0.4.0' pluggy pyarrow rich pytest pytest-timeout hydra-core
$pip install --no-deps -e "$here"
