"""A shell that persists over any sandbox: variables, functions, folder, options and umask outlive each command.

Every command runs in a bash of its own that first takes over what the last one left (`declare -p`, `declare -f`,
aliases, `set`, `shopt`, `umask`, the folder) and leaves its own state when it ends, by `exit` too. A command that is
killed, or that replaces or kills its shell, leaves the state as it was before it. Background processes and files stay
because the sandbox does. Standard output and error come in one stream, in order. Not kept: `jobs`, open descriptors,
traps, and functions named unset, set, builtin, eval, exit, trap or return.

The verifier never runs in such a session: what a model did to its shell cannot reach it.
"""

from __future__ import annotations

import shlex
import uuid

from rufus_plugins.errors import ConfigError
from rufus_plugins.protocols import Sandbox
from rufus_plugins.types import ExecResult

_SKIPPED = (
    "BASH*|EUID|PPID|SHELLOPTS|UID|FUNCNAME|GROUPS|DIRSTACK|LINENO|PIPESTATUS|RANDOM|SRANDOM|SECONDS|EPOCH*|COMP_*|"
    "HOSTTYPE|MACHTYPE|OSTYPE|OPTIND|OPTERR|SHLVL|PWD|_|__rufus*"
)

# Builtins only: PATH, IFS and options are the model's to break. Functions and aliases that take the names of builtins
# are too, but a few would lock the model out of its own shell (`eval() { :; }`): those are dropped, found by the one
# mode in which such builtins come before functions, which an assignment switches on. It changes other options, hence
# the copy of BASHOPTS. Two slots by turns, so that a save that is cut off by a kill never becomes the state.
_SCRIPT = r"""exec 2>&1
__rufus_d=@FOLDER@; __rufus_n=@SLOT@
__rufus_save() {
  __rufus_code=$1; __rufus_b=:$BASHOPTS: __rufus_o=:$SHELLOPTS:
  POSIXLY_CORRECT=1; unset -f unset set builtin eval exit trap return || :; set +o posix; unset POSIXLY_CORRECT
  if [[ ${__rufus_saved-} ]]; then return "$__rufus_code"; fi
  __rufus_saved=1
  {
    builtin set +o; builtin shopt -p
    if [[ $__rufus_o == *:posix:* ]]; then builtin echo "set -o posix"; fi
    for __rufus_v in expand_aliases inherit_errexit interactive_comments shift_verbose sourcepath; do
      if [[ $__rufus_b == *:$__rufus_v:* ]]; then builtin echo "shopt -s $__rufus_v"
      else builtin echo "shopt -u $__rufus_v"; fi
    done
  } >"$__rufus_d/options.$__rufus_n"
  builtin set +eufnxv +o posix; builtin trap - DEBUG ERR RETURN
  {
    builtin alias -p; builtin umask -p
    builtin mapfile -t __rufus_names < <(builtin compgen -v)
    for __rufus_v in "${__rufus_names[@]}"; do
      case "$__rufus_v" in @SKIPPED@) ;; *) builtin declare -p "$__rufus_v";; esac
    done
    builtin declare -f  # last: they may have the names of what restores the rest
  } >"$__rufus_d/state.$__rufus_n"
  builtin printf %s "$PWD" >"$__rufus_d/cwd.$__rufus_n" && builtin printf '%s\n' "$__rufus_n" >"$__rufus_d/last"
  return "$__rufus_code"
}
if [ -r "$__rufus_d/last" ]; then
  read -r __rufus_last <"$__rufus_d/last"
  __rufus_cwd=$(<"$__rufus_d/cwd.$__rufus_last")
  if ! cd -- "$__rufus_cwd" 2>/dev/null; then
    cd -- @WORKDIR@ 2>/dev/null || cd /
    echo "[the folder $__rufus_cwd is gone; now in $PWD]"
  fi
  . "$__rufus_d/state.$__rufus_last" >/dev/null 2>&1
  __rufus_options=$(<"$__rufus_d/options.$__rufus_last")
else
  [ -d "$__rufus_d" ] || mkdir -p -m 700 "$__rufus_d"
  cd -- @WORKDIR@ 2>/dev/null || cd /
  __rufus_options=
fi
unset __rufus_saved
trap '{ __rufus_save $?; } 2>/dev/null' EXIT
{ eval "$__rufus_options"; } 2>/dev/null
\eval @COMMAND@
{ __rufus_save $?; } 2>/dev/null
\exit "$__rufus_code"
"""


class ShellSession:
    def __init__(self, sandbox: Sandbox, *, workdir: str = "", user: str = ""):
        self.sandbox = sandbox
        self.workdir = workdir
        self.user = user
        self._folder = f"/var/tmp/.rufus-shell-{uuid.uuid4().hex[:12]}"
        self._slot = 0

    async def open(self) -> None:
        """Raises `ConfigError` if the sandbox has no bash, InfrastructureError if it is lost."""
        found = await self._exec("command -v bash >/dev/null && pwd", 60.0)
        if found.exit_code != 0:
            raise ConfigError(f"the shell environment needs bash in the sandbox: {found.stderr.strip()[-200:]}")
        self.workdir = self.workdir or found.stdout.strip() or "/"

    async def run(self, command: str, timeout_s: float) -> ExecResult:
        """Output and error together in `stdout`; `stderr` is what the sandbox itself has to say."""
        if "\0" in command:
            return ExecResult(None, "", "a command cannot hold a NUL character", False, 0.0)
        self._slot = 1 - self._slot
        script = _SCRIPT
        for name, value in (
            ("FOLDER", self._folder),
            ("SLOT", str(self._slot)),
            ("SKIPPED", _SKIPPED),
            ("WORKDIR", shlex.quote(self.workdir or "/")),
            ("COMMAND", shlex.quote(command)),  # last: the command may hold any of the names
        ):
            script = script.replace(f"@{name}@", value)
        return await self._exec(script, timeout_s)

    async def _exec(self, script: str, timeout_s: float) -> ExecResult:
        if self.user:  # only backends that have users take it
            return await self.sandbox.exec(script, timeout_s, user=self.user)  # type: ignore[call-arg]
        return await self.sandbox.exec(script, timeout_s)
