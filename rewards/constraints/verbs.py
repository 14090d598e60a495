"""Whether an English text starts with a verb, without a tagger model. Ours.

The first word must be a form of a verb: one of the list, regularly inflected, or one that its ending gives away
(-ize, -ify ...). Many forms are nouns too ("book", "plan"); such a word counts as a verb when what follows fits an
imperative ("Book a table") and not when it fits a subject ("Time flies", "Plans are"). A gerund counts.
"""

from __future__ import annotations

import functools

from rufus_plugins.rewards.constraints.reading import folded, words

_ONLY_VERBS = frozenset(
    "accept accompany accomplish accumulate accuse achieve acknowledge acquire activate adapt add adhere adjust "
    "admire admit adopt adore advise affect afford agree aim allocate allow alter amend amplify analyse analyze "
    "annotate announce anticipate apologize appear apply appoint appreciate apprehend arise arrange arrive articulate "
    "ascertain ask aspire assemble assert assess assign assist assume assure attach attain attend attract "
    "authenticate automate avoid await awaken bake be become befriend beg begin behave believe belong bind blend boil "
    "borrow breathe bring broaden build bury buy calculate calm capitalize capture carry carve categorize celebrate "
    "challenge check cherish choose chop circulate cite clarify classify clean clear climb close coach collaborate "
    "collect combine come commence communicate compare compel compete compile complain complement complete comply "
    "compose comprehend compute conceal conceive concentrate conclude condense conduct configure confirm confront "
    "confuse connect conquer consider consist consolidate construct consult consume contain contemplate continue "
    "contribute convert convey convince cook coordinate cope correct correspond counsel count craft create crop "
    "cultivate customize decide declare decode decorate decrease deduce deem deepen defeat define delegate delete "
    "deliver delve demonstrate deny depart depend depict deploy derive describe deserve designate destroy detect "
    "determine develop devise diagnose differ differentiate dig digest diminish direct disagree discard discover "
    "discuss display dissolve distinguish distribute dive divide do donate double draft drag drain draw dream dress "
    "drive drop earn ease eat edit educate elaborate elevate elicit eliminate embark embed embrace emerge emit "
    "emphasize employ empower enable enact encapsulate enclose encode encounter encourage endure enforce engage "
    "enhance enjoy enlarge enlist enrich enroll ensure enter entertain enumerate envision equip establish evaluate "
    "evolve examine exceed exchange exclude execute exercise exhale exist expand expect expedite experiment explain "
    "exploit explore expose express extend extract fail fall familiarize favor feed feel fetch fight fill find finish "
    "fit fix flip float flow fly fold follow forbid forecast foresee forget forgive form formulate foster free freeze "
    "fry fulfill gain gather generate get give glue go govern grab grasp greet grill grind grow guarantee guess "
    "handle hang happen harness hate have hear help hesitate hide highlight hire hold honor hope hover identify "
    "ignore illustrate imagine immerse implement imply import impose improve include incorporate increase indicate "
    "induce infer inform inhale inherit initiate innovate inquire insert inspect inspire install instruct insulate "
    "integrate intend interact interpret introduce invent invest investigate invite involve isolate join judge "
    "justify keep kill knead kneel know lack land laugh launch lead lean leap learn leave lend let leverage lie lift "
    "listen live load locate lose lower maintain make manage manipulate marvel maximize mean measure meditate meet "
    "melt memorize mention merge migrate mimic minimize mitigate mix modify monitor motivate mount multiply navigate "
    "neglect negotiate nourish nurture obey observe obtain occur offer open operate opt optimize organize outline "
    "overcome overlook oversee owe own participate pause pay peel perceive perform permit persuade pick place play "
    "please plug ponder portray pose possess postpone pour practice praise pray precede predict prefer prepare "
    "presume pretend prevail prevent prioritize proceed process procure produce prohibit promote prompt pronounce "
    "propose protect prove provide prune publish pull purchase pursue push put quantify question quit raise reach "
    "react read realise realize reassure recall receive recite recognise recognize recommend reconsider reconstruct "
    "record recover recruit recycle reduce refer refine reflect refrain refresh refuse regard register regret "
    "regulate reinforce reject relate relax release relieve rely remain remember remind remove renew repair repeat "
    "rephrase replace reply represent reproduce require rescue research reserve reset reside resist resolve respect "
    "respond restore restrict retain retrieve return reuse reveal reverse review revise revisit rewrite ride rinse "
    "rise rotate run sail satisfy save say scatter schedule scroll seal search secure see seek seem segment select "
    "sell send separate serve set settle shake shape share shed shift shine shorten show shrink shut simmer simplify "
    "simulate sing sit sketch skip slice slide slip smell smile soak solve sort speak specify spend spin split spread "
    "sprinkle squeeze stabilize stand start state stay steal steer step stick stimulate stir stop store strengthen "
    "stretch strike strive structure struggle study submit substitute subtract succeed suffer suggest suit summarise "
    "summarize supply support suppose surround survive suspect swap swim switch synthesize tailor take talk taste "
    "teach tear tell tend terminate thank think thrive throw tie toss touch track train transcend transfer transform "
    "translate transmit travel treat trigger trim trust try turn undergo understand undertake unfold unify unite "
    "unleash unlock unpack untie update upgrade uphold upload urge use utilise utilize validate vary verify visit "
    "visualise visualize vote wait walk want warn wash watch wear weave weigh welcome whisk whisper win wish withdraw "
    "withstand wonder work worry wrap write yield zoom".split()
)
_ALSO_NOUNS = frozenset(
    "access act address advance aid air alarm alert amount anchor answer appeal approach arch arm array attack "
    "attempt auction balance band bank bar base bat bath battle beam bear beat bed bench bend benefit bet bite blame "
    "blast block bloom blow board boat bomb bond book boost border boss bottle bounce bowl box brace braid brake "
    "branch brand break breed bridge brief broadcast brush bubble bucket budget bug bump burn bus button cage call "
    "camp can cap care cash cast catch cause center centre chain chair change channel charge charm chart chase chat "
    "cheer chew circle claim class climb clip clock cloud code coin color colour comb comfort command comment "
    "compound compromise concern contact contract contrast control cost couple course cover crack crash credit cross "
    "crowd cry cure curl curve cut cycle damage dance dare date deal debate debut decay delay demand deposit desire "
    "detail discount dish doubt down draft drill drink drum duel dump dust echo edge effect end escape estimate exit "
    "experience export extract eye face fall fan farm fashion favour fear feature fence field figure file film filter "
    "fire fish flag flash flood floor flower fly focus force forge frame fuel function fund garden gift glance go "
    "gossip grade grant group guard guide hammer hand harm head heat host house hunt hurt ice impact index interest "
    "interview iron issue jam joke journey jump key kick kiss knock label ladder lamp land laugh layer leaf level "
    "light like limit line link list lock log look loop love mail map march mark mask master match matter milk mind "
    "mine minute mirror miss model move murder nail name need nest net note notice number object order pace pack "
    "package page paint pair park part pass paste patch pattern phone photograph pile pilot pin plan plant plate plot "
    "point poison polish pose position post pot pound power present press price print prize profit program progress "
    "project promise protest pump punch quote race raft rain range rank rate record regard release rent report "
    "request rescue research reserve respect rest result rhyme ring risk rock roll roof root rope round rule rush "
    "sail salt sample sand scale scan scare score scratch scream screen seat seed sense sentence shade shadow shell "
    "shelter ship shock shoot shop shout sign signal silence site size skate sleep slope slow smoke snap snow sound "
    "source space spark spell spice spot spray spring square stack staff stage stamp star stem storm stream stress "
    "string strip stroke style sugar sum surface surge surprise swing table target task taste tax team telephone test "
    "text thread time tip title tone tool top total tour tower trace trade trail transport trap trash trick trip "
    "twist type value view voice volunteer walk wall war waste water wave weather weight wheel whistle will wind wire "
    "witness word wound yell zip".split()
)
_CONTRACTED = frozenset(("let's", "don't", "doesn't", "didn't", "isn't", "aren't"))
_ENDINGS = ("ize", "ise", "ify", "izing", "ising", "ifying", "ized", "ised", "ified")
_IRREGULAR = frozenset(
    "am are ate became been began begun being bought broke broken brought built came caught chose chosen dealt did "
    "does done drawn drew driven drove eaten fallen fell felt flew flown forgot forgotten fought found gave given "
    "gone got gotten grew grown had has heard held hid hidden hung is kept knew known laid lay led left let's lets "
    "lost made meant met paid ran read ridden risen rode rose said sang sat saw seen sent shaken shook slept sold "
    "sought spent spoke spoken stood sung swam swum taken taught thought threw thrown told took understood was went "
    "were won wore worn written wrote".split()
)
_OBJECT = frozenset(
    "a about all an any anyone anything around at away back both by carefully clearly down each either enough every "
    "everyone everything for gently her him his how in into it its many me more my myself not off on one only our out "
    "over several slowly some someone something that the their them these this those three through to together two up "
    "us what when where whether why with you your yourself".split()
)
_PREDICATE = frozenset(
    "am and are aren't be can can't could did do does doesn't don't had has have is isn't may might must of or shall "
    "should that's was wasn't were which who whose will won't would".split()
)


