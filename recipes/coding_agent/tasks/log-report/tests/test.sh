#!/bin/bash
if cmp -s /app/report.txt /tests/expected.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
