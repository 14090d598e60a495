"""Against IFEval's and IFBench's own checkers: where both must agree, and where they do not, who is right and why.

Needs the extra `oracles` (`pip install 'rufus-plugins[oracles]'`; lm-eval may be installed without its dependencies).
The peers want data of nltk, which llama-index-core carries, and download more at import, which is cut off here.
"""

import importlib
import importlib.util
import pathlib
import random
import sys
import types

import pytest

from rufus_plugins.rewards import constraints

pytestmark = pytest.mark.slow


def _folder(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed (extra: oracles)")
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="module")
def oracle():
    """`oracle(id, kwargs, response)`: the peer's strict verdict, or the name of the exception it dies of."""
    nltk = pytest.importorskip("nltk")
    langdetect = pytest.importorskip("langdetect")
    spacy_cli = pytest.importorskip("spacy.cli")
    cache = _folder("llama_index") / "core" / "_static" / "nltk_cache"
    top = _folder("lm_eval")
    _folder("ifbench")
    nltk.data.path.insert(0, str(cache))
    patch = pytest.MonkeyPatch()
    patch.setattr(nltk, "download", lambda *_, **__: True)
    patch.setattr(spacy_cli, "download", lambda *_, **__: None)
    patch.setattr(langdetect.DetectorFactory, "seed", 0)
    folders = {"lm_eval": top, "lm_eval.tasks": top / "tasks", "lm_eval.tasks.ifeval": top / "tasks" / "ifeval"}
    for name, folder in folders.items():  # the package itself imports far more than these three files need
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        patch.setitem(sys.modules, name, module)
    registry = dict(importlib.import_module("ifbench.instructions_registry").INSTRUCTION_DICT)
    registry |= importlib.import_module("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT
    tokenizer = nltk.tokenize.punkt.PunktTokenizer("english")
    util = importlib.import_module("lm_eval.tasks.ifeval.instructions_util")
    patch.setattr(
        util, "_get_sentence_tokenizer", lambda: tokenizer
    )  # the pickle it asks for is not in the offline data

    def verdict(name, kwargs, response):
        checker = registry[name](name)
        checker.build_description(**kwargs)
        try:
            return bool(response.strip() and checker.check_following(response))
        except Exception as error:
            return type(error).__name__

    verdict.ids = set(registry)
    yield verdict
    patch.undo()


def test_the_ids_are_the_same(oracle):
    assert set(constraints.ids()) == oracle.ids


PROSE = [
    "The quick brown fox jumps over the lazy dog. It was a sunny day, and everyone was happy. Why not?",
    "Paris is the capital of France. It lies on the river Seine. Many people visit it every year!",
    "First, gather your tools. Then measure the board twice. Finally, cut it once.\n\nYou will need a saw.",
    "I love tea. Do you love tea? We all love tea!",
    "My answer is yes.",
    "THE END IS NEAR AND NOBODY KNOWS WHAT WILL HAPPEN TO THE CITY.",
    "this is a small story about a small town and its people.",
    '{"name": "Ada", "age": 36}',
    "One.\n***\nTwo.\n***\nThree.",
    "A first answer.\n******\nA second answer.",
    "<<A Title>>\n\nThe story begins here. It ends there.\n\nP.S. Write soon.",
    "Dear [name],\n\nplease come to [address] on [date].\n\nBest wishes,\n[sender]",
    "* one\n* two\n* three",
    "*first* and **second** and *third*",
    "Section 1\nCats sleep.\nSection 2\nDogs bark.\nSection 3\nBirds sing.",
    '"The whole answer stands in quotes."',
    "There are 3 apples and 12 pears. I bought 40 more.",
    "Emma met Liam and Sophia. Noah came later with Ava.",
    "Any other questions?",
]
SHARED = {
    "keywords:existence": [{"keywords": ["people"]}, {"keywords": ["the", "river"]}],
    "keywords:frequency": [{"keyword": "tea", "frequency": 3, "relation": r} for r in ("at least", "less than")],
    "keywords:forbidden_words": [{"forbidden_words": ["people", "saw"]}],
    "keywords:letter_frequency": [{"letter": "e", "let_frequency": n, "let_relation": "at least"} for n in (3, 8)],
    "length_constraints:number_sentences": [{"num_sentences": n, "relation": "at least"} for n in (2, 3)],
    "length_constraints:number_paragraphs": [{"num_paragraphs": 3}],
    "length_constraints:number_words": [{"num_words": n, "relation": "less than"} for n in (5, 15, 18)],
    "length_constraints:nth_paragraph_first_word": [{"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "you"}],
    "detectable_content:number_placeholders": [{"num_placeholders": n} for n in (3, 4, 5)],
    "detectable_content:postscript": [{"postscript_marker": "P.S."}],
    "detectable_format:number_bullet_lists": [{"num_bullets": 3}, {"num_bullets": 2}],
    "detectable_format:constrained_response": [{}],
    "detectable_format:number_highlighted_sections": [{"num_highlights": 3}, {"num_highlights": 4}],
    "detectable_format:multiple_sections": [{"section_spliter": "Section", "num_sections": n} for n in (3, 4)],
    "detectable_format:json_format": [{}],
    "detectable_format:title": [{}],
    "combination:two_responses": [{}],
    "startend:end_checker": [{"end_phrase": "Any other questions?"}],
    "startend:quotation": [{}],
    "change_case:english_capital": [{}],
    "change_case:english_lowercase": [{}],
    "change_case:capital_word_frequency": [{"capital_frequency": 2, "capital_relation": "at least"}],
    "punctuation:no_comma": [{}],
    "count:word_count_range": [{"min_words": 10, "max_words": 18}],
    "count:unique_word_count": [{"N": 10}],
    "count:conjunctions": [{"small_n": 1}],
    "count:person_names": [{"N": n} for n in (1, 5, 6)],
    "count:numbers": [{"N": 3}],
    "ratio:stop_words": [{"percentage": n} for n in (20, 60)],
    "words:repeats": [{"small_n": n} for n in (1, 3)],
    "words:prime_lengths": [{}],
    "sentence:keyword": [{"word": "lies", "N": 2}],
    "count:pronouns": [{"N": 2}],
    "format:output_template": [{}],
    "format:no_whitespace": [{}],
    "format:parentheses": [{}],
    "custom:multiples": [{}],
}


@pytest.mark.parametrize("name", sorted(SHARED))
def test_both_agree_on_plain_text(oracle, name):
    for kwargs in SHARED[name]:
        for response in PROSE:
            assert constraints.follows(name, kwargs, response) == oracle(name, kwargs, response), (kwargs, response)


def test_both_agree_on_syllables_of_plain_words(oracle):
    words = "cat tiger elephant computer dog garden music paper table window yellow banana holiday river".split()
    draw = random.Random(1)
    for _ in range(300):
        text = " ".join(draw.choices(words, k=draw.randint(2, 4)))
        name = "words:odd_even_syllables"
        assert constraints.follows(name, {}, text) == oracle(name, {}, text), text


KEYWORDS = {"keyword1": "art", "keyword2": "b", "keyword3": "c", "keyword4": "d", "keyword5": "e"}
DISAGREEMENTS = [
    # id, kwargs, response, ours, theirs, who is right and why
    ("keywords:existence", {"keywords": ["art"]}, "Start.", False, True, "ours: art is no word of it"),
    ("keywords:frequency", {"keyword": "art", "frequency": 2, "relation": "at least"}, "Smart party.", False, True,
     "ours: art occurs nowhere as a word"),
    ("keywords:frequency", {"keyword": "a.b", "frequency": 1, "relation": "at least"}, "axb", False, True,
     "ours: the peer takes the keyword for a regular expression"),
    ("keywords:existence", {"keywords": ["f(x"]}, "It is f(x).", True, "PatternError",
     "ours: the peer takes the keyword for a regular expression"),
    ("keywords:forbidden_words", {"forbidden_words": ["C++"]}, "I like C.", True, False, "ours: C is not C++"),
    ("keywords:forbidden_words", {"forbidden_words": ["can"]}, "I can't.", True, False, "ours: can't is another word"),
    ("language:response_language", {"language": "en"}, "...", False, True,
     "ours: a response without words is in no language; the peer counts its own failure as followed"),
    ("change_case:english_lowercase", {}, "yes", True, False, "ours: yes is English; the peer guesses on one word"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, '"Stop!" he said.',
     True, False,
     "ours: one sentence holds the quote"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "P.S. Write soon.",
     True, False,
     "ours: the marker is no sentence"),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, "你好。世界！你呢？",
     True, False, "ours: the peer knows ASCII full stops only"),
    ("length_constraints:number_words", {"num_words": 5, "relation": "less than"}, "...", False, True,
     "ours: a response without a word does not have few words"),
    ("length_constraints:number_words", {"num_words": 5, "relation": "less than"},
     "A state-of-the-art engine runs", True,
     False, "ours (debatable): a hyphenated compound is one word"),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"}, "你好世界", True, False,
     "ours (debatable): characters are counted where no blanks separate words"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, "A ***very*** good one.", True, False,
     "ours: that is emphasis, no divider"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "next"},
     "\n\nOne.\n\nNext comes two.", True, False, "ours: the peer counts one list and indexes another"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "hello"},
     "**Hello** you.", True, False, "ours: Markdown is no part of the word"),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "See [here](http://x.y) and []", False, True,
     "ours: a link and empty brackets are no placeholders"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "The file app.s.txt is attached.", False, True,
     "ours: a file name is no postscript"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.S.", False, True,
     "ours: a marker with nothing after it is no postscript"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- pack\n- travel\n\n---\n-5 degrees", True, False,
     "ours: a rule and a negative number are no bullets"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- pack\n  - socks\n- travel", True, False,
     "ours (debatable): what stands in a bullet is part of it"),
    ("detectable_format:constrained_response", {}, "My answer is yes. My answer is no.", False, True,
     "ours: one of the options is asked for, not all"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "2 * 3 * 4", False, True,
     "ours: stars between blanks do not emphasise"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1: see Section 2.", False, True, "ours: a mention is no section"),
    ("detectable_format:json_format", {}, '{"a": NaN}', False, True, "ours: RFC 8259 has no NaN"),
    ("detectable_format:title", {}, "```cpp\ncout << x >> y;\n```", False, True, "ours: operators are no title"),
    ("combination:two_responses", {}, "Same.\n******\nsame!", False, True,
     "ours: two different responses are asked for"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write."}, "Write.", False, True,
     "ours: the answer after the request is missing"),
    ("startend:end_checker", {"end_phrase": "The end."}, "So: “The end.”", True, False,
     "ours (debatable): a closing quote is no word after the phrase"),
    ("startend:end_checker", {"end_phrase": "end"}, "a weekend", False, True, "ours: that is another word"),
    ("startend:quotation", {}, '"One" and "two"', False, True, "ours: the quotes do not stand around everything"),
    ("startend:quotation", {}, "“All of it.”", True, False, "ours: these are double quotation marks too"),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}, "So I'm in", True,
     False, "ours: the word has a small letter"),
    ("punctuation:no_comma", {}, "你好，世界", False, True, "ours (debatable): the full-width comma is a comma"),
    ("punctuation:no_comma", {}, ".", False, True, "ours: a full stop says nothing, so it follows nothing"),
    ("count:unique_word_count", {"N": 2}, "No – no", False, True, "ours: a dash is no word"),
    ("count:conjunctions", {"small_n": 2}, "A and b, And c", False, True, "ours: and is one conjunction"),
    ("count:person_names", {"N": 1}, "Miami is Available.", False, True, "ours: Mia and Ava are no words of it"),
    ("count:numbers", {"N": 2}, "3-5 apples", True, False, "ours: the peer deletes the dash and reads 35"),
    ("count:words_japanese", {"N": 9}, "short answer", False, True, "ours: there is no ninth word to be Japanese"),
    ("count:pronouns", {"N": 2}, "I'm sure they're in.", True, False, "ours: contractions hold a pronoun"),
    ("count:keywords_multiple", KEYWORDS, "smart art b b c c c d d d d d e e e e e e e", True, False,
     "ours: smart does not hold the word art"),
    ("ratio:stop_words", {"percentage": 30}, "...", False, "ZeroDivisionError",
     "ours: no words, so nothing is followed"),
    ("ratio:sentence_type", {}, "Just a title", False, True, "ours: 0 of one and 0 of the other is no ratio of 2:1"),
    ("ratio:sentence_balance", {}, "Just a title", False, True, "ours: none of each is no balance"),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 50}, "a b c x", True, False,
     "ours: a trigram of a text is three words; the peer counts three characters"),
    ("ratio:sentence_words", {}, "Cat. Cat. Cat.", False, True, "ours: all different words are asked for"),
    ("words:alphabet", {}, "A “bee” can", True, False, "ours: quotation marks are no letters"),
    ("words:vowel", {}, "Ana\nBanana", True, False, "ours: a wrapped line ends no paragraph"),
    ("words:alphabet", {}, "alone", False, True, "ours: one word follows no word"),
    ("words:consonants", {}, "Strong - winds", True, False, "ours: a dash is no word"),
    ("words:palindrome", {}, "level " * 10, False, True, "ours: one palindrome ten times is one"),
    ("words:prime_lengths", {}, "“Go” now", True, False, "ours: quotation marks are no letters"),
    ("words:last_first", {}, "One sentence.", False, True, "ours: there is no next sentence"),
    ("words:paragraph_last_first", {}, "Home.", False, True, "ours: one word cannot begin and end a paragraph"),
    ("words:no_consecutive", {}, "Élan easily", False, True, "ours: É and e are one letter"),
    ("words:keywords_specific_position", {"keyword": "cats", "n": 1, "m": 3}, '"I like cats."', True, False,
     "ours: punctuation is no word"),
    ("words:words_position", {"keyword": "vibrant"}, "A vibrant day, a vibrant night.", True, False,
     "ours: the peer takes the full stop for the last word"),
    ("sentence:alliteration_increment", {}, "Big bears eat. Old owls can catch. Bad big blue birds buzz.", False, True,
     "ours: two and then two is no longer sequence; the peer adds up separate runs"),
    ("sentence:keyword", {"word": "art", "N": 1}, "It starts.", False, True, "ours: art is no word of it"),
    ("sentence:increment", {"small_n": 2}, "Go.", False, True, "ours: there is no next sentence"),
    ("format:parentheses", {}, "((((( open )", False, True, "ours: one level is closed, not five"),
    ("format:quotes", {}, "“He said ‘she told me “go” again’ loudly”", True, False,
     "ours: typographic quotes are quotes"),
    ("format:quotes", {}, "Don't say \"it's\" or \"that's\" \"now\".", False, True, "ours: apostrophes are no quotes"),
    ("format:options", {"options": "I know or I don't know"}, "I don’t know", True, False,
     "ours: the typographic apostrophe is an apostrophe"),
    ("format:newline", {}, "- One\n- two –", True, False, "ours: a dash is no word"),
    ("format:emoji", {}, "Hallo 🇩🇪.", True, False, "ours: a flag is an emoji"),
    ("format:line_indent", {}, "a\n\n\n b\n  c", True, False, "ours: the peer drops every second blank line only"),
    ("format:line_indent", {}, "one line", False, True, "ours: one line makes no stairs"),
    ("format:quote_unquote", {}, "No quotes.", False, True, "ours: nothing is quoted and explained"),
    ("format:list", {"sep": "..."}, "Well... I think... yes.", False, True, "ours: these are no items"),
    ("format:thesis", {}, "## A\n<i>T.</i> x\n## B\nno thesis", False, True, "ours: each section needs a thesis"),
    ("format:sub-bullets", {}, "* **One**\n  - a\n* Two\n  - b", True, False, "ours: bold text is no bullet"),
    ("format:sub-bullets", {}, "No bullets.", False, True, "ours: bullets are asked for"),
    ("format:no_bullets_bullets", {}, "It rains. It pours.\n\n* one\n* two\n", True, False,
     "ours: a line break at the end changes nothing"),
    ("format:title_case", {}, "The Lord of the Rings", True, False, "ours: major words only are asked for"),
    ("format:title_case", {}, "EVERYTHING IS SHOUTED", False, True, "ours: capitals throughout are no title case"),
    ("format:output_template", {}, "My Answer: My Conclusion: Future Outlook:", False, True,
     "ours: it is not filled in"),
    ("custom:word_reverse", {}, "eagle bald", False, True, "ours: a sentence is asked for"),
    ("custom:character_reverse", {}, "The bald eagle: elgae dlab", False, True, "ours: it is not reversed"),
    ("custom:date_format_list", {}, "1805-00-00", False, True, "ours: there is no such day"),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d e f", "n_start": 1, "n_end": 3}, "b c d", True, False,
     "ours: 'and including' is part of the request"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem"}, "write a poem", False, True,
     "ours: the first word is the same"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "response", "ours", "theirs", "why"), DISAGREEMENTS)
