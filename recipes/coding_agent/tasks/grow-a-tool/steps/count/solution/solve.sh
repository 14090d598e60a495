#!/bin/bash
cat > /app/words <<'END'
#!/bin/bash
export LC_ALL=C
tr -s ' \t' '\n' | grep -v '^$' | sort | uniq -c | awk '{print $2, $1}'
END
chmod +x /app/words
