"""Room for environment hosts beside what verl reserves."""

import pytest

from rufus_plugins.cli_check import composed
from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.environment_hosts import check_room, reserved_by_verl
from rufus_plugins.rollouts.pool import PoolRules

TINY = ["algorithm=gspo", "reward=post_state", "environment=mcp", "scale=tiny"]


def test_hosts_that_would_leave_verl_waiting_are_refused():
    config = composed("rufus", TINY)
    # 3 of the one trainer process, a worker that samples, one that scores, a storage unit, the driver
    assert reserved_by_verl(config) == 7
    check_room(config, PoolRules(hosts=9, cpus=1.0), cpus=16.0)
    with pytest.raises(
        ConfigError, match="10 hosts of 1 CPUs take 10 of the 16 that Ray counts, and verl itself reserves 7"
    ):
        check_room(config, PoolRules(hosts=10, cpus=1.0), cpus=16.0)


def test_a_rollout_of_its_own_counts_too():
    config = composed("rufus", [*TINY, "actor_rollout_ref.rollout.nnodes=1"])
    assert reserved_by_verl(config) == 10
