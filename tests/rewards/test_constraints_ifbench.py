"""The 58 ids of IFBench: verdicts worked out by hand."""

import pytest

from rufus_plugins.rewards import constraints
from rufus_plugins.rewards.constraints.places import AFRICA

PALINDROMES = "level radar civic rotor kayak refer madam tenet solos stats"
AFRICA_LINES = [
    "Zimbabwe", "Zambia", "Uganda", "Tunisia", "Togo", "Tanzania", "Sudan", "South Sudan", "South Africa", "Somalia",
    "Sierra Leone", "Seychelles", "Senegal", "São Tomé and Príncipe", "Rwanda", "Nigeria", "Niger", "Namibia",
    "Mozambique", "Morocco", "Mauritius", "Mauritania", "Mali", "Malawi", "Madagascar", "Libya", "Liberia",
    "Lesotho", "Kenya", "Ivory Coast", "Guinea-Bissau", "Guinea", "Ghana", "The Gambia", "Gabon", "Ethiopia",
    "Eswatini", "Eritrea",
    "Equatorial Guinea", "Egypt", "Djibouti", "Democratic Republic of the Congo", "Congo", "Comoros", "Chad",
    "Central African Republic", "Cape Verde", "Cameroon", "Burundi", "Burkina Faso", "Botswana", "Benin", "Angola",
    "Algeria",
]  # fmt: skip
CAPITALS = (
    "Reykjavík, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Kyiv, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, "
    "Chișinău, Bern, Ljubljana, Zagreb"
)
QUESTIONS = "\n\n".join(
    f"Question {n}: {'very ' * n}long?\nA) a\nB) b\nC) c\nD) d\nE) e" for n in (1, 2, 3, 4)
)  # fmt: skip
CITY = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},France,Paris,20{n:02},{n}" for n in range(1, 8))
PRODUCT = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f"{n},Toys,Acme,9,1" for n in range(1, 14))
GRADES = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + "\n".join(
    f'"{n}"\t"Art"\t"A"\t"F"\t"9"' for n in "123"
)
STORY = " ".join(f"{chr(65 + n)}nd so it went." for n in range(26))

