import re
import sqlite3


def read(path):
    """Table -> (key columns, rows by key as dicts)."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    tables = {}
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for (name,) in names.fetchall():
        columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
        keys = [c[1] for c in sorted((c for c in columns if c[5]), key=lambda c: c[5])]
        rows = {}
        for row in connection.execute(f'SELECT * FROM "{name}"'):
            rows["/".join(str(row[k]) for k in keys)] = dict(row)
        tables[name] = (keys, rows)
    connection.close()
    return tables


def matches(expected, row, new):
    """Whether the row has the expected values; `new:TABLE` is the key of that table's one added row,
    `has:TEXT` a part of a text."""
    for column, value in expected.items():
        if isinstance(value, str) and value.startswith("new:"):
            value = new.get(value[4:])
            if str(row[column]) != str(value):
                return False
        elif isinstance(value, str) and value.startswith("has:"):
            if value[4:].lower() not in str(row[column]).lower():
                return False
        elif row[column] != value:
            return False
    return True


def judge(initial, final, answer, expected, free=(), said=()):
    """Complete if exactly the expected rows were added, removed and changed, and the answer says what it must."""
    before, after = read(initial), read(final)
    if before.keys() != after.keys():
        return {"result": "others"}
    new = {}
    for table, (_, rows) in after.items():
        added = [key for key in rows if key not in before[table][1]]
        if len(added) == 1:
            new[table] = added[0]
    for table, (_, rows) in after.items():
        if table in free:
            continue
        old, wanted = before[table][1], expected.get(table, {})
        added = [row for key, row in rows.items() if key not in old]
        left = list(added)
        for one in wanted.get("added", []):
            match = next((row for row in left if matches(one, row, new)), None)
            if match is None:
                return {"result": "others"}
            left.remove(match)
        if left or sorted(key for key in old if key not in rows) != sorted(wanted.get("removed", [])):
            return {"result": "others"}
        for key, row in rows.items():
            if key in old:
                changed = {c for c in row if row[c] != old[key][c]}
                want = wanted.get("changed", {}).get(key, {})
                if changed != set(want) or not matches(want, row, new):
                    return {"result": "others"}
    if not all(re.search(pattern, answer or "", re.IGNORECASE) for pattern in said):
        return {"result": "others"}
    return {"result": "complete"}
