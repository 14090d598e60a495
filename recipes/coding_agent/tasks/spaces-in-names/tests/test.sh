#!/bin/bash
passed=0
d=$(mktemp -d); touch "$d/a b.txt" "$d/c.txt" "$d/-x.txt" "$d/keep.md"
[ "$(bash /app/archive.sh "$d" 2>/dev/null)" = 3 ] && [ -e "$d/old/a b.txt" ] && [ -e "$d/old/-x.txt" ] && [ -e "$d/keep.md" ] &&
  passed=$((passed + 1))
e="$(mktemp -d)/with blank"; mkdir "$e"; touch "$e/one.txt"
[ "$(bash /app/archive.sh "$e" 2>/dev/null)" = 1 ] && [ -e "$e/old/one.txt" ] && passed=$((passed + 1))
f=$(mktemp -d)
[ "$(bash /app/archive.sh "$f" 2>/dev/null)" = 0 ] && passed=$((passed + 1))
[ $passed = 3 ] && echo 1.0 > /logs/verifier/reward.txt || echo 0.0 > /logs/verifier/reward.txt