def test_a_disagreement_is_known_and_explained(oracle, name, kwargs, response, ours, theirs, why):
    assert why.startswith("ours")
    assert constraints.follows(name, kwargs, response) is ours
    found = oracle(name, kwargs, response)
    assert found == theirs or {found, theirs} <= {"PatternError", "error"}  # re.error's name depends on the version


def test_the_missing_capital_is_a_fact_of_geography(oracle):
    # Kyiv, 50.45 degrees north, lies between Brussels (50.85) and Prague (50.08); the peer's list leaves it out
    wrong = (
        "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
        "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, "
        "Chisinau, Bern, Ljubljana, Zagreb"
    )
    right = wrong.replace("Brussels, Prague", "Brussels, Kyiv, Prague")
    name = "custom:european_capitals_sort"
    assert constraints.follows(name, {}, right) and not constraints.follows(name, {}, wrong)
    assert oracle(name, {}, wrong) and not oracle(name, {}, right)


def test_a_letter_that_is_no_letter_is_counted_by_us_and_drawn_at_random_by_the_peer(oracle):
    # two rows of IFEval ask for "#" and "!"
    name, kwargs = "keywords:letter_frequency", {"letter": "#", "let_frequency": 4, "let_relation": "at least"}
    assert constraints.follows(name, kwargs, "#" * 4) and not constraints.follows(name, kwargs, "abc" * 100)
    random.seed(0)
    assert {oracle(name, kwargs, "abcdefghijklm" * 5) for _ in range(40)} == {True, False}
