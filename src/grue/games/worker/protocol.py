"""What both ends of a worker agree on."""

from __future__ import annotations

from grue.errors import ConfigError, GameError, GrueError, TeacherError

# kinds of errors by their names in an answer, special ones first; any other is a GameError
ERRORS: dict[str, type[GrueError]] = {"config": ConfigError, "teacher": TeacherError, "game": GameError}
