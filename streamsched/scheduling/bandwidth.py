"""Bandwidth first: the placement that touches the fewest domains, level by level from the coarsest.

Placements are compared by their key: the domains used at each level, coarse to fine, the nodes last; then the strays in
them, which are the same before and after; then the room in them, so that a part goes where the least is left over; and
among equals the one that takes more from the first domain by place.

Each part of the key is a sum over the domains that are used. So the best way to put so many blocks in a domain is the
best way to share them out among its children, one child after the other, and the keys of all domains of a level are
worked out together. Keys are packed into one integer each, the most important part in front. Only domains that can have
a part in the best placement are looked at.

Source: `topology.md`, section 9.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from streamsched.scheduling.fragmentation import Counts, Nesting
    from streamsched.state.topology import PoolTree

#: Packed keys: 64 bits each, or integers of Python where those do not do.
Keys = NDArray[Any]
#: More than 64 bits hold when a few of them are added up would not do.
_MOST = 1 << 61


class BandwidthFirst:
    """One search in one tree."""

    __slots__ = ("_blocks", "_dtype", "_impossible", "_nesting", "_own", "_radix", "_room", "_tree", "_weights")

    def __init__(
        self, tree: PoolTree, nesting: Nesting, blocks: list[Counts], strays: list[Counts], slots: Counts
    ) -> None:
        """Prepare a search.

        Args:
            tree: The domains.
            nesting: The blocks.
            blocks: How many fit in each domain, by depth.
            strays: The strays of each domain itself, by depth.
            slots: How many ranks each node takes.
        """
        self._tree = tree
        self._nesting = nesting
        self._blocks = blocks
        depths = len(blocks)
        room: list[Counts] = [slots]
        for depth in range(depths - 2, -1, -1):
            room.append(np.add.reduceat(room[-1], tree.children[depth][:-1], dtype=np.int64))
        self._room = room[::-1]
        used = [min(nesting.sizes[0] // size, len(here)) for size, here in zip(nesting.sizes, blocks, strict=True)]
        #: What separates the parts of a key: room, strays, and the domains used from the node up.
        self._radix = [
            1 + sum(times * int(here.max()) for times, here in zip(used, self._room, strict=True)),
            1 + sum(times * int(here.max()) for times, here in zip(used, strays, strict=True)),
            *(times + 1 for times in used[:0:-1]),
        ]
        self._weights = [1]
        for radix in self._radix:
            self._weights.append(self._weights[-1] * radix)
        self._impossible = self._weights.pop()
        self._dtype: type[Any] = np.int64 if self._impossible < _MOST else object
        #: What each domain adds to the key of a placement that uses it, by depth.
        self._own: list[Keys] = [
            self._room[depth].astype(self._dtype)
            + strays[depth].astype(self._dtype) * self._weights[1]
            + (self._weights[1 + depths - depth] if depth else 0)
            for depth in range(depths)
        ]

    def order(self, depth: int, domains: Counts) -> Counts:
        """Return domains of a depth, the one with the least room at the front."""
        return domains[np.argsort(self._room[depth][domains], kind="stable")]

    def parts_of(self, seats: list[tuple[int, int]]) -> tuple[int, ...]:
        """Return the key of a placement: domains used at each level, coarse to fine, strays and room."""
        key = int(self._own[0][0])
        nodes = np.array([index for index, _ in seats])
        for depth in range(1, len(self._blocks)):
            of_node = self._tree.domain_of[depth - 1][nodes] if depth < len(self._blocks) - 1 else nodes
            key += int(self._own[depth][np.unique(of_node)].sum())
        parts = []
        for radix in self._radix:
            key, part = divmod(key, radix)
            parts.append(part)
        return tuple(parts[::-1])

    def fill(self, depth: int, domain: int, wanted: int) -> list[tuple[int, int]]:
        """Return nodes and ranks there, by place, for so many blocks of a domain, which must hold them."""
        nodes = len(self._tree.children)
        here: Counts = np.array([domain])
        paid: Keys = np.zeros(1, self._dtype)
        while depth < nodes:
            needed = wanted * self._nesting.ratios[depth]
            first, end = self._tree.children[depth][here], self._tree.children[depth][here + 1]
            fewest = self._fewest(depth + 1, first, end, needed)[0]
            least = int(fewest.min())
            here, paid = here[fewest == least], paid[fewest == least]
            if least > 1:
                break
            # One child does, whatever it is the child of.
            children, parents = _ranges(self._tree.children[depth], here)
            enough = self._blocks[depth + 1][children] >= needed
            depth += 1
            wanted = needed
            here = children[enough]
            paid = paid[parents[enough]] + self._own[depth][here]
        if depth == nodes:
            return [(int(here[paid.argmin()]), wanted * self._nesting.sizes[-1])]
        return self._best_of(depth, here, paid, wanted)

    def _fewest(self, depth: int, first: Counts, end: Counts, needed: int) -> tuple[Counts, Counts]:
        """Return how many domains hold so many blocks at least, for each of some ranges of domains of a depth.

        And how many blocks each must take then, however the others are filled.
        """
        blocks = np.minimum(self._blocks[depth], needed)
        number = np.zeros(len(first), np.int64)
        left = np.full(len(first), needed)
        share = np.ones(len(first), np.int64)
        for size in range(int(blocks.max()), 0, -1):
            of_size = blocks == size
            if not of_size.any():
                continue
            before = np.concatenate(([0], np.cumsum(of_size)))
            taken = np.minimum(before[end] - before[first], -(-left // size))
            number += taken
            last = (left > 0) & (left <= taken * size)
            share[last] = (left - (taken - 1) * size)[last]
            left = np.maximum(left - taken * size, 0)
            if not left.any():
                break
        return number, share

    def _best_of(self, depth: int, domains: Counts, paid: Keys, wanted: int) -> list[tuple[int, int]]:
        """Fill the best of some domains, each of which has already cost something.

        Those that cannot be worse than others by what is known of them go first, and the search ends when none that is
        left could be better.
        """
        bounds = paid.copy()
        if len(domains) > 1:
            first, end = domains, domains + 1
            ranks = wanted * self._nesting.sizes[depth]
            for below in range(depth, len(self._tree.children)):
                first, end = self._tree.children[below][first], self._tree.children[below][end]
                needed = ranks // self._nesting.sizes[below + 1]
                weight = self._weights[1 + len(self._blocks) - below - 1]
                bounds += self._fewest(below + 1, first, end, needed)[0].astype(self._dtype) * weight + ranks
        order = np.argsort(bounds, kind="stable")
        best: tuple[int, int, int, _Tables] | None = None
        at, many = 0, 1
        while at < len(order):
            batch = np.sort(order[at : at + many])
            at, many = at + many, many * 8
            if best is not None:
                batch = batch[(bounds[batch] < best[0]) | ((bounds[batch] == best[0]) & (batch < best[1]))]
                if not len(batch):
                    break
            found = _Tables(self, depth, domains[batch], wanted)
            keys = paid[batch] + found.keys
            row = int(keys.argmin())
            if best is None or (int(keys[row]), int(batch[row])) < best[:2]:
                best = (int(keys[row]), int(batch[row]), row, found)
        if best is None:
            raise AssertionError("none of no domains is the best")
        return best[3].fill(best[2], wanted)


class _Tables:
    """What it costs to put each number of blocks in each of some domains, and in those below them."""

    __slots__ = ("_depth", "_first", "_keys", "_rows", "_search", "keys")

    def __init__(self, search: BandwidthFirst, depth: int, domains: Counts, wanted: int) -> None:
        """Work out the keys of as many blocks in each of some domains of a depth, which must hold them."""
        children_at, ratios = search._tree.children, search._nesting.ratios
        self._search = search
        self._depth = depth
        #: By depth, from that of the domains on: the domains looked at, and where the children of each begin there.
        self._rows = [domains]
        self._first: list[Counts] = []
        widths = [wanted]
        first, end = children_at[depth][domains], children_at[depth][domains + 1]
        numbers, share = search._fewest(depth + 1, first, end, wanted * ratios[depth])
        for above in range(depth, len(children_at)):
            children, parents = _ranges(children_at[above], self._rows[-1])
            blocks = search._blocks[above + 1][children]
            needed = widths[-1] * ratios[above]
            alive = blocks >= (share[parents] if above == depth else 1)
            number = np.bincount(parents[alive], minlength=len(self._rows[-1]))
            self._first.append(np.concatenate(([0], np.cumsum(number))))
            self._rows.append(children[alive])
            widths.append(min(needed, int(blocks.max())))
        #: The keys of these domains by number of blocks, those of the children of the first only where one is asked.
        self._keys: list[Keys] = [np.zeros((0, 0), search._dtype)] * len(self._rows)
        for below in range(len(self._rows) - 1, 0, -1):
            rows, width = self._rows[below], widths[below]
            keys = np.full((width + 1, len(rows)), search._impossible, search._dtype)
            keys[0] = 0
            own = search._own[depth + below][rows]
            if below == len(self._rows) - 1:
                keys[1:] = np.where(
                    search._blocks[-1][rows] >= np.arange(1, width + 1)[:, np.newaxis], own, search._impossible
                )
            else:
                ratio = ratios[depth + below]
                keys[1:] = np.minimum(self._together(below, width * ratio)[ratio::ratio] + own, search._impossible)
            self._keys[below] = keys
        needed = wanted * ratios[depth]
        if len(domains) == 1:
            self.keys: Keys = np.array(
                [_suffixes(self._keys[1][:, self._children(0, 0, needed)], needed, search._impossible)[0][needed]]
            )
        else:
            self.keys = self._of_all(needed, int(share.min()), int(numbers.max()))

    def fill(self, row: int, wanted: int) -> list[tuple[int, int]]:
        """Return nodes and ranks there for so many blocks in one of the domains."""
        return self._fill(0, row, wanted)

    def _of_all(self, needed: int, share: int, number: int) -> Keys:
        """Return the least key of the blocks needed in each of the domains that this is about.

        So many of their children take a part, at most and not less than two, and of each at least a share.
        """
        first, keys = self._first[0], self._keys[1]
        numbers = np.diff(first)
        order = np.argsort(-numbers, kind="stable")
        best = np.full((needed + 1, len(numbers)), self._search._impossible, self._search._dtype)
        most = len(keys) - 1
        for child in range(int(numbers.max())):
            having = int(np.count_nonzero(numbers > child))
            of_child = keys[:, first[order[:having]] + child]
            # It is the last to take a part,
            ends = best[needed - most : needed - share + 1, :having][::-1] + of_child[share:]
            np.minimum(best[needed, :having], ends.min(axis=0), out=best[needed, :having])
            # or one in between,
            if number > 2:
                before = best[:, :having].copy()
                for blocks in range(share, most + 1):
                    after = best[share + blocks : needed, :having]
                    np.minimum(after, before[share : needed - blocks] + of_child[blocks], out=after)
            # or the first.
            np.minimum(best[share : most + 1, :having], of_child[share:], out=best[share : most + 1, :having])
        in_order: Keys = np.empty_like(best[needed])
        in_order[order] = best[needed]
        return in_order

    def _together(self, above: int, needed: int) -> Keys:
        """Return the least keys of each number of blocks, up to those needed, in the children of each domain."""
        search = self._search
        first, keys = self._first[above], self._keys[above + 1]
        numbers = np.diff(first)
        # Those with the most children in front: then those that have one more are always the first ones.
        order = np.argsort(-numbers, kind="stable")
        best = np.full((needed + 1, len(numbers)), search._impossible, search._dtype)
        best[0] = 0
        most = keys.shape[0] - 1
        are_nodes = self._depth + above == len(search._tree.children) - 1
        for child in range(int(numbers.max())):
            having = int(np.count_nonzero(numbers > child))
            children = first[order[:having]] + child
            # So many the children before it can have, and so many those up to it.
            reach, end = min(child * most, needed) + 1, min((child + 1) * most, needed) + 1
            before = best[:end, :having].copy()
            if are_nodes:
                # A node costs the same for however many blocks it takes, so it takes what it can.
                fits = search._blocks[-1][self._rows[above + 1][children]]
                rest = np.maximum(np.arange(1, end)[:, np.newaxis] - fits, 0)
                more = np.take_along_axis(before, rest, axis=0) if most > 1 else before[:-1]
                np.minimum(before[1:], more + keys[1, children], out=best[1:end, :having])
                continue
            of_child = keys[:, children]
            for blocks in range(1, min(most, needed) + 1):
                stop = min(reach + blocks, needed + 1)
                after = best[blocks:stop, :having]
                np.minimum(after, before[: stop - blocks] + of_child[blocks], out=after)
        in_order = np.empty_like(best)
        in_order[:, order] = best
        return in_order

    def _children(self, above: int, row: int, needed: int) -> Counts:
        """Return those children of a domain, by their number, that can have a part in its best placement.

        Of those that take equally many blocks only the best can, as many as there are at most.
        """
        children = np.arange(self._first[above][row], self._first[above][row + 1])
        keys = self._keys[above + 1][1:, children]
        most = len(_largest(self._search._blocks[self._depth + above + 1][self._rows[above + 1][children]], needed))
        if len(children) <= most:
            return children
        limit = np.partition(keys, most - 1, axis=1)[:, most - 1 : most]
        equal = keys == limit
        chosen = (keys < limit) | (equal & (np.cumsum(equal, axis=1) <= most))
        chosen &= keys < self._search._impossible
        worthwhile: Counts = children[chosen.any(axis=0)]
        return worthwhile

    def _fill(self, above: int, row: int, wanted: int) -> list[tuple[int, int]]:
        search = self._search
        depth = self._depth + above
        domain = int(self._rows[above][row])
        if depth == len(search._tree.children):
            return [(domain, wanted * search._nesting.sizes[-1])]
        needed = wanted * search._nesting.ratios[depth]
        children = self._children(above, row, needed)
        seats: list[tuple[int, int]] = []
        shares = _shares(self._keys[above + 1][:, children], needed, search._impossible)
        for child, share in zip(children.tolist(), shares, strict=True):
            if share:
                seats += self._fill(above + 1, child, share)
        return seats


def _ranges(starts: Counts, domains: Counts) -> tuple[Counts, Counts]:
    """Return the children of some domains, and for each the position of its parent among them."""
    first = starts[domains]
    numbers = starts[domains + 1] - first
    parents = np.repeat(np.arange(len(domains)), numbers)
    before = np.cumsum(numbers) - numbers
    return np.arange(len(parents)) + (first - before)[parents], parents


def _largest(blocks: Counts, needed: int) -> Counts:
    """Return the largest of some numbers, descending, as many as it takes to hold what is needed."""
    descending: Counts = np.sort(blocks)[::-1]
    return descending[: int(np.searchsorted(np.cumsum(descending), needed)) + 1]


def _suffixes(keys: Keys, needed: int, impossible: int) -> list[Keys]:
    """Return the least keys of each number of blocks in the children from each one on; nothing fits after the last."""
    nothing = np.full(needed + 1, impossible, keys.dtype)
    nothing[0] = 0
    width = min(len(keys) - 1, needed)
    #: Of so many blocks some child takes so many: what is left, and a place where nothing is possible for less than 0.
    left = np.arange(needed + 1) - np.arange(width + 1)[:, np.newaxis]
    left[left < 0] = needed + 1
    best = [nothing]
    for child in keys[: width + 1].T[::-1]:
        rest = np.append(best[-1], impossible)[left]
        best.append(np.minimum((rest + child[:, np.newaxis]).min(axis=0), impossible))
    return best[::-1]


def _shares(keys: Keys, needed: int, impossible: int) -> list[int]:
    """Return how many blocks each child takes in the best placement, and of equally good ones more in the first."""
    if len(keys) == 2:  # One each, of those with the least keys.
        chosen = set(np.argsort(keys[1], kind="stable")[:needed].tolist())
        return [int(child in chosen) for child in range(keys.shape[1])]
    best = _suffixes(keys, needed, impossible)
    shares: list[int] = []
    for child, here, after in zip(keys.T, best, best[1:], strict=False):
        share = next(
            blocks
            for blocks in range(min(len(child) - 1, needed), -1, -1)
            if child[blocks] + after[needed - blocks] == here[needed]
        )
        shares.append(share)
        needed -= share
    return shares
