"""Weights from trainer ranks to standalone rollouts over gloo: what arrives is what was sent, bit for bit."""

import asyncio
import threading

import pytest
import torch

from rufus_plugins.errors import InfrastructureError


def engine(**kwargs):
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    return CheckpointEngineRegistry.new("gloo", **kwargs)


def weights():
    draw = torch.Generator().manual_seed(3)
    yield "odd", torch.randn(7, 3, generator=draw).bfloat16()
    yield "steps", torch.arange(5)  # int64 after 42 bytes: read in place, it has to be aligned
    yield "flags", torch.tensor([True, False, True])
    yield "larger than a bucket", torch.randn(50, 9, generator=draw)
    yield "transposed", torch.randn(4, 6, generator=draw).T
    yield "scalar", torch.tensor(2.5)
    yield "last", torch.randn(11, generator=draw).double()


def update(trainers, rollouts):
    """One update as verl's CheckpointEngineManager does it; returns what each rollout received."""
    everyone = [*trainers, *rollouts]
    metadata = [one.prepare() for one in everyone]
    mine, theirs = type(trainers[0]).build_topology(len(trainers), len(rollouts), metadata)
    received = [[] for _ in rollouts]

    async def take(number):
        async for name, tensor in rollouts[number].receive_weights():
            received[number].append((name, tensor))

    def trainer(number):
        trainers[number].init_process_group(**{key: values[number] for key, values in mine.items()})
        asyncio.run(trainers[number].send_weights(weights()))

    def rollout(number):
        rollouts[number].init_process_group(**{key: values[number] for key, values in theirs.items()})
        asyncio.run(take(number))

    threads = [threading.Thread(target=trainer, args=(i,)) for i in range(len(trainers))]
    threads += [threading.Thread(target=rollout, args=(i,)) for i in range(len(rollouts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for one in everyone:
        one.finalize()
    return received


@pytest.mark.parametrize("bucket_size", [200, 1 << 20])
def test_every_rollout_gets_every_weight_bit_for_bit_at_every_update(bucket_size):
    trainers = [engine(bucket_size=bucket_size, is_master=number == 0) for number in range(2)]
    rollouts = [engine(bucket_size=bucket_size) for _ in range(2)]
    for group in (rollouts, rollouts, [*rollouts, engine(bucket_size=bucket_size)]):
        for got in update(trainers, group):
            sent = list(weights())
            assert [name for name, _ in got] == [name for name, _ in sent]
            for (_, a), (_, b) in zip(got, sent, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def test_a_receiver_that_never_comes_ends_the_update_with_a_typed_error():
    trainer = engine(bucket_size=1000, is_master=True, timeout_s=1.0)
    kwargs, _ = type(trainer).build_topology(1, 1, [trainer.prepare(), None])
    with pytest.raises(InfrastructureError, match="did not come together for a weight update"):
        trainer.init_process_group(**{key: values[0] for key, values in kwargs.items()})
        asyncio.run(trainer.send_weights(weights()))
