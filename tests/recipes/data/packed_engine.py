"""Run by test_sft_dataset.py under torch.distributed.run: packed and separate rows through verl's FSDP2 engine on CPU.

Writes result.json into its working folder.
"""

import json
import os
import pathlib
import sys

os.environ["VERL_PLATFORM"] = "cpu"

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("cpu:gloo")

from omegaconf import OmegaConf  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.dataset.dataset_utils import SFTTensorCollator  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.utils.losses import sft_loss  # noqa: E402

from rufus_plugins.errors import ConfigError  # noqa: E402
from rufus_plugins.recipes.data.sft_dataset import SFTConversations  # noqa: E402

MODEL, DATA = sys.argv[1:]

fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
engine = EngineRegistry.new(
    "language_model",
    "fsdp2",
    model_config=HFModelConfig(
        path=MODEL, tokenizer_path=MODEL, use_remove_padding=True, override_config={"attn_implementation": "sdpa"}
    ),
    engine_config=FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, model_dtype="fp32", mixed_precision=fp32),
    optimizer_config=FSDPOptimizerConfig(lr=0.0),
    checkpoint_config=CheckpointConfig(),
)
engine.initialize()


def dataset(pack_to):
    config = {"pad_mode": "no_padding", "max_length": 400, "rufus": {"pack_to": pack_to, "mask": "every_turn"}}
    return SFTConversations(DATA, AutoTokenizer.from_pretrained(MODEL), OmegaConf.create(config))


def batch(rows, remove_padding=True):
    data = SFTTensorCollator("no_padding")(rows)
    settings = dict(
        temperature=1.0,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=1,
        use_remove_padding=remove_padding,
        use_fused_kernels=False,
    )
    return tu.get_tensordict(data, non_tensor_dict=settings)


def log_probs(rows, **more):
    with engine.eval_mode():
        return list(engine.infer_batch(batch(rows, **more))["model_output"]["log_probs"].unbind())


def gradient(rows):
    losses = []

    def loss(**given):
        losses.append(sft_loss(config=None, **given))
        return losses[-1]

    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(rows), loss)
        found = {n: p.grad.full_tensor() for n, p in engine.module.named_parameters() if p.grad is not None}
        engine.optimizer_zero_grad()
    return sum(float(value) for value, _ in losses), found


separate, packs = dataset(None), dataset(400)
alone = dict(enumerate(log_probs([separate[i] for i in range(len(separate))])))
rows = [packs[i] for i in range(len(packs))]
largest = 0.0
for row, found in zip(map(packs.row, range(len(packs))), log_probs(rows), strict=True):
    at = 0
    for place in row:
        n = int(packs.lengths[place])
        # the last token of a conversation predicts another one's first, which is never supervised
        largest = max(largest, float((found[at : at + n - 1] - alone[place][: n - 1]).abs().max()))
        at += n
mixed = [dict(r, position_ids=torch.arange(len(r["input_ids"]))) for r in rows]
leaking = max(float((a - b).abs().max()) for a, b in zip(log_probs(mixed), log_probs(rows), strict=True))
apart, packed = gradient([separate[i] for i in range(len(separate))]), gradient(rows)
try:
    log_probs(rows, remove_padding=False)
    refusal = ""
except ConfigError as error:
    refusal = str(error)
result = {
    "conversations": len(separate),
    "rows": len(packs),
    "largest": largest,
    "leaking": leaking,
    "losses": [apart[0], packed[0]],
    "gradients": max(float((packed[1][n] - g).abs().max()) for n, g in apart[1].items()),
    "gradient_norm": float(sum(g.norm() ** 2 for g in apart[1].values()) ** 0.5),
    "refusal": refusal,
}
pathlib.Path("result.json").write_text(json.dumps(result))
dist.destroy_process_group()
