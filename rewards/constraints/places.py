"""The places that `custom:` constraints ask for, as facts of geography; names lower case, without accents and "the"."""

_AFRICA = """
algeria; angola; benin; botswana; burkina faso; burundi; cabo verde, cape verde; cameroon; central african
republic; chad; comoros; congo, republic of congo, republic of the congo, congo brazzaville, congo republic,
congo, republic of the; democratic republic of the congo, democratic republic of congo, dr congo, drc, congo
kinshasa; cote d'ivoire, ivory coast; djibouti; egypt; equatorial guinea; eritrea; eswatini, swaziland;
ethiopia; gabon; gambia; ghana; guinea; guinea bissau; kenya; lesotho; liberia; libya; madagascar; malawi;
mali; mauritania; mauritius; morocco; mozambique; namibia; niger; nigeria; rwanda; sao tome and principe;
senegal; seychelles; sierra leone; somalia; south africa; south sudan; sudan; tanzania; togo; tunisia; uganda;
zambia; zimbabwe
"""
AFRICA = {
    " ".join(name.split()): " ".join(entry.split(",")[0].split())
    for entry in _AFRICA.split(";")
    for name in entry.split(",")
} | {
    "congo, republic of the": "congo",
    "congo, democratic republic of the": "democratic republic of the congo",
    "gambia, the": "gambia",
}
"""Every name of the 54 members of the United Nations in Africa -> one of its names."""

CAPITALS = {
    # latitude north in degrees
    "reykjavik": "Reykjavik",  # 64.15
    "helsinki": "Helsinki",  # 60.17
    "oslo": "Oslo",  # 59.91
    "tallinn": "Tallinn",  # 59.44
    "stockholm": "Stockholm",  # 59.33
    "riga": "Riga",  # 56.95
    "moscow": "Moscow",  # 55.76
    "copenhagen": "Copenhagen",  # 55.68
    "vilnius": "Vilnius",  # 54.69
    "minsk": "Minsk",  # 53.90
    "dublin": "Dublin",  # 53.35
    "berlin": "Berlin",  # 52.52
    "amsterdam": "Amsterdam",  # 52.37
    "warsaw": "Warsaw",  # 52.23
    "london": "London",  # 51.51
    "brussels": "Brussels",  # 50.85
    "kyiv": "Kyiv", "kiev": "Kyiv",  # 50.45
    "prague": "Prague",  # 50.08
    "luxembourg": "Luxembourg", "luxembourg city": "Luxembourg",  # 49.61
    "paris": "Paris",  # 48.86
    "vienna": "Vienna",  # 48.21
    "bratislava": "Bratislava",  # 48.15
    "budapest": "Budapest",  # 47.50
    "vaduz": "Vaduz",  # 47.14
    "chisinau": "Chisinau", "kishinev": "Chisinau",  # 47.01
    "bern": "Bern", "berne": "Bern",  # 46.95
    "ljubljana": "Ljubljana",  # 46.06
    "zagreb": "Zagreb",  # 45.81
}  # fmt: skip
"""The capitals of Europe north of 45 degrees, from north to south, by their English names."""
