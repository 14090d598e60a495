"""What the generated prompts ask for before any constraint: a form of text about a subject.

All are open: any number of words, any layout and any point of view fits. Ours.
"""

from __future__ import annotations

import random

FORMS = (
    "Write a short article about {}.",
    "Explain {} to a curious teenager.",
    "Write a letter to a friend about {}.",
    "Describe {} for somebody who has never heard of it.",
    "Give some advice about {}.",
    "Write a speech about {}.",
    "Write a diary entry about {}.",
    "Write a product description for a book about {}.",
    "Summarise what matters most about {}.",
    "Tell a short story about {}.",
    "Write an email to a neighbour about {}.",
    "Write a blog post about {}.",
    "Make the case for learning more about {}.",
    "Write a short guide to {}.",
    "Write the opening of a lecture on {}.",
)
SUBJECTS = (
    "keeping bees", "night trains", "baking bread", "public libraries", "growing tomatoes", "lighthouses", "old maps",
    "learning to swim", "tidal power", "mountain rescue", "street markets", "the history of paper", "bird watching",
    "repairing bicycles", "desert plants", "chess openings", "volcanoes", "winter festivals", "city parks",
    "sign languages", "glass making", "weather forecasts", "wooden boats", "school gardens", "rivers and their bends",
    "the invention of the clock", "long walks", "folk music", "deep sea fish", "community theatre", "recycling at home",
    "first aid", "the migration of geese", "moving to a small town", "cooking for many people", "hand lettering",
    "coral reefs", "saving water", "museums of science", "telling the time by the stars",
)  # fmt: skip


def draw(rng: random.Random) -> str:
    return rng.choice(FORMS).format(rng.choice(SUBJECTS))


def everything() -> list[str]:
    return [form.format(subject) for form in FORMS for subject in SUBJECTS]
