"""How constraints read text: words, sentences, Markdown, languages, syllables, tables; and that nothing hangs."""

import random

import pytest

from rufus_plugins.errors import DataError
from rufus_plugins.rewards import constraints
from rufus_plugins.rewards.constraints import csv_table, markup, nesting, reading, splitting
from rufus_plugins.rewards.constraints.language import not_in_language
from rufus_plugins.rewards.constraints.syllables import syllables
from rufus_plugins.rewards.constraints.verbs import starts_with_verb


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yes - no – maybe", ["yes", "no", "maybe"]),
        ("a state-of-the-art, well‑made engine", ["a", "state-of-the-art", "well‑made", "engine"]),
        ("don't rock’n’roll", ["don't", "rock’n’roll"]),
        ("3.14 1,000 10:30 1990s", ["3.14", "1,000", "10:30", "1990s"]),
        ("a,b;c/d|e…f", ["a", "b", "c", "d", "e", "f"]),
        ("U.S.A. e.g. Ph.D. end.Start", ["U.S.A", "e.g", "Ph.D", "end", "Start"]),
        ("**bold** _em_ snake_case #tag", ["bold", "em", "snake_case", "tag"]),
        ("me@x.org https://a.b/c?d=e!", ["me@x.org", "https://a.b/c?d=e!"]),
        ("AT&T R&D a&b", ["AT&T", "R&D", "a", "b"]),
        ("你好 AI技术 カタ", ["你", "好", "AI", "技", "术", "カ", "タ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("안녕하세요 세계", ["안녕하세요", "세계"]),
        ("سلام عليكم", ["سلام", "عليكم"]),
        ("1️⃣ go 😀", ["go"]),
        ("... --- ***", []),
    ],
)
def test_words_are_what_a_reader_counts(text, words):
    assert reading.words(text) == words


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Smith left at 5 p.m. Then he slept.", ["Mr. Smith left at 5 p.m.", "Then he slept."]),
        ("Version 3.14 is on example.com today!", ["Version 3.14 is on example.com today!"]),
        ("He works at Foo Inc. The firm is big.", ["He works at Foo Inc.", "The firm is big."]),
        ("J. K. Rowling wrote it. We read it.", ["J. K. Rowling wrote it.", "We read it."]),
        ("The U.S. Government met. They live in the U.S. She left.",
         ["The U.S. Government met.", "They live in the U.S.", "She left."]),
        ("It is No. 5. No. Really?!", ["It is No. 5.", "No.", "Really?!"]),
        ("Fruit (apples, etc.) is good. So is bread, etc. The end.",
         ["Fruit (apples, etc.) is good.", "So is bread, etc.", "The end."]),
        ('"Stop!" he said. "Why?" She left.', ['"Stop!" he said.', '"Why?"', "She left."]),
        ("Wait... what? Well... Yes.", ["Wait... what?", "Well...", "Yes."]),
        ("all small. no capitals. here", ["all small.", "no capitals.", "here"]),
        ("# Title\n\nIt rained\nall day. I slept.", ["It rained all day.", "I slept."]),
        ("1. Pack it.\n2. Go home.", ["Pack it.", "Go home."]),
        ("Hi 😊. Bye! 😀 So 👨‍👩‍👧\nEnd", ["Hi 😊.", "Bye! 😀", "So 👨‍👩‍👧", "End"]),
        ("你好。世界！你呢？", ["你好。", "世界！", "你呢？"]),
        ("यह एक है। वह दो है।", ["यह एक है।", "वह दो है।"]),
        ("ماذا؟ نعم.", ["ماذا؟", "نعم."]),
        ("a\n\nb\n\nc", ["a b c"]),
        ("... !!! 😀", []),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_ends_them(text, sentences):
    assert list(splitting.sentences(text)) == sentences


