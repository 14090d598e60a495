import csv

with open("/app/totals.csv", newline="") as file:
    rows = list(csv.reader(file))
wanted = [["name", "total"], ["Abe", "0.00"], ["Bea", "2.75"], ['Cy "C" Li', "100.00"], ["Ode, Ann", "10.00"]]
assert rows == wanted, rows
