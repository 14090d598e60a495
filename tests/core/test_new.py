"""`rufus new` writes projects that work as written, and refuses what could not work."""

import os
import subprocess
import sys
import tomllib

import pytest

from rufus_plugins import cli, new_project
from rufus_plugins.hookspecs import KINDS


def new(directory, kind, name):
    return cli.main(["new", kind, name, "--directory", str(directory)])


@pytest.mark.parametrize("kind", new_project.PARTS)
def test_the_tests_of_a_new_project_pass(tmp_path, kind):
    project = tmp_path / "project"
    assert new(project, kind, f"fresh_{kind}") == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("kind", new_project.PARTS)
def test_a_new_project_is_complete_and_its_entry_point_leads_to_the_part(tmp_path, kind):
    project = tmp_path / "project"
    new(project, kind, "fresh")
    files = sorted(str(p.relative_to(project)) for p in project.rglob("*") if p.is_file())
    assert files == ["README.md", "pyproject.toml", "rufus_fresh/__init__.py", "tests/test_fresh.py"]
    about = tomllib.loads((project / "pyproject.toml").read_text())
    assert about["project"]["entry-points"]["rufus"] == {"fresh": "rufus_fresh"}
    assert KINDS[kind] in (project / "rufus_fresh/__init__.py").read_text()
    assert not any("$" in p.read_text() for p in project.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "name, said",
    [
        ("my-reward", "no identifier"),
        ("3rd", "no identifier"),
        ("", "no identifier"),
        ("../up", "no identifier"),
        ("class", "take lower case"),
        ("Mine", "take lower case"),
        ("_mine", "take lower case"),
        ("größe", "take lower case"),
        ("plugins", "rufus_plugins, which is taken"),
        ("reward", "verl's own option"),
        ("coding_tests", "exists already"),
    ],
)
def test_a_name_that_cannot_work_is_refused_before_anything_is_written(tmp_path, capsys, name, said):
    assert new(tmp_path / "project", "reward", name) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "project").exists()


def test_an_existing_directory_is_left_alone(tmp_path, capsys):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.txt").write_text("kept")
    assert new(tmp_path / "project", "reward", "fresh") == 1
    assert "exists" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "project").iterdir()] == ["mine.txt"]


def test_the_default_directory_carries_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "reward", "two_words"]) == 0
    assert (tmp_path / "rufus-two-words" / "rufus_two_words" / "__init__.py").exists()
    assert "cd rufus-two-words" in capsys.readouterr().out
