#!/bin/bash
sort -V /app/versions.txt | tail -n 1 > /app/newest.txt
