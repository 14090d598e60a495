#!/bin/bash
count=0
for file in $(ls $1/*.txt); do
  mkdir $1/old
  mv $file $1/old
  count=$((count + 1))
done
echo $count
