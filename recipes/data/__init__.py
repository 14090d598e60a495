"""Data tools: `rufus data <tool>`. Each is a dataclass in a file of this folder (how: tool.py, docs/data.md)."""

TOOLS: dict[str, tuple[str, str]] = {
    # name: (module:class, one line for `rufus data --help`)
    "normalise": (
        "rufus_plugins.recipes.data.normalise:Normalise",
        "conversations of any common shape to one schema",
    ),
    "tokenise": (
        "rufus_plugins.recipes.data.tokenise:Tokenise",
        "conversations to token ids and loss masks, as the chat template writes them",
    ),
    "decontaminate": (
        "rufus_plugins.recipes.data.decontaminate:Decontaminate",
        "set aside what a benchmark also holds: n-grams, then near matches for review",
    ),
    "deduplicate": (
        "rufus_plugins.recipes.data.deduplicate:Deduplicate",
        "keep the first of records that say the same, word for word or nearly",
    ),
    "construct": (
        "rufus_plugins.recipes.construct.build:Construct",
        "questions over tables whose answers are computed first: filter, select, compute, verbalise",
    ),
    "harden": (
        "rufus_plugins.recipes.difficulty.harden:Harden",
        "make problems harder where the base model solves them; answers that three solves agree on",
    ),
    "dialogues": (
        "rufus_plugins.recipes.instruction_rl.dialogues:Dialogues",
        "conversations in which a user adds, changes and distracts, with rubrics for the last turn",
    ),
    "preference-accuracy": (
        "rufus_plugins.recipes.rlhf.accuracy:PreferenceAccuracy",
        "how often a reward model prefers what people preferred",
    ),
}
