"""Which method of which module selects experts, for every MoE family of transformers that can be replayed.

A family of a plugin: `register_router_adapters` returns `{model_type: factory}`; the factory, called
without arguments, gives a `TopKRouter` (or anything with `.find(model) -> list[RouterSite]`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from rufus_plugins.algos.routing_replay.routers import RouterSite


@dataclass(frozen=True)
class TopKRouter:
    """A router that selects experts with one `torch.topk` over `[tokens, experts]`."""

    owner: str
    """Class name of the module whose method holds the topk."""
    method: str = "forward"
    experts: str = "num_experts"
    """Attribute path on the owner: a number, or a weight `[experts, hidden]`, or a Linear layer onto the experts."""
    top_k: str = "top_k"
    during_replay: dict[str, Any] = field(default_factory=dict)
    """Attributes of the owner that must hold other values while choices are replaced."""

    def find(self, model: nn.Module) -> list[RouterSite]:
        """One site per router, in module order. Raises `ConfigError` where the class is built otherwise."""
        owners = [
            (name, m) for name, m in model.named_modules() if type(m).__name__ in (self.owner, f"FSDP{self.owner}")
        ]
        return [self._site(name, module) for name, module in owners]

    def _site(self, name: str, module: nn.Module) -> RouterSite:
        from rufus_plugins.algos.routing_replay.routers import RouterSite, layer_index

        try:
            experts, top_k = _count(module, self.experts), _count(module, self.top_k)
            return RouterSite(module, self.method, experts, top_k, layer_index(name), self.during_replay)
        except AttributeError as error:  # for example the code of a checkpoint (trust_remote_code)
            raise ConfigError(
                f"routing replay knows the {self.owner} of transformers, and {name} of {type(module).__module__} is "
                f"built otherwise ({error}): set rufus.routing_replay=off, or register an adapter for it in a plugin "
                "(register_router_adapters)"
            ) from None


def _count(module: nn.Module, path: str) -> int:
    value = attrgetter(path)(module)
    if isinstance(value, int):
        return value
    return value.out_features if hasattr(value, "out_features") else value.shape[0]


_ROUTE = "route_tokens_to_experts"

FAMILIES: dict[str, TopKRouter] = {
    "afmoe": TopKRouter("AfmoeTokenChoiceRouter"),
    "aria": TopKRouter("AriaExperts", _ROUTE, "config.moe_num_experts", "config.moe_topk"),
    "cohere2_moe": TopKRouter("Cohere2MoeTopKRouter", experts="weight"),
    "dbrx": TopKRouter("DbrxFFN", _ROUTE, "experts.num_experts"),
    # group_limited_greedy takes its weights from scores in which other groups are 0, so a replayed expert outside
    # the trainer's own groups would weigh nothing; greedy reads the same scores unmasked
    "deepseek_v2": TopKRouter("DeepseekV2Moe", _ROUTE, "gate", during_replay={"topk_method": "greedy"}),
    "deepseek_ocr2": TopKRouter("DeepseekOcr2TextMoe", _ROUTE, "gate", during_replay={"topk_method": "greedy"}),
    "deepseek_v3": TopKRouter("DeepseekV3MoE", _ROUTE, "n_routed_experts"),
    # its first layers route by a fixed table of token ids: nothing to replay there
    "deepseek_v4": TopKRouter("DeepseekV4TopKRouter"),
    "dots1": TopKRouter("Dots1MoE", _ROUTE, "n_routed_experts"),
    "ernie4_5_moe": TopKRouter("Ernie4_5_MoeTopKRouter", experts="weight"),
    "exaone_moe": TopKRouter("ExaoneMoeSparseMoEBlock", _ROUTE, "n_routed_experts"),
    "flex_olmo": TopKRouter("FlexOlmoTopKRouter"),
    "gemma4": TopKRouter("Gemma4TextRouter", experts="config.num_experts", top_k="config.top_k_experts"),
    "glm4_moe": TopKRouter("Glm4MoeMoE", _ROUTE, "n_routed_experts"),
    "glm4_moe_lite": TopKRouter("Glm4MoeLiteMoE", _ROUTE, "n_routed_experts"),
    "glm4v_moe": TopKRouter("Glm4vMoeTextMoE", _ROUTE, "n_routed_experts"),
    "glm_moe_dsa": TopKRouter("GlmMoeDsaMoE", _ROUTE, "n_routed_experts"),
    "gpt_oss": TopKRouter("GptOssTopKRouter"),
    "granitemoe": TopKRouter("GraniteMoeTopKGating"),
    "granitemoehybrid": TopKRouter("GraniteMoeHybridTopKGating"),
    "granitemoeshared": TopKRouter("GraniteMoeSharedTopKGating"),
    "hunyuan_v1_moe": TopKRouter("HunYuanMoEV1Moe", _ROUTE),
    "hy_v3": TopKRouter("HYV3TopKRouter"),
    "jamba": TopKRouter("JambaSparseMoeBlock", _ROUTE),
    "laguna": TopKRouter("LagunaTopKRouter"),
    "lfm2_moe": TopKRouter("Lfm2MoeSparseMoeBlock", _ROUTE, "gate"),
    "llama4": TopKRouter("Llama4Router"),
    "longcat_flash": TopKRouter("LongcatFlashTopkRouter", "get_topk_indices", "n_routed_experts"),
    "mellum": TopKRouter("MellumTopKRouter"),
    "minimax": TopKRouter("MiniMaxTopKRouter"),
    "minimax_m2": TopKRouter("MiniMaxM2TopKRouter"),
    "mistral4": TopKRouter("Mistral4MoE", _ROUTE, "n_routed_experts"),
    "mixtral": TopKRouter("MixtralTopKRouter"),
    "nemotron_h": TopKRouter("NemotronHMoE", _ROUTE, "n_routed_experts"),
    "olmoe": TopKRouter("OlmoeTopKRouter"),
    "qwen2_moe": TopKRouter("Qwen2MoeTopKRouter"),
    "qwen3_moe": TopKRouter("Qwen3MoeTopKRouter"),
    "qwen3_next": TopKRouter("Qwen3NextTopKRouter"),
    "qwen3_omni_moe_thinker": TopKRouter("Qwen3OmniMoeThinkerTextTopKRouter"),
    "qwen3_5_moe": TopKRouter("Qwen3_5MoeTopKRouter"),
    "qwen3_vl_moe": TopKRouter("Qwen3VLMoeTextTopKRouter"),
    "solar_open": TopKRouter("SolarOpenMoE", _ROUTE, "n_routed_experts"),
}
"""transformers `model_type` -> router, checked against transformers 5.10."""

REFUSED: dict[str, str] = {
    "phimoe": "its sparsemixer draws the experts one after another and has no topk to replay",
    "jetmoe": "it routes its attention too: two choices per layer, which no rollout engine reports",
    "doge": "its experts are chosen as pairs of product keys, not by one topk",
    "ernie4_5_vl_moe": "it routes text and image tokens by different experts, so rows do not line up with tokens",
    "qwen3_omni_moe": "it holds two MoE models (thinker and talker) whose layers share indices: train the thinker "
    "alone (qwen3_omni_moe_thinker)",
    "switch_transformers": "it drops tokens over an expert's capacity, so the choice depends on the batch",
    "nllb_moe": "it drops tokens over an expert's capacity, so the choice depends on the batch",
    "openai_privacy_filter": "it labels tokens and generates none",
    "vitpose_backbone": "its experts belong to data sets, not to tokens",
}
"""Families that are known and cannot be replayed, with the reason."""


def built_in_adapters() -> dict[str, Callable[[], TopKRouter]]:
    """What the built-in plugin registers: `{model_type: factory}`."""
    return {name: _factory(name, router) for name, router in FAMILIES.items()}


def _factory(name: str, router: TopKRouter) -> Callable[[], TopKRouter]:
    def adapter() -> TopKRouter:
        return router

    adapter.__doc__ = f"Routers of transformers' {name} ({router.owner}.{router.method})."
    return adapter


def find_routers(model: nn.Module, adapter: Any = None) -> list[RouterSite]:
    """The routers of `model`, by its config's `model_type`. Raises `ConfigError` where there is no adapter."""
    adapter = adapter or adapter_of(model.config)
    sites = adapter.find(model)
    if not sites:
        raise ConfigError(
            f"routing replay: {type(model).__name__} has no router that the adapter {adapter} fits "
            "(no MoE layer in this config, or the routers' class is new): set rufus.routing_replay=off, or register an "
            "adapter (register_router_adapters)"
        )
    return sites


def adapter_of(config: Any) -> Any:
    """The adapter for a model config: by its own `model_type`, else by its text config's."""
    from rufus_plugins.plugins import registry

    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = list(dict.fromkeys([config.model_type, text.model_type, text.model_type.removesuffix("_text")]))
    known = registry().parts["router_adapter"]
    for name in names:
        if name in known:
            return registry().build("router_adapter", name)
    for name in names:
        if name in REFUSED:
            raise ConfigError(f"routing replay cannot be had for {name}: {REFUSED[name]}. Set rufus.routing_replay=off")
    raise ConfigError(
        f"routing replay knows no model family {names[0]!r}. It knows {', '.join(sorted(known))}. Set "
        "rufus.routing_replay=off, or register an adapter for it in a plugin (register_router_adapters)"
    )
