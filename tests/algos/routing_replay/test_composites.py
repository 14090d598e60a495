"""A multimodal model around a MoE text model has its text model's routers, wherever its layers stand."""

import pytest
import torch
import transformers
from test_families import difference, forward, rotated
from tiny_families import BASE, FAMILIES, VISION, gradients, loss_of, padded_batch

from rufus_plugins.algos.routing_replay.record import record
from rufus_plugins.algos.routing_replay.replay import replay

SIGHT = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
CLIP = dict(**SIGHT, model_type="clip_vision_model", image_size=28, patch_size=14, projection_dim=16)
PIXTRAL = dict(**SIGHT, model_type="pixtral", image_size=28, patch_size=14)
LLAMA4 = {**SIGHT, **dict(intermediate_size=64, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32)}
IDS = dict(image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63)

# model class, config class, text model, vision config, further fields, MoE layers of three
COMPOSITES = {
    "llava_glm4_moe": ("LlavaForConditionalGeneration", "LlavaConfig", "glm4_moe", CLIP, {}, [1, 2]),
    "internvl_gpt_oss": (
        "InternVLForConditionalGeneration",
        "InternVLConfig",
        "gpt_oss",
        dict(**SIGHT, image_size=[28, 28], patch_size=[14, 14]),
        dict(image_token_id=60),
        [0, 1, 2],
    ),
    "mistral3_mistral4": ("Mistral3ForConditionalGeneration", "Mistral3Config", "mistral4", PIXTRAL, {}, [1, 2]),
    "llama4": ("Llama4ForConditionalGeneration", "Llama4Config", "llama4_text", LLAMA4, {}, [0, 1, 2]),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeConfig",
        "qwen3_5_moe_text",
        VISION,
        IDS,
        [0, 1, 2],
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_own_routes_of_a_multimodal_model_change_nothing(name):
    model_class, config_class, text, vision, fields, layers = COMPOSITES[name]
    text_config = {**BASE, **FAMILIES[text], "model_type": text}
    config = getattr(transformers, config_class)(text_config=text_config, vision_config=vision, **fields)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager").float().train()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.15)
    ids, mask = padded_batch()
    ids = ids.clamp(max=59)  # text alone
    native = forward(model, ids, mask)
    loss_of(native).backward()
    expected = gradients(model)
    with record(model) as recorder:
        forward(model, ids, mask)
    assert recorder.layers == layers
    with replay(model, recorder.routes()) as pass_:
        logits = forward(model, ids, mask)
    loss_of(logits).backward()
    assert torch.equal(logits, native) and pass_.match_rate() == 1.0
    assert difference(expected, gradients(model)) == 0.0
    with torch.no_grad(), replay(model, rotated(recorder.routes(), recorder.num_experts)):
        assert (forward(model, ids, mask) - native)[mask.bool()].abs().max() > 1e-2
