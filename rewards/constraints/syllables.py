"""How many syllables an English word may have, by rules of spelling. Ours.

The answer is a set: "fire", "every" and "chocolate" are said in two ways, and both count. A word without letters, or
in a script other than Latin, may have any number.
"""

from __future__ import annotations

import functools
import itertools

import regex

from rufus_plugins.rewards.constraints.reading import unaccented

_ANY = frozenset({1, 2})
_EXACT = {
    1: (
        "ache aches aisle asked awe axe bathe breathe bridge bye cheese choose clothes dye dyed edge eighth ewe "
        "eye eyes guess guest guide guilt isle league lived loose loved lye months moved owe owed plaque please "
        "quay queue queues rogue rye seemed straight the though thought through tongue used vague view views "
        "walked weight whose years"
    ),
    2: (
        "buyer jewel layer liar flyer higher wretched ryan acre acres apple argue argued argues baseball "
        "basement become becomes before being "
        "biscuit bowel busy cafe café careful careless carriage cashier chaos circuit cliche client closely "
        "cookie coward create creates crooked crying diet doing dying extreme fluid flying forehead friar "
        "frontier giant going helpless hereby homeland homeless homework hopeful household into lawyer "
        "lifestyle lifetime likely likewise lion lonely lovely lower lucre lying maple marriage maybe meow "
        "merely minute movement naive naked neon ogre onto pavement people placement player poet premier "
        "purely quiet ragged rarely riot rugged ruin sacred safeguard safely safety science seeing sewer "
        "soldier someday somehow someone something sometimes somewhere statement surely table therefore "
        "trowel truant trying unique useful useless vying warehouse whereas wicked yellow"
    ),
    3: (
        "fiance scientist scientists sciences adobe aerial ambience anyone area argument audience audio barium "
        "barrier beautiful beautify behavior behaviour burial calcium carrier cereal chariot colorful coyote "
        "created creating creation creative curious deviance earlier easier employee employees everything "
        "everywhere finale furious glorious happier helium however idea idiot influence karate linear lithium "
        "maniac maria medium moreover nuclear obvious patriot period piano podium powerful premium previous "
        "radio radius reaction recipe reinforce serial serious sesame simile stadium studio tamale tedious "
        "theorem variance various video violin whatever whenever wherever wonderful"
    ),
    4: (
        "scientific amelia america american anxiety apostrophe appreciate appropriate associate australia biology "
        "catastrophe category ceremony evaluate experience february geology historian hyperbole immediate january "
        "material olivia propriety punctuate scenario society territory theology variety zoology"
    ),
    5: (
        "appropriately creativity curiosity deteriorate ideology immediately librarian opportunity physiology "
        "refrigerator sociology university vegetarian"
    ),
}
"""Words that the rules get wrong."""
_EITHER = {
    (1, 2): (
        "aged blessed boil choir cruel cure dial dire drawer drawers duel file fire fired fires flour flower "
        "flowers fowl fuel hire hired hour hours howl iron learned lure mayor mile oil our ours owl poem "
        "poems power powers prayer pure real realm scowl shower smile soil sour squirrel sure tire tired toil "
        "towel tower trial vial vowel while wire wired"
    ),
    (2, 3): (
        "every empire empires acquire actual admire alien aliens annual aspirin attire average batteries battery "
        "beverage billion billions brilliant broccoli business camera cameras caramel casual catholic celery "
        "chocolate conference coverage dangerous deference desire desired desires desperate diamond diaper "
        "difference differences different entire evening expire factories factory familiar families family "
        "favorite favourite federal finally fireman firing flowering funeral funerals gallery gardening "
        "general generals generous genius glamorous gradual happening hiring histories history humorous "
        "ideals india inspire inspired interest interests jewellery jewelry julia leverage liberal listening "
        "manual mayonnaise memories memory million millions mineral minerals museum mutual mysteries mystery "
        "natural numeral numerous nursery offering onion onions opening opera operas peculiar powering "
        "preference prosperous ratio react really reasoning reference references require required restaurant "
        "retire retired ritual seasoning several sophomore squirrels suffering theater theatre theories "
        "theory threatening tiring totally toward towering traveler traveling traveller travelling union "
        "usual vehicle vehicles veteran veterans victories victory vigorous violence violent violet visual "
        "wandering wiring wondering"
    ),
    (3, 4): (
        "accidentally actually adventurous basically billionaire brilliantly casually cemetery comfortable "
        "cooperate critically deliveries delivery desperately differently discoveries discovery everybody "
        "favorable generally gradually honorable ideally incidentally interested interesting italian literature "
        "logically magically memorable millionaire miniature musically naturally operative physically practically "
        "radically realities reality recovery separated separately stationery temperature tragically typically "
        "unnatural usually variable variables vegetable vegetables"
    ),
    (4, 5): (
        "artistically considerable documentary dramatically electrically elementary energetically experimentally "
        "fundamentally historically immeasurable individual initiative initiatives inseparable laboratory "
        "realistically romantically specifically uncomfortable unfavorable"
    ),
    (5, 6): ("automatically enthusiastically individually scientifically sympathetically systematically"),
}
"""Words that are said in two ways."""
_VOWELS = regex.compile(r"[aeiouy]+")
_SPLIT = regex.compile(
    r"i(?=able|ance|ant$)|(?<![ctsxgln])i(?=a(?!ge|u)|um|us)|(?<=[ln])i(?=a$|um|us$)|(?<=[ct])i(?=at)"
    r"|(?<![ctsxglnv])i(?=o[^u]|o$)|(?<=^v)i(?=o)|(?<=[dlrvb])i(?=en[ct])|i(?=et[^aeiou]?)|^[cd]i(?=e[nt])"
    r"|(?<![qg])u(?=a|o)|u(?=ity|in[gs]?$)|(?<=fl)u(?=en)|e(?=o[^u]|um|a[ct]i)"
    r"|(?<=^re)(?=[eiu])|(?<=^re)(?=a[cl][^hkmt])|^co(?=o[pr][ed])|^bi(?=[ao])|^tri(?=a)|^ge(?=o)|^pre(?=[eiou])"
    r"|(?<=[aeiouy])(?=ing)|o(?=em|et[^aeiou]?$)|(?<=[aeiou])y(?=[aeiou])"
)
"""Where two vowels in a row are two syllables: reliable, radium, initiate, scenario, actual, neon, reaction."""
_LEADING_Y = regex.compile(r"^y(?=[aeiou])")
_SILENT_E = regex.compile(
    r"(?<=[qg])ue(?=s?$)|(?<=[^aeiouyl]|[aeiouywrl]l)e$|(?<=[aeiou])e$"  # unique, make, whole, tie
    r"|(?<=[^aeiouyltd]|[aeiouyrl]l)e(?=d$)"  # loved, but not wanted, settled
)
_SILENT_ES = regex.compile(r"(?<=[^aeiouyl]|[aeiouyrl]l)e(?=s$)")
_SIBILANT = regex.compile(r"(?:[sxz]|ch|sh|[cg])es$")
_INNER_E = regex.compile(
    r"(?<=\w\w[^aeiouyl])e(?=(?:ly|less|ful|ness|ment|some|where|thing|one|times?|work|land|style|wise|house|guard|mate)s?$)"
)
_SYLLABIC_M = regex.compile(r"(?<=[aeiouy])(?:sm|thm)s?$")  # prism, rhythm
_NO_VOWEL = regex.compile(r"^[^aeiouy]+$")
_NEGATED = frozenset("isnt wasnt doesnt didnt hasnt hadnt couldnt wouldnt shouldnt mustnt neednt".split())


