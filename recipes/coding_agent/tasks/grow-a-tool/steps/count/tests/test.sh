#!/bin/bash
got=$(printf 'b a\tb\n\nB a  b\n' | /app/words)
[ "$got" = "$(printf 'B 1\na 2\nb 3')" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
