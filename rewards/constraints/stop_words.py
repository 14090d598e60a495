"""English stop words: the function words, by class. Ours."""

STOP_WORDS = frozenset(
    # pronouns and possessives
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves "
    # articles, demonstratives, question words
    "a an the this that these those what which who whom where when why how "
    # forms of be, have, do; modal verbs
    "am is are was were be been being have has had having do does did doing will can should "
    # conjunctions
    "and but or if because as until while than nor so "
    # prepositions and particles
    "of at by for with about against between into through during before after above below to from up down "
    "in out on off over under"
    # adverbs and quantifiers
    "again further then once here there all any both each few more most other some such no not only own "
    "same too very just now"
    # what contractions leave over
    "don should've aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan shouldn wasn weren "
    "won wouldn".split()
)
_ENDINGS = ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m")


def is_stop_word(folded_word: str) -> bool:
    """Whether a folded word is one; a contraction is if its first part is ("they're", "don't")."""
    if folded_word in STOP_WORDS:
        return True
    for ending in _ENDINGS:
        if folded_word.endswith(ending):
            stem = folded_word[: -len(ending)]
            return stem in STOP_WORDS or ending == "n't" and (stem + "n" in STOP_WORDS or stem == "ca")
    return False
