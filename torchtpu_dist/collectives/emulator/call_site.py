"""Where in the user's program a collective was called: the first frame outside torch and this package."""

import os
import sys
from types import CodeType

import torch

import torchtpu_dist

_OURS = os.path.join(os.path.dirname(torchtpu_dist.__file__), "collectives") + os.sep
_INTERNAL = (os.path.dirname(torch.__file__) + os.sep, _OURS, os.path.dirname(os.__file__) + os.sep + "contextlib")
_is_internal: dict[CodeType, bool] = {}
_names: dict[tuple[CodeType, int], str] = {}


def call_site() -> str:
    """``file.py:17 in train_step``. Cheap: a walk up the frames, judged once a code object."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        code = frame.f_code
        internal = _is_internal.get(code)
        if internal is None:
            internal = _is_internal[code] = code.co_filename.startswith(_INTERNAL)
        if not internal:
            break
        frame = frame.f_back
    key = (frame.f_code, frame.f_lineno)
    name = _names.get(key)
    if name is None:
        name = _names[key] = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return name
