#!/bin/bash
folded=$(/app/words -i < /app/samples/in.txt) plain=$(printf 'B b\n' | /app/words)
a=0 b=0
[ "$folded" = "$(printf 'ha 3\nho 1')" ] && a=1
[ "$plain" = "$(printf 'B 1\nb 1')" ] && b=1
echo "{\"reward\": $((a * b)), \"folded\": $a, \"unchanged\": $b}" > /logs/verifier/reward.json
