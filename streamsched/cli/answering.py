"""What commands share: whom they ask, and how an answer or a receipt is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from streamsched.cli import exits

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from streamsched.cli.moments import Moment
    from streamsched.cli.places import Place
    from streamsched.model.commands import Receipt


def place_at(address: str) -> Place:
    """Return the place that takes a request."""
    from streamsched.cli.places import place_of

    return place_of(address)


@contextmanager
def asking(address: str, at: str | None) -> Iterator[Place]:
    """Name a place to ask, and show on a terminal how far its ledger has been folded, where it is one."""
    from streamsched.cli.places import place_of
    from streamsched.cli.running import folding

    moment = moment_of(at)
    if address.startswith("http://"):
        yield place_of(address, moment)
    else:
        with folding() as progress:
            yield place_of(address, moment, progress)


def moment_of(text: str | None, option: str = "--at") -> Moment | None:
    """Read a cursor or a time, given with `option`; None where it was not given."""
    from streamsched.cli.moments import parse_moment

    return None if text is None else parse_moment(text, option)


def print_answer(answer: BaseModel, screen: RenderableType, as_json: bool, *, wraps: bool = False) -> None:
    """Print an answer as JSON or as a screen."""
    from streamsched.cli import screens

    if as_json:
        screens.show_json(answer)
    else:
        screens.show(screen, wraps=wraps)


def print_receipt(receipt: Receipt, what: str, as_json: bool) -> None:
    """Print a receipt; end with exit code 1 where it is a rejection."""
    from streamsched.model.commands import ReceiptStatus

    rejected = receipt.status is ReceiptStatus.REJECTED
    why = f": {receipt.reason}" if receipt.reason else ""
    if as_json:
        from streamsched.cli import screens

        screens.show_json(receipt)
    else:
        typer.echo(f"{receipt.status}: {what} (cursor {receipt.cursor}){why}", err=rejected)
    if rejected:
        raise typer.Exit(exits.NEGATIVE)
