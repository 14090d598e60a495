#!/bin/bash
cat > /app/archive.sh <<'END'
#!/bin/bash
shopt -s nullglob
files=("$1"/*.txt)
[ ${#files[@]} -gt 0 ] && mkdir -p "$1/old" && mv -- "${files[@]}" "$1/old"
echo ${#files[@]}
END
