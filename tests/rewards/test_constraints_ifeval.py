"""The 25 ids of IFEval: verdicts worked out by hand, and every public case that broke another scorer."""

import pytest

from rufus_plugins.rewards import constraints

KW = "keywords:"
AT_LEAST, LESS = "at least", "less than"
CAT = "The cat sat."

CASES = [
    # --- real cases
    ("length_constraints:number_words", {"relation": AT_LEAST, "num_words": 6}, "yes - no - maybe - so", False),
    ("length_constraints:number_words", {"relation": LESS, "num_words": 5}, "A state-of-the-art engine runs", True),
    ("punctuation:no_comma", {}, "你好，世界", False),
    ("language:response_language", {"language": "en", "repeat": 50}, "Hello world", True),
    ("detectable_format:json_format", {}, '{"a": NaN}', False),
    (KW + "frequency", {"relation": AT_LEAST, "keyword": "art", "frequency": 2}, "Start the smart party.", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "The file app.s.txt is attached.", False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- pack\n- travel\n\n---\n-5 degrees outside", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- pack\n  - socks\n- travel", True),
    (
        "startend:end_checker",
        {"end_phrase": "Is there anything else I can help with?"},
        "Done.\n\n“Is there anything else I can help with?”  \n",
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "next"},
        "\n\nOne.\n\nNext comes two.",
        True,
    ),
    (KW + "letter_frequency", {"letter": "A", "let_frequency": 4, "let_relation": LESS}, "Anna and Ada", False),
    # --- keywords
    (KW + "existence", {"keywords": ["red", "Blue sky"]}, "A RED kite in the blue\nsky", True),
    (KW + "existence", {"keywords": ["red"]}, "It is hundredfold.", False),
    (KW + "existence", {"keywords": ["C++", "node.js"]}, "I write C++ and node.js code.", True),
    (KW + "existence", {"keywords": ["node.js"]}, "nodexjs", False),
    (KW + "existence", {"keywords": ["(maybe"]}, "well (maybe) so", True),
    (KW + "existence", {"keywords": ["café"]}, "Un cafe\u0301 noir", True),
    (KW + "existence", {"keywords": ["cafe"]}, "Un café noir", False),
    (KW + "existence", {"keywords": ["straße"]}, "DIE STRASSE", True),
    (KW + "existence", {"keywords": ["don't"]}, "I don’t know", True),
    (KW + "existence", {"keywords": ["技术"]}, "人工智能技术很重要", True),
    (KW + "existence", {"keywords": ["AI"]}, "使用AI技术", True),
    (KW + "existence", {"keywords": ["학교"]}, "나는 학교에 갔다", True),
    (KW + "existence", {"keywords": ["हिन्दी"]}, "मुझे हिन्दी आती है", True),
    (KW + "existence", {"keywords": ["key"]}, "the _key_ and **lock**", True),
    (KW + "existence", {"keywords": ["key"]}, "my_key_file", False),
    (KW + "frequency", {"relation": AT_LEAST, "keyword": "na na", "frequency": 1}, "bna na na", True),
    (KW + "frequency", {"relation": LESS, "keyword": "can", "frequency": 1}, "I can't and cannot", True),
    (KW + "frequency", {"relation": AT_LEAST, "keyword": "dog", "frequency": 2}, "Dog's life, DOG!", True),
    (KW + "frequency", {"relation": AT_LEAST, "keyword": "dog", "frequency": 2.0}, "dog", False),
    (KW + "forbidden_words", {"forbidden_words": ["rat"]}, "a narrative of rations", True),
    (KW + "forbidden_words", {"forbidden_words": ["rat"]}, "a RAT.", False),
    (KW + "forbidden_words", {"forbidden_words": ["rat"]}, "a r\u200bat", False),  # hidden behind a zero-width space
    (KW + "forbidden_words", {"forbidden_words": ["C++"]}, "C is fine", True),
    (KW + "letter_frequency", {"letter": "#", "let_frequency": 4, "let_relation": AT_LEAST}, "# a\n## b\n# c", True),
    (KW + "letter_frequency", {"letter": "#", "let_frequency": 5, "let_relation": AT_LEAST}, "# a\n## b\n# c", False),
    (KW + "letter_frequency", {"letter": "é", "let_frequency": 2, "let_relation": AT_LEAST}, "É e\u0301", True),
    # --- language
    ("language:response_language", {"language": "fr"}, "Hello world", False),
    ("language:response_language", {"language": "de"}, "Hallo Welt, wie geht es dir heute?", True),
    ("language:response_language", {"language": "zh-cn"}, "光合作用将阳光转化为化学能。", True),
    ("language:response_language", {"language": "ja"}, "光合作用将阳光转化为化学能。", False),
    ("language:response_language", {"language": "hi"}, "यह एक परीक्षा है और मैं खुश हूँ", True),
    ("language:response_language", {"language": "ne"}, "यह एक परीक्षा है और मैं खुश हूँ", False),
    ("language:response_language", {"language": "ko"}, "你好，世界", False),
    ("language:response_language", {"language": "en"}, "12345 ...", False),
    ("language:response_language", {"language": "ta"}, "வணக்கம் உலகம்", True),
    # --- length
    ("length_constraints:number_words", {"relation": AT_LEAST, "num_words": 4}, "你好世界", True),
    ("length_constraints:number_words", {"relation": AT_LEAST, "num_words": 3}, "नमस्ते दुनिया", False),
    ("length_constraints:number_words", {"relation": LESS, "num_words": 3}, "don't stop", True),
    ("length_constraints:number_words", {"relation": AT_LEAST, "num_words": 2}, "word—word", True),
    ("length_constraints:number_sentences", {"relation": LESS, "num_sentences": 3},
     "Dr. Smith paid $3.50. He left.", True),
    ("length_constraints:number_sentences", {"relation": AT_LEAST, "num_sentences": 3}, "One? Two! Three.", True),
    ("length_constraints:number_sentences", {"relation": AT_LEAST, "num_sentences": 2}, "a\n\nb\n\nc", False),
    ("length_constraints:number_sentences", {"relation": AT_LEAST, "num_sentences": 3}, "你好。世界！你呢？", True),
    ("length_constraints:number_sentences", {"relation": LESS, "num_sentences": 2}, '"Stop!" he said.', True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\nOne.\n***\nTwo.\n***", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\n\n***\nTwo.", False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, "A ***very*** good one.", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n* * *\nTwo.", True),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "Hello"},
        "**Hello**, you.\r\n\r\n   \r\nBye.",
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "art"},
        "Artful.",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 1, "first_word": "one"},
        "One.\n\nTwo.",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "well"},
        "Well-known things.",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "el gato"},
        "«El gato» duerme.",
        True,
    ),
    # --- content
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "Dear [name], at [home address].", True),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[] and [ ] and [1]", False),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "see [the docs](http://x.y)", False),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "- [x] done\n- [ ] open", False),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "x = a[i]", False),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[[name]]", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.S. Call me.", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye. **p.s.** Call me.", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP. S. Call me.", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.S.", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.P.S. Call me.", False),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\n\nP.P.S. Call me.", True),
    # --- format
    ("detectable_format:number_bullet_lists", {"num_bullets": 3}, "* a\n* b\n+ c", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 0}, "*emphasis* first\n**bold** second", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "```\n- in code\n- in code\n```\n- out", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* * *\n- a\n***\n- b\n- - -", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- a\n- b\n- c", False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "- a\n 1. b\n\nText.\n\n- c", True),
    ("detectable_format:constrained_response", {}, "My answer is yes.", True),
    ("detectable_format:constrained_response", {}, "My answer is yes. My answer is no.", False),
    ("detectable_format:constrained_response", {}, "Yes.", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "* item\n* item", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "2 * 3 * 4", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "***x***", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "`*args*` and **", False),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\nCats.\nSection 2\nDogs.", True),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "**Section 1:** see Section 2 below.", False),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 3},
     "Section 1\nSection 2\nSection 3", False),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 1},
     "Section 1\nCats.", False),
    ("detectable_format:json_format", {}, '```json\n{"a": [1, 2.5e3, null]}\n```', True),
    ("detectable_format:json_format", {}, 'Here:\n```json\n{"a": 1}\n```', False),
    ("detectable_format:json_format", {}, "{'a': 1}", False),
    ("detectable_format:json_format", {}, '{"a": 1} and more', False),
    ("detectable_format:json_format", {}, '\ufeff{"a": 1,}', False),
    ("detectable_format:json_format", {}, "9" * 5000, True),  # Python refuses to convert it; it is JSON all the same
    ("detectable_format:title", {}, "<<Ode to joy>>\nText", True),
    ("detectable_format:title", {}, "<< >>", False),
    ("detectable_format:title", {}, "<<broken\ntitle>>", False),
    ("detectable_format:title", {}, "```cpp\ncout << x >> y;\n```", False),
    # --- combination
    ("combination:two_responses", {}, "One way.\n******\nAnother way.", True),
    ("combination:two_responses", {}, "******\nOne.\n******\nTwo.\n******", True),
    ("combination:two_responses", {}, "Same one.\n******\nsame  one!", False),
    ("combination:two_responses", {}, "A\n************\nB", False),
    ("combination:two_responses", {}, "**A** is\n**B**", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, "write a poem. Roses are red.", True),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, "Write a poem.", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem"}, "Write a poems, said she.", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, "Sure! Write a poem. Roses.", False),
    # --- start and end
    ("startend:end_checker", {"end_phrase": "The end."}, "All good. **the end.**", True),
    ("startend:end_checker", {"end_phrase": "The end."}, "The end. Bye.", False),
    ("startend:end_checker", {"end_phrase": "end"}, "This is a weekend", False),
    ("startend:end_checker", {"end_phrase": "That's all"}, "Well.\nThat’s  all", True),
    ("startend:quotation", {}, '"All of it."', True),
    ("startend:quotation", {}, "“All of it.”\n", True),
    ("startend:quotation", {}, '"One" and "two"', False),
    ("startend:quotation", {}, '"He said "hi" to me."', True),
    ("startend:quotation", {}, '"', False),
    ("startend:quotation", {}, "''All''", False),
    # --- case
    ("change_case:english_capital", {}, "THIS IS AN ENGLISH SENTENCE. EVERY LETTER IS CAPITALIZED!!! AMAZING.", True),
    ("change_case:english_capital", {}, "This Is Title Case", False),
    ("change_case:english_capital", {}, "DIES IST EIN DEUTSCHER SATZ UND KEIN ENGLISCHER", False),
    ("change_case:english_capital", {}, "1234 5678", False),
    ("change_case:english_lowercase", {}, "all of this is small, 3 times.", True),
    ("change_case:english_lowercase", {}, "all of This is small", False),
    ("change_case:capital_word_frequency", {"capital_frequency": 3, "capital_relation": AT_LEAST},
     "NASA’s COVID-19 plan: I agree", True),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": LESS}, "42 iPhones", True),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": AT_LEAST}, "One USA", False),
    # --- punctuation
    ("punctuation:no_comma", {}, "No comma here; none.", True),
    ("punctuation:no_comma", {}, ".", False),  # says nothing, so nothing is followed
    ("punctuation:no_comma", {}, "👍", True),
    ("keywords:forbidden_words", {"forbidden_words": ["rat"]}, "...", False),
    ("punctuation:no_comma", {}, "1,000", False),
    ("punctuation:no_comma", {}, "مرحبا، يا عالم", False),
    ("punctuation:no_comma", {}, "りんご、みかん", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "response", "follows"), CASES)
