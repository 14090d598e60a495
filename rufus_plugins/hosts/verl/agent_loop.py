"""Our agent loop: `environment=<name>` makes verl's V1 trainer run each rollout as an episode of that environment.

A rollout returns one output per segment; verl's V1 path keeps them together by uid and session
(trainer/ppo/v1/agent_loop_tq.py:148 of 0.9.1), scores them as one, and our estimators share reward and advantage
(advantages.py). A rollout that ends in a fault of our side starts anew as often as `rufus.environment.retries` says;
one that stays faulted is returned with its ending and never trained on (faults.py).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from rufus_plugins import selection
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.config import AGENT_LOOP
from rufus_plugins.rollouts.episode import RETRIED, Episode, Limits, Rollout
from rufus_plugins.rollouts.pool import pool_rules
from rufus_plugins.rollouts.rules import EpisodeRules
from rufus_plugins.rollouts.turns import Sampled
from rufus_plugins.types import ContextSegment

from . import environment_hosts
from .chat_tokens import ChatTokens, asked_format
from .stock_tools import stock_tools
from .tasks import task_of
from .validating import told_validation

NAME = AGENT_LOOP
"""verl's name of this loop: `actor_rollout_ref.rollout.agent.default_agent_loop`."""


class EnginePolicy:
    """verl's servers as the driver's `Policy`."""

    def __init__(self, client: Any, sampling: Mapping[str, Any], request_id: str, end_ids: frozenset[int]):
        self.client, self.sampling, self.request_id, self.end_ids = client, dict(sampling), request_id, end_ids

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> Sampled:
        own = self.sampling.get("max_tokens")
        allowed = max_tokens if own is None else min(int(own), max_tokens)
        output = await self.client.generate(
            request_id=self.request_id,
            prompt_ids=prompt_ids,
            sampling_params={**self.sampling, "max_tokens": allowed},
        )
        told = output.extra_fields
        first, last = told.get("min_global_steps"), told.get("max_global_steps")
        return Sampled(
            ids=list(output.token_ids),
            finish=self._finish(output, allowed),
            logprobs=output.log_probs or None,
            routes=None if output.routed_experts is None else np.asarray(output.routed_experts),
            versions=None if first is None or last is None else (int(first), int(last)),
            metrics={"preempted": float(output.num_preempted or 0)},
        )

    def _finish(self, output: Any, allowed: int) -> str:
        """vLLM and SGLang report only whether a request was aborted, so ids and length decide there."""
        if output.stop_reason in ("aborted", "abort"):
            return "abort"
        reason = output.extra_fields.get("finish_reason")
        if reason in ("stop", "length"):
            return reason
        ids = output.token_ids
        return "length" if len(ids) >= allowed and ids[-1] not in self.end_ids else "stop"