@functools.cache
def _listed() -> dict[str, frozenset[int]]:
    table = {word: frozenset({number}) for number, listed in _EXACT.items() for word in listed.split()}
    return table | {word: frozenset(numbers) for numbers, listed in _EITHER.items() for word in listed.split()}


@functools.lru_cache(4096)
def syllables(word: str) -> frozenset[int]:
    """The numbers of syllables that the word may have."""
    word = unaccented(word.casefold().replace("’", "'"))
    if any(c.isalpha() and not c.isascii() for c in word):
        return _ANY
    parts = [part for piece in word.split("-") if (part := regex.sub(r"[^a-z]", "", piece))]
    if not parts:
        return _ANY
    options = [_part(part[:64]) for part in parts[:8]]
    return frozenset(sum(choice) for choice in itertools.product(*options))


@functools.lru_cache(4096)
def _part(word: str) -> frozenset[int]:
    listed = _listed().get(word)
    if listed is None and word.endswith("s") and not _SIBILANT.search(word):
        listed = _listed().get(word[:-1])
    if listed:
        return listed
    if word in _NEGATED:
        return frozenset({2})
    if _NO_VOWEL.match(word):  # an acronym, spelt or said as one
        spelt = len(word) + 2 * word.count("w")
        return frozenset({spelt} if len(word) == 1 else {1, spelt})
    text = _LEADING_Y.sub("", _INNER_E.sub("", word))
    if not _SIBILANT.search(text):
        text = _SILENT_ES.sub("", text)
    if len(_VOWELS.findall(text)) > 1:
        text = _SILENT_E.sub("", text)
    number = len(_VOWELS.findall(_SPLIT.sub(lambda m: m[0] + ".", text))) + len(_SYLLABIC_M.findall(word))
    return frozenset({max(number, 1)})
