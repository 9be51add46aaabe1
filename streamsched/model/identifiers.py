"""What names may look like.

One written rule for the schema, the SDK, the command line and the scheduler: names are ASCII, case counts, nothing is
trimmed, folded or cut, and a name is compared byte for byte. Names that people choose freely (a title, a run's
notes) are not identifiers and do not live here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

#: One segment: letters, digits, dot, underscore, hyphen; starts with a letter or digit.
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"

#: Chosen by the client, 1 to 128 characters, never reused. A requeued workload keeps its id.
_WORKLOAD = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
WorkloadId = Annotated[str, StringConstraints(pattern=_WORKLOAD)]

#: A path of at most 12 segments below the root: ``nlp/llama``. The parent is in the name, so a tree of budgets
#: can have no cycle, no orphan and no node with two parents.
BudgetId = Annotated[str, StringConstraints(pattern=rf"^{_SEGMENT}(/{_SEGMENT}){{0,11}}$")]

#: One machine. 1 to 128 characters.
NodeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]

#: A kind of GPU, or of machine, that is not interchangeable with another: ``h100``.
PoolId = Annotated[str, StringConstraints(pattern=rf"^{_SEGMENT}$")]

#: One vertex of a topology tree: ``supernode-3``.
DomainId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]

#: The nodes of a pool in one tree: ``h100``, or ``h100:hall-2`` where trees are named.
TreeId = Annotated[str, StringConstraints(pattern=rf"^{_SEGMENT}(:[A-Za-z0-9][A-Za-z0-9._:-]{{0,127}})?$")]

#: ``cursor/ordinal``: the ledger record that gave rise to the command, and its place among that record's commands.
CommandId = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,18})/(0|[1-9][0-9]{0,8})$")]

#: Who did it: a principal, not an identifier of ours. Free text of at most 200 printable characters.
Actor = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]

#: Why, in words: at most 2,000 characters, line breaks allowed, other control characters not.
Reason = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x09\x0b-\x1f\x7f]{1,2000}$")]

#: One word of a command line, at most 8,192 characters. No process can be started with a NUL in it.
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]{0,8192}$")]


def command_order(command: str) -> tuple[int, int]:
    """Return a command id as numbers, in the order in which commands were issued.

    >>> command_order("9/1") < command_order("10/0")
    True
    """
    cursor, ordinal = command.split("/")
    return int(cursor), int(ordinal)


def parent_of(budget: str) -> str | None:
    """Return the budget above, or None for a child of the root.

    >>> parent_of("nlp/llama/eval")
    'nlp/llama'
    >>> parent_of("nlp") is None
    True
    """
    head, _, _ = budget.rpartition("/")
    return head or None
