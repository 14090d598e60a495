"""RLHF: short advice on a subject, for `preference` with a tiny reward model (recipes/tiny/reward_model.py).

A good answer gives the advice of the subject and closes politely. A rejected one is on another subject, rude, or vague,
or goes on and on. The careless teacher forgets the polite end. `value` is what people here like, by rule: it labels the
pairs from which the reward model learns, and measures what the policy has learned; the policy never sees it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import Family, Item, says, splits, user

FAMILY = Family("rlhf", "rlhf/tiny_manners", {"name": "preference"}, sft_rows=1_500)

ADVICE = {
    "bread": "bake it hot",
    "plants": "give them light",
    "a cold": "rest and drink",
    "chess": "play slow games",
    "a tyre": "pump it up",
    "a leak": "close the valve",
    "a speech": "speak slowly",
    "stains": "use cold water",
    "sleep": "go to bed early",
    "a dog": "walk it daily",
    "exams": "start in time",
    "knives": "cut away from you",
    "soup": "add salt late",
    "a bike": "oil the chain",
    "rain": "take a coat",
    "a cat": "feed it twice",
    "moss": "rake the grass",
    "nails": "use a small hammer",
    "maps": "turn them north",
    "tea": "wait four minutes",
    "a boat": "watch the wind",
    "songs": "sing them slowly",
    "wasps": "sit very still",
    "a tent": "look for flat ground",
}
OPENINGS = ("Help me with {}.", "What about {}?", "Any advice on {}?", "Tell me about {}.")
MOODS = ("", " I am new.", " Be quick.", " It is late.", " Please.")
CLOSING = "Good luck!"
RUDE, VAGUE = "Silly question.", "It depends."


def good(subject: str) -> str:
    return f"{ADVICE[subject].capitalize()}. {CLOSING}"


def items(seed: int) -> list[Item]:
    found = []
    for subject, opening, mood in itertools.product(ADVICE, OPENINGS, MOODS):
        text = opening.format(subject) + mood
        faulty, more = f"{ADVICE[subject].capitalize()}.", {"subject": subject}
        found.append(
            Item(f"{subject}/{opening}/{mood}", user(text), "", says(good(subject)), says(faulty), more, subject)
        )
    return found


def pairs(found: Sequence[Item], seed: int, per_item: int = 4) -> list[dict]:
    """`{"prompt", "chosen", "rejected"}` for the reward model: the better one by `value` is chosen."""
    rng = random.Random(f"manners {seed}")
    made = []
    for item in found:
        subject = item.extra["subject"]
        for _ in range(per_item):
            one, other = rng.sample(_answers(subject, rng), 2)
            if value(subject, one) == value(subject, other):
                other = good(subject) if value(subject, one) < 1 else VAGUE
            chosen, rejected = sorted((one, other), key=lambda text: -value(subject, text))
            made.append({"prompt": list(item.prompt), "chosen": chosen, "rejected": rejected})
    return made


def _answers(subject: str, rng: random.Random) -> list[str]:
    other = rng.choice([name for name in ADVICE if name != subject])
    advice = ADVICE[subject].capitalize()
    return [
        good(subject), f"{advice}.", good(other), f"{ADVICE[other].capitalize()}.", f"{RUDE} {advice}.", VAGUE,
        f"{advice}. {VAGUE} {VAGUE} {VAGUE}", CLOSING, f"{good(subject)} {CLOSING} {CLOSING}",
        f"{good(subject)} {ADVICE[other]}", good(subject)[: rng.randrange(3, 12)],
    ]  # fmt: skip


def value(subject: str, answer: str) -> float:
    """0 to 1: half for the right advice, the other half for the polite end after it; a tenth less for each sentence too
    many, nothing for rudeness. Without the advice everything is worth nothing, so no constant answer is."""
    text = answer.strip()
    if RUDE in text or ADVICE[subject].casefold() not in text.casefold():
        return 0.0
    more = max(0, sum(text.count(mark) for mark in ".!?") - 2)
    return max(0.0, 0.5 + 0.5 * text.endswith(CLOSING) - 0.1 * more)


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The best constant answer and the share of items for which it is as good as can be (value 1)."""
    answers = [good(subject) for subject in ADVICE]
    shares = {a: sum(value(item.extra["subject"], a) >= 1 for item in found) / len(found) for a in answers}
    answer = max(shares, key=shares.get)
    return answer, shares[answer]


def files(folder: Path, found: Sequence[Item], seed: int) -> None:
    """Pairs, and the reward model that learned from the SFT items'; `accuracy.json` is that of held-out pairs."""
    import json

    from rufus_plugins.recipes.tiny import reward_model

    parts = splits(found, seed)
    made = {"pairs": pairs(parts["sft"], seed), "pairs_heldout": pairs(parts["heldout"], seed)}
    for name, rows in made.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reward_model.train(made["pairs"], folder / "reward_model", seed)
    accuracy = reward_model.accuracy(made["pairs_heldout"], folder / "reward_model")
    (folder / "accuracy.json").write_text(json.dumps(accuracy) + "\n")


def overrides(folder: Path) -> dict[str, Path]:
    return {"rufus.reward.model": folder / "reward_model"}


def report(folder: Path) -> dict:
    import json

    return {"reward_model_accuracy": json.loads((folder / "accuracy.json").read_text())}
