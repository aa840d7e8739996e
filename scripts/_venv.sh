# Sourced by the scripts beside it, from the repository's root.

# make_venv [EXTRA]: makes `.venv` with this checkout installed, with the extra `test` or `dev` if asked for. Does nothing
# when nothing it was made from has changed.
make_venv() {
    local extra="${1:-}" python="${PYTHON:-python3.11}" stamp
    command -v "$python" >/dev/null 2>&1 || python=python3

    # What the environment was made from: the stamp inside it has the same digest when it is up to date.
    stamp=".venv/installed-$(cat pyproject.toml constraints.txt scripts/_venv.sh | cksum | cut -d' ' -f1)"
    if [ -f "$stamp" ] && { [ -z "$extra" ] || grep -qx "$extra" "$stamp"; }; then
        return 0
    fi

    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: Python 3.11 or newer is needed, got $("$python" --version 2>&1); set PYTHON=/path/to/python3.11" >&2
        return 4
    }
    [ -x .venv/bin/python ] || { echo "making .venv"; "$python" -m venv .venv; }
    echo "installing torchtpu-dist${extra:+ [$extra]} into .venv (once, a minute or two)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable ".${extra:+[$extra]}"
    local old
    for old in .venv/installed-*; do [ "$old" = "$stamp" ] || rm -f "$old"; done
    case "$extra" in
        dev) printf 'dev\ntest\n' ;; # dev contains test
        *) echo "$extra" ;;
    esac >>"$stamp"
}
