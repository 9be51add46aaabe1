"""One replica's side of the rounds protocol, with no I/O and no clock: what was read goes in, what to append comes out.

Every shell that schedules drives this one object: the Faust service, the embedded service, the simulator. So they
propose the same, and what is left to a shell is to carry bytes and to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.errors import LedgerGapError
from streamsched.model.commands import Effects
from streamsched.model.events import Tick
from streamsched.scheduling.memory import Memory
from streamsched.scheduling.schemes import decide
from streamsched.state.cluster import ClusterState

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsched.model.events import Record, RoundProposed, StateHashed


_BETWEEN_TICKS_MS = 100
#: See `ClusterState.stirred`; the last number is that of the round that was closed last.
_Stirred = tuple[int, int, int, str | None, int, int, int, int]


class Scheduler:
    """A fold of the ledger that knows what it would append next.

    At most one event of ours is in flight: whoever appends what `next_event` gives calls `appended` with its cursor,
    and nothing more comes before that cursor was taken.

    Args:
        state: What was folded before; nothing when None.
        decide: What makes the proposals. The policy in force says which rules it follows, unless something else does.
    """

    def __init__(
        self,
        state: ClusterState | None = None,
        *,
        decide: Callable[[ClusterState, Memory], RoundProposed | None] = decide,
    ) -> None:
        self.state = ClusterState() if state is None else state
        self._decide = decide
        self.memory = Memory()
        #: When the order of the budgets may have changed what can be decided, although nothing else has.
        self._review_ms: int | None = None
        self._in_flight: int | None = None
        self._hash: StateHashed | None = None
        #: What the state was like when there was last nothing to decide.
        self._settled: _Stirred | None = None
        #: The same once a proposal of ours that leaves nothing to decide has been folded: what it is based on, what the
        #: state will be like if nothing else happens, and how many items were void before; and whether that came true.
        self._leaves: tuple[int, _Stirred, int] | None = None
        self._left: _Stirred | None = None
        #: When time alone changes something next, and how many had been folded when that was looked up.
        self._due_at = -1
        self._due_ms: int | None = None
        #: How many had been folded when we were last asked, and since when that is so, by the caller's clock.
        self._asked_at = -1
        self._quiet_since_ms = 0
        self._last_tick_ms = 0

    def take(self, record: Record) -> Effects:
        """Fold a record; a repeat gives no effects.

        Raises:
            LedgerGapError: Records before this one have not been taken; read them from the ledger first.
        """
        state = self.state
        if record.cursor < state.next_cursor:
            return Effects()
        if record.cursor > state.next_cursor:
            raise LedgerGapError(state.next_cursor, record.cursor)
        effects = state.apply(record)
        if effects.hash is not None:
            self._hash = effects.hash
        if self._in_flight is not None and record.cursor >= self._in_flight:
            if self._leaves is not None and record.cursor == self._in_flight:
                based_on, left, void = self._leaves
                if based_on == record.cursor and void == sum(state.void.values()):
                    self._left = left
            self._in_flight = self._leaves = None
        return effects

    def appended(self, cursor: int) -> None:
        """Take note of where the last event of ours was appended."""
        self._in_flight = cursor if cursor >= self.state.next_cursor else None

    def next_event(self, clock_ms: int) -> RoundProposed | Tick | StateHashed | None:
        """Return what should be appended now, once every record up to the end has been taken; None for nothing.

        Args:
            clock_ms: The caller's clock. It only decides when a tick is written, never what is decided.
        """
        if self._in_flight is not None:
            return None
        state = self.state
        if self._hash is not None:
            due, self._hash = self._hash, None
            if due.folded > state.hashed:
                return due
        stirred = state.stirred
        if self._left == stirred:
            self._settled, self._review_ms = stirred, self.memory.review_ms(state)
        self._leaves = self._left = None
        if self._settled != stirred or (self._review_ms is not None and state.now_ms >= self._review_ms):
            self.memory.leaves_nothing = False
            proposal = self._decide(state, self.memory)
            if proposal is not None:
                if self.memory.leaves_nothing:
                    left = (*stirred[:-1], proposal.round)
                    self._leaves = (proposal.based_on, left, sum(state.void.values()))
                return proposal
            self._settled = stirred
            self._review_ms = self.memory.review_ms(state)
        if clock_ms >= self.wakeup_ms(clock_ms):
            self._last_tick_ms = clock_ms
            return Tick(tick=state.last_tick + 1)
        return None

    @property
    def next_due_ms(self) -> int | None:
        """When time alone lets something happen or be decided, by the ledger's clock; None for never."""
        state = self.state
        if self._due_at != state.next_cursor:
            self._due_at, self._due_ms = state.next_cursor, state.next_wakeup_ms
        due, review = self._due_ms, self._review_ms
        return review if due is None else due if review is None else min(due, review)

    def wakeup_ms(self, clock_ms: int) -> int:
        """Return when to ask `next_event` again at the latest, by the caller's clock, if nothing is read before.

        A tick follows when time alone changes something, and otherwise after the policy's longest pause. Two ticks are
        at least 100 ms apart, so that a ledger whose clock is behind ours does not fill with them.
        """
        state = self.state
        if self._asked_at != state.next_cursor:
            self._asked_at, self._quiet_since_ms = state.next_cursor, clock_ms
        wakeup = self._quiet_since_ms + state.policy.tick_ms
        due = self.next_due_ms
        if due is not None and due < wakeup:
            wakeup = due
        return max(wakeup, self._last_tick_ms + _BETWEEN_TICKS_MS)
