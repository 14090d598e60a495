import subprocess
import sys
import types

import pytest

from rufus_plugins.hosts.verl import import_hooks


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module `late_module` on the path and a module `late_hook` with functions that mend it."""
    (tmp_path / "late_module.py").write_text("value = 1\ndef read():\n    return value\n")
    (tmp_path / "late_hook.py").write_text(
        "calls = []\n"
        "def mend(module):\n    calls.append(module.__name__)\n    module.value += 1\n"
        "def fail(module):\n    raise ValueError('cannot mend')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("late_module", "late_hook"):
        sys.modules.pop(name, None)
        import_hooks._waiting.pop(name, None)


def test_the_hook_runs_before_a_name_can_be_bound_from_the_module(package):
    import_hooks.when_imported("late_module", "late_hook:mend")
    assert "late_hook" not in sys.modules, "nothing of the hook is imported early"
    from late_module import value

    assert value == 2


def test_a_module_that_is_already_imported_is_mended_at_once(package):
    import late_module

    import_hooks.when_imported("late_module", "late_hook:mend")
    assert late_module.value == 2


def test_several_hooks_of_one_module_run_in_order_and_once(package):
    for _ in range(2):
        import_hooks.when_imported("late_module", "late_hook:mend")
    import late_hook
    import late_module

    assert late_module.value == 3
    assert late_hook.calls == ["late_module", "late_module"]
    assert import_hooks._waiting.get("late_module") is None


def test_a_hook_that_fails_fails_the_import(package):
    import_hooks.when_imported("late_module", "late_hook:fail")
    with pytest.raises(ValueError, match="cannot mend"):
        import late_module  # noqa: F401


def test_the_module_keeps_its_own_source_and_spec(package):
    import inspect

    import_hooks.when_imported("late_module", "late_hook:mend")
    import late_module

    assert isinstance(late_module, types.ModuleType)
    assert late_module.__spec__.name == "late_module"
    assert "return value" in inspect.getsource(late_module.read)


def test_an_unknown_version_of_verl_is_refused_with_a_message(tmp_path):
    """A stand-in `verl` of another version loads the entry point as the real one does."""
    (tmp_path / "verl.py").write_text("__version__ = '0.8.0'\n")
    done = subprocess.run(
        [sys.executable, "-c", "import rufus_plugins.hosts.verl as h, sys; print(h.import_hooks._waiting)"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "verl 0.8.0 is installed" in done.stderr and "pip install verl==0.9.1" in done.stderr
    assert done.stdout.strip() == "{}"
