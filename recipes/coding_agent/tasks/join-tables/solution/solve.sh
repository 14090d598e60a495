#!/bin/bash
python3 - <<'END'
import csv

people = {r["id"]: r["name"] for r in csv.DictReader(open("/app/people.csv", newline=""))}
totals = dict.fromkeys(people, 0.0)
for row in csv.DictReader(open("/app/orders.csv", newline="")):
    if row["person_id"] in totals:
        totals[row["person_id"]] += float(row["amount"])
with open("/app/totals.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["name", "total"])
    out.writerows(sorted([people[i], f"{t:.2f}"] for i, t in totals.items()))
END
