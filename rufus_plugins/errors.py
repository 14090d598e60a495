"""The error model, whole.

- The *user* got something wrong (a name, a field, a file): `ConfigError`. The message says what was
  asked, what exists and what to do. Raised before anything starts, nothing half-written.
- A *plugin* is broken: `PluginError`. It names the plugin, the part, the file and the mend. A run that
  selects the part ends with it; a run that does not only warns.
- A *record* cannot be used (no tests, wrong shape): `DataError`. The record is set aside and counted.
- *Our side* failed at run time (sandbox lost, judge down, deadline of ours): `InfrastructureError` with
  a `Termination` whose fault is infrastructure. Counted, never scored 0, never trained on.
- What a *model* writes is never an error: it is data and gets its score.
"""

from __future__ import annotations

from .types import Fault, Termination


class RufusError(Exception):
    """Everything that rufus_plugins raises on purpose."""


class ConfigError(RufusError):
    """The user asked for something that does not exist or does not fit."""


class PluginError(RufusError):
    """A plugin does not load, or a part does not look like its kind."""


class DataError(RufusError):
    """A record cannot be used; it is set aside with this reason."""


class InfrastructureError(RufusError):
    """Our side failed: typed, counted, never trained on."""

    def __init__(self, message: str, termination: Termination = Termination.TIMEOUT_INFRA):
        super().__init__(message)
        if termination.fault is not Fault.INFRASTRUCTURE:
            raise ValueError(f"{termination} is no infrastructure fault")
        self.termination = termination


class SandboxUnavailable(ConfigError):
    """No isolation can be had on this machine: untrusted code is not run."""
