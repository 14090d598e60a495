#!/bin/bash
python3 - <<'END'
import time
import urllib.request

for _ in range(20):
    try:
        page = urllib.request.urlopen("http://127.0.0.1:8080/index.html", timeout=2).read()
        version = urllib.request.urlopen("http://127.0.0.1:8080/version", timeout=2).read()
        break
    except OSError:
        time.sleep(0.2)
else:
    raise SystemExit("nothing answers on port 8080")
assert page == b"<h1>here</h1>\n" and version.strip() == b"7.2", (page, version)
END
echo $((1 - ($? != 0))) > /logs/verifier/reward.txt
