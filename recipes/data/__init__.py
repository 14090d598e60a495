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
    "show-mask": (
        "rufus_plugins.recipes.data.show_mask:ShowMask",
        "a conversation with the supervised tokens in colour",
    ),
    "mixture": (
        "rufus_plugins.recipes.data.mixture:Mixture",
        "shares of samples and of supervised tokens by category, and weights to another mixture",
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
    "solve-rate": (
        "rufus_plugins.recipes.data.solve_rate:SolveRate",
        "sample answers with any model, score them with any reward, note how often each record is solved",
    ),
    "filter": (
        "rufus_plugins.recipes.data.filter:Filter",
        "keep what registered filters keep: difficulty bands, teacher-correct, closed book and others",
    ),
    "trajectories": (
        "rufus_plugins.recipes.data.trajectories:Trajectories",
        "rejection sampling: answers or episodes with tools, the right ones as conversations",
    ),
}
