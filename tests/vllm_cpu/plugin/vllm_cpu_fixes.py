"""What vLLM 0.27.1 on CPU lacks for RL: weights that can be loaded again, and the experts it chose.

Loaded by vLLM in every process (entry point `vllm.general_plugins`). Test equipment, not part of rufus-plugins.
"""

from importlib.metadata import version

KNOWN = "0.27.1+cpu"


def apply() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    if version("vllm") != KNOWN:
        raise RuntimeError(f"vllm_cpu_fixes knows vllm {KNOWN}, this is {version('vllm')}")
    keep_dense_weights()
    keep_expert_weights()
    capture_routed_experts()


def keep_dense_weights() -> None:
    """model_executor/layers/utils.py:309-319 packs linear weights and empties the parameter, linear.py:220: there is
    nothing left that could be loaded again."""
    import torch
    from vllm.model_executor.layers import utils

    stock = utils.dispatch_cpu_unquantized_gemm

    def dispatch_cpu_unquantized_gemm(layer, remove_weight):
        if layer.weight.dim() != 2:
            return stock(layer, remove_weight)
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def keep_expert_weights() -> None:
    """cpu_fused_moe.py:402-409 packs expert weights; the torch path keeps them, unpadded."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    cpu_fused_moe.CPUFusedMOE.check_grouped_gemm = lambda self, layer: (False, "none")
    cpu_fused_moe.CPUFusedMOE._pad_moe_intermediate_for_grouped_gemm = lambda self, layer: None


def capture_routed_experts() -> None:
    """gpu_model_runner.py:7739 refuses the CPU's MoE as monolithic; its choice is `select_experts`' answer."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.layer import MoERunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    select, call = cpu_fused_moe.select_experts, cpu_fused_moe.CPUFusedMOE.__call__
    current = []

    def select_experts(*args, **kwargs):
        weights, ids = select(*args, **kwargs)
        if current and current[-1] is not None:
            current[-1](ids)
        return weights, ids

    def __call__(self, layer, *args, **kwargs):
        current.append(getattr(layer, "capture_routes", None))
        try:
            return call(self, layer, *args, **kwargs)
        finally:
            current.pop()

    def bind(self, capturer):
        bound = 0
        for runner in self.model.modules():
            if not isinstance(runner, MoERunner):
                continue
            for layer in runner.modules():
                if hasattr(layer, "w13_weight"):
                    # on the layer, not on its kernel: loading weights again makes a new kernel
                    layer.capture_routes = lambda ids, layer_id=runner.layer_id: capturer.capture(layer_id, ids)
                    bound += 1
        if not bound:
            raise RuntimeError("enable_return_routed_experts: this model has no MoE layer")

    cpu_fused_moe.select_experts = select_experts
    cpu_fused_moe.CPUFusedMOE.__call__ = __call__
    GPUModelRunner._bind_routed_experts_capturer = bind
