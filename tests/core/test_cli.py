"""`rufus list`, `rufus check` and the dispatcher, as a user runs them."""

import json
import subprocess
import sys

import pytest

from rufus_plugins import cli, cli_check, cli_list
from rufus_plugins.hookspecs import KINDS
from rufus_plugins.plugins import load


@pytest.fixture
def installed(monkeypatch, plugin, good):
    """`installed(entry, ...)`: the registry of this process holds these plugins only."""

    def put(*entries):
        found = load(list(entries))
        for module in (cli_list, cli_check):
            monkeypatch.setattr(module, "registry", lambda: found)
        return found

    return put


def test_list_imports_nothing_heavy():
    program = (
        "import sys; from rufus_plugins.cli import main; code = main(['list']); "
        "heavy = {'torch', 'verl', 'ray', 'transformers', 'hydra', 'math_verify', 'reasoning_gym'}; "
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == "0 []"


def test_list_shows_every_kind_and_every_part_with_its_fields(installed, good, capsys):
    installed(good("short", plugin_name="lengths"))
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{kind} (" in out for kind in KINDS)
    assert "short  [lengths]  Scores by length." in out and "limit: int = 10" in out


def test_list_of_one_kind_shows_only_that(installed, good, capsys):
    installed(good("short"))
    assert cli.main(["list", "judge"]) == 0
    assert capsys.readouterr().out == "judge (0)\n"


def test_list_as_json_has_types_defaults_and_failures(installed, good, plugin, capsys):
    installed(good("short", plugin_name="lengths"), plugin("1/0", "broken"))
    assert cli.main(["list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (part,) = told["parts"]
    assert (part["kind"], part["name"], part["plugin"]) == ("reward", "short", "lengths")
    assert part["fields"] == {"limit": {"type": "int", "required": False, "default": 10}}
    assert [f["plugin"] for f in told["failures"]] == ["broken"]


def test_list_warns_of_a_broken_plugin_and_still_lists_the_others(installed, good, plugin, capsys):
    installed(good("short"), plugin("1/0", "broken"))
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr()
    assert "short" in shown.out and "plugin 'broken'" in shown.err


def test_check_fails_on_a_broken_plugin_and_says_why(installed, good, plugin, capsys):
    installed(good("short", plugin_name="lengths"), plugin("import a_module_that_nobody_has", "broken"))
    assert cli.main(["check"]) == 1
    out = capsys.readouterr().out
    assert "ok      lengths: 1 part" in out
    assert "FAILED  plugin 'broken': does not load: ModuleNotFoundError" in out and "mend:" in out


def test_check_fails_where_verl_is_told_to_load_no_plugins(monkeypatch, capsys):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert cli.main(["check"]) == 1
    assert "VERL_USE_EXTERNAL_PLUGINS=none keeps verl from loading" in capsys.readouterr().out


SOUND = ("algorithm=gspo", "reward=coding_tests")


def test_check_of_a_sound_config_exits_with_0(capsys):
    code, out = cli.main(["check", *SOUND]), capsys.readouterr().out
    assert code == 0, out
    assert "reward coding_tests of plugin rufus_rewards" in out
    assert ", loss gspo" in out and ", clip 0.0003/0.0004, seq-mean-token-mean" in out
    assert "verl accepts this config" in out
    assert "actor_rollout_ref.rollout.name is still to be set" in out


@pytest.mark.parametrize(
    "override, said",
    [
        ("reward=no_such_reward", "Could not find 'reward/no_such_reward'"),
        ("rufus.reward.max_test=3", "Did you mean 'max_tests'?"),
        ("algorithm.adv_estimator=no_such_estimator", "no_such_estimator"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=no_such_loss", "no_such_loss"),
        ("actor_rollout_ref.actor.loss_agg_mode=no_such_mode", "verl would refuse this config"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=false", "ppo_micro_batch_size_per_gpu"),
        ("no_such_key=1", "no_such_key"),
    ],
)
def test_check_of_a_config_that_cannot_run_exits_with_1(override, said, capsys):
    assert cli.main(["check", *SOUND, override]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("scale", [["scale=single_node"], ["model_engine=megatron", "scale=air"]])
def test_verl_accepts_the_scales_for_gpus(scale, capsys):
    assert cli.main(["check", *SOUND, *scale]) == 0
    assert "verl accepts this config" in capsys.readouterr().out


def test_check_takes_a_users_own_config_directory(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer, {override reward@reward: no_such_reward}]\n")
    assert cli.main(["check", "--config-dir", str(tmp_path), "--config-name", "mine"]) == 1
    assert "Could not find 'reward/no_such_reward'" in capsys.readouterr().out
    assert cli.main(["check", "--config-dir", str(tmp_path / "missing")]) == 1
    assert "there is no directory" in capsys.readouterr().out


def test_a_command_whose_file_is_not_there_is_not_offered(monkeypatch, capsys):
    monkeypatch.setattr(cli, "COMMANDS", ("list", "a_command_of_a_later_version"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["a_command_of_a_later_version"])
    assert ended.value.code == 2 and "invalid choice" in capsys.readouterr().err


def test_help_names_each_command(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and all(command in out for command in ("list", "check", "new"))


def test_no_command_is_a_wrong_command_line(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2
