#!/bin/bash
cd "${BACKUPS:-/app/backups}"
ls | grep -E '^backup-[0-9]{4}-[0-9]{2}-[0-9]{2}\.tar$' | sort | head -n -3 | xargs -r rm --
