#!/bin/bash
# Only all of it is rewarded: much is right before anybody does anything. reward.txt has part marks, and Harbor lets
# reward.json win.
cd "$ROOT"
right=0 all=0
check() { all=$((all + 1)); [ "$(stat -c %a "$1")" = "$2" ] && right=$((right + 1)); }
check a 755; check a/b 755; check a/run 755; check a/b/notes 644; check "a/odd name" 755; check plain 644
check /app/outside 640
[ $right = $all ] && whole=1 || whole=0
awk -v r=$right -v a=$all 'BEGIN { printf "%.4f\n", r / a }' > /logs/verifier/reward.txt
echo "{\"reward\": $whole, \"right\": $right, \"all\": $all}" > /logs/verifier/reward.json