def test_the_kind_of_a_sentence_is_read_behind_quotes_brackets_and_emoji():
    assert [splitting.kind(s) for s in ('He said "no."', "Why?)", "Go!**", "So? 😀", "What?!", "Title", "好。")] == [
        ".", "?", "!", "?", "?", "", ".",
    ]  # fmt: skip


def test_only_bullets_are_bullets_and_nesting_is_known():
    text = "- a\n  - b\n    * c\n+ d\n---\n-5 degrees\n*emph* x\n> - e\n```\n- f\n```\n-\tg"
    assert [(b.depth, b.text) for b in markup.bullets(text)] == [
        (0, "a"), (1, "b"), (2, "c"), (0, "d"), (0, "e"), (0, "g"),
    ]  # fmt: skip


def test_a_fence_is_closed_by_a_fence_of_its_own_kind():
    assert markup.fences("a\n~~~\n```\nb\n~~~\nc") == ("a\nc", ["```\nb"])
    assert markup.fences("a\n```\nb") == ("a\n```\nb", [])
    assert markup.unfenced("\n```json\n{}\n```\n") == "{}"
    assert markup.unfenced("x\n```\n{}\n```") == "x\n```\n{}\n```"


def test_emphasis_follows_markdown():
    assert markup.emphasised("*a* **b *c* d** 2 * 3 * 4 `*no*` \\*no\\* ***e***") == ["a", "b *c* d", "e"]
    assert markup.emphasised("**one*\n*two** and **** and ** x **\n* item *three*") == ["one", "two", "three"]


def test_a_table_knows_which_fields_were_quoted_and_refuses_broken_quotes():
    rows = csv_table.rows('a, "b ""c"", d" ,\n\n1,"x\ny",3\n', ",")
    assert [[tuple(field) for field in row] for row in rows] == [
        [("a", False), ('b "c", d', True), ("", False)],
        [("1", False), ("x\ny", True), ("3", False)],
    ]
    assert csv_table.rows('"open', ",") is None
    assert csv_table.rows('"a"b,c', ",") is None


def test_nesting_counts_only_what_is_closed():
    assert nesting.deepest_brackets("(a [b] {c (d)})") == 3
    assert nesting.deepest_brackets("((((((") == 0
    assert nesting.deepest_quotes("\"a 'b' c\"") == 2
    assert nesting.deepest_quotes("the dogs' \"bone\" isn't 'theirs'") == 1


HELLO = {
    "en": "Hello world", "fr": "Bonjour le monde", "es": "Hola mundo", "pt": "Olá mundo", "de": "Hallo Welt",
    "it": "Ciao mondo", "fi": "Hei maailma", "pl": "Cześć świat", "vi": "Xin chào thế giới", "sw": "Habari ya dunia",
    "ru": "Привет мир", "uk": "Привіт світ", "bg": "Здравей свят", "ar": "مرحبا بالعالم", "hi": "नमस्ते दुनिया",
    "mr": "नमस्कार जग", "ne": "नमस्ते संसार", "zh": "你好，世界", "ja": "こんにちは世界", "ko": "안녕하세요 세계",
    "th": "สวัสดีชาวโลก", "he": "שלום עולם", "ta": "வணக்கம் உலகம்", "te": "హలో ప్రపంచం", "bn": "ওহে বিশ্ব",
    "kn": "ಹಲೋ ವಿಶ್ವ", "gu": "હેલો વિશ્વ", "pa": "ਸਤ ਸ੍ਰੀ ਅਕਾਲ", "ml": "ഹലോ ലോകം", "ur": "ہیلو دنیا",
}  # fmt: skip
SENTENCES = {
    "en": "Photosynthesis converts sunlight into chemical energy within chloroplasts.",
    "fr": "La photosynthèse convertit la lumière du soleil en énergie chimique dans les chloroplastes.",
    "es": "La fotosíntesis convierte la luz solar en energía química en los cloroplastos.",
    "pt": "A fotossíntese converte a luz solar em energia química nos cloroplastos.",
    "de": "Die Photosynthese wandelt Sonnenlicht in den Chloroplasten in chemische Energie um.",
    "it": "La fotosintesi converte la luce solare in energia chimica nei cloroplasti.",
    "fi": "Fotosynteesi muuttaa auringonvalon kemialliseksi energiaksi viherhiukkasissa.",
    "pl": "Fotosynteza przekształca światło słoneczne w energię chemiczną w chloroplastach.",
    "vi": "Quang hợp chuyển đổi ánh sáng mặt trời thành năng lượng hóa học trong lục lạp.",
    "sw": "Usanisinuru hubadilisha mwanga wa jua kuwa nishati ya kemikali katika mimea.",
    "ru": "Фотосинтез преобразует солнечный свет в химическую энергию в хлоропластах.",
    "uk": "Фотосинтез перетворює сонячне світло на хімічну енергію в хлоропластах.",
    "ar": "يحول التمثيل الضوئي ضوء الشمس إلى طاقة كيميائية في البلاستيدات الخضراء.",
    "fa": "فتوسنتز نور خورشید را به انرژی شیمیایی در کلروپلاست‌ها تبدیل می‌کند.",
    "ur": "فوٹو سنتھیسس سورج کی روشنی کو کیمیائی توانائی میں تبدیل کرتا ہے۔",
    "hi": "प्रकाश संश्लेषण सूर्य के प्रकाश को रासायनिक ऊर्जा में बदलता है।",
    "ja": "光合成は葉緑体で太陽光を化学エネルギーに変換します。",
}


