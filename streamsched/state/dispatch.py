"""Commands on their way to nodes, until the nodes have acknowledged them.

What a lost node has not acknowledged waits until the node is back, and is then sent again at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streamsched.model.identifiers import command_order

if TYPE_CHECKING:
    from streamsched.model.commands import Command
    from streamsched.state.inventory import RunKey


class Dispatch:
    """What was issued and has no answer yet, by node and id; and when each was last sent, the oldest first."""

    __slots__ = ("sent", "unacknowledged")

    def __init__(self) -> None:
        self.unacknowledged: dict[str, dict[str, Command]] = {}
        self.sent: deque[tuple[int, str, str]] = deque()

    def issue(self, command: Command, now_ms: int, *, is_lost: bool) -> None:
        """Take a new command. To a lost node it is sent once, since it may be on its way back."""
        self.unacknowledged.setdefault(command.node, {})[command.command] = command
        if not is_lost:
            self.oldest_ms()  # Forgets what was answered, so that the queue is as long as what waits.
            self.sent.append((now_ms, command.node, command.command))

    def pause(self, node: str) -> None:
        """Send nothing to a node again, since it is lost."""
        self.sent = deque(entry for entry in self.sent if entry[1] != node)

    def resume(self, node: str, now_ms: int) -> list[Command]:
        """Return what a node that is back has not acknowledged, in order of ids, and count it as sent now."""
        waiting = list(self.unacknowledged.get(node, {}).values())
        self.sent.extend((now_ms, node, command.command) for command in waiting)
        return waiting

    def acknowledge(self, node: str, command: str) -> None:
        """Strike out a command and all before it: a node obeys in order, and ignores what it has passed."""
        waiting = self.unacknowledged.get(node)
        if waiting:
            if len(waiting) == 1 and command in waiting:  # As it is nearly always.
                del self.unacknowledged[node]
                return
            upto = command_order(command)
            self._strike(node, [id_ for id_ in waiting if id_ == command or command_order(id_) <= upto])

    def settle(self, node: str, run: RunKey) -> None:
        """Strike out every command about a run that has left a node."""
        waiting = self.unacknowledged.get(node)
        if waiting:
            self._strike(node, [id_ for id_, command in waiting.items() if (command.workload, command.attempt) == run])

    def is_acknowledged(self, command: str, node: str) -> bool:
        """Whether a node has said that it has a command."""
        return command not in self.unacknowledged.get(node, ())

    def concerns(self, node: str, run: RunKey) -> bool:
        """Whether a command about a run is on its way to a node."""
        waiting = self.unacknowledged.get(node, {})
        return any((command.workload, command.attempt) == run for command in waiting.values())

    def send_again(self, sent_before_ms: int, now_ms: int) -> list[Command]:
        """Return what was last sent so long ago and has no answer, in order of ids, and count it as sent now."""
        again: list[Command] = []
        while self.sent and self.sent[0][0] <= sent_before_ms:
            _, node, id_ = self.sent.popleft()
            command = self.unacknowledged.get(node, {}).get(id_)
            if command is not None:
                again.append(command)
        again.sort(key=lambda command: command_order(command.command))
        self.sent.extend((now_ms, command.node, command.command) for command in again)
        return again

    def oldest_ms(self) -> int | None:
        """Return when the command that waits longest was last sent; forgets those that were answered."""
        sent = self.sent
        while sent and sent[0][2] not in self.unacknowledged.get(sent[0][1], ()):
            sent.popleft()
        return sent[0][0] if sent else None

    def resends(self) -> list[list[int | str]]:
        """Return when each command without an answer was last sent, and to whom; the oldest first."""
        return [[when, node, id_] for when, node, id_ in self.sent if id_ in self.unacknowledged.get(node, ())]

    def unanswered(self) -> list[Command]:
        """Return what has no answer, in order of ids."""
        commands = [command for waiting in self.unacknowledged.values() for command in waiting.values()]
        return sorted(commands, key=lambda command: command_order(command.command))

    def _strike(self, node: str, ids: list[str]) -> None:
        waiting = self.unacknowledged[node]
        for id_ in ids:
            del waiting[id_]
        if not waiting:
            del self.unacknowledged[node]
