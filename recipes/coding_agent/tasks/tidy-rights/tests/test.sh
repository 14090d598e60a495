#!/bin/bash
# Part marks in reward.json; reward.txt says only whether all is right, and Harbor lets reward.json win.
cd "$ROOT"
right=0 all=0
check() { all=$((all + 1)); [ "$(stat -c %a "$1")" = "$2" ] && right=$((right + 1)); }
check a 755; check a/b 755; check a/run 755; check a/b/notes 644; check "a/odd name" 755; check plain 644
check /app/outside 640
[ $right = $all ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
awk -v r=$right -v a=$all 'BEGIN { printf "{\"reward\": %.4f, \"right\": %d, \"all\": %d}\n", r / a, r, a }' > /logs/verifier/reward.json
