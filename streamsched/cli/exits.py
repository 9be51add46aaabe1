"""Exit codes, which scripts rely on."""

from __future__ import annotations

#: Done, and the answer is yes.
OK = 0
#: Done, and the answer is no: rejected, not found, not whole, different.
NEGATIVE = 1
#: What was asked makes no sense, or a setting is wrong. Nothing was done.
USAGE = 2
#: Nobody answered.
UNREACHABLE = 3
#: A bug, a broken invariant or a ledger that is not whole: the process stopped rather than go on.
HALTED = 70
#: Whoever read our output went away.
BROKEN_PIPE = 141
