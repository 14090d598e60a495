"""The trainer's word on validation reaches the rollout's task, each rollout its own."""

import asyncio
import inspect
from types import ModuleType

from rufus_plugins.hosts.verl.validating import tell_rollouts, told_validation
from rufus_plugins.types import Task


def test_verl_still_has_the_method_that_is_wrapped():
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    assert AgentLoopWorker._run_agent_loop.__wrapped__  # ours, put there by import verl
    parameters = list(inspect.signature(AgentLoopWorker._run_agent_loop).parameters)
    assert parameters[:3] == ["self", "sampling_params", "trajectory"]


def test_rollouts_at_the_same_time_are_told_apart_whatever_their_records_say():
    class AgentLoopWorker:
        async def _run_agent_loop(self, sampling_params, trajectory, *, agent_name, **kwargs):
            await asyncio.sleep(0)
            return told_validation(Task("t", "s", (), extra={"validate": "from the record", "kept": 1})).extra

    module = ModuleType("agent_loop")
    module.AgentLoopWorker = AgentLoopWorker
    tell_rollouts(module)

    async def run():
        worker = AgentLoopWorker()
        jobs = [
            asyncio.create_task(worker._run_agent_loop({}, {"validate": flag}, agent_name="rufus"))
            for flag in (True, False, True)
        ]
        return await asyncio.gather(*jobs), told_validation(Task("t", "s", ())).extra

    together, outside = asyncio.run(run())
    assert together == [{"validate": flag, "kept": 1} for flag in (True, False, True)]
    assert outside == {"validate": False}
