#!/bin/bash
awk '{print $(NF-1)}' /app/access.log | sort | uniq -c | sort -k1,1nr -k2,2n | awk '{print $2, $1}' > /app/report.txt
