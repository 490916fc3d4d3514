"""Followers of a feed: no last state of a subject is lost, and nothing grows without bound."""

from __future__ import annotations

import asyncio

import pytest

from ringstep.controller import watching
from ringstep.controller.watching import Feed, FeedEndedError, TooSlowError


def latest(earlier: str, later: str) -> str:
    return later


async def test_follower_reads_what_it_was_told_in_order() -> None:
    feed: Feed[str, str] = Feed(latest)
    with feed.follow() as follower:
        feed.tell("a", "1")
        feed.tell("b", "2")
        assert await follower.read() == [("a", "1"), ("b", "2")]
        feed.tell("a", "3")
        assert await follower.read() == [("a", "3")]


async def test_news_of_one_subject_replace_what_was_not_read() -> None:
    feed: Feed[str, str] = Feed(lambda earlier, later: earlier + later)
    with feed.follow() as follower:
        for text in "xyz":
            feed.tell("a", text)
        assert await follower.read() == [("a", "xyz")]


async def test_reader_waits_until_there_is_news() -> None:
    feed: Feed[str, str] = Feed(latest)
    with feed.follow() as follower:
        reading = asyncio.create_task(follower.read())
        await asyncio.sleep(0)
        assert not reading.done()
        feed.tell("a", "1")
        assert await reading == [("a", "1")]


async def test_every_follower_hears_and_one_that_left_does_not() -> None:
    feed: Feed[str, str] = Feed(latest)
    assert not feed
    with feed.follow() as first:
        with feed.follow() as second:
            feed.tell("a", "1")
            assert await second.read() == [("a", "1")]
        assert await first.read() == [("a", "1")]
        assert feed
    assert not feed


async def test_follower_that_leaves_too_much_unread_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "MAX_WAITING", 3)
    feed: Feed[int, str] = Feed(latest)
    with feed.follow() as follower:
        for number in range(5):
            feed.tell(number, "new")
        with pytest.raises(TooSlowError, match="more than 3 changes"):
            await follower.read()
        feed.tell(9, "ignored")
        with pytest.raises(TooSlowError):
            await follower.read()


async def test_end_of_a_feed_ends_a_read_under_way() -> None:
    feed: Feed[int, str] = Feed(latest)
    with feed.follow() as follower:
        reading = asyncio.create_task(follower.read())
        await asyncio.sleep(0)
        feed.end()
        with pytest.raises(FeedEndedError, match="leads no more"):
            await reading
