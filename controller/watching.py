"""Who follows jobs and switches as they change, and what they have not heard yet.

A follower that reads slowly misses states in between, never the last one: news of one subject
replace what was not read yet. So what waits for a follower is bounded by what there is to follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

MAX_WAITING: Final = 50_000
"""News that may wait for one follower. Jobs that come and go while nobody reads are all news of
their own, so this needs a bound: three times as many as can live at once."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class TooSlowError(Exception):
    """The follower left too much unread; it has to start over."""


class FeedEndedError(Exception):
    """There will be no more news from here."""


class Follower(Generic[_K, _V]):
    """What one follower has not read yet, by subject."""

    def __init__(self, combine: Callable[[_V, _V], _V]) -> None:
        self._combine = combine
        self._waiting: dict[_K, _V] = {}
        self._there_is_news = asyncio.Event()
        self._failure: Exception | None = None

    def tell(self, subject: _K, news: _V) -> None:
        """Take news of a subject in."""
        if self._failure is not None:
            return
        known = self._waiting.get(subject)
        if known is None and len(self._waiting) >= MAX_WAITING:
            self.fail(
                TooSlowError(
                    f"more than {MAX_WAITING} changes were not read in time; start to watch anew"
                )
            )
        else:
            self._waiting[subject] = news if known is None else self._combine(known, news)
        self._there_is_news.set()

    def fail(self, failure: Exception) -> None:
        """Let the next read, and all later ones, raise ``failure``."""
        self._failure = failure
        self._waiting.clear()
        self._there_is_news.set()

    async def read(self) -> list[tuple[_K, _V]]:
        """Return all unread news, in order of first mention; wait where there are none.

        Raises:
            TooSlowError: news were lost.
            FeedEndedError: the feed has ended.
        """
        await self._there_is_news.wait()
        if self._failure is not None:
            raise self._failure
        self._there_is_news.clear()
        news = list(self._waiting.items())
        self._waiting.clear()
        return news


class Feed(Generic[_K, _V]):
    """Hands news to all followers. ``combine(earlier, later)`` merges news of one subject."""

    def __init__(self, combine: Callable[[_V, _V], _V]) -> None:
        self._combine = combine
        self._followers: set[Follower[_K, _V]] = set()

    def __bool__(self) -> bool:
        return bool(self._followers)

    def tell(self, subject: _K, news: _V) -> None:
        """Tell every follower."""
        for follower in self._followers:
            follower.tell(subject, news)

    def end(self) -> None:
        """Tell every follower that there will be no more news."""
        for follower in self._followers:
            follower.fail(FeedEndedError("this controller leads no more; ask the one that does"))

    @contextmanager
    def follow(self) -> Iterator[Follower[_K, _V]]:
        """Follow inside the context."""
        follower: Follower[_K, _V] = Follower(self._combine)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