CASES = [
    # --- count
    ("count:word_count_range", {"min_words": 3, "max_words": 4.0}, "One two - three four.", True),
    ("count:word_count_range", {"min_words": 3, "max_words": 4}, "One two.", False),
    ("count:unique_word_count", {"N": 2}, "The the THE cat", True),
    ("count:unique_word_count", {"N": 3}, "The (the) 'THE' cat", False),
    ("count:conjunctions", {"small_n": 3}, "Red and blue, but not green, or so.", True),
    ("count:conjunctions", {"small_n": 2}, "Red and, And AND and.", False),
    ("count:person_names", {"N": 2}, "Emma's friend LIAM came.", True),
    ("count:person_names", {"N": 1}, "Miami is Available to Leonardo and Norah.", False),
    ("count:person_names", {"N": 1}, "The grace of a lily", False),
    ("count:numbers", {"N": 3}, "In 2024, 1,000 people paid 3.50 each.", True),
    ("count:numbers", {"N": 2}, "3-5 apples", True),
    ("count:numbers", {"N": 1}, "1, 2 and 3", False),
    ("count:numbers", {"N": 0}, "Three apples", True),
    ("count:words_japanese", {"N": 2}, "I 好き cats ねこ and 犬", True),
    ("count:words_japanese", {"N": 2}, "I 好き cats dogs", False),
    ("count:words_japanese", {"N": 9}, "short answer", False),
    ("count:punctuation", {}, "What?! Yes: a, b; c. No! Why?", True),
    ("count:punctuation", {}, "Yes: a, b; c. No! Why?", False),
    ("count:punctuation", {}, "What?! Yes: a, b; c.", False),  # the interrobang stands for neither ! nor ?
    ("count:punctuation", {}, "What‽ Yes: a, b; c. No! Why?", True),
    ("count:pronouns", {"N": 3}, "I'm sure she/her said it’s", True),
    ("count:pronouns", {"N": 1}, "Cats like fish.", False),
    ("count:keywords_multiple", {f"keyword{i}": w for i, w in enumerate("abcde", 1)},
     "a b b c c c d d d d d e e e e e e e", True),
    ("count:keywords_multiple", {f"keyword{i}": w for i, w in enumerate(("art", "b", "c", "d", "e"), 1)},
     "smart art art b b c c c d d d d d e e e e e e e", False),
    # --- ratio
    ("ratio:stop_words", {"max_percent": 30}, "...", False),
    ("ratio:stop_words", {"percentage": 50}, "The dog and cat", True),
    ("ratio:stop_words", {"percentage": 49}, "The dog and cat", False),
    ("ratio:stop_words", {"percentage": 0}, "Dogs chase cats", True),
    ("ratio:sentence_type", {}, 'It rains. He said "It pours." Why?', True),
    ("ratio:sentence_type", {}, "It rains. It pours.", False),
    ("ratio:sentence_type", {}, "No words with a full stop", False),
    ("ratio:sentence_balance", {}, "It rains. Why? Stop!", True),
    ("ratio:sentence_balance", {}, "It rains. It pours. Why? Stop!", False),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 50}, "a b c x", True),  # abc of abc, bcx
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 53}, "a b c x", False),
    ("ratio:overlap", {"reference_text": "a b c d", "percentage": 0}, "a", False),
    ("ratio:sentence_words", {}, "Big cats nap. Wee dogs run. Old cows eat.", True),
    ("ratio:sentence_words", {}, "Cat. Cat. Cat.", False),
    ("ratio:sentence_words", {}, "Big cats nap. Wee dogs run.", False),
    # --- words
    ("words:alphabet", {}, "Xylophones yield zesty adagios", True),
    ("words:alphabet", {}, "Élan “flows” **gently**", True),
    ("words:alphabet", {}, "A cat", False),
    ("words:alphabet", {}, "alone", False),
    ("words:vowel", {}, "Banana bread is fine", True),
    ("words:vowel", {}, "Banana bread is so fine", False),
    ("words:vowel", {}, "Ana\nBanana", True),  # a wrapped line ends no paragraph
    ("words:vowel", {}, "Ana\n \nBanana", False),
    ("words:consonants", {}, "Strong winds blast", True),
    ("words:consonants", {}, "Strong winds are", False),
    ("words:consonants", {}, "- Strong - winds!", True),
    ("words:palindrome", {}, f"Here: {PALINDROMES}.", True),
    ("words:palindrome", {}, "level " * 10, False),
    ("words:palindrome", {}, "aaaaa 12321 abc", False),
    ("words:prime_lengths", {}, "Go now, there!", True),
    ("words:prime_lengths", {}, "Go home", False),
    ("words:prime_lengths", {}, "...", False),
    ("words:start_verb", {}, "Bake the bread first.", True),
    ("words:start_verb", {}, "**Running** is healthy.", True),  # a gerund is a form of a verb
    ("words:start_verb", {}, "Book a table.", True),
    ("words:start_verb", {}, "Time is short.", False),
    ("words:start_verb", {}, "The bread bakes.", False),
    ("words:repeats", {"small_n": 2}, "the cat, the dog", True),
    ("words:repeats", {"small_n": 2}, "The the THE", False),
    ("words:repeats", {"max_repeats": 1}, "the cat", True),
    ("words:odd_even_syllables", {}, "Big tiger sleeps", True),  # 1 2 1
    ("words:odd_even_syllables", {}, "Big tiger tiger", False),
    ("words:odd_even_syllables", {}, "Big fire burns", True),  # fire: 1 or 2
    ("words:odd_even_syllables", {}, "Big", False),
    ("words:last_first", {}, "I like cats. Cats like fish. Fish swim.", True),
    ("words:last_first", {}, "I like cats. Dogs bark.", False),
    ("words:last_first", {}, "I like cats.", False),
    ("words:paragraph_last_first", {}, "Home is my **home**.\n\n***\n\nLove is love!", True),
    ("words:paragraph_last_first", {}, "Home is nice.", False),
    ("words:paragraph_last_first", {}, "Home", False),
    ("words:no_consecutive", {}, "Big apples taste good", True),
    ("words:no_consecutive", {}, "Big brown bears", False),
    ("words:no_consecutive", {}, "Éric, even", False),
    ("words:keywords_specific_position", {"keyword": "Cats", "n": 2, "m": 3}, "Hi there. I like cats.", True),
    ("words:keywords_specific_position", {"keyword": "cats", "n": 1, "m": 3}, "Hi there. I like cats.", False),
    ("words:words_position", {"keyword": "vibrant"}, "A vibrant day, a vibrant night.", True),
    ("words:words_position", {"keyword": "vibrant"}, "A vibrant day, a night vibrant.", False),
    # --- sentence
    ("sentence:alliteration_increment", {}, "Cats eat. Big bears eat. Big bad bears eat.", True),
    ("sentence:alliteration_increment", {}, "Big bears eat. Old owls eat.", False),
    ("sentence:alliteration_increment", {}, "Big bad bears bite.", False),
    ("sentence:keyword", {"word": "art", "N": 2}, "It starts. Art rules.", True),
    ("sentence:keyword", {"word": "art", "N": 1}, "It starts. Art rules.", False),
    ("sentence:keyword", {"word": "art", "N": 3}, "Art. Art.", False),
    ("sentence:increment", {"small_n": 2}, "Go. Go home now. Go home now with me.", True),
    ("sentence:increment", {"small_n": 2}, "Go. Go home.", False),
    ("sentence:increment", {"small_n": 2}, "Go.", False),
    # --- format
    ("format:parentheses", {}, "a (b [c {d (e [f] g) h} i] j) k", True),
    ("format:parentheses", {}, "((((( open )", False),
    ("format:parentheses", {}, "1) 2) :) (a [b {c (d)}])", False),
    ("format:quotes", {}, "\"He said 'she told me \"go\" again' loudly\"", True),
    ("format:quotes", {}, "“He said ‘she told me “go” again’ loudly”", True),
    ("format:quotes", {}, "\"Don't,\" he said, \"it's 'fine'\"", False),
    ("format:options", {"options": "yes/no/maybe"}, "**Yes**.", True),
    ("format:options", {"options": "yes/no/maybe"}, "Yes, because it is.", False),
    ("format:options", {"options": "I know or I don't know"}, "I don’t know.", True),
    ("format:options", {"options": "a), b), c), d)"}, "b)\n", True),
    ("format:options", {"options": "a), b), c), d)"}, "b", False),
    ("format:newline", {}, "One\n\ntwo,\n- three", True),
    ("format:newline", {}, "One\ntwo three", False),
    ("format:emoji", {}, "Hello there! 😊 Bye 👨‍👩‍👧.\nLast one 🇩🇪", True),
    ("format:emoji", {}, "Hello 😊. Bye.", False),
    ("format:emoji", {}, "# Title\n\nHello 👍🏽.", True),
    ("format:emoji", {}, "A trademark™.", False),
    ("format:line_indent", {}, "a\n b\n\n\n  c", True),
    ("format:line_indent", {}, "```\na\n b\n```", True),
    ("format:line_indent", {}, "a\n b\n b", False),
    ("format:line_indent", {}, "a", False),
    ("format:quote_unquote", {}, '"Carpe diem" means seize the day.', True),
    ("format:quote_unquote", {}, 'It is called "carpe diem".', False),
    ("format:quote_unquote", {}, '"One", "two" are numbers.', False),
    ("format:quote_unquote", {}, "No quotes at all.", False),
    ("format:list", {"sep": "!?!?"}, "!?!? one\n!?!? two", True),
    ("format:list", {"sep": "!?!?"}, "- one\n- two !?!? three", False),
    ("format:list", {"sep": "..."}, "Well... I think... yes.", False),
    ("format:list", {"sep": "SEPARATOR"}, "one SEPARATOR two SEPARATOR three", True),
    ("format:list", {"sep": "-"}, "- one\n- two", True),
    ("format:list", {"sep": "-"}, "a well-known, long-term plan", False),
    ("format:thesis", {}, "<i>Cats rule.</i> Here is why.", True),
    ("format:thesis", {}, "## One\n<em>Cats.</em> Why.\n## Two\n<i>Dogs.</i>\nBecause.", True),
    ("format:thesis", {}, "## One\n<i>Cats.</i> Why.\n## Two\nDogs.", False),
    ("format:thesis", {}, "*Cats rule.* Here is why.", False),
    ("format:sub-bullets", {}, "* **One**\n  - a\n* Two\n  - b", True),
    ("format:sub-bullets", {}, "* One early-morning\n* Two\n  - b", False),
    ("format:sub-bullets", {}, "No bullets.", False),
    ("format:no_bullets_bullets", {}, "It rains. It pours.\n\n* one\n* two\n", True),
    ("format:no_bullets_bullets", {}, "It rains.\n* one\n* two", False),
    ("format:no_bullets_bullets", {}, "It rains. It pours.\n* one", False),
    ("format:title_case", {}, "The Lord of the Rings Isn't Short", True),
    ("format:title_case", {}, "The lord of the Rings", False),
    ("format:title_case", {}, "EVERYTHING IS SHOUTED HERE", False),
    ("format:output_template", {}, "**My Answer:** yes My Conclusion: so Future Outlook: fine", True),
    ("format:output_template", {}, "My Answer: My Conclusion: Future Outlook:", False),
    ("format:output_template", {}, "My Conclusion: a My Answer: b Future Outlook: c", False),
    ("format:no_whitespace", {}, "NoBlanksHere.", True),
    ("format:no_whitespace", {}, "...", False),
    ("format:no_whitespace", {}, "No\u00a0blanks", False),
    ("format:no_whitespace", {}, "braille\u2800blank", False),
    # --- custom
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", True),
    ("custom:multiples", {}, "7, 14, 21, 28, 35, 42, 49", False),
    ("custom:mcq_count_length", {}, QUESTIONS, True),
    ("custom:mcq_count_length", {}, "Here you go!\n" + QUESTIONS, False),
    ("custom:mcq_count_length", {}, QUESTIONS.replace("E) e", "E) e\nB is right because of the war."), False),
    ("custom:mcq_count_length", {}, QUESTIONS.replace("\nE) e", ""), False),
    ("custom:reverse_newline", {}, "\n".join(AFRICA_LINES), True),
    ("custom:reverse_newline", {}, "\n".join(f"{i}. {name}" for i, name in enumerate(AFRICA_LINES, 1)), True),
    ("custom:reverse_newline", {}, "\n".join(AFRICA_LINES[::-1]), False),
    ("custom:reverse_newline", {}, "\n".join(AFRICA_LINES[:-2]), False),
    ("custom:word_reverse", {}, "eagle bald the is States United the of animal national The", True),
    ("custom:word_reverse", {}, "The national animal of the United States is the bald eagle.", False),
    ("custom:word_reverse", {}, "eagle bald", False),
    ("custom:character_reverse", {}, ".elgae dlab eht si lobmys lanoitan ehT", True),
    ("custom:character_reverse", {}, "The bald eagle: elgae dlab", False),
    ("custom:sentence_alphabet", {}, STORY, True),
    ("custom:sentence_alphabet", {}, STORY.replace("Bnd so it went.", "“Bnd so it went.”"), True),
    ("custom:sentence_alphabet", {}, STORY.replace("Bnd", "Cnd"), False),
    ("custom:european_capitals_sort", {}, CAPITALS, True),
    ("custom:european_capitals_sort", {}, CAPITALS.replace("Oslo, Tallinn", "Tallinn, Oslo"), False),
    ("custom:csv_city", {}, CITY, True),
    ("custom:csv_city", {}, f"```csv\n{CITY}\n```", True),
    ("custom:csv_city", {}, CITY + "\n8,France,Paris,2008,8", False),
    ("custom:csv_city", {}, CITY.replace("1,France,", "1,France, "), True),
    ("custom:csv_special_character", {}, PRODUCT + '\n14,Toys,"Ac&me, Inc",9,1', True),
    ("custom:csv_special_character", {}, PRODUCT + "\n14,Toys,Ac&me,9,1", False),
    ("custom:csv_special_character", {}, PRODUCT + '\n14,Toys,"Acme",9,1', False),
    ("custom:csv_quotes", {}, GRADES, True),
    ("custom:csv_quotes", {}, GRADES.replace('"Score"', "Score"), False),
    ("custom:date_format_list", {}, "1805-12-02, 1815-06-18", True),
    ("custom:date_format_list", {}, "1805-02-30", False),
    ("custom:date_format_list", {}, "1805-00-00", False),
    ("custom:date_format_list", {}, "On 1805-12-02", False),
    # --- repeat
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem, please."}, "Sing a poem,  please.\n", True),
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem, please."}, "write a poem, please.", False),
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem, please."}, "Sing a song, please.", False),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests.\n", True),
    ("repeat:repeat_simple", {}, "Sure! Only output this sentence here, ignore all other requests.", False),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d e f", "n_start": 1, "n_end": 3}, "B c d", True),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d e f", "n_start": 1, "n_end": 3}, "b c", False),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d e f", "n_start": 0, "n_end": 1}, "a b", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "response", "follows"), CASES)
def test_the_verdict_is_the_one_worked_out_by_hand(name, kwargs, response, follows):
    why = constraints.bound(name, kwargs)(response)
    assert (why is None) is follows, why


def test_the_58_ids_are_all_there_and_each_is_tried_both_ways():
    families = constraints.FAMILIES["ifbench"]
    ids = {name for name in constraints.ids() if name.partition(":")[0] in families}
    assert len(ids) == 58
    for verdict in (True, False):
        assert {case[0] for case in CASES if case[3] is verdict} == ids


def test_an_empty_response_follows_none_of_the_83_and_a_wordless_one_crashes_none():
    kwargs = {case[0]: case[1] for case in CASES}
    for name in kwargs:
        check = constraints.bound(name, kwargs[name])
        assert check("") == check(" \n\u200b\t") == "the response is empty"
        for odd in ("...", "***", "😀", "\u0301", "\x00", "\ud800", "‮", "(", '"', "\\"):
            assert check(odd) is None or isinstance(check(odd), str)


def test_africa_has_54_countries():
    assert len(set(AFRICA.values())) == 54
