"""`python -m rufus_plugins.recipes.chains.guardian COMMAND ...`: runs a command and lets nothing of it outlive the
process that started this one, even if that one is killed with -9.

It is the subreaper of all that the command starts (Ray's daemons have sessions of their own), and the kernel tells it
when its parent dies (PR_SET_PDEATHSIG, set by processes.py). It ends as the command ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from rufus_plugins.recipes.chains import processes


def main(command: Sequence[str]) -> int:
    processes.become_reaper()
    try:
        child = subprocess.Popen(command, preexec_fn=processes.die_with(os.getpid(), signal.SIGKILL))
        while True:  # orphans of the command are reaped, too
            pid, status = os.waitpid(-1, 0)
            if pid == child.pid:
                child.returncode = code = os.waitstatus_to_exitcode(status)
                break
    except KeyboardInterrupt:  # the parent died, or asks
        code = -signal.SIGTERM
    except OSError as error:
        print(f"{command[0]} does not start: {error.strerror}", flush=True)
        code = 127
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.end_descendants()
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
