"""Run by test_ranks.py under torch.distributed.run: one model per family, sharded over two ranks."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tiny_families import loss_of, padded_batch, tiny_model  # noqa: E402

from rufus_plugins.algos.routing_replay.record import record  # noqa: E402
from rufus_plugins.algos.routing_replay.replay import replay  # noqa: E402
from rufus_plugins.algos.routing_replay.routers import install  # noqa: E402


def gradients(model):
    found = {name: p.grad.to_local().clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def check(family: str) -> None:
    rank = dist.get_rank()
    model = tiny_model(family)
    install(model)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    batches = [padded_batch((12, 7), seed=10 + rank), padded_batch((9, 15), seed=20 + rank)]  # each rank its own

    def forward(ids, mask):
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits

    native, routes = [], []
    for ids, mask in batches:
        with record(model) as recorder:
            logits = forward(ids, mask)
        routes.append(recorder.routes())
        loss_of(logits).backward()
        native.append((logits.detach(), gradients(model)))
    model.gradient_checkpointing_enable()
    logits = []
    for (ids, mask), rows in zip(batches, routes, strict=True):
        with replay(model, rows) as pass_:
            logits.append(forward(ids, mask))
        assert pass_.match_rate() == 1.0
    for output, (expected, expected_gradients) in zip(logits, native, strict=True):
        assert torch.equal(output, expected)
        loss_of(output).backward()
        found = gradients(model)
        assert found.keys() == expected_gradients.keys()
        assert all(torch.equal(found[name], expected_gradients[name]) for name in found)
    with replay(model, (routes[0].astype(int) + 1) % 8):
        assert not torch.equal(forward(*batches[0]), native[0][0])
    print(f"{family} rank {rank} exact", flush=True)


torch.set_num_threads(1)
dist.init_process_group("gloo")
for name in sys.argv[1:]:
    check(name)
dist.destroy_process_group()
