#!/bin/bash
wanted="backup-2025-12-31.tar backup-2026-01-02.tar backup-2026-01-10.tar backup-2027-01-01.tar.part backup-latest.tar notes.txt"
[ "$(ls /app/backups | LC_ALL=C sort | tr '\n' ' ')" = "$wanted " ]
echo $((1 - $?)) > /logs/verifier/reward.txt
