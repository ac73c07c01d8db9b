# The extension is checked where it is used: csrc/binding says what each part offers.
from typing import Any

def __getattr__(name: str) -> Any: ...
