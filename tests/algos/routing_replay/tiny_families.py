"""One tiny random model per MoE family: about 50,000 parameters, built from its config, nothing downloaded."""

import copy
import functools
import warnings

import torch

BASE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts_per_tok=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=128,
)
MLA = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4)
GROUPS = dict(n_routed_experts=8, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1)
DELTA = dict(
    num_experts=8,
    shared_expert_intermediate_size=16,
    layer_types=["linear_attention", "full_attention", "full_attention"],
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=4, mamba_n_groups=1)
VISION = dict(
    depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=16
)
AUDIO = dict(
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=16,
    d_model=16,
    output_dim=32,
    num_mel_bins=16,
    downsample_hidden_size=8,
)
OCR_VISION = dict(
    sam_config=dict(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        output_channels=16,
        image_size=64,
        global_attn_indexes=[0],
        downsample_channels=[16, 16],
    ),
    encoder_config=dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    ),
)

FAMILIES = {
    "afmoe": dict(
        num_experts=8,
        num_dense_layers=1,
        num_shared_experts=1,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    "aria_text": dict(moe_num_experts=8, moe_topk=2, moe_num_shared_experts=1),
    "cohere2_moe": dict(num_experts=8),
    "dbrx": dict(
        d_model=32,
        n_heads=4,
        n_layers=2,
        attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8.0),
        ffn_config=dict(hidden_size=32, ffn_hidden_size=32, moe_num_experts=8, moe_top_k=2),
    ),
    "deepseek_v2": dict(
        **MLA,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
    ),
    "deepseek_ocr2": dict(n_routed_experts=8, n_shared_experts=1, mlp_layer_types=["dense", "sparse", "sparse"]),
    "deepseek_v3": dict(**MLA, **GROUPS),
    "deepseek_v4": dict(
        n_routed_experts=8,
        n_shared_experts=1,
        num_key_value_heads=1,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        hc_mult=2,
        index_n_heads=2,
        index_head_dim=8,
        mlp_layer_types=["hash_moe", "moe", "moe"],
        layer_types=["sliding_attention"] * 3,
    ),
    "dots1": dict(**GROUPS),
    "ernie4_5_moe": dict(moe_num_experts=8, moe_k=2, moe_layer_start_index=1, moe_num_shared_experts=1),
    "exaone_moe": dict(num_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1, num_shared_experts=1),
    "flex_olmo": dict(num_experts=8),
    "gemma4_text": dict(
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=64,
        global_head_dim=8,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    "glm4_moe": dict(**GROUPS),
    "glm4_moe_lite": dict(**MLA, **GROUPS),
    "glm_moe_dsa": dict(
        **MLA,
        **GROUPS,
        index_head_dim=16,
        index_n_heads=2,
        index_topk=64,
        mlp_layer_types=["dense", "sparse", "sparse"],
    ),
    "gpt_oss": dict(num_local_experts=8),
    "granitemoe": dict(num_local_experts=8),
    "granitemoehybrid": dict(num_local_experts=8, layer_types=["attention"] * 3, shared_intermediate_size=16, **MAMBA),
    "granitemoeshared": dict(num_local_experts=8, shared_intermediate_size=16),
    "hunyuan_v1_moe": dict(num_experts=8, moe_topk=2),
    "hy_v3": dict(num_experts=8, num_local_experts=8),
    "jamba": dict(
        num_experts=8,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
        mamba_dt_rank=4,
    ),
    "laguna": dict(num_experts=8),
    "lfm2_moe": dict(num_experts=8, num_dense_layers=1, layer_types=["conv", "full_attention", "full_attention"]),
    "llama4_text": dict(
        num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=32, interleave_moe_layer_step=1
    ),
    "longcat_flash": dict(
        **MLA,
        n_routed_experts=8,
        zero_expert_num=2,
        moe_topk=2,
        ffn_hidden_size=32,
        expert_ffn_hidden_size=16,
        num_layers=2,
    ),
    "mellum": dict(num_experts=8),
    "minimax": dict(
        num_local_experts=8, layer_types=["linear_attention", "full_attention", "full_attention"], block_size=16
    ),
    "minimax_m2": dict(num_local_experts=8, rotary_dim=8),
    "mistral4": dict(**{**MLA, "head_dim": 16}, **GROUPS),
    "mixtral": dict(num_local_experts=8),
    "nemotron_h": dict(
        **GROUPS,
        moe_shared_expert_intermediate_size=16,
        layers_block_type=["moe", "attention", "moe"],
        use_mamba_kernels=False,
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=4,
        n_groups=1,
    ),
    "olmoe": dict(num_experts=8),
    "qwen2_moe": dict(num_experts=8, shared_expert_intermediate_size=16),
    "qwen3_moe": dict(num_experts=8),
    "qwen3_next": dict(**DELTA),
    "qwen3_omni_moe_thinker": dict(num_experts=8),
    "qwen3_5_moe_text": dict(**DELTA),
    "qwen3_vl_moe": dict(num_experts=8),
    "glm4v_moe": dict(
        **GROUPS,
        rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]
        ),
    ),
    "solar_open": dict(**GROUPS),
}
"""transformers `model_type` -> what differs from BASE."""