def starts_with_verb(text: str) -> bool:
    found = [folded(word) for word in words(text[:400])]
    if not found:
        return False
    first = "do" if found[0] in _CONTRACTED else found[0].partition("'")[0]
    following = found[1] if len(found) > 1 else ""
    if "-" in first:  # "double-check", "re-read": the last part tells
        first = first.split("-")[-1]
    if first in _IRREGULAR:
        return True
    stems = _stems(first)
    noun = bool(stems & _ALSO_NOUNS)
    verb = bool(stems & _ONLY_VERBS)
    if not verb and not noun:
        return first.endswith(_ENDINGS) and len(first) > 5
    if verb and first.endswith("ing") and first not in stems & _ONLY_VERBS:
        return True  # a gerund is a form of a verb, also as a subject
    if following in _PREDICATE:
        return False  # a subject
    if first.endswith("s") and first not in stems and not following:
        return verb
    if noun and not verb or first.endswith("s") and not first.endswith("ss"):
        return following in _OBJECT or following == "" and first in _ALSO_NOUNS and len(found) == 1
    return True


@functools.lru_cache(256)
def _stems(word: str) -> frozenset[str]:
    """The base forms that the word may be a form of."""
    found = {word}
    if word.endswith("ies"):
        found.add(word[:-3] + "y")
    if word.endswith("es"):
        found.add(word[:-2])
    if word.endswith("s"):
        found.add(word[:-1])
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word[: -len(ending)]
            found |= {stem, stem + "e"}
            if len(stem) > 2 and stem[-1] == stem[-2]:
                found.add(stem[:-1])
            if ending == "ed" and stem.endswith("i"):
                found.add(stem[:-1] + "y")
    return frozenset(found)