@register(NAME)
class EnvironmentAgentLoop(AgentLoopBase):
    """One rollout: builds the environment that the config selects and plays an episode in it."""

    def __init__(self, *args: Any, tools: Any = None, hf_model_type: str | None = None, **kwargs: Any):
        super().__init__(*args, hf_model_type=hf_model_type, **kwargs)
        if self.processor is not None and getattr(self.processor, "image_processor", None) is not None:
            raise ConfigError("environments are text only, but the model has an image processor")
        self.tools: Sequence[Any] = getattr(tools, "tools", None) or ()
        self.rules: EpisodeRules = selection.rules_of(self.config)
        self.chat = _chat(self.config, self.tokenizer, hf_model_type, self.rules)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        task = told_validation(task_of(kwargs))
        sampling = dict(sampling_params)
        if self.rules.stop:
            sampling["stop"] = list(self.rules.stop)
        response = int(kwargs.get("response_budget") or self.rollout_config.response_length)
        # the budget of a single turn is that of the whole segment here, which `Limits` holds
        sampling.pop("max_tokens", None)
        context = self.rollout_config.get("max_model_len") or (
            self.rollout_config.prompt_length + self.rollout_config.response_length
        )
        uid = f"{kwargs.get('uid', task.id)}_{kwargs.get('session_id', 0)}"
        retries = 0
        while True:
            policy = EnginePolicy(self.server_manager, sampling, f"{uid}_{retries}", self.chat.end_ids)
            environment = self._environment(kwargs)
            limits = Limits(int(context), response)
            rollout = await Episode(task, environment, policy, self.chat, self.rules, limits).run()
            ending = rollout.trajectory.termination
            if rollout.problem:
                _complain(ending.value, f"task {task.id!r}, rollout {uid}", rollout.problem)
            if ending not in RETRIED or retries >= self.rules.retries:
                return self._outputs(rollout, retries, kwargs)
            retries += 1

    def _environment(self, kwargs: Mapping[str, Any]) -> Any:
        rules = pool_rules(selection.section(self.config)["environment_pool"])
        if rules is not None:
            if self.tools:
                raise ConfigError(
                    "verl's own tools live in the worker that samples, and rufus.environment_pool puts environments "
                    "elsewhere: unset actor_rollout_ref.rollout.multi_turn.tool_config_path and function_tool_path"
                )
            return environment_hosts.join(rules)
        environment = selection.build(self.config, "environment")
        if environment is None:
            raise ConfigError(f"default_agent_loop={NAME} runs an environment: select one by environment=<name>")
        if self.tools:
            if not hasattr(environment, "offer"):
                raise ConfigError(
                    f"environment={selection.name_of(self.config, 'environment')} takes no further tools: unset "
                    "actor_rollout_ref.rollout.multi_turn.tool_config_path and function_tool_path"
                )
            environment.offer(stock_tools(self.tools, kwargs.get("tools_kwargs")))
        return environment

    # ---- to verl's outputs

    def _outputs(self, rollout: Rollout, retries: int, kwargs: Mapping[str, Any]) -> list[AgentLoopOutput]:
        trajectory = rollout.trajectory
        metrics = {**trajectory.metrics, "retries": float(retries)}
        segments = [self._trainable(s) for s in trajectory.segments] or [self._trainable(None)]
        versions = list(rollout.versions) or [None]
        step = kwargs.get("global_steps")
        outputs = []
        for segment, version in zip(segments, versions, strict=True):
            first, last = version or (step, step)
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=segment.prompt_ids,
                    response_ids=segment.response_ids,
                    response_mask=segment.response_mask,
                    response_logprobs=segment.response_logprobs,
                    routed_experts=segment.routed_experts,
                    num_turns=1 + len(trajectory.messages),
                    metrics=AgentLoopMetrics(
                        generate_sequences=metrics.get("generate_s", 0.0),
                        tool_calls=metrics.get("environment_s", 0.0),
                        num_preempted=int(metrics.get("preempted", -1)),
                    ),
                    extra_fields={
                        "min_global_steps": first,
                        "max_global_steps": last,
                        "termination": trajectory.termination.value,
                    },
                )
            )
        outputs[-1].extra_fields["rollout_metrics"] = metrics
        outputs[-1].extra_fields["trajectory"] = {
            "messages": list(trajectory.messages),
            "tool_calls": list(trajectory.tool_calls),
            "artifacts": dict(trajectory.artifacts),
            "termination": trajectory.termination.value,
            "turns": trajectory.turns,
            "metrics": metrics,
            "sampled": [
                (
                    np.asarray(segment.response_mask, np.uint8),
                    None if segment.response_logprobs is None else np.asarray(segment.response_logprobs),
                )
                for segment in segments
            ],
        }
        return outputs

    def _trainable(self, segment: ContextSegment | None) -> ContextSegment:
        """The segment with every column that the others of a batch have, and at least one token on either side.

        A rollout that ended before its first token is a row of one end token with mask 0.
        """
        end = min(self.chat.end_ids, default=0)
        prompt = list(segment.prompt_ids) if segment is not None else []
        response = list(segment.response_ids) if segment is not None else []
        mask = list(segment.response_mask) if segment is not None else []
        logprobs = segment.response_logprobs if segment is not None else None
        routes = segment.routed_experts if segment is not None else None
        if not prompt:
            prompt = [end]
        if not response:
            response, mask, logprobs, routes = [end], [0], None, None
        if logprobs is None and self.rollout_config.calculate_log_probs:
            logprobs = [0.0] * len(response)
        if routes is None and self.rollout_config.enable_rollout_routing_replay:
            routes = np.zeros((len(prompt) + len(response) - 1, *_route_shape(self.config)), np.int16)
        if routes is not None and routes.dtype != np.int16:
            # verl's type; the ids that mark a missing row stay out of range of every model (uint16), or are 255
            routes = routes.astype(np.int16)
        return ContextSegment(prompt, response, mask, None if logprobs is None else list(logprobs), routes)


_complained: set[str] = set()


def _complain(ending: str, who: str, problem: str) -> None:
    """Each kind of failure once per worker: a broken engine would flood the log. All are counted in the metrics."""
    kind = f"{ending}: {problem.splitlines()[0]}"
    if kind not in _complained:
        _complained.add(kind)
        print(f"rufus: {who}: {ending}: {problem}", file=sys.stderr, flush=True)


_chats: dict[tuple[int, str | None], tuple[Any, ChatTokens]] = {}
"""One per tokenizer and format: verl makes an agent loop per rollout."""


def _chat(config: Any, tokenizer: Any, model_type: str | None, rules: EpisodeRules) -> ChatTokens:
    tool_format = asked_format(config, rules)
    key = (id(tokenizer), tool_format)
    if key not in _chats:
        kwargs = config.data.get("apply_chat_template_kwargs") or {}
        chat = ChatTokens(
            tokenizer,
            model_type,
            end_ids=_end_ids(config, tokenizer),
            template_kwargs=dict(kwargs),
            tool_format=tool_format,
        )
        _chats[key] = (tokenizer, chat)  # holding the tokenizer keeps its id from being used again
    return _chats[key][1]


def _end_ids(config: Any, tokenizer: Any) -> frozenset[int]:
    """All tokens that end a turn: of the generation config, the model config and the tokenizer."""
    from transformers import GenerationConfig

    found: set[int] = set()
    sources = [_hf_config(config), tokenizer]
    try:
        sources.append(GenerationConfig.from_pretrained(_local(config.actor_rollout_ref.model.path)))
    except OSError:
        pass  # a model without one
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        found |= set(value) if isinstance(value, list | tuple) else {value}
    return frozenset(int(index) for index in found - {None})


def _route_shape(config: Any) -> tuple[int, int]:
    """Decoder layers and experts per token, for a row that no engine gave routes for."""
    text = _hf_config(config).get_text_config()
    names = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")
    top_k = next((getattr(text, name) for name in names if hasattr(text, name)), 1)
    return int(text.num_hidden_layers), int(top_k)


@functools.cache
def _local(path: str) -> str:
    from verl.utils.fs import copy_to_local

    return copy_to_local(path)


def _hf_config(config: Any) -> Any:
    model = config.actor_rollout_ref.model
    return _loaded_config(model.path, bool(model.get("trust_remote_code", False)))


@functools.cache
def _loaded_config(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(_local(path), trust_remote_code=trust_remote_code)