CLASSES = {
    "deepseek_ocr2": "DeepseekOcr2ForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    "mistral4": "Mistral4ForCausalLM",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
}
"""Where AutoModelForCausalLM has none."""

LEAK_WHEN_PACKED = {
    # recurrent or convolutional layers carry state over the boundary on CPU, without any replay
    "jamba",
    "lfm2_moe",
    "minimax",
    "nemotron_h",
    "qwen3_next",
    "qwen3_5_moe_text",
}


@functools.cache
def _config(family: str):
    from transformers import AutoConfig

    own = {**BASE, **FAMILIES[family]}
    if family == "qwen3_vl_moe":
        return AutoConfig.for_model(family, text_config=own, vision_config={**VISION, "deepstack_visual_indexes": [0]})
    if family == "glm4v_moe":
        return AutoConfig.for_model(family, text_config=own, vision_config=VISION)
    if family == "deepseek_ocr2":
        return AutoConfig.for_model(family, text_config=own, vision_config=OCR_VISION)
    if family == "qwen3_omni_moe_thinker":
        return AutoConfig.for_model(
            family,
            text_config=own,
            vision_config={**VISION, "deepstack_visual_indexes": [0]},
            audio_config=AUDIO,
            vision_start_token_id=60,
        )
    return AutoConfig.for_model(family, **own)


def tiny_model(family: str, seed: int = 0, **overrides):
    """The family's model for language, fp32, eager attention, weights large enough that routes spread."""
    import transformers

    config = copy.deepcopy(_config(family))
    if overrides:
        config = type(config)(**{**config.to_dict(), **overrides})
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(transformers, CLASSES[family]) if family in CLASSES else transformers.AutoModelForCausalLM
        make = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
        model = make(config, attn_implementation="eager")
    model = model.float()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.15)
    if family == "deepseek_v2":
        for module in model.modules():
            if hasattr(module, "topk_method"):
                module.num_experts = 8  # transformers 5.10 reads it in group_limited_greedy and never sets it
    if family == "deepseek_v4":
        for module in model.modules():
            if hasattr(module, "tid2eid"):
                module.tid2eid.copy_(torch.stack([torch.randperm(8)[:2] for _ in range(64)]))
    return model.train()


def padded_batch(lengths=(12, 7), seed: int = 1):
    """Right-padded `input_ids` and `attention_mask` `[len(lengths), max(lengths)]`."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(3, 64, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return ids * mask, mask


def loss_of(logits, weights_seed: int = 7):
    """A scalar with a different gradient at every logit."""
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(weights_seed))
    return (logits.float() * weights).sum() / logits.shape[-1]


def gradients(model):
    """name -> gradient, and clears them."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found
