#!/bin/bash
cd /app/tree
find . -type d -exec chmod 755 {} +
find . -type f -exec chmod 644 {} +
find . -type f -exec sh -c 'for f; do [ "$(head -c 2 "$f")" = "#!" ] && chmod 755 "$f"; done; :' sh {} +
