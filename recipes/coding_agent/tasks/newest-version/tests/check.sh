#!/bin/bash
[ "$(cat /app/newest.txt)" = "1.10.2" ]
