"""What the built wheel holds: the four rooms through their links, the configs, and Hydra's plugin."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ROOMS = ("rewards", "rollouts", "algos", "recipes")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this working tree, built from a copy so that nothing of the build stays here."""
    source, out = tmp_path_factory.mktemp("source") / "tree", tmp_path_factory.mktemp("dist")
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source)
    for name in ("rufus_plugins", "hydra_plugins", *ROOMS):
        shutil.copytree(TOP / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, source],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_of_every_room_is_in_the_wheel(names):
    for room in ROOMS:
        there = {f"rufus_plugins/{p.relative_to(TOP)}" for p in (TOP / room).rglob("*.py")}
        assert there and there <= names, sorted(there - names)


def test_configs_templates_and_the_typing_marker_are_in_the_wheel(names):
    data = {f"rufus_plugins/{p.relative_to(TOP)}" for p in TOP.glob("recipes/**/*.yaml")}
    for kind in ("jinja", "css", "js"):
        data |= {f"rufus_plugins/{p.relative_to(TOP)}" for p in TOP.glob(f"recipes/**/*.{kind}")}
    assert {"style.css", "page.js"} <= {name.rpartition("/")[2] for name in data}
    assert data and data <= names, sorted(data - names)
    assert "rufus_plugins/py.typed" in names
    assert {"rufus_plugins/recipes/config/rufus.yaml", "rufus_plugins/recipes/config/keys.yaml"} <= names


def test_hydras_namespace_package_gets_no_init_file_and_the_rooms_are_no_top_level_packages(names):
    assert "hydra_plugins/rufus_search_path.py" in names and "hydra_plugins/__init__.py" not in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"rufus_plugins", "hydra_plugins"}


def test_every_folder_of_the_package_has_an_init_file(names):
    ours = [name for name in names if name.startswith("rufus_plugins/") and name.endswith(".py")]
    # the files of Harbor tasks are data: they run in a sandbox, never as part of the package
    folders = {name.rpartition("/")[0] for name in ours if "/coding_agent/tasks/" not in name}
    assert {f"{folder}/__init__.py" for folder in folders} <= names


def test_verls_extras_that_ours_pass_on_exist():
    from importlib.metadata import metadata

    assert {"vllm", "sglang", "mcore"} <= set(metadata("verl").get_all("Provides-Extra"))


def test_the_installed_wheel_lists_its_parts_and_composes_its_configs(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "venv" / "lib" / version / "site-packages" / "this_environment.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    env = {**os.environ, "PYTHONPATH": ""}
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    program = (
        "import json, rufus_plugins; from rufus_plugins.plugins import registry;"
        "from rufus_plugins.cli_check import composed;"
        "config = composed('rufus', ['algorithm=gspo']);"
        "print(json.dumps([rufus_plugins.__file__, [str(f) for f in registry().failures],"
        "sorted(registry().plugins), config.actor_rollout_ref.actor.policy_loss.loss_mode]))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    where, failures, plugins, loss = json.loads(done.stdout)
    assert where.startswith(str(tmp_path / "venv")) and not failures and loss in ("gspo", "gspo_exact")
    assert {"rufus_algos", "rufus_recipes", "rufus_rewards", "rufus_rollouts"} <= set(plugins)
