"""One rank of test_gspo.test_two_ranks_agree_with_one: `gspo_rank.py LOSS RANK STORE ROWS`."""

import importlib.util
import json
import sys
from pathlib import Path


def main(loss: str, rank: int, store: str, rows: dict) -> None:
    import torch
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    from rufus_plugins.algos.losses.gspo_exact import gspo_exact

    spec = importlib.util.spec_from_file_location("gspo_tests", Path(__file__).with_name("test_gspo.py"))
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    POLICY_LOSS_REGISTRY.setdefault("gspo_exact", gspo_exact)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    class Rank:
        def get_data_parallel_group(self):
            return torch.distributed.group.WORLD

    half = slice(2 * rank, 2 * rank + 2)
    mine = {name: values[half] for name, values in rows.items()}
    loss, gradient = tests.host_loss(
        loss,
        **mine,
        micro_batches=[[0], [1]],
        engine=Rank(),
        ranks=2,
        all_tokens=sum(map(sum, rows["masks"])),
        dtype=torch.float64,
    )
    print(json.dumps({"loss": loss, "gradient": gradient.tolist()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
