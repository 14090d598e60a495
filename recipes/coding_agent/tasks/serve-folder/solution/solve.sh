#!/bin/bash
cp /app/VERSION /app/site/version
cd /app/site && nohup python3 -m http.server 8080 --bind 127.0.0.1 > /tmp/server.log 2>&1 &
for i in $(seq 50); do
  python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8080/version")' 2>/dev/null && break
  sleep 0.1
done
