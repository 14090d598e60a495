"""Post-training plugins for verl. What a plugin author needs, and nothing heavy."""

from .errors import ConfigError, DataError, InfrastructureError, PluginError, RufusError
from .hookspecs import hookimpl
from .types import (
    CallStatus,
    ContextSegment,
    ExecResult,
    Fault,
    Score,
    Stage,
    StepResult,
    Task,
    Termination,
    ToolCall,
    Trajectory,
)

__version__ = "0.1.0"

__all__ = [
    "CallStatus",
    "ConfigError",
    "ContextSegment",
    "DataError",
    "ExecResult",
    "Fault",
    "InfrastructureError",
    "PluginError",
    "RufusError",
    "Score",
    "Stage",
    "StepResult",
    "Task",
    "Termination",
    "ToolCall",
    "Trajectory",
    "hookimpl",
]
