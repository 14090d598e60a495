"""A third party's plugin: one reward, no yaml. Code that needs the rest of rufus-plugins is not needed for it."""

from dataclasses import dataclass

from rufus_plugins import Score, hookimpl


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


@hookimpl
def register_rewards():
    return {"letter_share": LetterShare}