def test_the_verdict_is_the_one_worked_out_by_hand(name, kwargs, response, follows):
    why = constraints.bound(name, kwargs)(response)
    assert (why is None) is follows, why


def test_the_25_ids_are_all_there_and_each_is_tried_both_ways():
    families = constraints.FAMILIES["ifeval"]
    ids = {name for name in constraints.ids() if name.partition(":")[0] in families}
    assert len(ids) == 25
    for verdict in (True, False):
        assert {case[0] for case in CASES if case[3] is verdict} == ids


def test_a_short_text_gets_the_same_language_verdict_fifty_times():
    check = constraints.bound("language:response_language", {"language": "en"})
    assert {check("Hello world") for _ in range(50)} == {None}


def test_every_comma_of_unicode_is_a_comma():
    import unicodedata

    from rufus_plugins.rewards.constraints.punctuation import COMMAS

    named = {chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) == "Po"}
    assert {c for c in named if "COMMA" in unicodedata.name(c, "")} == COMMAS


@pytest.mark.parametrize(
    "name, kwargs",
    [
        ("length_constraints:number_words", {"relation": "less than", "num_words": 50}),
        ("length_constraints:number_sentences", {"relation": "less than", "num_sentences": 5}),
        ("keywords:frequency", {"relation": "less than", "keyword": "art", "frequency": 2}),
        ("keywords:letter_frequency", {"let_relation": "less than", "letter": "e", "let_frequency": 2}),
    ],
)
def test_a_response_without_words_does_not_follow_a_rule_of_few(name, kwargs):
    assert (
        not constraints.follows(name, kwargs, "...")
        and not constraints.follows(name, kwargs, "- * !")
        and constraints.follows(name, kwargs, "Yes.")
    )
