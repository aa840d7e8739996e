"""The base of every recipe section: frozen, strict, numbers as people write them."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _integral(value: Any) -> Any:
    """``1e4`` in YAML is a float; where an int is wanted and nothing is lost, it is that int."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Int = Annotated[int, BeforeValidator(_integral)]


class Config(BaseModel):
    """A frozen recipe section. Unknown keys are errors; ``"5"`` is not 5; ``1e4`` is an :data:`Int`.

    Field descriptions become the explanation in ``--dry-run`` and in the JSON schema for editors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
