"""The real vLLM on CPU as a rollout, one process, one call.

python generate.py MODEL DTYPE OUTPUT.npz [PROMPTS] [TOKENS]: ids, log-probabilities and routed experts as vLLM answers.
"""

import os
import sys

os.environ.update(
    TORCH_COMPILE_DISABLE="1",  # without it every batch takes seconds
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    HF_HUB_OFFLINE="1",
)

import numpy as np  # noqa: E402


def generate(model: str, dtype: str, prompts: int, tokens: int) -> dict[str, np.ndarray]:
    from vllm import LLM, SamplingParams

    from rufus_plugins.recipes.tiny import tasks

    llm = LLM(
        model=model,
        dtype=dtype,
        enable_return_routed_experts=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**27,
        max_model_len=512,
        max_num_batched_tokens=4096,
        enforce_eager=True,
        distributed_executor_backend="uni",
    )
    statements = [problem.statement + "\n" for problem in tasks.problems(0, "rl")[:prompts]]
    params = SamplingParams(temperature=1.0, max_tokens=tokens, min_tokens=tokens, seed=1, logprobs=0)
    found = {}
    for number, output in enumerate(llm.generate(statements, params, use_tqdm=False)):
        one = output.outputs[0]
        found[f"prompt{number}"] = np.array(output.prompt_token_ids, np.int32)
        found[f"response{number}"] = np.array(one.token_ids, np.int32)
        found[f"logprobs{number}"] = np.array(
            [step[token].logprob for token, step in zip(one.token_ids, one.logprobs, strict=True)], np.float32
        )
        found[f"routes{number}"] = one.routed_experts
    return found


if __name__ == "__main__":
    model, dtype, output, *numbers = sys.argv[1:]
    prompts, tokens = (int(numbers[0]), int(numbers[1])) if numbers else (24, 96)
    np.savez_compressed(output, **generate(model, dtype, prompts, tokens))
