"""`.dockerignore`, by the rules of Docker's documentation."""

import asyncio

import pytest

from rufus_plugins.recipes.coding_agent.bake import bake
from rufus_plugins.recipes.coding_agent.prepare import oracle_reward
from rufus_plugins.rollouts import harbor
from rufus_plugins.rollouts.dockerignore import ignored


@pytest.mark.parametrize(
    "lines, out, kept",
    [
        (["secret"], ["secret", "secret/below/x"], ["a/secret", "secret2"]),
        (["*/temp*"], ["a/temporary.txt", "a/temp/x"], ["temp", "a/b/temp"]),
        (["**/*.pyc"], ["x.pyc", "a/b/x.pyc"], ["x.py"]),
        (["*.md", "!README.md"], ["a.md"], ["README.md", "docs/a.md"]),
        (["!README.md", "*.md"], ["README.md"], []),
        (["# *.md", "", " /build/ "], ["build", "build/x"], ["a.md"]),
        (["temp?"], ["tempa"], ["temp", "temp/"]),
        (["[ab].txt", "[z"], ["a.txt"], ["c.txt"]),
        (["*", "!src"], ["x"], ["src", "src/a"]),
    ],
)
def test_the_last_pattern_that_matches_decides(lines, out, kept, tmp_path):
    (tmp_path / ".dockerignore").write_text("\n".join(lines))
    left_out = ignored(tmp_path)
    assert [left_out(tmp_path / path) for path in out] == [True] * len(out)
    assert [left_out(tmp_path / path) for path in kept] == [False] * len(kept)


def test_a_context_without_the_file_loses_nothing(tmp_path):
    assert not ignored(tmp_path)(tmp_path / "x")


def test_what_it_names_is_not_in_the_environment(tmp_path):
    folder = tmp_path / "task"
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": "x",
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY . .\n",
        "environment/.dockerignore": "secret\ndata/gold*\n",
        "environment/secret": "x",
        "environment/data/gold.txt": "x",
        "environment/data/given.txt": "x",
        "tests/test.sh": "#!/bin/bash\n[ -e data/given.txt ] && [ ! -e secret ] && [ ! -e data/gold.txt ]\n"
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\ntrue\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    task = harbor.load(folder)
    environment = asyncio.run(bake(task, "local", tmp_path / "store", stand_in=["*"]))
    assert asyncio.run(oracle_reward(task, environment)) == 1.0
