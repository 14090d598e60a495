"""A third party's plugin: a reward, and a stage that trains on it, without yaml. Code that needs the rest of
rufus-plugins is not needed for it."""

import json
from dataclasses import dataclass

from rufus_plugins import Score, Stage, hookimpl


@dataclass
class LetterShare:
    """Share of one letter in the response."""

    letter: str = "e"
    """The letter that counts."""
    ignore_case: bool = True

    async def __call__(self, trajectory):
        text, letter = trajectory.response, self.letter
        if self.ignore_case:
            text, letter = text.lower(), letter.lower()
        return Score(text.count(letter) / len(text) if text else 0.0, {"letters": len(text)})


def letters_stage():
    """Say many e: GSPO on the share of a letter."""
    from hydra.core.config_store import ConfigStore

    config = {
        "defaults": [{"override /algorithm": "gspo"}, {"override /reward@reward": "letter_share"}, "_self_"],
        "data": {"max_prompt_length": 64, "max_response_length": 32},
    }
    ConfigStore.instance().store(group="rufus_sample", name="letters", package="_global_", node=config)
    return Stage("letters", "rufus_sample/letters", tiny=tiny)


def tiny(output_dir, seed):
    """Demonstrations and questions about numbers; a third of the questions is held out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (output_dir / "rl").mkdir(parents=True, exist_ok=True)
    questions = [f"Describe {seed + number}." for number in range(60)]
    with (output_dir / "sft.jsonl").open("w") as file:
        for question in questions[:40]:
            said = [{"role": "user", "content": question}, {"role": "assistant", "content": "It is even."}]
            file.write(json.dumps({"messages": said, "enable_thinking": False}) + "\n")
    for name, part in (("train", questions[:40]), ("heldout", questions[40:])):
        rows = [
            {
                "data_source": "letters",
                "prompt": [{"role": "user", "content": question}],
                "ability": "letters",
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"id": question},
            }
            for question in part
        ]
        pq.write_table(pa.Table.from_pylist(rows), output_dir / "rl" / f"{name}.parquet")
    report = {"stage": "letters", "seed": seed, "items": {"sft": 40, "rl": 40, "heldout": 20}, "overrides": []}
    report |= {"constant_answer": "e", "constant_share": 1.0, "constant_kind": "answer"}
    (output_dir / "family.json").write_text(json.dumps(report))
    return report


@hookimpl
def register_rewards():
    return {"letter_share": LetterShare}


@hookimpl
def register_stages():
    return {"letters": letters_stage}
