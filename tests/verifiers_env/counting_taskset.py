"""A taskset as a third party writes one: a counter behind tools, state, hooks, rewards, a metric and a stop."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    target: int = 0


class Count(vf.State):
    value: int = 0
    note: str = ""


class Config(vf.ToolsetConfig):
    step: int = 1


class Counter(vf.Toolset[Config, Count]):
    async def setup_task(self, task):
        self.limit = task.target + 2

    @vf.tool
    def increase(self, by: int = 1) -> str:
        """Adds to the counter."""
        if by <= 0:
            raise ValueError("only upwards")
        self.state.value += by * self.config.step
        return f"the counter stands at {self.state.value} of {self.limit}"

    @vf.tool(name="read")
    async def look(self) -> dict:
        """Reads the counter."""
        return {"value": self.state.value}


class TaskSettings(vf.TaskConfig):
    counter: Config = Config()


class CountTo(vf.Task[Data, Count, TaskSettings]):
    @classmethod
    def toolsets(cls, config):
        return [Counter(config.counter)]

    async def setup(self, trace, runtime):
        done = await runtime.run(["sh", "-c", "echo ready"], {})
        trace.state.note = done.stdout.strip()

    async def finalize(self, trace):
        trace.info["final"] = trace.state.value

    @vf.reward(weight=2.0)
    async def exact(self, trace) -> float:
        return float(trace.info["final"] == self.data.target)

    @vf.reward(weight=0.5)
    async def said(self, trace) -> float:
        if trace.last_reply == "break the scorer":
            raise RuntimeError("the scorer is broken")
        return float(str(self.data.target) in trace.last_reply)

    @vf.metric
    async def calls(self, trace) -> float:
        return float(len(trace.tool_messages))

    @vf.stop
    async def too_far(self, trace) -> bool:
        return trace.state.value > self.data.target + 100


class Settings(vf.TasksetConfig):
    task: TaskSettings = TaskSettings()


class Counting(vf.Taskset[CountTo, Settings]):
    def load(self):
        for target in (3, 5, 7):
            yield CountTo(
                Data(prompt=f"Count to {target}.", system_prompt="Use the tools.", target=target, id=f"to-{target}"),
                self.config.task,
            )


__all__ = ["Counting"]