@pytest.mark.parametrize("texts", [HELLO, SENTENCES], ids=["two words", "one sentence"])
def test_a_text_is_in_its_own_language_and_in_no_other(texts):
    for language, text in texts.items():
        for asked in texts:
            assert (not_in_language(text, asked) is None) is (asked == language), (text, asked)


def test_a_foreign_passage_counts_and_code_and_names_do_not():
    english = "Photosynthesis is the process by which plants make their food from sunlight and water. "
    spanish = "La fotosíntesis es el proceso por el cual las plantas producen su alimento a partir de la luz. "
    assert not_in_language(3 * english + spanish, "en") is not None
    assert not_in_language(spanish + 4 * english, "es") is not None
    assert not_in_language(4 * spanish, "es") is None
    snippet = "```python\nfor the thing in all of them: print('the world is in the house of the king')\n```\n"
    assert not_in_language(f"Esto es todo lo que hay que hacer con `for` aquí:\n{snippet}Y nada más.", "es") is None
    assert not_in_language("我用 Python 和 NumPy 写了一个程序，它可以计算矩阵的特征值。", "zh") is None


@pytest.mark.parametrize(
    ("word", "numbers"),
    [
        ("cat", {1}), ("table", {2}), ("loved", {1}), ("wanted", {2}), ("syllables", {3}), ("unique", {2}),
        ("reaction", {3}), ("idea", {3}), ("beautiful", {3}), ("university", {5}), ("year", {1}), ("isn't", {2}),
        ("rhythm", {2}), ("friend", {1}), ("society", {4}), ("well-made", {2}), ("café", {2}), ("every", {2, 3}),
        ("chocolate", {2, 3}), ("family", {2, 3}), ("people", {2}), ("science", {2}), ("the", {1}), ("breathe", {1}),
    ],
)  # fmt: skip
def test_syllables_are_those_of_a_dictionary(word, numbers):
    assert syllables(word) == numbers


VERBS = [
    "Bake it.",
    "Take a seat.",
    "Let's go",
    "Don't stop",
    "Plan your day",
    "Summarize this",
    "Is it?",
    "Dived in",
    "Cooking is fun",
]
NO_VERBS = ["The plan", "Plans are made", "Quickly run", "Water is wet", "Yes, run", "I run", "Morning came", "42"]


def test_the_first_word_is_a_verb_when_it_is_used_as_one():
    assert [text for text in VERBS if not starts_with_verb(text)] == []
    assert [text for text in NO_VERBS if starts_with_verb(text)] == []


