"""Which packages a jail sees."""

import os
import pathlib
import subprocess
import sys
import textwrap
import venv


def test_packages_of_a_venv_below_another_are_seen_in_the_jail(tmp_path):
    """As with `pip install --user`, Debian's dist-packages or a venv with system packages: two folders, not one."""
    venv.create(tmp_path / "above", with_pip=False)
    here = pathlib.Path(__file__).parents[2]
    packages = next(p for p in sys.path if os.path.basename(p) == "site-packages" and os.path.isdir(f"{p}/pluggy"))
    site = next((tmp_path / "above" / "lib").glob("python3*")) / "site-packages"
    (site / "below.pth").write_text(f"{packages}\n{here}\n")
    code = """
        import asyncio
        from rufus_plugins import Trajectory, Task
        from rufus_plugins.rewards.coding_tests import CodingTests
        task = Task("1", "code", [], '["assert f(2) == 4"]', {})
        answer = {"role": "assistant", "content": "```python\\ndef f(x): return 2 * x\\n```"}
        print(asyncio.run(CodingTests(workers=1)(Trajectory(task=task, messages=(answer,)))).value)
    """
    command = [tmp_path / "above" / "bin" / "python", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.split() == ["1.0"], done.stdout + done.stderr[-3000:]
