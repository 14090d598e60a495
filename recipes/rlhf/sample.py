"""Generated preference pairs in HH-RLHF's shape: what the builder reads where there is no network.

A request for a few lines about a subject; the chosen answer is on the subject, polite and brief, the rejected one
misses one of these. A reward model that counts words, or likes every answer that is polite, does not sort them all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.source_list import Source

SOURCE = Source("sample", "pairs", "", {"chosen": "chosen", "rejected": "rejected"}, licence="Apache-2.0")

SUBJECTS = {
    "a bicycle tyre": "Check it for nails, pump it up to the pressure on its side, and look again the next day.",
    "house plants": "Most of them want light, little water in winter, and a pot with a hole.",
    "a job interview": "Read about the place, prepare three examples of your work, and be there ten minutes early.",
    "bread": "Let the dough rest overnight in the fridge and bake it in a hot, closed pot.",
    "a cold": "Rest, drink enough, and see a doctor if the fever stays for more than three days.",
    "spreadsheets": "Keep one thing per column, name your ranges, and never type a result that can be computed.",
    "a leaking tap": "Close the valve, take the handle off, and put in a washer of the same size.",
    "public speaking": "Know your first sentence by heart, speak slower than feels right, and look at one person.",
    "camping in the rain": "Pitch the tent on high ground, keep one dry set of clothes, and cook under the flap.",
    "learning chess": "Play slow games, look at each of them afterwards, and solve a few puzzles a day.",
}
OPENINGS = (
    "Can you help me with {}?",
    "I need some advice about {}.",
    "What should I know about {}?",
    "Tell me the most important thing about {}.",
)
SECOND = ("I am a beginner.", "I do not have much time.", "It is for a friend.", "I have never done this before.")
_RUDE = "That is a silly thing to ask."
_VAGUE = "It depends. There are many opinions about this and it is hard to say."


def records(count: int, seed: int) -> Iterator[tuple[Source, Raw]]:
    rng = random.Random(f"rlhf {seed}")
    subjects = list(SUBJECTS)
    for number in range(count):
        subject, other = rng.sample(subjects, 2)
        opening = rng.choice(OPENINGS).format(subject)
        turns = f"\n\nHuman: {opening}"
        if rng.random() < 0.5:
            turns += f" ({number})\n\nAssistant: Gladly. What is your situation?\n\nHuman: {rng.choice(SECOND)}"
        else:
            turns += f" {rng.choice(SECOND)} ({number})"
        good = SUBJECTS[subject]
        bad = rng.choice((SUBJECTS[other], f"{_RUDE} {good}", _VAGUE, f"{good} " + f"{_VAGUE} " * 4))
        yield (
            SOURCE,
            Raw(
                f"sample {seed}/{number}",
                {"chosen": f"{turns}\n\nAssistant: {good}", "rejected": f"{turns}\n\nAssistant: {bad.strip()}"},
            ),
        )