KWARGS = {
    "keywords": ["model", "a b"], "keyword": "a b", "frequency": 2, "relation": "at least", "forbidden_words": ["x"],
    "letter": "a", "let_frequency": 2, "let_relation": "at least", "language": "en", "num_sentences": 2,
    "num_paragraphs": 3, "num_words": 5, "nth_paragraph": 2, "first_word": "a", "num_placeholders": 3,
    "postscript_marker": "P.S.", "num_bullets": 3, "num_highlights": 10**6, "section_spliter": "Section",
    "num_sections": 10**6, "prompt_to_repeat": "a b c d", "end_phrase": "the end", "capital_frequency": 3,
    "capital_relation": "at least", "min_words": 3, "max_words": 10**7, "N": 3, "percentage": 30, "small_n": 3,
    "reference_text": "a b c d", "sep": "!?!?", "options": "yes/no", "word": "a", "n": 3, "m": 2, "n_start": 0,
    "n_end": 2,
} | {f"keyword{i}": "a" for i in range(1, 6)}  # fmt: skip
UNITS = [
    "a", "a ", " ", "\n", "*", "*a ", "[", "[a", '{"a":', "(", "'a\" ", '"', ".", "a. ", "\u0301", "a\u0301\u0316",
    "😀\u200d", "🇩", "<<", "<i>", "`a``b", "```a\n", "- a\n", "a,", '"a","b"\n', "1,111,", "1111-11-", "-",
    "_", "a'", "你", "ก",
    "а в ", "www.", "Question 1: x\n", "P.S. ", "**x", "a\u200c", ">", "a@", "hello world ", "a *** ", "Zimbabwe\n",
]  # fmt: skip


def checks():
    for name in constraints.ids():
        yield name, constraints.bound(name, {key: KWARGS[key] for key in constraints.kwargs_of(name)})


BAD = [None, 1, -1, 2.5, True, "", " ", "x", "5", [], [1], ["a"], [""], {}, float("nan"), float("inf"),
       "\ud800", "(", "[a-",
       "\\", "\u200b", "\u0301", "C++", "*", b"x"]  # fmt: skip


def test_a_kwarg_of_any_value_is_refused_or_works():
    for name in constraints.ids():
        for key in constraints.kwargs_of(name):
            for value in BAD:
                kwargs = {other: KWARGS[other] for other in constraints.kwargs_of(name)} | {key: value}
                try:
                    check = constraints.bound(name, kwargs)
                except DataError:
                    continue
                for response in ("Hello world. It is.", "你好，世界", "\ud800"):
                    assert check(response) is None or isinstance(check(response), str)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("punctuation:no_comma", "a" + "\u0301\u0316" * 400_000),  # normalising one run of marks is quadratic
        ("language:response_language", "a" * 300_000),
        ("length_constraints:number_sentences", "😀\u200d" * 150_000 + "x"),
        ("custom:reverse_newline", "(" * 800_000),
        ("detectable_format:number_bullet_lists", ">" * 800_000),
        ("detectable_format:json_format", "[" * 800_000),
        ("custom:csv_city", "a," * 150_000),
        ("format:quotes", "\"'" * 100_000),
    ],
)
def test_a_response_of_a_megabyte_made_to_hang_a_check_does_not(name, text):
    check = dict(checks())[name]
    assert check(text) is None or isinstance(check(text), str)


def test_no_check_raises_on_text_made_of_pieces_of_everything():
    pieces = random.Random(0).choices(UNITS, k=400)
    texts = ["".join(pieces), "".join(reversed(pieces)), "\ud800" + "".join(pieces[:50])]
    for _, check in checks():
        for text in texts:
            assert check(text) == check(text)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_check_takes_more_than_linear_time_on_any_repeated_piece():
    for unit in UNITS:
        text = unit * (100_000 // len(unit)) + "x"
        for _, check in checks():
            check(text)
